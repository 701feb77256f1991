"""The layout of processes by MindFormers' names, as a recipe's ``parallel`` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pet.compat.translation import same
from pet.recipe.translation import Ignored, Refused, Translation

TABLE = {
    "data_parallel": "parallel.data",
    **same("parallel.tensor", "model_parallel tensor_parallel"),
    **same("parallel.pipeline", "pipeline_stage pipeline_parallel"),
    **same("parallel.micro_batches", "micro_batch_num micro_size"),
    "optimizer_shard": "parallel.shard_optimizer",
    "use_seq_parallel": Ignored("it divides activations between norms, which changes memory, not results"),
    "seq_split_num": Ignored("it divides a row's way through the stages, which changes memory, not results"),
    "mem_coeff": Ignored("MindSpore's search for a layout is not used"),
    "context_parallel": Refused("sequences are not divided over processes", harmless=(0, 1)),
    "expert_parallel": Refused("there are no expert layers", harmless=(0, 1)),
    "vocab_emb_dp": Ignored("the vocabulary is divided where its size allows it"),
    "gradient_aggregation_group": Ignored("gradients travel as one vector"),
    "micro_batch_interleave_num": Ignored("a batch has the rows of all, which are not computed in turns"),
}

defaults: dict[str, Any] = {}
"""What a script said of the layout before it made a trainer (``init_context``), by the names above."""


def translate_parallel(given: dict[str, Any], system: str = "parallel_config") -> Translation:
    """A layout as a `Translation`; micro-batches without a pipeline are none."""
    translation = Translation(system)
    translation.apply({**defaults, **given}, TABLE)
    if translation.get("parallel.pipeline", 1) == 1:
        translation.drop("parallel.micro_batches")
    return translation


def layout_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """The layout in a file's values, by the names above: one of them stands at the top."""
    name = "micro_batch_interleave_num"
    beside = {} if values.get(name) in (None, 1) else {name: values[name]}
    return {**beside, **(values.get("parallel_config") or {})}


def layout_in_recipe(values: Any) -> dict[str, Any]:
    """The same of a recipe's values."""
    there = (values.get("parallel") if isinstance(values, Mapping) else None) or {}
    keys = {name: key.partition(".")[2] for name, key in TABLE.items() if isinstance(key, str)}
    return if_divided({name: there[key] for name, key in keys.items() if key in there})


def layout_of_model(model: Any) -> dict[str, Any]:
    """The same of a model's configuration, on which scripts set it as ``parallel_config``."""
    said = getattr(getattr(model, "config", None), "parallel_config", None) or {}
    values = said if isinstance(said, Mapping) else vars(said)
    return if_divided({name: one for name, one in values.items() if name in TABLE})


def if_divided(layout: dict[str, Any]) -> dict[str, Any]:
    """A layout of several processes, or nothing."""
    sizes = [layout.get(name) or 1 for name in ("data_parallel", "model_parallel", "pipeline_stage")]
    return layout if any(size != 1 for size in sizes) else {}


def rows_of(layout: Translation, given: Mapping[str, Any]) -> int:
    """By what a batch size of MindFormers is multiplied to be that of a recipe: it counts one copy's micro-batch.

    Args:
        layout: of processes, translated.
        given: the same by MindFormers' names.
    """
    interleaved = int(given.get("micro_batch_interleave_num") or 1)
    return layout.get("parallel.data", 1) * layout.get("parallel.micro_batches", 1) * interleaved


def put_pipeline(t: Translation) -> None:
    """Leaves accumulation to a pipeline's micro-batches, as MindFormers does."""
    if t.get("parallel.pipeline", 1) > 1 and t.get("train.accumulation", 1) > 1:
        t.drop("train.accumulation")
        t.ignore("gradient_accumulation_steps", "a pipeline accumulates over its micro-batches alone in MindFormers")
