"""Parameter-efficient fine-tuning of GPT, LLaMA and GLM models with MindSpore.

Everything that a program needs is imported from here. The names stand in the type stub ``__init__.pyi`` and are looked
up on first use, so that ``import pet`` does not import MindSpore; nothing is defined in this file. It imports next to
nothing: the command ``pet`` cannot answer Ctrl-C before this file has run.
"""

from __future__ import annotations

import sys

import model_zoo  # it sets what MindSpore reads when it is imported
from pet.lazy import Unknown, names_of, stub_table

__version__ = "0.1.0"

if not hasattr(model_zoo, "PART_OF"):
    raise ImportError(
        f"the package 'model_zoo' is that of {next(iter(model_zoo.__path__))}, and not mindspore-pet's: rename that "
        "directory, or run from another one"
    )


def _check() -> None:
    from pet.installation import foreign_adapters

    if wrong := foreign_adapters():
        raise ImportError(wrong)


__getattr__, __dir__ = names_of(__name__, lambda: stub_table(__file__), _check, elsewhere="pet.compat")
sys.meta_path.append(Unknown)
