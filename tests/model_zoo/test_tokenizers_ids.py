"""Exact ids: against the reference fixtures, and against a second, independent way to compute them."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from model_zoo.tokenizers import (
    AutoTokenizer,
    ChatGLM2Tokenizer,
    ChatGLM3Tokenizer,
    ChatGLMTokenizer,
    GLM4Tokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
)
from model_zoo.tokenizers.files import parse_ranks
from model_zoo.tokenizers.glm4 import WORDS

MESSAGES = [
    {"role": "user", "content": "你好"},
    {"role": "assistant", "content": "你好！我是模型。"},
    {"role": "user", "content": "What's 1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "今天天气怎么样？"},
]


def expected(fixtures, name):
    return json.loads((fixtures / name / "expected.json").read_text(encoding="utf-8"))


def all_ids(tokenizer, texts, add_special_tokens=False):
    return [tokenizer.encode(text, add_special_tokens) for text in texts]


class TestChatGLM6B:
    @pytest.fixture
    def want(self, fixtures):
        return expected(fixtures, "tok_chatglm1")

    @pytest.fixture
    def tokenizer(self, fixtures):
        return ChatGLMTokenizer(fixtures / "tok_chatglm1" / "ice_text.model")

    def test_ids(self, tokenizer, want):
        assert all_ids(tokenizer, want["texts"]) == want["ids"]
        assert all_ids(tokenizer, want["texts"], True) == want["ids_special"]
        assert tokenizer.vocab_size == want["vocab_size"]

    def test_decode(self, tokenizer, want):
        assert [tokenizer.decode(ids) for ids in want["ids"]] == want["decode"]
        assert [tokenizer.decode(ids) for ids in want["ids_special"]] == want["decode"]

    def test_first_release_shifts_the_ids(self, fixtures, want):
        tokenizer = ChatGLMTokenizer(fixtures / "tok_chatglm1" / "ice_text.model", num_image_tokens=20000)
        assert all_ids(tokenizer, want["texts"]) == want["ids_image20000"]
        assert [tokenizer.decode(ids) for ids in want["ids_image20000"]] == want["decode"]
        assert tokenizer.eos_token_id == 20000 + want["special"]["<eop>"]
        assert tokenizer.vocab_size == 20000 + want["vocab_size"]
        assert tokenizer.decode([17, *want["ids_image20000"][1]]) == "Hello world"
        assert tokenizer.decode([17], skip_special_tokens=False) == "<image_17>"

    def test_control_tokens(self, tokenizer, want):
        text_pieces = ("<n>", "<|tab|>", "<|blank_2|>")
        controls = {name: number for name, number in want["special"].items() if name not in text_pieces}
        assert {name: tokenizer.token_to_id(name) for name in controls} == controls
        assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (3, 8, [9])
        for name in text_pieces:
            assert tokenizer.encode(name, False)[-1] == want["special"][name]

    def test_pair_is_an_example(self, tokenizer, want):
        question, answer = tokenizer.decode(want["pair"][:5]), tokenizer.decode(want["pair"][7:8])
        talk = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        assert tokenizer.example(talk) == (want["pair"], [False] * 7 + [True] * 2)

    def test_prompt(self, tokenizer, want):
        assert tokenizer.encode(want["prompt"]) == want["prompt_ids"]
        assert tokenizer.prompt(MESSAGES) == want["prompt_ids"]
        assert tokenizer.prompt(MESSAGES[-1:]) == want["single_prompt_ids"]

    def test_batch(self, tokenizer, want):
        batch = tokenizer(["Hello world", "你好"], padding=True)
        assert batch["input_ids"] == want["batch"]["input_ids"]
        assert batch["attention_mask"] == [[1] * 11, [0] * 8 + [1] * 3]

    def test_control_tokens_in_a_text_are_text(self, tokenizer, want):
        controls = set(tokenizer.special_tokens.values())
        for text in want["literal_specials"]:
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert not controls & set(ids)
            assert tokenizer.decode(ids) == text
        plain = "a[gMASK]b", "a</s>b"  # the reference, too, has no way from these texts to a control token
        assert all_ids(tokenizer, plain) == [want["literal_specials"][text] for text in plain]

    @pytest.mark.parametrize("count", [1, 2, 79, 80, 81, 82, 160, 161, 243])
    def test_runs_of_spaces(self, tokenizer, count):
        text = f"a{' ' * count}b"
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert len(ids) <= 4 + -(-count // 80)


class TestChatGLM2:
    @pytest.fixture
    def want(self, fixtures):
        return expected(fixtures, "tok_chatglm2")

    @pytest.fixture
    def tokenizer(self, fixtures):
        return ChatGLM2Tokenizer(fixtures / "tok_chatglm2" / "tokenizer.model")

    def test_ids(self, tokenizer, want):
        assert all_ids(tokenizer, want["texts"]) == want["ids"] == want["ids_from_pretrained"]
        assert all_ids(tokenizer, want["texts"], True) == want["ids_special"]
        assert [tokenizer.decode(ids) for ids in want["ids_special"]] == want["decode"]
        assert tokenizer.vocab_size == want["vocab_size"]

    def test_control_tokens(self, tokenizer, want):
        assert {name: tokenizer.token_to_id(name) for name in want["special"]} == want["special"]
        assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, 1, [2])
        assert all_ids(tokenizer, want["literal_specials"]) == list(want["literal_specials"].values())

    def test_prompt(self, tokenizer, want):
        assert tokenizer.encode(want["prompt"]) == want["prompt_ids"]
        assert tokenizer.prompt(MESSAGES) == want["prompt_ids"]

    def test_batch(self, tokenizer, want):
        batch = tokenizer(["Hello world", "你好"], padding=True)
        assert batch["input_ids"] == want["batch"]["input_ids"]
        assert batch["attention_mask"] == want["batch"]["attention_mask"]

    def test_chatglm3_appends_the_roles(self, fixtures, want):
        tokenizer = ChatGLM3Tokenizer(fixtures / "tok_chatglm2" / "tokenizer.model")
        assert all_ids(tokenizer, want["texts"], True) == want["ids_special"]
        roles = {"<|system|>": 605, "<|user|>": 606, "<|assistant|>": 607, "<|observation|>": 608}
        assert {name: tokenizer.token_to_id(name) for name in roles} == roles
        assert tokenizer.eos_token_ids == [2, 606, 608]
        assert tokenizer.vocab_size == 609


class TestLlama:
    @pytest.mark.parametrize("legacy", [True, False])
    def test_ids(self, fixtures, legacy):
        want = expected(fixtures, "tok_llama")
        tokenizer = LlamaTokenizer(fixtures / "tok_llama" / "tokenizer.model", legacy=legacy)
        assert all_ids(tokenizer, want["texts"], True) == want[f"legacy_{legacy}"]
        assert [tokenizer.decode(ids) for ids in want[f"legacy_{legacy}"]] == want[f"decode_{legacy}"]

    def test_begin_and_end_can_be_chosen(self, fixtures):
        vocabulary = fixtures / "tok_llama" / "tokenizer.model"
        tokenizer = LlamaTokenizer(vocabulary, add_bos_token=False, add_eos_token=True)
        assert tokenizer.encode("Hello world") == [353, 358, 2]
        by_settings = LlamaTokenizer(vocabulary, settings={"add_bos_token": False, "add_eos_token": True})
        assert by_settings.encode("Hello world") == [353, 358, 2]

    def test_control_tokens_can_be_shown(self, fixtures):
        tokenizer = LlamaTokenizer(fixtures / "tok_llama" / "tokenizer.model")
        assert tokenizer.decode([1, 353, 358, 2], skip_special_tokens=False) == "<s> Hello world</s>"


class TestGLM4:
    def test_ids(self, fixtures):
        want = expected(fixtures, "tok_glm4")
        tokenizer = GLM4Tokenizer(fixtures / "tok_glm4" / "tokenizer.model")
        assert all_ids(tokenizer, want["texts"]) == want["ids"]
        assert tokenizer.encode("Hello world") == [602, 604, *want["ids"][1]]
        assert [tokenizer.decode(ids) for ids in want["ids"]] == want["texts"]
        assert tokenizer.special_tokens == want["special"]
        assert tokenizer.eos_token_ids == [600, 607, 609]

    def test_every_token_alone_is_itself(self, fixtures):
        path = fixtures / "tok_glm4" / "tokenizer.model"
        tokenizer = GLM4Tokenizer(path)
        for token, rank in parse_ranks(path.read_bytes(), path).items():
            assert tokenizer.token_bytes(rank) == (token, 0)


class TestGPT2:
    def test_ids(self, fixtures):
        want = expected(fixtures, "tok_gpt2")
        directory = fixtures / "tok_gpt2"
        tokenizer = GPT2Tokenizer(directory / "vocab.json", directory / "merges.txt")
        assert all_ids(tokenizer, want["texts"]) == all_ids(tokenizer, want["texts"], True) == want["ids"]
        assert [tokenizer.decode(ids) for ids in want["ids"]] == want["decode"]

    def test_the_end_token_in_a_text_is_text(self, fixtures):
        tokenizer = GPT2Tokenizer.from_pretrained(fixtures / "tok_gpt2")
        ids = tokenizer.encode("a<|endoftext|>b")
        assert tokenizer.eos_token_id not in ids
        assert tokenizer.decode(ids) == "a<|endoftext|>b"


def tiktoken_ids(ranks, words, text):
    """tiktoken's definition, word by word: join the two neighbours of the lowest joint rank, the leftmost first."""
    ids = []
    for word, _ in words.pre_tokenize_str(text):
        parts = [bytes([byte]) for byte in word.encode("utf-8")]
        if word.encode("utf-8") in ranks:
            parts = [word.encode("utf-8")]
        while len(parts) > 1:
            best, place = min((ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(pairwise(parts)))
            if best == 1 << 30:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        ids.extend(ranks[part] for part in parts)
    return ids


# Letters that the toy vocabularies know, so that many merges meet, beside arbitrary Unicode.
TEXTS = st.text(max_size=40) | st.text("the worldingans \n你好世界1234", max_size=40)


def test_ranks_merge_as_tiktoken_does(fixtures):
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    path = fixtures / "tok_glm4" / "tokenizer.model"
    ranks, tokenizer = parse_ranks(path.read_bytes(), path), GLM4Tokenizer(path)
    words = Split(Regex(WORDS), "isolated")

    @settings(max_examples=300)
    @given(TEXTS)
    def check(text):
        assert tokenizer.encode(text, add_special_tokens=False) == tiktoken_ids(ranks, words, text)

    check()


@pytest.mark.parametrize("name", ["tok_llama/tokenizer.model", "tok_chatglm1/ice_text.model"])
def test_any_ids_decode_as_sentencepiece_does(fixtures, name):
    from sentencepiece import SentencePieceProcessor

    tokenizer = AutoTokenizer.from_pretrained(fixtures / name.split("/")[0])
    processor = SentencePieceProcessor(model_file=str(fixtures / name))
    ordinary = [number for number in range(processor.get_piece_size()) if tokenizer.control_text(number) is None]

    def blanks(text):
        text = text.replace("<n>", "\n").replace("<|tab|>", "\t")
        for count in range(80, 1, -1):
            text = text.replace(f"<|blank_{count}|>", " " * count)
        return text

    @settings(max_examples=300)
    @given(st.lists(st.sampled_from(ordinary), max_size=12))
    def check(ids):
        assert tokenizer.decode(ids) == blanks(processor.decode(ids))

    check()
