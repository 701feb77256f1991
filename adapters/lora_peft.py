"""LoRA's settings under the names of PEFT's adapter_config.json, both ways."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np

from adapters.initial import START
from adapters.matching import as_list, chosen_sites, is_glob, named, pattern_value
from adapters.replacement import own_parameters, plain_cells
from adapters.sites import weight_of
from model_zoo.errors import InputError

# Settings that change the result and that nothing here computes: refused unless they are off.
UNSUPPORTED = (
    "alora_invocation_tokens",
    "arrow_config",
    "ensure_weight_tying",
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
    "eva_config": None,
    "layers_pattern": None,
    "loftq_config": {},
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    **dict.fromkeys(UNSUPPORTED),
    **dict.fromkeys(("ensure_weight_tying", "lora_bias", "use_qalora"), False),
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
# Starting points that change the base weight in a way that the file does not record.
LOST_START = ("corda", "loftq", "lora_ga")
BASE_LAYER = ".base_layer."


def targets_from_peft(value, key: str):
    """PEFT's list of names, or its regular expression, as our targets."""
    if value is None or value == "all-linear":
        return value
    if isinstance(value, str):
        check_expression(key, value)
        return "re:" + value
    if not isinstance(value, (list, tuple, set)) or not all(isinstance(entry, str) for entry in value):
        raise InputError(f"{key} is {value!r}; a list of names or a regular expression was expected")
    return sorted(value)


def check_expression(key: str, text) -> None:
    """Raises InputError for an expression in a file that could take for ever: a repeated group that ends in a repeat
    backtracks through exponentially many ways to fail."""
    if not isinstance(text, str) or len(text) > 10_000 or re.search(r"[*+}][?+]?\)+[*+{]", text):
        raise InputError(f"{key}: {str(text)[:80]!r} repeats a repeat, or is no expression; name the cells instead")


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
    for key in ("use_rslora", "use_dora", "fan_in_fan_out", "ensure_weight_tying"):
        if not isinstance(values.get(key, False), (bool, type(None))):
            raise InputError(f"{key} is {values[key]!r}; true or false was expected")
    saved = values.get("modules_to_save")
    if saved is not None and not (isinstance(saved, list) and all(isinstance(name, str) and name for name in saved)):
        raise InputError(f"modules_to_save is {saved!r}; a list of names was expected")
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(values.get(key) or {}, dict):
            raise InputError(f"{key} is {values[key]!r}; {{regular expression: value}} was expected")
        for expression in values.get(key) or {}:
            check_expression(key, expression)
    return {
        "rank": values.get("r", 8),
        "alpha": values.get("lora_alpha", 8),
        "dropout": values.get("lora_dropout", 0.0),
        "targets": targets_from_peft(values.get("target_modules"), "target_modules"),
        "exclude": targets_from_peft(values.get("exclude_modules"), "exclude_modules"),
        "layers": values.get("layers_to_transform"),
        "modules_to_save": saved,
        "rank_pattern": values.get("rank_pattern") or None,
        "alpha_pattern": values.get("alpha_pattern") or None,
        "use_rslora": bool(values.get("use_rslora", False)),
        "use_dora": bool(values.get("use_dora", False)),
        "init": init_from_peft(values.get("init_lora_weights", True)),
        "bias": values.get("bias", "none"),
        "trainable_tokens": values.get("trainable_token_indices"),
    }


def init_from_peft(value) -> str:
    """Our name for PEFT's ``init_lora_weights``.

    It matters for a file in PEFT's own PiSSA or OLoRA form, where the base weight is meant to be without the first
    product. Other starting points left the base alone, so that the factors in the file say everything.
    """
    if isinstance(value, str) and value.lower() in LOST_START:
        raise InputError(
            f"init_lora_weights is {value!r}: the adapter belongs to a changed base, which the file does not describe; "
            "save it in PEFT with path_initial_model_for_weight_conversion"
        )
    if isinstance(value, str) and value.startswith("pissa_niter_"):
        warnings.warn(f"init_lora_weights {value!r}: the exact singular vectors are used", stacklevel=2)
        return "pissa"
    if not isinstance(value, (str, bool, type(None))):
        raise InputError(f"init_lora_weights is {value!r}; true, false or a name was expected")
    return value if value in ("gaussian", *START) else "default"


def to_peft(config, model, adapter) -> dict[str, Any]:
    """The settings as PEFT writes them. What a glob or a group named is written as the cells it found.

    PiSSA and OLoRA are written as the plain LoRA of twice the rank that they are on the unchanged base (`pack`).
    """
    paths = [path for path in adapter.sites if path not in adapter.companions]
    doubled = config.init in START
    ranks, growth = (2, math.sqrt(2) if config.use_rslora else 2) if doubled else (1, 1)
    explicit = config.layers is None and config.exclude is None
    return {
        **DEFAULTS,
        "r": config.rank * ranks,
        "lora_alpha": config.alpha * growth,
        "lora_dropout": config.dropout,
        "target_modules": targets_to_peft(config.targets or default_names(paths), paths) if explicit else sorted(paths),
        "exclude_modules": None,
        "layers_to_transform": None,
        "modules_to_save": saved_whole(config, model),
        "rank_pattern": {key: value * ranks for key, value in (config.rank_pattern or {}).items()},
        "alpha_pattern": {key: value * growth for key, value in (config.alpha_pattern or {}).items()},
        "use_rslora": config.use_rslora,
        "use_dora": config.use_dora,
        "init_lora_weights": config.init if config.init == "gaussian" else True,
        "bias": config.bias,
        "trainable_token_indices": config.trainable_tokens,
        "fan_in_fan_out": any(site.transposed for site in adapter.sites.values()),
    }


def default_names(paths: list[str]) -> list[str]:
    """The last names of the adapted cells."""
    return sorted({path.rsplit(".", 1)[-1] for path in paths})


def saved_whole(config, model) -> list[str] | None:
    """modules_to_save for PEFT, which takes an entry for any cell whose path ends with it, dot or no dot: what would
    mean more there than here is written as whole paths."""
    if not config.modules_to_save:
        return config.modules_to_save
    paths = [path for path, cell in plain_cells(model) if own_parameters(cell)]
    written = []
    for entry in config.modules_to_save:
        meant = [path for path in paths if named(path, entry)]
        more = any(path.endswith(entry) and path not in meant for path in paths)
        written += meant if more else [entry]
    return written


def resolve_saved(config, model, names) -> None:
    """Names in full what PEFT's looser reading of modules_to_save meant, as the tensors in the file show."""
    entries = list(config.modules_to_save or [])
    for path, cell in plain_cells(model) if entries else ():
        if own_parameters(cell) and not any(named(path, entry) for entry in entries):
            in_file = any(f"{path}.{attribute}" in names for attribute in own_parameters(cell))
            if in_file and any(path.endswith(entry) for entry in entries):
                config.modules_to_save = [*config.modules_to_save, path]


def pack(arrays: dict[str, np.ndarray], adapter) -> dict[str, np.ndarray]:
    """The adapter's arrays under PEFT's names and in PEFT's form.

    PEFT calls the bias of an adapted cell ``<cell>.base_layer.bias``. It has no place for the first factors of PiSSA
    and OLoRA, which it takes off the base: ``[B, −B₀]`` and ``[A; A₀]`` are the same change on the unchanged base.
    """
    packed = {}
    for key, array in arrays.items():
        path, _, last = key.rpartition(".")
        if last == "bias" and path in adapter.modules:
            key = path + BASE_LAYER + last
        packed[key] = array
    for path, module in adapter.modules.items():
        if hasattr(module, "initial_A"):  # PiSSA, OLoRA
            a, b = f"{path}.lora_A.weight", f"{path}.lora_B.weight"
            packed[a] = np.concatenate([packed[a], module.initial_A.weight.asnumpy()], 0)
            packed[b] = np.concatenate([packed[b], -module.initial_B.weight.asnumpy()], 1)
    return packed


def unpack(arrays: dict[str, np.ndarray], model) -> dict[str, np.ndarray]:
    """A file's arrays under our names.

    PEFT puts the whole base weight of an adapted embedding or head beside its factors. It is dropped when it is this
    model's; another one would silently change the result.
    """
    cells = dict(model.cells_and_names())
    plain = {}
    for key, array in arrays.items():
        path, found, last = key.rpartition(BASE_LAYER)
        if not found:
            plain[key] = array
        elif last == "bias":
            plain[f"{path}.bias"] = array
        elif last == "weight" and path in cells and weight_of(cells[path]) is not None:
            base = weight_of(cells[path])
            if tuple(base.shape) != array.shape or not np.array_equal(base.astype("float32").asnumpy(), array):
                raise InputError(
                    f"{key}: the file brings a base weight of its own {array.shape}, which is not this model's "
                    f"{tuple(base.shape)}"
                )
        else:
            plain[key] = array
    return plain


def check_ranks(config, model, tensors, where) -> None:
    """Raises InputError where the configuration's ranks are not those of the file's factors.

    Nothing has been allocated by then, so an absurd rank costs nothing. A cell that the file has no factors for is not
    given a higher rank than the file has anywhere.
    """
    problems, largest, seen = [], 0, set()
    for key, info in tensors.items():
        for suffix in (".lora_A.weight", ".lora_embedding_A"):
            if key.endswith(suffix):
                path = key[: -len(suffix)]
                rank = pattern_value(config.rank_pattern, path, config.rank)
                if not info.shape or info.shape[0] != rank:
                    problems.append(f"{where}: {key} has shape {info.shape}, but the configuration says rank {rank}")
                seen.add(path)
                largest = max(largest, info.shape[0] if info.shape else 0)
    if not seen:
        raise InputError(f"{where}: the file holds no LoRA tensors")
    for site in chosen_sites(model, config):
        if site.path not in seen and config.rank_at(site.path) > largest:
            problems.append(f"{where}: no factors for {site.path}, which would have rank {config.rank_at(site.path)}")
    if problems:
        raise InputError.collect(problems[:10])
