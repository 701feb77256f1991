"""What the numbers of a head that judges texts come to, for each of the problems that config.json names."""

import json
import shutil

import numpy as np
import pytest

import pet
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from pet.cli.main import main
from pet.names import bundled_models


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """Makes a classifier of random labels out of the tiny GPT-2, whose tokenizer adds nothing to a text."""
    home = tmp_path_factory.mktemp("judges")

    def directory(problem: str, count: int):
        place = home / f"{problem}-{count}"
        if not place.exists():
            shutil.copytree(bundled_models()["gpt_tiny"], place)
            values = json.loads((place / "config.json").read_text())
            labels = {str(number): f"L{number}" for number in range(count)}
            values |= {"id2label": labels, "problem_type": problem, "architectures": ["GPT2ForSequenceClassification"]}
            (place / "config.json").write_text(json.dumps(values))
            tensors = read_file(place / "model.safetensors")
            head = np.random.default_rng(3).normal(size=(count, values["n_embd"])).astype(np.float32)
            write_file(place / "model.safetensors", {**tensors, "score.weight": head})
        return place

    return directory


def test_a_score_is_what_the_problem_makes_of_a_number(judge):
    texts = ["Hello there", ("One.", "Two.")]
    for problem, count in (
        ("single_label_classification", 3),
        ("multi_label_classification", 3),
        ("regression", 1),
        ("regression", 2),
    ):
        judging = pet.pipeline("text-classification", str(judge(problem, count)))
        for text, found in zip(texts, judging(texts), strict=True):
            ids = judging.tokenizer.encode("".join([text] if isinstance(text, str) else text))
            numbers = pet.scores(judging.model, [ids]).reshape(-1).astype(np.float64)
            each, apart = np.exp(numbers) / np.exp(numbers).sum(), 1 / (1 + np.exp(-numbers))
            expected = {"single": each, "multi": apart, "regression": numbers}[problem.partition("_")[0]]
            assert {one["label"]: one["score"] for one in found} == pytest.approx(
                {f"L{number}": value for number, value in enumerate(expected)}, rel=1e-4
            )
            assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
            wanted = {
                "single_label_classification": f"L{np.argmax(each)}",
                "multi_label_classification": [one["label"] for one in found if one["score"] > 0.5],
                "regression": pytest.approx(numbers.tolist() if count > 1 else numbers[0], rel=1e-4),
            }
            assert judging.chosen(found) == wanted[problem]


def test_all_values_of_a_text_are_printed_in_the_order_of_their_names(judge, capsys):
    command = ["predict", "--model", str(judge("regression", 2)), "--input", "Hello there"]
    assert main([*command, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["label"] == [row["scores"]["L0"], row["scores"]["L1"]]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{row['label'][0]}, {row['label'][1]}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ([], "a text or a list of texts was expected, got none"),
        ("", "an empty text cannot be judged"),
        (3, "a text, or two in a tuple, was expected, got 3"),
        (("a",), r"a text, or two in a tuple, was expected, got \('a',\)"),
        ({"text_pair": "b"}, r"a text, or two in a tuple, was expected, got \(None, 'b'\)"),
    ],
)
def test_what_is_no_text_is_refused(judge, text, message):
    with pytest.raises(InputError, match=f"pipeline: {message}"):
        pet.pipeline("text-classification", str(judge("regression", 1)))(text)


@pytest.mark.parametrize("given", [{"batch_size": 0}, {"top_k": -1}])
def test_counts_of_nothing_are_refused(judge, given):
    (name,) = given
    with pytest.raises(InputError, match=f"pipeline: {name} is {given[name]}; a whole number of at least 1"):
        pet.pipeline("text-classification", str(judge("regression", 1)), **given)
    with pytest.raises(InputError, match="pipeline: top_k is 0; a whole number of at least 1"):
        pet.pipeline("text-classification", str(judge("regression", 1)))("A text", top_k=0)


def test_a_row_without_a_token_has_no_score(judge):
    model = pet.AutoModel.from_pretrained(str(judge("regression", 1)))
    with pytest.raises(InputError, match="attention_mask has a row without a token"):
        pet.scores(model, [[5, 6], [7, 8]], [[1, 1], [0, 0]])
