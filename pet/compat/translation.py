"""From another system's settings to a recipe's, with a list of what has no meaning here and of what cannot be had."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from model_zoo.errors import InputError, nearest, similar

log = logging.getLogger("pet")


@dataclasses.dataclass(frozen=True)
class Ignored:
    """A setting without influence on the results here; ``why`` says so to the user."""

    why: str


@dataclasses.dataclass(frozen=True)
class Refused:
    """A setting that would change the results and cannot be had, unless its value is among the harmless ones."""

    why: str
    harmless: tuple = (None, False, 0, "", "no", "none")


Rule = str | Ignored | Refused | Callable[["Translation", str, Any], None]
"""A recipe's key that takes the value as it is, or what to do with it."""


class Translation:
    """Settings of a recipe by dotted key, as they are collected.

    Args:
        system: whose settings are translated; begins the messages.

    Attributes:
        settings: ``{"train.learning_rate": 1e-3, …}``.
        ignored: ``{name: why}`` of what has no meaning here.
        problems: what is wrong, all of it.
    """

    def __init__(self, system: str):
        self.system = system
        self.settings: dict[str, Any] = {}
        self.ignored: dict[str, str] = {}
        self.problems: list[str] = []

    def put(self, key: str, value: Any) -> None:
        """Sets a key of the recipe; None leaves it as it is."""
        if value is not None:
            self.settings[key] = os.fspath(value) if isinstance(value, os.PathLike) else value

    def get(self, key: str, default: Any = None) -> Any:
        """What was set for a key."""
        return self.settings.get(key, default)

    def ignore(self, name: str, why: str) -> None:
        """Notes a setting that has no meaning here."""
        self.ignored[name] = why

    def refuse(self, name: str, why: str) -> None:
        """Notes a setting that cannot be served."""
        self.problems.append(f"{self.system}: {name}: {why}")

    def apply(self, given: Mapping[str, Any], table: Mapping[str, Rule], prefix: str = "") -> None:
        """Translates settings by a table. Those that are None count as not given; unknown ones are problems."""
        for name, value in given.items():
            shown = prefix + str(name)
            if name not in table:
                self.refuse(shown, f"is not known{nearest(str(name), table)}")
                continue
            if value is None:
                continue
            rule = table[name]
            if isinstance(rule, str):
                self.put(rule, value)
            elif isinstance(rule, Ignored):
                self.ignore(shown, rule.why)
            elif isinstance(rule, Refused):
                if not any(value is each or (type(value) is type(each) and value == each) for each in rule.harmless):
                    self.refuse(shown, f"{value!r}: {rule.why}")
            else:
                rule(self, shown, value)

    def finish(self) -> None:
        """Says once what is ignored, and what falls back: a job file may have been written for another device.

        Raises:
            InputError: all problems together.
        """
        if self.problems:
            raise InputError.collect(self.problems)
        if self.get("train.precision") == "bf16":
            from pet.train.precision import has_bf16

            if not has_bf16():
                log.warning("%s: this device has no bf16 products; train.precision is fp32", self.system)
                self.put("train.precision", "fp32")
        if self.ignored:
            log.warning("%s: without meaning here: %s", self.system, "; ".join(self.ignored_lines()))

    def ignored_lines(self) -> list[str]:
        """``name: why`` of what is ignored."""
        return [f"{name}: {why}" for name, why in self.ignored.items()]


METHODS = {
    "": "none",
    "none": "none",
    "full": "none",
    "lora": "lora",
    "dora": "dora",
    "prefix": "prefix",
    "prefixtuning": "prefix",
    "prefix_tuning": "prefix",
    "ptuning2": "ptuning2",
    "ptuning_v2": "ptuning2",
    "p-tuning_v2": "ptuning2",
    "prompt": "prompt",
    "prompt_tuning": "prompt",
    "p_tuning": "p_tuning",
    "adapter": "adapter",
    "low_rank_adapter": "low_rank_adapter",
    "lowrankadapter": "low_rank_adapter",
    "ia3": "ia3",
    "bitfit": "bitfit",
}


def method_of(name: str | None) -> str:
    """A recipe's ``adapter.method`` for the name that a method has elsewhere, in any case.

    Raises:
        InputError: no such method.
    """
    key = str(name or "").lower()
    if key not in METHODS:
        raise InputError(f"pet_method {name!r} is not known; supported: {', '.join(METHODS)}{similar(key, METHODS)}")
    return METHODS[key]


SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "constantwarmuplr": "constant",
    "linear": "linear",
    "linearwithwarmuplr": "linear",
    "cosine": "cosine",
    "cosinewithwarmuplr": "cosine",
    "cosinedecaylr": "cosine",
    "cosine_with_restarts": "cosine_restarts",
    "cosine_restarts": "cosine_restarts",
    "cosinewithrestartsandwarmuplr": "cosine_restarts",
    "polynomial": "polynomial",
    "polynomialwithwarmuplr": "polynomial",
    "warmup_stable_decay": "wsd",
    "wsd": "wsd",
}
OPTIMIZERS = {
    "adamw": "adamw",
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw_bnb_8bit": "adamw",
    "adamw_8bit": "adamw",
    "fp32adamweightdecay": "adamw",
    "fp32_adamw": "adamw",
    "fusedadamweightdecay": "adamw",
    "adamweightdecay": "adamw",
    "adam": "adam",
    "adafactor": "adafactor",
    "lamb": "lamb",
    "sgd": "sgd",
    "momentum": "momentum",
}


def choice(key: str, known: Mapping[str, str]) -> Callable[[Translation, str, Any], None]:
    """A rule that puts the recipe's word for another system's."""

    def rule(translation: Translation, name: str, value: Any) -> None:
        word = str(getattr(value, "value", value)).lower()
        if word not in known:
            translation.refuse(name, f"{value!r} is not supported; known: {', '.join(known)}{similar(word, known)}")
            return
        translation.put(key, known[word])

    return rule


def both_betas(index: int) -> Callable[[Translation, str, Any], None]:
    """A rule for one of the two decays that the recipe keeps in one list."""

    def rule(translation: Translation, name: str, value: Any) -> None:
        betas = list(translation.get("train.betas", [0.9, 0.999]))
        betas[index] = float(value)
        translation.put("train.betas", betas)

    return rule


def clip(translation: Translation, name: str, value: Any) -> None:
    """A gradient norm; 0 turns clipping off elsewhere, null does so here."""
    translation.settings["train.clip_norm"] = float(value) or None
