"""Rows that are tokens already: their ids, and which of them are learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from model_zoo.errors import InputError, warn_once

from .dataset import with_labels
from .messages import Wrong

LEARNT = ("completion_mask", "assistant_masks", "loss_mask")
"""Marks of 1 for the tokens that are learnt, as TRL and Megatron write them beside ids; all of them count."""
PACKED = ("position_ids", "seq_lengths")
"""What says that a row holds several documents, which would then be read as one."""
TOKEN_COLUMNS = ("input_ids", "labels", "attention_mask", *LEARNT, *PACKED)
OWN = {"attention_mask": "who sees whom", "position_ids": "places of two kinds"}
"""What MindFormers' rows of ChatGLM-6B say in columns of more axes, and a model's family makes itself."""


def without_own(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns but for those in `OWN`; a line says which.

    Raises:
        Wrong: a mask ``(…, S, S)`` is that of several documents.
    """
    own = [name for name in OWN if _axes(columns.get(name)) > 1]
    for name in own:
        if name == "attention_mask" and hides(columns[name]):
            raise Wrong(f"column {name!r} hides tokens from later ones; expected a row for each document")
        warn_once(f"rows: {name} says {OWN[name]}, which the model's family does")
    return {name: value for name, value in columns.items() if name not in own}


def _axes(value: Any) -> int:
    try:
        return np.ndim(value)
    except ValueError:  # lists of different lengths, of which `_numbers` says what is wrong
        return 1


def hides(mask: Any) -> bool:
    """Whether masks ``(…, S, S)`` of who sees whom hide a token that sees itself from a later one that does. A 1 may
    stand for either."""
    seen = np.asarray(mask) == np.asarray(mask)[..., :1, :1]
    real = np.diagonal(seen, axis1=-2, axis2=-1)
    return bool((np.tril(real[..., None] & real[..., None, :]) & ~seen).any())


def learnt_beside(ids: np.ndarray, pad: int, ends: bool) -> np.ndarray:
    """Which tokens of rows ``(…, S)`` are learnt where nothing but their padding is known.

    Args:
        pad: the id of the padding.
        ends: see `pet.recipe.data.Data.padding_ends`.
    """
    real = ids != pad
    behind = np.zeros_like(real)
    behind[..., 1:] = real[..., :-1]
    return behind if ends else real & np.logical_or.accumulate(behind, axis=-1)


def without_padding(tokens: Sequence[int], pad: int, ends: bool) -> tuple[list[int], list[bool]]:
    """A row without the padding around its tokens, but for one that is learnt, and which tokens are learnt."""
    ids = np.asarray(tokens)
    marks, real = learnt_beside(ids, pad, ends), ids != pad
    kept = np.flatnonzero(marks | real)
    span = slice(kept[0], kept[-1] + 1) if real.any() else slice(0, 0)
    return ids[span].tolist(), marks[span].tolist()


def taught(
    ids: list[int],
    labels: list[int] | None,
    marked: bool,
    padding: int | None = None,
    padding_ends: bool = False,
    labels_ahead: bool = False,
    other_labels: bool = False,
) -> tuple[list[int], list[int] | list[bool]]:
    """What a row teaches: its tokens, and the mark of each.

    Args:
        marked: whether a mask says which tokens are real, so that padding needs no id.
        padding, padding_ends, labels_ahead, other_labels: see `pet.recipe.data.Data`.

    Raises:
        InputError: a label is none.
    """
    if labels is not None:
        return with_labels(ids, labels, labels_ahead, other_labels, None if marked else padding)
    return (ids, [1] * len(ids)) if marked or padding is None else without_padding(ids, padding, padding_ends)


def tokens_of(columns: Mapping[str, Any], *of_ids: Any) -> tuple[list[int], list[int]]:
    """Token ids with their marks; labels of -100 and marks of 0 are not learnt, and padding (attention_mask 0) is left
    out.

    Args:
        columns: by the names in `TOKEN_COLUMNS`; None where a row has none.
        of_ids: what `taught` takes of the settings.

    Raises:
        Wrong: the row cannot be used.
    """
    whole = {name: _numbers(name, value) for name, value in columns.items() if value is not None}
    tokens = whole["input_ids"]
    if not tokens:
        raise Wrong("column 'input_ids' is empty")
    for extreme in (min(tokens), max(tokens)):
        if not 0 <= extreme < 1 << 31:
            raise Wrong(f"column 'input_ids': {extreme} is no token id")
    _check_one_document(whole)
    for name, values in whole.items():
        if name not in PACKED and len(values) != len(tokens):
            raise Wrong(f"column {name!r} has {len(values)} values, input_ids has {len(tokens)}")
    kept = [index for index, real in enumerate(whole.get("attention_mask", [1] * len(tokens))) if real]
    if not kept:
        raise Wrong("column 'attention_mask' leaves no token")
    labels = whole.get("labels")
    marked = any(name in whole for name in ("attention_mask", *(LEARNT if labels is None else ())))
    ids, said = ([row[index] for index in kept] if row else None for row in (tokens, labels))
    try:
        found, marks = taught(ids, said, marked, *of_ids)
    except InputError as error:
        raise Wrong(f"column {error}") from None
    masks = [whole[name] for name in LEARNT if name in whole]
    marks = [mark * all(mask[index] for mask in masks) for mark, index in zip(marks, [*kept, -1], strict=False)]
    return found, marks


def _numbers(name: str, value: Any) -> list[int]:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    kinds = (int,) if name in ("input_ids", "labels") else (int, bool)
    if not isinstance(value, list) or any(type(item) not in kinds for item in value):
        raise Wrong(f"column {name!r}: expected a list of whole numbers")
    return value


def _check_one_document(whole: Mapping[str, list[int]]) -> None:
    positions, lengths = whole.get("position_ids", []), whole.get("seq_lengths", [])
    real = whole.get("attention_mask", [1] * len(positions))
    begun = sum(place == 0 and bool(one) for place, one in zip(positions, real, strict=False))
    if begun > 1 or len(lengths) > 1:
        name = "position_ids" if begun > 1 else "seq_lengths"
        raise Wrong(
            f"column {name!r}: {max(begun, len(lengths))} documents in one row; expected a row for each "
            "(data.packing: pack packs them)"
        )
