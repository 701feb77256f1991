"""LoRA's settings under the names of PEFT's adapter_config.json, both ways."""

from __future__ import annotations

from typing import Any

from adapters.matching import as_list, is_glob, pattern_value
from model_zoo.errors import InputError

# Settings that change the result and that nothing here computes: refused unless they are off.
UNSUPPORTED = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "target_parameters",
    "use_bdlora",
    "use_qalora",
    "velora_config",
)
# What PEFT writes when nothing else is asked for.
DEFAULTS: dict[str, Any] = {
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "layers_pattern": None,
    "loftq_config": {},
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    **dict.fromkeys(UNSUPPORTED),
    **dict.fromkeys(("lora_bias", "use_bdlora", "use_qalora"), False),
}
MAPPED = (
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "trainable_token_indices",
    "use_dora",
    "use_rslora",
)
KEYS = tuple(DEFAULTS) + MAPPED
INIT_TO_PEFT = {"default": True, "gaussian": "gaussian", "pissa": "pissa", "olora": "olora"}


def targets_from_peft(value, key: str):
    """PEFT's list of names, or its regular expression, as our targets."""
    if value is None or value == "all-linear":
        return value
    if isinstance(value, str):
        return "re:" + value
    if not isinstance(value, (list, tuple, set)) or not all(isinstance(entry, str) for entry in value):
        raise InputError(f"{key} is {value!r}; a list of names or a regular expression was expected")
    return sorted(value)


def targets_to_peft(entries, paths: list[str]):
    """Our targets as PEFT's: names stay, a single expression becomes its string, anything else the list of cells."""
    entries = as_list(entries)
    plain = all(not is_glob(entry) and not entry.startswith("re:") for entry in entries)
    groups = {"attention", "mlp", "all-linear"} & set(entries)
    if entries and plain and not groups:
        return sorted(entries)
    if len(entries) == 1 and entries[0].startswith("re:"):
        return entries[0][3:]
    return sorted(paths)


def from_peft(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `LoRAConfig` for an adapter_config.json.

    Raises:
        InputError: a setting that changes the result and is not supported, or a value of the wrong type.
    """
    used = [key for key in UNSUPPORTED if values.get(key)]
    if used:
        raise InputError(f"{', '.join(used)} set to {', '.join(repr(values[key]) for key in used)}: not supported")
    init = values.get("init_lora_weights", True)
    if isinstance(init, str) and init.startswith("pissa"):
        init = "pissa"
    return {
        "rank": values.get("r", 8),
        "alpha": values.get("lora_alpha", 8),
        "dropout": values.get("lora_dropout", 0.0),
        "targets": targets_from_peft(values.get("target_modules"), "target_modules"),
        "exclude": targets_from_peft(values.get("exclude_modules"), "exclude_modules"),
        "layers": values.get("layers_to_transform"),
        "modules_to_save": values.get("modules_to_save"),
        "rank_pattern": values.get("rank_pattern") or None,
        "alpha_pattern": values.get("alpha_pattern") or None,
        "use_rslora": bool(values.get("use_rslora", False)),
        "use_dora": bool(values.get("use_dora", False)),
        "init": init if init in ("gaussian", "pissa", "olora") else "default",
        "bias": values.get("bias", "none"),
        "trainable_tokens": values.get("trainable_token_indices"),
    }


def to_peft(config, adapter) -> dict[str, Any]:
    """The settings as PEFT writes them. What a glob or a group named is written as the cells it found."""
    paths = list(adapter.sites)
    explicit = config.layers is None and config.exclude is None
    return {
        **DEFAULTS,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": targets_to_peft(config.targets or default_names(adapter), paths)
        if explicit
        else sorted(paths),
        "exclude_modules": None,
        "layers_to_transform": None,
        "modules_to_save": config.modules_to_save,
        "rank_pattern": config.rank_pattern or {},
        "alpha_pattern": config.alpha_pattern or {},
        "use_rslora": config.use_rslora,
        "use_dora": config.use_dora,
        "init_lora_weights": INIT_TO_PEFT[config.init],
        "bias": config.bias,
        "trainable_token_indices": config.trainable_tokens,
        "fan_in_fan_out": any(site.transposed for site in adapter.sites.values()),
    }


def default_names(adapter) -> list[str]:
    """The last names of the adapted cells."""
    return sorted({path.rsplit(".", 1)[-1] for path in adapter.sites})


def check_ranks(config, tensors, where) -> None:
    """Raises InputError where a factor in the file has another rank than the configuration says; nothing has been
    allocated by then, so an absurd rank costs nothing."""
    problems = []
    for key, info in tensors.items():
        for suffix, axis in ((".lora_A.weight", 0), (".lora_embedding_A", 0)):
            if key.endswith(suffix):
                rank = pattern_value(config.rank_pattern, key[: -len(suffix)], config.rank)
                if not info.shape or info.shape[axis] != rank:
                    problems.append(f"{where}: {key} has shape {info.shape}, but the configuration says rank {rank}")
    if problems:
        raise InputError.collect(problems[:10])
    if not any(".lora_" in key for key in tensors):
        raise InputError(f"{where}: the file holds no LoRA tensors")
