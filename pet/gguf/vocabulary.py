"""A tokenizer as the vocabulary inside a GGUF file."""

from __future__ import annotations

import json

from model_zoo.errors import InputError
from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.fast import FastTokenizer
from model_zoo.tokenizers.glm4 import WORDS, GLM4Tokenizer
from model_zoo.tokenizers.llama import LlamaTokenizer

# how a text is cut into words before merging → llama.cpp's name for it
CUTS = {
    WORDS: "llama-bpe",
    WORDS.replace(r"\p{N}{1,3}", r"\p{N}"): "qwen2",
}
CONTROL_SCORE = -1000.0  # never the best piece of a text


def add_vocabulary(writer, tokenizer: Tokenizer, size: int) -> None:
    """Puts a tokenizer into a GGUF file.

    Args:
        writer: a `gguf.GGUFWriter`.
        tokenizer: of the model.
        size: rows of the model's embedding; ids beyond the tokenizer's are unused.

    Raises:
        InputError: llama.cpp has no such algorithm.
    """
    from gguf import TokenType

    if isinstance(tokenizer, LlamaTokenizer):
        tokens = _sentencepiece(writer, tokenizer, TokenType)
    elif isinstance(tokenizer, FastTokenizer):
        tokens = _byte_level(writer, tokenizer, TokenType)
    else:
        raise InputError(f"{tokenizer.source}: llama.cpp has no tokenizer of this kind ({type(tokenizer).__name__})")
    for number in range(size):
        tokens.setdefault(number, (f"[PAD{number}]", CONTROL_SCORE, TokenType.UNUSED))
    texts, scores, kinds = zip(*(tokens[number] for number in range(size)), strict=True)
    writer.add_token_list(texts)
    if isinstance(tokenizer, LlamaTokenizer):
        writer.add_token_scores(scores)
    writer.add_token_types(kinds)

    ends = tokenizer.eos_token_ids
    for add, number in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_eot_token_id, next((end for end in ends if end != tokenizer.eos_token_id), None)),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if number is not None:
            add(number)
    before, after = tokenizer.around
    writer.add_add_bos_token(tokenizer.bos_token_id in before)
    writer.add_add_eos_token(tokenizer.eos_token_id in after)


def _sentencepiece(writer, tokenizer: LlamaTokenizer, kinds) -> dict[int, tuple[str, float, int]]:
    processor = tokenizer.processor
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_add_space_prefix(tokenizer.encode_text("a") != [processor.piece_to_id("a")])
    found = {}
    for number in range(processor.get_piece_size()):
        kind = kinds.NORMAL
        for is_one, name in (
            (processor.is_unknown, kinds.UNKNOWN),
            (processor.is_control, kinds.CONTROL),
            (processor.is_unused, kinds.UNUSED),
            (processor.is_byte, kinds.BYTE),
        ):
            kind = name if is_one(number) else kind
        found[number] = (processor.id_to_piece(number), processor.get_score(number), kind)
    for text, number in tokenizer.special_tokens.items():
        if number >= processor.get_piece_size():
            found[number] = (text, CONTROL_SCORE, kinds.CONTROL)
    return found


def _byte_level(writer, tokenizer: FastTokenizer, kinds) -> dict[int, tuple[str, float, int]]:
    description = tokenizer.description()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_cut(tokenizer, description))
    found = {number: (text, 0.0, kinds.NORMAL) for text, number in description["model"]["vocab"].items()}
    for token in description.get("added_tokens") or []:
        kind = kinds.CONTROL if token.get("special") else kinds.USER_DEFINED
        found[token["id"]] = (token["content"], 0.0, kind)
    for text, number in tokenizer.special_tokens.items():
        found[number] = (text, 0.0, kinds.CONTROL)
    merges = description["model"].get("merges") or []
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    return found


def _cut(tokenizer: FastTokenizer, description: dict) -> str:
    """llama.cpp's name of how this tokenizer cuts a text into words."""
    if isinstance(tokenizer, GLM4Tokenizer):
        return "chatglm-bpe"
    text = json.dumps(description.get("pre_tokenizer"))
    found = [name for pattern, name in CUTS.items() if json.dumps(pattern) in text]
    if not found:
        raise InputError(
            f"{tokenizer.source}: how this tokenizer cuts a text into words is not known to llama.cpp by a name that "
            "this export knows (llama-bpe, qwen2, chatglm-bpe)"
        )
    return found[0]
