"""Whether a step fits into the memory of this machine, before anything is compiled."""

from __future__ import annotations

import dataclasses
import math

from adapters.patterns import names_like
from model_zoo.errors import InputError
from model_zoo.resources import machine_memory


def step_memory(recipe, config: dict, adapter, length: int, **types) -> float:
    """Bytes of a step in the fullest process, as `pet plan` counts them.

    Args:
        recipe: its batch and layout.
        adapter: the method's configuration; None trains every weight.
        length: tokens of a row.
        types: ``dtype``, ``stored``, ``quantization`` and ``precision`` of a `pet.planning.search.Work`.
    """
    from pet.meta_model import MetaModel
    from pet.parallel.shares import shares
    from pet.planning.cluster import Cluster
    from pet.planning.search import Work, candidate

    train, layout = recipe.train, recipe.parallel
    r_drop = train.r_drop_alpha > 0
    rows = train.batch_size * (2 if r_drop else 1)
    micro = max(1, rows // layout.data // layout.micro_batches)
    settings = {"optimizer": train.optimizer, "recompute": train.recompute, "micro_batch": micro}
    settings |= {"r_drop": r_drop, "restarts": train.restart_every is not None}
    work = Work(MetaModel(config), adapter, rows * train.accumulation, length, **settings, **types)
    replicas = layout.data if layout.shard_base else 1
    divided = shares(work.meta_model, adapter, layout.tensor, layout.pipeline, replicas)
    if patterns := getattr(recipe.adapter, "trained", None):
        names = [share.name for share in divided.shares]
        chosen = {name for pattern in patterns for name in names_like(pattern, names)}
        kept = tuple(dataclasses.replace(share, trained=share.name in chosen) for share in divided.shares)
        divided = dataclasses.replace(divided, shares=kept)
    cluster = Cluster(layout.processes, math.inf)
    places = (layout.data, layout.tensor, layout.pipeline, layout.shard_optimizer, micro)
    return candidate(work, cluster, divided, *places).total


def types_of(model) -> dict[str, str]:
    """The types of a model's activations and matrices: that of its norms, and that of its embedding, which may be an
    adapter's (modules_to_save)."""
    from model_zoo.checkpoint.dtypes import float_name
    from model_zoo.checkpoint.parameters import base_parameters

    own = [one for one in base_parameters(model).values() if not hasattr(one, "packed_in")]
    types = {len(one.shape) == 2: float_name(one.dtype) for one in reversed(own)}
    return {"dtype": types.get(False, types.get(True)), "stored": types.get(True)}


def check_room(recipe, prepared) -> None:
    """Refuses a step that needs more than the machine has, on a CPU: there all processes share its memory.

    Args:
        prepared: model, tokenizer and data (`pet.train.prepare.Prepared`).

    Raises:
        InputError: with what to lower.
    """
    import mindspore as ms

    from adapters.saving import form_of
    from model_zoo.quantization import Quantization
    from pet.recipe.adapter import recipe_method
    from pet.train.precision import choose_precision

    if ms.get_context("device_target") != "CPU":
        return
    feed, config = prepared.train_feed, prepared.model.config.to_dict()
    length = max(length for _, length in feed.shapes(0))
    form = form_of(prepared.model)
    types = {**types_of(prepared.model), "quantization": Quantization.read(form) if form else None}
    asked = recipe.train.precision
    types["precision"] = choose_precision(asked).name if asked == "auto" else asked
    try:
        adapter = recipe_method(recipe.adapter, recipe.train.seed, prepared.tokenizer)
        needed = step_memory(recipe, config, adapter, length, **types) * recipe.parallel.processes
    except (InputError, AttributeError):  # cannot be counted: a meta model has no weights that an adapter starts from
        return
    there = machine_memory()
    if needed > there:
        rows, recompute = recipe.train.batch_size, "" if recipe.train.recompute else ", or set train.recompute: true"
        raise InputError(
            f"{recipe.where('train.batch_size')}: a step of {rows} rows of {length} tokens needs {needed / 1e9:,.1f} "
            f"GB, and this machine has {there / 1e9:,.1f} GB; lower train.batch_size (train.accumulation keeps the "
            f"rows of a step) or data.max_length{recompute}"
        )
