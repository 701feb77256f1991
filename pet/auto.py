"""``AutoModel``, ``AutoConfig`` and ``AutoTokenizer`` that also know the bundled tiny bases by name.

The classes of ``model_zoo`` take directories, presets and configurations; names of what this package ships are resolved
here, so that ``model_zoo`` can be used without it.
"""

from __future__ import annotations

import os
from typing import Any

from model_zoo import auto, tokenizers
from model_zoo.arguments import asked_as_elsewhere, check_argument
from model_zoo.causal_lm import CausalLM
from model_zoo.configs import Config
from model_zoo.quantization import Quantization
from pet.hub import bare, hub_name
from pet.names import bundled_models, find_model, find_tokenizer, preset_names


class AutoConfig(auto.AutoConfig):
    """Configurations by directory, bundled name or preset name."""

    @staticmethod
    def from_pretrained(name_or_directory: str | os.PathLike) -> Config:
        """The configuration of a checkpoint directory, a bundled tiny base or a preset such as ``llama_7b``.

        Raises:
            InputError: nothing has this name; the message names the nearest.
        """
        if str(name_or_directory) in preset_names():
            return auto.AutoConfig.from_pretrained(str(name_or_directory))
        return auto.AutoConfig.from_pretrained(find_model(name_or_directory))


class AutoModel(auto.AutoModel):
    """Models by directory or bundled name; with random weights from a preset or configuration."""

    @staticmethod
    @asked_as_elsewhere
    def from_pretrained(
        name_or_directory: str | os.PathLike,
        dtype: object = "float32",
        quantization: Quantization | dict[str, Any] | None = None,
    ) -> CausalLM:
        """The model of a Hugging Face checkpoint directory or of a bundled tiny base, with its weights.

        Args:
            name_or_directory: holds config.json and ``*.safetensors``; or ``glm_tiny`` and its siblings.
            dtype: of the parameters in memory: float32, float16, bfloat16, or auto (16-bit weights stay as they are
                stored, and are computed with in float32; see `model_zoo.auto.AutoModel`).
            quantization: a `Quantization`, or its fields in a dictionary: pack the frozen projections in 8 or 4 bits
                while they are loaded, as ``{"type": "nf4", "double": True}``.

        Raises:
            InputError: no such model, or a tensor is missing, extra or misshapen.
        """
        check_argument("quantization", "Quantization | dict | None", quantization)
        if isinstance(quantization, dict):
            quantization = Quantization.named(quantization)
        model = auto.AutoModel.from_pretrained(find_model(name_or_directory), dtype, quantization)
        if str(name_or_directory) in bundled_models() or hub_name(str(name_or_directory)):
            model.base_name = bare(str(name_or_directory))  # an adapter says it, so that it is found on other machines
        return model


class AutoTokenizer(tokenizers.AutoTokenizer):
    """Tokenizers by directory, file or bundled name."""

    @staticmethod
    @asked_as_elsewhere
    def from_pretrained(name_or_path: str | os.PathLike) -> tokenizers.Tokenizer:
        """The tokenizer of a checkpoint directory, a tokenizer file or a bundled tiny base.

        Raises:
            InputError: no such directory, or no tokenizer file that is known in it.
        """
        return tokenizers.AutoTokenizer.from_pretrained(find_tokenizer(name_or_path))
