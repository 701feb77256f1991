"""Which tokenizer a directory holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_zoo.errors import InputError
from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.chatglm import ChatGLMTokenizer
from model_zoo.tokenizers.chatglm2 import ChatGLM2Tokenizer, ChatGLM3Tokenizer
from model_zoo.tokenizers.fast import FastTokenizer, goes_by_class, is_bpe
from model_zoo.tokenizers.files import TokenizerFiles, describe, parse_ranks, parse_sentencepiece, read_bytes
from model_zoo.tokenizers.glm4 import GLM4Tokenizer
from model_zoo.tokenizers.gpt2 import GPT2Tokenizer
from model_zoo.tokenizers.llama import LlamaTokenizer
from model_zoo.tokenizers.qwen2 import Qwen2Tokenizer
from model_zoo.tokenizers.special import listed_controls


class AutoTokenizer:
    """Chooses the tokenizer class of a directory; not to be instantiated."""

    @staticmethod
    def from_pretrained(path, prompt_style: str | None = None, config: Mapping[str, Any] | None = None) -> Tokenizer:
        """Loads the tokenizer of a directory.

        ``config.json`` decides by its ``model_type``; without it ``tokenizer_config.json`` and the files themselves
        do: ``ice_text.model`` is ChatGLM-6B, a ``tokenizer.model`` of tiktoken ranks GLM-4, one of sentencepiece
        LLaMA (or ChatGLM2/3, if ``tokenizer_class`` says so), ``vocab.json`` with
        ``merges.txt`` GPT-2, or Qwen2 and Qwen3 where one of the files says so.

        Args:
            path: A directory, or a file in it.
            prompt_style: Chat format to use instead of the one that the files suggest; see ``prompts.STYLES``.
            config: The config.json of the model, which decides where the directory has a vocabulary and nothing else.

        Raises:
            InputError: If a file is missing, damaged, or of another family.
        """
        files = TokenizerFiles(path)
        files.config = files.config or ({} if files.settings else dict(config or {}))
        return _choose(files).from_files(files, prompt_style)


def _choose(files: TokenizerFiles) -> type[Tokenizer]:
    model_type = files.config.get("model_type")
    if model_type == "chatglm":
        return _chatglm(files)
    if model_type in ("glm", "glm4"):
        _expect(files, "tokenizer.json", "tokenizer.model", family=model_type)
        return GLM4Tokenizer
    if model_type == "gpt2":
        if not files.has("tokenizer.json"):
            _expect(files, "vocab.json", family="gpt2")
            _expect(files, "merges.txt", family="gpt2")
        return GPT2Tokenizer
    if _qwen2_pair(files, model_type or ""):
        return Qwen2Tokenizer
    if model_type is not None:
        _expect(files, "tokenizer.model", "tokenizer.json", family=model_type)
        return _llama(files)
    return _bare(files)


def _qwen2_pair(files: TokenizerFiles, model_type: str) -> bool:
    """Whether vocab.json and merges.txt are Qwen2's or Qwen3's, and all that there is."""
    named = model_type.startswith(("qwen2", "qwen3")) or str(files.settings.get("tokenizer_class")).startswith("Qwen2")
    return named and files.has("vocab.json", "merges.txt") and not files.has("tokenizer.json")


def _chatglm(files: TokenizerFiles) -> type[Tokenizer]:
    """ChatGLM-6B, ChatGLM2, ChatGLM3 and GLM-4's remote code all call themselves ``chatglm``."""
    if files.config.get("position_encoding_2d") or files.has("ice_text.model"):
        _expect(files, "ice_text.model", family="ChatGLM-6B")
        return ChatGLMTokenizer
    if not files.has("tokenizer.model") and files.has("tokenizer.json"):
        return GLM4Tokenizer
    _expect(files, "tokenizer.model", family="chatglm")
    source = files.path("tokenizer.model")
    found, size = describe(read_bytes(source)), files.config.get("padded_vocab_size")
    if found == "tiktoken ranks":
        count = len(parse_ranks(read_bytes(source), source))
        if files.settings.get("tokenizer_class") == "ChatGLMTokenizer" or (size is not None and count > size):
            raise InputError(
                f"{source}: found {count} tiktoken ranks (GLM-4), expected the sentencepiece model of ChatGLM2/3 "
                f"for a vocabulary of {size}"
            )
        return GLM4Tokenizer
    if files.settings.get("tokenizer_class") == "ChatGLM4Tokenizer":
        return GLM4Tokenizer
    return ChatGLM3Tokenizer if _has_roles(files) else ChatGLM2Tokenizer


def _has_roles(files: TokenizerFiles) -> bool:
    """Whether a sentencepiece ChatGLM is version 3: config.json and tokenizer.model may be the same in both."""
    style = files.settings.get("prompt_style")
    if style is not None:
        return style == "chatglm3"
    if "<|user|>" in listed_controls(files.settings):
        return True
    if any("<|user|>" in source for source in (files.chat_template(), files.text("tokenization_chatglm.py"))):
        return True
    names = (files.settings.get("name_or_path"), files.config.get("_name_or_path"))
    return any("chatglm3" in str(name).lower() for name in names)


def _llama(files: TokenizerFiles) -> type[Tokenizer]:
    """A sentencepiece tokenizer.model comes before tokenizer.json where the class makes its own of that anyway, unless
    the json has more. Another class goes by it as it stands: its spaces behind control tokens may be others; but not by
    a kind of model that only the older file is read in."""
    by_class = goes_by_class(files) or str(files.settings.get("tokenizer_class")).startswith("Gemma")
    by_json = files.has("tokenizer.json") and not by_class and is_bpe(files.json("tokenizer.json"))
    if by_json or files.json_for("tokenizer.model") or not files.has("tokenizer.model"):
        return FastTokenizer
    source = files.path("tokenizer.model")
    data = read_bytes(source)
    if describe(data) == "sentencepiece" and files.json_alone(parse_sentencepiece(data, source).get_piece_size()):
        return FastTokenizer
    if describe(data) == "tiktoken ranks":
        if files.has("tokenizer.json"):
            return FastTokenizer
        raise InputError(
            f"{source}: found tiktoken ranks, expected a sentencepiece model, or a tokenizer.json beside it"
        )
    return LlamaTokenizer


def _bare(files: TokenizerFiles) -> type[Tokenizer]:
    named = files.settings.get("tokenizer_class") or ""
    if files.has("ice_text.model"):
        return ChatGLMTokenizer
    if files.has("tokenizer.model") and not files.json_for("tokenizer.model"):
        if describe(read_bytes(files.path("tokenizer.model"))) == "tiktoken ranks" and not named.startswith("Llama"):
            return GLM4Tokenizer
        if named.startswith("ChatGLM"):
            return _chatglm(files)
        return _llama(files)
    if files.has("tokenizer.json"):
        if named.startswith("GPT2"):
            return GPT2Tokenizer
        added = {token.get("content") for token in files.added_of_json()}
        return GLM4Tokenizer if {"[gMASK]", "<sop>"} <= added else FastTokenizer
    if not files.has("merges.txt"):
        _expect(files, "vocab.json", family="GPT-2 (or a tokenizer.model, tokenizer.json or ice_text.model)")
        _expect(files, "merges.txt", family="GPT-2 beside vocab.json")
    _expect(files, "vocab.json", family="GPT-2 beside merges.txt")
    return GPT2Tokenizer


def _expect(files: TokenizerFiles, *names: str, family: str) -> None:
    if not any(files.has(name) for name in names):
        present = sorted(path.name for path in files.directory.iterdir() if path.is_file())
        shown = ", ".join(present[:8]) + (", …" if len(present) > 8 else "") or "nothing"
        raise InputError(f"{files.directory}: {' or '.join(names)} is missing, expected for {family}; found {shown}")
