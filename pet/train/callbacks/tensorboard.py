"""TensorBoard event files, where a writer is installed."""

from __future__ import annotations

from pathlib import Path

from model_zoo.errors import InputError
from pet.train.callbacks.base import Callback


class TensorBoard(Callback):
    """Writes every number of every step to ``<run>/tensorboard``.

    Uses ``tensorboardX``, or torch's writer where that is what is installed.

    Raises:
        InputError: neither is installed.
    """

    def __init__(self) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise InputError("callbacks: tensorboard needs a writer: pip install tensorboardX") from error
        self.writer_class = SummaryWriter
        self.writer = None

    def start(self, trainer) -> None:
        self.writer = self.writer_class(
            str(Path(trainer.directory) / "tensorboard"), purge_step=trainer.position.step + 1
        )

    def step(self, trainer, record) -> None:
        for name, value in record.items():
            if name != "step" and isinstance(value, (int, float)):
                group = "eval" if name.startswith("eval_") else "train"
                self.writer.add_scalar(f"{group}/{name.removeprefix('eval_')}", value, record["step"])

    def end(self, trainer, summary) -> None:
        if self.writer is not None:
            self.writer.close()
