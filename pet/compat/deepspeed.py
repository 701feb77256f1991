"""DeepSpeed's JSON files: batch, precision, clipping, optimizer, schedule, and whether the state is divided."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from model_zoo.atomic import read_json
from pet.compat.mindformers.training_arguments import TABLE as ARGUMENTS
from pet.compat.translation import choice, elsewhere, number, optimizer, picked, same
from pet.recipe.overrides import flat
from pet.recipe.translation import Ignored, Refused, Translation

ENGINE = Ignored("it says how DeepSpeed works, not what comes of it")
SCHEDULERS = {"warmuplr": "constant", "warmupdecaylr": "linear", "warmupcosinelr": "cosine"}


def _stage(t: Translation, name: str, value: Any) -> None:
    t.put("parallel.shard_optimizer", int(value) > 0)
    if int(value) > 1:
        base = "; parallel.shard_base divides a frozen base as well" if int(value) > 2 else ""
        t.ignore(f"{name}: {value}", f"the optimizer's state is divided (stage 1){base}; the numbers are the same")


def adam_is_adamw(t: Translation, name: str, value: Any) -> None:
    """DeepSpeed's Adam decays as AdamW does, unless its file says not to; so does FlagAI's own without a file."""
    decoupled = t.values.get("optimizer.params.adam_w_mode", True)
    optimizer(t, name, "adamw" if decoupled and str(value).lower() == "adam" else value)


TABLE = {
    "train_batch_size": Ignored("it follows from the micro-batch, the accumulation and the processes"),
    "fp16.loss_scale": Refused("a fixed loss scale is not here; 0 lets it adapt"),
    "fp16.*": Ignored("the loss scale adapts itself"),
    "zero_optimization.stage": _stage,
    **picked(
        ARGUMENTS,
        "train_micro_batch_size_per_gpu=batch_size gradient_accumulation_steps gradient_clipping=max_grad_norm "
        "fp16.enabled=fp16 bf16.enabled=bf16 bfloat16.enabled=bf16 "
        "optimizer.params.lr=learning_rate optimizer.params.eps=adam_epsilon "
        "optimizer.params.weight_decay=weight_decay scheduler.params.warmup_max_lr=learning_rate",
    ),
    "optimizer.type": adam_is_adamw,
    "optimizer.params.adam_w_mode": elsewhere,
    "optimizer.params.betas": "train.betas",
    "scheduler.type": choice("train.schedule", SCHEDULERS),
    "scheduler.params.warmup_type": choice("train.warmup_power", {"linear": 1.0}),
    "scheduler.params.warmup_min_lr": Refused("the warm-up begins at 0"),
    "scheduler.params.warmup_num_steps": number("train.warmup", int),
    "scheduler.params.total_num_steps": Ignored("the run's length says it"),
    **same(ENGINE, "activation_checkpointing.* steps_per_print wall_clock_breakdown zero_* communication_data_type"),
    **same(ENGINE, "prescale_gradients dump_state *.enabled flops_profiler.* comms_logger.* tensorboard.* wandb.*"),
    **same(ENGINE, "csv_monitor.* zero_optimization.* optimizer.params.*_adam*"),
}


def put_deepspeed(t: Translation, told: str | os.PathLike | Mapping[str, Any], beside: bool = False) -> None:
    """Puts the settings of a file, or of what stands in one, over those that are there; ``"auto"`` leaves them. What a
    file leaves out of its optimizer and schedule is as DeepSpeed has it: no decay of weights, a constant rate.
    ``beside`` a job of transformers' trainer these count where the file has any, and the rest is what the job says.

    Raises:
        InputError: no such file, or no JSON.
    """
    name = "deepspeed" if isinstance(told, Mapping) else os.path.basename(told)
    told = flat(told if isinstance(told, Mapping) else read_json(told, "a DeepSpeed configuration"))
    if beside:
        told = {key: value for key, value in told.items() if key.startswith(("optimizer.", "scheduler."))}
    given = {key: value for key, value in told.items() if value != "auto"}
    said = told if beside else given
    file = Translation(f"{t.system}: {name}")
    file.values = given
    if any(key.startswith("optimizer.") for key in given) and "optimizer.params.weight_decay" not in said:
        file.put("train.weight_decay", 0.0)
    if "scheduler.type" in given:
        t.drop(*(f"train.{key}" for key in ["final_ratio", "cycles", "power", "decay", "decay_shape", "warmup_power"]))
        file.put("train.warmup", None if "scheduler.params.warmup_num_steps" in said else 1000)
        why = "it takes the place of the job's own schedule; " if beside else ""
        if "scheduler.params.warmup_type" not in given:
            why += "its warm-up rises by equal steps; DeepSpeed's only where warmup_type is linear"
        if why:
            file.ignore("scheduler.type", why)
    elif not beside:
        file.settings.update({"train.schedule": "constant", "train.warmup": 0})
    file.apply(given, TABLE)
    t.settings.update(file.settings)
    t.problems += file.problems
    for why in dict.fromkeys(file.ignored.values()):
        t.ignore(f"{name}: {', '.join(key for key in file.ignored if file.ignored[key] == why)}", why)
    if not beside and "zero_optimization.stage" not in given:
        t.put("parallel.shard_optimizer", False)
