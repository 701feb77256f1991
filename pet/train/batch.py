"""One batch as a user gives it, with all the arrays that a step needs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from adapters.schema import plain
from model_zoo.arguments import is_several
from model_zoo.errors import InputError, first_line, shown, similar
from pet.data.dataset import IGNORED
from pet.data.packing import causal_layout, placed

log = logging.getLogger("pet")

INTERVAL = ("start", "end")
PLACES = ("position_ids", *INTERVAL)
"""Arrays of a batch that say where its tokens stand and what they see, given all or none; positions also alone."""
KNOWN = ("input_ids", "labels", "attention_mask", "sample_ids", "label", *PLACES)
"""What of a batch in a list has a meaning here."""
OF_LOADERS = ("document", "said")
"""What loaders put into their batches, and is made anew here."""


def layout_of(model) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """``ids (S,) → (position_ids, end)`` of one document, as the model (with its adapter) wants them.

    A model that is of no family counts from 0, and every token sees those before it.
    """
    family, offset = getattr(model, "family", None), getattr(model, "position_offset", 0)

    def layout(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if family is None:
            return causal_layout(ids)
        positions, end = family.document_layout(model.config, ids)
        if offset:
            positions = np.array(positions)
            # the first of two rows says the place in the text, and that is what a prefix moves
            place = positions if positions.ndim == 1 else positions[0]
            place += offset
        if len(ids) + offset == model.config.dims.context + 1:  # the last token is predicted, and read by none
            positions = np.minimum(positions, model.config.dims.context - 1)
        return positions, end

    return layout


def complete(batch: dict[str, Any], model=None, index: int = 0) -> dict[str, Any]:
    """A batch with all the arrays that a step needs, from those that it has."""
    if not isinstance(batch, Mapping):
        raise InputError(f"batch {index} is of the type {type(batch).__name__}; a dictionary was expected")
    if "input_ids" not in batch:
        raise InputError(
            f"batch {index} has no input_ids; it has {', '.join(map(str, batch)) or 'nothing'}. Rows of text go into a "
            "file, one JSON object per line"
        )
    ids = _integers(batch["input_ids"], f"batch {index}: input_ids")
    if ids.ndim != 2 or not ids.size:
        rows = "; make_loader of pet.data makes batches of rows" if ids.ndim == 1 else ""
        raise InputError(f"batch {index}: input_ids has shape {ids.shape}; (batch, length) expected{rows}")
    count = len(ids)
    mask = batch.get("attention_mask")
    mask = np.ones_like(ids) if mask is None else _integers(mask, f"batch {index}: attention_mask", truths=True)
    if mask.size and not 0 <= mask.min() <= mask.max() <= 1:
        raise InputError(
            f"batch {index}: attention_mask holds {mask[mask > 1].max(initial=mask.min())}; 0 or 1 expected"
        )
    labels = batch.get("labels")
    labels = np.where(mask != 0, ids, IGNORED) if labels is None else _integers(labels, f"batch {index}: labels")
    for name, value in (("attention_mask", mask), ("labels", labels)):
        if value.shape != ids.shape:
            raise InputError(f"batch {index}: {name} has shape {value.shape}, input_ids {ids.shape}")
    whole = {**own_arrays(batch), "input_ids": ids, "labels": labels.astype(np.int32)}
    names = batch.get("sample_ids")
    names = [f"batch {index}, row {row}" for row in range(count)] if names is None else names
    whole["sample_ids"] = list(names) if is_several(names) else []
    if "label" in batch:  # of each row, where texts are judged
        said = plain(batch["label"])
        whole["document"] = np.where(mask != 0, 0, np.where(np.cumsum(mask, 1) == 0, -1, 1))
        if not isinstance(said, list) or len(said) != count:
            raise InputError(f"batch {index}: label is {shown(said)}; one for each of {count} rows expected")
        whole["said"] = [[one] for one in said]
    if len(whole["sample_ids"]) != count:
        raise InputError(f"batch {index}: sample_ids is {shown(names)}; a list of {count} was expected")
    given = {key: _integers(batch[key], f"batch {index}: {key}") for key in PLACES if key in batch}
    for key, value in given.items():
        if value.shape[:1] + value.shape[-1:] != ids.shape or (key in INTERVAL and value.ndim != 2):
            raise InputError(f"batch {index}: {key} has shape {value.shape}, input_ids {ids.shape}")
    if len(given) == len(PLACES):
        return {**whole, **given}
    if alone := [key for key in INTERVAL if key in given]:
        lacking = ", ".join(key for key in PLACES if key not in given)
        raise InputError(f"batch {index}: {alone[0]} takes no effect without {lacking}")
    context = getattr(model, "room", None)
    if context is not None and (longest := int((mask != 0).sum(1).max())) > context:
        raise InputError(f"batch {index}: a row of {longest} tokens is longer than the model's context of {context}")
    for row in range(count):
        real = np.flatnonzero(mask[row])
        if len(real) and real[-1] - real[0] >= len(real):
            raise InputError(f"batch {index}, row {row}: attention_mask has a hole; one run of 1 expected")
    if not mask.any():
        raise InputError(f"batch {index}: attention_mask is 0 everywhere")
    return {**whole, **placed(ids, mask != 0, layout_of(model)), **given}


def own_arrays(batch: dict[str, Any]) -> dict[str, np.ndarray]:
    """The numbers in a batch that only a user's forward_step knows of, in 32 bits where they are fractions."""
    found = {}
    for name in (name for name in batch if name not in (*KNOWN, *OF_LOADERS)):
        with contextlib.suppress(ValueError, TypeError, RuntimeError):  # texts and others stay behind
            array = np.asarray(batch[name])
            if array.dtype.kind in "biuf":
                found[name] = array.astype(np.float32) if array.dtype == np.float64 else array
    return found


def say_unread(batch: dict[str, Any]) -> None:
    """Warns of what looks like a misspelling: no objective reads it, and what it was meant for is made up."""
    absent = [name for name in KNOWN if name not in batch]
    for name in batch:
        if name not in KNOWN and (meant := similar(name, absent)):
            log.warning("batch 0: %s is read by a forward_step alone%s", name, meant)


def _integers(value, name: str, truths: bool = False) -> np.ndarray:
    """An array of whole numbers, in 32 bits; of truth values where these are allowed, too."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of different lengths; what torch does not hand on
        raise InputError(f"{name} is no array of integers: {first_line(error)}") from None
    if not (np.issubdtype(array.dtype, np.integer) or (truths and array.dtype == bool)):
        raise InputError(f"{name} holds {array.dtype}; integers expected")
    short = array.astype(np.int32)
    if not np.array_equal(short, array):
        raise InputError(f"{name} holds {array[short != array][0]}, which no token's number can be")
    return short


def check_tokens(batch: dict[str, Any], model, source: str | Callable[[], str]) -> None:
    """Refuses ids, labels and positions that the model has no row for: a kernel would read past its table.

    Args:
        batch: its ``input_ids``, ``labels`` and ``position_ids`` are looked at.
        model: one without a configuration is held to ids of 0 and above.
        source: where the batch is from, or a function that says so.
    """
    dims = getattr(getattr(model, "config", None), "dims", None)  # another library's configuration has none
    vocabulary, context = (dims.vocab, dims.context) if dims is not None else (1 << 31, 1 << 31)
    expected = f"expected an id of the vocabulary (0 … {vocabulary - 1})"
    limits = {
        "input_ids": (vocabulary, expected),
        "labels": (vocabulary, f"{expected}, or {IGNORED} where nothing is learnt"),
        "position_ids": (context, f"the model's context has positions 0 … {context - 1}"),
    }
    for name in limits.keys() & batch.keys():
        values, (limit, meaning) = np.asarray(batch[name]), limits[name]
        wrong = (values < 0) | (values >= limit)
        if name == "labels":
            wrong &= values != IGNORED
        if wrong.any():
            place = source if isinstance(source, str) else source()
            raise InputError(f"{place}: {name} holds {values[wrong][0]}; {meaning}")
