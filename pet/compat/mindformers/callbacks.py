"""MindFormers' callbacks as scripts make them, ``CheckpointMonitor(save_checkpoint_steps=100)``; and MindSpore's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore.train.callback import Callback as Theirs, RunContext

from pet.compat.mindformers.script_config import MindFormerConfig
from pet.recipe.callback_names import NAMES
from pet.train.callbacks import Callback


def _maker(name: str):
    def make(**settings) -> dict:
        return {"type": name, **settings}

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"``{name}`` with its settings, as a recipe and `pet.Trainer` take it."
    return make


globals().update({name: _maker(name) for name in NAMES})


def _get_loss_output(output: Any) -> tuple:
    """(loss, overflow, loss scale, learning rate, norm of the gradients) of ``net_outputs``, as numbers. What it has
    not is False, of the last two None; of a batch of losses this is their mean."""
    found = [output, False, False, None, None]
    if isinstance(output, (tuple, list)):
        taken = output[:5] if len(output) in (3, 4, 5, 7) else output[:1]
        found[: len(taken)] = taken
    loss, *others = (one.asnumpy() if isinstance(one, ms.Tensor) else one for one in found)
    return (np.mean(loss), *others)


class Told(Callback):
    """A callback of MindSpore's kind, told of steps and epochs as ``Model.train`` tells it. ``net_outputs`` are
    MindFormers': loss, overflow, loss scale, learning rate, norm of the gradients. What is not here is None."""

    every_step = True

    def __init__(self, own: Theirs):
        self.own, self.values = own, MindFormerConfig(mode="train", dataset_sink_mode=False)
        self.context = RunContext(self.values)

    def start(self, trainer) -> None:
        place, model = trainer.position, trainer.model
        steps = trainer.feed.steps_per_epoch(0) or trainer.total_steps  # unknown of data that streams
        self.values.update(network=model, train_network=model, cur_step_num=trainer.recorded, batch_num=steps)
        self.values.epoch_num = -(-trainer.total_steps // steps)
        self.own.on_train_begin(self.context)
        over = trainer.unfinished is None and self.over(trainer)  # it goes on behind an epoch's last step
        self._begin(place.epoch + over, over or place.step_in_epoch == 0)

    def over(self, trainer) -> bool:
        """Whether the epoch is at its end."""
        place = trainer.position
        return place.step_in_epoch == trainer.feed.steps_per_epoch(place.epoch)

    def _begin(self, epoch: int, anew: bool) -> None:
        self.values.cur_epoch_num = epoch + 1
        if anew:
            self.own.on_train_epoch_begin(self.context)
        self.values.cur_step_num += 1
        self.own.on_train_step_begin(self.context)

    def step(self, trainer, record: dict[str, Any]) -> None:
        place, last = trainer.position, record["step"] >= trainer.total_steps
        numbers = record["loss"], record.get("skipped", False), record.get("loss_scale", 1.0), record["learning_rate"]
        self.values.net_outputs = tuple(map(ms.Tensor, (*numbers, record["gradient_norm"])))
        self.own.on_train_step_end(self.context)
        over = self.over(trainer)
        stops = self.context.get_stop_requested()
        if over or last or stops:
            self.own.on_train_epoch_end(self.context)
        if stops:
            trainer.stop(f"{type(self.own).__name__} asked for it")
        if not last and trainer.stop_reason is None:
            self._begin(place.epoch + over, over)

    def end(self, trainer, summary: dict[str, Any]) -> None:
        if "error" not in summary:
            self.own.on_train_end(self.context)


def told(callbacks: Iterable) -> list:
    """Callbacks of this library's kind, for those of either."""
    return [Told(one) if isinstance(one, Theirs) else one for one in callbacks]
