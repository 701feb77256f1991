"""MindFormers' callbacks by their names: in its own YAML files, in a recipe's `callbacks`, and in a script."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from model_zoo.errors import nearest
from pet.recipe.translation import Translation

log = logging.getLogger("pet")

UPLOAD = "pet.compat.modelarts:Upload"


def _loss(t: Translation, given: dict[str, Any]) -> None:
    t.put("train.log_every", given.pop("per_print_times", None))


def _checkpoint(t: Translation, given: dict[str, Any]) -> None:
    t.put("train.save_every", given.pop("save_checkpoint_steps", None) or None)  # 0 is by no number of steps
    t.put("train.keep_last", given.pop("keep_checkpoint_max", None))
    t.put("train.save_prefix", re.sub(r"[^\w.-]", "_", given.pop("prefix", None) or "") or None)


def _profile(t: Translation, given: dict[str, Any]) -> None:
    t.add_callback({"name": "profiler"})


ABSENT = {
    "TrainingStateMonitor": "metrics.jsonl has the loss and the norm of all gradients, and no others",
    "StressDetectCallBack": "devices are not tested while they train",
    "ColdHotExpertMonitor": "experts are not moved",
    "MoEDropRateCallback": "no token is dropped",
    "OnRequestExit": "a run that is sent SIGTERM ends after its step, with everything saved",
}
"""What watches a run and changes no weight, and is not here: said, also without arguments."""
NAMES: dict[str, tuple[Callable | None, str]] = {
    "MFLossMonitor": (_loss, "the progress line and metrics.jsonl"),
    "LossMonitor": (_loss, "the progress line and metrics.jsonl"),
    "TimeMonitor": (None, "metrics.jsonl has each step's seconds"),
    "SummaryMonitor": (None, "metrics.jsonl has the same numbers; callbacks: [tensorboard] draws them"),
    "CheckpointMonitor": (_checkpoint, "checkpoints are whole, and written at once"),
    "CheckpointMointor": (_checkpoint, "checkpoints are whole, and written at once"),  # as MindFormers spells it
    "ProfileMonitor": (_profile, "the profiler callback has steps of its own"),
    "EvalCallBack": (None, "do_eval says it"),
    "ObsMonitor": (None, "the upload follows remote_save_url"),
    **{name: (None, why) for name, why in ABSENT.items()},
}
"""What each does here beside what a run does anyway, and what is said of arguments that reach nothing."""


def translate_callbacks(t: Translation, entries: list, values: Mapping[str, Any]) -> None:
    """Adds what the callbacks of a file ask for; `values` are the whole file's."""
    upload: dict[str, Any] | None = None
    for entry in entries:
        given = dict(entry) if isinstance(entry, Mapping) else {"type": entry}
        name = str(given.pop("type", ""))
        if name not in NAMES:
            t.refuse(f"callbacks: {name}", f"is not known{nearest(name, NAMES)}")
            continue
        act, why = NAMES[name]
        if name == "ObsMonitor":
            keys = ("upload_sequence", "step_upload_frequence", "upload_frequence")
            every = next((given.pop(key) for key in keys if given.get(key)), None)
            upload = {**(upload or {}), **({"every": every} if every and every > 0 else {})}
        if act is not None:
            act(t, given)
        left = [key for key, value in given.items() if value is not None]
        if left or name in ABSENT:
            t.ignore(f"callbacks.{name}", f"{', '.join(sorted(left)) or 'left out'}: {why}")
    url = values.get("remote_save_url")
    if url:
        t.add_callback({"name": UPLOAD, "args": {"url": str(url), **(upload or {})}})
    elif upload is not None:
        t.ignore("callbacks.ObsMonitor", "there is no remote_save_url to upload to")


def into_recipe(tree: dict[str, Any]) -> list[str]:
    """Puts what MindFormers' callbacks in a recipe ask for into its other settings, in place.

    A setting that the recipe has itself stays. ``ObsMonitor`` says where to by ``target_dir`` (or ``url``).

    Returns:
        What is wrong.
    """
    entries = tree.get("callbacks")
    if not isinstance(entries, list):
        return []
    own, theirs = [], []
    for entry in entries:
        (theirs if is_named(entry) else own).append(entry)
    if not theirs:
        return []
    t = Translation("callbacks")
    for entry in theirs:
        given = {"type": _name(entry), **(entry.get("args") or {})} if isinstance(entry, Mapping) else {"type": entry}
        if isinstance(entry, Mapping) and "type" in entry:
            given = dict(entry)
        values: dict[str, Any] = {}
        if given["type"] == "ObsMonitor":
            values["remote_save_url"] = next((given.pop(key) for key in ("target_dir", "url") if given.get(key)), None)
            if values["remote_save_url"] is None:
                t.refuse("ObsMonitor", "give target_dir: file:///directory or obs://bucket/directory")
        translate_callbacks(t, [given], values)
    tree["callbacks"] = [*own, *t.settings.pop("callbacks", [])]
    for key, value in t.settings.items():
        section, _, name = key.partition(".")
        if tree.setdefault(section, {}) is None:
            tree[section] = {}
        if isinstance(tree[section], dict):
            tree[section].setdefault(name, value)
    for line in t.ignored_lines():
        log.warning("%s", line)
    return [problem.removeprefix("callbacks: ") for problem in t.problems]


def is_named(entry: Any) -> bool:
    """Whether this is meant as one of MindFormers' callbacks: by its name, or in its form."""
    in_its_form = isinstance(entry, Mapping) and "type" in entry and "name" not in entry
    return in_its_form or (isinstance(entry, (str, Mapping)) and _name(entry) in NAMES)


def _name(entry: Any) -> Any:
    return entry.get("name") if isinstance(entry, Mapping) else entry
