"""From a checkpoint directory, a preset or a configuration to the family's classes."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

import mindspore as ms

from model_zoo.arguments import asked_as_elsewhere, checked
from model_zoo.atomic import check_name
from model_zoo.causal_lm import CausalLM
from model_zoo.checkpoint.dtypes import float_name
from model_zoo.checkpoint.reading import Checkpoint, assignment, load_into, read_config
from model_zoo.configs import Config
from model_zoo.errors import InputError, located, nearest, warn_once
from model_zoo.families import PRESETS, config_class
from model_zoo.initialise import initialise
from model_zoo.quantization.loading import pack_model, storages
from model_zoo.quantization.plan import Quantization
from model_zoo.storage import kept_types, set_storage, stored_types


def model_class(config: type[Config]) -> type[CausalLM]:
    """The class of the models that a configuration describes."""
    return resolve_name(config.model)


class AutoConfig:
    """Configurations by directory or preset name."""

    @staticmethod
    def from_pretrained(name_or_directory: str | Path) -> Config:
        """The configuration of a checkpoint directory or of a preset (``llama_7b``).

        Raises:
            InputError: neither, or a value that the family does not support.
        """
        check_name(name_or_directory)
        if Path(name_or_directory).is_dir():
            values, where = read_config(name_or_directory), Path(name_or_directory)
        elif str(name_or_directory) in PRESETS:
            values, where = PRESETS[str(name_or_directory)], f"preset {name_or_directory}"
        else:
            raise InputError(
                f"{name_or_directory}: no checkpoint directory and no preset{nearest(name_or_directory, PRESETS)}"
            )
        with located(where):
            return config_class(values).from_dict(values)


class AutoModel:
    """Models by directory, preset or configuration."""

    @staticmethod
    @asked_as_elsewhere
    def from_pretrained(
        directory: str | Path, dtype: str = "float32", quantization: Quantization | None = None
    ) -> CausalLM:
        """The model of a Hugging Face checkpoint directory, with its weights.

        Args:
            directory: holds config.json and model.safetensors (or shards with their index).
            dtype: of the parameters in memory. float32 by default: the conversion from fp16 or bf16 is exact, and a CPU
                has no kernels for their products. ``"auto"`` computes in float32 too, to the same bits, but leaves the
                weights of products and tables in the 16 bits that they are stored in (`model_zoo.storage`): for bases
                that stay frozen.
            quantization: pack the frozen projections in 8 or 4 bits while they are loaded. What the file has packed
                stays so.

        Raises:
            InputError: a preset name (it has no weights), no such directory, a tensor missing, extra or misshapen.
        """
        if not Path(directory).is_dir():
            hint = nearest(directory, PRESETS)
            if str(directory) in PRESETS:
                hint = (
                    ": a preset holds dimensions, no weights; download the published checkpoint and give its "
                    "directory, or ask for random weights by AutoModel.from_config"
                )
            raise InputError(f"{directory}: no such checkpoint directory{hint}")
        return AutoModel.from_directory(directory, AutoConfig.from_pretrained(directory), dtype, quantization)

    @staticmethod
    def from_directory(
        directory: str | Path, config: Config, dtype: str = "float32", quantization: Quantization | None = None
    ) -> CausalLM:
        """A checkpoint read by a configuration, which may differ from its own.

        The file's tensors are held to the configuration before a model is made: one of the wrong size may not fit into
        memory.
        """
        with Checkpoint(directory) as checkpoint:
            model = AutoModel.unloaded(checkpoint, config, dtype, quantization)
            load_into(model, checkpoint)
        return model

    @staticmethod
    def unloaded(
        checkpoint: Checkpoint, config: Config, dtype: str, quantization: Quantization | None = None
    ) -> CausalLM:
        """A model for a checkpoint, without the weights, which take no memory until they are loaded."""
        family, shapes = config.family, config.shapes()
        if config.left_out:
            warn_once(f"{checkpoint.directory}: {config.left_out}")
        sources, _ = assignment(checkpoint, shapes, family.tied, family.ignored_tensors)
        forms = storages(config, checkpoint, quantization)
        model = model_class(type(config))(config, dtype=compute_type(dtype))
        pack_model(model, forms)
        if str(dtype) == "auto":
            set_storage(model, kept_types(config, stored_types(checkpoint, sources)))
        return model

    @staticmethod
    @checked
    def from_config(config: Config | dict | str, dtype: object = "float32", seed: int = 0) -> CausalLM:
        """A model with random weights, from a preset's name, a config.json's dictionary or a configuration.

        Args:
            config: what to build.
            dtype: of the parameters.
            seed: of the weights; the same seed gives the same model.
        """
        if isinstance(config, str):
            config = AutoConfig.from_pretrained(config)
        elif isinstance(config, dict):
            config = config_class(config).from_dict(config)
        return initialise(model_class(type(config))(config, dtype=compute_type(dtype)), seed)


def compute_type(dtype: str):
    """MindSpore's type that a model computes in; ``"auto"`` is float32."""
    return ms.float32 if str(dtype) == "auto" else getattr(ms, float_name(dtype))
