"""A recipe: everything that a run depends on, checked before anything starts.

``Recipe`` is made by :func:`pet.recipe.load` from a YAML file and overrides. Once loaded, all paths in it are absolute,
environment variables are replaced, and every default stands in its place.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PrivateAttr

from model_zoo import quantization
from model_zoo.quantization.storage import KINDS
from model_zoo.rope_config import with_changes
from pet.names import model_config
from pet.recipe.adapter import SECTIONS, Adapter
from pet.recipe.data import Data
from pet.recipe.fields import ModelPath, Names, RunName, Section
from pet.recipe.source import Source, dotted
from pet.recipe.training import Callbacks, Eval, Generation, Output, Parallel, Train


class Quantization(Section):
    """Frozen weights in 8 or 4 bits, packed while the model is loaded."""

    type: Literal[KINDS] | None = Field(
        None,
        description="Left out: as they are stored, packed ones included. nf4, fp4: 4 bits (Dettmers et al. 2023). "
        "int8: 8 bits by row. int4: symmetric 4 bits in groups, the form that Ascend multiplies by.",
    )
    block: int = Field(
        64, description="Weights that share a factor: 32 … 4096 for nf4 and fp4, 32, 64 or 128 for int4; int8 has rows."
    )
    double: bool = Field(False, description="Quantise the factors too (nf4, fp4): 4.13 bits per weight instead of 4.5.")
    skip: Names | None = Field(
        None, description="Projections that stay as they are, by name or path. Default: the head. []: none."
    )

    def settings(self) -> quantization.Quantization | None:
        """The same for the model's loader. Raises InputError: a block or double quantisation that the type has not."""
        if self.type is None:
            return None
        skip = None if self.skip is None else tuple(self.skip)
        return quantization.Quantization(self.type, self.block, self.double, skip)


class Model(Section):
    """The base model."""

    path: ModelPath = Field(
        description="A Hugging Face checkpoint directory, a bundled tiny base (glm_tiny, glm4_tiny, llama_tiny, "
        "gpt_tiny), or with from_scratch a preset name such as llama_7b or a config.json."
    )
    tokenizer: ModelPath | None = Field(
        None, description="Directory of the tokenizer. Left out: model.path, which for a preset name holds none."
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto",
        description="Dtype of the weights in memory. auto: frozen weights stay in the 16 bits that they are stored in; "
        "what is computed and trained is float32, to the same bits as with float32. On a CPU only auto and float32 "
        "have every operator.",
    )
    quantization: Quantization = Field(default_factory=Quantization, description="Frozen weights in 8 or 4 bits.")
    config: dict[str, Any] = Field(
        default_factory=dict, description="Overrides of config.json's keys, such as max_position_embeddings."
    )
    from_scratch: bool = Field(False, description="Start from random weights; for pet train only.")

    def config_json(self) -> dict[str, Any]:
        """The base's config.json with the overrides in it."""
        return with_changes(model_config(self.path), self.config)


class Recipe(Section):
    """One job: a model, an adapter, data, and how to bring them together."""

    name: RunName | None = Field(None, description="Name of the run. Default: the name of the recipe file.")
    description: str | None = Field(None, description="Purpose of the recipe, in a sentence or two.")
    model: Model = Field(description="The base model.")
    adapter: Adapter = Field(
        default_factory=lambda: SECTIONS[0](method="lora"), description="Tuning method and its settings. Default: LoRA."
    )
    data: Data = Field(default_factory=Data, description="Data files, tokenisation and batching.")
    train: Train = Field(
        default_factory=Train, description="Training length, batches, optimizer, precision, checkpoints."
    )
    eval: Eval = Field(default_factory=Eval, description="Evaluation: metrics and schedule.")
    generation: Generation = Field(default_factory=Generation, description="Generation settings.")
    parallel: Parallel = Field(default_factory=Parallel, description="Parallel layout.")
    output: Output = Field(default_factory=Output, description="Output directory and what is saved.")
    callbacks: Callbacks = Field(
        default_factory=list, description="Callbacks, besides the progress line and metrics.jsonl."
    )

    _source: Source | None = PrivateAttr(None)

    def __eq__(self, other: object) -> bool:
        # not by pydantic's comparison, which would compare the files that the recipes came from as well
        return isinstance(other, Recipe) and self.model_dump() == other.model_dump()

    def where(self, key: str) -> str:
        """``file:line: key``, to begin a message about something that only showed when the run was set up."""
        path = tuple(key.split("."))
        return f"{self._source.where(path)}: {dotted(path)}" if self._source else key
