"""What a MindFormers YAML file says of the model itself: its sizes, how its matrices are divided, LoRA's alpha."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_zoo.counting import layout_of, sizes as sizes_of
from model_zoo.errors import InputError, located
from pet.compat.ckpt.names import Form
from pet.compat.mindformers import config as configurations
from pet.compat.mindformers.model_file import ARCHITECTURES, check_kind, model_section, read_file
from pet.compat.mindformers.presets import CLASSES, split_name
from pet.compat.translation import same
from pet.names import bundled_models, model_config, preset_names
from pet.recipe.translation import Translation

SIZES = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "n_kv_heads": "kv_heads",
    **same("heads", "num_heads num_attention_heads"),
    **same("ffn", "intermediate_size ffn_hidden_size inner_hidden_size"),
    **same("vocab", "padded_vocab_size vocab_size"),
    "hidden_size_per_attention_head": "head_dim",
}
"""Sizes by MindFormers' names, and by ours."""
NUMBERS = {"rms_norm_eps": "rms_norm_eps", "layernorm_epsilon": "layernorm_epsilon", "theta": "rope_theta"}
"""Further numbers of model_config, and what a config.json calls them."""
# of model_config, but nothing of the architecture
BESIDE = ("type", "pet_config", "checkpoint_name_or_path", "qkv_concat", "mlp_concat", "use_rearrange_rope")
BESIDE += ("hidden_size_per_attention_head", "num_labels")  # a head's, which stands over the model


def tokenizer_of(kind: str, values: Mapping[str, Any]) -> Any:
    """What a job file of MindFormers says of its tokenizer: the file, or the model's name; None of other files."""
    if kind == "mindformers":
        own = (values.get("processor") or {}).get("tokenizer") or {}
        return own.get("vocab_file") or name_of(values)
    return None


def name_of(values: Mapping[str, Any]) -> str | None:
    """The model that a file names, but for ``.ckpt`` files; None where it names none."""
    named = [model_section(values).get("checkpoint_name_or_path"), (values.get("trainer") or {}).get("model_name")]
    bare = (split_name(each)[0] for each in named)
    return next((one for one in bare if isinstance(one, str) and one and not one.endswith(".ckpt")), None)


def config_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json's dictionary of the model that a file describes: by its sizes, or else by its name.

    Raises:
        InputError: it says neither, or sizes that the family does not know.
    """
    section, name = model_section(values), name_of(values)
    kind, sizes = section.get("type"), {key: value for key, value in section.items() if key not in BESIDE}
    check_kind(values)
    if kind is not None and says_sizes(values):
        sizes = {key: value for key, value in sizes.items() if key not in dropouts(values)}
        config, pet = getattr(configurations, kind)(**sizes).to_dict(), section.get("pet_config") or {}
        if kind == "LlamaConfig" and "prefix" in str(pet.get("pet_type")) and not config.get("rope_scaling"):
            config["max_position_embeddings"] += pet.get("prefix_token_num") or 128  # which take no place there
        return config
    if name in preset_names() or name in bundled_models():
        return model_config(name)
    raise InputError("model.model_config: says neither the sizes of the model (hidden_size, num_layers …) nor its name")


def file_config(values: Mapping[str, Any]) -> Any:
    """The configuration of the model that a file describes, as a script makes it of the file's section.

    Raises:
        InputError: see `config_of`.
    """
    from pet.auto import AutoConfig

    section = model_section(values)
    config_of(values)  # says what cannot be had
    if not says_sizes(values):
        return AutoConfig.from_pretrained(name_of(values))
    return configurations.of_section(section)


def says_sizes(values: Mapping[str, Any]) -> bool:
    """Whether the file says how large its model is."""
    section = model_section(values)
    return "hidden_size" in section or "num_layers" in section


def dropouts(values: Mapping[str, Any]) -> list[str]:
    """The keys of model_config that turn on dropout of the base."""
    section = model_section(values)
    return [key for key in section if key.endswith(configurations.DROPOUT_ENDINGS) and section[key]]


def contradictions(values: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """What a file says otherwise than the config.json of the checkpoint that it names."""
    section, layout = model_section(values), layout_of(config)
    kind = section.get("type")
    arch = ((values.get("model") or {}).get("arch") or {}).get("type")
    other = f" of {arch}" if arch and not str(arch).startswith(ARCHITECTURES) else ""
    if kind in CLASSES and (other or layout not in CLASSES[kind][0]):
        return [f"type: {kind}{other}, but the checkpoint's model_type is {config.get('model_type')!r}"]
    there = sizes_of(config)
    pairs = {name: getattr(there, size) for name, size in SIZES.items()}
    if layout == "chatglm2":
        del pairs["vocab_size"]  # of the tokenizer; the matrices have padded_vocab_size
    if section.get("multi_query_attention"):
        pairs["multi_query_group_num"] = there.kv_heads
    renamed = configurations.ACTIVATIONS.get(str(section.get("hidden_act")))
    if layout == "gpt2" and renamed not in (None, config.get("activation_function", renamed)):
        pairs["hidden_act"] = config["activation_function"]
    known = {**(config.get("rope_parameters") or {}), **config}
    pairs |= {name: known[key] for name, key in NUMBERS.items() if known.get(key) is not None}
    wanted = configurations.rope_scaling(section) or {}
    there = {"rope_type": "default", **known, **(known.get("rope_scaling") or {})}
    there = {key: there.get("type", there["rope_type"]) if key == "rope_type" else there.get(key) for key in wanted}
    if not all(value == there[key] or _equal(value, there[key]) for key, value in wanted.items()):
        pairs["extend_method"] = there
    fixed = Translation("model_config")
    fixed.apply({name: section[name] for name in configurations.FIXED if name in section}, configurations.FIXED)
    return [problem.partition(": ")[2] for problem in fixed.problems] + [
        f"{name}: {section[name]}, but the model has {value}"
        for name, value in pairs.items()
        if section.get(name) is not None and not _equal(section[name], value)
    ]


def _equal(one: Any, other: Any) -> bool:
    """As numbers."""
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return False


def config_of_file(path: Path) -> dict[str, Any]:
    """`config_of` a file."""
    with located(path):
        return config_of(read_file(path))


def form_of(values: Mapping[str, Any]) -> Form:
    """How the file's model divides its matrices."""
    section = model_section(values)
    return Form(section.get("qkv_concat"), section.get("mlp_concat"), bool(section.get("use_rearrange_rope")))


def alpha_of(values: Mapping[str, Any]) -> float | None:
    """``lora_alpha`` of the file's pet_config, which files of release 0.6 have in ``arch.pet``; None without one."""
    old = ((values.get("model") or {}).get("arch") or {}).get("pet") or {}
    alpha = (model_section(values).get("pet_config") or old.get("pet_config") or {}).get("lora_alpha")
    return None if alpha is None else float(alpha)


def facts_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of the ``.ckpt`` files beside it, as `pet.compat.ckpt.beside.bring` takes it."""
    strategy = values.get("src_strategy_path_or_dir") or None
    return {"form": form_of(values), "alpha": alpha_of(values), "strategy": strategy}
