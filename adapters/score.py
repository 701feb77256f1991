"""A head that gives one number: what makes a model with an adapter a reward model.

Hugging Face's ``…ForSequenceClassification`` call it ``score``, and PEFT keeps it in ``modules_to_save``. The cell of
the base is zero: what is trained, and saved, is the adapter's copy.
"""

from __future__ import annotations

from collections.abc import Collection

from mindspore import nn

from adapters.peft_config import SCORE
from adapters.registry import new_version, registry
from adapters.replacement import own_copy
from adapters.settings import NO_HEAD
from model_zoo.errors import InputError
from model_zoo.layers import Linear


def add_cell(model: nn.Cell) -> None:
    """Puts the head's cell on a model that has none."""
    if not hasattr(model, SCORE):
        cell = Linear(model.config.dims.hidden, 1, bias=False, dtype=model.dtype)
        cell.weight.name, cell.weight.requires_grad = f"{SCORE}.weight", False
        setattr(model, SCORE, cell)


def prepare_for(model: nn.Cell, config, tensors: Collection[str]) -> None:
    """Makes a model ready for the adapter of a file with a head.

    Args:
        tensors: the names of the file's tensors, without PEFT's prefix.
    """
    if f"{SCORE}.weight" in tensors and hasattr(model, "config"):
        add_cell(model)
        config.modules_to_save = [name for name in config.modules_to_save or [] if name != "classifier"]


def add_score(model: nn.Cell) -> None:
    """Gives the model's active adapter a head to train, if it has none yet; it starts at zero.

    Raises:
        InputError: no adapter or several, or a method whose files have no place for a head.
    """
    state = registry(model)
    if len(state.selected) != 1:
        raise InputError("a reward model's head belongs to one adapter: apply one, such as pet.apply_lora, and no more")
    adapter = state.get(state.selected[0])
    if adapter.scores:
        return
    if not adapter.config.prefixed:
        raise InputError(
            f"adapter {adapter.name!r}: {adapter.config.method} {NO_HEAD}; expected another method, such as lora"
        )
    state.refuse_while_merged("add a head")
    add_cell(model)
    adapter.replaced.append(own_copy(adapter.name, SCORE, model.score, "weight", model.dtype))
    adapter.config.modules_to_save = [*(adapter.config.modules_to_save or []), SCORE]
    adapter.version = new_version()
    state.set(state.selected)
