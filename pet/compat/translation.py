"""Other systems' names of methods, schedules and optimizers, and rules that several of their tables share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from adapters.settings import SETTINGS
from model_zoo.errors import InputError, similar
from pet.recipe.translation import Ignored, Rule, Translation, is_off
from pet.train.schedules import DESCENTS

OWN_STEP = Ignored("the engine here decides how a step is executed")
ANY_LAYOUT = Ignored("checkpoints are whole and open on any layout")


def method_of(name: str | None) -> str:
    """A recipe's ``adapter.method`` for the name that a method has elsewhere, in any case.

    Raises:
        InputError: no such method.
    """
    key = str(name or "").lower()
    methods = {"": "none", "none": "none", "full": "none"}
    for cls in SETTINGS:
        methods.update({name: name for name in cls.names()}, **dict.fromkeys(cls.aliases, cls.method))
    if key not in methods:
        known = ", ".join(filter(None, methods))
        raise InputError(f"pet_method {name!r} is not known; supported: {known}{similar(key, methods)}")
    return methods[key]


def _words(names: Mapping[str, str]) -> dict[str, str]:
    """Another system's word -> the recipe's, which also stands for itself."""
    return {word: ours for ours, theirs in names.items() for word in (ours, *theirs.split())}


SCHEDULES = _words(
    {
        "constant": "constant_with_warmup constantwarmuplr",
        "linear": "linearwithwarmuplr",
        "cosine": "cosinewithwarmuplr cosinedecaylr cosine_with_min_lr",
        "cosine_restarts": "cosine_with_restarts cosinewithrestartsandwarmuplr",
        "polynomial": "polynomialwithwarmuplr",
        "wsd": "warmup_stable_decay warmupstabledecaylr",
        "inverse_sqrt": "",
    }
)
WITHOUT_CORRECTION = (
    "adamweightdecay fusedadamweightdecay fp32adamweightdecay fp32stateadamweightdecay fused_adamw fp32_adamw"
)
"""MindSpore's AdamWeightDecay, and what MindFormers makes of it: their moments, which begin at 0, are not corrected."""
OPTIMIZERS = _words(
    {
        "adamw": "adamw_torch adamw_torch_fused adamw_torch_4bit adamw_torch_8bit adamw_apex_fused adamw_hf adamw_8bit "
        f"adamw_bnb_8bit paged_adamw_8bit paged_adamw_32bit adamweightdecayx pmaadamw {WITHOUT_CORRECTION}",
        "lion": "lion_32bit lion_8bit paged_lion_32bit paged_lion_8bit lion_pytorch",
        **dict.fromkeys(("adam", "adafactor", "lamb", "sgd", "momentum"), ""),
    }
)


def same(rule: Any, names: str) -> dict[str, Any]:
    """Entries of a table that have one rule, for names with spaces between them."""
    return dict.fromkeys(names.split(), rule)


def refused(why: str) -> Rule:
    """A rule for an object, which is not shown: it may have many lines."""
    return lambda t, name, value: t.refuse(name, why)


def picked(table: Mapping[str, Rule], names: str) -> dict[str, Rule]:
    """The entries of another table, for names with spaces between them; ``own=theirs`` where it has another name."""
    return {own or theirs: table[theirs] for own, _, theirs in (name.rpartition("=") for name in names.split())}


def choice(key: str, known: Mapping[str, str]) -> Callable[[Translation, str, Any], None]:
    """A rule that puts the recipe's word for another system's."""

    def rule(translation: Translation, name: str, value: Any) -> None:
        word = str(getattr(value, "value", value)).lower()
        if word not in known:
            close = similar(word, known) or f"; known: {', '.join(dict.fromkeys(known.values()))}"
            translation.refuse(name, f"{value!r} is not supported{close}")
            return
        translation.put(key, known[word])

    return rule


def optimizer(translation: Translation, name: str, value: Any) -> None:
    """The optimizer by its name, and its kind of moments."""
    choice("train.optimizer", OPTIMIZERS)(translation, name, value)
    if str(getattr(value, "value", value)).lower() in WITHOUT_CORRECTION.split():
        translation.put("train.bias_correction", False)


def number(key: str, kind: type = float) -> Callable[[Translation, str, Any], None]:
    """A rule that puts a number, whatever a file has written it as."""
    return lambda translation, name, value: translation.put(key, kind(value))


def positive(key: str, kind: type = int) -> Callable[[Translation, str, Any], None]:
    """A rule for a number whose -1 or 0 means that it is not used; of a fraction a whole number is not made."""

    def rule(translation: Translation, name: str, value: Any) -> None:
        found = kind(value)
        if found != float(value):
            raise ValueError("a whole number was expected")
        translation.put(key, found if found > 0 else None)

    return rule


def switched_on(value: Any) -> bool:
    """Whether a switch is on, be it a truth value, the number of one or a word for it: ``bool("false")`` is True.
    Raises ValueError for what is none of these."""
    word = value.strip().lower() if isinstance(value, str) else value
    if not is_off(value) and word not in (0, 1, "0", "1", "true", "yes", "on"):
        raise ValueError("true or false was expected")
    return not is_off(value) and word not in (0, "0")


def path_in(value: Any) -> str | None:
    """The path in a setting that takes a switch as well; None where it holds a switch."""
    try:
        switched_on(value)
    except ValueError:
        return str(value)
    return None


def flag(key: str, on: Any = True, *words: str) -> Callable[[Translation, str, Any], None]:
    """A rule for a switch: on, or one of the words, puts the value; off leaves the recipe alone."""
    return lambda translation, name, value: translation.put(key, on if value in words or switched_on(value) else None)


def callback(name: str) -> Callable[[Translation, str, Any], None]:
    """A rule for a switch that adds a callback."""
    return lambda translation, _, value: translation.add_callback({"name": name}) if switched_on(value) else None


EVALUATIONS = ("eval.every_steps", "eval.every_epochs")
"""When it is measured."""


def elsewhere(translation: Translation, name: str, value: Any) -> None:
    """A rule for a setting that is read beside the table."""


def first_of(given: Mapping[str, Any], *pairs: tuple[str, str]) -> dict[str, Any]:
    """The settings without those that others overrule, ``(stronger, weaker)``; a 0 or -1 is not given."""
    overruled = {weaker for stronger, weaker in pairs if given.get(stronger) not in (None, 0, -1)}
    return {name: value for name, value in given.items() if name not in overruled}


def both_betas(index: int) -> Callable[[Translation, str, Any], None]:
    """A rule for one of the two decays that the recipe keeps in one list."""

    def rule(translation: Translation, name: str, value: Any) -> None:
        betas = list(translation.get("train.betas", [0.9, 0.999]))
        betas[index] = float(value)
        translation.put("train.betas", betas)

    return rule


def per_process(t: Translation, copies: int, *keys: str) -> None:
    """Numbers of rows, which these systems count for each process, as those of all processes."""
    for key in keys:
        if isinstance(t.get(key), int):
            t.put(key, t.get(key) * copies)


def clip(translation: Translation, name: str, value: Any) -> None:
    """A gradient norm; 0 turns clipping off elsewhere, null does so here."""
    translation.settings["train.clip_norm"] = float(value) or None


def share_of_peak(key: str) -> Callable[[Translation, str, Any], None]:
    """A rule for a learning rate that a recipe has as a share of the peak."""

    def rule(t: Translation, name: str, value: Any) -> None:
        rate, peak = float(value), t.get("train.learning_rate")
        if rate and not peak:
            t.refuse(name, "give learning_rate beside it, of which it is a share here")
        elif rate and rate > peak:
            t.refuse(name, f"{value} is above the learning rate, {peak}, which is the highest here")
        else:
            t.put(key, rate / (peak or 1.0))

    return rule


final_rate = share_of_peak("train.final_ratio")
"""The last one."""


def schedule_of_transformers(t: Translation, name: str, given: Mapping[str, Any]) -> None:
    """What a schedule means to transformers' trainer where it differs from the recipe's defaults, and its own numbers.

    Args:
        t: with all other settings.
        name: the key of the schedule.
        given: the file's settings, ``lr_scheduler_kwargs`` among them: an object, or text that holds one.
    """
    word = str(getattr(given.get(name), "value", given.get(name))).lower()
    own, written = {}, given.get("lr_scheduler_kwargs") or {}
    with t.reading("lr_scheduler_kwargs", written):
        own.update(json.loads(written) if isinstance(written, str) else written)
    t.put("train.warmup_like", "transformers")
    if word == "constant":
        t.put("train.warmup", 0)  # theirs with a warm-up is constant_with_warmup
    for setting, value in OWN_DEFAULTS.get(word, {}).items():
        own.setdefault(setting, value)
    for setting, value in own.items():
        where = f"lr_scheduler_kwargs.{setting}"
        if rule := SCHEDULE_NUMBERS.get((word, setting)):
            with t.reading(where, value):
                rule(t, where, value)
        elif value is not None:
            t.refuse(where, f"{value!r}: {word} has no such number here")
    if own.get("min_lr") is not None and own.get("min_lr_rate") is not None:
        t.refuse("lr_scheduler_kwargs", "min_lr and min_lr_rate are two ways to say one thing; give one of them")
    needed = NEEDED.get(word, ())
    if needed and not set(needed) & set(own):
        t.refuse(name, f"{word!r} needs lr_scheduler_kwargs: {' or '.join(needed)}")


OWN_DEFAULTS = {
    "cosine_with_restarts": {"num_cycles": 1},
    "polynomial": {"power": 1.0, "lr_end": 1e-7},
    "warmup_stable_decay": {"decay_type": "cosine"},
}
"""Of transformers' schedules, where the recipe has others."""

NEEDED = {"cosine_with_min_lr": ("min_lr", "min_lr_rate"), "warmup_stable_decay": ("num_decay_steps",)}
"""Numbers, one of which these have to be given there."""

SCHEDULE_NUMBERS = {
    ("cosine_with_min_lr", "min_lr"): final_rate,
    ("cosine_with_min_lr", "min_lr_rate"): number("train.final_ratio"),
    ("cosine_with_restarts", "num_cycles"): number("train.cycles", int),
    ("polynomial", "power"): number("train.power"),
    ("polynomial", "lr_end"): final_rate,
    ("warmup_stable_decay", "num_decay_steps"): number("train.decay", int),
    ("warmup_stable_decay", "min_lr_ratio"): number("train.final_ratio"),
    ("warmup_stable_decay", "decay_type"): choice("train.decay_shape", _words(dict.fromkeys(DESCENTS, ""))),
}
"""What ``lr_scheduler_kwargs`` may hold, by the schedule's name there and the number's."""
