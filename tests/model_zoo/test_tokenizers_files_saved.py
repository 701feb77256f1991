"""Tokenizers' files that are written here."""

import json
import os

import pytest
from tiny_tokenizers import sentencepiece_like_json
from tokenizer_directories import ICE, LLAMA, MERGES, RANKS, TEXT, VOCABULARY

from model_zoo.tokenizers import (
    AutoTokenizer,
    ChatGLM2Tokenizer,
    ChatGLM3Tokenizer,
    ChatGLMTokenizer,
    GLM4Tokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
)


@pytest.mark.parametrize(
    ("kind", "around", "bos", "said"),
    [
        ("LlamaTokenizer", ("",), "<s>", {"add_bos_token": False}),
        ("LlamaTokenizer", ("",), None, {"add_bos_token": False}),
        ("LlamaTokenizer", ("<s>",), "<s>", {}),
        ("LlamaTokenizer", ("<s>", "</s>"), "<s>", {"add_eos_token": True}),
        ("TokenizersBackend", ("",), "<s>", {}),
    ],
)
def test_what_transformers_4_would_add_by_itself_is_written(make, fixtures, tmp_path, kind, around, bos, said):
    """transformers 5 does not say add_bos_token: its classes go by tokenizer.json, and those of 4 add BOS."""
    opens, closes = around[0], around[1:]
    pieces = [{"SpecialToken": {"id": one, "type_id": 0}} for one in (opens,) if one]
    pieces += [{"Sequence": {"id": "A", "type_id": 0}}] + [
        {"SpecialToken": {"id": one, "type_id": 0}} for one in closes
    ]
    ids = {"<s>": 1, "</s>": 2}
    special = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in around if name}
    processor = {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": special}
    description = {**sentencepiece_like_json(fixtures), "post_processor": processor if special else None}
    settings = {"tokenizer_class": kind, "bos_token": bos, "eos_token": "</s>"}
    tokenizer = AutoTokenizer.from_pretrained(make(tokenizer=description, tokenizer_config=settings))
    assert tokenizer.around == ([1] if opens else [], [2] if closes else [])
    tokenizer.save_pretrained(tmp_path / "written")
    written = json.loads((tmp_path / "written" / "tokenizer_config.json").read_text())
    assert {name: one for name, one in written.items() if name.startswith("add_")} == said
    assert AutoTokenizer.from_pretrained(tmp_path / "written").around == tokenizer.around


@pytest.mark.parametrize("name", ["chatglm", "chatglm2", "chatglm3", "glm4", "gpt2", "llama", "json"])
def test_saved_and_loaded_again(make, fixtures, tmp_path, name):
    tokenizer = {
        "chatglm": lambda: ChatGLMTokenizer(fixtures / ICE, num_image_tokens=20000),
        "chatglm2": lambda: ChatGLM2Tokenizer(fixtures / LLAMA),
        "chatglm3": lambda: ChatGLM3Tokenizer(fixtures / LLAMA),
        "glm4": lambda: GLM4Tokenizer(fixtures / RANKS),
        "gpt2": lambda: GPT2Tokenizer(fixtures / VOCABULARY, fixtures / MERGES),
        "llama": lambda: LlamaTokenizer(fixtures / LLAMA, legacy=True, add_eos_token=True, prompt_style="llama2"),
        "json": lambda: AutoTokenizer.from_pretrained(make(tokenizer=sentencepiece_like_json(fixtures))),
    }[name]()
    tokenizer.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(again) is type(tokenizer)
    assert again.encode(TEXT) == tokenizer.encode(TEXT)
    assert again.decode(again.encode(TEXT)) == tokenizer.decode(tokenizer.encode(TEXT))
    messages = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}]
    assert again.example(messages) == tokenizer.example(messages)
    for field in ("prompt_style", "special_tokens", "eos_token_ids", "pad_token_id", "bos_token_id", "vocab_size"):
        assert getattr(again, field) == getattr(tokenizer, field), field
    again.save_pretrained(tmp_path / "twice")
    assert {path.name: path.read_bytes() for path in (tmp_path / "twice").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()
    }


def test_saving_keeps_settings_and_companions(make, tmp_path):
    directory = make(LLAMA, tokenizer_config={"model_max_length": 77}, special_tokens_map={"bos_token": "<s>"})
    AutoTokenizer.from_pretrained(directory).save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())["model_max_length"] == 77
    assert json.loads((tmp_path / "saved" / "special_tokens_map.json").read_text()) == {"bos_token": "<s>"}


def test_transformers_opens_a_saved_gpt2(fixtures, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the comparison needs transformers")
    tokenizer = GPT2Tokenizer(fixtures / VOCABULARY, fixtures / MERGES)
    tokenizer.save_pretrained(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert reference(TEXT)["input_ids"] == tokenizer.encode(TEXT)


def test_an_interrupted_save_leaves_the_old_file(fixtures, tmp_path, monkeypatch):
    target = tmp_path / "vocab.json"
    target.write_bytes(b"old")

    def interrupted(source, destination):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        GPT2Tokenizer(fixtures / VOCABULARY, fixtures / MERGES).save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.json"]
    assert target.read_bytes() == b"old"
