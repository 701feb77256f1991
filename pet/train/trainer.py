"""The one training loop, for every method, family and parallel layout."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.registry import registry
from model_zoo import progress
from model_zoo.arguments import checked
from model_zoo.errors import InputError
from model_zoo.limits import out_of_memory, reserve_buffer
from pet.launching.heartbeat import watched
from pet.train import restarts, stop
from pet.train.callbacks import Callback, make_callbacks
from pet.train.compiled import gradients_freed
from pet.train.distributed import DistributedContext
from pet.train.evaluate import Evaluation, LossEvaluation
from pet.train.feed import as_feed, check_counted, steps, where
from pet.train.loss_scale import LossScale
from pet.train.measuring import Measuring
from pet.train.memory import present_memory
from pet.train.noise import key_setter, release
from pet.train.objectives import make_objective
from pet.train.objectives.base import Objective
from pet.train.optimizers import make_optimizer, segments_of
from pet.train.origins import data_seen
from pet.train.precision import prepare_model
from pet.train.saving import Saving
from pet.train.schedules import Schedule, due, given
from pet.train.segments import check_unchanged, to_train
from pet.train.settings import eval_settings, in_rows, total_steps, with_settings
from pet.train.state import Position
from pet.train.step import StepResult, TrainStep

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pet.keywords import TrainSettings

log = logging.getLogger("pet")


class Trainer(Measuring, Saving):
    """Trains a model's trainable parameters.

    ``pet.Trainer(model, train_data, …)`` is this class. Without ``train_data`` the arguments are MindFormers' (names,
    paths, datasets), and `pet.compat.mindformers.high_level.Trainer` is made of them, which has the same methods.

    Args:
        model: a model with an adapter on it, or one whose weights are all trained: what requires a gradient is.
        train_data: a file of rows (`pet.train.feed.file_feed`); a `pet.data.Loader`; or a list of batches, of any size
            (dictionaries with ``input_ids`` and ``labels`` ``(B, S)``, −100 where nothing is learnt).
        eval_data: the same, for evaluation; None measures nothing.
        train: a recipe's ``train`` section (`pet.recipe.training.Train`), or its fields; default: its defaults.
        eval: a recipe's ``eval`` section, or its fields.
        directory: the run directory; None writes no file.
        callbacks: callbacks, their built-in names, or ``module:Class``.
        forward_step: ``(data, model) → {"loss": …, "logits": …}`` or a loss, called within the compiled step in place
            of the model. ``data`` has the batch's arrays: input_ids, labels, position_ids, start, end and others.
        objective: what is learnt, in place of ``train.objective``.
        evaluation: what measures the model, in place of the one made of ``eval_data``.
        distributed: the other processes; by default this is the only one of its job.
        save_extra: called with a checkpoint's directory while it is written (`pet.train.checkpoint.save`).
        finish: from the outcome after the last step to what `train` returns; not called where a run fails or is ended.
        origins: digests of what the run is made from (`pet.train.origins`), kept in checkpoints and compared by resume;
            default: that of the frozen weights. Other training data than before are said.
        title: what the run is called in pictures.
        compiled: False runs everything operator by operator, to debug a cell.
        rates: the learning rate of each step, counted from 0, in place of the settings' schedule.
        settings: fields of the ``train`` section by name, over ``train``.

    Raises:
        InputError: an unknown setting, nothing to train, data of an unknown form, or no directory for the best weights.
    """

    def __new__(cls, model=None, train_data=None, *more, **arguments) -> Trainer:
        if cls is Trainer and train_data is None:
            return import_module("pet.compat.mindformers").Trainer(model, *more, **arguments)
        return super().__new__(cls)

    @checked
    def __init__(
        self,
        model,
        train_data=None,
        eval_data=None,
        *,
        train=None,
        eval=None,
        directory: str | Path | None = None,
        callbacks: Iterable[Callback | str] | Callback | str | None = None,
        forward_step: Callable | None = None,
        objective: Objective | str | None = None,
        evaluation: Callable[[], dict[str, float]] | None = None,
        distributed: DistributedContext | None = None,
        save_extra: Callable[[Path], str | None] | None = None,
        finish: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        origins: dict[str, list] | None = None,
        title: str = "training",
        compiled: bool = True,
        rates: Callable[[int], float] | None = None,
        **settings: Unpack[TrainSettings],
    ):
        if isinstance(objective, str):
            settings["objective"], objective = objective, None
        self.settings = with_settings(train, settings)
        self.objective = make_objective(self.settings, forward_step, objective)
        self.begin_measuring(evaluation, eval_settings(eval, evaluation, eval_data, directory, self.objective))
        self.model, self.distributed, self.title = model, distributed or DistributedContext.alone(), title
        registry(model)  # anything else is no model
        self.begin_saving(directory, save_extra, origins)
        self.feed = as_feed(train_data, self.settings.accumulation, model, self.settings, self.distributed)
        self.data_seen = data_seen(self.feed, self.distributed.data_size) if origins is None else None
        self.total_steps = total_steps(self.feed, self.settings, self.eval_settings.every_epochs)
        self.schedule = given(rates) if rates else Schedule.from_settings(self.settings, self.total_steps)
        self.loss_scale = LossScale.from_settings(self.settings)
        self.watch = stop.LossWatch(self.settings.max_loss_ratio)
        self.history: list[dict[str, Any]] = []
        self.unfinished: dict[str, Any] | None = None  # the record of a step whose evaluation was left
        self.phase, self.position, self.finish, self.stop_reason = stop.LOADING, Position(), finish, None
        self.callbacks = make_callbacks(callbacks, self.directory is not None)
        self.compiled = compiled and getattr(model, "compiles", True)  # the update is compiled all the same
        self.objective.extend(model, self.feed, self.settings.seed)
        self.precision = prepare_model(model, self.settings, self.distributed)
        self.trained, self.adapter_state = to_train(model), None
        restarts.check(self)
        self.optimizer = self.distributed.make_optimizer(
            lambda parts: make_optimizer(self.settings, parts, compiled),
            segments_of(self.settings, self.trained, self.distributed),
            self.settings.optimizer,
        )
        step = TrainStep(
            model,
            self.optimizer,
            self.objective,
            clip_norm=self.settings.clip_norm,
            set_key=key_setter(model, self.settings.neftune_alpha),
            seed=self.settings.seed,
            distributed=self.distributed,
            compiled=self.compiled,
        )
        self.train_step = self.distributed.wrap_step(step, model)
        if evaluation is None and eval_data is not None:
            held_out = as_feed(eval_data, None, model, in_rows(self.settings, self.eval_settings), self.distributed)
            losses = LossEvaluation(model, held_out, self.objective, self.distributed, self.compiled)
            self.evaluation = Evaluation(losses, None, self.eval_settings)
        self.objective.begin(model, self.feed, True, self.distributed, self.compiled)
        if (losses := getattr(self.evaluation, "losses", None)) is not None:
            losses.compile_anew()  # it was made before the precision was set
            self.objective.begin(model, losses.feed, False, self.distributed, self.compiled)
        self.objective.begun(model)
        check_counted(self.objective, self.feed)
        if losses is not None and self.distributed.data_size == 1:  # a replica's share may hold nothing
            check_counted(self.objective, losses.feed, training=False)

    # The loop --------------------------------------------------------------------------------------------------------

    @watched()
    @checked
    def train(self, resume: bool | str | Path | None = False) -> dict[str, Any]:
        """Trains until the last step, or until something stops it.

        Args:
            resume: True goes on from the last whole checkpoint in the run directory, or starts anew where there is
                none; a path goes on from that checkpoint.

        Returns:
            The run's results: steps, seconds, tokens per second, the reason it ended, the best step.

        Raises:
            RunFailed: the loss is not finite or explodes, or every update overflows.
            InputError: a callback merges, deletes or switches the adapter that is trained.
            Interrupted: a signal came; everything is saved. Ctrl-C is a KeyboardInterrupt, too.
        """
        if resume or self.weights_step is not None:  # it goes on from the last step's weights, not from the best ones
            self.resume(resume or True)
        begin, self.stop_reason = time.perf_counter(), self.out_of_patience()  # all else ends one call alone
        done = self.stop_reason if self.position.step < self.total_steps else f"all {self.total_steps} steps are done"
        if done and self.unfinished is None:
            log.warning("%s: nothing is trained (steps, epochs or eval.patience ask for more)", done)
        check_unchanged(self.model, self.trained)
        reserve_buffer()
        outcome: dict[str, Any] = {}
        signals = stop.Signals(self.announce, self.distributed.size == 1, self.last_checkpoint)
        with self.held(make=True), self.fast(), signals.watch(), gradients_freed():
            self.check_later()
            try:
                self.notify("start")
                try:
                    outcome = self.run(begin, signals)
                except stop.EvaluationLeft:  # everything else is saved
                    outcome = self.outcome()
                interrupted = signals.share(self.distributed.objects)
            except BaseException as error:
                self.rescue(error)
                error = stop.no_memory(self, error) if out_of_memory(error) else error
                self.end({**self.outcome(), "error": str(error) or type(error).__name__}, failed=True)
                raise error
            self.end(outcome)
            if interrupted:
                saved = ", with everything saved" if self.directory else ""
                raise signals.interruption(f"after step {self.position.step}{saved}; train() goes on")
        return outcome

    finetune = train

    def predict(self, *_, **__) -> Any:
        """Always an InputError: batches are of tokens, and there is no tokenizer."""
        raise InputError("Trainer.predict: a trainer over batches has no tokenizer; use model.generate or pipeline")

    def run(self, begin: float, signals: stop.Signals) -> dict[str, Any]:
        """Measures, trains, and writes the results; a signal leaves out what has not begun."""
        self.phase = stop.MEASURING_BASE
        self.measure_before()
        signals.renew()
        if not self.distributed.any(signals.received is not None):  # otherwise there is nothing yet that could be saved
            self.model.set_train(True)
            for name in registry(self.model).running:
                registry(self.model).get(name).learnt = True
            try:
                self.run_steps(begin, signals)
            finally:
                self.model.set_train(False)
                release(self.model)
        interrupted = self.distributed.any(signals.received is not None)
        self.phase = stop.WRITING
        if not interrupted and self.eval_settings.load_best_model_at_end:
            self.load_best()
        outcome = self.outcome()
        if not interrupted and self.finish is not None:
            outcome = self.finish(outcome)
        return outcome

    def announce(self) -> str:
        """What happens when a signal comes now."""
        saved, alone = ", with everything saved" if self.directory else "", self.distributed.size == 1
        if alone and self.directory and self.phase in stop.ANNOUNCED:
            return stop.ANNOUNCED[self.phase]
        return f"ending after this step{saved}{' where no process has failed' if saved and not alone else ''}"

    def run_steps(self, begin: float, signals: stop.Signals) -> None:
        """The steps that are left."""
        position = self.position
        if self.unfinished is not None and self.step_done(self.unfinished, begin, signals):
            return
        self.phase = stop.LOADING
        while position.step < self.total_steps and self.stop_reason is None:
            done_before, whole_epoch = position.step, position.step_in_epoch == 0
            place = position.epoch, position.step_in_epoch
            for batches in steps(self.feed, self.settings.accumulation, *place, self.model):
                if self.step_done(self.one_step(batches), begin, signals):
                    return
            position.epoch, position.step_in_epoch = position.epoch + 1, 0
            if whole_epoch and position.step == done_before:  # a resumed one may have been at its end already
                raise InputError(f"epoch {position.epoch} of the training data holds no step")

    def step_done(self, record: dict[str, Any], begin: float, signals: stop.Signals) -> bool:
        """What follows a step: its evaluation, its line, its checkpoint. Whether the loop ends here.

        Raises:
            EvaluationLeft: a signal came during the evaluation. The checkpoint holds the step's record, so that the
                resumed run begins with that evaluation.
        """
        position, best = self.position, self.best
        last = position.step >= self.total_steps
        try:
            self.phase = stop.MEASURING
            self.evaluate_if_due(record, last)
            self.phase = stop.STEPS
        except Exception as error:
            self.unfinished, self.best = record, best  # the evaluation comes again, and counts once
            if self.directory and isinstance(error, stop.EvaluationLeft):
                self.save()
            raise
        self.unfinished = None
        signals.renew()
        self.log(record, last)
        if signals.received is not None:
            self.stop(f"signal {signals.received}")
        limit = self.settings.max_seconds
        if limit is not None and time.perf_counter() - begin >= limit:
            self.stop(f"max_seconds: {limit:g}")
        stopping = self.distributed.any(self.stop_reason is not None)
        if stopping:
            self.stop("another process stopped")
        best = self.best.step == position.step
        if self.directory and (
            last or stopping or best or due(position.step, self.settings.save_every, self.total_steps)
        ):
            self.save()
        return last or stopping

    def one_step(self, batches: list[dict[str, Any]]) -> dict[str, Any]:
        """One optimizer step; its line for metrics.jsonl."""
        position = self.position
        if (state := getattr(self.model, "adapter_state", None)) != self.adapter_state:  # callbacks may switch adapters
            check_unchanged(self.model, self.trained)
            self.adapter_state = state
        self.in_step = True
        restarts.begin_anew_if_due(self)
        rate = self.schedule(position.step)
        scale = self.loss_scale.scale
        begin = time.perf_counter()
        self.distributed.step_begins()
        result = self.train_step(batches, position.step, rate, scale, updates=position.updates, limit=self.watch.limit)
        self.distributed.step_ends()
        self.in_step = False
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
            **self.measured_in_step(result),
            "learning_rate": rate,
            "gradient_norm": result.gradient_norm,
            self.objective.counted: result.count,
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
        """Answers a step whose update was not made. Raises RunFailed: it cannot be answered."""
        if result.applied:
            self.loss_scale.good()
            return
        step, samples = self.position.step + 1, where(self.feed, batches)
        if not math.isfinite(result.loss):
            raise stop.failure(step, f"the loss is {result.loss}", samples, self.rescue())
        if not result.finite:
            if self.loss_scale.overflow():
                return
            raise stop.failure(step, "the gradients are not finite", samples, self.rescue())
        what = f"the loss is {result.loss:.4g}, over {self.settings.max_loss_ratio:g} times its recent median"
        raise stop.failure(step, what, samples, self.rescue(), "; train.max_loss_ratio: null looks for NaN alone")

    def stop(self, reason: str) -> None:
        """Ends the run after the present step, with everything saved. For callbacks."""
        self.stop_reason = self.stop_reason or reason

    # Beside the loop -------------------------------------------------------------------------------------------------

    def notify(self, moment: str, *arguments, told: bool = True) -> None:
        """Tells the callbacks of a moment; False: those alone that are told of every step."""
        for callback in self.callbacks if self.distributed.is_main else ():
            if told or getattr(callback, "every_step", False):
                with progress.pausing():
                    getattr(callback, moment)(self, *arguments)

    def end(self, outcome: dict[str, Any], failed: bool = False) -> None:
        """Tells every callback of the end; one that fails there keeps no other from being told.

        Args:
            outcome: what they get.
            failed: the run has an error of its own, which is more important than theirs.
        """
        if not self.distributed.is_main:
            return
        first: Exception | None = None
        for callback in self.callbacks:
            try:
                with progress.pausing():
                    callback.end(self, outcome)
            except Exception as error:
                log.warning("%s failed at the end of the run: %s", type(callback).__name__, error)
                first = first or error
        if first is not None and not failed:
            raise first

    def log(self, record: dict[str, Any], last: bool) -> None:
        """Hands a step's record on, every ``log_every`` steps and where something was measured."""
        measured = any(name.startswith("eval_") for name in record)
        if told := measured or last or record["step"] % self.settings.log_every == 0:
            self.history.append(record)
        self.notify("step", record, told=told)
