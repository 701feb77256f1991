"""MindsporeTrainer: a task file with hooks, run by ``launch()``.

@register_task(name="questions", desc="…")
class Questions(Task):
    def get_model(self, args): …
    def train_data(self, args): …

launch()          # python task.py --task_name questions --do_train --do_eval --output_dir run
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError, nearest
from pet.compat.ckpt.beside import converted
from pet.compat.ckpt.doors import is_ckpt
from pet.compat.command_line import add_switch, boolean, read
from pet.compat.translation import COMPILED
from pet.recipe.translation import Ignored, Translation
from pet.train.callbacks import Callback

log = logging.getLogger("pet")

TASKS: dict[str, type[Task]] = {}

FLAGS = {
    "data_dir": (str, None, "handed to the task"),
    "output_dir": (str, "output", "the run directory"),
    "num_train_epochs": (float, 3.0, "passes over the data"),
    "train_steps": (int, None, "optimizer steps, instead of epochs"),
    "learning_rate": (float, 2e-5, "peak learning rate"),
    "train_batch_size": (int, 32, "rows on each device"),
    "eval_batch_size": (int, 8, "rows"),
    "predict_batch_size": (int, 8, "rows"),
    "save_eval_steps": (int, None, "steps between evaluations with their checkpoints"),
    "accumulation_steps": (int, 1, "micro-batches of an optimizer step"),
    "warmup": (float, 0.1, "share of the steps in which the learning rate rises"),
    "loss_scale_value": (float, 1024.0, "with --fp16: where the loss scale starts"),
    "scale_factor": (float, 4.0, "with --fp16: by what it changes"),
    "scale_window": (int, 1000, "with --fp16: good steps until it grows"),
    "seed": (int, 42, "of everything random"),
    "report_interval": (int, 1, "steps between lines of metrics.jsonl"),
    "load_checkpoint_path": (str, None, "a run or checkpoint directory: to go on from, or what is measured and asked"),
    "optimizer": (str, "adamw", "adamw, lamb, momentum, adam, sgd"),
    "schedule": (str, "linear", "linear, polynomial, cosine, constant"),
    "weight_decay": (float, 0.01, "of matrices"),
}
IGNORED = {
    "allreduce_post_accumulation": Ignored("gradients are summed over processes once per step in any case"),
    "data_workers": Ignored("data is read ahead in any case"),
    "tag": Ignored("name the output directory"),
    "run_mode": COMPILED,
    "device_num": Ignored("pet launch -n says it"),
    "device_id": Ignored("pet launch --devices says it"),
    "task_dir": None,
}


class Task:
    """What a task file says; every hook gets the arguments. Override those that matter.

    A dataset is whatever `pet.Trainer` takes: files, a MindSpore Dataset of ``input_ids``, a list of batches, or an
    indexable dataset of dictionaries, put into batches by `get_feature_fn`.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """More arguments of the command line."""

    def get_model(self, args):
        """The model, with its adapter on it; or the name of a base."""
        raise InputError(f"task {type(self).__name__}: get_model is missing")

    def get_tokenizer(self, args):
        """The tokenizer, where data is files or a name says the model otherwise."""

    def train_data(self, args):
        """What is trained on."""
        raise InputError(f"task {type(self).__name__}: train_data is missing")

    def eval_data(self, args):
        """What is measured on."""

    def test_data(self, args):
        """What is predicted: a list of texts or a dataset."""

    def get_labels(self, args):
        """The labels of a classification, for the task's own use."""

    def get_feature_fn(self, args) -> Callable | None:
        """From a list of samples to a batch; None where data is in batches."""

    def get_loss(self, args) -> Callable | None:
        """``(data, model) → loss``; None for cross-entropy of the next token."""

    def get_metrics(self, args) -> list[str]:
        """Metrics by a recipe's names."""
        return ["loss", "perplexity", "accuracy"]

    def get_eval_fn(self, args) -> Callable | None:
        """``(model, measured) → the main metric`` (larger is better), which decides the best checkpoint."""

    def get_eval_head(self, args):
        """A model for the evaluation; None for the trained one."""

    def get_opt_fn(self, args) -> dict[str, Any] | None:
        """Settings of a recipe's ``train`` section, such as ``{"optimizer": "lamb", "momentum": 0.9}``."""

    def get_pred_fn(self, args) -> Callable | None:
        """``(model, test_data, args)`` → what the prediction is; writes what it likes."""

    def get_predict_fn(self, args) -> Callable | None:
        """The same under its other name."""


def register_task(name: str | None = None, desc: str = "") -> Callable[[type], type]:
    """A class decorator: the task can be chosen by ``--task_name``."""

    def register(cls: type) -> type:
        cls.desc = desc
        TASKS[name or cls.__name__] = cls
        return cls

    return register


def build_transformer_model(config_path=None, model: str = "auto", checkpoint_path=None, **changes):
    """``(model, config)``: with the weights of a checkpoint directory or bundled base, else random ones of the
    configuration's sizes.

    Args:
        config_path: a config.json, a checkpoint directory, or a bundled base's or preset's name.
        model: of no effect: the configuration says which it is.
        checkpoint_path: where the weights are, if not beside the configuration: a directory, or a MindFormers
            ``.ckpt`` file.
        changes: keys of config.json to change. Where the weights no longer fit, they are random, with a warning.
    """
    from model_zoo.checkpoint.reading import load_into
    from model_zoo.counting import parameter_shapes
    from pet.auto import AutoModel
    from pet.names import find_model, model_config, preset_names

    source = checkpoint_path or config_path
    if source is None:
        raise InputError("build_transformer_model: config_path is missing")
    if is_ckpt(source):
        source = converted(source, config_path if checkpoint_path else None)
    given = model_config(config_path or source)
    built = AutoModel.from_config({**given, **changes})
    if str(source) in preset_names() or Path(str(source)).is_file():
        return built, built.config  # sizes alone
    if parameter_shapes({**given, **changes}) == parameter_shapes(given):
        load_into(built, find_model(source))
    else:
        log.warning("build_transformer_model: weights are random, their shapes change by %s", ", ".join(changes))
    return built, built.config


def make_parser() -> argparse.ArgumentParser:
    """The flags that every task has."""
    parser = argparse.ArgumentParser("launch", allow_abbrev=False)
    parser.add_argument("--task_name", help="a registered task, or a .py file with one")
    parser.add_argument("--task_dir", help="where task files lie")
    for name in ("do_train", "do_eval", "do_predict", "fp16", "distribute"):
        add_switch(parser, name, "", default=False)
    parser.add_argument("--enable_global_norm", type=boolean, nargs="?", const=True, default=True)
    for name, (kind, default, meaning) in FLAGS.items():
        parser.add_argument(f"--{name}", type=kind, default=default, help=meaning)
    for name in IGNORED:
        if name != "task_dir":
            parser.add_argument(f"--{name}", nargs="?", const=True, help=argparse.SUPPRESS)
    return parser


def find_task(name: str | None, directory: str | None) -> Task:
    """The task of a name or file; without a name the only one that is registered.

    Raises:
        InputError: no such task or file, or several without a name.
    """
    if name and (name.endswith(".py") or directory):
        path = Path(directory or ".", name if name.endswith(".py") else f"{name}.py")
        if not path.is_file():
            raise InputError(f"--task_name {name}: there is no file {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        before = dict(TASKS)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        new = [task for task, made in TASKS.items() if made is not before.get(task)]
        if len(new) != 1:
            raise InputError(f"{path}: one @register_task was expected, found {len(new)}")
        return TASKS[new[0]]()
    if name is None and len(TASKS) == 1:
        return next(iter(TASKS.values()))()
    if name not in TASKS:
        raise InputError(
            f"--task_name {name!r} is not registered; there are: {', '.join(TASKS)}{nearest(str(name), TASKS)}"
        )
    return TASKS[name]()


def launch(arguments: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Runs a task by the command line: trains, evaluates, predicts.

    Returns:
        What the training came to, or the evaluation's numbers.

    Raises:
        InputError: what is wrong with the arguments or the task.
    """
    parser, words = make_parser(), list(sys.argv[1:] if arguments is None else arguments)
    first = parser.parse_known_args(words)[0]
    task = find_task(first.task_name, first.task_dir)
    task.add_arguments(parser)
    args = read(parser, words)
    if not (args.do_train or args.do_eval or args.do_predict):
        raise InputError("nothing to do: give --do_train, --do_eval or --do_predict")
    recipe = make_recipe(args, task)
    from pet.compat.objects import Objects, measure, put_weights, run
    from pet.compat.results import find_weights

    args.tokenizer = task.get_tokenizer(args)
    model = task.get_model(args)
    if isinstance(model, (str, Path)):
        from pet.auto import AutoModel

        model = AutoModel.from_pretrained(model)
    schedule = {"every_steps": args.save_eval_steps} if args.save_eval_steps and args.do_eval else None
    loss, held_out = task.get_loss(args), task.eval_data(args) if args.do_eval else None
    objects = Objects(model, args.tokenizer, None, held_out, task.get_feature_fn(args), loss)
    result = None
    if args.load_checkpoint_path and not args.do_train:
        put_weights(model, *find_weights(args.load_checkpoint_path))
    if args.do_train:
        objects.train = task.train_data(args)
        result = run(recipe, objects, callbacks=[Main(task.get_eval_fn(args))], eval_schedule=schedule)
    elif args.do_eval:
        objects.model = task.get_eval_head(args) or model
        result = measure(recipe, objects)
        if function := task.get_eval_fn(args):
            result["main_metric"] = float(function(objects.model, dict(result)))
        print({key: round(value, 6) for key, value in result.items()})
    predict = task.get_pred_fn(args) or task.get_predict_fn(args)
    if args.do_predict:
        if predict is None:
            raise InputError(f"task {type(task).__name__}: --do_predict needs get_pred_fn or get_predict_fn")
        predict(model, task.test_data(args), args)
    return result


class Main(Callback):
    """Lets the task's evaluation function decide which checkpoint is the best."""

    def __init__(self, function: Callable | None):
        self.function, self.best, self.best_step = function, None, None

    def evaluation(self, trainer, record: dict[str, Any]) -> None:
        """The main metric of this evaluation, and whether it is the best so far."""
        if self.function is None:
            return
        value = float(self.function(trainer.model, dict(record)))
        if self.best is None or value > self.best:
            self.best, self.best_step = value, record["step"]
        # the trainer has just judged by the loss
        trainer.best.step, trainer.best.value = self.best_step, self.best


def make_recipe(args: argparse.Namespace, task: Task):
    """The recipe of a task's arguments."""
    from pet.compat.objects import recipe_beside_objects
    from pet.compat.translation import OPTIMIZERS, SCHEDULES, choice
    from pet.launching.environment import read_job

    t = Translation("launch")
    for name, rule in IGNORED.items():
        if rule is not None and getattr(args, name, None) is not None:
            t.ignore(f"--{name}", rule.why)
    choice("train.optimizer", OPTIMIZERS)(t, "--optimizer", args.optimizer)
    choice("train.schedule", SCHEDULES)(t, "--schedule", args.schedule)
    copies = read_job().size
    if args.distribute and copies == 1:
        t.refuse("--distribute", "this is a single process; start it by pet launch -n N -- python TASK.py …")
    for key, value in {
        "output.dir": args.output_dir,
        "train.learning_rate": args.learning_rate,
        "train.batch_size": args.train_batch_size * copies,
        "eval.batch_size": args.eval_batch_size * copies,
        "train.accumulation": args.accumulation_steps,
        "train.warmup": args.warmup,
        "train.weight_decay": args.weight_decay,
        "train.seed": args.seed,
        "train.log_every": args.report_interval,
        "train.steps": args.train_steps,
        "train.epochs": None if args.train_steps else args.num_train_epochs,
        "train.save_every": args.save_eval_steps,
        "parallel.data": copies,
        "eval.metrics": list(task.get_metrics(args)),
    }.items():
        t.put(key, value)
    if not args.enable_global_norm:
        t.settings["train.clip_norm"] = None
    if args.fp16:
        t.put("train.precision", "fp16")
        scale = {"initial": args.loss_scale_value, "factor": args.scale_factor, "window": args.scale_window}
        t.put("train.loss_scale", scale)
    for key, value in (task.get_opt_fn(args) or {}).items():
        t.put(f"train.{key}", value)
    t.finish()
    return recipe_beside_objects(t, "task", args.load_checkpoint_path if args.do_train else None)
