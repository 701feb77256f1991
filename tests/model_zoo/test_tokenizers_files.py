"""Which class a directory gives, saving and loading again, and clear errors for files that do not fit."""

import json
import shutil

import pytest
from tiny_tokenizers import sentencepiece_like_json, write_byte_level
from tokenizer_directories import ICE, LLAMA, MERGES, RANKS, TEXT, VOCABULARY, complaint
from tokenizers import ByteLevelBPETokenizer

from model_zoo.protobuf import fields
from model_zoo.tokenizers import (
    AutoTokenizer,
    ChatGLM2Tokenizer,
    ChatGLM3Tokenizer,
    ChatGLMTokenizer,
    FastTokenizer,
    GLM4Tokenizer,
    GPT2Tokenizer,
    LlamaTokenizer,
    Qwen2Tokenizer,
)
from model_zoo.tokenizers.glm4 import _describe, parse_ranks
from model_zoo.tokenizers.gpt2 import PAIR


@pytest.mark.parametrize(
    ("sources", "objects", "kind", "style"),
    [
        ([ICE], {}, ChatGLMTokenizer, "chatglm"),
        ([ICE], {"config": {"model_type": "chatglm", "position_encoding_2d": True}}, ChatGLMTokenizer, "chatglm"),
        ([LLAMA], {"config": {"model_type": "chatglm", "padded_vocab_size": 65024}}, ChatGLM2Tokenizer, "chatglm2"),
        ([LLAMA], {"tokenizer_config": {"tokenizer_class": "ChatGLMTokenizer"}}, ChatGLM2Tokenizer, "chatglm2"),
        (
            [LLAMA],
            {"config": {"model_type": "chatglm", "_name_or_path": "THUDM/chatglm3-6b"}},
            ChatGLM3Tokenizer,
            "chatglm3",
        ),
        (
            [LLAMA],
            {
                "config": {"model_type": "chatglm"},
                "tokenizer_config": {"added_tokens_decoder": {"606": {"content": "<|user|>", "special": True}}},
            },
            ChatGLM3Tokenizer,
            "chatglm3",
        ),
        (
            [LLAMA],
            {"config": {"model_type": "chatglm"}, "tokenizer_config": {"chat_template": "[gMASK]sop<|user|>"}},
            ChatGLM3Tokenizer,
            "chatglm3",
        ),
        ([RANKS], {}, GLM4Tokenizer, "glm4"),
        ([RANKS], {"config": {"model_type": "chatglm", "padded_vocab_size": 151552}}, GLM4Tokenizer, "glm4"),
        ([RANKS], {"config": {"model_type": "glm"}}, GLM4Tokenizer, "glm4"),
        ([RANKS], {"config": {"model_type": "glm4"}}, GLM4Tokenizer, "glm4"),
        ([VOCABULARY, MERGES], {}, GPT2Tokenizer, "plain"),
        ([VOCABULARY, MERGES], {"config": {"model_type": "gpt2"}}, GPT2Tokenizer, "plain"),
        ([LLAMA], {}, LlamaTokenizer, "plain"),
        ([LLAMA], {"config": {"model_type": "llama"}}, LlamaTokenizer, "plain"),
        ([LLAMA], {"tokenizer_config": {"chat_template": "<<SYS>> [INST]"}}, LlamaTokenizer, "llama2"),
        ([LLAMA], {"tokenizer_config": {"chat_template": "[INST]"}}, LlamaTokenizer, "mistral"),
        ([LLAMA], {"tokenizer_config": {"prompt_style": "llama2"}}, LlamaTokenizer, "llama2"),
    ],
)  # fmt: skip
def test_a_directory_gives_its_class(make, sources, objects, kind, style):
    tokenizer = AutoTokenizer.from_pretrained(make(*sources, **objects))
    assert type(tokenizer) is kind
    assert tokenizer.prompt_style == style


def test_settings_of_a_directory_count(make):
    settings = {"legacy": True, "add_bos_token": False, "pad_token": {"content": "</s>"}}
    tokenizer = AutoTokenizer.from_pretrained(make(LLAMA, tokenizer_config=settings))
    assert tokenizer.legacy
    assert tokenizer.encode("Hello world") == [353, 358]
    assert tokenizer.pad_token_id == 2
    assert AutoTokenizer.from_pretrained(make(LLAMA), prompt_style="llama2").prompt_style == "llama2"
    directory = make(LLAMA)
    (directory / "chat_template.jinja").write_text("<<SYS>> [INST]")
    assert AutoTokenizer.from_pretrained(directory / "tokenizer.model").prompt_style == "llama2"


@pytest.mark.parametrize(
    ("sources", "kind"),
    [
        ([LLAMA], "Llama"),
        ([], "Llama"),
        ([VOCABULARY, MERGES], "GPT2"),
        ([], "GPT2"),
        ([VOCABULARY, MERGES], "Qwen2"),
    ],
)
def test_a_space_in_front_is_as_tokenizer_config_has_it(make, fixtures, sources, kind):
    """Whatever a tokenizer.json says: the libraries that write it put one in front unless they are told not to."""
    spaced = GPT2Tokenizer(fixtures / VOCABULARY, fixtures / MERGES, settings={"add_prefix_space": True})
    description = sentencepiece_like_json(fixtures) if kind == "Llama" else spaced.description()
    found, objects = [], {} if sources else {"tokenizer": description}
    for wanted in (None, True, False):
        settings = {"tokenizer_class": f"{kind}Tokenizer", **({} if wanted is None else {"add_prefix_space": wanted})}
        directory = make(*sources, tokenizer_config=settings, config={"model_type": kind.lower()}, **objects)
        tokenizer = AutoTokenizer.from_pretrained(directory)
        theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(directory)
        found.append([tokenizer.encode(text, add_special_tokens=False) for text in ("hello world", "a", "你好")])
        assert found[-1] == theirs(["hello world", "a", "你好"], add_special_tokens=False)["input_ids"]
        assert [tokenizer.decode(ids) for ids in found[-1]] == theirs.batch_decode(found[-1])
        tokenizer.save_pretrained(directory.parent / f"saved{wanted}")
        again = AutoTokenizer.from_pretrained(directory.parent / f"saved{wanted}")
        assert again.encode("hello world", add_special_tokens=False) == found[-1][0]
    assert found[0] == found[1 if kind == "Llama" else 2] and found[1] != found[2]


@pytest.mark.parametrize(("settings", "config", "offset"), [
    ({"num_image_tokens": 0}, {}, 0),
    ({"num_image_tokens": 20000}, {}, 20000),
    ({}, {"model_type": "chatglm", "position_encoding_2d": True, "bos_token_id": 8}, 0),
    ({}, {"model_type": "chatglm", "position_encoding_2d": True, "bos_token_id": 20008}, 20000),
])  # fmt: skip
def test_image_tokens_of_chatglm(make, settings, config, offset):
    tokenizer = AutoTokenizer.from_pretrained(make(ICE, tokenizer_config=settings, config=config))
    assert tokenizer.encode("", True) == [5 + offset, 8 + offset]


def test_a_chat_template_of_no_known_style_is_used(make):
    template = "### Human:{{ messages[0].content }}### Answer:"
    tokenizer = AutoTokenizer.from_pretrained(make(LLAMA, tokenizer_config={"chat_template": template}))
    assert (tokenizer.prompt_style, tokenizer.chats) == ("plain", True)
    ids = tokenizer.prompt([{"role": "user", "content": "Hello world"}])
    assert ids == tokenizer.encode("### Human:Hello world### Answer:", add_special_tokens=False)
    assert not AutoTokenizer.from_pretrained(make(LLAMA)).chats


@pytest.mark.parametrize("images", [0, 20000])
def test_chatglms_first_releases_have_ordinary_pieces_alone(make, fixtures, images):
    """Their code put these behind them: 8 control tokens, 80 kinds of blanks, 256 bytes."""
    whole = ChatGLMTokenizer(fixtures / ICE)
    blanks = ["<|tab|>", *(f"<|blank_{length}|>" for length in range(2, 81))]
    controls = ["[MASK]", "[gMASK]", "[sMASK]", "<unused_0>", "<sop>", "<eop>", "<ENC>", "<dBLOCK>"]
    behind = [*controls, *blanks, *(f"<0x{value:02X}>" for value in range(256))]
    data = (fixtures / ICE).read_bytes()
    kept, start = [], 0
    for number, _, begin, end in fields(data, 0, len(data)):
        field, start = data[start:end], end
        name = (
            next((data[at:to] for one, _, at, to in fields(data, begin, end) if one == 1), b"") if number == 1 else b""
        )
        kept += [] if name.decode() in behind else [field]
    pieces = whole.vocab_size - len(behind)
    directory = make(
        config={"model_type": "chatglm", "position_encoding_2d": True, "bos_token_id": images + pieces + 4}
    )
    (directory / "ice_text.model").write_bytes(b"".join(kept) + b"\x12\x03\x98\x02\x00")  # no fall-back to bytes
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert [tokenizer.piece(images + pieces + place) for place in range(len(behind))] == behind
    assert tokenizer.vocab_size == images + whole.vocab_size
    assert [tokenizer.special_tokens[name] for name in controls] == [images + pieces + place for place in range(8)]
    for text in (TEXT, "[MASK] <sop>\n\t ab"):
        ids = tokenizer.encode(text)
        assert list(map(tokenizer.piece, ids)) == list(map(whole.piece, whole.encode(text)))
        assert tokenizer.decode(ids) == whole.decode(whole.encode(text))
    tokenizer.save_pretrained(directory.parent / "saved")
    assert AutoTokenizer.from_pretrained(directory.parent / "saved").encode(TEXT) == tokenizer.encode(TEXT)


def test_json_and_own_files_give_the_same_ids(make, fixtures):
    """GPT-2's tokenizer.json as the library itself writes it, and GLM-4's native layout."""
    directory = make()
    library = ByteLevelBPETokenizer(str(fixtures / VOCABULARY), str(fixtures / MERGES))
    library.add_special_tokens(["<|endoftext|>"])
    library.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert type(tokenizer) is GPT2Tokenizer
    assert tokenizer.encode(TEXT) == GPT2Tokenizer.from_pretrained(fixtures / "tok_gpt2").encode(TEXT)
    assert tokenizer.eos_token_id not in tokenizer.encode("<|endoftext|>")

    ranks = GLM4Tokenizer(fixtures / RANKS)
    description = _describe(parse_ranks((fixtures / RANKS).read_bytes(), "ranks"))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    description["added_tokens"] = [{**token, **flags} for token in description["added_tokens"]]
    native = make(tokenizer=description, config={"model_type": "glm"})
    for tokenizer in (AutoTokenizer.from_pretrained(native), AutoTokenizer.from_pretrained(native / "tokenizer.json")):
        assert type(tokenizer) is GLM4Tokenizer
        assert tokenizer.encode(TEXT) == ranks.encode(TEXT)
        assert tokenizer.special_tokens == ranks.special_tokens
    (native / "config.json").unlink()
    assert type(AutoTokenizer.from_pretrained(native)) is GLM4Tokenizer


def test_llama_without_its_sentencepiece_file(make, fixtures):
    want = json.loads((fixtures / "tok_llama" / "expected.json").read_text(encoding="utf-8"))
    directory = make(tokenizer=sentencepiece_like_json(fixtures), config={"model_type": "llama", "eos_token_id": 2})
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert type(tokenizer) is FastTokenizer
    assert [tokenizer.encode(text) for text in want["texts"]] == want["legacy_False"]
    assert [tokenizer.decode(ids) for ids in want["legacy_False"]] == want["decode_False"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, [2])
    shutil.copy(fixtures / LLAMA, directory)
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    assert type(AutoTokenizer.from_pretrained(directory)) is LlamaTokenizer


def test_lines_of_merges_end_as_files_do(make, fixtures):
    head, _, rest = (fixtures / MERGES).read_text(encoding="utf-8").partition("\n")
    changed = make(VOCABULARY, MERGES)
    (changed / "merges.txt").write_text(
        f"{head} by a tool\u2028of others\x85\n{rest}", encoding="utf-8", newline="\r\n"
    )
    expected = AutoTokenizer.from_pretrained(make(VOCABULARY, MERGES)).encode("Hello world")
    assert AutoTokenizer.from_pretrained(changed).encode("Hello world") == expected


@pytest.mark.parametrize(
    ("kind", "flags", "expected"),
    [
        ("LlamaTokenizerFast", {"add_bos_token": False}, ([], [])),
        ("LlamaTokenizerFast", {"add_eos_token": True}, ([1], [2])),
        ("LlamaTokenizerFast", {"add_bos_token": True, "bos_token": "</s>"}, ([2], [])),
        ("PreTrainedTokenizerFast", {"add_bos_token": False, "add_eos_token": True}, ([1], [])),
        ("PreTrainedTokenizerFast", {"add_bos_token": False, "add_eos_token": True, "bare": True}, ([], [])),
    ],
)
def test_what_stands_around_a_text_is_the_class_s_matter_or_tokenizer_json_s(make, fixtures, kind, flags, expected):
    description = sentencepiece_like_json(fixtures)
    described = {**description, "post_processor": None} if flags.pop("bare", False) else description
    settings = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "</s>", **flags}
    directory = make(tokenizer=described, tokenizer_config=settings)
    assert AutoTokenizer.from_pretrained(directory).around == expected
    if kind.startswith("PreTrained"):
        theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(directory)
        assert theirs("")["input_ids"] == expected[0] + expected[1]


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "gpt2"])
def test_without_a_class_the_model_says_which_tokenizer_it_is(make, model_type):
    """Of these both transformers 4 and 5 go by tokenizer.json alone."""
    write_byte_level(directory := make(config={"model_type": model_type}), ("<|endoftext|>", "<s>", "</s>"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.encode("a") == tokenizer.encode("a", add_special_tokens=False)


@pytest.mark.parametrize("name", PAIR)
def test_a_tokenizer_json_serves_gpt2_where_one_of_the_pair_was_not_fetched(make, fixtures, name):
    described = GPT2Tokenizer.from_pretrained(fixtures / "tok_gpt2")
    directory = make(VOCABULARY, MERGES, config={"model_type": "gpt2"}, tokenizer=described.description())
    (directory / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert AutoTokenizer.from_pretrained(directory).encode(TEXT) == described.encode(TEXT)


@pytest.mark.parametrize("named", ["LlamaTokenizer", "PreTrainedTokenizerFast", None])
@pytest.mark.parametrize("model_type", ["llama", None])
def test_a_tokenizer_json_serves_where_the_older_file_was_not_fetched(make, fixtures, named, model_type):
    said = {"tokenizer_config": {"tokenizer_class": named}, "config": {"model_type": model_type}}
    said = {name: {key: one for key, one in values.items() if one} for name, values in said.items()}
    directory = make(tokenizer=sentencepiece_like_json(fixtures), **said)
    expected = AutoTokenizer.from_pretrained(directory).encode(TEXT)
    (directory / "tokenizer.model").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert AutoTokenizer.from_pretrained(directory).encode(TEXT) == expected
    (directory / "tokenizer.json").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "only a Git LFS pointer" in complaint(directory)


def qwen2_as_json(vocabulary, merges, listed):
    """The tokenizer.json that a published Qwen2 has beside the two files."""
    word = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": word}, "behavior": "Isolated", "invert": False}
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "added_tokens": [
            {**flags, "id": number, "content": name, "special": special} for number, name, special in listed
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytewise]},
        "decoder": bytewise,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


@pytest.mark.parametrize(
    "named", [{"config": {"model_type": "qwen3"}}, {"tokenizer_config": {"tokenizer_class": "Qwen2Tokenizer"}}], ids=str
)
@pytest.mark.parametrize("form", ["listed", "added", "bare"])
def test_qwen2_in_two_files_is_the_same_as_in_one(make, fixtures, tmp_path, named, form):
    vocabulary = json.loads((fixtures / VOCABULARY).read_text())
    vocabulary.pop("<|endoftext|>")
    vocabulary = {piece: number for number, piece in enumerate(vocabulary)}
    merges = [line for line in (fixtures / MERGES).read_text().splitlines() if line and not line.startswith("#")]
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *["<tool_call>"] * (form == "listed")]
    listed = [(len(vocabulary) + place, name, name != "<tool_call>") for place, name in enumerate(names)]
    settings = {"eos_token": "<|im_end|>", "bos_token": None, "pad_token": "<|endoftext|>"}
    whole = make(
        tokenizer=qwen2_as_json(vocabulary, merges, listed),
        tokenizer_config={**settings, "tokenizer_class": "Qwen2Tokenizer"},
    )
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    more = {"listed": {str(number): {"content": name, "special": special, **flags} for number, name, special in listed}}
    objects = {name: dict(value) for name, value in named.items()}
    objects["tokenizer_config"] = settings | objects.get("tokenizer_config", {})
    if form == "listed":
        objects["tokenizer_config"]["added_tokens_decoder"] = more["listed"]
    if form == "added":
        objects["added_tokens"] = {name: number for number, name, _ in listed}
    pair = make(vocab=vocabulary, **objects)
    shutil.copy(fixtures / MERGES, pair)
    ours, theirs = AutoTokenizer.from_pretrained(pair), FastTokenizer.from_pretrained(whole)
    assert type(ours) is Qwen2Tokenizer
    ours.save_pretrained(tmp_path / "saved")
    for text in (TEXT, "1234 don't I'LL e\u0301 <|im_end|> <tool_call>\r\n\r\n  x", "12" * 40):
        for one in (ours, AutoTokenizer.from_pretrained(tmp_path / "saved")):
            assert one.encode(text) == one(text)["input_ids"] == theirs.encode(text)
            assert one.decode(one.encode(text)) == theirs.decode(theirs.encode(text))
    assert ours.special_tokens == theirs.special_tokens
    assert (ours.eos_token, ours.bos_token, ours.pad_token) == ("<|im_end|>", None, "<|endoftext|>")


def test_a_token_that_gpt2_lacks_is_put_around_no_text(make):
    named = {"bos_token": "[CLS]", "add_bos_token": True}
    tokenizer = AutoTokenizer.from_pretrained(make(VOCABULARY, MERGES, tokenizer_config=named))
    ids = GPT2Tokenizer.from_pretrained(make(VOCABULARY, MERGES)).encode(TEXT)
    assert tokenizer.encode(TEXT) == ids
    assert tokenizer(TEXT)["input_ids"] == [*ids, tokenizer.eos_token_id]
