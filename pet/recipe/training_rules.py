"""What must hold between the settings of a ``train`` section, in a recipe and in `pet.train.trainer.Trainer`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adapters.settings import FROM_WEIGHTS
from pet.recipe.classes import OPTIONS
from pet.recipe.schema import Recipe

Finding = tuple[str, str, str]
"""The key that is wrong, those that it is at odds with (with spaces between), and what is wrong."""


def given(part: Any, name: str) -> bool:
    """Was the section's setting given, with another value than its default?"""
    default = type(part).model_fields[name].get_default(call_default_factory=True)
    return name in part.model_fields_set and getattr(part, name) != default


def length(recipe: Recipe) -> Iterator[Finding]:
    """Steps, epochs, warm-up and descent."""
    train = recipe.train
    if train.steps is not None and train.epochs is not None:
        yield "train.steps", "train.epochs", "give steps or epochs, not both"
    for name in ("warmup_power", "warmup_from"):
        if given(train, name) and not train.warmup:
            yield f"train.{name}", "train.warmup", "has no effect without a warm-up"
    if train.schedule_steps is not None and train.schedule == "constant" and not 0 < train.warmup < 1:
        yield "train.schedule_steps", "train.schedule", "has no effect on a constant rate whose warm-up is no fraction"
    if train.schedule != "wsd":
        return  # a warm-up longer than the run is shortened to it
    for name in ("decay_shape", "final_ratio") if train.decay == 0 else ():
        if given(train, name) and (name, train.warmup_like) not in RISES_FROM:
            yield f"train.{name}", "train.decay", "has no effect without a descent"
    phases = [("train.warmup", train.warmup), ("train.decay", train.decay)]
    shares = sum(value for _, value in phases if value < 1)
    steps = sum(value for _, value in phases if value >= 1)
    key = "train.schedule_steps" if train.schedule_steps is not None else "train.steps"
    whole = train.schedule_steps or train.steps
    if whole is not None:
        for name, value in phases:
            if value > whole:
                yield name, key, f"{value} steps are more than the run has ({key}: {whole})"
                return
        if steps + shares * whole > whole:
            yield "train.warmup", f"{key} train.decay", "warm-up and descent are longer than the run"
    elif shares > 1:
        yield "train.warmup", "train.decay", "the shares of warm-up and descent are more than the whole run"


RISES_FROM = [("final_ratio", like) for like in ("transformers", "axolotl")]
"""There the warm-up of wsd begins at the end's rate."""


def restarts(recipe: Recipe) -> Iterator[Finding]:
    """An adapter that is begun anew."""
    train, section, layout = recipe.train, recipe.adapter, recipe.parallel
    if train.restart_every is None:
        return
    if train.restart_warmup + train.restart_decay > train.restart_every:
        phases = f"{train.restart_warmup} steps of warm-up and {train.restart_decay} of descent are more than that"
        yield "train.restart_every", "train.restart_warmup train.restart_decay", phases
    if train.objective in OPTIONS["reference"]:
        yield "train.restart_every", "train.objective", f"{train.objective} compares with the base, which would change"
    if section.method != "lora" or section.init in FROM_WEIGHTS:
        yield "train.restart_every", "adapter.method adapter.init", "LoRA whose B begins at zero alone can begin anew"
    if divided := [name for name in DIVIDING if given(layout, name)]:
        keys = " ".join(f"parallel.{name}" for name in divided)
        yield (
            "train.restart_every",
            keys,
            "matrices or their optimizer's state would have to be whole; use parallel.data",
        )


DIVIDING = ("tensor", "pipeline", "shard_base", "shard_optimizer")
"""Settings of the layout that leave a process a part of what a restart needs whole."""

USERS = {
    "momentum": (("momentum",), "optimizer"),
    "betas": (("adamw", "adam", "lamb", "lion"), "optimizer"),
    "eps": (("adamw", "adam", "lamb"), "optimizer"),
    "bias_correction": (("adamw",), "optimizer"),
    "cycles": (("cosine_restarts",), "schedule"),
    "power": (("polynomial",), "schedule"),
    "decay": (("wsd",), "schedule"),
    "decay_shape": (("wsd",), "schedule"),
    "final_ratio": (("linear", "cosine", "cosine_restarts", "polynomial", "wsd"), "schedule"),
    "restart_prune": (("adamw", "adam", "momentum", "lamb", "lion", "adafactor"), "optimizer"),
    "loss_scale": (("fp16",), "precision"),
    **{option: (users, "objective") for option, users in OPTIONS.items()},
}
"""Settings of training -> who uses them, and the setting that chooses between these."""


def without_effect(train: Any) -> Iterator[tuple[str, str, str]]:
    """(setting, the one that chooses, what is wrong) of each that was given to a ``train`` section in vain."""
    for name, (users, chooser) in USERS.items():
        if (chosen := getattr(train, chooser)) not in users and given(train, name):
            yield name, chooser, f"has no effect with train.{chooser}: {chosen}; it belongs to {', '.join(users)}"
    if train.warmup_most is not None and (train.warmup >= 1 or train.warmup == 0):
        yield "warmup_most", "warmup", f"has no effect with train.warmup: {train.warmup}"
    if train.decay_vectors and not train.weight_decay:
        yield "decay_vectors", "weight_decay", "has no effect without train.weight_decay"
    if idle := [group.match for group in train.groups if group.learning_rate is None and group.weight_decay is None]:
        yield "groups", "groups", f"{', '.join(idle[0])}: has no effect without a learning_rate or a weight_decay"
    for name in ("restart_warmup", "restart_decay", "restart_prune"):
        if train.restart_every is None and given(train, name):
            yield name, "restart_every", "has no effect without train.restart_every"
