"""FlagAI's trainer: ``class MyTrainer(Trainer): def forward_step(self, data, model, mems)``."""

from __future__ import annotations

import math
import os
import re
import sys
from collections import UserList
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_text
from model_zoo.errors import InputError, nearest
from model_zoo.settings import require
from pet.compat.command_line import start_again
from pet.compat.deepspeed import adam_is_adamw, put_deepspeed
from pet.compat.mindformers.training_arguments import TABLE as ARGUMENTS
from pet.compat.outputs import HIDDEN, Outputs, call, tensors
from pet.compat.paths import modules_of
from pet.compat.translation import callback, elsewhere, per_process, picked, same
from pet.launching.environment import read_job
from pet.recipe.translation import Ignored, Refused, Translation

ENVIRONMENTS = same("standalone", "pytorch standalone") | same("data_parallel", "pytorchDDP data_parallel")
ENVIRONMENTS |= same("optimizer_shard", "deepspeed bmtrain optimizer_shard") | same("hybrid", "deepspeed+mpu hybrid")
WHOLE = Ignored("checkpoints hold everything that a run goes on with")
LAUNCHED = Ignored("pet launch says where the processes meet and what they run")
TABLE = {
    **picked(
        ARGUMENTS,
        "batch_size weight_decay gradient_accumulation_steps seed fp16 epochs=num_train_epochs lr=learning_rate "
        "warm_up=warmup_steps clip_grad=max_grad_norm log_interval=logging_steps save_interval=save_steps "
        "eval_interval=eval_steps checkpoint_activations=recompute experiment_name=run_name save_dir=output_dir",
    ),
    "optimizer_type": adam_is_adamw,
    "tensorboard": callback("tensorboard"),
    "save_best": Refused("the best checkpoint is that of the smallest loss", (None,)),
    "pytorch_device": Ignored("the device of this machine is used"),
    "timers": Ignored("metrics.jsonl has each step's time"),
    "extra_args": Ignored("a script has its own arguments"),
    "deepspeed_activation_checkpointing": Ignored("checkpoint_activations says it"),
    "num_checkpoints": Ignored("layers are recomputed as a whole or not at all"),
    "tensorboard_dir": Ignored("it is below the run directory"),
    "local_rank": Ignored("the environment says it"),
    **same(
        elsewhere, "load_dir num_gpus model_parallel_size num_nodes hostfile deepspeed_config tokenizer not_call_launch"
    ),
    **same(WHOLE, "load_rng save_rng load_optim save_optim load_type"),
    **same(LAUNCHED, "master_ip master_port training_script training_paras"),
}
# FlagAI's own defaults, where ours are others; it trains no epoch unless some are given
DEFAULTS = {"epochs": 1, "lr": 1e-3, "warm_up": 0.1, "weight_decay": 0.1, "batch_size": 1, "clip_grad": 1.0}
DEFAULTS["seed"] = 1234


class Trainer:
    """FlagAI's trainer over the core's. Sub-classes may override `forward_step`.

    Args:
        env_type: ``standalone``, ``data_parallel``, ``optimizer_shard`` (data-parallel, with the optimizer's state
            divided) or ``hybrid`` (layers divided over ``model_parallel_size`` processes besides); also by FlagAI's
            names ``pytorch``, ``pytorchDDP``, ``deepspeed``, ``deepspeed+mpu``.
        settings: FlagAI's: ``epochs``, ``batch_size`` (rows per process), ``lr``, ``weight_decay``, ``warm_up``,
            ``gradient_accumulation_steps``, ``clip_grad``, ``seed``, ``fp16``, ``checkpoint_activations``,
            ``log_interval``, ``eval_interval``, ``save_interval``, ``save_dir``, ``load_dir`` (a run directory to go on
            from), ``experiment_name`` … With a DeepSpeed environment, ``deepspeed_config`` is read
            (`pet.compat.deepspeed`) and beats them, but for ``batch_size``.

    In any environment but ``standalone``, ``num_gpus`` above 1 starts the script again in so many processes, as FlagAI
    does, and this one ends with their exit code; ``pet launch -n N -- python SCRIPT`` does the same from outside.

    Raises:
        InputError: an unknown environment or setting; ``num_nodes × num_gpus`` processes that this one cannot start
            (several machines, a notebook, ``not_call_launch``), or another number of them than the job has.
    """

    def __init__(self, env_type: str = "standalone", **settings):
        if env_type not in ENVIRONMENTS:
            raise InputError(
                f"Trainer: env_type {env_type!r} is not known; supported: {', '.join(ENVIRONMENTS)}"
                f"{nearest(env_type, ENVIRONMENTS)}"
            )
        self.env_type, self.settings = ENVIRONMENTS[env_type], settings
        self.file = settings.get("deepspeed_config") if env_type.startswith("deepspeed") else None
        self.bmtrain = env_type == "bmtrain"
        self._translation().finish()
        if self._must_start():
            raise SystemExit(self._start())

    def forward_step(self, data: dict[str, Any], model, mems=None) -> dict[str, Any]:
        """The loss of a batch; by default cross-entropy of the model's logits over ``data["labels"]``.

        Args:
            data: ``input_ids``, ``labels``, ``position_ids``, ``start``, ``end``, Tensors ``(B, S)``.
            model: the model.
            mems: always None; FlagAI's models hand on memories here.

        Returns:
            ``{"loss": mean over the labels}``, or ``{"logits": …}`` alone, from which the loss is computed.
        """
        raise TypeError("forward_step is called only where it is overridden")

    def train(
        self, model, optimizer=None, lr_scheduler=None, train_dataset=None, valid_dataset=None, metric_methods=(),
        collate_fn=None,
    ) -> dict[str, Any]:  # fmt: skip
        """Trains, and writes ``save_dir``; returns what its summary.json holds.

        Args:
            model: a model, with or without an adapter on it.
            optimizer: an optimizer of MindSpore, or of torch, whose kind and numbers are taken; None for the settings.
            lr_scheduler: the learning rate by the step, see `pet.compat.optimizers.rates_of`; None for FlagAI's own:
                `annealed`, with ``bmtrain`` `noam`, with DeepSpeed that of its file.
            train_dataset, valid_dataset: indexable datasets of dictionaries, or torch DataLoaders over such, whose
                ``batch_size``, order and ``collate_fn`` then count.
            metric_methods: pairs of a name and a function of logits ``(N, S, V)`` and labels ``(N, S)``, Tensors of all
                evaluation rows, which may take ``meta`` (None) and ``tokenizer`` besides; measured on one process.
            collate_fn: from a list of samples to a dictionary with ``input_ids`` ``(B, S)``, and ``labels`` unshifted
                with −100 where nothing is learnt; where they are left out every token is one.

        Raises:
            InputError: what cannot be served, or data of another form.
        """
        from pet.compat.objects import Objects, recipe_beside_objects, run
        from pet.compat.optimizers import put_optimizer, rates_of

        if metric_methods and read_job().size > 1:
            raise InputError("Trainer.train: metric_methods: are measured on one process; leave them out here")
        if train_dataset is None:
            raise InputError("Trainer.train: train_dataset is missing")
        train_dataset, joined, order = self._unloaded("train_dataset", train_dataset, collate_fn)
        valid_dataset, other, _ = self._unloaded("valid_dataset", valid_dataset, collate_fn)
        if valid_dataset is not None and joined != other:
            raise InputError("Trainer.train: train_dataset and valid_dataset have two collate_fn; one was expected")
        t = self._translation()
        for key, value in order.items():
            t.put(key, value)
        if order.get("data.drop_last") and t.get("train.accumulation", 1) > 1:
            t.refuse("train_dataset", "its drop_last leaves out a batch, data.drop_last a whole step of several")
        t.ignored.clear()  # it has been said
        every = t.settings.pop("eval.every_steps", None)
        rates = put_optimizer(t, optimizer) if optimizer is not None else None
        rates = rates if lr_scheduler is None else rates_of(lr_scheduler)
        t.finish()
        t.put("eval.metrics", ["loss", "perplexity", "accuracy"])
        if "output.dir" not in t.settings:
            t.put("output.dir", os.path.join("checkpoints", str(t.get("name", "experiment"))))
        recipe = recipe_beside_objects(t, "flagai", self.settings.get("load_dir"))
        own = type(self).forward_step is not Trainer.forward_step
        fields = own and {"loss", "logits", *HIDDEN} & set(self.forward_step.__code__.co_names)

        def forward(data, model):
            return self.forward_step(data, Outputs(model) if fields else model, None)

        def metrics(batches):
            from mindspore import ops

            rows = [(Outputs(model)(**data).logits, data["labels"]) for data in map(tensors, batches)]
            logits, labels = (ops.concat(parts) for parts in zip(*rows, strict=True))
            more = {"meta": None, "tokenizer": self.settings.get("tokenizer")}
            return {name: float(call(method, logits, labels, **more)) for name, method in metric_methods}

        objects = Objects(model, None, train_dataset, valid_dataset, joined, forward if own else None)
        objects.rates = rates or self._rates(objects, recipe.train)
        objects.metrics = metrics if metric_methods else None
        summary = run(recipe, objects, eval_schedule={"every_steps": every} if every and valid_dataset else None)
        self.directory = Path(recipe.output.dir)
        return summary

    def _unloaded(
        self, name: str, data: Any, collate_fn: Callable | None
    ) -> tuple[Any, Callable | None, dict[str, bool]]:
        """A torch DataLoader's dataset, its ``collate_fn``, and the settings of its order; other data as they are."""
        if not all(hasattr(data, own) for own in ("dataset", "sampler", "drop_last", "collate_fn")):
            return data, collate_fn, {}
        order, own = type(data.sampler).__name__, data.collate_fn
        left_out = bool(data.drop_last and len(data.dataset) % (data.batch_size or 1))
        wrong = {
            f"its sampler is a {order}": order not in ("SequentialSampler", "RandomSampler", "DistributedSampler"),
            "it has no batch_size": not data.batch_size,
            "its drop_last leaves rows out": left_out and name != "train_dataset",
        }
        if why := next((reason for reason, holds in wrong.items() if holds), None):
            raise InputError(f"Trainer.train: {name}: {why}; give the dataset itself and collate_fn=")
        if name == "train_dataset":
            self.settings = {**self.settings, "batch_size": data.batch_size}
        # a plain list would hold batches
        rows = UserList(data.dataset) if isinstance(data.dataset, (list, tuple)) else data.dataset
        shuffled = bool(getattr(data.sampler, "shuffle", order != "SequentialSampler"))
        return rows, own, {"data.shuffle": shuffled, "data.drop_last": left_out}

    def _rates(self, objects, train) -> Callable[[int], float] | None:
        """The learning rate by the step where no scheduler is given; None where the settings say all of it."""
        warm_up, batches = self.settings.get("warm_up", DEFAULTS["warm_up"]), train.accumulation
        if self.file or not warm_up:
            return None
        share = noam if self.bmtrain else annealed
        return lambda step: train.learning_rate * share((step + 1) * batches - 1, objects.steps * batches, warm_up)

    def _asked(self) -> tuple[int, int | None]:
        """Machines, and processes on each, None where nothing says that; a machine for every line of the hostfile where
        their number is not given."""
        if self.env_type == "standalone":
            return 1, None
        numbers = {"num_nodes": self.settings.get("num_nodes"), "num_gpus": self.settings.get("num_gpus")}
        if hosts := self._hosts():
            slots = re.search(r"slots\s*=\s*(\d+)", hosts[0])
            found = {"num_nodes": len(hosts), "num_gpus": int(slots[1]) if slots else None}
            numbers = {name: found[name] if value is None else value for name, value in numbers.items()}
        for name, value in numbers.items():
            require("flagai.Trainer", name, 1 if value is None else value, int, ge=1)
        return numbers["num_nodes"] or 1, numbers["num_gpus"]

    def _hosts(self) -> list[str]:
        """The lines of the hostfile, ``address slots=N``."""
        path = Path(self.settings.get("hostfile") or "")
        lines = read_text(path, "a hostfile").split("\n") if path.is_file() else []  # U+2028 ends no line of a file
        return [text for line in lines if (text := line.partition("#")[0].strip())]

    def _must_start(self) -> bool:
        """Whether several processes are asked for and nobody has started them."""
        nodes, gpus = self._asked()
        return read_job().launcher == "none" and nodes * (gpus or 1) > 1

    def _start(self) -> int:
        """Runs this program again in as many processes as are asked for; their exit code."""
        nodes, gpus = self._asked()
        gpus = gpus or 1
        if nodes > 1 or self.settings.get("not_call_launch") or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
            first = (*self._hosts(), "HOST")[0].split()[0]
            master = f"{self.settings.get('master_ip') or first}:{self.settings.get('master_port') or 'PORT'}"
            more = f" --nnodes {nodes} --node-rank K --master {master}" if nodes > 1 else ""
            where = " on every machine" if nodes > 1 else ""
            raise InputError(
                f"flagai.Trainer: num_nodes x num_gpus = {nodes * gpus} processes, but this is one; start the script"
                f"{where} by: pet launch -n {gpus}{more} -- python SCRIPT"
            )
        return start_again(gpus)

    def _translation(self) -> Translation:
        t = Translation("flagai.Trainer")
        t.apply({**DEFAULTS, **self.settings}, TABLE)
        t.put("train.schedule", "constant")  # where `_rates` has none
        (nodes, gpus), size = self._asked(), read_job().size
        if self._must_start():
            size = nodes * (gpus or 1)
        elif gpus is not None and nodes * gpus != size:
            t.refuse("num_gpus", f"{nodes} machines x {gpus} are {nodes * gpus} processes, but the job has {size}")
        tensor = int(self.settings.get("model_parallel_size") or 1)
        if tensor > 1 and self.env_type != "hybrid":
            t.ignore("model_parallel_size", "layers are divided where env_type is deepspeed+mpu or hybrid")
            tensor = 1
        if self.env_type == "standalone" and size > 1:
            t.refuse("env_type", f"standalone, but the job has {size} processes; use data_parallel")
        elif size % tensor:
            t.refuse("model_parallel_size", f"{tensor} does not divide the job's {size} processes")
        else:
            t.put("parallel.data", size // tensor)
            t.put("parallel.tensor", tensor)
            t.put("parallel.shard_optimizer", (self.env_type == "optimizer_shard" and size > 1) or None)
            if self.file:
                put_deepspeed(t, self.file)
                if size == tensor:
                    t.drop("parallel.shard_optimizer")
                t.put("train.batch_size", self.settings.get("batch_size"))
            per_process(t, size // tensor, "train.batch_size")
        return t


def annealed(batch: int, batches: int, warm_up: float) -> float:
    """The share of the peak rate at a micro-batch of a run, as FlagAI's AnnealingLR has it: a warm-up from 0, and a
    cosine towards a tenth that is as long as the whole run, so that it does not end."""
    rising = int(warm_up * batches)
    if rising > 0 and batch <= rising:
        return batch / rising
    return 0.1 + 0.9 * (math.cos(math.pi * min(1.0, (batch - rising) / batches)) + 1) / 2


def noam(batch: int, batches: int, warm_up: float) -> float:
    """The same of BMTrain's Noam (Vaswani et al. 2017)."""
    rising = int(warm_up * batches)
    return batch / rising**1.5 if batch < rising else 1 / math.sqrt(max(batch, 1))


__path__: list[str] = []  # what stands below has no files
__modules__ = modules_of({"trainer": {__name__: ("Trainer",)}})
