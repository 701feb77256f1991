"""Tasks: what a task file says, how it is found, and how its hooks are asked."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from model_zoo.errors import InputError, nearest
from pet.compat.outputs import call
from pet.launching.environment import read_job

Kind = TypeVar("Kind", bound=type)
TASKS: dict[str, type[Task]] = {}
KEPT = ("data_dir", "output_dir", "num_train_epochs", "data_workers", "train_batch_size", "eval_batch_size")


class Task:
    """What a task file says. Override the hooks that matter, as MindsporeTrainer's document has them, or with the
    arguments of the command line as the only parameter, ``args``.

    A dataset is whatever `pet.Trainer` takes: files, a MindSpore Dataset of ``input_ids`` and other columns, a list of
    batches, or an indexable dataset of dictionaries (`create_dynamic_dataset`). Hooks, and what they give:

        get_model           the model, with its adapter on it, or a base's name; a cell may give a tuple
        get_tokenizer       where data is files or a name says the model
        train_data, eval_data, test_data    data (get ``batch_size``); `EvalData` for the second
        get_feature_fn(args)    from a list of samples to a batch; without ``args`` it is the task's own
        get_loss            a loss cell of (outputs…, labels) or (columns…, outputs…), or ``(data, model) → loss``;
                            None for cross-entropy of the next token
        get_metrics         names of a recipe's metrics, or ``{name: MindSpore's Metric}``
        get_eval_head       a cell of (columns…, outputs…) that gives what metrics are updated with; with ``args``: a
                            model for the evaluation
        get_eval_fn         ``(model, name, prefix)``, ``(model, data, name, prefix)`` or ``(model, measured)`` → the
                            main metric, which decides the best checkpoint; ``model.eval(data)`` gives the numbers
        get_opt_fn          settings of a recipe's ``train``, or ``(args, network, opt_name) → optimizer``
        get_pred_fn         ``(model, data, args)`` or ``(model, data, output_dir, name)``, writes what it likes
        get_predict_fn      the same, or ``(logits, output_dir, name, prefix)``
        main_metric, optimizer_name    attributes: which number is the main one (of ``loss`` and ``perplexity`` the
                            smallest is the best), and Lamb, Momentum or AdamWeightDecay
    """

    main_metric: str | None = None
    optimizer_name: str | None = None

    def __init__(self, args: argparse.Namespace | None = None, **kwargs: Any):
        self.args = args
        vars(self).update({name: getattr(args, name, None) for name in KEPT})
        job = read_job()
        self.rank_id, self.rank_size = job.rank, job.size

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """More arguments of the command line."""

    def get_model(self, *args, **kwargs):
        """The model."""
        raise InputError(f"task {type(self).__name__}: get_model is missing")

    def train_data(self, *args, **kwargs):
        """What is trained on."""
        raise InputError(f"task {type(self).__name__}: train_data is missing")

    def get_metrics(self, *args, **kwargs):
        """What is measured."""
        return ["loss", "perplexity", "accuracy"]

    def nothing(self, *args, **kwargs) -> None:
        """A hook that is not used."""

    get_tokenizer = eval_data = test_data = get_labels = get_feature_fn = get_loss = nothing
    get_eval_fn = get_eval_head = get_opt_fn = get_pred_fn = get_predict_fn = nothing


class TransformerTask(Task):
    """A task with the attributes that tasks of language models have."""

    max_seq_len = 512
    model_config = vocab_type = vocab_path = ""


class EvalData:
    """Data of an evaluation with its measures.

    Args:
        name: begins their names.
        examples: the data.
        metrics_fn: ``(logits, labels) → {name: number}``, of arrays over all rows.
        predict_fn: ``(logits, output_dir, name, prefix)``, writes predictions.
        ignore_metric, critial_metrics: of no effect: the task's ``main_metric`` decides.
    """

    def __init__(self, name, examples, metrics_fn=None, predict_fn=None, ignore_metric=False, critial_metrics=None):
        self.name, self.data, self.metrics_fn, self.predict_fn = name, examples, metrics_fn, predict_fn


@overload
def register_task(name: Kind) -> Kind: ...
@overload
def register_task(name: str | None = None, desc: str = "") -> Callable[[Kind], Kind]: ...
def register_task(name: Any = None, desc: str = "") -> Any:
    """A class decorator: the task can be chosen by ``--task_name``, in upper or lower case."""

    def register(cls: type, name: str | None = name) -> type:
        cls.desc = desc
        TASKS[(name or cls.__name__).lower()] = cls
        return cls

    return register(name, None) if isinstance(name, type) else register


def find_task(name: str | None, directory: str | None) -> type[Task]:
    """The task of a registered name or of a file; without a name the only one that is registered.

    Args:
        name: a registered name, or ``FILE.py`` with one task.
        directory: whose files are read; ``name`` may be a file there.

    Raises:
        InputError: no such task or file, or several without a name.
    """
    wanted = str(name or "").lower()
    path = Path(directory or ".", name if wanted.endswith(".py") else f"{name}.py")
    if name and (wanted.endswith(".py") or (directory and wanted not in TASKS and path.is_file())):
        if not path.is_file():
            raise InputError(f"--task_name {name}: there is no file {path}")
        new = load_tasks(path)
        if len(new) != 1:
            raise InputError(f"{path}: one @register_task was expected, found {len(new)}")
        return TASKS[new[0]]
    if directory and wanted not in TASKS:
        if not Path(directory).is_dir():
            raise InputError(f"--task_dir {directory}: there is no such directory")
        program = Path(getattr(sys.modules["__main__"], "__file__", None) or sys.argv[0]).resolve()
        for file in sorted(Path(directory).glob("[!_]*.py")):
            if file.resolve() != program:  # which has begun, and would begin anew
                load_tasks(file)
    if name is None and len(TASKS) == 1:
        return next(iter(TASKS.values()))
    if wanted not in TASKS:
        raise InputError(
            f"--task_name {name!r} is not registered; there are: {', '.join(TASKS)}{nearest(wanted, TASKS)}"
        )
    return TASKS[wanted]


def load_tasks(path: Path) -> list[str]:
    """Runs a task file; the names that it registers."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    before = dict(TASKS)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return [task for task, made in TASKS.items() if made is not before.get(task)]


def with_arguments(hook: Callable) -> bool:
    """Whether a hook takes the command line's arguments as its only parameter."""
    parameter = inspect.signature(hook).parameters.get("args")
    return parameter is not None and parameter.kind is parameter.POSITIONAL_OR_KEYWORD


def ask(hook: Callable, args: argparse.Namespace, **offered: Any) -> Any:
    """What a hook says: by the command line's arguments, or by those of the offered ones that it takes."""
    return hook(args) if with_arguments(hook) else call(hook, **offered)


def width(function: Callable) -> int:
    """How many positional parameters a function or a cell has."""
    shown = getattr(function, "construct", function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in inspect.signature(shown).parameters.values())
