"""Directories as published models have them, with and without the files beside a vocabulary: ids and texts are those of
transformers 5, or where that has left the vocabulary's own rule, the library's that the vocabulary is of."""

import json
import shutil

import pytest
from tiny_tokenizers import sentencepiece_like_json, write_byte_level
from tokenizers import ByteLevelBPETokenizer, processors

from model_zoo.checkpoint.saving import copy_companions
from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer, GPT2Tokenizer, LlamaTokenizer
from pet.data.classified import whole_text

transformers = pytest.importorskip("transformers", reason="the comparison needs transformers")

MODEL, PAIR = ["tok_llama/tokenizer.model"], ["tok_gpt2/vocab.json", "tok_gpt2/merges.txt"]
END = "<|endoftext|>"
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA |= {"add_bos_token": True, "add_eos_token": False, "legacy": False}
GPT2 = {"tokenizer_class": "GPT2Tokenizer", **dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)}
RUNS = {" " * many: 600 + place for place, many in enumerate((8, 4, 3, 2))} | {"\t\t": 604}
FIM = {"<fim_prefix>": 600, "<fim_middle>": 601}


def token(content, special=False, **flags):
    return {"content": content, **FLAGS, "special": special, **flags}


CONTROLS = {str(number): token(text, True) for number, text in enumerate(("<unk>", "<s>", "</s>"))}
STRIPS = CONTROLS | {
    "600": token("<l>", lstrip=True),
    "601": token("<r>", True, rstrip=True),
    "602": token("<b>", rstrip=True, lstrip=True),
    "603": token("word", single_word=True),
    "604": token("<c>", True, single_word=True, lstrip=True),
}
SHAPES = {
    "alpaca": (MODEL, "llama", {"tokenizer_config": LLAMA, "added_tokens": {"[PAD]": 600, "<think>": 601, " a": 602}}),
    "vicuna": (
        MODEL,
        "llama",
        {
            "tokenizer_config": {**LLAMA, "pad_token": {"__type": "AddedToken", "content": "[PAD]", **FLAGS}},
            "special_tokens_map": {"pad_token": "[PAD]", "eos_token": {**FLAGS, "content": "</s>"}},
            "added_tokens": {"[PAD]": 600, "<tool>": 601},
        },
    ),
    "strips": (MODEL, "llama", {"tokenizer_config": {**LLAMA, "added_tokens_decoder": STRIPS}}),
    "piece": (MODEL, "llama", {"tokenizer_config": {**LLAMA, "eos_token": "▁world"}}),
    "phi": (
        PAIR,
        "gpt2",
        {"tokenizer_config": {**GPT2, "tokenizer_class": "CodeGenTokenizer"}, "added_tokens": {**RUNS, END: 0}},
    ),
    "gpt2": (PAIR, "gpt2", {"tokenizer_config": GPT2, "added_tokens": {"[PAD]": 600, "<think>": 601}}),
    "starcoder": (PAIR, "gpt2", {"tokenizer_config": {**GPT2, "additional_special_tokens": [END, *FIM]}}),
    "qwen2": (
        PAIR,
        "qwen2",
        {
            "tokenizer_config": {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": END},
            "special_tokens_map": {"additional_special_tokens": ["<|im_end|>"]},
            "added_tokens": {"<|im_end|>": 600, "<tool_call>": 601},
        },
    ),
}
TEXTS = (
    *("a{0}b", "{0}", "{0}{0}", "a {0}  b", "\n{0}\n c", "{0} hello\t{0}", "你{0}好", "x{0}{1}y {1} z", "{0}\n\n{1}"),
    *(
        "",
        "say word swordw word2",
        "if x:\n        pass\t\t",
        "1234 don't\r\n\r\n x",
        "e\u0301 ﬁ\u3000",
        "👍🏽\u0000",
        "\n\n x",
    ),
)


@pytest.fixture
def shape(fixtures, tmp_path):
    """Makes a directory in one of `SHAPES`."""

    def build(name):
        sources, kind, objects = SHAPES[name]
        directory = tmp_path / name
        directory.mkdir()
        for source in sources:
            shutil.copy(fixtures / source, directory)
        if name == "starcoder":
            vocabulary = json.loads((directory / "vocab.json").read_text())
            (directory / "vocab.json").write_text(json.dumps(vocabulary | FIM))
        for file, value in {**objects, "config": {"model_type": kind}}.items():
            (directory / f"{file}.json").write_text(json.dumps(value), encoding="utf-8")
        return directory

    return build


@pytest.mark.parametrize("name", SHAPES)
def test_ids_and_texts_are_those_of_transformers(shape, tmp_path, name):
    directory = shape(name)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    special = {one.content: number for number, one in theirs.added_tokens_decoder.items() if one.special}
    plain = {one.content: number for number, one in theirs.added_tokens_decoder.items() if not one.special}
    AutoTokenizer.from_pretrained(directory).save_pretrained(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert again.encode("a[PAD] <think>  b<fim_prefix>") == theirs.encode("a[PAD] <think>  b<fim_prefix>")
    for ours in map(AutoTokenizer.from_pretrained, (directory, tmp_path / "saved")):
        assert len(ours) == len(theirs) and ours.eos_token_id == theirs.eos_token_id
        assert special.items() <= ours.special_tokens.items() and ours.plain == plain
        assert ours.special_tokens.keys() - special <= {"</s>"}  # a control piece whatever ends texts
        names = [*special, *plain]
        for text in {form.format(one, other) for form in TEXTS for one in names for other in names[-2:]}:
            found = ours.encode_written(text)
            assert found == theirs.encode(text, add_special_tokens=False), text
            if not any(one in text for one in special):
                assert ours.encode(text, add_special_tokens=False) == found
            for ids in (found, found[1:], found[:-1]):
                if "\ufffd" in ours.decode(ids):  # beside which transformers 5 loses whole characters
                    continue
                assert ours.decode(ids, True) == theirs.decode(ids, skip_special_tokens=True)
                if "</s>" in special and name != "piece":
                    assert ours.decode(ids, False) == theirs.decode(ids, skip_special_tokens=False)
        assert all(ours.token_to_id(one) == number for one, number in {**special, **plain}.items())


def test_lists_of_special_tokens_count_wherever_they_are(shape):
    """transformers 5 leaves out special_tokens_map.json's; its version 4 wrote and read it."""
    directory = shape("gpt2")
    (directory / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["[PAD]"]}))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.special_tokens == {END: 0, "[PAD]": 600} and tokenizer.plain == {"<think>": 601}


def test_a_sign_for_a_space_in_an_added_token_is_one(fixtures, tmp_path):
    """Gemma's tokenizer.json has its runs of spaces as added tokens."""
    description = sentencepiece_like_json(fixtures)
    description["added_tokens"] += [{"id": 600, **token("▁▁x")}, {"id": 601, **token(" y")}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    theirs, ours = (kind.AutoTokenizer.from_pretrained(tmp_path) for kind in (transformers, __import__("pet")))
    for ids in ([353, 600, 358], [600, 353], [601, 353], [353, 601]):
        assert ours.decode(ids) == theirs.decode(ids)


def test_mistrals_model_alone_has_its_first_space(fixtures, tmp_path):
    """As sentencepiece has it, and Mistral's own tokenizer; transformers 5 leaves it out."""
    shutil.copy(fixtures / MODEL[0], tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(LLAMA))
    ours = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("Hello world", " Hello", "a", "\n"):
        assert ours.encode(text, add_special_tokens=False) == ours.processor.encode(text)


def test_the_description_of_two_files_is_there(fixtures):
    tokenizer = GPT2Tokenizer(*(fixtures / name for name in PAIR))
    description = tokenizer.description()
    assert description["model"]["vocab"][END] == 0 and description["added_tokens"] == tokenizer.added


def test_a_chat_template_among_the_settings_of_a_file_counts(fixtures):
    settings = {"chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    tokenizer = LlamaTokenizer(fixtures / MODEL[0], settings=settings)
    assert tokenizer.prompt([{"role": "user", "content": "Hello world"}]) == [
        1,
        *tokenizer.encode_further("Hello world"),
    ]


def test_where_a_hub_s_token_and_files_are_is_said():
    import pet

    with pytest.raises(InputError, match="token is HF_TOKEN in the environment") as caught:
        pet.AutoTokenizer.from_pretrained("llama_tiny", token="x", cache_dir="/tmp/x")
    assert "cache_dir is HF_HOME in the environment" in str(caught.value)
    with pytest.raises(InputError, match="cache_dir is HF_HOME"):
        pet.AutoModel.from_pretrained("llama_tiny", cache_dir="/tmp/x")


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_whatever_a_tokenizer_json_puts_around_texts_is_there(fixtures, tmp_path, kind, model_type):
    """Not by a template alone: the library's byte-level BPE is often trained with these."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    library = ByteLevelBPETokenizer(*(str(fixtures / name) for name in PAIR))
    library.add_special_tokens([END, "<s>", "</s>"])
    ends = [(name, library.token_to_id(name)) for name in ("</s>", "<s>")]
    library.post_processor = getattr(processors, f"{kind}Processing")(*ends)
    library.save(str(tmp_path / "tokenizer.json"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode("hello") == theirs.encode("hello")
    assert whole_text(ours, "hello", "a b") == theirs("hello", "a b")["input_ids"]


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_named_tokens_are_found_among_the_pieces_of_a_tokenizer_json(fixtures, tmp_path, model_type):
    """Which lists none of them."""
    ByteLevelBPETokenizer(*(str(fixtures / name) for name in PAIR)).save(str(tmp_path / "tokenizer.json"))
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    description["model"]["vocab"] |= {"<|im_end|>": 600, "<|im_start|>": 601}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    settings = {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = (kind.from_pretrained(tmp_path) for kind in (AutoTokenizer, transformers.AutoTokenizer))
    assert ours.eos_token_id == theirs.eos_token_id == 600
    assert ours.encode_written("<|im_start|>a<|im_end|>") == theirs.encode("<|im_start|>a<|im_end|>")
    assert ours.decode([601, 65, 600]) == theirs.decode([601, 65, 600], skip_special_tokens=True) == "a"


def test_a_model_counts_where_the_json_beside_it_is_of_another_kind(fixtures, tmp_path):
    """A unigram model's json, without a class that would say which of them counts."""
    shutil.copy(fixtures / "tok_llama" / "tokenizer.model", tmp_path)
    unigram = {"type": "Unigram", "vocab": [["<unk>", 0.0]], "unk_id": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": unigram}))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    alone = AutoTokenizer.from_pretrained(fixtures / "tok_llama" / "tokenizer.model")
    assert AutoTokenizer.from_pretrained(tmp_path).encode("a b") == alone.encode("a b")


def test_rows_filled_with_a_character_leave_it_in_texts(tmp_path):
    write_byte_level(tmp_path, ["<|end|>"], digits=3)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "!", "eos_token": "<|end|>"}))
    ours, theirs = (kind.from_pretrained(tmp_path) for kind in (AutoTokenizer, transformers.AutoTokenizer))
    assert ours.pad_token == "!"
    for text in ("a!b", "!", "!!"):
        assert ours.encode(text) == theirs.encode(text) and ours.decode(ours.encode(text), False) == text


def test_what_transformers_5_lists_is_special_where_tokenizer_json_says_so(tmp_path):
    """Of a sentencepiece model by itself it lists all that is never divided: Gemma's line breaks among them."""
    write_byte_level(tmp_path, ["<|end|>"], texts=["\n\n"])
    settings = {"backend": "tokenizers", "tokenizer_class": "TokenizersBackend", "eos_token": "<|end|>"}
    settings["extra_special_tokens"] = ["<|end|>", "\n\n"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = (kind.from_pretrained(tmp_path) for kind in (AutoTokenizer, transformers.AutoTokenizer))
    ids = ours.encode("a\n\nb")
    assert ids == theirs.encode("a\n\nb")
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "a\n\nb"


def test_what_transformers_5_names_anew_is_written_by_its_older_names(tmp_path):
    """Of the new ones transformers 4 makes errors; its LLaMA takes the null for no space in front of a text."""
    for name in ("new", "copied"):
        (tmp_path / name).mkdir()
    write_byte_level(tmp_path / "new", ["<|end|>", "<|more|>"])
    settings = {"backend": "tokenizers", "eos_token": "<|end|>", "model_max_length": 64}
    new = {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<|more|>"], "add_prefix_space": None}
    (tmp_path / "new" / "tokenizer_config.json").write_text(json.dumps({**settings, **new}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new")
    copy_companions(tmp_path / "new", tmp_path / "copied", tmp_path)
    tokenizer.save_pretrained(tmp_path / "saved")
    for name in ("copied", "saved"):
        written = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        older = {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["<|more|>"]}
        assert written.items() >= {**settings, **older}.items()
        assert not {"extra_special_tokens", "add_prefix_space"} & written.keys()
        ours, theirs = (kind.from_pretrained(tmp_path / name) for kind in (AutoTokenizer, transformers.AutoTokenizer))
        assert theirs.all_special_tokens == ["<|end|>", "<|more|>"]
        assert ours.encode("a b") == theirs.encode("a b") == tokenizer.encode("a b")


def test_what_all_versions_read_is_copied_as_it_is(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"z": 1,\n"extra_special_tokens": {"image_token": "<i>"}}')
    (tmp_path / "copied").mkdir()
    copy_companions(tmp_path, tmp_path / "copied", tmp_path / "copied")
    written, given = (place / "tokenizer_config.json" for place in (tmp_path / "copied", tmp_path))
    assert written.read_bytes() == given.read_bytes()
