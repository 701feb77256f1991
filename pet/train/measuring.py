"""When a run is measured, what came of it, and which evaluation was the best."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from adapters.apply import disable_adapters
from adapters.registry import started_from_file
from model_zoo import progress
from model_zoo.arguments import misfit
from model_zoo.errors import InputError, shown
from model_zoo.graph import evaluating
from model_zoo.turns import changed
from pet.train.evaluate import Answer, Evaluation
from pet.train.schedules import due
from pet.train.state import Best


class Measuring:
    """The part of `pet.train.trainer.Trainer` that measures.

    Attributes:
        evaluation: gives the metrics by name; None where there is nothing to measure on. Between the first and the
            last evaluation it is asked for those ``from_logits`` alone, where the settings say so.
        before, before_samples: metrics and answers of the model before its first step.
        base_samples: answers of the base, where the run starts from a tuned adapter.
        best: the best evaluation so far.
        last_measured: the model's state at the last full evaluation, and its results.
    """

    def begin_measuring(self, evaluation, settings) -> None:
        """Nothing has been measured yet. ``settings`` is a recipe's ``eval`` section."""
        self.evaluation, self.eval_settings = evaluation, settings
        self.before: dict[str, float] | None = None
        self.before_samples: list[Answer] = []
        self.base_samples: list[Answer] = []
        self.best = Best()
        self.last_measured: tuple[tuple, dict[str, float]] | None = None

    def measure_before(self) -> None:
        """Measures the model before its first step, to have a before and after."""
        fresh = self.before is None and self.position.step == 0
        if fresh and self.evaluation is not None and self.eval_settings.before:
            self.before = self.measured()
            self.best_value(self.before)  # that there is none shows now rather than after the first steps
            self.before_samples = list(getattr(self.evaluation, "samples", []))
            if self.before_samples and started_from_file(self.model):
                with disable_adapters(self.model):
                    self.base_samples = self.evaluation.answers(len(self.before_samples))

    def measured(self) -> dict[str, float]:
        """What the evaluation gives. Raises InputError: something else than numbers by their names."""
        own = isinstance(self.evaluation, Evaluation)
        with contextlib.nullcontext() if own else progress.pausing():  # the user's own code takes any time
            found = self.evaluation()
        if not isinstance(found, Mapping) or any(misfit("", "float", value) for value in found.values()):
            raise InputError(f"evaluation gave {shown(found)}; numbers by their names were expected")
        return {name: float(value) for name, value in found.items()}

    def measured_in_step(self, result) -> dict[str, float]:
        """What the objective measures beside the loss, of a step's own batch."""
        if not getattr(self.objective, "reported", False):
            return {}
        measured = self.objective.metrics(result.sums, result.count)
        return {name: value for name, value in measured.items() if name != "loss"}

    def epochs_done(self, ago: int = 0) -> float:
        """Epochs so far, as a fraction; or so many steps ago, within this epoch."""
        epoch, done = self.position.epoch, self.position.step_in_epoch - ago
        if (part := getattr(self.feed, "part_of_epoch", None)) is not None:
            return epoch + part(epoch, done)
        length = self.feed.steps_per_epoch(epoch)
        return epoch + (done / length if length else 0.0)

    def evaluate_if_due(self, record: dict[str, Any], last: bool) -> None:
        """Evaluates where the settings ask for it, and adds the numbers to the record."""
        if self.evaluation is None or not (last or self.due(record)):
            return
        brief = not last and self.eval_settings.generate == "ends" and hasattr(self.evaluation, "from_logits")
        with evaluating(self.model):
            if brief:
                measured = self.evaluation.from_logits()
            else:
                measured = self.measured()
                self.last_measured = (self.measured_state(), measured)
        record.update({f"eval_{name}": value for name, value in measured.items()})
        self.note_best(measured)
        self.notify("evaluation", {"step": self.position.step, **measured})

    def evaluate(self, anew: bool = True) -> dict[str, float] | None:
        """The measures of the model as it is.

        Args:
            anew: False takes those of the last full evaluation where no step came after it, as a run does at its end.
                A program may have changed the weights since.

        Returns:
            The metrics by name, or None where there is nothing to measure on.
        """
        if self.evaluation is None:
            return None
        now = self.measured_state()
        if anew or self.last_measured is None or self.last_measured[0] != now:
            with self.fast():
                self.last_measured = (now, self.measured())
        return self.last_measured[1]

    def measured_state(self) -> tuple:
        """What a measure depends on: the step, and which adapters take part."""
        return (self.position.step, getattr(self.model, "adapter_state", None))

    def fast(self):
        """See the function `fast`."""
        return fast(self.model) if self.compiled else contextlib.nullcontext()

    def due(self, record: dict[str, Any]) -> bool:
        """Whether an evaluation falls on this step."""
        settings = self.eval_settings
        if due(self.position.step, settings.every_steps, self.total_steps):
            return True
        if settings.every_epochs is None:
            return False
        now, before = record["epoch"], self.epochs_done(1)
        return math.floor(now / settings.every_epochs + 1e-9) > math.floor(before / settings.every_epochs + 1e-9)

    def best_value(self, measured: dict[str, float]) -> float | None:
        """What decides which evaluation is the best.

        Raises:
            InputError: it was asked for and is not measured.
        """
        settings = self.eval_settings
        if settings.best_metric not in measured and "best_metric" in settings.model_fields_set:
            raise InputError(f"eval.best_metric: {settings.best_metric} is not measured here: {', '.join(measured)}")
        return measured.get(settings.best_metric)

    def note_best(self, measured: dict[str, float]) -> None:
        """Remembers the best evaluation; ends the run where ``patience`` is at its end."""
        settings, best, value = self.eval_settings, self.best.value, self.best_value(measured)
        if value is None:
            return
        sign = -1.0 if settings.direction() == "min" else 1.0
        if math.isfinite(value) and (best is None or sign * (value - best) > settings.min_delta):
            self.best = Best(self.position.step, value, 0, settings.choice())
            return
        self.best = dataclasses.replace(self.best, since=self.best.since + 1)
        if (reason := self.out_of_patience()) is not None:
            self.stop(reason)

    def out_of_patience(self) -> str | None:
        """Why the run ends for want of a better evaluation; None where it goes on."""
        settings, best = self.eval_settings, self.best
        if settings.patience is None or best.since < settings.patience:
            return None
        value = math.nan if best.value is None else best.value
        return f"{settings.best_metric} was not better than {value:g} for {best.since} evaluations"

    def outcome(self) -> dict[str, Any]:
        """The run's results so far; without rates where every step compiled something."""
        position = self.position
        seconds = position.timed_seconds
        return {
            "steps": position.step,
            "updates": position.updates,
            "epochs": self.epochs_done(),
            "train_seconds": position.seconds,
            "compile_seconds": position.compile_seconds,
            "useful_tokens_per_second": position.timed_useful_tokens / seconds if seconds else None,
            "tokens_per_second": position.timed_tokens / seconds if seconds else None,
            "padding": 1.0 - position.useful_tokens / max(position.tokens, 1),
            "stopped": self.stop_reason,
            "weights_step": self.weights_step if self.weights_step is not None else position.step,
            "best": {"step": self.best.step, self.eval_settings.best_metric: self.best.value},
        }


@contextlib.contextmanager
def fast(model):
    """A model's compiled kernels within the block; cells of the user's own have none. Within another such block nothing
    is done: to walk through all cells takes as long as a small model's step."""
    if getattr(model, "runs_fast", True):
        yield
        return
    with changed(lambda: model.set_fast(True), lambda: model.set_fast(False)):
        yield
