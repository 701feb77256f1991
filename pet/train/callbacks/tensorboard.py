"""TensorBoard event files, where a writer is installed."""

from __future__ import annotations

import yaml

from model_zoo.errors import InputError
from pet.train.callbacks.trackers import Tracker


class TensorBoard(Tracker):
    """Writes every number of every step, and the recipe as a text, to ``<run>/tensorboard``.

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
        if config:
            text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
            self.writer.add_text("recipe", "".join(f"    {line}\n" for line in text.splitlines()))  # Markdown's code

    def write(self, numbers, step) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self, error) -> None:
        self.writer.close()
