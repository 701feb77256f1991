"""Added and control tokens that a tokenizer's files tell of."""

import pytest
from tiny_tokenizers import sentencepiece_like_json
from tokenizer_directories import FLAGS, LLAMA, MERGES, RANKS, TEXT, VOCABULARY, complaint, listed

from model_zoo.errors import InputError
from model_zoo.tokenizers import (
    AutoTokenizer,
    FastTokenizer,
    LlamaTokenizer,
)
from model_zoo.tokenizers.glm4 import _describe, parse_ranks
from model_zoo.tokenizers.gpt2 import PAIR, describe_pair


def test_extra_control_tokens_are_known(make):
    added = {"600": {"content": "<|pad|>", "special": True}, "601": {"content": "plain", "special": False}}
    settings = {"added_tokens_decoder": added, "pad_token": "<|pad|>"}
    tokenizer = AutoTokenizer.from_pretrained(make(LLAMA, tokenizer_config=settings))
    assert tokenizer.pad_token_id == 600
    assert tokenizer.vocab_size == 602
    assert tokenizer.decode([600, 353, 600]) == "Hello"


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


@pytest.mark.parametrize("entry", [{"x": {"content": "a"}}, {"7": "a"}, {"7": {"content": 7}}, {"7": {}}], ids=str)
def test_control_tokens_are_ids_with_a_content(make, entry):
    directory = make(LLAMA, tokenizer_config={"added_tokens_decoder": entry})
    assert "an id with an object that has a content was expected" in complaint(directory)


def test_an_added_token_without_a_text_is_none(make):
    entry = {"600": {"content": "", "special": True}}
    tokenizer = AutoTokenizer.from_pretrained(make(LLAMA, tokenizer_config={"added_tokens_decoder": entry}))
    assert "" not in tokenizer.special_tokens and tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
