"""What calls of GLM's tokenizers give in MindFormers: the numbers are those of releases 0.8, 1.0 and 1.3.2, which were
run on these vocabularies."""

from __future__ import annotations

import numpy as np
import pytest

from model_zoo.errors import InputError
from pet.compat.mindformers import AutoModel, AutoTokenizer, ChatGLM3Tokenizer

HELLO = [349, 410, 351, 376, 350, 383, 381, 371, 364]


@pytest.fixture
def six(fixtures):
    return AutoTokenizer.from_pretrained(fixtures / "tok_chatglm1")


@pytest.fixture
def three(fixtures):
    return ChatGLM3Tokenizer.from_pretrained(fixtures / "tok_chatglm2")


@pytest.fixture
def four(fixtures):
    return AutoTokenizer.from_pretrained(fixtures / "tok_glm4")


def test_chatglm_6b_gives_token_types_and_no_text_for_control_tokens(six):
    found = six("Hello world")
    assert found == {"input_ids": [*HELLO, 5, 8], "token_type_ids": [0] * 11, "attention_mask": [1] * 11}
    assert six.decode(found["input_ids"]) == "Hello world"
    assert six.decode(found["input_ids"], skip_special_tokens=False) == "Hello world[gMASK]<sop>"
    assert [*six("Hello world", return_token_type_ids=False)] == ["input_ids", "attention_mask"]
    row = six.prepare_for_model([10, 11], [12])
    assert (row["input_ids"], row["token_type_ids"]) == ([10, 11, 5, 8, 12, 9], [0, 0, 0, 0, 1, 1])
    assert six("[MASK]z", add_special_tokens=False)["input_ids"] == [4, 349, 416]
    names = ("mask_token", "mask_token_id", "gmask_token", "gmask_token_id", "end_token_id")
    assert [getattr(six, name) for name in names] == ["[MASK]", 4, "[gMASK]", 5, 2]
    assert six.special_tokens_map["mask_token"] == "[MASK]"


def test_two_texts_are_one_row(six, three):
    assert six("Hello world", "你好")["input_ids"] == [*HELLO, 5, 8, 492, 9]
    assert six("Hello world", text_pair="你好")["token_type_ids"] == [0] * 11 + [1] * 2
    assert six.encode("Hello world", "你好") == [*HELLO, 5, 8, 492, 9]
    assert three(["Hello world", "你好"], ["你好", "你好"], padding=True) == {
        "input_ids": [[601, 603, 353, 358, 433, 2], [601, 603, 433, 433, 2, 0]],
        "attention_mask": [[1] * 6, [1] * 5 + [0]],
        "position_ids": [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 0]],
    }
    pairs = [("Hello world", "你好"), ["你好", "你好"]]
    assert three.batch_encode_plus(pairs, padding=True) == three(
        ["Hello world", "你好"], ["你好", "你好"], padding=True
    )
    assert three(("ab", "cd")) == three(["ab", "cd"], None)  # two texts
    with pytest.raises(InputError, match="text_pair: one text for each text was expected"):
        six(["a", "b"], ["c"])


def test_encode_takes_the_settings_of_a_call(six, three):
    """MindFormers' data sets cut questions so: ``encode(text=…, add_special_tokens=…, max_length=…)``."""
    assert six.encode("Hello world", max_length=5) == [*HELLO[:3], 5, 8]
    assert six.encode(text="Hello world", add_special_tokens=False, max_length=5) == HELLO[:5]
    assert six.encode("Hello world", False) == HELLO
    assert three.encode("你好", padding="max_length", max_length=5) == [601, 603, 433, 0, 0]


def test_chatglm3_and_glm_4_give_positions(three, four):
    assert three("你好", padding="max_length", max_length=6)["position_ids"] == [0, 1, 2, 0, 0, 0]
    assert [*three("你好", return_attention_mask=False)] == ["input_ids"]
    found = four(["Hello world", "你好"], padding=True, padding_side="left", return_tensors="np")
    assert found["position_ids"].tolist() == [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]
    assert found["position_ids"].dtype == np.int32
    assert four.pad({"input_ids": [10, 11]}, padding="max_length", max_length=4)["position_ids"] == [0, 1, 0, 0]


def test_glm_4_has_its_control_tokens_in_texts_of_calls(four):
    text = "<|user|> hi"
    assert four(text)["input_ids"] == [602, 604, 607, 220, 71, 72]
    assert four.encode("a<eop>b", add_special_tokens=False) == [64, 605, 65]
    asked = four.build_chat_input(text)["input_ids"]
    assert (asked == 607).sum() == 1  # a message has none


def test_glm_4_is_asked_with_tools_and_by_every_role(four):
    user, assistant, observation = map(four.get_command, ("<|user|>", "<|assistant|>", "<|observation|>"))
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "metadata": "f", "content": "call()"}]
    found = four.build_chat_input("hi", said, role="observation")["input_ids"][0].tolist()
    called = [assistant, 69, 198, 66, 64, 288, 7, 8]
    assert found == [602, 604, user, 198, 80, *called, observation, 198, 71, 72, assistant]
    tools = [{"role": "system", "content": "Answer", "tools": [{"name": "f"}]}]
    written = four.decode(four.build_chat_input("hi", tools)["input_ids"][0])
    assert '<|system|>\nAnswer\n[\n    {\n        "name": "f"\n    }\n]<|user|>\nhi<|assistant|>' in written


@pytest.mark.parametrize("name", ["glm_tiny", "glm4_tiny"])
def test_a_model_generates_from_what_a_call_gives(name):
    model, tokenizer = AutoModel.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    inputs = tokenizer(["a red"], return_tensors="ms")
    asks = {"max_length": inputs["input_ids"].shape[1] + 2, "do_sample": False}
    assert np.array_equal(model.generate(**inputs, **asks), model.generate(inputs["input_ids"], **asks))
