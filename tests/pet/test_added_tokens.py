"""Tokens added to a base: ids, rows, roles, and what opens the result."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import pet
from model_zoo.checkpoint.reading import Checkpoint
from model_zoo.errors import InputError
from pet.added_tokens import add_tokens
from pet.cli.main import main
from pet.compat import axolotl, llama_factory
from pet.names import bundled_models

BASES = ("llama_tiny", "gpt_tiny", "glm4_tiny")
WORDS = "<|im_start|>", "<|im_end|>"


@pytest.mark.parametrize("name", BASES)
def test_new_tokens_have_ids_and_rows_and_the_rest_stays(name, tmp_path):
    base, added = bundled_models()[name], tmp_path / "added"
    report = add_tokens(str(base), WORDS[:1], str(added), eos_token=WORDS[1])
    old, new = pet.AutoTokenizer.from_pretrained(name), pet.AutoTokenizer.from_pretrained(str(added))
    first = len(old)
    assert report.ids == {WORDS[0]: first, WORDS[1]: first + 1} and len(new) == first + 2
    assert [new.token_to_id(word) for word in WORDS] == [first, first + 1]
    assert new.eos_token == WORDS[1] and new.bos_token == old.bos_token
    assert new.encode_text("Where is it?") == old.encode_text("Where is it?")
    with Checkpoint(base) as before, Checkpoint(added) as after:
        assert before.names == after.names
        for tensor in before.names:
            was, now = before.raw(tensor), after.raw(tensor)
            assert np.array_equal(now[: len(was)], was)
            mean = was.astype(np.float64).mean(0, keepdims=True)
            assert np.allclose(now[len(was) :], mean, rtol=1e-6, atol=1e-9) and len(now) - len(was) in (0, 2)
    ends = json.loads((added / "generation_config.json").read_text())["eos_token_id"]
    assert ends[0] == first + 1 and set(pet.AutoModel.from_pretrained(name).eos_token_ids) <= {*ends}
    assert json.loads((added / "config.json").read_text())["eos_token_id"] == first + 1


def test_tokens_that_are_there_and_rows_without_one(tmp_path):
    """A vocabulary is often padded: its rows serve first; a second addition goes on where the first ended."""
    wide = tmp_path / "wide"
    pet.save_pretrained(
        pet.AutoModel.from_config(dict(pet.AutoConfig.from_pretrained("llama_tiny").to_dict(), vocab_size=1220)), wide
    )
    for name in ("tokenizer.model", "tokenizer_config.json"):
        shutil.copy(bundled_models()["llama_tiny"] / name, wide)
    report = add_tokens(wide, ["</s>", "<a>"], tmp_path / "once", plain=True, pad_token="<pad>")
    assert report.ids == {"<a>": 1216, "<pad>": 1217} and (report.rows, report.before) == (1220, 1220)
    assert "has rows for them" in str(report)
    again = add_tokens(tmp_path / "once", [f"<{number}>" for number in range(3)], tmp_path / "twice")
    assert (min(again.ids.values()), again.rows) == (1218, 1221)
    tokenizer = pet.AutoTokenizer.from_pretrained(str(tmp_path / "twice"))
    assert 1216 in tokenizer.encode("Here is <a> word") and 1217 not in tokenizer.encode("<pad>")
    assert tokenizer.pad_token == "<pad>"
    assert pet.AutoModel.from_pretrained(str(tmp_path / "twice")).config.vocab_size == 1221


@pytest.mark.parametrize(
    ("base", "words", "message"),
    [
        ("glm_tiny", ["<a>"], "ChatGLMTokenizer takes no further tokens from its files: <a>"),
        ("llama_tiny", ["<a>", ""], "a token's text is empty"),
    ],
)
def test_what_cannot_be_done_leaves_nothing(base, words, message, tmp_path):
    with pytest.raises(InputError, match=message):
        add_tokens(bundled_models()[base], words, tmp_path / "added")
    assert not (tmp_path / "added").exists()


@pytest.mark.parametrize("by_json", [False, True])
@pytest.mark.parametrize("name", BASES[:2])
def test_transformers_opens_it(name, by_json, tmp_path):
    """Also where transformers has written the tokenizer, which has all in one file then."""
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    base = bundled_models()[name]
    if by_json:
        saved = shutil.copytree(base, tmp_path / "saved", ignore=shutil.ignore_patterns("token*", "vocab*", "merges*"))
        transformers.AutoTokenizer.from_pretrained(base).save_pretrained(saved)
        base = saved
    report = add_tokens(base, WORDS, tmp_path / "added", plain=True, eos_token=WORDS[1])
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "added")
    assert {word: peer.convert_tokens_to_ids(word) for word in WORDS} == report.ids
    text = f"Hello {WORDS[0]}user\nhow{WORDS[1]} are"
    own = pet.AutoTokenizer.from_pretrained(str(tmp_path / "added"))
    begun = f"Hello {WORDS[0]}user"  # the second one is the end token, and so none in a text
    ids = peer(begun, add_special_tokens=False)["input_ids"]
    assert own.encode(begun, add_special_tokens=False) == ids and report.ids[WORDS[0]] in ids
    assert set(report.ids.values()) < {*peer(text)["input_ids"]} and peer.eos_token == WORDS[1]
    if by_json and name == "llama_tiny":
        with pytest.raises(InputError, match=r"bos_token: the post_processor of its tokenizer\.json says which"):
            add_tokens(base, [], tmp_path / "other", bos_token="<b>")
    else:
        add_tokens(base, [], tmp_path / "other", bos_token="<b>")
        first = pet.AutoTokenizer.from_pretrained(str(tmp_path / "other")).encode("Hello")[0]
        assert first == transformers.AutoTokenizer.from_pretrained(tmp_path / "other")("Hello")["input_ids"][0]
    model, found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "added", output_loading_info=True)
    assert not any(found.values()) and model.get_input_embeddings().weight.shape[0] == report.rows
    ids = np.array([[5, 1217, 7, 1216]])
    with torch.no_grad():
        expected = model.eval()(torch.tensor(ids)).logits.numpy()
    logits = pet.AutoModel.from_pretrained(str(tmp_path / "added"))(ids.astype(np.int32)).asnumpy()
    assert np.abs(logits - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("translate", "values", "command"),
    [
        (axolotl.translate, {"tokens": ["<|im_start|>"]}, "pet add-tokens {} '<|im_start|>' --plain --output DIR"),
        (
            axolotl.translate,
            {"special_tokens": {"eos_token": "<|im_end|>", "pad_token": "<pad>", "additional_special_tokens": ["<a>"]}},
            "pet add-tokens {} '<a>' --eos '<|im_end|>' --output DIR",
        ),
        (llama_factory.translate, {"add_special_tokens": "<a>,<b>"}, "pet add-tokens {} '<a>' '<b>' --output DIR"),
        (llama_factory.translate, {"add_tokens": "<a>", "resize_vocab": True}, "pet add-tokens {} '<a>' --plain"),
    ],
)
def test_a_job_file_that_adds_tokens_names_the_command(translate, values, command, tmp_path):
    """And runs on what it writes."""
    key = "base_model" if translate is axolotl.translate else "model_name_or_path"
    base = str(bundled_models()["llama_tiny"])
    (problem,) = translate(
        {key: base, "stage": "sft", **values} if key != "base_model" else {key: base, **values}, tmp_path / "job.yaml"
    ).problems
    assert command.format(base) in problem
    assert (
        main(["add-tokens", base, "<a>", "<b>", "<|im_start|>", "--eos", "<|im_end|>", "--output", str(tmp_path / "b")])
        == 0
    )
    again = {key: str(tmp_path / "b"), **({} if key == "base_model" else {"stage": "sft"}), **values}
    assert not translate(again, tmp_path / "job.yaml").problems
