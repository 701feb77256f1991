"""Dropout of the base's own layers while training, as GPT-2 was trained with it.

A recipe's ``train.base_dropout`` says it; without it a base has none, whatever its config.json says. The masks are
those of `adapters.dropout`: functions of the step and of the place in the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from mindspore import nn

from adapters.dropout import KEY_NAME, Dropout
from model_zoo.errors import InputError, warn_once
from model_zoo.layers import AttentionCore, int_range


class HeadDropout(Dropout):
    """Dropout of attention weights ``(B, heads, S, K)``, of which a process may have some heads only.

    Args:
        parts, part: into how many parts the heads are divided, and which one this is.
    """

    def __init__(self, rate: float, name: str, parts: int, part: int):
        super().__init__(rate, name)
        self.parts, self.part = parts, part

    def places(self, x):
        own = x.size // x.shape[0]  # of a row of the batch
        before = (int_range(x.shape[0]) * (self.parts - 1) + self.part) * own
        return int_range(x.size).reshape(x.shape) + before.reshape(-1, 1, 1, 1), x.size * self.parts


def say_unapplied(model: nn.Cell) -> None:
    """Warns, once for each base, of dropout in its config.json, which nothing applies where nobody asks for it."""
    config, source = getattr(model, "config", None), getattr(model, "loaded_from", None)
    if source is None or any(getattr(cell, "drop", None) is not None for _, cell in model.cells_and_names()):
        return
    values = config.to_dict()
    rates = {name: values.get(name, config.assumed_dropout) for name in config.dropouts}
    rates = {name: rate for name, rate in rates.items() if isinstance(rate, (int, float)) and rate > 0}
    left = ", ".join(f"{name}={rate}" for name, rate in rates.items())
    if not left:
        return
    asked = {place: rates[name] for name, place in config.dropouts.items() if place and name in rates}
    way = f"train.base_dropout={asked} does" if asked else "the base has none here"
    warn_once(f"{source}: config.json says {left}, which training does not apply; {way}")


def attach_dropout(model: nn.Cell, rates: Mapping[str, float], part: int = 0, of_run: bool = False) -> None:
    """Lets a model's cells drop a share of what they give while training. What is there of an earlier run goes.

    Args:
        model: of the GPT family; its cells have an attribute ``drop``.
        rates: by place: ``embedding``, ``hidden`` (what attention and feed-forward add to the stream), ``attention``
            (the attention weights; these layers then run without the attention kernel).
        part: which part of the heads the model has, where they are divided over processes.
        of_run: it is a setting of the run at hand, and not the model's own.

    Raises:
        InputError: a model whose cells have no such places.
    """
    rates = {place: rate for place, rate in rates.items() if rate}
    for _, cell in list(model.cells_and_names()):
        drop = getattr(cell, "drop", None)
        if isinstance(drop, Dropout) and (rates or getattr(drop, "of_run", False)):
            del cell.drop
            cell.drop = None
    if not rates:
        return
    if getattr(getattr(model, "family", None), "name", None) != "gpt":
        raise InputError("train.base_dropout: only models of the GPT family have dropout of their own")
    for path, cell in list(model.cells_and_names()):
        if "drop" not in vars(cell) or (path == "transformer" and not hasattr(cell.wte, "weight")):  # in another stage
            continue
        if isinstance(cell, AttentionCore):
            place, more = "attention", (model.config.dims.heads // cell.heads, part)
        else:
            place, more = "embedding" if path == "transformer" else "hidden", ()
        if place in rates:
            drop = (HeadDropout if more else Dropout)(rates[place], path, *more)
            drop.key.name, drop.of_run = f"{path}.{KEY_NAME}", of_run
            del cell.drop
            cell.insert_child_to_cell("drop", drop)
