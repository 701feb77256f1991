"""The families, one module each: configuration, tensors, what is special, published sizes. No MindSpore here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from model_zoo.configs import Config
from model_zoo.errors import InputError, shown, similar

MODULES = (
    "gpt2",
    "llama",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma3",
    "gemma3_multimodal",
    "glm4",
    "chatglm",
    "chatglm2",
)
_modules = [import_module(f"{__name__}.{name}") for name in MODULES]
CONFIGS: tuple[type[Config], ...] = tuple(module.CONFIG for module in _modules)
PRESETS: dict[str, dict] = {name: values for module in _modules for name, values in module.PRESETS.items()}

_EXPERTS = "of mixtures of experts only qwen3_moe is supported; dense models of these families open"
UNSUPPORTED = {
    **dict.fromkeys(("qwen2_moe", "mixtral", "deepseek_v2", "deepseek_v3"), _EXPERTS),
    "gemma": "the first Gemma is unsupported; gemma2 and gemma3 open",
}
"""Models near those that are here: why they are not."""
MULTIMODAL = ("text_config", "vision_config", "audio_config")
"""Keys of models that take more than text."""


def config_class(values: Mapping[str, Any]) -> type[Config]:
    """The configuration class for a config.json's dictionary.

    Raises:
        InputError: no or an unknown ``model_type``; or one of several architectures, and no key says which.
    """
    kind = values.get("model_type")
    of_type = [config for config in CONFIGS if isinstance(kind, str) and kind in config.architectures]
    for config in of_type:
        if not config.marks or any(values.get(mark) for mark in config.marks):
            return config
    if of_type:
        marks = ", ".join(mark for config in of_type for mark in config.marks)
        raise InputError(
            f"config.json: model_type {kind!r} stands for several architectures; one of {marks} must be set"
        )
    if isinstance(kind, str) and kind in UNSUPPORTED:
        raise InputError(f"config.json: model_type is {shown(kind)}: {UNSUPPORTED[kind]}")
    known = [name for config in CONFIGS for name in config.architectures]
    if any(key in values for key in MULTIMODAL):
        raise InputError(
            f"config.json: model_type is {shown(kind)}, a multimodal model; of these only gemma3 opens. Text models "
            "open that are saved by themselves"
        )
    choices = ", ".join(dict.fromkeys(known)) + similar(kind, known)
    raise InputError(f"config.json: model_type is {shown(kind)}; supported: {choices}")
