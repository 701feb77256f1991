"""A checkpoint of which some tensors are other ones. Without MindSpore."""

from __future__ import annotations

import numpy as np


class ChangedCheckpoint:
    """What merging reads of a checkpoint. Sub-classes say what they change, and give it by `info` and `raw`.

    Args:
        checkpoint: an open `model_zoo.checkpoint.reading.Checkpoint`, or another changed one.
    """

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    def __getattr__(self, name: str):
        return getattr(self.checkpoint, name)

    def __contains__(self, name: str) -> bool:
        return name in self.checkpoint

    def changes(self, name: str) -> bool:
        """Whether a tensor is another one."""
        raise TypeError("a changed checkpoint says what it changes")

    def info(self, name: str):
        """As `Checkpoint.info`."""
        return self.checkpoint.info(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """As `Checkpoint.shape`."""
        return self.info(name).shape

    def dtype(self, name: str) -> str:
        """As `Checkpoint.dtype`."""
        return self.info(name).dtype

    def raw(self, name: str, dtype: str | None = None) -> np.ndarray:
        """As `Checkpoint.raw`."""
        return self.checkpoint.raw(name, dtype)

    def blocks(self, name: str):
        """As `Checkpoint.blocks`."""
        return (
            [memoryview(self.raw(name).reshape(-1)).cast("B")] if self.changes(name) else self.checkpoint.blocks(name)
        )
