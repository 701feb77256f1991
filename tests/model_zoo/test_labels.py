"""What a classifier's labels are by config.json and by data, and which architectures have such a head."""

from __future__ import annotations

import json

import pytest

from model_zoo.errors import InputError
from model_zoo.families import CONFIGS
from model_zoo.labels import MULTI, REGRESSION, SINGLE, Labels, as_classifier, labels_for


def test_classifiers_are_called_as_in_transformers():
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    theirs, found = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, 0
    for kind, name in ((kind, name) for config in CONFIGS for kind, name in config.architectures.items()):
        if name.endswith("ForConditionalGeneration"):
            with pytest.raises(InputError, match="transformers has no ForSequenceClassification of it"):
                as_classifier({}, Labels.plain(2), name)
            continue
        assert as_classifier({}, Labels.plain(2), name)["architectures"] == [theirs[kind]]
        found += 1
    assert found >= 10


PUBLISHED = {
    "two that nobody named": ({}, ("LABEL_0", "LABEL_1"), None, SINGLE),
    "one number": ({"id2label": {"0": "LABEL_0"}}, ("LABEL_0",), None, REGRESSION),
    "names": ({"id2label": {"1": "b", "0": "a", "2": "c"}, "problem_type": MULTI}, ("a", "b", "c"), MULTI, MULTI),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_labels_of_a_classifier(name):
    values, names, problem, kind = PUBLISHED[name]
    found = Labels.of({"architectures": ["LlamaForSequenceClassification"], **values})
    assert found == Labels(names, problem) and found.kind == kind
    assert Labels.of({"architectures": ["LlamaForCausalLM"], **values}) is None
    assert Labels.of({"architectures": 2.5, **values}) is None
    assert Labels.read(json.dumps(found.written()), len(found.names)) == found and Labels.read(None, 2) == Labels.plain(
        2
    )


@pytest.mark.parametrize(
    "values",
    [
        {"num_labels": 0},
        {"num_labels": "3"},
        {"id2label": {"1": "a"}},
        {"id2label": ["a"]},
        {"num_labels": 2, "problem_type": "x"},
    ],
)
def test_labels_that_make_no_sense_are_refused(values):
    with pytest.raises(InputError, match=r"config\.json: "):
        Labels.said(values)


@pytest.mark.parametrize("text", ["{", "[1]", "3", "[" * 100_000, '{"id2label": {"0": "a"}}', '{"num_labels": 0}'])
def test_labels_in_an_adapters_file_are_as_many_as_its_heads_rows(text):
    with pytest.raises(InputError, match=r"^labels .* are "):
        Labels.read(text, 2)


DATA = {  # what rows say, config.json, and what becomes of it
    "names": (["pos", "neg"], {}, ("neg", "pos"), SINGLE),
    "numbers": ([0, 2, 1], {}, ("LABEL_0", "LABEL_1", "LABEL_2"), SINGLE),
    "stars": ([5, 1, 3], {}, ("1", "3", "5"), SINGLE),
    "more than the data has": ([0, 1], {"num_labels": 4}, ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"), SINGLE),
    "values": ([0.5, 2.0], {}, ("LABEL_0",), REGRESSION),
    "values by config": ([1, 4], {"num_labels": 1}, ("LABEL_0",), REGRESSION),
    "several names": ([["a"], ["c", "a"]], {}, ("a", "c"), MULTI),
    "marks": ([[0, 1, 0], [1, 1, 0]], {}, ("LABEL_0", "LABEL_1", "LABEL_2"), MULTI),
    "marks as numbers of torch": ([[0.0, 1.0], [1.0, 1.0]], {}, ("LABEL_0", "LABEL_1"), MULTI),
    "several values": ([[0.5, 1.0], [1.0, 1.0]], {}, ("LABEL_0", "LABEL_1"), REGRESSION),
    "old placeholders": (["a", "b", "c"], {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, ("a", "b", "c"), SINGLE),
    "named by config": (["a", "b"], {"id2label": {"0": "b", "1": "a", "2": "c"}}, ("b", "a", "c"), SINGLE),
}


@pytest.mark.parametrize("name", DATA)
def test_labels_of_data(name):
    said, values, names, problem = DATA[name]
    found = labels_for(said, values)
    assert found == Labels(names, problem)
    assert all(len(found.targets(one)) == len(names) for one in said)


def test_labels_of_a_head_stay_and_what_they_lack_is_named():
    known = Labels(("bad", "good"), None)
    assert labels_for(["good"], {}, known) == Labels(("bad", "good"), SINGLE)
    assert labels_for(["x", "y"], {}, Labels.plain(2)).names == ("x", "y"), "nobody had named them"
    assert known.targets("good") == known.targets(1) == [0.0, 1.0]
    with pytest.raises(InputError, match=r"label 'god' is none of 2: 'bad', 'good' \(did you mean 'good'"):
        known.targets("god")
    with pytest.raises(InputError, match="expected a number"):
        Labels.plain(1).targets("three")
    with pytest.raises(InputError, match="a list of labels was expected"):
        Labels(("a", "b"), MULTI).targets("a")
    with pytest.raises(InputError, match=r"say them by model\.config"):
        labels_for([], {})
