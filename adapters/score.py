"""A head that judges a whole text: what makes a model with an adapter a reward model, or a classifier.

Hugging Face's ``…ForSequenceClassification`` call it ``score``, and PEFT keeps it in ``modules_to_save``: what is
trained, and saved, is the adapter's copy. Without an adapter the model itself becomes a classifier, whose checkpoint
has the head.
"""

from __future__ import annotations

from collections.abc import Mapping

from mindspore import nn

from adapters.adapter import new_version
from adapters.peft_config import with_one_head
from adapters.registry import registry
from adapters.replacement import own_copy
from adapters.settings import NO_HEAD
from model_zoo.errors import InputError
from model_zoo.labels import SCORE, Labels


def prepare_for(model: nn.Cell, config, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Makes a model ready for the adapter of a file with a head.

    Args:
        config: as the file has it; what it trains whole is changed.
        shapes: of the file's tensors, by their names without PEFT's prefix.
    """
    shape = shapes.get(f"{SCORE}.weight")
    if shape is not None and hasattr(model, "add_score"):
        make_head(model, Labels.plain(shape[0]))
        config.modules_to_save = with_one_head(config.modules_to_save)


def make_head(model: nn.Cell, labels: Labels, seed: int | None = None) -> None:
    """Puts the head's cell on a model that has none in use. One of an adapter that is gone, or of a file that was
    refused, may have other labels, and begins as another seed says."""
    kept = (item.cell for adapter in registry(model).adapters.values() for item in adapter.replaced)
    if model.config.labels is None and not any(cell is model.score for cell in kept):
        model.score = None
    model.add_score(labels, seed)


def add_head(model: nn.Cell, labels: Labels, seed: int | None = None) -> None:
    """Gives the model's active adapter a head to train, or without adapters the model itself, if it has none yet.

    Args:
        labels: what its numbers mean.
        seed: of a new head's weights; None: they start at zero.

    Raises:
        InputError: several adapters, a method whose files have no place for a head, a head of other labels, or a model
            that has no classifier in transformers.
    """
    state = registry(model)
    if not hasattr(model, "add_score"):
        raise InputError(f"{type(model).__name__}: only a model of a known family gets a head that judges texts")
    if len(state.selected) != 1 and state.adapters:
        raise InputError(
            "a head that judges texts belongs to one adapter: apply one, such as pet.apply_lora, and no more"
        )
    adapter = state.get(state.selected[0]) if state.selected else None
    if adapter is not None and not adapter.config.prefixed:
        raise InputError(
            f"adapter {adapter.name!r}: {adapter.config.method} {NO_HEAD}; expected another method, such as lora"
        )
    known = model.labels if adapter is None else adapter.labels
    if adapter is None:
        model.config.as_classifier(labels)  # or there is none
    if known is None:
        state.refuse_while_merged("add a head")
        make_head(model, labels, seed)
    rows = len(known.names) if known is not None else model.score.weight.shape[0]
    if rows != len(labels.names):
        first = ", ".join(labels.names[:8])
        raise InputError(f"the head has {rows} labels, {len(labels.names)} are asked for: {first}")
    if adapter is None:
        if labels != known:
            model.become_classifier(labels)
        return
    if known is None:
        adapter.replaced.append(own_copy(adapter.name, SCORE, model.score, "weight", model.dtype))
        adapter.config.modules_to_save = [*(adapter.config.modules_to_save or []), SCORE]
        adapter.version = new_version()
    adapter.named = labels
    state.set(state.selected)
