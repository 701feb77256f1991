"""A run's checkpoints: writing them, going on from one, and going back to the best."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from model_zoo.arguments import checked
from model_zoo.checkpoint.parameters import read_as
from model_zoo.errors import InputError
from model_zoo.unwritable import CannotWrite, explained
from pet import run_directory
from pet.train import checkpoint as files, state
from pet.train.agreement import raised_everywhere
from pet.train.callbacks.records import read_metrics
from pet.train.origins import origins_of_objects
from pet.train.stop import RunFailed

log = logging.getLogger("pet")


class Saving:
    """The part of `pet.train.trainer.Trainer` that keeps checkpoints.

    Attributes:
        directory: the run directory, or None; then nothing is written.
        save_extra: see `pet.train.checkpoint.save`.
        whole_weights: all weights that files hold, at the checkpoint in hand, for ``save_extra``.
        origins: see `pet.train.trainer.Trainer`.
        weights_step: the step that the model's weights are of, where the best ones were loaded at the end.
        in_step: whether a step has begun that has not ended: weights may be between two states.
        begun: whether the run directory was there already: one that is moved away meanwhile is not made anew.
    """

    def begin_saving(
        self, directory: str | Path | None, save_extra: Callable[[Path], str | None] | None, origins
    ) -> None:
        """Nothing has been saved yet."""
        divided = self.distributed.divides_model
        self.origins = origins_of_objects(self.model, divided) if origins is None else origins
        self.directory = Path(directory) if directory is not None else None
        self.save_extra, self.whole_weights = save_extra, {}
        self.weights_step: int | None = None
        self.begun = self.in_step = False

    @contextlib.contextmanager
    def held(self, make: bool = False) -> Iterator[None]:
        """Keeps other processes from the run directory within the block: of two runs in one each would delete the
        other's checkpoints.

        Args:
            make: whether the directory is made where it is not there yet.

        Raises:
            InputError: in every process; another job is running there.
        """
        if self.directory is None:
            yield
            return
        if self.distributed.is_main and make:
            with explained(self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)
            self.begun = True
        with raised_everywhere(self.distributed.objects):
            held = self.distributed.is_main and run_directory.claim(self.directory, "directory")
        try:
            yield
        finally:
            if held:
                run_directory.release(self.directory)

    def __reduce_ex__(self, protocol):
        raise InputError("a trainer cannot be copied or pickled, as its model cannot; make another one")

    @property
    def checkpoint_directory(self) -> Path:
        """Where the run's checkpoints are."""
        return self.directory / "checkpoints"

    @property
    def recorded(self) -> int:
        """Up to which step callbacks have the records: that of an evaluation that was left comes once it is made."""
        return self.position.step - (self.unfinished is not None)

    def last_checkpoint(self) -> str | None:
        """The newest checkpoint's path, as a word for messages."""
        if self.directory is None:
            return None
        found = files.checkpoints(self.checkpoint_directory)
        return str(found[-1]) if found else None

    def save(self) -> None:
        """Writes a checkpoint of the present step, and deletes those that are not kept.

        Raises:
            CannotWrite: among other things where the run directory is gone.
        """
        if self.distributed.is_main:
            with explained(self.checkpoint_directory):
                self.checkpoint_directory.mkdir(parents=not self.begun, exist_ok=True)
            self.begun = True
        path = files.save(
            self.checkpoint_directory,
            self.position.step,
            *state.snapshot(self),
            self.save_extra,
            self.settings.save_prefix,
            self.distributed,
        )
        if self.distributed.is_main:
            kept = {self.best.step} if self.best.step is not None else set()
            files.prune(self.checkpoint_directory, self.settings.keep_last, kept)
            self.notify("save", path)
        self.distributed.barrier()

    def rescue(self, error: BaseException | None = None) -> str | None:
        """Saves the last whole step where an error ends the run, which may have no checkpoint yet. Not where it came
        within a step or of writing, nor of several processes, all of which would have to take part; nor weights that
        are no numbers any more. `RunFailed` has been through here.

        Args:
            error: None for a loss that cannot be used. The last step may be the reason: it is saved where there is no
                checkpoint at all, and takes no earlier one's place.

        Returns:
            The newest checkpoint's path.
        """
        last = self.last_checkpoint()
        new = self.position.step > (files.step_of(Path(last)) if last else 0)
        harmless = isinstance(error, Exception) and not isinstance(error, (CannotWrite, RunFailed))
        able = harmless or (error is None and last is None)
        if self.directory is None or self.distributed.size > 1 or self.in_step or not (able and new):
            return last
        weights = (read_as(value, "float32") for value in state.trained(self).values())
        if not all(np.isfinite(values).all() for values in weights):
            log.warning("step %d is not saved: its weights are not finite", self.position.step)
            return last
        try:
            self.save()
        except Exception as problem:
            log.warning("saving step %d: %s", self.position.step, problem)
        if error is not None and self.last_checkpoint() != last:
            log.warning("step %d is saved: a resumed run goes on from there", self.position.step)
        return self.last_checkpoint()

    @checked
    def resume(self, source: bool | str | Path = True) -> None:
        """Goes on from a checkpoint: every number is what it was, and so is every number that follows.

        Raises:
            InputError: no whole checkpoint, or one of another model or other settings; or another job is running in the
                run directory.
        """
        if source:
            with self.held():
                self.go_on_from(source)

    def go_on_from(self, source: bool | str | Path) -> None:
        """See `resume`."""
        if last := not isinstance(source, (str, os.PathLike)):
            if self.directory is None:
                raise InputError("resume needs a run directory, or a checkpoint's path")
            found = files.load_last(self.checkpoint_directory, self.distributed)
            if found is None:
                lost = read_metrics(self.directory / "metrics.jsonl")
                log.log(
                    logging.WARNING if lost else logging.INFO,
                    "no checkpoint in %s: starting at the first step%s",
                    self.checkpoint_directory,
                    f"; {lost[-1]['step']} that had been made are lost, see train.save_every" if lost else "",
                )
                return
        else:
            try:
                found = files.load(source, self.distributed)
            except files.Damaged as error:
                raise InputError(files.no_checkpoint(source) or f"checkpoint {source}: {error.word}{error}") from error
        state.restore(self, found)
        lines = (last and read_metrics(self.directory / "metrics.jsonl")) or self.history
        self.history = [line for line in lines if line["step"] <= self.recorded]
        if last and self.distributed.is_main:
            files.discard_after(self.checkpoint_directory, self.position.step)
        log.info("resuming from %s", found.path)

    def check_later(self) -> None:
        """Refuses to train beside checkpoints of later steps: those of this run would be taken for older ones, and be
        the first to be deleted, and a resumed run would go on from the others.

        Raises:
            InputError: there is one.
        """
        last = self.distributed.objects(self.last_checkpoint())[0]
        if last is not None and files.step_of(Path(last)) > self.position.step:
            raise InputError(
                f"{last}: a checkpoint of another run, of a later step than this one begins at "
                f"({self.position.step}); go on from it by train(resume=True), give another directory, or delete it"
            )

    def load_best(self) -> None:
        """Gives the model the weights of the best evaluation, where it was not the last step's.

        Everything else stays as it is: the checkpoint of the last step is still what a resumed run goes on from.
        """
        step = self.best.step
        if step is None or step == self.position.step:
            return
        path = files.path_of(self.checkpoint_directory, step)
        try:
            found = files.load(path, self.distributed)
        except files.Damaged as error:
            log.warning("the best checkpoint, %s, cannot be used: %s; the last step's weights stay", path, error)
            return
        state.restore_weights(self, found)
        self.weights_step, self.last_measured = step, None
