"""What a MindFormers YAML file says of the model itself: its sizes, how its matrices are divided, LoRA's alpha."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError, nearest
from pet.compat.ckpt_names import Form
from pet.compat.presets import split_name
from pet.recipe.source import read

CLASSES = ("GPT2Config", "LlamaConfig", "GLMConfig", "ChatGLM2Config")
# of model_config, but nothing of the architecture
BESIDE = ("type", "pet_config", "checkpoint_name_or_path", "qkv_concat", "mlp_concat", "use_rearrange_rope")


def read_file(path: Path) -> dict[str, Any]:
    """The dictionary in a YAML file.

    Raises:
        InputError: no such file, or no YAML with a model section.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; a MindFormers YAML file was expected")
    source = read(path, str(path))
    if source.problems:
        raise InputError.collect(source.problems)
    if not isinstance(source.value, Mapping) or not isinstance(source.value.get("model"), Mapping):
        raise InputError(f"{path}: has no section model, so it is no MindFormers file")
    return dict(source.value)


def model_section(values: Mapping[str, Any]) -> dict[str, Any]:
    """``model.model_config``."""
    return dict((values.get("model") or {}).get("model_config") or {})


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
    from pet.names import bundled_models, model_config, preset_names

    section, name = model_section(values), name_of(values)
    kind, sizes = section.get("type"), {key: value for key, value in section.items() if key not in BESIDE}
    if kind is not None and kind not in CLASSES:
        raise InputError(f"model_config.type: {kind!r} is not supported; {', '.join(CLASSES)}{nearest(kind, CLASSES)}")
    if kind is not None and any(key in sizes for key in ("hidden_size", "num_layers")):
        from pet.compat import mindformers_models

        return getattr(mindformers_models, kind)(**sizes).to_dict()
    if name in preset_names() or name in bundled_models():
        return model_config(name)
    raise InputError("model.model_config: says neither the sizes of the model (hidden_size, num_layers …) nor its name")


def config_of_file(path: Path) -> dict[str, Any]:
    """`config_of` a file."""
    try:
        return config_of(read_file(path))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def form_of(values: Mapping[str, Any]) -> Form:
    """How the file's model divides its matrices."""
    section = model_section(values)
    return Form(section.get("qkv_concat"), section.get("mlp_concat"), bool(section.get("use_rearrange_rope")))


def alpha_of(values: Mapping[str, Any]) -> float | None:
    """``lora_alpha`` of the file's pet_config; None where it has none."""
    alpha = (model_section(values).get("pet_config") or {}).get("lora_alpha")
    return None if alpha is None else float(alpha)
