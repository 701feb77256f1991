"""LLaMA-Factory's names before 0.7.1, in the place of which a job file is read with its later ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pet.recipe.translation import is_off

NAMES = {
    "checkpoint_dir": "adapter_name_or_path",
    "dpo_ref_model": "ref_model",
    **dict.fromkeys(("ref_model_checkpoint", "dpo_ref_model_checkpoint"), "ref_model_adapters"),
    "name_module_trainable": "freeze_trainable_modules",
    "num_layer_trainable": "freeze_trainable_layers",
    "prompt_template": "template",
    "system_prompt": "default_system",
    "dev_ratio": "val_size",
    "sft_packing": "packing",
    "neft_alpha": "neftune_noise_alpha",
    "cache_path": "tokenized_path",
    **dict.fromkeys(("use_auth_token", "hf_auth_token"), "hf_hub_token"),
}
WHOLE = ("checkpoint_dir", "full", "freeze")
"""A name, and the ways to train with which it means the weights of a base."""


def todays(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A file's settings by later names, where it does not have these as well; and of each that is read so its later
    name."""
    name, *whole = WHOLE
    read = {old: new for old, new in NAMES.items() if old in values and values.get(new) is None}
    if values.get("finetuning_type") in whole:
        read.pop(name, None)
    found = {read.get(key, key): value for key, value in values.items() if key in read or key not in read.values()}
    resumed = found.pop("resume_lora_training", None)
    if resumed is not None and is_off(resumed) and not is_off(found.get("adapter_name_or_path")):
        found["create_new_adapter"], read["resume_lora_training"] = True, "create_new_adapter"
    return found, read
