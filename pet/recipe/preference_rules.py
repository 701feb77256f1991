"""What must hold between the settings of a recipe that learns from preferences."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.settings import NO_HEAD, NO_PLACE, named
from pet.recipe.fields import ADAPTERS_OFF, PRECOMPUTE
from pet.recipe.schema import Recipe

LESS_THAN_HALF = "robust takes less than half of the pairs to be wrong"


def problems(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """(key, the key that it is at odds with, what is wrong) of each problem."""
    train = recipe.train
    if train.objective == "robust" and train.label_smoothing >= 0.5:
        yield ("train.label_smoothing", "train.objective", LESS_THAN_HALF)
    if train.objective == "kto" and train.batch_size // recipe.parallel.data % 2:
        yield ("train.batch_size", "train.objective", "kto exchanges answers of two rows; give an even number")
    if train.objective == "reward":
        if recipe.adapter.method == "none":
            yield ("adapter.method", "train.objective", "reward trains a head beside an adapter; choose one")
        elif not named(recipe.adapter.method).targeted:
            yield ("adapter.method", "train.objective", f"{recipe.adapter.method} {NO_HEAD}; expected lora, for one")
        if recipe.output.merged:
            yield ("output.merged", "train.objective", NO_PLACE)
        if written := recipe.eval.written:
            yield ("eval.metrics", "train.objective", f"{', '.join(written)}: a reward model writes no answers")
    if train.reference == ADAPTERS_OFF and recipe.adapter.method == "none":
        yield ("adapter.method", "train.reference", f"{ADAPTERS_OFF}: there is no adapter to switch off")
    if train.reference == PRECOMPUTE and recipe.data.streaming:
        yield ("data.streaming", "train.reference", f"{PRECOMPUTE} reads the data beforehand; leave it out")
