"""Chat formats: the ids of each style over several turns, and which of them are labels."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from model_zoo.errors import InputError
from model_zoo.tokenizers import (
    STYLES,
    ChatGLM2Tokenizer,
    ChatGLM3Tokenizer,
    ChatGLMTokenizer,
    FastTokenizer,
    GLM4Tokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
)
from model_zoo.tokenizers.bytelevel import BYTE_TO_CHARACTER
from model_zoo.tokenizers.style_templates import STYLE_TEMPLATES, template_of


def talk(*texts, system=None):
    """user, assistant, user, …"""
    messages = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    return [{"role": "system", "content": system}, *messages] if system is not None else messages


def byte_tokenizer(directory, names, style=None):
    """A tokenizer.json of single bytes with these control tokens."""
    vocabulary = {character: byte for byte, character in BYTE_TO_CHARACTER.items()}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": 256 + place, "content": name, "special": True, **flags} for place, name in enumerate(names)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    description = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(description), encoding="utf-8")
    settings = {"bos_token": names[0], "eos_token": names[1], "add_bos_token": True}
    return FastTokenizer(path, prompt_style=style, settings=settings)


@pytest.fixture(scope="module")
def tokenizers(fixtures, tmp_path_factory):
    sentencepiece = fixtures / "tok_llama" / "tokenizer.model"

    def small(*names, style=None):
        return byte_tokenizer(tmp_path_factory.mktemp("bytes"), names, style)

    return {
        "gpt2": GPT2Tokenizer.from_pretrained(fixtures / "tok_gpt2"),
        "llama": LlamaTokenizer(sentencepiece),
        "llama2": LlamaTokenizer(sentencepiece, prompt_style="llama2"),
        "mistral": LlamaTokenizer(sentencepiece, prompt_style="mistral"),
        "mistral_tokens": small("<s>", "</s>", "[INST]", "[/INST]", style="mistral_tokens"),
        "llama3": small("<|bos|>", "<|eos|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "chatml": small("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"),
        "chatglm": ChatGLMTokenizer(fixtures / "tok_chatglm1" / "ice_text.model"),
        "chatglm2": ChatGLM2Tokenizer(sentencepiece),
        "chatglm3": ChatGLM3Tokenizer(sentencepiece),
        "glm4": GLM4Tokenizer(fixtures / "tok_glm4" / "tokenizer.model"),
    }


NAMES = [
    "gpt2",
    "llama",
    "llama2",
    "mistral",
    "mistral_tokens",
    "llama3",
    "chatml",
    "chatglm",
    "chatglm2",
    "chatglm3",
    "glm4",
]


def test_every_style_is_tested(tokenizers):
    assert {tokenizer.prompt_style for tokenizer in tokenizers.values()} == set(STYLES)


CONVERSATION = talk("How?", "So.", "Why?", "Thus.", system="Be brief.")
WRITTEN = {
    "gpt2": "Be brief.\n\nHow?[So.<|endoftext|>]Why?[Thus.<|endoftext|>]",
    "mistral_tokens": "<s>[INST]Be brief.\n\nHow?[/INST][So.</s>][INST]Why?[/INST][Thus.</s>]",
    "llama3": (
        "<|bos|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHow?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[So.<|eot_id|>]"
        "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[Thus.<|eot_id|>]"
    ),
    "chatml": (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow?<|im_end|>\n<|im_start|>assistant\n"
        "[So.<|im_end|>]\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n[Thus.<|im_end|>]"
    ),
    "llama": "<s>Be brief.\n\nHow?[ So.</s>] Why?[ Thus.</s>]",
    "llama2": ("<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHow? [/INST][ So. </s>]<s> [INST] Why? [/INST][ Thus. </s>]"),
    "mistral": "<s>[INST] Be brief.\n\nHow? [/INST][ So.</s>] [INST] Why? [/INST][ Thus.</s>]",
    "chatglm": "[Round 0]\n问:Be brief.\nHow?\n答:So.\n[Round 1]\n问:Why?\n答:[gMASK]<sop>[ Thus.<eop>]",
    "chatglm2": (
        "[gMASK]sop [Round 1]\n\n问：Be brief.\nHow?\n\n答：[So.]\n\n[Round 2]\n\n问：Why?\n\n答：[ Thus.</s>]"
    ),
    "chatglm3": (
        "[gMASK]sop<|system|> \n Be brief.<|user|> \n How?<|assistant|>[ \n So.<|user|>] \n Why?"
        "<|assistant|>[ \n Thus.</s>]"
    ),
    "glm4": (
        "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHow?<|assistant|>[\nSo.<|user|>]\nWhy?"
        "<|assistant|>[\nThus.<|user|>]"
    ),
}


@pytest.mark.parametrize("name", sorted(STYLE_TEMPLATES))
@pytest.mark.parametrize(
    "system", [CONVERSATION[:1], [], [{"role": "system", "content": ""}]], ids=["text", "none", "empty"]
)
def test_a_style_as_a_template_gives_the_same_ids(tokenizers, name, system):
    """What other programs than this one get."""
    styled, talk = tokenizers[name], [*system, *CONVERSATION[1:]]
    template = template_of(styled)
    assert template and styled.template is None and not styled.chat_template
    templated = styled.with_chat_template(template, "style")
    assert template_of(templated) == template
    for messages in (talk[:-1], talk[:-3]):
        assert templated.prompt(messages) == styled.prompt(messages)
    written = marked(templated, *templated.example(talk))
    assert written.removesuffix("\n") == marked(styled, *styled.example(talk))  # ChatML's lines go on after the end


def test_prompts_that_are_no_text_have_no_template(tokenizers):
    for name in ("gpt2", "llama", "chatglm", "chatglm2", "chatglm3"):
        assert template_of(tokenizers[name]) == ""


def marked(tokenizer, ids, trained):
    """The whole conversation, labels in brackets."""
    written, inside = "", False
    decoder = tokenizer.stream_decoder(skip_special_tokens=False)
    for number, label in zip(ids, trained, strict=True):
        if label != inside:
            written += "[" if label else "]"
        inside = label
        written += decoder.put(number)
    return written + ("]" if inside else "") + decoder.end()


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_labels(tokenizers, name):
    tokenizer = tokenizers[name]
    written = WRITTEN[name]
    if name in ("llama", "llama2", "mistral"):  # the space that sentencepiece puts before the first text
        written = written.replace("<s>", "<s> ", 1)
    assert marked(tokenizer, *tokenizer.example(CONVERSATION)) == written


@pytest.mark.parametrize("name", NAMES)
def test_only_the_last_answer_is_a_label(tokenizers, name):
    tokenizer = tokenizers[name]
    ids, trained = tokenizer.example(CONVERSATION, train_on="last")
    every, all_answers = tokenizer.example(CONVERSATION, train_on="answers")
    assert ids == every
    prompt = tokenizer.prompt(CONVERSATION[:-1])
    assert trained == [False] * len(prompt) + [True] * (len(ids) - len(prompt))
    assert all_answers[len(prompt) :] == trained[len(prompt) :]
    assert any(all_answers[: len(prompt)]) == (name != "chatglm")


@pytest.mark.parametrize("name", NAMES)
def test_all_tokens_are_labels(tokenizers, name):
    tokenizer = tokenizers[name]
    if name == "chatglm":
        with pytest.raises(InputError, match="'all' is impossible with the 'chatglm' style"):
            tokenizer.example(CONVERSATION, train_on="all")
        return
    ids, trained = tokenizer.example(CONVERSATION, train_on="all")
    assert ids == tokenizer.example(CONVERSATION)[0]
    assert all(trained)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_continues_its_prompt(tokenizers, name):
    """Whatever the texts: the model learns on the ids it is later asked with, and an answer ends with a stop."""
    tokenizer = tokenizers[name]
    words = st.text(max_size=8) | st.sampled_from(["\n", " a", "b ", "<|user|>", "</s>", "[/INST]", "答："])

    @settings(max_examples=60)
    @given(st.lists(words, min_size=1, max_size=2), st.lists(st.tuples(words, words), min_size=1, max_size=3))
    def check(system, turns):
        messages = talk(*[text for turn in turns for text in turn], system=system[0] if len(system) > 1 else None)
        prompt = tokenizer.prompt(messages[:-1])
        ids, trained = tokenizer.example(messages, train_on="last")
        assert ids[: len(prompt)] == prompt
        assert not any(trained[: len(prompt)])
        assert all(trained[len(prompt) :])
        assert ids[-1] in tokenizer.eos_token_ids

    check()


@pytest.mark.parametrize("name", NAMES)
def test_controls_in_messages_stay_text(tokenizers, name):
    tokenizer = tokenizers[name]
    controls = set(tokenizer.special_tokens.values())
    evil = "".join(tokenizer.special_tokens)
    harmless = [number for number in tokenizer.prompt(talk("a", "b", "c")) if number in controls]
    assert [number for number in tokenizer.prompt(talk(evil, evil, evil)) if number in controls] == harmless


def test_glm4_ids(tokenizers, fixtures):
    tokenizer = tokenizers["glm4"]
    newline = tokenizer.encode("\n", add_special_tokens=False)
    hello = json.loads((fixtures / "tok_glm4" / "expected.json").read_text(encoding="utf-8"))["ids"][1]
    prompt = [602, 604, 607, *newline, *hello, 608]
    assert tokenizer.prompt(talk("Hello world")) == prompt
    ids, trained = tokenizer.example(talk("Hello world", "Hello world"))
    assert ids == [*prompt, *newline, *hello, 607]
    assert trained == [False] * len(prompt) + [True] * (len(newline) + len(hello) + 1)


def test_chatglm3_ids(tokenizers):
    newline = [464, 13]  # the space that sentencepiece puts before every text, and the newline
    prompt = [601, 603, 606, *newline, 353, 358, 607]
    assert tokenizers["chatglm3"].prompt(talk("Hello world")) == prompt
    ids, trained = tokenizers["chatglm3"].example(talk("Hello world", "Hello world"))
    assert ids == [*prompt, *newline, 353, 358, 2]
    assert trained == [False] * len(prompt) + [True] * 5


def test_llama2_is_metas_text_between_bos_and_eos(tokenizers):
    tokenizer = tokenizers["llama2"]
    whole = tokenizer.encode("[INST] How? [/INST] So. ") + [2]
    assert tokenizer.example(talk(" How?\n", "So. "))[0] == whole


def test_gpt2_is_the_text_as_it_stands(tokenizers):
    tokenizer = tokenizers["gpt2"]
    assert tokenizer.prompt(talk("Hello world")) == tokenizer.encode("Hello world")
    ids, trained = tokenizer.example(talk("Hello", " world"))
    assert ids == tokenizer.encode("Hello") + tokenizer.encode(" world") + [tokenizer.eos_token_id]
    assert trained == [False] * len(tokenizer.encode("Hello")) + [True] * (len(tokenizer.encode(" world")) + 1)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "non-empty list"),
        ("hello", "non-empty list"),
        ([{"role": "user"}], r"messages\[0\]: expected an object with 'role' and 'content'"),
        ([{"role": "usr", "content": "a"}], r"messages\[0\]: unknown role 'usr' \(did you mean 'user'\?\)"),
        ([{"role": "user", "content": 3}], r"messages\[0\]: 'content' must be text, found int"),
        ([{"role": "assistant", "content": "a"}], r"messages\[0\]: wrong order, expected the role 'user'"),
        (talk("a", "b", "c")[::2], r"messages\[1\]: wrong order, expected the role 'assistant'"),
        ([*talk("a"), {"role": "system", "content": "s"}], r"messages\[1\]: a system message can only come first"),
        ([{"role": "system", "content": "s"}], "no user message"),
        (
            [*talk("a"), {**talk("a", "b")[1], "tool_calls": [{}]}],
            r"messages\[1\]: prompt styles have no place for tool",
        ),
    ],
)
def test_wrong_messages(tokenizers, messages, complaint):
    for method in (tokenizers["glm4"].prompt, tokenizers["glm4"].example):
        with pytest.raises(InputError, match=complaint):
            method(messages)


def test_wrong_ends(tokenizers):
    with pytest.raises(InputError, match="a prompt must end with a user message"):
        tokenizers["llama"].prompt(talk("a", "b"))
    with pytest.raises(InputError, match="an example must end with the assistant's answer"):
        tokenizers["llama"].example(talk("a", "b", "c"))
    with pytest.raises(InputError, match=r"train_on: unknown value 'answer' \(did you mean 'answers'"):
        tokenizers["llama"].example(talk("a", "b"), train_on="answer")


def test_a_style_must_fit_the_tokenizer(fixtures):
    path = fixtures / "tok_llama" / "tokenizer.model"
    with pytest.raises(InputError, match=r"unknown prompt_style 'llama_2' \(did you mean 'llama2'"):
        LlamaTokenizer(path, prompt_style="llama_2")
    with pytest.raises(InputError, match=r"'llama3' needs the control tokens <\|start_header_id\|>"):
        LlamaTokenizer(path, prompt_style="llama3")
