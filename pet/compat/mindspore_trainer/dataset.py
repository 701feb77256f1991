"""MindsporeTrainer's data: examples in memory, made into features whenever one is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from model_zoo.errors import InputError


class ExampleInstance:
    """One example: ``segments``, ``label`` and what else is given."""

    def __init__(self, segments: Sequence[Any], label: Any = None, **more: Any):
        vars(self).update(more, segments=segments, label=label)

    def __getitem__(self, index: int) -> Any:
        return self.segments[index]

    def __len__(self) -> int:
        return len(self.segments)


class ExampleSet(Sequence):
    """Examples; reading one gives its segments as arrays and the label as the last, −1000 for none."""

    def __init__(self, pairs: Sequence[ExampleInstance]):
        self.examples = list(pairs)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        example = self.examples[index]
        label = -1000 if example.label is None else example.label
        return (*(np.array(segment) for segment in example.segments), np.array([label]))


@dataclasses.dataclass
class DynamicDataset:
    """Rows ``{column: feature}``, computed anew each time that they are read."""

    examples: Any
    feature_fn: Callable
    columns: Sequence[str]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = self.examples[index]
        features = self.feature_fn(*example) if isinstance(example, tuple) else self.feature_fn(example)
        if not isinstance(features, tuple) or len(features) != len(self.columns):
            raise InputError(f"feature_fn: a tuple of {', '.join(self.columns)} was expected")
        return dict(zip(self.columns, features, strict=True))


def create_dynamic_dataset(
    examples: Any, feature_fn: Callable, batch_size: int | None = None, output_columns: Sequence[str] = (), **how: Any
) -> DynamicDataset:
    """Examples whose features are computed whenever one is read.

    Args:
        examples: an `ExampleSet`, or anything with ``len`` and ``[index]``.
        feature_fn: from an example's parts to a tuple.
        batch_size, how: of no effect: the command line says batch and epochs, and processes take their own rows.
        output_columns: the tuple's names, ``input_ids`` among them.

    Raises:
        InputError: a feature_fn that is none, as the lists of operations for images.
    """
    if not callable(feature_fn):
        raise InputError("create_dynamic_dataset: feature_fn is no function; lists of operations are for images")
    return DynamicDataset(examples, feature_fn, list(output_columns))
