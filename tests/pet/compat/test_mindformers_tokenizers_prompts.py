"""Questions, answers and prompts that MindFormers' scripts ask tokenizers for."""

from __future__ import annotations

import numpy as np
import pytest

from model_zoo.errors import InputError
from pet.compat.mindformers import AutoTokenizer, ChatGLM2Tokenizer, ChatGLM3Tokenizer

ASKED = [{"role": "user", "content": "a red"}]


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


def test_a_prompt_in_a_length(tokenizer):
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side, asks = "right", {"add_generation_prompt": True}
    ids = tokenizer.apply_chat_template(ASKED, **asks)
    longer = [*ids, *[tokenizer.pad_token_id] * 3]
    for padding in (True, "max_length"):  # there is one row, so that True is no length of its own
        assert tokenizer.apply_chat_template(ASKED, **asks, padding=padding, max_length=len(longer)) == longer
    assert tokenizer.apply_chat_template(ASKED, **asks, truncation=True, max_length=2) == ids[:2]
    found = tokenizer.apply_chat_template(ASKED, **asks, return_tensors="np", padding=True, max_length=len(longer))
    assert found.tolist() == [longer]


def test_chatglms_question_and_answer_as_ids():
    from pet.compat.mindformers import ChatGLMTokenizer

    tokenizer = ChatGLMTokenizer.from_pretrained("glm_tiny")
    marks = [tokenizer.special_tokens[name] for name in ("[gMASK]", "<sop>", "<eop>")]
    assert tokenizer.build_inputs_with_special_tokens([5, 6]) == [5, 6, *marks[:2]]
    assert tokenizer.build_inputs_with_special_tokens([5, 6], [7]) == [5, 6, *marks[:2], 7, marks[2]]


def test_chatglm3_joins_messages_in_any_order(fixtures):
    """Token by token as its own tokenizer does; each content is encoded by itself."""
    tokenizer = ChatGLM3Tokenizer.from_pretrained(fixtures / "tok_chatglm2")

    def text(value):
        return tokenizer.encode(value, add_special_tokens=False)

    def number(token):
        return tokenizer.special_tokens[token]

    before = [number("[gMASK]"), number("sop")]
    asked = [number("<|system|>"), *text("\n"), *text("a red")]
    found = tokenizer.build_chat_input("a red", history=[], role="system")
    assert found["input_ids"].tolist() == [[*before, *asked, number("<|assistant|>")]]
    history = [
        {"role": "system", "content": "a red", "tools": [{"name": "shirt"}]},
        {"role": "assistant", "metadata": "shirt", "content": "b"},
    ]
    with_tools = [number("<|system|>"), *text("\n"), *text('a red\n[\n    {\n        "name": "shirt"\n    }\n]')]
    called = [number("<|assistant|>"), *text("shirt\n"), *text("b")]
    answer = [number("<|observation|>"), *text("\n"), *text("c")]
    found = tokenizer.build_chat_input("c", history, role="observation")["input_ids"].tolist()
    assert found == [[*before, *with_tools, *called, *answer, number("<|assistant|>")]]
    with pytest.raises(InputError, match="role: unknown value 'bot'"):
        tokenizer.build_chat_input("c", role="bot")


def test_several_questions_in_one_length(tokenizer):
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    queries = ["a red", "a red shirt and a scarf"]
    rows = tokenizer.build_batch_input(queries)
    for query, ids, mask, positions in zip(queries, *rows.values(), strict=True):
        alone = tokenizer.build_chat_input(query)
        real = mask == 1
        assert ids[real].tolist() == alone["input_ids"][0].tolist()
        assert positions[real].tolist() == alone["position_ids"][0].tolist()
        assert (ids[~real] == tokenizer.pad_token_id).all()
    with pytest.raises(InputError, match="2 queries, 1 histories, 2 roles"):
        tokenizer.build_batch_input(queries, [[]])
