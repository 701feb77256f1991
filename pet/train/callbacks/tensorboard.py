"""TensorBoard event files, where a writer is installed."""

from __future__ import annotations

from model_zoo.errors import InputError
from pet.train.callbacks.trackers import Tracker


class TensorBoard(Tracker):
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

    def open(self, directory, title, config, step) -> None:
        self.writer = self.writer_class(str(directory / "tensorboard"), purge_step=step)

    def write(self, numbers, step) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()
