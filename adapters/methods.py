"""Every method by its name in recipes and by its name in PEFT's files, and configurations by their names."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from adapters.method import MethodConfig
from adapters.settings import SETTINGS, method_and_settings
from adapters.tokens import TrainableTokensConfig
from model_zoo.errors import InputError

METHODS: dict[str, type[MethodConfig]] = {cls.method: resolve_name(cls.config) for cls in SETTINGS}
BY_PEFT_TYPE: dict[str, type[MethodConfig]] = {
    cls.peft_type: cls for cls in (*METHODS.values(), TrainableTokensConfig) if cls.peft_type
}


def method_config(adapter: Mapping[str, Any] | MethodConfig | None, seed: int | None = None) -> MethodConfig | None:
    """A method's configuration, also from a mapping such as ``{"method": "lora", "rank": 8}``, whose keys are those of
    a recipe's adapter section; None for None and for ``{"method": "none"}``, which train every weight.

    Args:
        seed: of what starts random, where a method has such.

    Raises:
        InputError: an unknown method or setting, or something else altogether.
    """
    if adapter is None or isinstance(adapter, MethodConfig):
        return adapter
    if not isinstance(adapter, Mapping):
        raise InputError(f"adapter is {adapter!r}; a method's configuration or a dictionary was expected")
    method, settings = method_and_settings(adapter)
    if seed is not None and method is not None and "seed" in method.__dataclass_fields__:
        settings["seed"] = seed
    return METHODS[method.method](**settings) if method is not None else None
