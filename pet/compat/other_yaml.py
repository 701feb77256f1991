"""LoRA job files of LLaMA-Factory and axolotl, their common keys, as settings of a recipe.

A key that a file leaves out has that system's default, not ours: what it says is what is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_json
from model_zoo.errors import InputError
from pet.compat.mindformers.training_arguments import STEPS_WIN
from pet.compat.mindformers.training_arguments import TABLE as ARGUMENTS
from pet.compat.translation import OPTIMIZERS, SCHEDULES, choice, elsewhere, first_of, flag, number
from pet.recipe.translation import Ignored, Refused, Translation

SPEED = Ignored("it changes speed or memory, not the result")
LOGS = Ignored("metrics.jsonl and loss.png are written in any case")
QUANTISED = Refused("weights are not quantised here", harmless=(None, False, 0, "none"))
MODEL = Ignored("the checkpoint's own files say it")
HOME = Ignored("tokenised data is kept in data.cache_dir")


def _targets(t: Translation, name: str, value: Any) -> None:
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) else list(value)
    t.put("adapter.targets", ["all-linear" if word in ("all", "all-linear") else word for word in words])


# templates of the families here: what their own tokenizers make of a conversation
TEMPLATES = ("default", "empty", "llama2", "llama3", "mistral", "qwen", "chatglm2", "chatglm3", "glm4")


def _template(t: Translation, name: str, value: Any) -> None:
    if value not in TEMPLATES:
        t.refuse(name, f"{value!r}: the prompt is that of the model's own tokenizer, or data.template")
    else:
        t.ignore(name, "the prompt is that of the model's own tokenizer; data.template puts another in its place")


LLAMA_FACTORY = {
    **ARGUMENTS,
    "model_name_or_path": "model.path",
    "adapter_name_or_path": "adapter.load",
    "stage": Refused("only supervised tuning and pre-training (sft, pt)", harmless=(None, "sft", "pt")),
    "finetuning_type": Refused("lora and full are supported", harmless=(None, "lora", "full")),
    "lora_target": _targets,
    "lora_rank": "adapter.rank",
    "lora_alpha": number("adapter.alpha"),
    "lora_dropout": number("adapter.dropout"),
    "additional_target": lambda t, n, v: t.put("adapter.modules_to_save", v.split(",") if isinstance(v, str) else v),
    "use_rslora": "adapter.use_rslora",
    "use_dora": flag("adapter.method", "dora"),
    "pissa_init": flag("adapter.init", "pissa"),
    "loraplus_lr_ratio": number("train.lora_plus_ratio"),
    "dataset": elsewhere,
    "eval_dataset": elsewhere,
    "dataset_dir": elsewhere,
    "template": _template,
    "default_system": "data.system",
    "cutoff_len": "data.max_length",
    "max_samples": "data.max_samples",
    "val_size": lambda t, n, v: t.put("data.eval_fraction", float(v)) if v < 1 else t.refuse(n, "a share below 1"),
    "packing": lambda t, n, v: t.put("data.packing", "pack" if v else "longest"),
    "neat_packing": flag("data.packing", "pack"),
    "train_on_prompt": flag("data.train_on", "all"),
    "mask_history": flag("data.train_on", "last"),
    "streaming": "data.streaming",
    "preprocessing_num_workers": "data.workers",
    "overwrite_cache": HOME,
    "plot_loss": LOGS,
    "flash_attn": SPEED,
    "use_unsloth": SPEED,
    "enable_liger_kernel": SPEED,
    "pure_bf16": flag("train.precision", "bf16"),
    "quantization_bit": QUANTISED,
    "quantization_method": Ignored("quantization_bit is off"),
    "rope_scaling": Refused("positions are those of the checkpoint's config.json; see model.config"),
    "trust_remote_code": MODEL,
    "save_only_model": Refused("checkpoints can be resumed from"),
    "predict_with_generate": lambda t, n, v: t.put("eval.metrics", ["loss", "perplexity", "rouge_l", "bleu"]),
}
LLAMA_FACTORY_DEFAULTS = {
    "train.learning_rate": 5e-5,
    "train.batch_size": 8,
    "train.epochs": 3.0,
    "train.schedule": "linear",
    "train.warmup": 0,
    "data.max_length": 2048,
    "data.packing": "longest",
    "eval.batch_size": 8,
}


def llama_factory(values: dict[str, Any], file: Path) -> Translation:
    """A LLaMA-Factory file's settings."""
    t = Translation.of_file(file)
    full = values.get("finetuning_type") == "full"
    t.put("adapter.method", "none" if full else "lora")
    t.settings.update(LLAMA_FACTORY_DEFAULTS)
    if not full:
        t.put("adapter.targets", ["all-linear"])
        t.put("adapter.alpha", 2.0 * values.get("lora_rank", 8))
    given = first_of(values, *STEPS_WIN)
    if (values.get("max_steps") or -1) > 0:
        t.settings.pop("train.epochs")
    if full:
        given = {name: value for name, value in given.items() if not name.startswith("lora_")}
    t.apply(given, LLAMA_FACTORY)
    if values.get("stage") == "pt":
        t.put("data.train_on", "all")
    home = Path(values.get("dataset_dir") or "data")
    for name, key in (("dataset", "data.train"), ("eval_dataset", "data.eval")):
        if values.get(name):
            words = values[name].split(",") if isinstance(values[name], str) else values[name]
            t.put(key, [_dataset(t, home, str(word).strip()) for word in words])
    return t


def _dataset(t: Translation, home: Path, name: str) -> str:
    """A data set's file, by LLaMA-Factory's list of them or as a path."""
    index = home / "dataset_info.json"
    try:
        entry = read_json(index).get(name) if index.is_file() else None
    except InputError as error:
        t.refuse("dataset_dir", str(error))
        return name
    if not isinstance(entry, Mapping):
        return name if Path(name).exists() else str(home / name)
    if "file_name" not in entry:
        t.refuse("dataset", f"{name}: nothing is downloaded; give a file")
        return name
    columns = entry.get("columns") or {}
    ours = {"prompt": "prompt", "query": "input", "response": "answer", "system": "system", "history": "history"}
    known = {ours[key]: value for key, value in columns.items() if key in ours}
    if known:
        t.put("data.columns", known)
    return str(home / entry["file_name"])


def _axolotl_data(t: Translation, name: str, value: Any) -> None:
    kinds = {"alpaca": "alpaca", "completion": "text", "sharegpt": "sharegpt", "chat_template": "chat"}
    paths, formats = [], set()
    for entry in value:
        entry = dict(entry)
        path, kind = entry.pop("path", None), str(entry.pop("type", "alpaca"))
        files = entry.pop("data_files", None)
        paths += [files] if isinstance(files, str) else files or [path]
        if kind not in kinds:
            t.refuse(f"{name}.type", f"{kind!r} is not supported; known: {', '.join(kinds)}")
        formats.add(kinds.get(kind, "auto"))
        if set(entry) - {"ds_type", "split", "name"}:
            t.refuse(name, f"{', '.join(sorted(set(entry) - {'ds_type', 'split', 'name'}))}: see data.columns")
    t.put("data.train" if name == "datasets" else "data.eval", paths)
    if name == "datasets":
        t.put("data.format", formats.pop() if len(formats) == 1 else "auto")


def _special_tokens(t: Translation, name: str, value: Any) -> None:
    if set(value) - {"pad_token"}:
        t.refuse(name, f"{', '.join(sorted(value))}: the tokenizer keeps its own")
    else:
        t.ignore(name, "padding is masked, whatever token it is")


AXOLOTL = {
    "base_model": "model.path",
    "base_model_config": MODEL,
    "model_type": MODEL,
    "tokenizer_type": MODEL,
    "tokenizer_config": "model.tokenizer",
    "trust_remote_code": MODEL,
    "is_llama_derived_model": MODEL,
    "special_tokens": _special_tokens,
    "adapter": Refused("lora is supported; weights are not quantised", harmless=(None, "", "lora")),
    "lora_model_dir": "adapter.load",
    "lora_r": "adapter.rank",
    "lora_alpha": number("adapter.alpha"),
    "lora_dropout": number("adapter.dropout"),
    "lora_target_modules": _targets,
    "lora_target_linear": flag("adapter.targets", ["all-linear"]),
    "lora_modules_to_save": "adapter.modules_to_save",
    "lora_fan_in_fan_out": MODEL,
    "peft_use_dora": flag("adapter.method", "dora"),
    "peft_use_rslora": "adapter.use_rslora",
    "loraplus_lr_ratio": number("train.lora_plus_ratio"),
    "load_in_8bit": QUANTISED,
    "load_in_4bit": QUANTISED,
    "datasets": _axolotl_data,
    "test_datasets": _axolotl_data,
    "dataset_prepared_path": HOME,
    "val_set_size": lambda t, n, v: t.put("data.eval_fraction", float(v)) if v < 1 else t.refuse(n, "a share below 1"),
    "sequence_len": "data.max_length",
    "sample_packing": lambda t, n, v: t.put("data.packing", "pack" if v else "longest"),
    "eval_sample_packing": SPEED,
    "pad_to_sequence_len": SPEED,
    "group_by_length": flag("data.packing", "buckets"),
    "train_on_inputs": flag("data.train_on", "all"),
    "micro_batch_size": "train.batch_size",
    "eval_batch_size": "eval.batch_size",
    "gradient_accumulation_steps": "train.accumulation",
    "num_epochs": number("train.epochs"),
    "max_steps": "train.steps",
    "optimizer": choice("train.optimizer", {**OPTIMIZERS, "paged_adamw_8bit": "adamw", "adamw_apex_fused": "adamw"}),
    "lr_scheduler": choice("train.schedule", SCHEDULES),
    "learning_rate": number("train.learning_rate"),
    "warmup_steps": "train.warmup",
    "warmup_ratio": number("train.warmup"),
    "weight_decay": number("train.weight_decay"),
    "max_grad_norm": number("train.clip_norm"),
    "neftune_noise_alpha": number("train.neftune_alpha"),
    "seed": "train.seed",
    "bf16": lambda t, n, v: t.put("train.precision", "bf16") if v is True else None,
    "fp16": lambda t, n, v: t.put("train.precision", "fp16") if v is True else None,
    "tf32": SPEED,
    "gradient_checkpointing": flag("train.recompute"),
    "gradient_checkpointing_kwargs": SPEED,
    "output_dir": "output.dir",
    "logging_steps": "train.log_every",
    "eval_steps": lambda t, n, v: t.put("eval.every_steps", v) if v >= 1 else t.refuse(n, "a number of steps"),
    "evals_per_epoch": lambda t, n, v: t.put("eval.every_epochs", 1.0 / v) if v else None,
    "save_steps": lambda t, n, v: t.put("train.save_every", v) if v >= 1 else t.refuse(n, "a number of steps"),
    "saves_per_epoch": Ignored("give save_steps; a checkpoint is written at the end"),
    "save_total_limit": "train.keep_last",
    "early_stopping_patience": "eval.patience",
    "flash_attention": SPEED,
    "xformers_attention": SPEED,
    "sdp_attention": SPEED,
    "s2_attention": Refused("every token sees all tokens before it"),
    "local_rank": SPEED,
    "strict": Ignored("checkpoints are always read strictly"),
    "save_safetensors": Ignored("adapters are always safetensors"),
    "resume_from_checkpoint": flag("train.resume"),
    "auto_resume_from_checkpoints": flag("train.resume"),
    "debug": LOGS,
    "deepspeed": Refused("see parallel.shard_optimizer"),
    "fsdp": Refused("see parallel.shard_optimizer", harmless=(None, [], "")),
    "fsdp_config": Ignored("fsdp is off"),
    **{f"wandb_{name}": LOGS for name in ("project", "entity", "watch", "name", "log_model", "run_id", "mode")},
}
AXOLOTL_DEFAULTS = {
    "train.batch_size": 1,
    "train.epochs": 1.0,
    "train.schedule": "cosine",
    "train.warmup": 0.03,
    "data.max_length": 512,
    "data.packing": "longest",
}


def axolotl(values: dict[str, Any], file: Path) -> Translation:
    """An axolotl file's settings."""
    t = Translation.of_file(file)
    t.put("adapter.method", "lora" if values.get("adapter") else "none")
    t.settings.update(AXOLOTL_DEFAULTS)
    given = first_of(values, ("max_steps", "num_epochs"), ("eval_steps", "evals_per_epoch"))
    if not values.get("adapter"):
        given = {name: value for name, value in given.items() if not name.startswith("lora_")}
    if values.get("max_steps"):
        t.settings.pop("train.epochs")
    t.apply(given, AXOLOTL)
    if not (t.get("data.eval") or t.get("data.eval_fraction")):
        for key in ("eval.every_steps", "eval.every_epochs"):
            t.settings.pop(key, None)
    return t
