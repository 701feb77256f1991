"""What tests of this directory share."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from templates import CONTROLS, TEXTS
from tiny_tokenizers import write_byte_level

from model_zoo.auto import AutoModel
from model_zoo.engine import build, run as whole


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """template → directory of a tokenizer that has it."""
    root, known = tmp_path_factory.mktemp("tokenizers"), {}

    def make(template, controls=tuple(CONTROLS), eos="<|im_end|>"):
        if (template, controls, eos) not in known:
            directory = known[template, controls, eos] = root / str(len(known))
            directory.mkdir()
            write_byte_level(directory, list(controls), texts=TEXTS)
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": eos}
            (directory / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
        return known[template, controls, eos]

    return make


@pytest.fixture(scope="module")
def prompts():
    """Two rows and their mask, the second with padding on the left."""
    ids, mask = np.random.default_rng(5).integers(3, 96, (2, 14)), np.ones((2, 14), int)
    ids[1, :3], mask[1, :3] = 0, 0
    return ids, mask


@pytest.fixture(scope="module")
def small(fixtures):
    """A GPT-2, and rows of five ids."""
    return AutoModel.from_pretrained(fixtures / "gpt2"), np.load(fixtures / "gpt2" / "ref.npz")["input_ids"][:, :5]


@pytest.fixture(scope="module")
def path():
    """Of the kernels' library, which is compiled where it has not been."""
    try:
        return build.library()
    except build.NoCompiler as error:
        pytest.skip(str(error))


@pytest.fixture
def make(fixtures, tmp_path):
    """Copies fixture files into a fresh directory and writes the JSON files given."""

    def build(*sources, **objects):
        directory = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        for source in sources:
            shutil.copy(fixtures / source, directory)
        for name, value in objects.items():
            (directory / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        return directory

    return build


@pytest.fixture
def groups(monkeypatch):
    """How many layers each operator was made of, but for the trials on one."""
    made = []
    replace = whole.replace_layers

    def noted(layers, cells):
        made.append([cell.count if isinstance(cell, whole.FusedLayers) else None for cell in cells])
        return replace(layers, cells)

    monkeypatch.setattr(whole, "replace_layers", noted)
    return made
