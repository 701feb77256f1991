"""Whether a model and its adapter can be divided as a recipe asks, by shapes alone: said before any process starts."""

from __future__ import annotations

from model_zoo.errors import InputError
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
    meta_model = MetaModel(recipe.model.config_json())
    divided = shares(meta_model, adapter, layout.tensor, layout.pipeline, replicas)
    check_packed(packed_matrices(recipe.model, meta_model.config), meta_model.config, divided)
    if recipe.train.objective not in JUDGING and not getattr(recipe.adapter, "trainable_tokens", None):
        divided.trained()  # which knows nothing of these


def packed_matrices(section, config) -> dict:
    """{name: its form} of the matrices that are held in 8 or 4 bits: as files have them, else as is asked for."""
    from model_zoo.checkpoint.reading import Checkpoint
    from model_zoo.quantization.files import SECTION
    from pet.names import find_model

    asked = section.quantization.settings()
    if section.from_scratch or not (asked or SECTION in section.config_json()):
        return {}
    with Checkpoint(find_model(section.path)) as checkpoint:
        if checkpoint.packed:
            return {name: tensor.storage for name, tensor in checkpoint.packed.items()}
    return {f"{path}.weight": asked.storage for path in asked.places(config)} if asked else {}


def check_packed(packed: dict, config, divided) -> None:
    """Raises InputError for a packed matrix that replicas would share, or whose blocks shards would cut too small.

    Args:
        packed: `packed_matrices`.
        divided: a `pet.parallel.shares.Layout`.
    """
    from pet.parallel.gathered import not_gathered
    from pet.parallel.shares import packed_part

    for share in (share for share in divided.shares if share.name in packed and not share.adapter):
        path = share.name.rpartition(".")[0]
        if share.replicas > 1:
            raise InputError(not_gathered(path))
        packed_part(share, packed[share.name], config.cells()[path].transposed)
