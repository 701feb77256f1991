"""Qwen2 and Qwen3 from ``vocab.json`` and ``merges.txt``, where there is no ``tokenizer.json`` beside them."""

from __future__ import annotations

from model_zoo.tokenizers.fast import FastTokenizer
from model_zoo.tokenizers.files import TokenizerFiles, parse_json, read_bytes
from model_zoo.tokenizers.glm4 import WORDS
from model_zoo.tokenizers.gpt2 import describe_pair
from model_zoo.tokenizers.special import LISTED

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
    file_name = "vocab.json"

    def __init__(
        self,
        vocab_file,
        merges_file,
        prompt_style: str | None = None,
        settings: dict | None = None,
        files: TokenizerFiles | None = None,
    ):
        settings = {"bos_token": None, "eos_token": CONTROLS[0], "pad_token": CONTROLS[0], **(settings or {})}
        sources = {"vocab.json": read_bytes(vocab_file), "merges.txt": read_bytes(merges_file)}
        vocabulary = parse_json(sources["vocab.json"], vocab_file)
        description = describe_pair(vocabulary, sources["merges.txt"], vocab_file, merges_file, settings)
        words = {"type": "Split", "pattern": {"Regex": WORDS.replace(r"\p{N}{1,3}", r"\p{N}")}}
        bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        steps = [{**words, "behavior": "Isolated", "invert": False}, bytewise]
        known = (files.added if files else {}) or {name: len(vocabulary) + place for place, name in enumerate(CONTROLS)}
        listed = settings.get(LISTED) or {
            str(number): {"content": name, "special": True} for name, number in known.items() if name not in vocabulary
        }
        description["added_tokens"] = [
            {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, **token, "id": int(number)}
            for number, token in listed.items()
        ]
        description |= {"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
        self._setup(description, str(vocab_file), sources, prompt_style, settings, files)
        self._described = description

    def description(self) -> dict:
        return self._described

    @classmethod
    def from_files(cls, files: TokenizerFiles, prompt_style: str | None = None) -> Qwen2Tokenizer:
        return cls(files.path("vocab.json"), files.path("merges.txt"), prompt_style, files.settings, files)
