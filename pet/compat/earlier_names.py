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
    """A file's settings by later names, which count where both are given; and what became of each earlier name."""
    found, notes = dict(values), {}
    name, *whole = WHOLE
    for old, new in NAMES.items():
        if old in values and not (old == name and values.get("finetuning_type") in whole):
            notes[old] = f"{new}, its later name, takes its place" if new in found else f"it is read as {new}"
            found.setdefault(new, values[old])
            del found[old]
    resumed = found.pop("resume_lora_training", None)
    if resumed is not None and is_off(resumed) and not is_off(found.get("adapter_name_or_path")):
        found.setdefault("create_new_adapter", True)
        notes["resume_lora_training"] = "it is read as create_new_adapter"
    return found, notes
