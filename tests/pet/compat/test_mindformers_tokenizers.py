"""What MindFormers' documents and scripts ask of tokenizers, of its own classes and of AutoTokenizer's."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError
from pet.compat.mindformers import AutoTokenizer, ChatGLM2Tokenizer, LlamaTokenizer

TEXT = "hello, 世界 red"
ASKED = [{"role": "user", "content": "a red"}]


@pytest.fixture(params=["llama_tiny", "gpt_tiny", "glm_tiny", "glm4_tiny"])
def tokenizer(request):
    return AutoTokenizer.from_pretrained(request.param)


def test_tokens_and_ids(tokenizer):
    ids, tokens = tokenizer.encode(TEXT, add_special_tokens=False), tokenizer.tokenize(TEXT)
    assert len(tokens) == len(ids) and all(isinstance(token, str) for token in tokens)
    assert tokenizer.convert_tokens_to_ids(tokens) == ids and tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenizer.convert_tokens_to_ids(tokens[0]) == ids[0] and tokenizer.convert_ids_to_tokens(ids[0]) == tokens[0]
    assert tokenizer.convert_tokens_to_ids("no such token") == tokenizer.unk_token_id
    assert tokenizer.convert_ids_to_tokens(tokenizer.vocab_size) is None
    vocabulary = tokenizer.get_vocab()
    assert all(vocabulary[name] == number for name, number in tokenizer.special_tokens.items())
    own = pet.AutoTokenizer.from_pretrained(tokenizer.source).__class__.__name__
    assert type(tokenizer).__name__ == own  # by which stored data is known


def test_the_unknown_token(tokenizer):
    unknown = {"LlamaTokenizer": "<unk>", "ChatGLMTokenizer": "<unk>", "GPT2Tokenizer": "<|endoftext|>"}
    assert tokenizer.unk_token == unknown.get(type(tokenizer).__name__)


def test_several_rows(tokenizer):
    texts = ["a red", "b"]
    assert tokenizer.batch_encode_plus(texts) == tokenizer(texts)
    assert tokenizer.encode_plus("a red", max_length=2, truncation=False) == tokenizer("a red")
    rows = tokenizer(texts, padding=True, return_tensors="np")["input_ids"]
    assert tokenizer.decode(rows) == tokenizer.batch_decode(rows) == texts
    assert tokenizer.decode(rows[0]) == "a red" and tokenizer.decode([]) == ""


def test_it_can_be_copied_and_sent_to_a_process(tokenizer):
    for other in (copy.copy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert type(other) is type(tokenizer) and other.tokenize(TEXT) == tokenizer.tokenize(TEXT)
    own = LlamaTokenizer.from_pretrained("llama_tiny")
    assert pickle.loads(pickle.dumps(own)).decode([own.encode("a")]) == ["a"]


def test_prompts(tokenizer):
    ids = tokenizer.prompt(ASKED)
    found = tokenizer.build_chat_input("a red")
    assert {name: array.tolist() for name, array in found.items()} == {
        "input_ids": [ids],
        "attention_mask": [[1] * len(ids)],
        "position_ids": [list(range(len(ids)))],
    }
    assert tokenizer.apply_chat_template(ASKED, add_generation_prompt=True) == ids
    assert tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_tensors="np").tolist() == [ids]
    text = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, tokenize=False)
    assert text == tokenizer.decode(ids, skip_special_tokens=False)
    answered = [*ASKED, {"role": "assistant", "content": "b"}]
    assert tokenizer.apply_chat_template(answered) == tokenizer.example(answered)[0]
    assert tokenizer.build_chat_input("c", answered)["input_ids"].tolist() == [
        tokenizer.prompt([*answered, {"role": "user", "content": "c"}])
    ]
    with pytest.raises(InputError, match="give add_generation_prompt=True"):
        tokenizer.apply_chat_template(ASKED)
    with pytest.raises(InputError, match="return_tensors: unknown value 'pt'"):
        tokenizer.build_chat_input("a red", return_tensors="pt")


def test_build_prompt_is_chatglm2s(fixtures):
    tokenizer = ChatGLM2Tokenizer.from_pretrained(fixtures / "tok_chatglm2")
    assert tokenizer.build_prompt("a red") == "[Round 1]\n\n问：a red\n\n答："
    assert tokenizer(tokenizer.build_prompt("a red"))["input_ids"] == tokenizer.prompt(ASKED)
    assert tokenizer.build_prompt("c", [("a", "b")]) == "[Round 1]\n\n问：a\n\n答：b\n\n[Round 2]\n\n问：c\n\n答："
    assert np.array_equal(tokenizer.build_chat_input("a red")["input_ids"][0], tokenizer.prompt(ASKED))
    with pytest.raises(InputError, match="build_prompt: is ChatGLM2's; of the prompt style 'glm4' use"):
        AutoTokenizer.from_pretrained("glm4_tiny").build_prompt("a red")
