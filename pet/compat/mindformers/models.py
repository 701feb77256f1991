"""MindFormers' concrete classes of models, configurations, tokenizers and processors, over those of `model_zoo`.

Configurations take MindFormers' argument names and give this library's configuration objects; model classes take such
a configuration and give this library's models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_zoo import glm, glm4, gpt, llama
from model_zoo import tokenizers as own
from model_zoo.checkpoint.reading import load_into
from model_zoo.errors import InputError
from model_zoo.tokenizers.chatglm import ChatGLMTokenizer as OwnChatGLM
from model_zoo.tokenizers.chatglm2 import ChatGLM2Tokenizer as OwnChatGLM2
from model_zoo.tokenizers.gpt2 import GPT2Tokenizer as OwnGPT2
from model_zoo.tokenizers.llama import LlamaTokenizer as OwnLlama
from pet.auto import AutoConfig, AutoModel, AutoTokenizer
from pet.compat.ckpt.doors import converted, find_ckpt, is_ckpt
from pet.compat.ckpt.names import Form
from pet.compat.ckpt.view import MindFormersCheckpoint
from pet.compat.mindformers.config import GLM2_NAMES, GLM_NAMES, GPT2_NAMES, LLAMA_NAMES, config_values
from pet.compat.mindformers.generation import NAMES as GENERATION
from pet.compat.mindformers.generation import give_defaults
from pet.compat.mindformers.presets import bare_name
from pet.names import find_tokenizer


class _Config:
    """A configuration by MindFormers' argument names; see `config_values`."""

    _own: type
    _names: dict[str, str]

    def __new__(cls, **given):
        config = cls._own.from_dict(config_values(cls._own, cls._names, given))
        # no field: it must not be written to a config.json
        config.checkpoint_name_or_path = given.get("checkpoint_name_or_path")
        config.generation = {name: given[name] for name in GENERATION if name in given}
        config.form = Form(use_rearrange_rope=bool(given.get("use_rearrange_rope")))
        return config

    @staticmethod
    def from_pretrained(name_or_directory):
        """The configuration of a directory, a bundled base or a preset (``gpt2``, ``glm_6b_lora``)."""
        return AutoConfig.from_pretrained(bare_name(name_or_directory))


class GPT2Config(_Config):
    """``GPT2Config(hidden_size=768, num_layers=12, num_heads=12, seq_length=1024)``.

    The feed-forward is ``expand_ratio`` times as wide as the model.
    """

    _own, _names = gpt.GPT2Config, GPT2_NAMES

    def __new__(cls, expand_ratio: int | None = None, **given):
        if expand_ratio is not None and given.get("intermediate_size") is None:
            given["intermediate_size"] = expand_ratio * given.get("hidden_size", 768)
        return super().__new__(cls, **given)


class LlamaConfig(_Config):
    """``LlamaConfig(hidden_size=4096, num_layers=32, num_heads=32, n_kv_heads=None, seq_length=2048)``.

    Without ``intermediate_size`` the feed-forward is as wide as MindFormers makes it: two thirds of 4 × hidden, times
    ``ffn_dim_multiplier``, rounded up to ``multiple_of``.
    """

    _own, _names = llama.LlamaConfig, LLAMA_NAMES

    def __new__(cls, multiple_of: int = 256, ffn_dim_multiplier: float | None = None, **given):
        if given.get("intermediate_size") is None:
            width = int(2 * 4 * given.get("hidden_size", 4096) / 3)
            if ffn_dim_multiplier is not None:
                width = int((ffn_dim_multiplier + 0.01) * width)
            given["intermediate_size"] = -(-width // multiple_of) * multiple_of
        return super().__new__(cls, **given)


class GLMConfig(_Config):
    """``GLMConfig(hidden_size=4096, num_layers=28, num_heads=32, seq_length=2048)``: ChatGLM-6B."""

    _own, _names = glm.GLMConfig, GLM_NAMES


class ChatGLM2Config(_Config):
    """``ChatGLM2Config(hidden_size=4096, num_layers=28, multi_query_group_num=2)``: ChatGLM2, ChatGLM3, GLM-4."""

    _own, _names = glm4.ChatGLM2Config, GLM2_NAMES


class _Model:
    """A model of one family: random weights, or those of the configuration's ``checkpoint_name_or_path``."""

    _preset = ""

    def __new__(cls, config=None):
        checkpoint = getattr(config, "checkpoint_name_or_path", None)
        if checkpoint and not is_ckpt(checkpoint):
            model = cls.from_pretrained(checkpoint)
            give_defaults(model, config.generation)
            return model
        model = AutoModel.from_config(config if config is not None else cls._preset)
        model.random_weights = not checkpoint
        if checkpoint:
            with MindFormersCheckpoint(find_ckpt(checkpoint), model.config.to_dict(), config.form) as view:
                load_into(model, view)
        give_defaults(model, getattr(config, "generation", {}))
        return model

    @staticmethod
    def from_pretrained(name_or_directory):
        """The model of a checkpoint directory, bundled base or MindFormers ``.ckpt`` file, with its weights."""
        if is_ckpt(name_or_directory):
            return AutoModel.from_pretrained(converted(name_or_directory))
        return AutoModel.from_pretrained(bare_name(name_or_directory))


class GPT2LMHeadModel(_Model):
    """GPT-2."""

    _preset = "gpt2"


class LlamaForCausalLM(_Model):
    """LLaMA 1 to 3.2."""

    _preset = "llama_7b"


class GLMForPreTraining(_Model):
    """ChatGLM-6B."""

    _preset = "glm_6b"


class GLMChatModel(_Model):
    """ChatGLM-6B; its answers come from ``generate`` like every model's."""

    _preset = "glm_6b"


class ChatGLM2ForConditionalGeneration(_Model):
    """ChatGLM2, ChatGLM3 and GLM-4."""

    _preset = "glm2_6b"


class _Named:
    """Tokenizers by the name of a bundled base as well."""

    @classmethod
    def from_pretrained(cls, path, prompt_style=None):
        """The tokenizer of a directory, file or bundled base."""
        return super().from_pretrained(find_tokenizer(path), prompt_style)


class GPT2Tokenizer(_Named, OwnGPT2):
    """GPT-2's byte-level BPE."""


class LlamaTokenizer(_Named, OwnLlama):
    """LLaMA's SentencePiece tokenizer."""


class ChatGLMTokenizer(_Named, OwnChatGLM):
    """ChatGLM-6B's tokenizer."""


class ChatGLM2Tokenizer(_Named, OwnChatGLM2):
    """ChatGLM2's tokenizer."""


class Processor:
    """Texts to a model's input, padded to one length.

    Args:
        tokenizer: any tokenizer of this library.
        max_length: longer texts are cut, shorter ones padded on the right.
        return_tensors: ``ms``, ``np`` or None for lists.
    """

    def __init__(self, tokenizer=None, max_length: int = 128, padding="max_length", return_tensors: str | None = "ms"):
        if not isinstance(tokenizer, own.Tokenizer):
            raise InputError(f"{type(self).__name__}: tokenizer= is missing, or none of this library's")
        self.tokenizer, self.max_length = tokenizer, max_length
        self.padding, self.return_tensors = padding, return_tensors

    def __call__(self, text) -> dict[str, Any]:
        """``input_ids`` and ``attention_mask``, both ``(B, max_length)``."""
        return self.tokenizer(
            [text] if isinstance(text, str) else text,
            padding=self.padding,
            padding_side="right",
            max_length=self.max_length,
            truncation=True,
            return_tensors=self.return_tensors,
        )

    def save_pretrained(self, directory) -> None:
        """Writes the tokenizer's files, from which `AutoProcessor.from_pretrained` makes a processor again."""
        self.tokenizer.save_pretrained(directory)

    def decode(self, ids) -> list[str]:
        """The texts of a batch of ids."""
        return [self.tokenizer.decode(row.tolist()) for row in np.atleast_2d(np.asarray(ids))]


class GPT2Processor(Processor):
    """For GPT-2."""


class GLMProcessor(Processor):
    """For ChatGLM."""


class LlamaProcessor(Processor):
    """For LLaMA."""


class AutoProcessor:
    """A processor by name."""

    @staticmethod
    def from_pretrained(name_or_directory, **settings) -> Processor:
        """The processor over the tokenizer of a checkpoint directory or bundled base."""
        return Processor(AutoTokenizer.from_pretrained(bare_name(name_or_directory)), **settings)
