"""What MindFormers' documents and scripts ask of tokenizers, of its own classes and of AutoTokenizer's."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError
from pet.compat.mindformers import AutoModel, AutoTokenizer, ChatGLM2Tokenizer, LlamaTokenizer

TEXT = "hello, 世界 red"


def test_tokens_and_ids(tokenizer):
    ids, tokens = tokenizer.encode(TEXT, add_special_tokens=False), tokenizer.tokenize(TEXT)
    assert len(tokens) == len(ids) and all(isinstance(token, str) for token in tokens)
    assert tokenizer.convert_tokens_to_ids(tokens) == ids and tokenizer.convert_ids_to_tokens(ids) == tokens
    assert tokenizer.convert_tokens_to_ids(tokens[0]) == ids[0] and tokenizer.convert_ids_to_tokens(ids[0]) == tokens[0]
    assert tokenizer.convert_tokens_to_ids("no such token") == tokenizer.unk_token_id
    assert tokenizer.convert_ids_to_tokens(tokenizer.vocab_size) is None
    vocabulary = tokenizer.get_vocab()
    assert all(vocabulary[name] == number for name, number in tokenizer.special_tokens.items())
    own = pet.AutoTokenizer.from_pretrained(tokenizer.source).__class__.__name__
    assert type(tokenizer).__name__ == own  # by which stored data is known


def test_control_tokens(tokenizer):
    ids = tokenizer("a red", add_special_tokens=False)["input_ids"]
    assert not {*ids} & {*tokenizer.all_special_ids} and {*tokenizer.call_tokens()[0]} <= {*tokenizer.all_special_ids}
    assert tokenizer.convert_tokens_to_ids(tokenizer.all_special_tokens) == tokenizer.all_special_ids


def test_the_unknown_token(tokenizer):
    unknown = {"LlamaTokenizer": "<unk>", "ChatGLMTokenizer": "<unk>", "GPT2Tokenizer": "<|endoftext|>"}
    assert tokenizer.unk_token == unknown.get(type(tokenizer).__name__)


def test_several_rows(tokenizer):
    texts = ["a red", "b"]
    assert tokenizer.batch_encode_plus(texts) == tokenizer(texts)
    assert tokenizer.encode_plus("a red", max_length=2, truncation=False) == tokenizer("a red")
    rows = tokenizer(texts, padding=True, return_tensors="np")["input_ids"]
    assert tokenizer.decode(rows, skip_special_tokens=True) == tokenizer.batch_decode(rows, True) == texts
    assert tokenizer.decode(rows[0], True) == "a red" and tokenizer.decode([]) == ""


def test_control_tokens_are_in_a_text_unless_they_are_skipped(tokenizer):
    name, number = next(iter(tokenizer.special_tokens.items()))
    ids = [*tokenizer.encode("a red", add_special_tokens=False), number]
    written = tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids) == ("a red" if type(tokenizer).__name__ == "ChatGLMTokenizer" else written) != ""
    assert name in written and tokenizer.decode(ids, skip_special_tokens=True) == "a red"


def test_what_a_call_gives_has_attributes_and_is_cut_at_a_length_that_is_said(tokenizer):
    whole = tokenizer("a red cotton shirt")
    assert whole.input_ids == whole["input_ids"] and whole.attention_mask == whole["attention_mask"]
    with pytest.raises(AttributeError, match="gives no 'labels', but input_ids"):
        _ = whole.labels
    short = len(whole.input_ids) - 1
    assert tokenizer("a red cotton shirt", max_length=short) == tokenizer(
        "a red cotton shirt", max_length=short, truncation=True
    )
    assert len(tokenizer("a red cotton shirt", max_length=short).input_ids) == short
    assert tokenizer("a red cotton shirt", max_length=short, truncation=False) == whole
    assert tokenizer.pad(whole, padding=False).input_ids == whole.input_ids


def test_padding_is_on_the_tokenizers_own_side(tokenizer):
    """Right, as in MindFormers, whose models find the end of a prompt, unless tokenizer_config.json says left, as GLM's
    do; or as the script says."""
    texts, pad = ["a red b c", "b"], tokenizer.pad_token_id
    if pad is None:
        tokenizer.pad_token = tokenizer.eos_token
        pad = tokenizer.pad_token_id
    assert tokenizer.padding_side == ("left" if "GLM" in type(tokenizer).__name__ else "right")
    tokenizer.padding_side = "right"
    plain = tokenizer(texts)
    longest, short = map(len, plain["input_ids"])
    ones, rest = [1] * short, [0] * (longest - short)
    right, left = ones + rest, rest + ones
    found = tokenizer(texts, padding=True)
    assert found["attention_mask"][1] == right and found["input_ids"][1][short:] == [pad] * (longest - short)
    assert tokenizer.pad(plain) == found
    assert tokenizer.pad([tokenizer(text) for text in texts]) == found
    tokenizer.padding_side = "left"
    assert tokenizer(texts, padding=True)["attention_mask"][1] == left
    assert tokenizer.pad(plain) == tokenizer(texts, padding=True) != found
    assert copy.copy(tokenizer).padding_side == pickle.loads(pickle.dumps(tokenizer)).padding_side == "left"
    assert tokenizer(texts, padding=True, padding_side="right") == found
    with pytest.raises(InputError, match="padding_side: expected 'left' or 'right', found 'middle'"):
        tokenizer.padding_side = "middle"


def test_pad_takes_what_mindformers_takes(tokenizer):
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.pad_token or tokenizer.eos_token, "right"
    pad = tokenizer.pad_token_id
    rows = {"input_ids": [[5, 6, 7], [8]], "labels": [[1, 2, 3], [4]]}
    found = tokenizer.pad(rows, pad_to_multiple_of=4, return_tensors="np")
    assert found["input_ids"].tolist() == [[5, 6, 7, pad], [8, pad, pad, pad]]
    assert found["labels"].tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    one = tokenizer.pad({"input_ids": np.array([5, 6])}, padding="max_length", max_length=3)
    assert (one["input_ids"], one["attention_mask"]) == ([5, 6, pad], [1, 1, 0])
    assert tokenizer.pad(rows, padding=False, return_attention_mask=False) == rows
    for wrong, words in (
        ({"padding": "most"}, "padding: unknown value 'most'"),
        ({"padding": False, "return_tensors": "np"}, "the rows have different lengths; add padding=True"),
    ):
        with pytest.raises(InputError, match=words):
            tokenizer.pad(rows, **wrong)
    with pytest.raises(InputError, match="pad: no input_ids, found labels"):
        tokenizer.pad({"labels": [1]})


def test_a_length_of_the_tokenizers_own(tokenizer):
    whole = tokenizer("a red b c d e")["input_ids"]
    tokenizer.model_max_length = len(whole) - 1
    assert len(tokenizer("a red b c d e", truncation=True)["input_ids"]) == len(whole) - 1
    assert tokenizer("a red b c d e")["input_ids"] == whole
    assert tokenizer("a red b c d e", truncation=True, max_length=len(whole))["input_ids"] == whole
    assert AutoTokenizer.from_pretrained("gpt_tiny").model_max_length == 128  # of its tokenizer_config.json
    assert LlamaTokenizer.from_pretrained("llama_tiny").model_max_length == int(1e30)
    with pytest.raises(InputError, match="max_length: needed for truncation"):
        LlamaTokenizer.from_pretrained("llama_tiny")("a", truncation=True)


def test_tokens_that_are_there_may_be_added(tokenizer):
    known = list(tokenizer.special_tokens)
    assert tokenizer.add_tokens(known) == tokenizer.add_tokens(known[0], special_tokens=True) == 0
    assert tokenizer.add_special_tokens({"pad_token": known[-1], "additional_special_tokens": known}) == 0
    assert tokenizer.pad_token == known[-1]
    for add in (lambda: tokenizer.add_tokens(["<new>"]), lambda: tokenizer.add_special_tokens({"pad_token": "<new>"})):
        with pytest.raises(InputError, match="add_tokens: '<new>': the tokenizer and the model's embedding stay as"):
            add()


def test_gpt2s_ends_as_a_call_says():
    """Around a text up to release 0.6 of MindFormers; later ones have a switch for each, and an example with both."""
    tokenizer = AutoTokenizer.from_pretrained("gpt_tiny")
    end, ids = tokenizer.eos_token_id, tokenizer.encode("a red", add_special_tokens=False)
    assert tokenizer("a red")["input_ids"] == [end, *ids, end]
    assert tokenizer("a red", add_bos_token=False, add_eos_token=False)["input_ids"] == ids
    assert tokenizer("a red", add_bos_token=False)["input_ids"] == [*ids, end]


@pytest.mark.parametrize("name", ["llama_tiny", "gpt_tiny"])
def test_a_script_says_what_stands_around_texts(name, tmp_path):
    """As MindFormers' scripts do that write rows; GPT-2's own ends are those of a call."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    ids, before = tokenizer.encode("a red", add_special_tokens=False), tokenizer("a red")["input_ids"]
    assert (tokenizer.add_bos_token, tokenizer.add_eos_token) == (True, name == "gpt_tiny")
    assert tokenizer("a red", add_bos_token=False, add_eos_token=True)["input_ids"] == [*ids, end]
    assert tokenizer("a red")["input_ids"] == before
    tokenizer.add_bos_token, tokenizer.add_eos_token = False, True
    assert tokenizer.encode("a red") == tokenizer("a red")["input_ids"] == [*ids, end]
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("a red")["input_ids"] == [*ids, end]
    tokenizer.add_bos_token = True
    assert tokenizer.encode("a red") == [begin, *ids, end]


@pytest.mark.parametrize("name", ["glm_tiny", "glm4_tiny"])
def test_glms_tokens_around_texts_stay(name):
    tokenizer = AutoTokenizer.from_pretrained(name)
    assert not hasattr(tokenizer, "add_bos_token")
    with pytest.raises(InputError, match="add_bos_token: this tokenizer has tokens of its own around a text"):
        tokenizer.add_bos_token = False


def test_what_a_call_pads_generate_takes():
    tokenizer, model = AutoTokenizer.from_pretrained("llama_tiny"), AutoModel.from_pretrained("llama_tiny")
    texts = ["Ada made this lamp", "Ada"]
    inputs = tokenizer(texts, padding=True, return_tensors="np")
    assert inputs["attention_mask"][1, -1] == 0
    found = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    alone = [model.generate(tokenizer(text)["input_ids"], max_new_tokens=3, do_sample=False)[0] for text in texts]
    assert [list(map(int, row)) for row in found] == [list(map(int, row)) for row in alone]


def test_it_can_be_copied_and_sent_to_a_process(tokenizer):
    for other in (copy.copy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert type(other) is type(tokenizer) and other.tokenize(TEXT) == tokenizer.tokenize(TEXT)
    own = LlamaTokenizer.from_pretrained("llama_tiny")
    assert pickle.loads(pickle.dumps(own)).decode([own.encode("a")], True) == ["a"]


def test_a_row_of_ids_is_made_ready(tokenizer):
    """As the scripts that write MindRecord files ask for it."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    ids, pad = tokenizer.encode("a red", add_special_tokens=False), tokenizer.pad_token_id
    row = tokenizer.prepare_for_model(
        ids, add_special_tokens=False, max_length=len(ids) + 2, padding="max_length", truncate_direction="LEFT"
    )
    assert (row["input_ids"], row["attention_mask"]) == ([*ids, pad, pad], [1] * len(ids) + [0, 0])
    row = tokenizer.prepare_for_model([5, 6, 9], [7, 8], False, truncation=True, max_length=3)
    assert row["input_ids"] == [5, 6, 7]  # the longer one loses first, the second of equal ones
    assert tokenizer.prepare_for_model([5, 6, 9], [7], False, max_length=3)["input_ids"] == [5, 6, 7]
    row = tokenizer.prepare_for_model([5, 6, 9], None, False, "max_length", max_length=2)
    assert row["input_ids"] == [5, 6, 9]  # padding alone cuts nothing
    assert tokenizer.prepare_for_model(ids) == tokenizer("a red")
    cut = tokenizer("a red", max_length=len(tokenizer.call_tokens()[0] + tokenizer.call_tokens()[1]) + 1)
    assert tokenizer.prepare_for_model(ids, max_length=len(cut["input_ids"]))["input_ids"] == cut["input_ids"]
    with pytest.raises(InputError, match="max_length: 0 has no room for the control tokens"):
        tokenizer.prepare_for_model(ids, max_length=0)
    with pytest.raises(InputError, match="prepare_for_model: there is no stride"):
        tokenizer.prepare_for_model(ids, stride=2)


def test_which_tokens_are_control_tokens(tokenizer):
    before, after = map(len, tokenizer.call_tokens())
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    mask = [1] * before + [0, 0] + [1] * after
    assert tokenizer.num_special_tokens_to_add() == before + after == sum(mask)
    assert tokenizer.get_special_tokens_mask([5, 6]) == mask
    built = tokenizer.build_inputs_with_special_tokens([30, 31], [32])
    assert tokenizer.get_special_tokens_mask([30, 31], [32]) == tokenizer.get_special_tokens_mask(built, None, True)
    types = tokenizer.create_token_type_ids_from_sequences([30, 31], [32])
    assert types == [0] * len(mask) + [1] * (len(built) - len(mask))
    tokenizer.padding_side = "right"
    how = {"return_special_tokens_mask": True, "return_length": True}
    row = tokenizer.prepare_for_model([5, 6], None, True, "max_length", max_length=len(mask) + 2, **how)
    assert row["special_tokens_mask"] == [*mask, 1, 1] and row["length"] == len(mask) + 2
    assert tokenizer.prepare_for_model([5, 6], None, False, **how)["special_tokens_mask"] == [0, 0]
    assert tokenizer.special_tokens_map["eos_token"] == tokenizer.eos_token and not tokenizer.is_fast
    assert tokenizer.convert_tokens_to_string(tokenizer.tokenize("a red")) == "a red"


def test_two_rows_of_ids_with_their_control_tokens(tokenizer):
    """`build_inputs_with_special_tokens` of each of MindFormers' tokenizers, releases 1.0 to 1.8."""
    before, after = tokenizer.call_tokens()
    both = tokenizer.build_inputs_with_special_tokens([5, 6], [7])
    if type(tokenizer).__name__ in ("GPT2Tokenizer", "LlamaTokenizer"):
        assert both == [*before, 5, 6, *after, *before, 7, *after]
    else:
        assert both == [*before, 5, 6, *after, 7, tokenizer.eos_token_id]
    assert tokenizer.prepare_for_model([5, 6], [7])["input_ids"] == both


def test_what_a_call_leaves_out_and_where_it_cuts(tokenizer):
    assert [*tokenizer("a red", return_attention_mask=False, return_token_type_ids=False)] == ["input_ids"]
    assert "attention_mask" in tokenizer("a red", return_attention_mask=True)
    ids = tokenizer("a red")["input_ids"]
    assert len(tokenizer("a red", truncation="longest_first", max_length=len(ids) - 1)["input_ids"]) == len(ids) - 1
    assert tokenizer("a red", truncation="do_not_truncate", max_length=len(ids) - 1)["input_ids"] == ids
    with pytest.raises(InputError, match="truncation: unknown value 'only_second'"):
        tokenizer("a red", truncation="only_second", max_length=3)


def test_settings_of_a_tokenizer_that_is_made_by_its_file():
    """As MindFormers' documents and the section ``tokenizer`` of its files say them."""
    from pet.names import bundled_models

    file = bundled_models()["llama_tiny"] / "tokenizer.model"
    plain = LlamaTokenizer(str(file))
    told = {
        "type": "LlamaTokenizer",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
    }
    tokenizer = LlamaTokenizer(vocab_file=str(file), **told, add_bos_token=False, padding_side="left")
    assert tokenizer.encode("a red") == plain.encode("a red")[1:]
    assert (tokenizer.pad_token, tokenizer.padding_side) == ("</s>", "left")
    with pytest.raises(InputError, match="vocab_file is None"):
        LlamaTokenizer(add_bos_token=False)
    asked = [{"role": "user", "content": "a red"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, chat_template=None)
    assert ids == tokenizer.apply_chat_template(asked, add_generation_prompt=True)
    theirs = "{% for one in messages %}[{{ one.role }}]{{ one.content }}{% endfor %}"
    theirs += "{% if add_generation_prompt %}!{% endif %}"
    found = tokenizer.apply_chat_template(asked, add_generation_prompt=True, chat_template=theirs)
    assert found == tokenizer.encode(f"[user]{asked[-1]['content']}!", add_special_tokens=False)
    assert ids == tokenizer.apply_chat_template(asked, add_generation_prompt=True), "its own is as it was"
    with pytest.raises(InputError, match="chat_template: the chat template cannot render"):
        tokenizer.apply_chat_template(asked, add_generation_prompt=True, chat_template="{% if")
    LlamaTokenizer(str(file), sp_model_kwargs={}, use_default_system_prompt=False, auto_register="x.LlamaTokenizer")
    with pytest.raises(InputError, match="use_default_system_prompt=True: is not supported"):
        LlamaTokenizer(str(file), use_default_system_prompt=True)
    assert LlamaTokenizer(str(file), additional_special_tokens=["</s>"]).encode("a red") == plain.encode("a red")
    with pytest.raises(InputError, match=r"add_tokens: '<\|im_start\|>': the tokenizer and the model's embedding stay"):
        LlamaTokenizer(str(file), additional_special_tokens=["<|im_start|>", "</s>"])
    with pytest.raises(TypeError, match="bos_tokens"):
        LlamaTokenizer(str(file), bos_tokens="<s>")


def test_a_scripts_own_padding(tokenizer):
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    row = {"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1]}
    found = tokenizer._pad(dict(row), max_length=5, padding_strategy="max_length")
    assert found.pop("position_ids", None) == ([0, 1, 2, 0, 0] if type(tokenizer).__name__ == "GLM4Tokenizer" else None)
    assert found == {"input_ids": [5, 6, 7, *[tokenizer.pad_token_id] * 2], "attention_mask": [1, 1, 1, 0, 0]}
    assert tokenizer._pad(dict(row), max_length=2, padding_strategy="max_length").items() >= row.items()


def test_words_and_tokens_as_objects(tokenizer, caplog):
    """Scripts of MindFormers name what calls take by these classes."""
    from pet.compat.mindformers.models.tokenization_utils import AddedToken, PaddingStrategy, TruncationStrategy
    from pet.compat.mindformers.models.tokenization_utils_base import BatchEncoding, TensorType

    words = {"padding": PaddingStrategy.MAX_LENGTH, "truncation": TruncationStrategy.LONGEST_FIRST}
    found = tokenizer("a red", max_length=9, return_tensors=TensorType.NUMPY, **words)
    plain = tokenizer("a red", max_length=9, padding="max_length", truncation=True, return_tensors="np")
    assert isinstance(found, BatchEncoding) and np.array_equal(found.input_ids, plain["input_ids"])
    made = BatchEncoding({"input_ids": [[1, 2]]}, tensor_type=TensorType.MINDSPORE)
    assert made.input_ids.shape == (1, 2) and BatchEncoding({"input_ids": [1]})["input_ids"] == [1]
    name = tokenizer.all_special_tokens[-1]
    assert not tokenizer.add_special_tokens({"pad_token": AddedToken(name)}) and tokenizer.pad_token == name
    assert (AddedToken(name).normalized, AddedToken(name, special=True).normalized) == (True, False)
    assert not caplog.records
    AddedToken(name, lstrip=True)
    assert "single_word, lstrip and rstrip are those of the tokenizer's own files" in caplog.text


def test_a_tokenizer_takes_its_control_tokens_as_objects():
    from pet.compat.mindformers.models.tokenization_utils import AddedToken

    file = AutoTokenizer.from_pretrained("llama_tiny").source
    assert LlamaTokenizer(file, pad_token=AddedToken("</s>")).pad_token == "</s>"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("tok_llama", "a </s> b", [439, 464, 2, 464, 274]),
        ("tok_llama", "</s></s>a", [2, 2, 439]),
        ("tok_gpt2", "a <|endoftext|> b", [65, 221, 0, 341]),
        ("tok_chatglm1", "a<eop>", [349, 366, 9]),
    ],
)
def test_a_named_control_token_in_a_text_is_that_token(fixtures, name, text, expected):
    """The ids of MindFormers' own tokenizers; its Vicuna prompt ends answers by ``</s>`` in the text."""
    tokenizer = AutoTokenizer.from_pretrained(fixtures / name)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == expected
    assert tokenizer.encode(text, add_special_tokens=False) == expected
    named = text.strip("a b")[:4]
    message = [{"role": "user", "content": named}]
    assert tokenizer.prompt(message) == pet.AutoTokenizer.from_pretrained(fixtures / name).prompt(
        message
    )  # no token there


def test_chatglm2_has_its_control_tokens_in_no_text(fixtures):
    tokenizer = ChatGLM2Tokenizer.from_pretrained(fixtures / "tok_chatglm2")
    assert 2 not in tokenizer("a</s>", add_special_tokens=False)["input_ids"]
