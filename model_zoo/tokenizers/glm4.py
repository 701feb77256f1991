"""GLM-4 and GLM-4-0414: tiktoken ranks (``tokenizer.model``), or the same as ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from model_zoo.errors import InputError
from model_zoo.tokenizers.bytelevel import to_characters
from model_zoo.tokenizers.fast import FastTokenizer
from model_zoo.tokenizers.files import Files, describe, parse_ranks, read_bytes
from model_zoo.tokenizers.special import controls

# How a text is cut into words before merging; LLaMA-3 uses the same expression.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# In the order of their ids, right after the ranks.
CONTROLS = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
)
OF_OTHERS = {128_000: "LLaMA-3", 151_643: "Qwen", 163_584: "Kimi", 200_000: "LLaMA-4"}
"""How many ranks other models have, whose control tokens are others."""


class GLM4Tokenizer(FastTokenizer):
    """GLM-4 in its remote-code layout (ranks) or its native one, and GLM-4-0414. A text begins with ``[gMASK]<sop>``.

    Args:
        vocab_file: Path of ``tokenizer.model`` (tiktoken ranks) or ``tokenizer.json``; its contents decide.
        prompt_style: Chat format, ``"glm4"`` unless given.
    """

    class_name = "ChatGLM4Tokenizer"
    file_names = (("tokenizer.json",), ("tokenizer.model",))
    default_style = "glm4"
    usual: ClassVar = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}

    def __init__(self, vocab_file, prompt_style: str | None = None, settings: dict | None = None, files: Files = None):
        is_json = describe(read_bytes(vocab_file)) == "JSON"
        self.class_name = FastTokenizer.class_name if is_json else self.class_name
        name = "tokenizer.json" if is_json else "tokenizer.model"
        self._open({name: vocab_file}, prompt_style, settings, files)
        self._before, self._after = [self.token_to_id("[gMASK]"), self.token_to_id("<sop>")], []

    def _read(self, data: Mapping[str, bytes], settings: dict) -> dict:
        ((name, source),) = self._paths.items()
        if name == "tokenizer.json":
            description = super()._read(data, settings)
        else:
            ranks = parse_ranks(data[name], source)
            if len(ranks) in OF_OTHERS:
                raise InputError(
                    f"{source}: found the {len(ranks)} tiktoken ranks of {OF_OTHERS[len(ranks)]}, expected those "
                    "of GLM-4; give the directory with that model's tokenizer.json"
                )
            description = _describe(ranks)
        names = {token.get("content") for token in description.get("added_tokens") or []}
        needed = ("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>")
        if missing := ", ".join(name for name in needed if name not in names):
            raise InputError(f"{source}: there is no {missing} in it, expected the tokenizer of GLM-4")
        return description


def _describe(ranks: dict[bytes, int]) -> dict:
    """tiktoken ranks as the description that a tokenizer.json holds.

    tiktoken keeps no list of merges: it joins any two neighbours whose joint bytes have a rank, the lowest rank first,
    and takes a word that has a rank as it is. The same in terms of merges: every way to split a token in two tokens
    is a merge, ordered by the joint rank; and ``ignore_merges``.
    """
    vocabulary = {to_characters(token): rank for token, rank in ranks.items()}
    merges = []
    for token in ranks:  # in the order of the ranks
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(left, right) for left, right in splits if left in ranks and right in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges.extend(f"{to_characters(left)} {to_characters(right)}" for left, right in known)
    words = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": controls({name: len(ranks) + place for place, name in enumerate(CONTROLS)}),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, bytewise]},
        "decoder": bytewise,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": True},
    }
