"""``lr_schedule`` of a MindFormers file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pet.compat.mindformers.training_arguments import TABLE as ARGUMENTS
from pet.compat.translation import SCHEDULES, picked
from pet.recipe.translation import Translation

COOLS, DECAYS = "ConstantWithCoolDownLR", "WarmUpStableDecayLR"
ENDS = {"lr_end": 1e-7}
"""Of the schedules that fall to something else than 0 where nothing is said."""


def _cycles(t: Translation, name: str, value: Any) -> None:
    if t.get("train.schedule") == "cosine_restarts":
        t.put("train.cycles", int(value) if float(value).is_integer() else float(value))
    elif float(value) != 0.5:  # a cosine's half wave
        t.refuse(name, f"{value!r}: only CosineWithRestartsAndWarmUpLR has several")


def _decay_start(t: Translation, name: str, value: Any) -> None:
    if total := t.get("train.schedule_steps"):
        t.put("train.decay", total - int(value))
    else:
        t.refuse(name, "give decay_start_ratio, or total_steps beside it: a run's length shows when its data are read")


SCHEDULE = {
    **picked(ARGUMENTS, "type=lr_scheduler learning_rate warmup_steps warmup_ratio warmup_epochs lr_end"),
    **picked(ARGUMENTS, "total_steps warmup_lr_init"),
    "power": lambda t, n, v: t.put("train.power", float(v)) if t.get("train.schedule") == "polynomial" else None,
    "num_cycles": _cycles,
    "decay_start_ratio": lambda t, n, v: t.put("train.decay", 1.0 - float(v)),
    "decay_start_steps": _decay_start,
}


def schedule_section(t: Translation, given: Mapping[str, Any]) -> dict[str, Any]:
    """The section as `SCHEDULE` reads it, with the defaults of its schedule."""
    section = {key: value for key, value in given.items() if value != -1}
    if section.get("type") == COOLS:
        section = _cool_down(t, section)
    ends = SCHEDULES.get(str(section.get("type")).lower()) in ("polynomial", "wsd")
    return {**(ENDS if ends else {}), **section}


def _cool_down(t: Translation, section: dict[str, Any]) -> dict[str, Any]:
    """The rate rises, stays, falls as a cosine and stays again: a descent that ends before the run."""
    total = section.get("total_steps")

    def steps(part: str) -> int:
        ratio, found = section.pop(f"{part}_ratio", None), section.pop(f"{part}_steps", None)
        if ratio is not None:
            found = int(total * float(ratio)) if total else None
        elif found is None and part == "decay":
            found = total
        if found is None:
            t.refuse(f"lr_schedule.{part}_steps", f"is missing for {COOLS}; or give total_steps beside {part}_ratio")
        return int(found or 0)

    rising, falling, kept = steps("warmup"), max(1, steps("decay")), int(section.pop("keep_steps", None) or 0)
    last = section.pop("lr_end1", None) or 0.0
    section.pop("final_steps", None)
    if (section.pop("lr_end2", None) or last) != last:
        t.refuse("lr_schedule.lr_end2", "the rate falls once; leave it out")
    t.put("train.decay_shape", "cosine")
    start = rising + kept
    own = {"type": DECAYS, "warmup_steps": rising, "decay_start_steps": start, "total_steps": start + falling}
    return {**section, **own, "lr_end": last}
