"""Which class a directory gives, saving and loading again, and clear errors for files that do not fit."""

import json
import os
import shutil

import pytest
from sentencepiece import SentencePieceTrainer
from tiny_tokenizers import sentencepiece_like_json, write_byte_level
from tokenizers import ByteLevelBPETokenizer

from model_zoo.errors import InputError
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
from model_zoo.tokenizers.glm4 import OF_OTHERS, _describe, parse_ranks
from model_zoo.tokenizers.gpt2 import PAIR, describe_pair

TEXT = " Hello 你好\n\n<|user|> 1  2\t👍"


@pytest.fixture
def make(fixtures, tmp_path):
    """Copies fixture files into a fresh directory and writes the JSON files given."""

    def build(*sources, **objects):
        directory = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        for source in sources:
            shutil.copy(fixtures / source, directory)
        for name, value in objects.items():
            (directory / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        return directory

    return build


LLAMA, RANKS = "tok_llama/tokenizer.model", "tok_glm4/tokenizer.model"
ICE, VOCABULARY, MERGES = "tok_chatglm1/ice_text.model", "tok_gpt2/vocab.json", "tok_gpt2/merges.txt"


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


def test_extra_control_tokens_are_known(make):
    added = {"600": {"content": "<|pad|>", "special": True}, "601": {"content": "plain", "special": False}}
    settings = {"added_tokens_decoder": added, "pad_token": "<|pad|>"}
    tokenizer = AutoTokenizer.from_pretrained(make(LLAMA, tokenizer_config=settings))
    assert tokenizer.pad_token_id == 600
    assert tokenizer.vocab_size == 602
    assert tokenizer.decode([600, 353, 600]) == "Hello"


FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


def listed(pairs, special):
    """``added_tokens_decoder`` of tokens behind the vocabulary."""
    return {str(number): {"content": name, "special": special, **FLAGS} for number, name in pairs}


ADDED = "say [SEG] now", "a[SEG]b", "[SEG]", "[SEG][SEG]2 and [SEG", "你[SEG]好 [SEG]2", "a [SEG]  b\n[SEG]\nc"


@pytest.mark.parametrize("legacy", [False, True, None])
@pytest.mark.parametrize(
    ("sources", "kind"), [([LLAMA], "Llama"), ([VOCABULARY, MERGES], "GPT2"), ([VOCABULARY, MERGES], "Qwen2")]
)
def test_added_tokens_that_are_text(make, tmp_path, sources, kind, legacy):
    """In every text, those of a template among them, they have their ids; control tokens beside them do not."""
    added = {**listed([(600, "<|im_end|>")], True), **listed([(601, "[SEG]"), (602, "[SEG]2")], False)}
    settings = {"tokenizer_class": f"{kind}Tokenizer", "added_tokens_decoder": added}
    settings |= {} if legacy is None else {"legacy": legacy}
    if kind == "Llama":
        added |= listed([(0, "<unk>"), (1, "<s>"), (2, "</s>")], True)
    directory = make(*sources, tokenizer_config=settings, config={"model_type": kind.lower()})
    ours = AutoTokenizer.from_pretrained(directory)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(directory)
    for text in ADDED:
        found = ours.encode(text, add_special_tokens=False)
        assert found == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(found) == theirs.decode(found)
    assert 600 not in ours.encode("a<|im_end|>[SEG]") and ours.vocab_size == len(theirs) == 603
    talk = [{"role": "user", "content": "a [SEG]"}]
    template = "{{ '<|im_end|>[SEG]' + messages[0].content + ' [SEG]b' }}"
    expected = theirs.encode("<|im_end|>[SEG]a [SEG] [SEG]b", add_special_tokens=False)
    assert ours.with_chat_template(template, "own").prompt(talk) == expected
    ours.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again.encode("a[SEG]b") == ours.encode("a[SEG]b") and again.vocab_size == 603


@pytest.mark.parametrize("form", ["Llama", "GPT2", "Qwen2", "json", "json with a list"])
def test_a_token_that_ends_texts_or_fills_rows_is_none_of_them(make, fixtures, form):
    """Whatever is said of it."""
    pairs = [(600, "<|im_end|>"), (601, "<pad>")]
    settings = {"eos_token": "<|im_end|>", "pad_token": "<pad>", "tokenizer_class": f"{form}Tokenizer"}
    objects = {"tokenizer_config": settings, "config": {"model_type": form.lower()}}
    if form.startswith("json"):
        objects |= {"tokenizer": sentencepiece_like_json(fixtures), "config": {"model_type": "llama"}}
        objects["tokenizer"]["added_tokens"] += [{"id": n, "content": t, "special": False, **FLAGS} for n, t in pairs]
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if form != "json":
        settings["added_tokens_decoder"] = listed(pairs, False)
    if form == "Llama":
        settings["added_tokens_decoder"] |= listed([(0, "<unk>"), (1, "<s>"), (2, "</s>")], True)
    sources = {"Llama": [LLAMA], "GPT2": [VOCABULARY, MERGES], "Qwen2": [VOCABULARY, MERGES]}.get(form, [])
    directory = make(*sources, **objects)
    ours = AutoTokenizer.from_pretrained(directory)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(directory)
    assert (ours.eos_token_id, ours.pad_token_id) == (theirs.eos_token_id, theirs.pad_token_id) == (600, 601)
    ids = [*ours.encode("ab", add_special_tokens=False), 600, 601]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "ab"
    assert not {600, 601} & {*ours.encode("<|im_end|><pad>")}


def test_end_tokens_of_the_generation_config_count(make):
    stops = {"eos_token_id": [2, 1, 400]}  # 400 is an ordinary piece: never a stop
    directory = make(LLAMA, config={"model_type": "llama", "eos_token_id": 2}, generation_config=stops)
    assert AutoTokenizer.from_pretrained(directory).eos_token_ids == [2, 1]


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


SPACED = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ ANSWER }}{% endif %}"
    "{% endfor %}"
)
ANSWERS = "m.content + eos_token + ' '", "' ' + m.content + eos_token", "m.content + eos_token"


@pytest.mark.parametrize("form", ["both", "json", "model"])
@pytest.mark.parametrize("model_type", ["llama", "mistral", None])
@pytest.mark.parametrize("named", ["LlamaTokenizerFast", "CodeLlamaTokenizer", "PreTrainedTokenizerFast", None])
@pytest.mark.parametrize("legacy", [False, True])
def test_spaces_behind_control_tokens_are_as_transformers_has_them(make, fixtures, form, model_type, named, legacy):
    """sentencepiece's model, and the tokenizer.json that transformers 4 made of it, beside it and by itself."""
    if form == "model" and (model_type == "mistral" or named in ("PreTrainedTokenizerFast", None)):
        pytest.skip("transformers 5 leaves out the first space, which the model's own has")
    if named == "CodeLlamaTokenizer" and legacy:
        pytest.skip("this class has no legacy files")
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": legacy}
    settings |= {"tokenizer_class": named} if named else {}
    objects = {"tokenizer_config": settings, **({"config": {"model_type": model_type}} if model_type else {})}
    objects |= {} if form == "model" else {"tokenizer": sentencepiece_like_json(fixtures)}
    directory = make(*([] if form == "json" else [LLAMA]), **objects)
    plain = AutoTokenizer.from_pretrained(directory)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(directory)
    said = [("user", "hi"), ("assistant", "yes"), ("user", "and"), ("assistant", "no")]
    talk = [{"role": role, "content": text} for role, text in said]
    for answer in ANSWERS:
        theirs.chat_template = SPACED.replace("ANSWER", answer)
        ours = plain.with_chat_template(theirs.chat_template, "own")
        assert ours.prompt(talk[:3]) == theirs.apply_chat_template(talk[:3], return_dict=False), answer
        assert ours.example(talk)[0] == theirs.apply_chat_template(talk, return_dict=False), answer
    assert plain.encode("a b", add_special_tokens=False) == theirs.encode("a b", add_special_tokens=False)
    saved = directory / "saved"  # without a config.json, as beside an adapter
    ours.save_pretrained(saved)
    assert AutoTokenizer.from_pretrained(saved).prompt(talk[:3]) == ours.prompt(talk[:3])


@pytest.mark.parametrize("scheme", ["always", "first"])
@pytest.mark.parametrize("legacy", [None, True])
def test_spaces_of_llamas_class_are_not_those_of_a_tokenizer_json(make, fixtures, scheme, legacy):
    """transformers 5 writes ``always`` for a ``legacy`` one, does not write ``legacy``, and reads neither there."""
    words = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    description = {**with_added(sentencepiece_like_json(fixtures)), "normalizer": None, "pre_tokenizer": words}
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings |= {} if legacy is None else {"legacy": legacy}
    directory = make(tokenizer=description, tokenizer_config=settings, config={"model_type": "llama"})
    tokenizer = AutoTokenizer.from_pretrained(directory)
    found = [tokenizer.encode(text, add_special_tokens=False) for text in ("a<think>b", "<think> b", "a")]
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(directory)
    assert found == [theirs.encode(text, add_special_tokens=False) for text in ("a<think>b", "<think> b", "a")]


def with_added(description):
    """The same as transformers writes it when tokens were added, which its tokenizer_config.json does not list."""
    more = [{"id": 600, "content": "<|end|>", "special": True}, {"id": 601, "content": "<think>", "special": False}]
    return {**description, "added_tokens": [*description["added_tokens"], *({**one, **FLAGS} for one in more)]}


def test_lines_of_merges_end_as_files_do(make, fixtures):
    head, _, rest = (fixtures / MERGES).read_text(encoding="utf-8").partition("\n")
    changed = make(VOCABULARY, MERGES)
    (changed / "merges.txt").write_text(
        f"{head} by a tool\u2028of others\x85\n{rest}", encoding="utf-8", newline="\r\n"
    )
    expected = AutoTokenizer.from_pretrained(make(VOCABULARY, MERGES)).encode("Hello world")
    assert AutoTokenizer.from_pretrained(changed).encode("Hello world") == expected


@pytest.mark.parametrize(("lines", "lost"), [(1, "'ga'"), (2, ".* and 1 more")])
def test_merges_that_are_cut_off(make, lines, lost):
    directory = make(VOCABULARY, MERGES)
    whole = (directory / "merges.txt").read_text(encoding="utf-8").splitlines()
    (directory / "merges.txt").write_text("\n".join(whole[:-lines]), encoding="utf-8")
    with pytest.raises(InputError, match=f"no merge makes the piece {lost}; the file is cut off"):
        AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_what_transformers_5_changes_is_in_tokenizer_json_alone(make, fixtures, kind):
    """It leaves the older files beside as they were."""
    if kind == "llama":
        sources, description = [LLAMA], sentencepiece_like_json(fixtures)
    else:
        sources = [VOCABULARY, MERGES]
        paths = {name: fixtures / source for name, source in zip(PAIR, sources, strict=True)}
        description = describe_pair({name: path.read_bytes() for name, path in paths.items()}, paths, {})
        description["added_tokens"] = [{**one, **FLAGS} for one in description["added_tokens"]]
    settings = {"backend": "tokenizers", "eos_token": "<|end|>", "extra_special_tokens": ["<|end|>"]}
    more = make(*sources, tokenizer=with_added(description), tokenizer_config=settings, config={"model_type": kind})
    tokenizer = AutoTokenizer.from_pretrained(more)
    assert (tokenizer.eos_token_id, tokenizer.vocab_size) == (600, 602)
    ids = tokenizer.encode("Hello<think><|end|>", add_special_tokens=False)
    assert 601 in ids and 600 not in ids
    own = make(*sources, tokenizer=description, tokenizer_config={}, config={"model_type": kind})
    assert tokenizer.encode("Hello world") == AutoTokenizer.from_pretrained(own).encode("Hello world")
    bare = {**description, "post_processor": None}  # from add_bos_token: false, which is not written again
    bare = make(*sources, tokenizer=bare, tokenizer_config={"backend": "tokenizers"}, config={"model_type": kind})
    assert AutoTokenizer.from_pretrained(bare).around == ([], [])


def test_a_list_of_added_tokens_says_whether_tokenizer_json_has_more(make, fixtures):
    """As transformers 4 writes it; control tokens alone do not make the sentencepiece model unfit."""
    description = with_added(sentencepiece_like_json(fixtures))
    kinds = []
    for special in (True, False):
        listed = {str(one["id"]): {**one, "special": special} for one in description["added_tokens"]}
        settings = {"added_tokens_decoder": listed, "tokenizer_class": "LlamaTokenizer"}
        kinds.append(type(AutoTokenizer.from_pretrained(make(LLAMA, tokenizer=description, tokenizer_config=settings))))
    assert kinds == [LlamaTokenizer, FastTokenizer]


def test_older_directories_say_the_rest_in_files_of_their_own(make, fixtures):
    """Before ``added_tokens_decoder``: special_tokens_map.json counts, and added_tokens.json. With it they do not."""
    named = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<unk>", "additional_special_tokens": ["<|im_end|>"]}
    files = {"special_tokens_map": named, "added_tokens": {"<|im_start|>": 601, "<|im_end|>": 600}}
    template = "{% for one in messages %}<|im_start|>{{ one.content }}<|im_end|>{% endfor %}"
    settings = {"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>", "chat_template": template}
    older = make(LLAMA, **files, tokenizer_config=settings, config={"model_type": "llama"})
    tokenizer = AutoTokenizer.from_pretrained(older)
    assert type(tokenizer) is LlamaTokenizer and tokenizer.vocab_size == 602
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (600, 0)
    ids = tokenizer.prompt([{"role": "user", "content": "<|im_end|>"}])
    assert (ids[0], ids[-1]) == (601, 600) and 600 not in ids[:-1]
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(older)
    assert (theirs.eos_token_id, theirs.convert_tokens_to_ids("<|im_start|>")) == (600, 601)
    tokenizer.save_pretrained(older.parent / "saved")
    again = AutoTokenizer.from_pretrained(older.parent / "saved")
    assert (again.eos_token_id, again.prompt([{"role": "user", "content": "a"}])[0]) == (600, 601)
    newer = make(LLAMA, **files, tokenizer_config={**settings, "added_tokens_decoder": {}, "chat_template": ""})
    assert AutoTokenizer.from_pretrained(newer).eos_token_id == 2
    both = make(VOCABULARY, MERGES, added_tokens={"[PAD]": 700}, special_tokens_map={"pad_token": "[PAD]"})
    assert AutoTokenizer.from_pretrained(both).pad_token_id == 700
    alone = make(tokenizer=sentencepiece_like_json(fixtures), added_tokens={"[PAD]": 700, "</s>": 3})
    tokenizer = AutoTokenizer.from_pretrained(alone)
    assert (tokenizer.token_to_id("[PAD]"), tokenizer.token_to_id("</s>"), tokenizer.vocab_size) == (700, 2, 701)
    with pytest.raises(InputError, match=r"added_tokens.json: '\[PAD\]': an id was expected, found 'x'"):
        AutoTokenizer.from_pretrained(make(VOCABULARY, MERGES, added_tokens={"[PAD]": "x"}))


def test_tokens_that_only_tokenizer_json_has_and_nothing_lists(make, fixtures):
    description = with_added(sentencepiece_like_json(fixtures))
    objects = {"tokenizer": description, "tokenizer_config": {"tokenizer_class": "LlamaTokenizer"}}
    assert AutoTokenizer.from_pretrained(make(LLAMA, **objects)).token_to_id("<|end|>") == 600
    listed = make(LLAMA, **objects, added_tokens={"<|end|>": 600, "<think>": 601})
    assert type(AutoTokenizer.from_pretrained(listed)) is LlamaTokenizer


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


def test_plain_added_tokens_stay_text(make, fixtures):
    description = _describe(parse_ranks((fixtures / RANKS).read_bytes(), "ranks"))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    description["added_tokens"] = [
        {"id": 600, "content": "<|im_start|>", "special": True, **flags},
        {"id": 601, "content": "<|im_end|>", "special": True, **flags},
        {"id": 700, "content": "<tool_call>", "special": False, **flags},  # the library alone would make it 600
    ]
    settings = {"bos_token": None, "eos_token": "<|im_end|>"}
    tokenizer = AutoTokenizer.from_pretrained(
        make(tokenizer=description, tokenizer_config=settings, config={"model_type": "qwen2"})
    )
    assert tokenizer.prompt_style == "chatml"
    assert tokenizer.bos_token_id is None
    ids = tokenizer.encode("a<tool_call><|im_end|>")
    assert 700 in ids
    assert not {600, 601} & set(ids)
    assert tokenizer.vocab_size == 701
    assert tokenizer.decode(ids) == "a<tool_call><|im_end|>"


@pytest.mark.parametrize("as_pairs", [True, False])
def test_merges_never_end_in_a_control_token(make, fixtures, as_pairs):
    description = sentencepiece_like_json(fixtures)
    description["model"]["vocab"] |= {"s>": 600, "<": 601, ">": 602}
    merges = ["s >", "< s>", *description["model"]["merges"]]
    description["model"]["merges"] = [merge.split(" ") for merge in merges] if as_pairs else merges
    tokenizer = AutoTokenizer.from_pretrained(make(tokenizer=description))
    ids = tokenizer.encode("a<s>b", add_special_tokens=False)
    assert 600 in ids
    assert 1 not in ids
    assert tokenizer.decode(ids) == "a<s>b"


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


def complaint(directory, kind=AutoTokenizer):
    with pytest.raises(InputError) as caught:
        kind.from_pretrained(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


@pytest.mark.parametrize("entry", [{"x": {"content": "a"}}, {"7": "a"}, {"7": {"content": 7}}, {"7": {}}], ids=str)
def test_control_tokens_are_ids_with_a_content(make, entry):
    directory = make(LLAMA, tokenizer_config={"added_tokens_decoder": entry})
    assert "an id with an object that has a content was expected" in complaint(directory)


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


def test_an_added_token_without_a_text_is_none(make):
    entry = {"600": {"content": "", "special": True}}
    tokenizer = AutoTokenizer.from_pretrained(make(LLAMA, tokenizer_config={"added_tokens_decoder": entry}))
    assert "" not in tokenizer.special_tokens and tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


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
