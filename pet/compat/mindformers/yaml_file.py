"""MindFormers' YAML files as settings of a recipe."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from model_zoo.counting import layout_of
from model_zoo.errors import InputError
from pet.compat.mindformers.config import DROPOUTS
from pet.compat.mindformers.context import asks_parallel
from pet.compat.mindformers.loaders import handlers_of, put_handlers, put_texts
from pet.compat.mindformers.model_file import model_section
from pet.compat.mindformers.padding import EARLIER, put_padding
from pet.compat.mindformers.parallel import layout_in, put_pipeline, rows_of, translate_parallel
from pet.compat.mindformers.pet_config import put_method
from pet.compat.mindformers.presets import CLASSES, split_name
from pet.compat.mindformers.schedule_section import SCHEDULE, schedule_section
from pet.compat.mindformers.sizes import config_of, contradictions, dropouts, says_sizes
from pet.compat.mindformers.training_arguments import TABLE as ARGUMENTS, put_of_schedule
from pet.compat.modelarts import output_directory
from pet.compat.optimizers import ADAFACTOR_HERE, drop_unused
from pet.compat.translation import ANY_LAYOUT, EVALUATIONS, OWN_STEP, elsewhere, number, per_process, picked, same
from pet.names import model_config, preset_names
from pet.recipe.callback_names import translate_callbacks
from pet.recipe.translation import NOT_GIVEN, Ignored, Refused, Translation

LOADERS = Ignored("rows are read and packed by this library")
PLACEHOLDER = "please input"
"""How the address begins that stands in MindFormers' own files until a user gives one."""
NOT_HERE = (
    ("repeat", 1, "give runner_config.epochs"),
    ("eod_reset", False, "rows are not divided at an end token; give each document as a row of its own"),
)
"""Settings of train_dataset with what each has where nobody has changed it."""
OF_EVAL = ("data.eval_format", "data.eval_columns", "data.eval_rows", *EVALUATIONS)
"""What is said beside the data to evaluate on."""
ROWS_OF_IDS = ("MindDataset", "TFRecordDataset")
"""Types of loaders."""
KEYWORDS, BARE = "ADGenDataLoader", 3
"""The loader of KeyWordGenDataset, and the version that asks without the model's prompt."""
MARKS = {1: (1, 2)}
"""What a version of it counts in max_source_length and max_target_length beside text; others count ``[gMASK]`` and
``<sop>`` in front of the question."""
ACCELERATOR = Ignored("nothing of it changes the results")
SKIPS = Refused("no batch is left out for the norm of its gradients")


def _recompute(t: Translation, name: str, value: Any) -> None:
    if name == "recompute_config.recompute":
        t.put("train.recompute", bool(value) or None)
    if value and not (value is True and name in ("recompute_config.recompute", "recompute_config.mp_comm_recompute")):
        t.ignore("recompute_config", "layers are recomputed as a whole or not at all")


TOP = {
    **picked(ARGUMENTS, "seed eval_step_interval eval_epoch_interval resume_training only_save_strategy profile"),
    "output_dir": lambda t, n, v: t.put("output.dir", output_directory(v)),
    "processor": lambda t, n, v: _tokenizer(t, n, v),
    "vocab_file": lambda t, n, v: _tokenizer(t, n, {"tokenizer": {n: v}}),  # of research/llama3's scripts
    "moe_config": lambda t, n, v: _experts(t, n, v),
    "aicc_config": elsewhere,  # release 0.3's
    "resume_or_finetune_checkpoint": Refused("give it as load_checkpoint"),
    "load_ckpt_format": Ignored("the file itself says it"),
    "metric": Ignored("but for EmF1Metric's answers loss and perplexity are measured; eval.metrics asks for more"),
    "lr_scale": Refused("give the learning rate itself"),
    "lr_scale_factor": Ignored("lr_scale is off"),
    "layer_scale": Refused("layers share one learning rate; see train.groups"),
    "layer_decay": Ignored("layer_scale is off"),
    **same(ANY_LAYOUT, "src_strategy_path_or_dir auto_trans_ckpt transform_process_num"),
    **same(Ignored("the profiler callback has steps of its own"), "profile* init_start_profile"),
    **same(ACCELERATOR, "context parallel auto_tune filepath_prefix autotune_per_step infer local_rank device_num"),
    **same(ACCELERATOR, "trust_remote_code use_legacy kernel_launch_group infer_precision_sync train_precision_sync"),
    **same(Ignored("metrics.jsonl has the loss and the gradients' norm"), "monitor_config print_separate_loss"),
    "calculate_per_token_loss": Ignored("a loss is always the mean over the batch's tokens"),
    "check_for_nan_in_loss_and_grad": Ignored("a run ends where its loss is no number"),
    "use_graceful_exit": Ignored("a run ends by SIGTERM"),
    "use_skip_data_by_global_norm": SKIPS,
    "grouped_lr_schedule": Refused("give lr_schedule; a recipe has rates of some parameters in train.groups"),
    **same(elsewhere, "model arch trainer runner_config runner_wrapper optimizer lr_schedule parallel_config"),
    **same(elsewhere, "recompute_config train_dataset train_dataset_task eval_dataset eval_dataset_task callbacks"),
    **same(elsewhere, "eval_callbacks run_mode do_eval use_parallel load_checkpoint remote_save_url"),
    **same(elsewhere, "micro_batch_interleave_num pretrained_model_dir input_data predict_batch_size save_file"),
}
TRAINER = {
    "type": lambda t, n, v: _task(t, n, v),
    "model_name": elsewhere,
}
WRAPPER = {
    **picked(ARGUMENTS, "max_grad_norm use_clip_grad"),
    "scale_sense": Ignored("losses are scaled with train.precision: fp16 only; see train.loss_scale"),
    "use_skip_data_by_global_norm": SKIPS,
    "type": elsewhere,
    "*": OWN_STEP,
}
RUNNER = {
    **picked(ARGUMENTS, "epochs=num_train_epochs batch_size gradient_accumulation_steps"),
    **same(OWN_STEP, "sink_mode sink_size sink_per_epoch per_epoch_size"),
    **same(Refused("a resumed run goes on where it was"), "initial_epoch has_trained_epoches has_trained_steps"),
    **same(ACCELERATOR, "num_classes image_size"),
}
OPTIMIZER = {
    **picked(ARGUMENTS, "learning_rate weight_decay type=optimizer eps=adam_epsilon"),
    "betas": lambda t, n, v: t.put("train.betas", [float(one) for one in v]),
    **picked(ARGUMENTS, "beta1=adam_beta1 beta2=adam_beta2"),
    "momentum": number("train.momentum"),
}
SECTIONS = {
    "trainer": TRAINER,
    "runner_config": RUNNER,
    "runner_wrapper": WRAPPER,
    "optimizer": OPTIMIZER,
    "lr_schedule": SCHEDULE,
    "recompute_config": same(_recompute, "recompute *"),
}
# what MindFormers does in training where a section says nothing, or is not there
DEFAULTS = {
    "runner_wrapper": {"use_clip_grad": False},
    "lr_schedule": {"type": "constant", "warmup_steps": 0},
}
OF_1E8 = ("AdamW", "PmaAdamW", "Adam")
"""Optimizers whose ``eps`` is 1e-8; that of the others is 1e-6."""

ADAFACTOR = {"beta1": 0.9, "scale_parameter": True}
"""What MindSpore's has where a file does not say it; beside a schedule it does not scale."""


def translate(values: dict[str, Any], file: Path, changes: Collection[str] = ()) -> Translation:
    """A MindFormers file's settings.

    Args:
        changes: the keys that the command has put there: what the file says otherwise is noted, not refused.
    """
    t = Translation.of_file(file)
    t.apply(values, TOP)
    for name, table in SECTIONS.items():
        section = {key: value for key, value in _section(t, values, name).items() if value not in NOT_GIVEN}
        if name == "optimizer" and section:
            section = _optimizer(t, values, section)
        if name == "lr_schedule":
            section = schedule_section(t, section)
        trains = section or values.get("optimizer")
        t.apply({**(DEFAULTS.get(name, {}) if trains else {}), **section}, table, f"{name}.")
    put_of_schedule(t)
    _model(t, values, "load_checkpoint" in changes)
    drop_unused(t)
    if t.get("train.objective") == "classification":
        count = _section(t, _section(t, values, "model"), "model_config").get("num_labels", 2)
        t.put("model.config", {**(t.get("model.config") or {}), "num_labels": count})
    _layout(t, values)
    takes_labels = model_section(values).get("type") != "GPT2Config" or t.get("train.objective") == "classification"
    for name, key in (("train_dataset", "data.train"), ("eval_dataset", "data.eval")):
        _data(t, _section(t, values, name), key, takes_labels)
    if values.get("do_eval") is False and values.get("run_mode") != "eval":  # it is about training
        t.drop("data.eval", *OF_EVAL)
    if "run_mode" in changes:
        _leave_unread(t, values.get("run_mode"))
    url = values.get("remote_save_url") or _section(t, values, "aicc_config").get("obs_path")
    if str(url).lower().startswith(PLACEHOLDER):
        t.ignore("remote_save_url", "is still the placeholder, so nothing is uploaded")
        url = None
    elif url and not re.match(r"(file|obs)://|\$\{", str(url)):
        t.refuse("remote_save_url", f"{url!r}: file:///directory or obs://bucket/directory was expected")
    entries = [*(values.get("callbacks") or []), *(values.get("eval_callbacks") or [])]
    translate_callbacks(t, entries, {**values, "remote_save_url": url})
    return t


def _optimizer(t: Translation, values: Mapping[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    """The section with the class that MindFormers makes, and its numbers."""
    kind = str(section.get("type"))
    kind = "AdamWeightDecay" if kind == "adamw" else kind  # as MindFormers registers it
    kind = "Momentum" if kind.lower() == "sgd" and section.get("momentum") else kind
    if kind.lower() == "adafactor":
        for key, usual in ADAFACTOR.items():
            if section.get(key, usual) and not (key == "scale_parameter" and values.get("lr_schedule")):
                t.refuse(f"optimizer.{key}", f"{section.get(key, usual)}, as without it: {ADAFACTOR_HERE}")
    return {"eps": 1e-8 if kind in OF_1E8 else 1e-6, **section, "type": kind}


def _task(t: Translation, name: str, value: Any) -> None:
    """The trainers of texts that are continued, and of those that are judged."""
    if value == "TextClassificationTrainer":
        t.put("train.objective", "classification")
    elif value not in ("CausalLanguageModelingTrainer", "GeneralTaskTrainer"):
        t.refuse(name, f"{value!r}: only text generation and text classification")


def _leave_unread(t: Translation, mode: str | None) -> None:
    """Drops files that a trainer's call does not read and that are not there: published files have placeholders."""
    unread = {"eval": ("data.train",), "predict": ("data.train", "data.eval")}.get(str(mode), ())
    for key in unread:
        paths = t.get(key) or []
        if not paths or not all(
            Path(path).expanduser().exists() for path in ([paths] if isinstance(paths, str) else paths)
        ):
            t.drop(key, *(OF_EVAL if key == "data.eval" else ()))


def _section(t: Translation, values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section as a dictionary of its own.

    Raises:
        InputError: something else stands there.
    """
    section = values.get(name) or {}
    if not isinstance(section, Mapping):
        raise InputError(f"{t.system}: {name}: {section!r}; a section was expected")
    return dict(section)


def _model(t: Translation, values: dict[str, Any], from_command: bool) -> None:
    """Which weights, which sizes, which adapter."""
    section = _section(t, values, "model")
    config = _section(t, section, "model_config")
    trainer = _section(t, values, "trainer")
    loaded = values.get("load_checkpoint") or values.get("pretrained_model_dir")
    path, lora = split_name(loaded or config.get("checkpoint_name_or_path") or trainer.get("model_name"))
    mode = str(values.get("run_mode") or "finetune")
    preset = CLASSES.get(config.get("type"), (None, None))[1]
    if mode == "train" and not loaded and says_sizes(values) and path not in preset_names():
        path = preset or path  # a name, which says no more than the sizes do
    scratch = mode == "train" and path in preset_names()
    if scratch and says_sizes(values):
        try:
            t.put("model.config", config_of(values))
        except InputError as error:
            t.refuse("model.model_config", str(error))
        else:
            _compare(t, values, t.get("model.config"), from_command)
    if path is None:
        t.refuse("load_checkpoint", "is missing; give a Hugging Face checkpoint directory")
        return
    t.put("model.path", str(path))
    base = None
    with contextlib.suppress(InputError):  # not there; or a .ckpt file, which is read by the file's own sizes
        base = model_config(path)
    if scratch:
        t.put("model.from_scratch", True)
    elif config and base is not None:
        _compare(t, values, base, from_command)
    _dropout(t, values, t.get("model.config") or base)
    loaders = [_section(t, _section(t, values, f"{one}_dataset"), "data_loader") for one in ("train", "eval")]
    of_ids = any(loader.get("type") in ROWS_OF_IDS for loader in loaders)
    if of_ids:
        known = t.get("model.config") or base or (model_config(preset) if preset else None)
        said = ("pad_token_id", "eos_token_id", "input_sliced_sig")
        own = {name: config[name] for name in said if config.get(name) is not None}
        if known is not None:
            put_padding(t, {**known, **own}, None if base is None else path)
    if config.get("seq_length"):
        t.put("data.max_length", config["seq_length"] + of_ids)  # the last of them is only predicted
    old = _section(t, _section(t, section, "arch"), "pet")  # until 0.6
    pet = _section(t, config, "pet_config")
    pet = pet or _section(t, old, "pet_config") | {name: old[name] for name in ("pet_type",) if name in old}
    if pet:
        put_method(t, pet, config.get("type"), base or (model_config(preset) if preset else None))
    elif lora:
        for key, value in lora.items():
            t.put(f"adapter.{key}", value)
    else:
        t.put("adapter.method", "none")


def _dropout(t: Translation, values: dict[str, Any], base: Mapping[str, Any] | None) -> None:
    """Dropout of the base's own layers, which MindFormers' GPT-2 and GLM have."""
    kind, given = model_section(values).get("type"), dropouts(values)
    if kind == "GPT2Config":
        section = model_section(values)
        said = {place: section[name] for name, place in DROPOUTS.items() if name in section}
        rates = {**dict.fromkeys(DROPOUTS.values(), 0.1), **said} if said else {}
        if base is not None and layout_of(base) != "gpt2":
            t.ignore("model.model_config", f"{', '.join(given) or 'dropout'}: the base has no dropout of its own")
        elif any(rates.values()):
            t.put("train.base_dropout", {place: float(rate) for place, rate in rates.items() if rate})
    elif given and kind == "LlamaConfig":
        t.ignore("model.model_config", f"{', '.join(given)}: LLaMA has no dropout, there as here")
    elif given:
        t.refuse("model.model_config", f"{', '.join(given)}: only GPT-2's own dropout is honoured; leave them 0")


def _experts(t: Translation, name: str, value: Any) -> None:
    if ((value or {}).get("expert_num") or 1) > 1:
        t.refuse(f"{name}.expert_num", f"{value['expert_num']}: there are no expert layers")
    else:
        t.ignore(name, "there are no expert layers")


def _tokenizer(t: Translation, name: str, value: Any) -> None:
    """The directory of the vocabulary that the file names, where there is one; else the checkpoint's own."""
    if not _vocabulary(t, value):
        t.ignore(name, "the tokenizer lies beside the checkpoint")


def _vocabulary(t: Translation, section: Mapping[str, Any]) -> bool:
    """Puts the directory of the vocabulary that a section names, and gives whether there is one."""
    named = section.get("tokenizer")
    file = named.get("vocab_file") if isinstance(named, Mapping) else None
    t.put("model.tokenizer", str(Path(file).parent) if file and Path(file).is_file() else None)
    return bool(file and Path(file).is_file())


def _compare(t: Translation, values: dict[str, Any], config: Mapping[str, Any], from_command: bool) -> None:
    """The sizes are the checkpoint's; a file that says others describes another model, unless the command named it."""
    found = contradictions(values, config)
    if found and from_command:
        t.ignore("model.model_config", f"the model is that of the command: {'; '.join(found)}")
        return
    for problem in found:
        name, _, why = problem.partition(": ")
        t.refuse(f"model.model_config.{name}", why)


def _layout(t: Translation, values: dict[str, Any]) -> None:
    section = layout_in({**values, "parallel_config": _section(t, values, "parallel_config")})
    if not asks_parallel(values.get("use_parallel"), f"{t.system}: use_parallel"):
        if any(isinstance(size, int) and size > 1 for size in section.values()):
            t.ignore("parallel_config", "use_parallel is off")
        return
    layout = translate_parallel(section)
    t.take(layout, "parallel_config.")
    per_process(t, rows_of(layout, section), "train.batch_size")
    put_pipeline(t)


def _data(t: Translation, section: dict[str, Any], key: str, takes_labels: bool = True) -> None:
    loader = _section(t, section, "data_loader")
    local = loader.get("path") if Path(str(loader.get("path"))).exists() else None  # else a format, or a hub's name
    paths = loader.get("dataset_dir") or loader.get("dataset_files") or loader.get("data_files") or local
    if paths:
        t.put(key, paths)
    if key == "data.train":
        put_handlers(t, loader)
        t.put("data.max_samples", loader.get("num_samples"))
        t.put("data.shuffle", False if loader.get("shuffle") is False else None)
        t.put("data.seed", section.get("seed"))
        t.put("data.drop_last", (loader and section.get("drop_remainder", True)) or None)
        for name, usual, why in NOT_HERE:
            if section.get(name) not in (None, usual):
                t.refuse(f"train_dataset.{name}", f"{section[name]}: {why}")
    elif paths and loader.get("num_samples"):
        t.put("data.eval_rows", [f":{loader['num_samples']}"])
    names = loader.get("origin_columns") or ()
    columns = dict(zip(("prompt", "answer"), names, strict=True)) if len(names) == 2 else None
    others = key == "data.eval" and t.get("data.columns") not in (None, columns)
    if columns and (paths or not others):
        own = "eval_" if others else ""
        t.put(f"data.{own}columns", columns)
        t.put(f"data.{own}format", "prompt_completion")
    if loader.get("type") in ROWS_OF_IDS:
        unread = unread_columns(section.get("input_columns"), () if takes_labels else ("labels",))
        if key == "data.train":
            t.put("data.columns", unread or None)
        elif paths and unread != t.get("data.columns", {}):
            t.put("data.eval_columns", unread)
    known = {"data_loader", "dataset_dir", "dataset_files", "type", "shuffle", "seed", "origin_columns", "num_samples"}
    known |= {"data_files", "input_columns", "handler", "packing", "max_length"} | ({"path"} if local else set())
    if key == "data.train":
        known |= {"drop_remainder"} | put_texts(t, loader) | ({"tokenizer"} if _vocabulary(t, section) else set())
        if loader.get("type") == KEYWORDS:
            known |= _keywords(t, section, loader.get("version") or 1)
    if unknown := sorted({*section, *loader} - known):
        t.ignore(f"{key.replace('data.', '')}_dataset", f"{', '.join(unknown)}: {LOADERS.why}")
    lengths = [section.get(name) or 0 for name in ("max_source_length", "max_target_length")]
    longest = sum(lengths) + all(lengths)  # with the answer's end
    longest = longest or max((one.get("seq_length") or 0 for one in handlers_of(loader)), default=0)
    longest = longest or loader.get("max_length")
    if longest and "data.max_length" not in t.settings:
        t.put("data.max_length", longest)


def _keywords(t: Translation, section: Mapping[str, Any], version: Any) -> set[str]:
    """How KeyWordGenDataset makes rows of questions and answers; gives the keys that this reads."""
    lengths = {"max_prompt": "max_source_length", "max_answer": "max_target_length"}
    for (name, key), marks in zip(lengths.items(), MARKS.get(version, (2, 0)), strict=True):
        if isinstance(length := section.get(key), int) and length > marks:
            t.put(f"data.{name}", length - marks)
    if version == BARE:
        t.put("data.template", "{prompt}")
    return {*lengths.values(), "version"}


def unread_columns(named: Any, never: Collection[str] = ()) -> dict[str, str]:
    """``data.columns`` of rows of ids, of which only those that ``input_columns`` names are read; all without it."""
    read = {EARLIER.get(name, name) for name in named or ()} - {*never}
    return {name: "" for name in ("labels", "attention_mask") if read and name not in read}
