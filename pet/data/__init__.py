"""From files to batches: read, tokenise once, pack, and hand out batches whose order can be resumed exactly.

::

    settings = DataSettings(max_length=1024)                      # or a recipe's data section: DataSettings.of(section)
    dataset = load_dataset("train.jsonl", tokenizer, settings=settings)
    loader = make_loader(dataset, batch_size=8, settings=settings, pad_token_id=tokenizer.pad_token_id)
    for batch in loader.batches(epoch=0, start=0):
        batch["input_ids"]                                        # (8, 1024) int32
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from model_zoo.errors import InputError

from .dataset import IGNORED, Counts, TokenDataset
from .formats import read_rows
from .load import Question, load_dataset, load_questions, mix_dataset, split_dataset
from .loader import Batch, Loader
from .packing import LayoutFunction, bucket_edges, causal_layout, collate, first_fit_decreasing
from .row import Row
from .settings import DataSettings
from .show import describe, show
from .streaming import StreamDataset, StreamLoader
from .wrap import CollateLoader, from_mindspore, is_mindspore_dataset

__all__ = [
    "IGNORED",
    "Batch",
    "CollateLoader",
    "Counts",
    "DataSettings",
    "LayoutFunction",
    "Loader",
    "Question",
    "Row",
    "StreamDataset",
    "StreamLoader",
    "TokenDataset",
    "bucket_edges",
    "causal_layout",
    "collate",
    "describe",
    "first_fit_decreasing",
    "from_mindspore",
    "is_mindspore_dataset",
    "load_dataset",
    "load_questions",
    "make_loader",
    "mix_dataset",
    "read_rows",
    "show",
    "split_dataset",
]


def make_loader(
    data: Any,
    batch_size: int,
    settings: Any = None,
    *,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    pieces: int = 1,
    **division: Any,
) -> Loader | CollateLoader:
    """The loader that goes with ``data``.

    Args:
        data: a :class:`TokenDataset`, a :class:`StreamDataset`, a MindSpore Dataset with a column ``input_ids``, or
            anything with ``len`` and ``[index]`` that gives dicts.
        batch_size: rows in a batch of one rank.
        settings: a :class:`DataSettings`, a recipe's ``data`` section, or a mapping.
        collate_fn: for indexable data: from a list of samples to a batch.
        pieces: see :class:`CollateLoader`; the other loaders' batches have equally many rows.
        division: ``layout``, ``pad_token_id``, ``accumulation``, ``rank``, ``world_size``: see :class:`Loader`.

    Raises:
        InputError: ``data`` is none of these, is empty, or ``collate_fn`` has nothing to do.
    """
    settings = DataSettings.of(settings)
    if is_mindspore_dataset(data):
        data = from_mindspore(data, settings.max_length, *settings.of_ids)
    if isinstance(data, (TokenDataset, StreamDataset)):
        if collate_fn is not None:
            raise InputError("collate_fn: this data is batched by its settings; expected none")
        return (Loader if isinstance(data, TokenDataset) else StreamLoader)(data, batch_size, settings, **division)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, (Mapping, type)):
        return CollateLoader(data, batch_size, settings, collate_fn=collate_fn, pieces=pieces, **division)
    raise InputError(
        f"data: expected files, a MindSpore Dataset or an indexable dataset of dicts, found {type(data).__name__}"
    )
