"""Every method by its name in recipes and by its name in PEFT's files."""

from __future__ import annotations

from adapters.lora import LoRAConfig
from adapters.method import MethodConfig

METHODS: dict[str, type[MethodConfig]] = {cls.method: cls for cls in (LoRAConfig,)}
BY_PEFT_TYPE: dict[str, type[MethodConfig]] = {cls.peft_type: cls for cls in METHODS.values() if cls.peft_type}
