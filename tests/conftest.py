"""What every test shares: where the reference files lie, and few threads so that tests do not fight over cores."""

import os
from pathlib import Path

import pytest

import model_zoo  # noqa: F401  (it sets what MindSpore reads when it is imported)

os.environ.setdefault("GLOG_v", "3")  # MindSpore's C++ log: errors only


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The reference models, tokenizers and adapters, each with the outputs of an independent implementation."""
    return Path(__file__).parent / "fixtures"
