"""``TrainingArguments``: MindFormers' and Hugging Face's settings of a run, as settings of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from model_zoo.errors import InputError, similar
from pet.compat.mindformers.argument_groups import ArgumentGroups
from pet.compat.mindformers.parallel import TABLE as PARALLEL
from pet.compat.translation import (
    ANY_LAYOUT,
    OWN_STEP,
    SCHEDULES,
    both_betas,
    callback,
    choice,
    clip,
    elsewhere,
    final_rate,
    first_of,
    flag,
    number,
    optimizer,
    per_process,
    positive,
    same,
    share_of_peak,
    switched_on,
)
from pet.recipe.callback_names import UPLOAD
from pet.recipe.translation import Ignored, Refused, Translation, is_off

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pet.keywords import TrainingArgumentSettings


WRITTEN = {"rouge-1": "rouge_1", "rouge-2": "rouge_2", "rouge-l": "rouge_l", "bleu-4": "bleu"}
"""What LLaMA-Factory measures of written answers."""
MEASURES = {**WRITTEN, "rewards/accuracies": "reward_accuracy", "rewards/margins": "reward_margin"}
"""These, and TRL's names: what the best evaluation may be chosen by."""


def _best(translation: Translation, name: str, value: Any) -> None:
    """What the best evaluation is chosen by."""
    word = str(value).removeprefix("eval_")
    translation.put("eval.best_metric", MEASURES.get(word, word))


def _strategy(translation: Translation, name: str, value: Any) -> None:
    word = "no" if value is False else str(getattr(value, "value", value)).lower()  # YAML 1.1's reading of no
    if word not in ("no", "steps", "epoch"):
        translation.refuse(name, f"{value!r}; expected no, steps or epoch")
    elif word == "epoch" and "eval" in name:
        translation.drop("eval.every_steps")
        translation.put("eval.every_epochs", 1.0)
    elif word == "steps" and "eval" in name and "eval.every_epochs" not in translation.settings:
        translation.settings.setdefault("eval.every_steps", translation.get("train.log_every", LOGGED_EVERY))
    elif word == "no" and "eval" in name:
        translation.drop("eval.every_steps")
    elif word == "no":
        translation.drop("train.save_every")
    elif word == "epoch":
        translation.ignore(name, "a checkpoint is written at the end; for more of them give save_steps")


def _last_rate(t: Translation, name: str, value: Any) -> None:
    if (schedule := t.get("train.schedule")) in WITHOUT_END:
        t.ignore(name, f"the schedule {schedule} has none, in MindFormers either")
    else:
        final_rate(t, name, value)


LOGGED_EVERY = 500
"""``logging_steps`` unless it is given: how often is evaluated where ``eval_steps`` does not say it."""
ENGINE = {
    "mode": OWN_STEP,
    "device_target": Ignored("the device of this machine is used"),
    "device_id": Ignored("pet launch --devices chooses"),
    "full_batch": Ignored("every process reads its own rows"),
    "gradients_mean": Ignored("gradients are always those of the mean over the batch"),
    "max_device_memory": Ignored("memory is taken as it is needed"),
    **same(Ignored("the compiler decides for itself"), "enable_graph_kernel max_call_depth"),
    **same(Ignored("MindSpore's own MS_DEV_SAVE_GRAPHS and …_PATH do it"), "save_graphs save_graphs_path"),
    **same(OWN_STEP, "sink_mode sink_size"),
    **same(ANY_LAYOUT, "auto_trans_ckpt src_strategy transform_process_num"),
}
"""How MindFormers' engine works, which changes nothing of the results; its scripts have arguments for these, too."""
WITHOUT_INFLUENCE = (
    "use_cpu parallel_mode loss_repeated_mean enable_alltoall dataset_strategy search_mode "
    "gradient_accumulation_shard parallel_optimizer_threshold optimizer_weight_shard_size strategy_ckpt_save_file "
    "capacity_factor aux_loss_factor layer_decay num_experts_chosen select_recompute "
    "parallel_optimizer_comm_recompute mp_comm_recompute recompute_slice_activation lr_scale_factor dataset_task "
    "dataset_type train_dataset_out_columns eval_dataset_out_columns "
    "python_multiprocessing numa_enable prefetch_size wrapper_type scale_sense loss_scale_value loss_scale_factor "
    "loss_scale_window max_scale_window min_scale_window metric_type save_directory save_seconds "
    "keep_checkpoint_per_n_minutes save_on_each_node integrated_save save_network_params async_save "
    "save_trainable_params profile_start_step profile_end_step init_start_profile profile_memory "
    "profile_communication auto_tune filepath_prefix autotune_per_step hub_strategy hub_token hub_private_repo "
    "hub_always_push check_for_nan_in_loss_and_grad calculate_per_token_loss"
)
TABLE = {
    "run_name": lambda t, n, v: t.name("name", v),
    "output_dir": "output.dir",
    "overwrite_output_dir": flag("output.force"),
    "only_save_strategy": flag("output.only_save_strategy"),
    # data
    "train_dataset": "data.train",
    "eval_dataset": "data.eval",
    "data_seed": "data.seed",
    "num_samples": "data.max_samples",
    "shuffle": "data.shuffle",
    "group_by_length": flag("data.packing", "buckets"),
    "dataloader_num_workers": "data.workers",
    **same("data.max_length", "max_length seq_length"),
    # the step
    "seed": "train.seed",
    "num_train_epochs": number("train.epochs"),
    "max_steps": positive("train.steps"),
    "gradient_accumulation_steps": "train.accumulation",
    "dataloader_drop_last": flag("data.drop_last"),  # which the rules of other systems read with the line above
    "label_smoothing_factor": number("train.label_smoothing"),
    "neftune_noise_alpha": number("train.neftune_alpha"),
    "fp16": flag("train.precision", "fp16"),
    "bf16": flag("train.precision", "bf16"),
    "max_grad_norm": clip,
    "use_clip_grad": lambda t, n, v: None if switched_on(v) else clip(t, n, 0),
    **same("train.batch_size", "per_device_train_batch_size batch_size"),
    **same("eval.batch_size", "eval_batch_size per_device_eval_batch_size"),
    **same(flag("train.recompute"), "gradient_checkpointing recompute"),
    # optimizer and schedule
    "learning_rate": number("train.learning_rate"),
    "weight_decay": number("train.weight_decay"),
    "adam_beta1": both_betas(0),
    "adam_beta2": both_betas(1),
    "adam_epsilon": number("train.eps"),
    "warmup_steps": "train.warmup",
    "warmup_ratio": number("train.warmup"),
    "warmup_epochs": Refused("give warmup_steps or warmup_ratio"),
    **same(choice("train.schedule", SCHEDULES), "lr_scheduler_type lr_scheduler"),
    "lr_end": _last_rate,
    **same(optimizer, "optim optimizer"),
    **same(Refused("there are no such schedules"), "layer_scale lr_scale"),
    "warmup_lr_init": share_of_peak("train.warmup_from"),
    "total_steps": positive("train.schedule_steps"),
    "repeat": Refused("give num_train_epochs", harmless=(0, 1)),
    # checkpoints, logs, evaluation
    "save_steps": "train.save_every",
    "save_prefix": "train.save_prefix",
    "save_total_limit": "train.keep_last",
    **same("train.log_every", "logging_steps report_interval"),
    **same(positive("eval.every_steps"), "eval_steps eval_step_interval"),
    **same(positive("eval.every_epochs", float), "eval_epoch_interval eval_epochs"),
    **same(_strategy, "save_strategy eval_strategy evaluation_strategy"),
    "metric_for_best_model": _best,
    "greater_is_better": lambda t, n, v: t.put("eval.best_mode", "max" if switched_on(v) else "min"),
    "load_best_model_at_end": flag("eval.load_best_model_at_end"),
    **same(lambda t, n, v: t.put("train.resume", not is_off(v) or None), "resume_from_checkpoint resume_training"),
    **same(Refused("a resumed run goes on where it was"), "ignore_data_skip data_skip_steps"),
    "profile": callback("profiler"),
    "remote_save_url": lambda t, n, v: t.add_callback({"name": UPLOAD, "args": {"url": str(v)}}),
    **same(Refused("not to openMind's hub; see remote_save_url, or pet export --hub"), "push_to_hub hub_model_id"),
    "logging_dir": Ignored("callbacks: [tensorboard] writes below the run directory"),
    "logging_strategy": Ignored("metrics.jsonl has a line per step"),
    "disable_tqdm": Ignored("there is one line without a terminal"),
    "report_to": Ignored("name a callback instead: tensorboard, wandb, swanlab, mlflow, csv"),
    # read by the trainer itself
    **same(elsewhere, f"do_eval use_parallel load_checkpoint {' '.join(PARALLEL)}"),
    **same(elsewhere, "train_dataset_in_columns eval_dataset_in_columns"),
    "do_train": Ignored("train() and finetune() say it"),
    "do_predict": Ignored("predict() says it"),
    # how it is run
    "expert_num": Refused("there are no expert layers", harmless=(0, 1)),
    "ddp_timeout": Ignored("pet launch watches the workers"),
    **same(Refused("use set_parallel_config(optimizer_shard=True)"), "deepspeed fsdp"),
    **ENGINE,
    **same(Ignored("nothing of it changes the results"), WITHOUT_INFLUENCE),
}

STEPS_WIN = (("warmup_steps", "warmup_ratio"), ("max_steps", "num_train_epochs"))
"""As with Hugging Face."""
LIKE = "mindformers"
"""The value of ``train.warmup_like``."""


DEFAULTS = {"learning_rate": 5e-5, "warmup_steps": 0, "lr_end": 1e-6, "dataloader_drop_last": True}
"""What MindFormers' class has where nothing is said, as far as a recipe has something else."""
SHOWN = {"output_dir": "./output", "num_train_epochs": 3.0, "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 42}
SHOWN |= {**dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), 8), **DEFAULTS}
"""What scripts read of it."""
PLAIN = ("given", "rank_id", "local_rank", "device_num")
"""Attributes that are no settings: those of `build_context`."""
WITHOUT_END = ("constant", "linear", "inverse_sqrt")
"""Schedules without a last learning rate there."""
OF_SCHEDULES = {"cosine_restarts": {"train.cycles": 1}, "polynomial": {"train.power": 1.0}}
"""MindFormers' numbers of schedules that a recipe has others of."""


class TrainingArguments(ArgumentGroups):
    """Settings of a run by MindFormers' names. A field that is not given, or None, never overrides the recipe; without
    a recipe it is as MindFormers has it (`DEFAULTS`). A field set later counts for trainers that are made after it.

    Args:
        output_dir: the run directory.
        settings: ``num_train_epochs``, ``batch_size`` (rows per process), ``learning_rate``, ``warmup_steps``,
            ``weight_decay``, ``adam_beta1``, ``max_grad_norm``, ``lr_scheduler_type``, ``optim``, ``save_steps``,
            ``save_total_limit``, ``seed``, ``resume_from_checkpoint``, ``use_parallel`` and so on.

    Raises:
        InputError: an unknown name; the nearest is given.
    """

    def __init__(self, output_dir: str | None = None, **settings: Unpack[TrainingArgumentSettings]):
        unknown = [name for name, value in settings.items() if name not in TABLE and not is_off(value)]
        InputError.raise_any(f"TrainingArguments has no {name!r}{similar(name, TABLE)}" for name in unknown)
        self.given: dict[str, Any] = {}
        for name, value in {**settings, "output_dir": output_dir}.items():
            if name in TABLE:
                setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PLAIN:
            super().__setattr__(name, value)
        elif name not in TABLE:
            raise AttributeError(f"TrainingArguments has no {name!r}{similar(name, TABLE)}")
        elif value is None:
            self.given.pop(name, None)
        else:
            self.given[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in TABLE:
            raise AttributeError(f"TrainingArguments has no {name!r}{similar(name, TABLE)}")
        return self.__dict__.get("given", {}).get(name, SHOWN.get(name))

    def to_dict(self) -> dict[str, Any]:
        """What is given, and what MindFormers has where nothing is."""
        return {**SHOWN, **self.given}

    def __repr__(self) -> str:
        return f"TrainingArguments({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"


def translate_arguments(given: Mapping[str, Any], copies: int = 1, whole: bool = False) -> Translation:
    """Training arguments, by MindFormers' names, as a `Translation`.

    Args:
        copies: processes that share the batch.
        whole: whether what is not given is as in MindFormers.
    """
    translation = Translation("TrainingArguments")
    translation.put("data.packing", "longest" if whole else None)  # a text has a row of its own, there
    translation.apply(first_of({**(DEFAULTS if whole else {}), **given}, *STEPS_WIN), TABLE)
    if given.get("warmup_steps") and given.get("warmup_ratio") is not None:
        why = "warmup_steps count, as MindFormers' document says; its schedules take the ratio; give one of them"
        translation.ignore("warmup_ratio", why)
    if "lr_end" not in given:
        translation.ignored.pop("lr_end", None)
    put_of_schedule(translation)
    per_process(translation, copies, "train.batch_size")
    if "per_device_eval_batch_size" in given:  # eval_batch_size is that of all devices there, too
        per_process(translation, copies, "eval.batch_size")
    return translation


def put_of_schedule(t: Translation) -> None:
    """The numbers of a schedule as MindFormers has them, where nothing is said, and its warm-up."""
    t.put("train.warmup_like", LIKE if "train.warmup" in t.settings else None)
    if t.get("train.schedule") in WITHOUT_END:
        t.drop("train.final_ratio")
    if t.get("train.warmup") == 0:
        t.drop("train.warmup_from")
    if t.get("train.schedule") == "constant" and not 0 < t.get("train.warmup", 0) < 1:
        t.drop("train.schedule_steps")  # nothing is a share of it
    for key, value in OF_SCHEDULES.get(t.get("train.schedule"), {}).items():
        if key not in t.settings:
            t.put(key, value)
