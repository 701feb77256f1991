"""The two forms in which a config.json describes rotary positions, read as one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from model_zoo.errors import InputError, shown, similar
from model_zoo.field_types import check_types

LAYER_TYPES = ("full_attention", "sliding_attention")
ORIGINAL = "original_max_position_embeddings"
FIELDS = {
    "rope_type": str,
    "rope_theta": float,
    "partial_rotary_factor": float,
    "factor": float,
    "low_freq_factor": float,
    "high_freq_factor": float,
    "original_max_position_embeddings": int,
    "attention_factor": float,
    "beta_fast": float,
    "beta_slow": float,
    "mscale": float,
    "mscale_all_dim": float,
    "truncate": bool,
}
MAY_BE_0 = ("mscale", "mscale_all_dim", "beta_fast", "beta_slow")
"""Numbers of which 0 says what leaving them out does, as in DeepSeek's files."""
BESIDE = ("rope_theta", "partial_rotary_factor")
"""What the current form has within, and the older one beside ``rope_scaling``."""
NEEDED = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""What each supported type cannot do without, beside what all have. ``dynamic`` is ``default`` within the context, and
no model goes beyond that here."""


def rope_settings(config, local: bool = False) -> dict:
    """``{"rope_type", "rope_theta", "partial_rotary_factor", …}`` from ``rope_parameters`` (the current form) or from
    ``rope_theta`` + ``rope_scaling`` (that of most published checkpoints, where the type may be called ``type``).

    Args:
        local: those of layers with a window. Where these have their own, ``rope_parameters`` holds both by the layers'
            types, and in the older form ``rope_local_base_freq`` is the base, which nothing scales.

    Raises:
        InputError: a type that is not computed here, or one whose numbers are missing or wrong.
    """
    merged = {"rope_theta": config.rope_theta, "partial_rotary_factor": getattr(config, "partial_rotary_factor", 1.0)}
    merged.update(config.rope_scaling or {})
    if local and hasattr(config, "rope_local_base_freq"):
        merged = {"rope_theta": config.rope_local_base_freq, "partial_rotary_factor": 1.0}
    given = _rope_parameters(config)
    by_kind = any(kind in given for kind in LAYER_TYPES)
    if by_kind:
        given = given.get(LAYER_TYPES[local]) or {}
        check_types("config.json", {"rope_parameters": given}, {"rope_parameters": dict})
    merged.update(given)
    if not by_kind and config.extra.get(ORIGINAL):  # as Phi-3's files have it; it counts before the one within
        merged[ORIGINAL] = config.extra[ORIGINAL]
    elif by_kind:  # where transformers does not look for it
        merged.pop("truncate", None)
    older = merged.pop("type", "default")
    if older != "default" and "rope_type" not in merged and not by_kind and hasattr(config, "rope_local_base_freq"):
        raise InputError(f"config.json: rope_scaling has type {shown(older)}; rope_type was expected")
    kind = merged.setdefault("rope_type", older)
    merged = {key: value for key, value in merged.items() if value != 0 or key not in MAY_BE_0}
    if merged["partial_rotary_factor"] is None and not hasattr(config, "partial_rotary_factor"):
        merged["partial_rotary_factor"] = 1.0
    if kind == "yarn" and merged.get("factor", 0) is None and merged.get(ORIGINAL):  # null, as transformers has it
        merged["factor"] = config.max_position_embeddings / merged[ORIGINAL]
    check_types("config.json: rotary settings", merged, FIELDS)
    if kind not in NEEDED:
        choices = ", ".join(NEEDED) + similar(kind, NEEDED)
        raise InputError(f"config.json: rotary rope_type is {shown(kind)}; supported: {choices}")
    missing = [key for key in ("rope_theta", "partial_rotary_factor", *NEEDED[kind]) if merged.get(key) is None]
    if missing:
        raise InputError(f"config.json: rotary rope_type {kind!r} needs {', '.join(missing)}")
    if kind == "llama3" and merged["high_freq_factor"] <= merged["low_freq_factor"]:
        raise InputError("config.json: rotary high_freq_factor must be above low_freq_factor")
    _check_part(config, merged)
    if merged.get(ORIGINAL) is None:  # as transformers has it
        merged[ORIGINAL] = getattr(config, "max_position_embeddings", None)
    return merged


def _check_part(config, merged: dict) -> None:
    """Raises InputError for a part of the heads that transformers would not rotate, or not as it is said."""
    part, beside = merged["partial_rotary_factor"], getattr(config, "partial_rotary_factor", None)
    if beside is None:
        part = config.extra.get("partial_rotary_factor") or part
        if part != 1:
            raise InputError(
                f"config.json: partial_rotary_factor is {shown(part)}; {config.model_type} rotates whole heads: 1"
            )
    elif part != beside and merged["rope_type"] != "default":  # of which each transformers goes by another
        here, there = f"partial_rotary_factor is {shown(part)} in rope_parameters", f"{shown(beside)} beside them"
        raise InputError(f"config.json: {here}, but {there}")
    width = int((head := config.dims.head_dim) * part)
    if width % 2 or not 0 < width <= head:
        rotated = f"{width} of head_dim {head} would be rotated; an even number was expected"
        raise InputError(f"config.json: partial_rotary_factor is {shown(part)}, so that {rotated}")


def _rope_parameters(config) -> dict:
    """The current form, where it is one that the family's models are computed by: transformers puts in what is not
    there, and takes no notice of what it does not look for."""
    given, scaling = config.rope_parameters or {}, config.rope_scaling or {}
    if given and scaling and _scaling(_of_kind(given, False)) != _scaling(scaling):
        raise InputError("config.json: rope_parameters and rope_scaling are both there and differ; leave out one")
    by_kind = [kind for kind in LAYER_TYPES if kind in given]
    if given and hasattr(config, "rope_local_base_freq") != bool(by_kind):
        expected = "one object for each of " + ", ".join(LAYER_TYPES) if not by_kind else "one for all layers"
        raise InputError(f"config.json: rope_parameters is {shown(given)}; {config.model_type} has {expected}")
    return given


def _of_kind(given: Mapping[str, Any], local: bool) -> Any:
    """The current form's part for layers with a window or for the others, where each kind has its own."""
    return given.get(LAYER_TYPES[local]) or {} if any(kind in given for kind in LAYER_TYPES) else given


def _scaling(given: Any) -> Any:
    """What either form says of the scaling, under the current names."""
    if not isinstance(given, Mapping):
        return given
    kind = given.get("rope_type", given.get("type", "default"))
    numbers = {key: value for key, value in given.items() if key not in (*BESIDE, "type") and value is not None}
    return {**numbers, "rope_type": kind}


def with_older_form(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config.json's dictionary with the older form of the rotations beside the current one.

    transformers reads the current one from version 5 on. Older versions pass over it, and compute by frequencies of
    their own. Where the older form cannot say it (layers with a window that are scaled) the dictionary is as it was.
    """
    given = values.get("rope_parameters") or {}
    full, local = (_of_kind(given, kind) for kind in (False, True))
    if not full or (local is not full and _scaling(local)["rope_type"] != "default"):
        return values
    scaling = _scaling(full)
    older = {key: full.get(key) for key in BESIDE}
    if local is not full:
        older["rope_local_base_freq"] = local.get("rope_theta")
    elif {*scaling} == {"rope_type", "factor"}:
        scaling["type"] = scaling.pop("rope_type")  # transformers 4.36 takes these two keys and no other
    if "default" not in scaling.values() and not values.get("rope_scaling"):
        older["rope_scaling"] = scaling
    return {**values, **{key: value for key, value in older.items() if value is not None}}


def changes_of_text(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Changes of a config.json without a ``text_config`` among them: those within a multimodal file's, beside which
    all that is said of the text model counts, instead of a section that would take the place of the file's."""
    inner = changes.get("text_config")
    if not (isinstance(inner, Mapping) and isinstance(values.get("text_config"), Mapping)):
        return changes
    return {**inner, **{key: one for key, one in changes.items() if key != "text_config"}}


def with_changes(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json's dictionary with other fields in it. What these say of the rotations takes the place of what the
    file says of the same, in whichever form.

    Raises:
        InputError: a change in the older form, which cannot say the rest of what is there.
    """
    older = ("rope_scaling", "rope_local_base_freq", *BESIDE)
    changes = changes_of_text(values, changes)
    left_out, text = "", values.get("text_config")
    if isinstance(text, Mapping) and {*changes}.intersection(stated := ("rope_parameters", *older)):
        # a multimodal file says within what is said beside it now, and what is beside it counts
        own = {key: text[key] for key in stated if key in text}
        values = {**own, **values, "text_config": {key: one for key, one in text.items() if key not in own}}
    if changes.get("rope_parameters"):
        left_out = "rope_scaling"
    elif values.get("rope_parameters") and (asked := [key for key in older if key in changes]):
        spelled = with_older_form(values)
        if spelled is values:
            raise InputError(f"config.json: {asked[0]} counts for nothing beside its rope_parameters; change these")
        values, left_out = spelled, "rope_parameters"
    return {**{key: value for key, value in values.items() if key != left_out}, **changes}


def rotary_scale(settings: dict) -> float:
    """The factor of cosines and sines: of YaRN (Peng et al. 2023) what attention gains over a longer context, else 1.

    Args:
        settings: as `rope_settings` gives them.
    """
    if settings["rope_type"] != "yarn":
        return 1.0
    if settings.get("attention_factor") is not None:
        return settings["attention_factor"]

    def gain(weight: float) -> float:
        return 0.1 * weight * math.log(max(settings["factor"], 1.0)) + 1.0

    one, other = settings.get("mscale"), settings.get("mscale_all_dim")
    return gain(one) / gain(other) if one and other else gain(1.0)
