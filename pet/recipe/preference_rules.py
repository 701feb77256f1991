"""What must hold between the settings of a recipe that learns from preferences."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.settings import NO_PLACE
from pet.recipe.classes import OPTIONS
from pet.recipe.fields import ADAPTERS_OFF, PRECOMPUTE
from pet.recipe.schema import Recipe
from pet.recipe.training import GENERATED


def problems(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """(key, the key that it is at odds with, what is wrong) of each problem."""
    train = recipe.train
    if train.objective == "robust" and train.label_smoothing >= 0.5:
        yield ("train.label_smoothing", "train.objective", "robust takes less than half of the pairs to be wrong")
    if train.objective == "kto":
        if recipe.adapter.method == "none":
            yield ("adapter.method", "train.objective", "kto asks the base beside the adapter; choose one")
        elif recipe.adapter.load is not None:
            yield ("adapter.load", "train.objective", "kto's reference is the base; merge the adapter first")
        if train.batch_size // recipe.parallel.data % 2:
            yield ("train.batch_size", "train.objective", "kto exchanges answers of two rows; give an even number")
    if train.objective == "reward":
        if recipe.adapter.method == "none":
            yield ("adapter.method", "train.objective", "reward trains a head beside an adapter; choose one")
        if recipe.output.merged:
            yield ("output.merged", "train.objective", NO_PLACE)
        if written := [name for name in recipe.eval.metrics if name in GENERATED]:
            yield ("eval.metrics", "train.objective", f"{', '.join(written)}: a reward model writes no answers")
    if train.objective in (*OPTIONS["reference"], "kto"):  # it is computed before the first step, by the whole model
        without = "orpo and simpo have no reference"
        off = ADAPTERS_OFF if recipe.data.streaming and not getattr(recipe.adapter, "load", None) else PRECOMPUTE
        off = train.objective != "kto" and (train.reference or off) == ADAPTERS_OFF
        if off and recipe.adapter.method == "none":
            yield ("adapter.method", "train.reference", f"{ADAPTERS_OFF}: there is no adapter to switch off")
        if recipe.data.streaming and not off:
            yield ("data.streaming", "train.objective", f"{train.objective} reads the data beforehand; {without}")
