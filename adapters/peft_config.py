"""PEFT's adapter_config.json, read and checked; without MindSpore.

Loading into a model (`adapters.saving`) and merging on disk (`adapters.stored`) both read it here, so that what one
refuses the other refuses too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from adapters.adalora import ADALORA, shown_as
from adapters.file_names import PREFIX, AdapterFile
from adapters.initial import START
from adapters.patterns import as_list, check_expression
from adapters.peft_others import CHECKPOINT, WAYS
from adapters.schema import Settings, token_ids
from adapters.settings import LoRA
from model_zoo.atomic import no_directory, read_json
from model_zoo.checkpoint.digests import check_beside
from model_zoo.checkpoint.safetensors_io import SafetensorsFile
from model_zoo.checkpoint.wrappers import unstacked
from model_zoo.errors import InputError, similar, warn_caller, warn_once
from model_zoo.labels import SCORE

Method = TypeVar("Method", bound=Settings)
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_WEIGHTS = (WEIGHTS, "adapter_model.bin")
"""What the tensor file is called now, and what PEFT before 0.7 called it."""
VALUE_HEADS = ("value_head.safetensors", "value_head.bin")
"""What LLaMA-Factory writes beside the adapter of a model with TRL's value head."""
FINGERPRINT, QUANTIZATION, STARTED_BY, LABELS = "base_fingerprint", "base_quantization", "init", "labels"
"""What an adapter's tensor file says in its metadata: of the base, how it was started where that matters, and what the
numbers of its head mean (`model_zoo.labels.Labels.read`)."""
TASK_SCORE = "SEQ_CLS"
"""The ``task_type`` of an adapter with a head that judges texts (`adapters.score`)."""
TASKS = (TASK_SCORE, "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION")
"""Other tasks of PEFT than text generation, on models of these families."""
OF_TASKS = re.compile(r"((score|classifier|qa_outputs)\.(weight|bias))|(encoder\.)?(layers|h)\.\d+\..*")
"""Names of what such models alone have: heads, and layers of a model that has none."""

COMMON_KEYS = ("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "revision", "task_type")
"""Keys that every adapter_config.json has."""
VERSION = ("peft_version", "runtime_config", "merge_weights")
"""Keys of how it was written and is to be run, which change no number."""


# Settings of LoRA that change the result and that nothing here computes, and what they do: refused unless they are off.
UNSUPPORTED = {
    "alora_invocation_tokens": "the adapter works behind these tokens alone",
    "arrow_config": "each token chooses among several adapters",
    "kasa_config": "the base is truncated, and a diagonal stands between the factors",
    "layer_replication": "layers of the base stand there several times",
    "lora_bias": "B has a bias",
    "monteclora_config": "A has noise while it is trained",
    "target_parameters": "parameters that are no cell's weight are adapted",
    "use_bdlora": "the factors are block-diagonal",
    "use_qalora": "A sees sums over groups of a GPTQ base's inputs (on any other base it is off, and may be removed)",
    "velora_config": "A's gradients are approximations",
}
# Settings of LoRA and IA3 that came after PEFT 0.4, each with what it is, in every version, where it is left out.
LATER: dict[str, Any] = {
    **dict.fromkeys((*UNSUPPORTED, "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules")),
    **dict.fromkeys(("loftq_config", "lora_ga_config", "megatron_config")),
    **dict.fromkeys(("alpha_pattern", "rank_pattern", "trainable_token_indices", "use_dora", "use_rslora")),
    "megatron_core": "megatron.core",
    "qalora_group_size": 16,
}
# Starting points that change the base weight in a way that the file does not record; pissa_niter_… by what is drawn.
LOST_START = ("corda", "loftq", "lora_ga", "pissa_niter_")


def read_adapter_config(directory: str | Path, supported: Collection[str]) -> dict[str, Any]:
    """The dictionary in an adapter directory's adapter_config.json, checked as far as no model is needed.

    Raises:
        InputError: no such directory or file, no JSON object, or a ``peft_type`` that is none of `supported`; or it
            lies in a training checkpoint and is not what was written there.
    """
    directory = Path(directory)
    if not directory.is_dir():
        named = len(directory.parts) == 2 and not directory.is_absolute() and not directory.exists()  # owner/name
        way = f"; from a hub it is fetched first: hf download {directory} --local-dir DIR" if named else ""
        raise InputError(f"{directory}: {no_directory(directory)}; an adapter directory was expected{way}")
    if not (directory / CONFIG).exists() and (directory / "adapter" / CONFIG).is_file():
        raise InputError(f"{directory}: is a run directory; its adapter is {directory / 'adapter'}")
    if not (directory / CONFIG).exists() and (
        below := sorted(str(one.parent) for one in directory.glob(f"*/{CONFIG}"))
    ):
        raise InputError(f"{directory}: holds no {CONFIG} itself; adapter directories in it are {', '.join(below)}")
    check_beside(directory)
    values = read_json(directory / CONFIG, "a PEFT adapter configuration")
    kind = values.get("peft_type")
    if not isinstance(kind, str) or kind not in (*supported, ADALORA):
        named = f"{directory / CONFIG}: peft_type is {kind!r}; supported: {', '.join(sorted(supported))}"
        if isinstance(kind, str):
            named += f"; {WAYS[kind]}" if kind in WAYS else similar(kind, supported)
        raise InputError(named)
    for head in (directory / name for name in VALUE_HEADS):
        if head.exists():
            # a configuration is read before a base is loaded, too
            warn_once(f"{head}: is not read: the head of a reward or value model that belongs to this adapter")
    if shown_as(values):
        with open_weights(directory, values) as file:
            return file.values
    return values


ALL_THE_SAME = "strict=False (--no-strict of pet merge, evaluate, predict, chat) takes it all the same"


def another_base(directory: str | Path, expected: str, here: object, found: str) -> str:
    """What to say of an adapter whose base has another fingerprint than the one at hand."""
    named = read_json(Path(directory) / CONFIG).get("base_model_name_or_path")
    return (
        f"{directory}: made on another base{f', {named}' if named else ''} (fingerprint {expected[:8]}; {here} has "
        f"{found[:8]})"
    )


def weights_file(directory: str | Path) -> Path | None:
    """An adapter directory's tensor file; None where there is none."""
    found = (Path(directory) / name for name in ADAPTER_WEIGHTS)
    return next((path for path in found if path.is_file()), None)


def open_weights(directory: str | Path, values: dict[str, Any] | None = None) -> SafetensorsFile:
    """An adapter directory's tensors, under LoRA's names where they come to a LoRA (`shown_as`).

    Raises:
        InputError: the file is missing or corrupt, or the configuration does not describe it.
    """
    where = Path(directory) / CONFIG
    path = weights_file(directory)
    if path is None:
        raise InputError(f"{directory}: holds no {WEIGHTS}")
    values = values or read_json(where, "a PEFT adapter configuration")
    if (form := shown_as(values)) is None:
        file = AdapterFile(path)
        file.tensors = unstacked(file.tensors, file.made)
        check_task(file, values.get("task_type"))
        return file
    try:
        return form(path, values, PREFIX)
    except InputError as error:
        raise error if str(directory) in str(error) else InputError(f"{where}: {error}") from None
    except (TypeError, ValueError, AttributeError, ZeroDivisionError, re.error) as error:
        raise InputError(f"{where}: a value of the wrong type ({error})") from None


def with_one_head(modules_to_save: Collection[str] | None) -> list[str]:
    """What is trained whole besides `SCORE`: PEFT lists every name that a head may have."""
    return [name for name in modules_to_save or () if name != "classifier"]


def check_task(file: SafetensorsFile, task: object) -> None:
    """Refuses what belongs to a model for another task than text generation and the classification of texts."""
    for key, info in file.tensors.items() if task in TASKS else ():
        name = whole_name(key)
        if OF_TASKS.fullmatch(name) and (task, name) != (TASK_SCORE, f"{SCORE}.weight"):
            raise InputError(
                f"{file.path}: task_type is {task}: {name} {info.shape} is part of no model for text generation, and "
                "no classifier's head, score.weight"
            )


def whole_name(key: str) -> str:
    """The base's name of a tensor in an adapter's file: that of the weight which is there in full, whatever PEFT puts
    around it. Other tensors keep what makes them part of an adapter."""
    name = key.removeprefix(PREFIX).replace(".token_adapter.base_layer.", ".").replace(".base_layer.", ".")
    return name.replace(".modules_to_save.", ".")


def without_effect(file: SafetensorsFile, family: Any, left_out: str) -> list[str]:
    """An adapter's tensors for what is not opened of the published model (an image encoder), whose second factors are
    zeros: text alone trains none of it.

    Args:
        family: the base's table.
        left_out: what of the base is not opened.

    Raises:
        InputError: there are such tensors, and they change it.
    """
    patterns = [re.compile(pattern) for pattern in family.ignored_tensors] if left_out else []
    found = [key for key in file.tensors if any(pattern.search(whole_name(key)) for pattern in patterns)]
    changing = [key for key in found if not key.endswith(".lora_A.weight") and np.any(file.read(key))]
    if changing:
        raise InputError(f"{changing[0]}: the adapter changes what is not opened here ({left_out})")
    return found


def lacks_tokens(key: str, found: int, base: int, way: str) -> str:
    """What to say where an adapter brings rows for tokens that the base lacks."""
    return f"{key}: the adapter's vocabulary has {found} tokens, the base's {base}: {way}"


def read_settings(values: dict[str, Any], where: str | Path, known: Collection[str], read: Callable[[dict], Any]):
    """The settings that `read` makes of an adapter_config.json, validated; every InputError names the file.

    Keys that this version does not know are an InputError where they switch something on: a later PEFT's variant has
    a truth value or a table, and computes something else. Any other number or text is a warning, since defaults are
    such; None, false and what is empty change nothing.
    """
    unknown = {key: values[key] for key in sorted(set(values) - set(known)) if not is_off(values[key])}
    used = [key for key, value in unknown.items() if isinstance(value, (bool, dict, list))]
    if used:
        raise InputError(
            f"{where}: {', '.join(used)} not known here, and may change what the adapter computes; remove what does not"
        )
    if unknown:
        warn_caller(f"{where}: {', '.join(unknown)} not known here; loaded without")
    try:
        settings = read(values)
        settings.validate()
        return settings
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where}: a value of the wrong type ({error})") from None


def for_any_version(values: dict[str, Any]) -> dict[str, Any]:
    """An adapter_config.json without the `LATER` settings that ask for nothing: PEFT 0.6 to 0.13 refuse a file for any
    key that they do not know."""
    off = {key for key in LATER if key in values and (is_off(values[key]) or values[key] == LATER[key])}
    return {key: value for key, value in values.items() if key not in off}


def is_off(value: Any) -> bool:
    """Whether a setting's value asks for nothing: None, false, what is empty, and a table of such values."""
    if isinstance(value, dict):
        return all(is_off(entry) for entry in value.values())
    return value is None or value is False or value in ("", [])


# The methods' settings -----------------------------------------------------------------------------------------------


def lora_settings(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `LoRAConfig` for an adapter_config.json.

    Raises:
        InputError: a setting that changes the result and is not supported, or a value that makes no sense.
    """
    used = [key for key in UNSUPPORTED if not is_off(values.get(key))]
    if used:
        reasons = "; ".join(f"{key} is not supported: {UNSUPPORTED[key]}" for key in used)
        raise InputError(f"{reasons}; what PEFT's merge_and_unload makes of adapter and base opens, where it can")
    for key in ("use_rslora", "use_dora", "fan_in_fan_out", "ensure_weight_tying"):
        if not isinstance(values.get(key, False), (bool, type(None))):
            raise InputError(f"{key} is {values[key]!r}; true or false was expected")
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(values.get(key) or {}, dict):
            raise InputError(f"{key} is {values[key]!r}; {{regular expression: value}} was expected")
        for expression in values.get(key) or {}:
            check_expression(key, expression)
    settings = {
        "alpha": 8,  # PEFT's default; the others are the same here
        **{name: values[key] for name, key in LoRA.peft_names().items() if key in values},
        "targets": cells(values, "target_modules"),
        "exclude": cells(values, "exclude_modules"),
        "layers": layer_list(values.get("layers_to_transform")),
        "modules_to_save": whole_cells(values),
        "use_rslora": bool(values.get("use_rslora", False)),
        "use_dora": bool(values.get("use_dora", False)),
        "init": init_name(values.get("init_lora_weights", True)),
        **patterns_before(values),
    }
    if settings["init"] == "olora" and values.get("fan_in_fan_out"):
        raise InputError(
            "init_lora_weights is 'olora' on a matrix stored (in, out): what PEFT takes off the base there is no LoRA; "
            + CHECKPOINT
        )
    config = LoRA(**settings)
    config.validate()
    return vars(config)


def patterns_before(values: dict[str, Any]) -> dict[str, dict]:
    """``rank_pattern`` and ``alpha_pattern`` as PEFT before 0.14 trained with them: the first key of either that fits
    a cell counted for both, with the usual value where one has no such key. What it wrote is known by its keys."""
    if "megatron_core" not in values or "exclude_modules" in values:
        return {}
    ranks, alphas = values.get("rank_pattern") or {}, values.get("alpha_pattern") or {}
    keys = dict.fromkeys((*ranks, *alphas)) if ranks and alphas else ()
    pairs = (("rank_pattern", ranks, values.get("r", 8)), ("alpha_pattern", alphas, values.get("lora_alpha", 8)))
    return {name: {key: given.get(key, usual) for key in keys} for name, given, usual in pairs if keys}


def ia3_settings(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `IA3Config` for an adapter_config.json."""
    feedforward = cells(values, "feedforward_modules", bounded=True)
    return {
        "targets": cells(values, "target_modules"),
        "exclude": cells(values, "exclude_modules"),
        "feedforward": [] if feedforward is None else feedforward,
        "modules_to_save": whole_cells(values),
    }


def tokens_settings(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `TrainableTokensConfig` for an adapter_config.json."""
    ids = values.get("token_indices")
    if not isinstance(ids, list):
        raise InputError(f"token_indices is {ids!r}; a list of token ids was expected")
    if (wrong := token_ids(ids)) is not None:
        raise InputError(f"trainable_tokens: {wrong}")
    return {"targets": cells(values, "target_modules"), "trainable_tokens": ids}


OF_CELLS = ("fan_in_fan_out", "modules_to_save", "target_modules")
FORMS: dict[str | None, tuple[tuple[str, ...], Callable[[dict], dict]]] = {
    "LORA": ((*OF_CELLS, *LATER, "init_lora_weights", "layers_pattern", "layers_to_transform"), lora_settings),
    "IA3": ((*OF_CELLS, "exclude_modules", "feedforward_modules", "init_ia3_weights"), ia3_settings),
    "TRAINABLE_TOKENS": (("init_weights", "target_modules", "token_indices"), tokens_settings),
}
"""Methods whose files say more than some settings by their names: by which keys, and what reads them."""


def known_keys(cls: type[Settings], *others: str) -> tuple[str, ...]:
    """The keys of a method's adapter_config.json: those of all methods, of its settings, and others."""
    own, _ = FORMS.get(cls.peft_type, ((), None))
    return (*COMMON_KEYS, *VERSION, *cls.peft_names().values(), *own, *others)


def from_file(cls: type[Method], values: dict[str, Any]) -> Method:
    """The settings that an adapter_config.json describes."""
    if cls.peft_type in FORMS:
        return cls(**FORMS[cls.peft_type][1](values))
    return cls.from_peft(values)


# Their values --------------------------------------------------------------------------------------------------------


def cells(values: dict[str, Any], key: str, bounded: bool = False):
    """PEFT's list of names, or its regular expression, as our targets.

    An expression that linear time does not suffice for is not matched where not `bounded`: the file's tensors say which
    cells it meant (`adapters.fitting`).
    """
    value = values.get(key)
    if value is None or value == "all-linear":
        return value
    if isinstance(value, str):
        check_expression(key, value, bounded)
        return "re:" + value
    if not isinstance(value, (list, tuple, set)) or not all(isinstance(entry, str) for entry in value):
        raise InputError(f"{key} is {value!r}; a list of names or a regular expression was expected")
    return sorted(value)


def whole_cells(values: dict[str, Any]) -> list[str] | None:
    """``modules_to_save``: a list of names."""
    value = values.get("modules_to_save")
    if value is not None and not (isinstance(value, list) and all(isinstance(name, str) and name for name in value)):
        raise InputError(f"modules_to_save is {value!r}; a list of names was expected")
    return value


def layer_list(value) -> list[int] | int | None:
    """``layers_to_transform``; PEFT takes an empty list for all layers."""
    if value is not None and not all(type(number) is int and number >= 0 for number in as_list(value)):
        raise InputError(f"layers_to_transform is {value!r}; a layer's number or a list of them was expected")
    return None if value == [] else value


def init_name(value) -> str:
    """Our name for PEFT's ``init_lora_weights``.

    It matters for a file in PEFT's own PiSSA or OLoRA form, where the base weight is meant to be without the first
    product. Other starting points left the base alone, so that the factors in the file say everything.
    """
    value = value.lower() if isinstance(value, str) else value  # PEFT takes OLoRA, too
    if isinstance(value, str) and value.startswith(LOST_START):
        raise InputError(
            f"init_lora_weights is {value!r}: the adapter belongs to a changed base, which the file does not describe; "
            "save it in PEFT with path_initial_model_for_weight_conversion"
        )
    if not isinstance(value, (str, bool, type(None))):
        raise InputError(f"init_lora_weights is {value!r}; true, false or a name was expected")
    if value == "mica":
        warn_caller("init_lora_weights 'mica': PEFT trains A alone; training goes on with A and B here")
    return value if value in ("gaussian", *START) else "default"
