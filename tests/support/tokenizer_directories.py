"""Directories of tokenizers."""

import pytest

from model_zoo.errors import InputError
from model_zoo.tokenizers import (
    AutoTokenizer,
)

TEXT = " Hello 你好\n\n<|user|> 1  2\t👍"
LLAMA, RANKS = "tok_llama/tokenizer.model", "tok_glm4/tokenizer.model"
ICE, VOCABULARY, MERGES = "tok_chatglm1/ice_text.model", "tok_gpt2/vocab.json", "tok_gpt2/merges.txt"
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def listed(pairs, special):
    """``added_tokens_decoder`` of tokens behind the vocabulary."""
    return {str(number): {"content": name, "special": special, **FLAGS} for number, name in pairs}


def complaint(directory, kind=AutoTokenizer):
    with pytest.raises(InputError) as caught:
        kind.from_pretrained(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)
