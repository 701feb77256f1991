"""Whether a model and its adapter can be divided as a recipe asks, by shapes alone: said before any process starts."""

from __future__ import annotations

from pet.parallel.checks import check_optimizer


def check_fits(recipe) -> None:
    """Raises InputError for a layout that the recipe's model, adapter or optimizer cannot have.

    What divides a model says so, from shapes alone (`pet.parallel.shares`). An adapter that is loaded is divided when
    its files have been read; the model beneath it is looked at here.
    """
    layout = recipe.parallel
    replicas = layout.data if layout.shard_base else 1
    if layout.tensor * layout.pipeline * replicas == 1:
        return
    check_optimizer(recipe.train.optimizer, layout.tensor)
    # they import MindSpore, which a launcher does without
    from pet.meta_model import MetaModel
    from pet.parallel.shares import shares
    from pet.recipe.adapter import recipe_method
    from pet.recipe.classes import JUDGING

    loaded = getattr(recipe.adapter, "load", None)
    adapter = None if loaded else recipe_method(recipe.adapter, recipe.train.seed)
    divided = shares(MetaModel(recipe.model.config_json()), adapter, layout.tensor, layout.pipeline, replicas)
    if recipe.train.objective not in JUDGING and not getattr(recipe.adapter, "trainable_tokens", None):
        divided.trained()  # which knows nothing of these
