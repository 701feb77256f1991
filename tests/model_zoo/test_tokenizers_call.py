"""Calling a tokenizer: padding, truncation, arrays; and that nothing of it needs MindSpore."""

import subprocess
import sys

import numpy as np
import pytest

from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer, ChatGLM2Tokenizer, ChatGLMTokenizer, GPT2Tokenizer, LlamaTokenizer


@pytest.fixture(scope="module")
def gpt2(fixtures):
    return GPT2Tokenizer.from_pretrained(fixtures / "tok_gpt2")


@pytest.fixture(scope="module")
def llama(fixtures):
    return LlamaTokenizer(fixtures / "tok_llama" / "tokenizer.model")


def test_gpt2_wraps_a_text_when_called(gpt2):
    end, ids = gpt2.eos_token_id, gpt2.encode("hello!")
    result = gpt2("hello!")
    assert list(result) == ["input_ids", "token_type_ids", "attention_mask"]
    assert result["input_ids"] == [end, *ids, end]
    assert result["token_type_ids"] == [0] * (len(ids) + 2)
    assert result["attention_mask"] == [1] * (len(ids) + 2)
    assert gpt2("hello!", add_special_tokens=False)["input_ids"] == ids
    assert gpt2.decode(result["input_ids"], skip_special_tokens=True) == "hello!"
    assert gpt2.decode(result["input_ids"], skip_special_tokens=False) == "<|endoftext|>hello!<|endoftext|>"


def test_padding(llama):
    one, two = llama.encode("Hello"), llama.encode("Hello world")
    assert (len(one), len(two)) == (2, 3)
    left = llama(["Hello", "Hello world"], padding=True)
    assert left["input_ids"] == [[0, *one], two]
    assert left["attention_mask"] == [[0, 1, 1], [1, 1, 1]]
    right = llama(["Hello", "Hello world"], padding="longest", padding_side="right")
    assert right["input_ids"] == [[*one, 0], two]
    assert right["attention_mask"] == [[1, 1, 0], [1, 1, 1]]
    wide = llama("Hello", padding="max_length", max_length=10)
    assert wide["input_ids"] == [0] * 8 + one
    assert llama(["Hello", "Hello world"])["input_ids"] == [one, two]


def test_what_a_script_sets_on_a_tokenizer_counts(fixtures):
    """As with transformers' own; of these it was passed over."""
    tokenizer = LlamaTokenizer(fixtures / "tok_llama" / "tokenizer.model")
    one, two = tokenizer.encode("Hello"), tokenizer.encode("Hello world")
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "right"
    end = tokenizer.eos_token_id
    assert tokenizer(["Hello", "Hello world"], padding=True)["input_ids"] == [[*one, end], two]
    assert tokenizer(["Hello", "Hello world"], padding=True, padding_side="left")["input_ids"] == [[end, *one], two]
    tokenizer.add_bos_token, tokenizer.add_eos_token = False, True
    assert tokenizer("Hello")["input_ids"] == tokenizer.encode("Hello") == [*one[1:], end]
    tokenizer.padding_side = "middle"
    with pytest.raises(InputError, match="padding_side: unknown value 'middle'"):
        tokenizer("Hello", padding=True)


def test_a_chat_template_that_is_set_is_used_and_saved(fixtures, tmp_path):
    tokenizer = LlamaTokenizer(fixtures / "tok_llama" / "tokenizer.model")
    asked = [{"role": "user", "content": "Hello"}]
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }} world{% endfor %}{{ eos_token }}"
    wanted = [*tokenizer.encode("Hello world", add_special_tokens=False), tokenizer.eos_token_id]
    assert tokenizer.prompt(asked) == wanted
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).prompt(asked) == wanted
    with pytest.raises(InputError, match="chat_template is 5; a text was expected"):
        tokenizer.chat_template = 5
    tokenizer.chat_template = None
    assert not tokenizer.chat_template
    assert tokenizer.template is None


def test_truncation_keeps_control_tokens(llama, fixtures):
    text = "Hello world Hello world"
    assert llama(text, truncation=True, max_length=3)["input_ids"] == llama.encode(text)[:3]
    glm = ChatGLMTokenizer(fixtures / "tok_chatglm1" / "ice_text.model")
    assert glm(text, truncation=True, max_length=5)["input_ids"] == [*glm.encode(text, False)[:3], 5, 8]
    glm2 = ChatGLM2Tokenizer(fixtures / "tok_chatglm2" / "tokenizer.model")
    assert glm2(text, truncation=True, max_length=5)["input_ids"] == glm2.encode(text)[:5]
    assert llama("Hello", truncation=True, max_length=100)["input_ids"] == llama.encode("Hello")
    with pytest.raises(InputError, match="max_length: 1 has no room"):
        glm(text, truncation=True, max_length=1)


def test_arrays(llama):
    result = llama(["Hello world", "Hello"], padding=True, return_tensors="np")
    assert {value.dtype for value in result.values()} == {np.dtype(np.int32)}
    assert result["input_ids"].tolist() == llama(["Hello world", "Hello"], padding=True)["input_ids"]
    assert llama("Hello world", return_tensors="np")["input_ids"].shape == (1, 3)
    assert llama([], return_tensors="np")["input_ids"].shape == (0, 0)
    assert llama.decode(result["input_ids"][0]) == "Hello world"
    with pytest.raises(InputError, match="different lengths; add padding=True"):
        llama(["Hello world", "Hello"], return_tensors="np")


def test_mindspore_tensors(llama):
    mindspore = pytest.importorskip("mindspore")
    result = llama("Hello world", return_tensors="ms")
    assert isinstance(result["input_ids"], mindspore.Tensor)
    assert result["input_ids"].shape == (1, 3)
    assert llama.decode(result["input_ids"]) == "Hello world"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"padding": "left"}, "padding: unknown value 'left'"),
        ({"padding_side": "middle"}, "padding_side: unknown value 'middle'"),
        ({"return_tensors": "pt"}, "return_tensors: unknown value 'pt'"),
        ({"truncation": True}, "max_length: needed"),
        ({"padding": "max_length"}, "max_length: needed"),
    ],
)
def test_wrong_options(llama, options, complaint):
    with pytest.raises(InputError, match=complaint):
        llama("a", **options)


@pytest.mark.parametrize("ids", [1.5, [1.5], ["a"], None, [None], True, [[1], [2, 3]]], ids=str)
def test_only_whole_numbers_are_decoded(llama, ids):
    with pytest.raises(InputError) as caught:
        llama.decode(ids)
    assert str(caught.value).endswith(f"whole numbers in lists of one length, found {ids!r}")


def test_only_text_is_encoded(llama):
    with pytest.raises(InputError, match="encodes text, found int: 3"):
        llama.encode(3)
    with pytest.raises(InputError, match="encodes text, found NoneType"):
        llama(["a", None])


def test_mindspore_is_not_imported():
    code = "import sys; import model_zoo.tokenizers; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_special_tokens_have_texts_and_the_padding_may_be_another(fixtures):
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_llama")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    tokenizer.pad_token = tokenizer.eos_token
    assert tokenizer("a", padding="max_length", max_length=9)["input_ids"].count(tokenizer.eos_token_id) > 5
    with pytest.raises(InputError, match="eos_token: the tokenizer keeps its own; pad_token alone may be set"):
        tokenizer.eos_token = "<s>"
    with pytest.raises(InputError, match="no control token '<pad>'"):
        tokenizer.pad_token = "<pad>"
    tokenizer.pad_token = None
    assert tokenizer.pad_token is None and AutoTokenizer.from_pretrained(fixtures / "tok_glm4").bos_token is None
