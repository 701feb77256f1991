"""The two forms in which a config.json describes rotary positions, read as one."""

from __future__ import annotations

from model_zoo.errors import InputError, similar

SUPPORTED = ("default", "linear", "llama3")
NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def rope_settings(config) -> dict:
    """``{"rope_type", "rope_theta", "partial_rotary_factor", …}`` from ``rope_parameters`` (the current form) or from
    ``rope_theta`` + ``rope_scaling`` (that of most published checkpoints, where the type may be called ``type``).

    Raises:
        InputError: a type that is not computed here, or one whose numbers are missing.
    """
    merged = {"rope_theta": config.rope_theta, "partial_rotary_factor": getattr(config, "partial_rotary_factor", 1.0)}
    merged.update(config.rope_scaling or {})
    merged.update(config.rope_parameters or {})
    kind = merged.setdefault("rope_type", merged.pop("type", "default"))
    if kind not in SUPPORTED:
        raise InputError(
            f"config.json: rotary rope_type is {kind!r}; supported: {', '.join(SUPPORTED)}{similar(kind, SUPPORTED)}"
        )
    missing = [key for key in NEEDED[kind] if merged.get(key) is None]
    if missing:
        raise InputError(f"config.json: rotary rope_type {kind!r} needs {', '.join(missing)}")
    return merged
