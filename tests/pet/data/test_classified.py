"""Rows with a label: their columns, their tokens against transformers, and how they are cut."""

from __future__ import annotations

import json

import numpy as np
import pytest

from model_zoo.labels import labels_for
from pet.auto import AutoTokenizer
from pet.data import load_dataset
from pet.data.classified import classified, whole_text
from pet.names import bundled_models

COLUMNS = [
    ({"text": "a", "label": 1}, ("a", None)),
    ({"sentence": "a", "label": 1, "idx": 3}, ("a", None)),
    ({"text": "a", "text_pair": "b", "labels": 1}, ("a", "b")),
    ({"sentence1": "a", "sentence2": "b", "label": 1}, ("a", "b")),
    ({"premise": "a", "hypothesis": "b", "label": 1}, ("a", "b")),
    ({"question1": "a", "question2": "b", "label": 1}, ("a", "b")),
    ({"question": "a", "sentence": "b", "label": 1}, ("a", "b")),
]


@pytest.mark.parametrize(("columns", "texts"), COLUMNS)
def test_columns(columns, texts):
    found = classified(columns)
    assert (found["text"], found["text_pair"]) == texts
    assert found["label"] == 1


@pytest.mark.parametrize("label", ["\ud800", ["a", "b\udfff"]], ids=["one", "several"])
def test_a_label_with_half_a_character_is_refused(label):
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        classified({"text": "a", "label": label})


@pytest.mark.parametrize(
    ("given", "label"), [(np.array(2), 2), (np.array([2]), 2), (np.array([0, 1, 1]), [0, 1, 1]), ([2], [2])]
)
def test_a_number_of_a_record_is_a_number_whatever_its_shape(given, label):
    found = classified({"text": "a", "label": given})["label"]
    assert found == label and type(found) is type(label)


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        ([0.5, 1.25, -2.0], "regression", ["LABEL_0"]),
        ([0, 2, 10, 1], "single_label_classification", [f"LABEL_{number}" for number in range(11)]),
        (["007", "1.x", "2"], "single_label_classification", ["2", "007", "1.x"]),
    ],
)
def test_numbers_of_a_table_are_numbers(labels, kind, names, tmp_path):
    """Values of CSV were names, each a label of its own, and the label 10 stood before 2. In JSON a text is a name."""
    tokenizer, rows = AutoTokenizer.from_pretrained("llama_tiny"), [["text", "label"]]
    rows += [[f"Shirt {number}", label] for number, label in enumerate(labels)]
    (tmp_path / "rows.csv").write_text("".join(f"{text},{label}\n" for text, label in rows))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": "a", "label": str(one)}) + "\n" for one in labels))
    settings = {"conversations": classified, "cache_dir": str(tmp_path / "cache")}
    found, texts = (
        load_dataset(tmp_path / file, tokenizer, settings=settings).said for file in ("rows.csv", "rows.jsonl")
    )
    assert (labels_for(found, {}).kind, list(labels_for(found, {}).names)) == (kind, names)
    assert {*texts} == {*map(str, labels)}


def test_a_text_that_is_too_long_is_one_sample(tmp_path):
    """It is judged as a whole, as much of it as there is room for; a text to learn would be divided."""
    file, tokenizer = tmp_path / "rows.jsonl", AutoTokenizer.from_pretrained("llama_tiny")
    file.write_text(json.dumps({"text": LONG * 3, "label": 1}) + "\n")
    settings = {"conversations": classified, "max_length": 8, "cache_dir": str(tmp_path / "cache")}
    found = load_dataset(file, tokenizer, settings=settings)
    assert [found[index][0].tolist() for index in range(len(found))] == [whole_text(tokenizer, LONG * 3, None, 8)]
    assert found.label(0) == 1 and found.counts.cut == 1


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """Directories by name: GPT-2's and LLaMA's, and one whose file says what stands around two texts."""
    library = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    own = tmp_path_factory.mktemp("own")
    plain = transformers.AutoTokenizer.from_pretrained(bundled_models()["gpt_tiny"])
    text = json.loads(plain.backend_tokenizer.to_str())
    end = plain.eos_token
    engine = library.Tokenizer.from_str(json.dumps(text))
    engine.post_processor = library.processors.TemplateProcessing(
        single=f"{end} $A", pair=f"{end} $A {end} {end} $B", special_tokens=[(end, plain.eos_token_id)]
    )
    engine.save(str(own / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": end, "eos_token": end}
    (own / "tokenizer_config.json").write_text(json.dumps(settings))
    return {"own": own, **bundled_models()}


SHORT, LONG = "A red shirt.", "The quick brown fox jumps over the lazy dog, and the dog sleeps on. "


@pytest.mark.parametrize("limit", [None, 9, 12, 21])
@pytest.mark.parametrize("texts", [(SHORT, None), (SHORT, LONG), (LONG, SHORT), (LONG, LONG)])
@pytest.mark.parametrize("place", ["gpt_tiny", "llama_tiny", "own"])
def test_tokens_are_those_of_transformers(tokenizers, place, texts, limit):
    transformers = pytest.importorskip("transformers")
    kept = {"truncation": "longest_first", "max_length": limit} if limit else {}
    expected = transformers.AutoTokenizer.from_pretrained(tokenizers[place])(*texts, **kept)["input_ids"]
    assert whole_text(AutoTokenizer.from_pretrained(tokenizers[place]), *texts, limit) == expected


def test_labels_stay_with_their_texts(tmp_path):
    rows = [{"review": text, "stars": stars} for text, stars in (("a b", 2), ("a b", 5), ("a b", 2), (" ", 1))]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"columns": {"text": "review", "label": "stars"}, "conversations": classified, "deduplicate": True}
    settings["cache_dir"] = str(tmp_path / "cache")
    for _ in range(2):  # the second time from the cache
        found = load_dataset(file, AutoTokenizer.from_pretrained("llama_tiny"), settings=settings)
        assert [found.label(index) for index in range(len(found))] == [2, 5]
        assert found.counts.repeated == 1 and found.counts.dropped_empty == 1
    assert found.select([1]).label(0) == 5
