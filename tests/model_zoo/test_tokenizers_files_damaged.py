"""Tokenizers' files that are missing, damaged or of another model."""

import json

import pytest
from sentencepiece import SentencePieceTrainer
from tiny_tokenizers import sentencepiece_like_json
from tokenizer_directories import ICE, LLAMA, MERGES, RANKS, VOCABULARY, complaint

from model_zoo.errors import InputError
from model_zoo.tokenizers import (
    AutoTokenizer,
    ChatGLM2Tokenizer,
    GLM4Tokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
)
from model_zoo.tokenizers.glm4 import OF_OTHERS


@pytest.mark.parametrize(("lines", "lost"), [(1, "'ga'"), (2, ".* and 1 more")])
def test_merges_that_are_cut_off(make, lines, lost):
    directory = make(VOCABULARY, MERGES)
    whole = (directory / "merges.txt").read_text(encoding="utf-8").splitlines()
    (directory / "merges.txt").write_text("\n".join(whole[:-lines]), encoding="utf-8")
    with pytest.raises(InputError, match=f"no merge makes the piece {lost}; the file is cut off"):
        AutoTokenizer.from_pretrained(directory)


def test_missing_files(make, tmp_path):
    assert "nowhere: no such tokenizer directory" in complaint(tmp_path / "nowhere")
    assert "vocab.json is missing" in complaint(make(MERGES))
    assert "merges.txt is missing, expected for GPT-2" in complaint(make(VOCABULARY))
    assert "found nothing" in complaint(make())
    for config, file in [
        ({"model_type": "chatglm", "position_encoding_2d": True}, "ice_text.model is missing"),
        ({"model_type": "chatglm", "padded_vocab_size": 65024}, "tokenizer.model is missing"),
        ({"model_type": "glm"}, "tokenizer.json or tokenizer.model is missing"),
        ({"model_type": "llama"}, "tokenizer.model or tokenizer.json is missing"),
        ({"model_type": "gpt2"}, "vocab.json is missing"),
    ]:
        assert file in complaint(make(config=config))
    assert "tokenizer.model: not found, a tokenizer's file was expected" in complaint(make(), LlamaTokenizer)
    with pytest.raises(InputError, match=r"^'': not found, a tokenizer.s file was expected"):
        LlamaTokenizer("")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (3, "chat_template.json: chat_template is 3; a text or a list or an object was expected"),
        ([{"name": ["a"], "template": "x"}], "chat templates have no default one"),
    ],
)
def test_a_template_beside_that_is_none(make, template, message):
    directory = make(LLAMA)
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    assert message in complaint(directory)


def rename(directory, old, new):
    (directory / old).rename(directory / new)
    return directory


def test_ranks_of_other_models_are_not_read_as_glm4(make, monkeypatch):
    """They have other control tokens; the count of ranks is all that tells them apart in a bare directory."""
    monkeypatch.setitem(OF_OTHERS, 600, "LLaMA-3")
    for config in ({}, {"model_type": "glm"}):
        message = complaint(make(RANKS, **({"config": config} if config else {})))
        assert "found the 600 tiktoken ranks of LLaMA-3, expected those of GLM-4" in message


def test_files_of_another_family(make, fixtures):
    config = {"model_type": "chatglm", "padded_vocab_size": 500}
    assert "found 600 tiktoken ranks (GLM-4), expected the sentencepiece" in complaint(make(RANKS, config=config))
    message = complaint(make(RANKS, config={"model_type": "llama"}))
    assert "tokenizer.model: found tiktoken ranks, expected a sentencepiece model" in message
    assert "found tiktoken ranks, expected a sentencepiece model" in complaint(make(RANKS), ChatGLM2Tokenizer)
    message = complaint(make(LLAMA, config={"model_type": "glm"}))
    assert "tokenizer.model: found sentencepiece, expected tiktoken ranks" in message
    named = {"tokenizer_class": "ChatGLM4Tokenizer"}
    message = complaint(make(LLAMA, config={"model_type": "chatglm"}, tokenizer_config=named))
    assert "found sentencepiece, expected tiktoken ranks" in message
    llama_as_ice = rename(make(LLAMA), "tokenizer.model", "ice_text.model")
    assert "without [MASK], [gMASK], <sop>, <eop>, <pad>" in complaint(llama_as_ice)
    ice_as_llama = rename(make(ICE), "ice_text.model", "tokenizer.model")
    assert "found the sentencepiece model of ChatGLM-6B, expected one of LLaMA" in complaint(ice_as_llama)
    assert "expected one of ChatGLM2/3" in complaint(ice_as_llama, ChatGLM2Tokenizer)
    vocabulary_as_json = rename(make(VOCABULARY), "vocab.json", "tokenizer.json")
    assert "found no tokenizer model in the JSON, expected a tokenizer.json" in complaint(vocabulary_as_json)
    assert "found no tokenizer model in the JSON" in complaint(vocabulary_as_json, GLM4Tokenizer)
    llama_json = make(tokenizer=sentencepiece_like_json(fixtures), config={"model_type": "gpt2"})
    assert "there is no '<|endoftext|>' in it, expected the vocabulary of GPT-2" in complaint(llama_json)
    model_as_json = rename(make(LLAMA, config={"model_type": "llama"}), "tokenizer.model", "tokenizer.json")
    assert "tokenizer.json: found sentencepiece, expected JSON" in complaint(model_as_json)
    words = make(tokenizer={"model": {"type": "WordPiece", "vocab": {"a": 0}}})
    assert "found a WordPiece model in the JSON, expected a tokenizer.json with a BPE model" in complaint(words)
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    words = make(tokenizer={"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "decoder": decoder})
    assert "found the decoder WordPiece, expected byte-level" in complaint(words)
    broken = make(
        tokenizer={"model": {"type": "BPE", "vocab": {"a": 0}, "merges": 4}, "decoder": {"type": "ByteLevel"}}
    )
    assert "not a tokenizer.json that the tokenizers library can use" in complaint(broken)


def test_settings_of_another_model(make):
    settings = {"added_tokens_decoder": {"151329": {"content": "<|endoftext|>", "special": True}}}
    assert "'<|endoftext|>' is id 600 here, but tokenizer_config.json says 151329" in complaint(
        make(RANKS, tokenizer_config=settings)
    )
    settings = {"added_tokens_decoder": {"64790": {"content": "[gMASK]", "special": True}}}
    assert "'[gMASK]' is id 601 here, but tokenizer_config.json says 64790" in complaint(
        make(LLAMA, tokenizer_config=settings, config={"model_type": "chatglm"})
    )


@pytest.mark.parametrize("source", [LLAMA, RANKS, ICE])
@pytest.mark.parametrize("left", [0.1, 0.5, 0.9, 0.999])
def test_truncated_models(make, source, left):
    directory = make(source)
    path = next(directory.iterdir())
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * left)])
    if source == RANKS and left == 0.999:
        path.write_bytes(data[:-4])
    assert path.name in complaint(directory)


def test_a_model_cut_between_two_pieces(make):
    """sentencepiece itself would load this one without a word."""
    directory = make(LLAMA)
    path = directory / "tokenizer.model"
    data, position = path.read_bytes(), 0
    while position < 3000:
        position += 2 + data[position + 1]
    path.write_bytes(data[:position])
    assert f"tokenizer.model: the sentencepiece model is truncated or damaged ({position} bytes)" in complaint(
        directory
    )


@pytest.mark.parametrize("place", [b"he", b"<0x41>", b"<s>"])
def test_pieces_of_a_sentencepiece_model_are_utf_8(make, place):
    """The library finds it where a piece is asked for, and some of it in its own message alone."""
    directory = make(LLAMA)
    path = directory / "tokenizer.model"
    path.write_bytes(path.read_bytes().replace(place, b"\xff" + place[1:], 1))
    assert "tokenizer.model: the sentencepiece model is damaged (a piece is not UTF-8)" in complaint(directory)


def test_chatglms_control_tokens_are_of_that_kind(make):
    directory = make(ICE)
    path = directory / "ice_text.model"
    data = path.read_bytes()
    kind = data.index(b"\x18", data.index(b"<pad>")) + 1
    path.write_bytes(data[:kind] + b"\x01" + data[kind + 1 :])
    assert "found a sentencepiece model without <pad>, expected ChatGLM-6B's" in complaint(directory)


@pytest.mark.parametrize("token", ["bos", "eos"])
def test_a_sentencepiece_model_without_the_tokens_around_a_text(tmp_path, token):
    SentencePieceTrainer.train(
        input=__file__, model_prefix=str(tmp_path / "tokenizer"), vocab_size=300, minloglevel=2, **{f"{token}_id": -1}
    )
    assert f"tokenizer.model: the sentencepiece model defines no {token}_token" in complaint(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({f"{token}_token": "<unk>"}))
    assert getattr(AutoTokenizer.from_pretrained(tmp_path), f"{token}_token_id") == 0


CUT = {"type": "FixedLength", "length": 0}
PREPEND = {"type": "Prepend", "prepend": "a"}
PIECES = [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
TEMPLATE = {"type": "TemplateProcessing", "single": PIECES, "pair": [], "special_tokens": {}}


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("pre_tokenizer", CUT, "tokenizers library can use ("),  # older ones know no such step
        ("post_processor", TEMPLATE, "can use (no entry found for key"),
        ("post_processor", {**TEMPLATE, "single": [], "pair": PIECES}, "can use (no entry found for key"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "can use (Precompiled"),
        ("normalizer", {"normalizers": [PREPEND]}, "normalizer has a step without a type"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"prepend": "a"}]}, "normalizer has a step without a type"),
    ],
    ids=str,
)
def test_what_the_library_finds_while_it_encodes(make, fixtures, part, value, words):
    """It panics then, and an error of that kind is none of Python's Exceptions."""
    description = {**sentencepiece_like_json(fixtures), part: value}
    assert words in complaint(make(tokenizer=description))


def test_names_of_chat_templates_are_texts(make):
    directory = make(LLAMA, tokenizer_config={"chat_template": [{"name": {}, "template": "x"}]})
    assert "its chat templates have no default one" in complaint(directory)


@pytest.mark.parametrize("left", [0.2, 0.6, 0.97])
def test_truncated_gpt2(make, left):
    for name in ("vocab.json", "merges.txt"):
        directory = make(VOCABULARY, MERGES)
        data = (directory / name).read_bytes()
        (directory / name).write_bytes(data[: int(len(data) * left)])
        assert name in complaint(directory)
        lines = data.splitlines(keepends=True)
        (directory / name).write_bytes(b"".join(lines[: int(len(lines) * left)]))
        assert name in complaint(directory)


def test_other_damage(make, fixtures):
    with pytest.raises(InputError, match=r"found a plain vocabulary, expected merges\.txt with it"):
        GPT2Tokenizer(fixtures / VOCABULARY)
    directory = make(VOCABULARY, MERGES)
    (directory / "vocab.json").write_text('{"a": "b"}')
    assert "vocab.json: expected an object of pieces and their ids" in complaint(directory)
    directory = make(RANKS)
    lines = (directory / "tokenizer.model").read_bytes().splitlines()
    (directory / "tokenizer.model").write_bytes(b"\n".join([*lines[:300], lines[299].split()[0] + b" 300"]))
    assert "line 301 is damaged or cut off; expected a new base64 token and the rank 300" in complaint(directory)
    (directory / "tokenizer.model").write_bytes(b"\n".join(lines[:200]))
    assert "56 of the 256 single bytes have no rank" in complaint(directory)
    for model in ({"type": "BPE", "vocab": None, "merges": []}, {"merges": []}):
        assert "found a BPE model without a vocabulary in the JSON" in complaint(make(tokenizer={"model": model}))
    directory = make(LLAMA)
    (directory / "tokenizer.model").write_bytes(b"")
    assert "tokenizer.model: the tokenizer file is empty" in complaint(directory)
    (directory / "tokenizer.model").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "only a Git LFS pointer" in complaint(directory)
    (directory / "tokenizer.model").write_bytes(b"PK\x03\x04rest")
    assert "found a zip archive, expected a sentencepiece model" in complaint(directory)
    directory = make(LLAMA)
    (directory / "config.json").write_text('{"model_type": "lla')
    assert "config.json, line 1, column 16: not valid JSON" in complaint(directory)
    (directory / "config.json").write_text("[1]")
    assert "config.json: a JSON object was expected, it holds a list" in complaint(directory)


@pytest.mark.parametrize(
    "key", ("tokenizer_class", "add_bos_token", "added_tokens_decoder", "eos_token", "chat_template")
)
@pytest.mark.parametrize("wrong", (3, 2.5))
def test_settings_of_the_wrong_type(make, key, wrong):
    directory = make(LLAMA)
    (directory / "tokenizer_config.json").write_text(json.dumps({key: wrong}))
    message = complaint(directory)
    assert f"tokenizer_config.json: {key} is {wrong!r}; " in message and "\n" not in message
