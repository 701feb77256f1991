"""A long text is tokenised in pieces, whose ids are those of the whole; or as a whole, where they might not be."""

import json
import unicodedata

import pytest
from hypothesis import given, settings, strategies as st

from model_zoo.tokenizers import AutoTokenizer, FastTokenizer, pieces
from model_zoo.tokenizers.glm4 import WORDS
from model_zoo.tokenizers.pieces import LETTERS, MARKS, alternatives, divides, marks_of, parts

WHOLE = ("tok_chatglm1",)
IN_PIECES = ("tok_chatglm2", "tok_glm4", "tok_gpt2", "tok_llama")
# what words, spaces, elisions, line ends and several scripts leave for a cut to go wrong at
TEXT = st.lists(
    st.sampled_from(
        ["the", "don't", "we'll", "Hello", "x", "'s", "1234", " ", "  ", "\n", "\n\n", "\r\n", "\t", ".", ","]
    )
    | st.sampled_from(["你好", "。", "，", "é", "e\u0301", "▁", "　", "😀", "<n>", "?!", ")", "ſ", "ا"])
    | st.text(max_size=3),
    max_size=30,
).map("".join)


def described(**changes):
    """LLaMA-2's tokenizer.json in outline."""
    vocab = {f"<0x{value:02X}>": value for value in range(256)}
    vocab |= {piece: 256 + number for number, piece in enumerate(["a", "b", "▁", "▁a", ".", "a."])}
    return {
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "decoder": {"type": "ByteFallback"},
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": ["a .", "▁ a"],
            "byte_fallback": True,
            "ignore_merges": False,
        },
        **changes,
    }


@pytest.mark.parametrize("name", [*WHOLE, *IN_PIECES])
def test_the_ids_of_the_pieces_are_those_of_the_whole(fixtures, name):
    tokenizer, cut = AutoTokenizer.from_pretrained(fixtures / name), []

    @settings(max_examples=100)
    @given(TEXT, st.integers(0, 9))
    def check(text, at_once):
        whole = tokenizer.encode(text, add_special_tokens=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pieces, "AT_ONCE", at_once)
            found = list(tokenizer.encode_pieces(text))
            assert [number for piece in found for number in piece] == whole
            assert tokenizer.encode(text, add_special_tokens=False) == whole
        cut.append(len(found) > 1)

    check()
    assert any(cut) == (name in IN_PIECES)


def test_a_tokenizer_json_that_puts_a_space_in_front_does_so_once(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text(json.dumps(described()))
    tokenizer = FastTokenizer(tmp_path / "tokenizer.json")
    text = "a b a. ab a é b"
    whole = tokenizer.encode_text(text)
    monkeypatch.setattr(pieces, "AT_ONCE", 1)
    found = list(tokenizer.encode_pieces(text))
    assert len(found) > 3 and [number for piece in found for number in piece] == whole
    assert whole.count(256 + 5) == 1, "a. is one piece"


def test_every_letter_is_one_and_no_mark_joins_what_stands_before_it():
    some = [chr(code) for code in range(0x10000) if pieces.re.match(f"[{LETTERS}]", chr(code))]
    assert len(some) > 30_000 and all(unicodedata.category(letter)[0] == "L" for letter in some)
    assert all(unicodedata.normalize(form, f"a{mark}").startswith("a") for mark in MARKS for form in ("NFC", "NFKC"))
    assert not {"\u0301", "'", "▁"} & {*MARKS}


def test_pieces_begin_with_a_mark_behind_a_letter(monkeypatch):
    monkeypatch.setattr(pieces, "AT_ONCE", 4)
    assert list(parts("aaaaaa  b, c1 d", " ")) == ["aaaaaa", "  b, c1 d"]
    assert list(parts("aaaaaa  b, c1 d", ",")) == ["aaaaaa  b", ", c1 d"]
    assert list(parts("aaaaaa bbbbbb", "")) == ["aaaaaa bbbbbb"]


SPLIT = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([SPLIT, BYTES], True),
        ([{"type": "Digits", "individual_digits": True}, SPLIT, BYTES], True),
        ([{"type": "ByteLevel", "add_prefix_space": False}], True),
        ([BYTES], False),
        ([{**SPLIT, "behavior": "MergedWithNext"}, BYTES], False),
        ([{**SPLIT, "pattern": {"Regex": r"\p{N}{1,3}"}}, BYTES], False),
        ([{**SPLIT, "pattern": {"Regex": WORDS + r"|\p{L}+ \p{L}+"}}, BYTES], False),
        ([{**SPLIT, "pattern": {"String": " "}}], False),
        ([{"type": "Whitespace"}], False),
    ],
)
def test_only_known_expressions_divide_a_text_into_words(words, expected):
    assert divides(words) is expected


def test_alternatives_are_those_outside_of_parentheses_and_brackets():
    assert alternatives(r"(?i:'s|'t)|[|)]\||a\(|b") == [r"(?i:'s|'t)", r"[|)]\|", r"a\(", "b"]
    assert alternatives(WORDS)[1:3] == [r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}{1,3}"]


ADDED = {"id": 300, "content": "<tool>", "special": False, "rstrip": False, "lstrip": False, "single_word": False}
ALWAYS = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
MODEL = described()["model"]


@pytest.mark.parametrize(
    ("changes", "spaces"),
    [
        ({}, True),
        ({"normalizer": None, "pre_tokenizer": {**ALWAYS, "prepend_scheme": "first"}}, True),
        ({"normalizer": None, "pre_tokenizer": {**ALWAYS, "prepend_scheme": "first"}, "added_tokens": [ADDED]}, True),
        ({"normalizer": None, "pre_tokenizer": ALWAYS}, True),
        ({"normalizer": None, "pre_tokenizer": ALWAYS, "added_tokens": [ADDED]}, False),  # a space behind each of them
        ({"added_tokens": [ADDED]}, False),
        ({"normalizer": {"type": "NFKC"}}, False),
        ({"model": {**MODEL, "byte_fallback": False}}, False),
        ({"model": {**MODEL, "ignore_merges": True}}, False),
        ({"model": {**MODEL, "dropout": 0.1}}, False),
        ({"model": {**MODEL, "vocab": {**MODEL["vocab"], "a▁b": 299}}}, False),
        ({"pre_tokenizer": BYTES | {"use_regex": True}, "normalizer": {"type": "NFC"}}, True),
        ({"pre_tokenizer": BYTES | {"use_regex": True}, "normalizer": None, "added_tokens": [ADDED]}, True),
        (
            {
                "pre_tokenizer": BYTES | {"use_regex": True},
                "normalizer": None,
                "added_tokens": [{**ADDED, "content": "<a b>"}],
            },
            False,
        ),
        (
            {
                "pre_tokenizer": BYTES | {"use_regex": True},
                "normalizer": None,
                "added_tokens": [{**ADDED, "rstrip": True}],
            },
            False,
        ),
    ],
)
def test_where_a_text_may_be_cut(changes, spaces):
    marks = marks_of(described(**changes))
    assert (" " in marks) is spaces
    if not changes:
        assert "." not in marks and "," in marks, "a. is one piece"
