"""Qwen2 and Qwen3 from ``vocab.json`` and ``merges.txt``, where there is no ``tokenizer.json`` beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from model_zoo.tokenizers.fast import FastTokenizer
from model_zoo.tokenizers.files import Files
from model_zoo.tokenizers.glm4 import WORDS
from model_zoo.tokenizers.gpt2 import PAIR, describe_pair
from model_zoo.tokenizers.special import LISTED, controls

CONTROLS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
"""Behind the vocabulary, where no file lists any."""


class Qwen2Tokenizer(FastTokenizer):
    """Byte-level BPE as tokenizer.json describes it for these models: NFC, and every digit a word of its own.

    Args:
        vocab_file: Path of ``vocab.json``.
        merges_file: Path of ``merges.txt``.
        prompt_style, settings: As for `FastTokenizer`.
    """

    class_name = "Qwen2Tokenizer"
    file_names = (PAIR,)
    usual: ClassVar = {"bos_token": None, "eos_token": CONTROLS[0], "pad_token": CONTROLS[0]}

    def __init__(
        self,
        vocab_file,
        merges_file,
        prompt_style: str | None = None,
        settings: dict | None = None,
        files: Files = None,
    ):
        self._open({"vocab.json": vocab_file, "merges.txt": merges_file}, prompt_style, settings, files)

    def _read(self, data: Mapping[str, bytes], settings: dict) -> dict:
        description = describe_pair(data, self._paths, settings)
        vocabulary = description["model"]["vocab"]
        pattern = {"Regex": WORDS.replace(r"\p{N}{1,3}", r"\p{N}")}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        steps = [split, {**description["pre_tokenizer"], "use_regex": False}]
        behind = {name: len(vocabulary) + place for place, name in enumerate(CONTROLS)}
        listed = {one.get("content"): int(number) for number, one in (settings.get(LISTED) or {}).items()}
        known = {name: number for name, number in (listed or behind).items() if name in CONTROLS}
        description["added_tokens"] += controls({name: known[name] for name in known if name not in vocabulary})
        words = {"type": "Sequence", "pretokenizers": steps}
        return description | {"normalizer": {"type": "NFC"}, "pre_tokenizer": words}
