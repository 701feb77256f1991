"""Experiment trackers, each by its own package: every number of every step, and the recipe."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from model_zoo.errors import InputError, explain
from pet.installation import needed
from pet.recipe.overrides import flat
from pet.train.callbacks.base import Callback

log = logging.getLogger("pet")

TENSORBOARD = "callbacks: tensorboard needs the package tensorboardX: pip install 'mindspore-pet[tensorboard]'"


class Tracker(Callback):
    """What all trackers do; a sub-class says where numbers go.

    Numbers are called ``train/loss``, ``eval/loss`` and so on. Without a run directory nothing is written below it, and
    there is no recipe to record. A resumed run is a new run of the tracker, with the steps that follow. One that
    cannot be opened is an error; one that fails later (its server is down) gets no more, with a warning, and the run
    goes on.
    """

    is_open = failed = False  # a run may end before it starts

    def open(self, directory: Path, title: str, config: dict[str, Any], step: int) -> None:
        """Begin.

        Args:
            config: its recipe; empty where there is none.
            step: the first one that is written.
        """

    def write(self, numbers: dict[str, float], step: int) -> None:
        """Numbers of a step."""

    def close(self, error: str | None) -> None:
        """End.

        Args:
            error: what ended the run; None where it has come to its end.
        """

    def start(self, trainer) -> None:
        directory = Path(trainer.directory or ".")
        recipe = directory / "recipe.yaml"
        config = yaml.safe_load(recipe.read_text("utf-8")) if trainer.directory and recipe.is_file() else {}
        self.open(directory, directory.resolve().name, config, trainer.recorded + 1)
        self.is_open = True

    def step(self, trainer, record) -> None:
        found = {}
        for name, value in record.items():
            if name != "step" and isinstance(value, (int, float)):
                group = "eval" if name.startswith("eval_") else "train"
                found[f"{group}/{name.removeprefix('eval_')}"] = value
        if not self.failed:
            with self.tolerated(f"gets nothing from step {record['step']} on"):
                self.write(found, record["step"])

    def end(self, trainer, summary) -> None:
        if self.is_open:
            with self.tolerated("did not get the end of the run"):
                self.close(summary.get("error"))

    @contextlib.contextmanager
    def tolerated(self, what: str) -> Iterator[None]:
        """An error within becomes a warning: hours of training are not lost because of a tracker."""
        try:
            yield
        except Exception as error:
            self.failed = True
            log.warning("callbacks: %s %s: %s", type(self).__name__, what, explain(error))


class WandB(Tracker):
    """Weights & Biases.

    Args:
        project: to which the run belongs.
        name: of the run; default: the run directory's.
        mode: ``online``, ``offline`` (files below the run directory, for ``wandb sync``) or ``disabled``; default: the
            package's own, by ``WANDB_MODE``.
        settings: further arguments of ``wandb.init``.

    Raises:
        InputError: wandb is not installed.
    """

    of = "wandb"

    def __init__(self, project: str = "mindspore-pet", name: str | None = None, mode: str | None = None, **settings):
        self.package = needed(self.of, self.of, f"callbacks: {self.of}")
        self.settings = {"project": project, **({"mode": mode} if mode else {}), **settings}
        self.name = name

    def open(self, directory, title, config, step) -> None:
        where = {"name": self.name or title, "dir": str(directory), "config": config}
        self.run = self.package.init(**{**where, **self.settings})

    def write(self, numbers, step) -> None:
        self.run.log(numbers, step=step)

    def close(self, error) -> None:
        self.run.finish(exit_code=1 if error else 0)


class SwanLab(WandB):
    """SwanLab.

    Args:
        project, name: as for `WandB`.
        mode: ``cloud``, ``offline`` (files below the run directory, for ``swanlab sync``), ``local`` or ``disabled``;
            default: the package's own, by ``SWANLAB_MODE``.
        settings: further arguments of ``swanlab.init``.

    Raises:
        InputError: swanlab is not installed.
    """

    of = "swanlab"

    def open(self, directory, title, config, step) -> None:
        where = {"experiment_name": self.name or title, "logdir": str(directory / "swanlog"), "config": config}
        (directory / "swanlog").mkdir(parents=True, exist_ok=True)
        self.package.init(**{**where, **self.settings})

    def write(self, numbers, step) -> None:
        self.package.log(numbers, step=step)

    def close(self, error) -> None:
        if error is None:
            self.package.finish()
        else:
            states = getattr(self.package, "State", None)  # newer ones take its name
            self.package.finish(states.CRASHED if states else "crashed", error)


class MLflow(Tracker):
    """MLflow.

    Args:
        project: the experiment to which the run belongs.
        name: of the run; default: the run directory's.
        uri: where to; default: ``MLFLOW_TRACKING_URI``, or else ``mlruns`` below the run directory.

    Raises:
        InputError: mlflow is not installed.
    """

    def __init__(self, project: str = "mindspore-pet", name: str | None = None, uri: str | None = None):
        self.package = needed("mlflow", "mlflow", "callbacks: mlflow")
        self.project, self.name, self.uri = project, name, uri

    def open(self, directory, title, config, step) -> None:
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or (directory / "mlruns").resolve().as_uri()
        if uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # without a server files are all there is
        self.client = self.package.MlflowClient(uri)
        known = self.client.get_experiment_by_name(self.project)
        experiment = known.experiment_id if known else self.client.create_experiment(self.project)
        self.run = self.client.create_run(experiment, run_name=self.name or title).info.run_id
        params = [self.package.entities.Param(key, str(value)[:500]) for key, value in flat(config).items()]
        for first in range(0, len(params), 100):  # more it does not take at once
            self.client.log_batch(self.run, params=params[first : first + 100])

    def write(self, numbers, step) -> None:
        now = int(time.time() * 1000)
        metrics = [self.package.entities.Metric(name, value, now, step) for name, value in numbers.items()]
        self.client.log_batch(self.run, metrics)  # one by one each would be a request

    def close(self, error) -> None:
        self.client.set_terminated(self.run, "FAILED" if error else "FINISHED")


class TensorBoard(Tracker):
    """Writes every number of every step, and the recipe as a text, to ``<run>/tensorboard``.

    Uses ``tensorboardX``, or torch's writer where that is what is installed.

    Raises:
        InputError: neither is installed.
    """

    def __init__(self) -> None:
        for module in ("tensorboardX", "torch.utils.tensorboard"):
            with contextlib.suppress(ImportError):
                self.writer_class = importlib.import_module(module).SummaryWriter
                return
        raise InputError(TENSORBOARD)

    def open(self, directory, title, config, step) -> None:
        self.writer = self.writer_class(str(directory / "tensorboard"), purge_step=step, max_queue=1000)
        if config:
            text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
            self.writer.add_text("recipe", "".join(f"    {line}\n" for line in text.rstrip("\n").split("\n")))  # code

    def write(self, numbers, step) -> None:
        for name, value in numbers.items():
            self.check_thread()
            self.writer.add_scalar(name, value, step)

    def check_thread(self) -> None:
        """tensorboardX's thread ends where it cannot write; once its queue is full, a run would wait for it for ever.
        torch's writer raises by itself what its thread met."""
        with contextlib.suppress(AttributeError):
            if not self.writer.file_writer.event_writer._worker.is_alive():
                raise OSError("its thread has ended, see above; is the disk full?")

    def close(self, error) -> None:
        self.writer.close()
