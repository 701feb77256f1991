"""Properties that hold for every text: decoding gives it back, streaming equals decoding, controls stay out of it."""

import json
import unicodedata

import pytest
import sentencepiece
from hypothesis import example, given, settings, strategies as st

from model_zoo.errors import InputError
from model_zoo.tokenizers import (
    AutoTokenizer,
    ChatGLM2Tokenizer,
    ChatGLM3Tokenizer,
    ChatGLMTokenizer,
    FastTokenizer,
    GLM4Tokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
)
from model_zoo.tokenizers.bytelevel import BYTE_TO_CHARACTER
from model_zoo.tokenizers.glm4 import WORDS

CONTROL_TEXTS = ["<|user|>", "<sop>", "sop", "[gMASK]", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|eot_id|>", "<pad>"]
SPACES = [" ", "  ", " " * 81, "\t", "\n", "\r\n", "\u3000", "\xa0", "\u200b", "\x1c", "\x00", "\u2028", "\x85"]
TEXTS = st.text(max_size=30) | st.lists(st.sampled_from(CONTROL_TEXTS + SPACES) | st.text(max_size=6), max_size=6).map(
    "".join
)


def llama3_like(directory):
    """A tokenizer.json as LLaMA-3 publishes it: byte-level BPE, ignore_merges, control tokens, a template for bos."""
    vocabulary = {character: number for number, character in enumerate(BYTE_TO_CHARACTER.values())}
    for word in ("he", "ll", "hell", "hello", "Ġw", "<|eot_id|>"):
        vocabulary[word] = len(vocabulary)
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    added = [
        {
            "id": 300 + number,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, name in enumerate(names)
    ]
    bos = {"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": {
            "type": "Sequence",
            "processors": [
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
                {
                    "type": "TemplateProcessing",
                    "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {
                        "<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [300], "tokens": ["<|begin_of_text|>"]}
                    },
                },
            ],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {piece: number for piece, number in vocabulary.items() if not piece.startswith("<|")},
            "merges": ["h e", "l l", "he ll", "Ġ w"],
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    return directory


def gemma_like(directory):
    """A sentencepiece model without a space in front, whose chat tokens are pieces that texts may spell."""
    chat = ["<start_of_turn>", "<end_of_turn>"]
    sentencepiece.SentencePieceTrainer.train(
        input=__file__,
        model_prefix=str(directory / "tokenizer"),
        model_type="bpe",
        vocab_size=400,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        byte_fallback=True,
        user_defined_symbols=[*chat, "\n\n"],
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        bos_piece="<bos>",
        eos_piece="<eos>",
        minloglevel=2,
    )
    added = {str(4 + place): {"content": name, "special": True} for place, name in enumerate(chat)}
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "added_tokens_decoder": added}))
    return directory


def test_gemmas_texts_are_cut_as_sentencepiece_cuts_them(tokenizers):
    tokenizer = tokenizers["gemma"]
    for text in ("import json", "  two\n\nlines", "e\u0301 \U0001f680", ""):
        assert tokenizer.encode(text) == [2, *tokenizer.processor.encode(text)]
    assert [tokenizer.token_to_id(name) for name in ("<start_of_turn>", "<end_of_turn>")] == [4, 5]
    assert tokenizer.processor.encode("<start_of_turn>") == [4]  # which a text must not become
    assert tokenizer.pad_token == "<pad>"


@pytest.fixture(scope="module")
def tokenizers(fixtures, tmp_path_factory):
    llama = fixtures / "tok_llama" / "tokenizer.model"
    return {
        "gpt2": GPT2Tokenizer.from_pretrained(fixtures / "tok_gpt2"),
        "glm4": GLM4Tokenizer(fixtures / "tok_glm4" / "tokenizer.model"),
        "llama3": FastTokenizer(llama3_like(tmp_path_factory.mktemp("llama3")) / "tokenizer.json"),
        "llama": LlamaTokenizer(llama),
        "llama_legacy": LlamaTokenizer(llama, legacy=True),
        "gemma": LlamaTokenizer.from_pretrained(gemma_like(tmp_path_factory.mktemp("gemma"))),
        "chatglm2": ChatGLM2Tokenizer(llama),
        "chatglm3": ChatGLM3Tokenizer(llama),
        "chatglm": ChatGLMTokenizer(fixtures / "tok_chatglm1" / "ice_text.model"),
    }


NAMES = ["gpt2", "glm4", "llama3", "llama", "llama_legacy", "gemma", "chatglm2", "chatglm3", "chatglm"]


@pytest.mark.parametrize("name", ["gpt2", "glm4", "llama3"])
def test_byte_level_gives_every_text_back(tokenizers, name):
    tokenizer = tokenizers[name]

    @settings(max_examples=300)
    @given(TEXTS)
    def check(text):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


@pytest.mark.parametrize("name", ["llama", "gemma", "chatglm2", "chatglm3"])
def test_sentencepiece_changes_nothing_but_its_space_sign(tokenizers, name):
    tokenizer = tokenizers[name]

    @settings(max_examples=300)
    @given(TEXTS)
    @example("\u2581a \u2581")
    def check(text):
        assert tokenizer.decode(tokenizer.encode(text)) == text.replace("\u2581", " ")

    check()


def test_legacy_llama_loses_one_leading_space(tokenizers):
    tokenizer = tokenizers["llama_legacy"]

    @settings(max_examples=300)
    @given(TEXTS)
    def check(text):
        written = text.replace("\u2581", " ")
        assert tokenizer.decode(tokenizer.encode(text)) == written.removeprefix(" ")

    check()


def test_chatglm_gives_back_the_normalised_text(tokenizers):
    """Between its own replacements the model's normaliser is applied; sentencepiece itself says what that gives."""
    tokenizer = tokenizers["chatglm"]

    @settings(max_examples=300)
    @given(TEXTS)
    @example("<|blank_2|>")
    def check(text):
        normal = tokenizer.decode(tokenizer.encode(text))
        assert tokenizer.decode(tokenizer.encode(normal)) == normal, "normalising twice is normalising once"
        plain = text.replace("\n", "<n>").replace("\t", "<|tab|>")
        reference = tokenizer.processor.normalize(plain).removeprefix("\u2581").replace("\u2581", " ")
        for spaces in range(2, 81):  # tokens of that name are spaces, as in the model's own code
            reference = reference.replace(f"<|blank_{spaces}|>", " " * spaces)
        assert normal == reference.replace("<n>", "\n").replace("<|tab|>", "\t")

    check()


def test_chatglm_keeps_what_nfkc_keeps(tokenizers):
    """Letters, digits, punctuation and symbols in NFKC form, newlines, tabs and spaces come back exactly.

    The only two exceptions among all such characters are U+2581 (sentencepiece's space) and U+FFFD (made a space).
    """
    tokenizer = tokenizers["chatglm"]
    characters = st.characters(categories=["L", "N", "P", "S"], exclude_characters="\u2581\ufffd").filter(
        lambda character: unicodedata.normalize("NFKC", character) == character
    )
    texts = st.text(characters | st.sampled_from(" \n\t"), max_size=40)

    @settings(max_examples=300)
    @given(texts.filter(lambda text: unicodedata.normalize("NFKC", text) == text and "<n>" not in text))
    def check(text):
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


@pytest.mark.parametrize("name", NAMES)
def test_no_text_becomes_a_control_token(tokenizers, name):
    tokenizer = tokenizers[name]
    controls = set(tokenizer.special_tokens.values())
    literal = sorted(tokenizer.special_tokens) + CONTROL_TEXTS

    @settings(max_examples=200)
    @given(st.lists(st.sampled_from(literal) | st.text(max_size=4), max_size=5).map("".join))
    @example("".join(literal))
    def check(text):
        assert not controls & set(tokenizer.encode(text, add_special_tokens=False))
        around = len(tokenizer.encode("", add_special_tokens=True))
        assert sum(number in controls for number in tokenizer.encode(text)) == around

    check()


@pytest.mark.parametrize("name", NAMES)
def test_streaming_equals_decoding(tokenizers, name):
    """For any ids, also those that make no valid UTF-8, with and without control tokens."""
    tokenizer = tokenizers[name]
    ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20) | TEXTS.map(tokenizer.encode)

    @settings(max_examples=200)
    @given(ids, st.booleans())
    def check(ids, skip):
        decoder = tokenizer.stream_decoder(skip)
        parts = [decoder.put(number) for number in ids]
        assert "".join(parts) + decoder.end() == tokenizer.decode(ids, skip)

    check()


@pytest.mark.parametrize("name", NAMES)
def test_streaming_never_shows_half_a_character(tokenizers, name):
    tokenizer = tokenizers[name]

    @settings(max_examples=200)
    @given(TEXTS.filter(lambda text: "\ufffd" not in text))
    @example("👍🏽 हिन्दी 你好")
    def check(text):
        decoder = tokenizer.stream_decoder()
        written = ""
        for number in tokenizer.encode(text):
            piece = decoder.put(number)
            assert "\ufffd" not in piece
            written += piece
        assert decoder.end() == ""
        assert written == tokenizer.decode(tokenizer.encode(text))

    check()


def test_streaming_holds_bytes_back_until_they_are_a_character(fixtures):
    tokenizer = LlamaTokenizer(fixtures / "tok_llama" / "tokenizer.model")
    first, *rest = [3 + byte for byte in "👍".encode()]
    decoder = tokenizer.stream_decoder()
    assert [decoder.put(number) for number in [first, *rest]] == ["", "", "", "👍"]
    assert decoder.put(first) == ""
    assert decoder.end() == "\ufffd"
    assert decoder.end() == "", "the decoder starts afresh"


def test_ids_beyond_the_vocabulary_decode_to_a_mark(tokenizers):
    for name, tokenizer in tokenizers.items():
        assert tokenizer.decode([tokenizer.vocab_size + 5]) == "\ufffd", name


def test_half_a_surrogate_pair_is_refused(tokenizers):
    for tokenizer in tokenizers.values():
        with pytest.raises(InputError, match="surrogate pair at character 2"):
            tokenizer.encode("ab\ud83d")


def test_llama3_ids_equal_transformers(tokenizers):
    transformers = pytest.importorskip("transformers", reason="the comparison needs transformers")
    tokenizer = tokenizers["llama3"]
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=tokenizer.source)

    @settings(max_examples=100)
    @given(st.text(max_size=30) | st.text("hello w\n", max_size=20))
    def check(text):
        assert tokenizer.encode(text) == reference(text)["input_ids"]

    check()


def test_llama3_is_recognised_by_its_file(tokenizers, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(llama3_like(tmp_path))
    assert type(tokenizer) is FastTokenizer
    assert tokenizer.prompt_style == "llama3"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.eos_token_ids) == (300, 301, [301, 304])
    # "hello" is a word of the vocabulary that no merge makes; " hello" is none and is merged
    space, letter_o = tokenizer.encode(" ", False), tokenizer.encode("o", False)
    assert tokenizer.encode("hello hello") == [300, 259, *space, 258, *letter_o]
