"""``launch()``: a task by the command line, trained, measured and asked."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np

from model_zoo.errors import InputError
from model_zoo.turns import turn
from pet.auto import AutoModel
from pet.compat.ckpt.doors import find_ckpt
from pet.compat.command_line import add_switch, boolean, read, start_again
from pet.compat.mindformers.training_arguments import TABLE as ARGUMENTS
from pet.compat.mindspore_trainer.model import Measured, is_mindspores, put_trained, trained_file, with_loss
from pet.compat.mindspore_trainer.tasks import EvalData, Task, ask, find_task, width, with_arguments
from pet.compat.objects import Objects, make_feed, measure, put_weights, recipe_beside_objects, run
from pet.compat.optimizers import put_optimizer
from pet.compat.outputs import call, tensors
from pet.compat.results import find_weights
from pet.compat.translation import OWN_STEP, clip, elsewhere, number, per_process, positive
from pet.data.wrap import is_mindspore_dataset
from pet.launching.environment import has_rank, read_job
from pet.recipe.schema import Recipe
from pet.recipe.translation import Ignored, Refused, Rule, Translation
from pet.train.callbacks import Callback
from pet.train.distributed import DistributedContext

INTERNAL = Ignored("the environment says it")
PROCESSES = Ignored("it says which processes are started")


def needed(why: str) -> Rule:
    """A rule of what cannot be switched off."""
    return lambda t, name, value: t.refuse(name, f"{value}: {why}") if value != "true" else None


UNREAD = ["accumulative_update", "adam_beta1", "adam_beta2", "epsilon", "loss_scale", "lookahead_alpha", "lookahead_k"]
UNREAD += ["lr_schedule", "lr_schedule_ends", "max_grad_norm", "opt_type", "scale_steps", "with_lamb", "with_radam"]
"""Flags of MindsporeTrainer's parser that nothing there reads."""

# flag → type, documented default, rule
FLAGS: dict[str, tuple[Callable, Any, Rule]] = {
    "data_dir": (str, None, elsewhere),
    "output_dir": (str, None, "output.dir"),
    "num_train_epochs": (float, 1, elsewhere),
    "train_steps": (int, -1, positive("train.steps")),
    "learning_rate": (float, 5e-5, "train.learning_rate"),
    "train_batch_size": (int, 64, "train.batch_size"),
    "eval_batch_size": (int, 32, "eval.batch_size"),
    "predict_batch_size": (int, 32, elsewhere),
    "save_eval_steps": (int, 1000, "train.save_every"),
    "save_checkpoint_num": (int, 1, "train.keep_last"),
    "accumulation_steps": (int, 1, "train.accumulation"),
    "warmup": (float, 0.1, "train.warmup"),
    "loss_scale_value": (float, 1024.0, elsewhere),
    "scale_factor": (float, 4.0, elsewhere),
    "scale_window": (int, 1000, elsewhere),
    "seed": (int, 1234, "train.seed"),
    "report_interval": (int, 1, "train.log_every"),
    "load_checkpoint_path": (str, None, elsewhere),
    "device_num": (int, None, PROCESSES),
    "device_id": (str, None, PROCESSES),
    "enable_global_norm": (boolean, False, clip),
    "optimizer": (str, None, ARGUMENTS["optimizer"]),
    "schedule": (str, None, ARGUMENTS["lr_scheduler"]),
    "weight_decay": (float, 0.01, number("train.weight_decay")),
    "do_shuffle": (boolean, True, "data.shuffle"),
    "data_workers": (int, None, Ignored("data is read ahead in any case")),
    "allreduce_post_accumulation": (str, None, Ignored("gradients are summed once per step in any case")),
    "tag": (str, None, Ignored("name the output directory")),
    "run_mode": (str, None, OWN_STEP),
    "enable_data_sink": (boolean, None, OWN_STEP),
    "data_sink_steps": (int, None, OWN_STEP),
    "debug": (boolean, None, Ignored("tokens are cached in any case")),
    "resume_opt_path": (str, None, Refused("--load_checkpoint_path of a run goes on with its optimizer too")),
    "load_opt_path": (str, None, Refused("--load_checkpoint_path of a run goes on with its optimizer too")),
    "thor": (boolean, None, Refused("second-order optimizers are not here")),
    "GAN": (boolean, None, Refused("adversarial training is not here")),
    "amp_level": (str, None, Refused("--fp16 says the precision", ("auto", "O2"))),
    "enable_lossscale": (str, None, needed("with --fp16 the loss is scaled")),
    "enable_save_ckpt": (str, None, needed("checkpoints are saved, for a run to go on from")),
    "restore_by_prefix": (boolean, None, Refused("parameters are loaded by their whole names", (False,))),
    "prefix": (str, None, Ignored("it belongs to --restore_by_prefix")),
    **dict.fromkeys(UNREAD, (str, None, Ignored("MindsporeTrainer reads no such flag, either"))),
    **dict.fromkeys(("rank", "local_rank", "world_size"), (int, None, INTERNAL)),
    **dict.fromkeys(("master_ip", "master_port"), (str, None, INTERNAL)),
}
SWITCHES = ("do_train", "do_eval", "do_predict", "fp16", "distribute")
MINDSPORES_ADAM = {"eps": 1e-6, "bias_correction": False}
# task.optimizer_name → recipe, as MindsporeTrainer makes them
OPTIMIZER_NAMES = {
    "Lamb": {"optimizer": "lamb", "schedule": "polynomial", "power": 2.0},
    "AdamWeightDecay": {"optimizer": "adamw", "schedule": "polynomial", "power": 5.0, **MINDSPORES_ADAM},
    "Momentum": {"optimizer": "momentum", "schedule": "constant", "warmup": 0.0, "weight_decay": 0.0},
}


def make_parser() -> argparse.ArgumentParser:
    """The flags that every task has."""
    parser = argparse.ArgumentParser("launch", allow_abbrev=False)
    parser.add_argument("--task_name", help="a registered task, or a .py file with one")
    parser.add_argument("--task_dir", help="where task files lie")
    for name in SWITCHES:
        add_switch(parser, name, "", default=False)
    for name, (kind, default, _) in FLAGS.items():
        if kind is boolean:
            add_switch(parser, name, "", default)
        else:
            parser.add_argument(f"--{name}", type=kind, default=default, help=f"default {default}")
    return parser


def processes(args: argparse.Namespace) -> int:
    """How many are asked for that nobody has started: ``RANK_SIZE`` without ``RANK_ID``, or ``--device_num``.

    Raises:
        InputError: the two, or the devices, are of different numbers.
    """
    if has_rank(os.environ):
        return 1
    found = {int(os.environ.get("RANK_SIZE") or 1), args.device_num or 1, len((args.device_id or "0").split(","))} - {1}
    if len(found) > 1:
        raise InputError("RANK_SIZE, --device_num and --device_id are of different numbers of processes")
    return found.pop() if found else 1


def start(args: argparse.Namespace, count: int) -> int:
    """Runs this program in so many processes; their exit code. The rank table is that of the launcher."""
    for name in ("RANK_SIZE", "RANK_TABLE_FILE"):
        os.environ.pop(name, None)
    devices = [int(each) for each in (args.device_id or "0").split(",")]
    return start_again(count, devices if len(devices) > 1 else [devices[0] + rank for rank in range(count)])


def launch(arguments: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Runs a task by the command line: trains, evaluates, predicts. With ``RANK_SIZE`` or ``--device_num`` above 1 this
    program is started in so many processes, and this one ends with their exit code.

    Returns:
        The training's results, or the evaluation's numbers.

    Raises:
        InputError: what is wrong with the arguments or the task.
    """
    parser, words = make_parser(), list(sys.argv[1:] if arguments is None else arguments)
    first = parser.parse_known_args(words)[0]
    kind = find_task(first.task_name, first.task_dir)
    object.__new__(kind).add_arguments(parser)  # a class method, or an instance's
    args = read(parser, words)
    if not (args.do_train or args.do_eval or args.do_predict):
        raise InputError("nothing to do: give --do_train, --do_eval or --do_predict")
    if (count := processes(args)) > 1:
        raise SystemExit(start(args, count))
    rows, args.train_batch_size = args.train_batch_size, args.train_batch_size // max(1, args.accumulation_steps)
    if not args.train_batch_size:
        raise InputError(
            f"--train_batch_size {rows}: --accumulation_steps {args.accumulation_steps} divides these rows"
        )
    if args.output_dir is not None:  # in which hooks write
        os.makedirs(args.output_dir, exist_ok=True)
    seed_all(args.seed)
    return Job(args, make_task(kind, args)).run()


def seed_all(seed: int) -> None:
    """Before a task makes its model, so that all processes make the same."""
    random.seed(seed)
    ms.set_seed(seed)  # NumPy's, too


def make_task(kind: type[Task], args: argparse.Namespace) -> Task:
    """A task, whose ``__init__`` takes the arguments, ``(data_dir, args)``, or nothing."""
    task = call(kind, data_dir=args.data_dir, args=args)
    if getattr(task, "args", None) is None:
        task.args = args
    return task


class Job:
    """A task with what its hooks have said."""

    def __init__(self, args: argparse.Namespace, task: Task):
        self.args, self.task = args, task
        make_recipe(args, task)  # what is wrong with the flags is said before a model is made
        args.tokenizer = ask(task.get_tokenizer, args)
        self.model = ask(task.get_model, args)
        if isinstance(self.model, (str, Path)):
            self.model = AutoModel.from_pretrained(self.model)
        self.recipe, self.rates = make_recipe(args, task, self.model)
        self.objects, self.measured, self.decide = self.ask_data()

    def ask_data(self):
        """The run's objects, the model as evaluation functions get it, and what the main metric is."""
        args, task = self.args, self.task
        sizes = {"batch_size": args.train_batch_size, "debug": bool(args.debug)}
        train = ask(task.train_data, args, **sizes) if args.do_train else None
        held_out = ask(task.eval_data, args, batch_size=args.eval_batch_size) if args.do_eval else None
        if isinstance(held_out, (list, tuple)) and held_out and isinstance(held_out[0], EvalData):
            (held_out,) = held_out
        named = held_out if isinstance(held_out, EvalData) else None
        train, held_out = (rows_of(data) for data in (train, named.data if named else held_out))
        columns = columns_of(train if train is not None else held_out)
        loss, metrics, head = (ask(hook, args) for hook in (task.get_loss, task.get_metrics, task.get_eval_head))
        if isinstance(loss, ms.nn.Cell):
            if loss.trainable_params():
                self.model.task_loss = loss  # its parameters are trained and saved with the model's
            loss = with_loss(loss, columns, width(loss) == 2)
        collate = ask(task.get_feature_fn, args) if with_arguments(task.get_feature_fn) else None
        own_head = with_arguments(task.get_eval_head)
        metrics = metrics if isinstance(metrics, dict) else {}
        measured = Measured(self.model, columns, metrics, None if own_head else head, named)
        objects = Objects(self.model, args.tokenizer, train, held_out, collate, loss, rates=self.rates)
        if metrics or named:
            objects.metrics = measured.measure
        function = ask(task.get_eval_fn, args, data=held_out, output_dir=args.output_dir, rank=read_job().rank)
        main = task.main_metric

        def decide(model, numbers: dict[str, Any]) -> float:
            measured.results = {**numbers, **measured.results}
            if function is None:
                return float(numbers[main])
            given = {2: (model, numbers), 3: (measured, "eval", "final"), 4: (measured, held_out, "eval", "final")}
            return float(function(*given[width(function)]))

        return objects, measured, decide if function or main else None

    def run(self) -> dict[str, Any] | None:
        """Trains, evaluates, predicts, as far as the command line says."""
        args, result = self.args, None
        source = args.load_checkpoint_path
        if source and is_mindspores(source):
            file = find_ckpt(source)
            given = ms.load_checkpoint(str(file), format=file.suffix[1:])
            if len(ms.load_param_into_net(self.model, given)[1]) == len(given):
                raise InputError(f"--load_checkpoint_path {source}: has no parameter of the model")
        elif source and not args.do_train and (file := trained_file(source)):
            put_trained(self.model, file)
        elif source and not args.do_train:
            put_weights(self.model, *find_weights(source))
        if args.do_train:
            schedule = {"every_steps": args.save_eval_steps} if args.do_eval else None
            smallest = self.task.main_metric in ("loss", "perplexity")
            result = run(self.recipe, self.objects, callbacks=[Main(self.decide, smallest)], eval_schedule=schedule)
        elif args.do_eval:
            head = self.task.get_eval_head
            self.objects.model = (ask(head, args) if with_arguments(head) else None) or self.model
            result = measure(self.recipe, self.objects)
            if self.decide:
                result["main_metric"] = self.decide(self.objects.model, dict(result))
            print({key: round(value, 6) for key, value in result.items()})
        if args.do_predict:
            self.predict()
        return result

    def predict(self) -> None:
        """Hands the model, or its logits, to the task's function."""
        task, args, kind = self.task, self.args, type(self.task).__name__
        more = {"output_dir": args.output_dir, "rank": read_job().rank}
        asked = ask(task.get_pred_fn, args, **more), ask(task.get_predict_fn, args, **more)
        function = asked[0] or asked[1]
        if function is None:
            raise InputError(f"task {kind}: --do_predict needs get_pred_fn or get_predict_fn")
        data = ask(task.test_data, args, batch_size=args.predict_batch_size)
        if width(function) < 4:
            function(self.model, data, args)
        elif asked[0]:
            function(self.model, data, args.output_dir, "test")
        else:
            rows = rows_of(data)
            feed = make_feed(
                rows, self.recipe, self.model, args.tokenizer, DistributedContext(), self.objects, train=False
            )
            self.measured.columns = columns_of(rows)
            with turn:
                found = [self.measured.predicted(tensors(batch)).asnumpy() for batch in feed.batches()]
            function(np.concatenate(found)[: len(rows)], args.output_dir, kind, "final")


def rows_of(data: Any) -> Any:
    """Rows ``{column: value}`` of a MindSpore Dataset with other columns than a language model's; other data as it is.

    Raises:
        InputError: a share of the data, which would be divided once more.
    """
    if not is_mindspore_dataset(data):
        return data
    node = data
    while node is not None:
        if (getattr(node, "num_shards", None) or 1) > 1:
            raise InputError("dataset: leave num_shards out; every process takes its own rows")
        node = next(iter(node.children), None)
    if set(data.get_col_names()) <= {"input_ids", "labels", "attention_mask"}:
        return data
    batches = data.create_dict_iterator(output_numpy=True, num_epochs=1)
    whole = data.get_batch_size() > 1
    return [
        {name: value[row] for name, value in batch.items()} if whole else batch
        for batch in batches
        for row in range(len(next(iter(batch.values()))) if whole else 1)
    ]


def columns_of(data: Any) -> list[str]:
    """The columns of a dataset; of files those of a language model."""
    if hasattr(data, "get_col_names"):
        return list(data.get_col_names())
    first = data[0] if hasattr(data, "__getitem__") and not isinstance(data, (str, Path)) and len(data) else None
    return list(first) if isinstance(first, dict) else ["input_ids", "labels"]


class Main(Callback):
    """Lets the task's main metric decide which checkpoint is the best."""

    def __init__(self, function: Callable | None, smallest: bool = False):
        self.function, self.sign = function, -1 if smallest else 1

    def start(self, trainer) -> None:
        """A run that is gone on with has a best."""
        self.best, self.best_step = trainer.best.value, trainer.best.step

    def evaluation(self, trainer, record: dict[str, Any]) -> None:
        """The main metric of this evaluation, and whether it is the best so far."""
        if self.function is None:
            return
        numbers = {name.removeprefix("eval_"): value for name, value in record.items()}
        value = float(self.function(trainer.model, {**record, **numbers}))
        if self.best is None or self.sign * (value - self.best) > 0:
            self.best, self.best_step = value, record["step"]
        # the trainer has just judged by the loss
        trainer.best.step, trainer.best.value = self.best_step, self.best


def make_recipe(args: argparse.Namespace, task: Task, model=None) -> tuple[Recipe, Callable[[int], float] | None]:
    """The recipe of a task's arguments, and the learning rate by the step where the task's optimizer has one.

    Args:
        args, task: they say it.
        model: for a task that makes its optimizer; None leaves that out.
    """
    t, rates, copies = Translation("launch"), None, read_job().size
    for key, value in OPTIMIZER_NAMES.get(task.optimizer_name, {"schedule": "linear"}).items():
        t.put(f"train.{key}", value)
    t.put("train.warmup_like", "mindformers")  # MindSpore's own WarmUpLR
    fixed = ("warmup", "weight_decay") if task.optimizer_name == "Momentum" else ()
    given = {name: getattr(args, name) for name in FLAGS if name not in fixed}
    t.apply(given, {name: rule for name, (_, _, rule) in FLAGS.items()}, "--")
    if args.output_dir is None:
        t.refuse("--output_dir", "is missing")
    if args.distribute and copies == 1:
        t.refuse(
            "--distribute", "this is a single process; give --device_num N, or pet launch -n N -- python TASK.py …"
        )
    t.put("train.epochs", None if "train.steps" in t.settings else args.num_train_epochs)
    per_process(t, copies, "train.batch_size", "eval.batch_size")
    t.put("parallel.data", copies)
    metrics = ask(task.get_metrics, args)
    t.put(
        "eval.metrics", ["loss", "perplexity", "accuracy"] if isinstance(metrics, dict) else list(metrics or ["loss"])
    )
    if args.fp16:
        t.put("train.precision", "fp16")
        scale = {"initial": args.loss_scale_value, "factor": args.scale_factor, "window": args.scale_window}
        t.put("train.loss_scale", scale)
    chosen = ask(task.get_opt_fn, args)
    if callable(chosen) and model is not None:
        made = chosen(args, model, opt_name=task.optimizer_name)
        made = made[0] if isinstance(made, tuple) else made
        rates = put_optimizer(t, made) if made is not None else None
    elif isinstance(chosen, dict):
        for key, value in chosen.items():
            t.put(f"train.{key}", value)
    if model is not None:
        t.ignored.clear()  # it has been said before the model was made
    t.finish()
    source = args.load_checkpoint_path if args.do_train else None
    return recipe_beside_objects(t, "task", None if source and is_mindspores(source) else source), rates
