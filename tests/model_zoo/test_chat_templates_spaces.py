"""Spaces around texts and control tokens of a conversation."""

from __future__ import annotations

import json

import pytest
from templates import CHATML, TALK, learnt

from model_zoo.tokenizers import AutoTokenizer


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
def test_control_tokens_take_the_blanks_beside_them(made, tmp_path, side):
    """As their flags say; where they have none, CHATML's lines stay."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((made(CHATML) / name).read_bytes())
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    for token in description["added_tokens"]:
        token[side] = token["special"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    plain, ours = AutoTokenizer.from_pretrained(made(CHATML)), AutoTokenizer.from_pretrained(tmp_path)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    for messages in (TALK[:2], TALK[:-1]):
        found = ours.prompt(messages)
        assert found == theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert len(found) < len(plain.prompt(messages))
    assert "It is here, at No. 12.<|im_end|>" in learnt(ours, TALK)


TURNS = (
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} {{ eos_token }}{% else %}"
    "{{ bos_token }}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_space_before_the_first_text_alone(fixtures, tmp_path, legacy):
    """sentencepiece's model, and the tokenizer.json that transformers makes of it: texts behind a control token have a
    space put before them in legacy files only."""
    transformers = pytest.importorskip("transformers")
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings |= {"legacy": legacy, "chat_template": TURNS, "add_bos_token": True}
    talk = [message for message in TALK if message["role"] != "system"]
    (tmp_path / "tokenizer.model").write_bytes((fixtures / "tok_llama" / "tokenizer.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(talk[:-1], return_dict=False)
    ours = AutoTokenizer.from_pretrained(tmp_path)
    assert ours.prompt(talk[:-1]) == expected
    assert ours.example(talk)[0] == theirs.apply_chat_template(talk, return_dict=False)
    assert learnt(ours, talk).count("</s>") == 2
    if not legacy:
        theirs.save_pretrained(tmp_path / "fast")
        fast = AutoTokenizer.from_pretrained(tmp_path / "fast")
        assert type(fast).__name__ == "FastTokenizer" and fast.prompt(talk[:-1]) == expected
        assert fast.example(talk) == ours.example(talk)
    ours.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").prompt(talk[:-1]) == expected


def test_a_model_alone_keeps_its_ids_through_saving(fixtures, tmp_path):
    """Beside no tokenizer_config.json every text has a space of its own; what is saved says so."""
    alone = AutoTokenizer.from_pretrained(fixtures / "tok_llama" / "tokenizer.model").with_chat_template(TURNS, "own")
    pieces = [alone.encode_text(f"[INST] {text} [/INST]") for text in ("hi", "you")]
    expected = [1, *pieces[0], 1, *pieces[1]]
    talk = [{"role": "user", "content": text} for text in ("hi", "you")]
    assert alone.prompt(talk) == expected
    alone.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).prompt(talk) == expected


AWKWARD = (
    "<s>hello",
    "<s> hello",
    "hello</s>world",
    "hello </s> world",
    "</s></s>x",
    " lead",
    "  two lead",
    "a</s>\n b",
)
AWKWARD += (
    "<s>[INST] hi [/INST] yes</s><s>[INST]  two [/INST]",
    "x<unk>y",
    "\n</s>\n",
    "你</s>好",
    "</s>🙂 x",
    " </s> ",
)


@pytest.mark.parametrize("legacy", [False, True, None])
def test_spaces_around_control_tokens(fixtures, tmp_path, legacy):
    """Where the file says nothing of it, too."""
    transformers = pytest.importorskip("transformers")
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings |= {} if legacy is None else {"legacy": legacy}
    (tmp_path / "tokenizer.model").write_bytes((fixtures / "tok_llama" / "tokenizer.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in AWKWARD:
        template = (
            "{{ " + json.dumps(text, ensure_ascii=False) + " }}"
        )  # control tokens are a template's, never a text's
        found = ours.with_chat_template(template, "own").prompt(TALK[:2])
        assert found == theirs.encode(text, add_special_tokens=False), text


@pytest.mark.parametrize("marks", [("{% generation %}", "{% endgeneration %}"), ("", "")], ids=["marked", "compared"])
def test_a_token_that_a_space_of_the_prompt_begins_is_learnt_with_its_answer(marks, fixtures, tmp_path):
    """Where the algorithm's words begin with their spaces, the first word of an answer is such a token."""
    transformers = pytest.importorskip("transformers")
    answer = "{{ m.content + eos_token }}".join(marks)
    template = (
        "{% for m in messages %}{{ m.role + ': ' }}{% if m.role == 'assistant' %}" + answer + "{% else %}"
        "{{ m.content + ' ' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer.model").write_bytes((fixtures / "tok_llama" / "tokenizer.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "legacy": True, "chat_template": template}))
    talk = [{"role": role, "content": f"the {role}"} for role in ("user", "assistant", "user", "assistant")]
    ours = AutoTokenizer.from_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids, trained = ours.example(talk)
    pieces = zip(theirs.convert_ids_to_tokens(ids), trained, strict=True)
    begins = [mark for piece, mark in pieces if piece in ("▁the", "▁th", "▁t")]
    assert begins == [False, True, False, True]
    if all(marks):
        asked = {"return_dict": True, "return_assistant_tokens_mask": True}
        expected = theirs.apply_chat_template(talk, **asked)
        assert (ids, trained) == (expected["input_ids"], [bool(mark) for mark in expected["assistant_masks"]])


@pytest.mark.parametrize("legacy", [False, True])
def test_a_text_that_begins_with_a_space_has_no_other_put_before_it(fixtures, tmp_path, legacy):
    """As in transformers, behind a control token and, behind ``{{ cut }}``, by itself."""
    transformers = pytest.importorskip("transformers")
    template = "{% for m in messages %}{{ bos_token }} {{ m.content }}{% endfor %}"
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings |= {"legacy": legacy, "chat_template": template, "add_bos_token": True}
    (tmp_path / "tokenizer.model").write_bytes((fixtures / "tok_llama" / "tokenizer.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.prompt(TALK[:2]) == theirs.apply_chat_template(TALK[:2], return_dict=False)
    cut = ours.with_chat_template("{% for m in messages %}{{ cut }} {{ m.content }}{% endfor %}", "own")
    texts = [theirs.encode(f" {m['content']}", add_special_tokens=False) for m in TALK[:2]]
    assert cut.prompt(TALK[:2]) == [number for ids in texts for number in ids]
