"""The one training loop, for every method, family and parallel layout."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.train import checkpoint as files
from pet.train import state
from pet.train.callbacks import Callback, make_callbacks
from pet.train.callbacks.records import read_metrics
from pet.train.evaluate import Answer, Evaluation, LossEvaluation
from pet.train.feed import as_feed, steps, where
from pet.train.loss import CausalLoss
from pet.train.loss_scale import LossScale
from pet.train.memory import present_memory
from pet.train.noise import key_setter
from pet.train.optimizers import make_optimizer
from pet.train.precision import set_precision, set_recompute
from pet.train.schedules import Schedule
from pet.train.segments import make_segments
from pet.train.settings import total_steps, with_settings
from pet.train.state import Best, Position
from pet.train.step import StepResult, TrainStep
from pet.train.stop import Interrupted, LossWatch, Signals, failure
from pet.train.world import World

log = logging.getLogger("pet")


class Trainer:
    """Trains a model's trainable parameters.

    Args:
        model: a model with an adapter on it, or one whose weights are trained in full. What is trainable is what
            requires a gradient.
        train_data: a `pet.data.Loader`, or a list of batches (dictionaries with ``input_ids`` and ``labels``
            ``(B, S)``, −100 where nothing is learnt).
        eval_data: the same, for evaluation; None measures nothing.
        train: a recipe's ``train`` section (`pet.recipe.training.Train`); default: its defaults.
        eval: a recipe's ``eval`` section.
        directory: the run directory; None writes no file.
        callbacks: callbacks, their built-in names, or ``module:Class``.
        forward_step: ``(data, model) → {"loss": …, "logits": …}`` or a loss, called within the compiled step in place
            of the model. ``data`` has input_ids, labels, position_ids, start and end.
        evaluation: what measures the model, in place of the one made of ``eval_data``.
        world: sums over processes; default a single one.
        save_extra: called with a checkpoint's directory while it is written, to put more into it.
        title: what the run is called in pictures.
        compiled: False runs everything operator by operator, to look for mistakes in a cell.
        settings: fields of the ``train`` section by name, over ``train``.

    Raises:
        InputError: an unknown setting, nothing to train, or data of an unknown form.
    """

    def __init__(
        self,
        model,
        train_data,
        eval_data=None,
        *,
        train=None,
        eval=None,
        directory: str | Path | None = None,
        callbacks: Iterable[Callback | str] = (),
        forward_step: Callable | None = None,
        evaluation: Callable[[], dict[str, float]] | None = None,
        world: World | None = None,
        save_extra: Callable[[Path], None] | None = None,
        title: str = "training",
        compiled: bool = True,
        **settings,
    ):
        from pet.recipe.training import Eval

        self.settings = with_settings(train, settings)
        self.eval_settings = eval or Eval()
        self.model, self.world, self.title = model, world or World(), title
        self.directory = Path(directory) if directory is not None else None
        self.save_extra, self.whole_weights = save_extra, {}
        self.feed = as_feed(train_data, self.settings.accumulation, model)
        self.total_steps = total_steps(self.feed, self.settings)
        self.schedule = Schedule.from_settings(self.settings, self.total_steps)
        self.loss_scale = LossScale.from_settings(self.settings)
        self.watch = LossWatch(self.settings.max_loss_ratio)
        self.position, self.best = Position(), Best()
        self.history: list[dict[str, Any]] = []
        self.before: dict[str, float] | None = None
        self.before_samples: list[Answer] = []
        self.last_measured: tuple[tuple, dict[str, float]] | None = None
        self.stop_reason: str | None = None
        self.callbacks, self.compiled = make_callbacks(callbacks), compiled
        segments = make_segments(
            [parameter for parameter in model.get_parameters() if parameter.requires_grad],
            learning_rate=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            decay_vectors=self.settings.decay_vectors,
            groups=self.settings.groups,
            lora_plus_ratio=self.settings.lora_plus_ratio,
        )
        set_precision(model, self.settings.precision)
        if self.settings.recompute:
            set_recompute(model)
        self.optimizer = self.world.make_optimizer(
            lambda parts: make_optimizer(self.settings, parts, compiled), segments, self.settings.optimizer
        )
        step = TrainStep(
            model,
            self.optimizer,
            CausalLoss(self.settings.label_smoothing, self.settings.r_drop_alpha),
            clip_norm=self.settings.clip_norm,
            set_key=key_setter(model, self.settings.neftune_alpha),
            seed=self.settings.seed,
            forward_step=forward_step,
            world=self.world,
            compiled=compiled,
        )
        self.train_step = self.world.wrap_step(step, model)
        self.evaluation = evaluation
        if evaluation is None and eval_data is not None:
            eval_feed = as_feed(eval_data, 1, model)
            losses = LossEvaluation(model, eval_feed, forward_step=forward_step, world=self.world, compiled=compiled)
            self.evaluation = Evaluation(losses, None, self.eval_settings)

    # The loop --------------------------------------------------------------------------------------------------------

    def train(self, resume: bool | str | Path = False) -> dict[str, Any]:
        """Trains until the last step, or until something stops it.

        Args:
            resume: True goes on from the last whole checkpoint in the run directory, or starts anew where there is
                none; a path goes on from that checkpoint.

        Returns:
            What the run came to: steps, seconds, tokens per second, the reason it ended, the best step.

        Raises:
            RunFailed: the loss is not finite or explodes, or every update overflows.
            Interrupted: a signal came; everything is saved.
        """
        if resume:
            self.resume(resume)
        begin = time.perf_counter()
        outcome: dict[str, Any] = {}
        with self.fast(), Signals().watch() as signals:
            try:
                self.notify("start")
                self.measure_before()
                self.model.set_train(True)
                self.run_steps(begin, signals)
                outcome = self.outcome()
            except BaseException as error:
                outcome = {**self.outcome(), "error": str(error)}
                raise
            finally:
                self.model.set_train(False)
                self.notify("end", outcome)
            if signals.received is not None:
                raise Interrupted(signals.exit_code)
        return outcome

    finetune = train

    def run_steps(self, begin: float, signals: Signals) -> None:
        """The steps that are left."""
        position = self.position
        if signals.received is not None and self.world.size == 1:
            return  # it came while the base was measured; nothing has happened yet that could be saved
        while position.step < self.total_steps and self.stop_reason is None:
            done_before, whole_epoch = position.step, position.step_in_epoch == 0
            for batches in steps(self.feed, self.settings.accumulation, position.epoch, position.step_in_epoch):
                record = self.one_step(batches)
                last = position.step >= self.total_steps
                self.evaluate_if_due(record, last)
                self.log(record, last)
                if signals.received is not None:
                    self.stop(f"signal {signals.received}")
                limit = self.settings.max_seconds
                if limit is not None and time.perf_counter() - begin >= limit:
                    self.stop(f"max_seconds: {limit:g}")
                stopping = self.world.any(self.stop_reason is not None)
                if stopping and self.stop_reason is None:
                    self.stop_reason = "another process stopped"
                every = self.settings.save_every
                best = self.best.step == position.step
                if self.directory and (last or stopping or best or (every and position.step % every == 0)):
                    self.save()
                if last or stopping:
                    return
            position.epoch, position.step_in_epoch = position.epoch + 1, 0
            if whole_epoch and position.step == done_before:  # a resumed one may have been at its end already
                raise InputError(f"epoch {position.epoch} of the training data holds no step")

    def one_step(self, batches: list[dict[str, Any]]) -> dict[str, Any]:
        """One optimizer step; its line for metrics.jsonl."""
        position = self.position
        rate = self.schedule(position.step)
        scale = self.loss_scale.scale
        begin = time.perf_counter()
        self.world.step_begins()
        result = self.train_step(batches, position.step, rate, scale, updates=position.updates, limit=self.watch.limit)
        self.world.step_ends()
        seconds = time.perf_counter() - begin
        self.check(result, batches)
        if result.applied:
            position.updates += 1
            self.watch.add(result.loss)
        position.step += 1
        position.step_in_epoch += 1
        position.useful_tokens += result.useful_tokens
        position.tokens += result.tokens
        position.compile_seconds += result.compile_seconds
        if result.compile_seconds == 0:  # how fast it runs is told by the steps that only ran
            position.timed_useful_tokens += result.useful_tokens
            position.timed_tokens += result.tokens
            position.timed_seconds += seconds
        position.seconds += max(0.0, seconds - result.compile_seconds)
        record = {
            "step": position.step,
            "epoch": self.epochs_done(),
            "loss": result.loss,
            "learning_rate": rate,
            "gradient_norm": result.gradient_norm if math.isfinite(result.gradient_norm) else None,
            "label_tokens": result.label_tokens,
            "useful_tokens_per_second": result.useful_tokens / seconds,
            "tokens_per_second": result.tokens / seconds,
            "padding": 1.0 - result.useful_tokens / max(result.tokens, 1),
            "seconds": seconds,
            "memory_mb": present_memory(),
        }
        if self.loss_scale.enabled:
            record["loss_scale"], record["skipped"] = scale, not result.applied
        return record

    def check(self, result: StepResult, batches: list[dict[str, Any]]) -> None:
        """Answers a step whose update was not made.

        Raises:
            RunFailed: it cannot be answered.
        """
        if result.applied:
            self.loss_scale.good()
            return
        step, samples = self.position.step + 1, where(self.feed, batches)
        last_good = self.last_checkpoint()
        if not math.isfinite(result.loss):
            raise failure(step, f"the loss is {result.loss}", samples, last_good)
        if not result.finite:
            if self.loss_scale.overflow():
                return
            raise failure(step, "the gradients are not finite", samples, last_good)
        what = f"the loss is {result.loss:.4g}, over {self.settings.max_loss_ratio:g} times its recent median"
        raise failure(step, what, samples, last_good)

    def epochs_done(self) -> float:
        """Epochs so far, as a fraction."""
        length = self.feed.steps_per_epoch(self.position.epoch)
        return self.position.epoch + (self.position.step_in_epoch / length if length else 0.0)

    def stop(self, reason: str) -> None:
        """Ends the run after the present step, with everything saved. For callbacks."""
        self.stop_reason = self.stop_reason or reason

    # Beside the loop -------------------------------------------------------------------------------------------------

    def notify(self, moment: str, *arguments) -> None:
        """Tells the callbacks of a moment."""
        if self.world.is_main:
            for callback in self.callbacks:
                getattr(callback, moment)(self, *arguments)

    def log(self, record: dict[str, Any], last: bool) -> None:
        """Hands a step's record on, every ``log_every`` steps and where something was measured."""
        if record["step"] % self.settings.log_every == 0 or last or "eval_loss" in record:
            self.history.append(record)
            self.notify("step", record)

    def evaluate_if_due(self, record: dict[str, Any], last: bool) -> None:
        """Evaluates where the settings ask for it, and adds the numbers to the record."""
        if self.evaluation is None or not (last or self.due(record)):
            return
        self.model.set_train(False)
        measured = self.evaluation()
        self.last_measured = ((self.position.step, getattr(self.model, "adapter_state", None)), measured)
        self.model.set_train(True)
        record.update({f"eval_{name}": value for name, value in measured.items()})
        self.note_best(measured)
        self.notify("evaluation", {"step": self.position.step, **measured})

    def measure_before(self) -> None:
        """Measures the model before its first step, to have a before and after."""
        if self.before is None and self.evaluation is not None and self.eval_settings.before:
            self.before = self.evaluation()
            self.before_samples = list(getattr(self.evaluation, "samples", []))

    def evaluate(self) -> dict[str, float] | None:
        """The measures of the model as it is; those of the last evaluation where no step came after it.

        Returns:
            The metrics by name, or None where there is nothing to measure on.
        """
        if self.evaluation is None:
            return None
        now = (self.position.step, getattr(self.model, "adapter_state", None))
        if self.last_measured is None or self.last_measured[0] != now:
            with self.fast():
                self.last_measured = (now, self.evaluation())
        return self.last_measured[1]

    @contextlib.contextmanager
    def fast(self):
        """The model's compiled kernels within the block; cells of the user's own have none."""
        chosen = self.model if self.compiled and hasattr(self.model, "set_fast") else None
        if chosen is not None:
            chosen.set_fast(True)
        try:
            yield
        finally:
            if chosen is not None:
                chosen.set_fast(False)

    def due(self, record: dict[str, Any]) -> bool:
        """Whether an evaluation falls on this step."""
        settings, position = self.eval_settings, self.position
        if settings.every_steps is not None and position.step % settings.every_steps == 0:
            return True
        if settings.every_epochs is None:
            return False
        length = self.feed.steps_per_epoch(position.epoch)
        if not length:
            return False
        now, before = record["epoch"], record["epoch"] - 1.0 / length
        return math.floor(now / settings.every_epochs + 1e-9) > math.floor(before / settings.every_epochs + 1e-9)

    def note_best(self, measured: dict[str, float]) -> None:
        """Remembers the best evaluation; ends the run where ``patience`` is at its end."""
        settings = self.eval_settings
        value = measured.get(settings.best_metric)
        if value is None:
            return
        sign = -1.0 if settings.direction() == "min" else 1.0
        if self.best.value is None or sign * (value - self.best.value) > settings.min_delta:
            self.best = Best(self.position.step, value, 0)
            return
        self.best.since += 1
        if settings.patience is not None and self.best.since >= settings.patience:
            self.stop(
                f"{settings.best_metric} was not better than {self.best.value:g} for {self.best.since} evaluations"
            )

    def outcome(self) -> dict[str, Any]:
        """What the run came to so far."""
        position = self.position
        return {
            "steps": position.step,
            "updates": position.updates,
            "epochs": self.epochs_done(),
            "train_seconds": position.seconds,
            "compile_seconds": position.compile_seconds,
            "useful_tokens_per_second": position.timed_useful_tokens / max(position.timed_seconds, 1e-9),
            "tokens_per_second": position.timed_tokens / max(position.timed_seconds, 1e-9),
            "padding": 1.0 - position.useful_tokens / max(position.tokens, 1),
            "stopped": self.stop_reason,
            "best": {"step": self.best.step, self.eval_settings.best_metric: self.best.value},
        }

    # Checkpoints -----------------------------------------------------------------------------------------------------

    @property
    def checkpoint_directory(self) -> Path:
        """Where the run's checkpoints are."""
        return self.directory / "checkpoints"

    def last_checkpoint(self) -> str | None:
        """The newest checkpoint's path, as a word for messages."""
        if self.directory is None:
            return None
        found = files.checkpoints(self.checkpoint_directory)
        return str(found[-1]) if found else None

    def save(self) -> None:
        """Writes a checkpoint of the present step, and deletes those that are not kept."""
        weights, optimizer, numbers = state.snapshot(self)
        if self.world.is_main:
            path = files.save(
                self.checkpoint_directory, self.position.step, weights, optimizer, numbers, self.save_extra
            )
            kept = {self.best.step} if self.best.step is not None else set()
            files.prune(self.checkpoint_directory, self.settings.keep_last, kept)
            self.notify("save", path)
        self.world.barrier()

    def resume(self, source: bool | str | Path = True) -> None:
        """Goes on from a checkpoint: every number is what it was, and so is every number that follows.

        Raises:
            InputError: no whole checkpoint, or one of another model or other settings.
        """
        if source is True:
            if self.directory is None:
                raise InputError("resume needs a run directory, or a checkpoint's path")
            found = files.load_last(self.checkpoint_directory)
            if found is None:
                log.info("no checkpoint in %s: starting at the first step", self.checkpoint_directory)
                return
        else:
            try:
                found = files.load(source)
            except files.Damaged as error:
                raise InputError(f"checkpoint {source}: damaged: {error}") from error
        state.restore(self, found)
        if source is True:
            lines = read_metrics(self.directory / "metrics.jsonl")
            self.history = [line for line in lines if line["step"] <= self.position.step]
            if self.world.is_main:
                files.discard_after(self.checkpoint_directory, self.position.step)
        log.info("going on from %s", found.path)
