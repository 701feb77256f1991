"""MindFormers' concrete classes of models, tokenizers and processors, over those of `model_zoo`.

Model classes take a configuration (`pet.compat.mindformers.config`) and give this library's models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_zoo import tokenizers as own
from model_zoo.checkpoint.reading import load_into
from model_zoo.errors import InputError
from model_zoo.tokenizers.chatglm import ChatGLMTokenizer as OwnChatGLM
from model_zoo.tokenizers.chatglm2 import ChatGLM2Tokenizer as OwnChatGLM2
from model_zoo.tokenizers.gpt2 import GPT2Tokenizer as OwnGPT2
from model_zoo.tokenizers.llama import LlamaTokenizer as OwnLlama
from pet.auto import AutoModel, AutoTokenizer
from pet.compat.ckpt.beside import converted
from pet.compat.ckpt.doors import find_ckpt, is_ckpt
from pet.compat.ckpt.view import MindFormersCheckpoint
from pet.compat.mindformers.generation import give_defaults
from pet.compat.mindformers.presets import bare_name
from pet.names import find_tokenizer


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
