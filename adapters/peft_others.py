"""PEFT's methods that are not here, and what to do with an adapter of one: of most of them PEFT itself makes what opens
here, a LoRA adapter or a whole checkpoint."""

from __future__ import annotations

AS_LORA = (
    *("C3A", "DELORA", "FOURIERFT", "GRALORA", "LOHA", "LOKR", "MISS", "PSOFT", "RANDLORA", "TINYLORA", "UNILORA"),
    *("VBLORA", "VERA", "WAVEFT"),
)
MERGED = (
    *("ADAMSS", "BOFT", "DEFT", "FROD", "GLORA", "HIRA", "HRA", "LN_TUNING", "OFT", "OSF", "PEANUT", "PVERA", "ROAD"),
    *("SHIRA", "SUPERTUNING"),
)
NEITHER = ("ADAPTION_PROMPT", "CARTRIDGE", "CPT", "LILY", "MULTITASK_PROMPT_TUNING", "POLY", "SHADOW", "XLORA")
CHECKPOINT = "PEFT's merge_and_unload() makes a checkpoint of it and its base, which opens here"
WAYS = {
    **dict.fromkeys(AS_LORA, "PEFT's save_as_lora(path, model, rank=1.0) makes a LoRA adapter of it, which opens here"),
    **dict.fromkeys(MERGED, CHECKPOINT),
    "BEFT": f"where the base has the biases that it changes, {CHECKPOINT}",
    **dict.fromkeys(NEITHER, "a method of PEFT's alone"),
}
"""By the name in adapter_config.json: what a user of such an adapter can do."""


def not_here(name: str) -> str:
    """What is said of a method's configuration by its name in PEFT (``LoHaConfig``); nothing of other names."""
    asked = name.removesuffix("Config").upper()
    found = (kind for kind in WAYS if name.endswith("Config") and kind.replace("_", "") == asked)
    return next((f"has no counterpart: {kind} is not trained here; of an adapter: {WAYS[kind]}" for kind in found), "")
