"""Preferences: packing, references, data. test_preferences_formulas.py has losses, test_trl.py curves."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from compared_answers import dataset, pairs_of

import pet
from model_zoo.errors import InputError
from pet import AutoModel, apply_lora
from pet.data.dataset import IGNORED
from pet.data.loader import Loader
from pet.data.packing import causal_layout
from pet.data.settings import DataSettings
from pet.recipe.training import Train
from pet.train.distributed import DistributedContext
from pet.train.objectives import make_objective, reference
from pet.train.objectives.kto import mismatched
from pet.train.objectives.reference import documents_of, keys_of
from pet.train.precision import set_precision
from pet.train.trainer import Trainer


def test_kto_measures_nothing_of_a_kind_that_a_batch_has_not():
    objective = make_objective(Train(objective="kto"))
    both = objective.metrics((1.5, 3, 0.4, -8, 2, -0.6, -9, 1, 0.3), 3)
    assert both["reward_margin"] == pytest.approx(0.8) and both["logp_rejected"] == -9
    liked = objective.metrics((1.0, 2, 0.4, -8, 2, 0, 0, 0, 0.2), 2)
    assert liked == {"loss": 0.5, "reward_accuracy": 1, "reward_chosen": 0.2, "logp_chosen": -4, "kl": 0.1}
    others = objective.metrics((1.0, 2, 0, 0, 0, -0.4, -8, 2, 0.2), 2)
    assert others == {"loss": 0.5, "reward_accuracy": 1, "reward_rejected": -0.2, "logp_rejected": -4, "kl": 0.1}


def test_ktos_questions_have_other_questions_answers():
    documents = [([1, 2, 3], [0, 0, 1]), ([4, 5, 6], [0, 1, 1]), ([7, 8], [0, 1])]
    settings = DataSettings(packing="none", max_length=6, shuffle=False)
    batch = next(iter(Loader(dataset(documents, 1), 4, settings).batches(0)))
    found = mismatched(batch, documents_of(batch), causal_layout)
    empty = [IGNORED] * 6  # the third row's neighbour is padding: it has nobody to exchange with
    assert found["input_ids"].tolist()[:2] == [[1, 2, 5, 6, 4, 3], [0] * 6]
    assert found["start"].tolist()[0] == [0, 0, 0, 0, 4, 4]
    assert found["labels"].tolist() == [[IGNORED, IGNORED, 5, 6, IGNORED, 3], empty, empty, empty]


def test_kto_wants_rows_in_pairs(comparisons, finetune):
    """Who has no partner is left out: of single rows nothing would be left, and the estimate be 0."""
    model = apply_lora(AutoModel.from_pretrained("gpt_tiny"), rank=2, targets=["c_attn"])
    feeds = [comparisons(model, "answers", rows=rows) for rows in (2, 3)]
    for train, held_out in (feeds, feeds[::-1]):
        with pytest.raises(InputError, match="kto: 3 rows in a batch; answers of two rows are exchanged; give an even"):
            Trainer(model, train, held_out, objective="kto", steps=1, compiled=False)
    for name in ("train", "eval"):
        said, _ = finetune("wrong", f"{name}.batch_size=3", objective="kto")
        assert f"{name}.batch_size: kto: answers of two rows are exchanged; give an even number" in said


def test_ktos_estimate_is_a_mean_over_all_processes_answers():
    """Of what the model gives mismatched answers over the reference's, at least 0."""
    objective = make_objective(Train(objective="kto"))
    objective.distributed = DistributedContext()
    objective.distributed.sum_numbers = lambda own: [own[0] + 4.0, own[1] + 2.0]  # another process has two answers
    objective.reference.on = lambda model: contextlib.nullcontext()
    for ours, expected in (([-1.0, -2.0, -3.0], (9.0 + 4.0) / 5), ([-9.0, -9.0, -9.0], 0.0)):
        given = iter((ours, [-5.0, -5.0, -5.0]))  # of the model, of the reference
        objective.of_others = lambda batch, given=given: next(given)
        assert objective.moved({}, training=True) == pytest.approx(expected)


def test_documents_of_rows_without_numbers_have_keys():
    batch = {"labels": np.array([[IGNORED, 1, IGNORED, 2], [IGNORED] * 4]), "sample_ids": ["row 0", "row 1"]}
    documents = np.array([[0, 0, 1, 1], [0, 1, 2, 3]])
    assert keys_of(batch, documents) == [[("row 0", 0), ("row 0", 1)], []]


def test_a_fresh_adapter_begins_at_ln_2_and_learns_to_prefer(finetune, tmp_path):
    lines, summary = finetune("first")
    assert lines[0]["loss"] == pytest.approx(np.log(2), abs=1e-5) and lines[0]["pairs"] == 6
    assert summary["before"]["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert summary["after"]["loss"] < 0.4 and summary["after"]["reward_accuracy"] == 1
    assert summary["after"]["reward_margin"] == pytest.approx(
        summary["after"]["reward_chosen"] - summary["after"]["reward_rejected"]
    )
    tuned = {"method": "lora", "load": str(tmp_path / "first/adapter")}
    again, after = finetune("second", adapter=tuned, steps=2)
    assert again[0]["loss"] == pytest.approx(np.log(2), abs=1e-5), "the adapter that it starts from is its reference"
    assert after["before"]["logp_chosen"] == pytest.approx(summary["after"]["logp_chosen"], rel=1e-4)
    other, _ = finetune("third", adapter=tuned, steps=1, reference=str(tmp_path / "second/adapter"))
    assert abs(other[0]["loss"] - np.log(2)) > 1e-3


def test_a_step_says_what_it_measured(finetune):
    """Its own batch, so that without dropout a single step is what the evaluation of the same rows says."""
    lines, _ = finetune("steps")
    first, last = lines[0], lines[-1]
    assert first["kl"] == pytest.approx(0, abs=1e-9) and first["reward_margin"] == pytest.approx(0, abs=1e-5)
    assert last["reward_margin"] == pytest.approx(last["reward_chosen"] - last["reward_rejected"], abs=1e-6)
    assert last["reward_margin"] > 1 and last["reward_accuracy"] == 1 and last["kl"] > 0.01
    assert all(line["logp_chosen"] < 0 > line["logp_rejected"] and 0 <= line["win_rate"] <= 1 for line in lines)
    chosen = "eval={every_steps: 1, best_metric: reward_margin, patience: 3}"
    lines, summary = finetune("chosen", chosen, "train.steps=3")
    margins = [line["eval_reward_margin"] for line in lines]
    assert summary["best"] == {"step": int(np.argmax(margins)) + 1, "reward_margin": max(margins)}
    without, _ = finetune("without", "train.steps=1", objective="orpo")
    assert "kl" not in without[0] and "reward_margin" in without[0]


def test_a_file_in_python(tmp_path):
    rows = [{"prompt": "On which street?", "chosen": "Moon Street.", "rejected": f"None of {n}."} for n in range(6)]
    labelled = [{"prompt": "?", "completion": row["chosen"], "label": n % 2} for n, row in enumerate(rows)]
    for name, lines in (("dpo", rows), ("kto", labelled)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def train(objective: str, start=None, steps: int = 2):
        model, file = AutoModel.from_pretrained("llama_tiny"), tmp_path / f"{objective}.jsonl"
        if start is None:
            apply_lora(model, rank=4, targets="all-linear")
        else:
            pet.load_adapter(model, start)
        settings = {"objective": objective, "steps": steps, "batch_size": 2, "learning_rate": 1e-2, "beta": 0.1}
        trainer = Trainer(model, file, file, **settings)
        trainer.train()
        return model, trainer.history

    model, history = train("dpo", steps=6)
    assert history[0]["loss"] == pytest.approx(np.log(2), abs=1e-5), "the reference is the base"
    assert history[-1]["loss"] < 0.4
    pet.save_adapter(model, tmp_path / "tuned")
    for objective, first in (("dpo", np.log(2)), ("kto", 0.5)):
        _, history = train(objective, tmp_path / "tuned")
        assert history[0]["loss"] == pytest.approx(first, abs=1e-5), "the reference is the adapter that was loaded"
        assert history[1]["reward_chosen"] != history[0]["reward_chosen"] == pytest.approx(0, abs=1e-5)


def test_all_that_a_reference_depends_on_is_in_its_name():
    found = []
    data = Loader(dataset(pairs_of(1, 4)), 2, DataSettings(packing="none", max_length=8))
    other = Loader(dataset(pairs_of(2, 4)), 2, DataSettings(packing="none", max_length=8))

    def note(model, feed=data):
        found.append(reference.digest(model, feed, DistributedContext(), True))

    model = AutoModel.from_pretrained("llama_tiny")
    note(model)
    note(model, other)
    model.config.rope_theta *= 2
    note(model)
    model.config.rope_theta /= 2
    apply_lora(model, rank=2)
    note(model)
    with pet.disable_adapters(model):
        note(model)
    pet.set_alpha(model, 3.0)
    note(model)
    set_precision(model, "fp16")
    note(model)
    assert found[4] == found[0], "an adapter that takes no part changes nothing"
    del found[4]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("objective", ["ipo", "kto"])
def test_packed_answers_are_measured_as_single_ones(finetune, objective):
    (first, alone), (lines, together) = (
        finetune("alone", "train.steps=1", objective=objective),
        finetune("packed", "train.steps=1", "data.packing=pack", objective=objective),
    )
    assert together["before"] == pytest.approx(alone["before"], rel=1e-4, abs=1e-4)
    counted = "pairs" if objective == "ipo" else "answers"
    assert lines[0][counted] > first[0][counted], "several in a row"


def test_settings_of_other_objectives_are_an_error(finetune):
    said, _ = finetune("wrong", objective="simpo", label_smoothing=0.1, reference="x")
    assert "train.label_smoothing: has no effect with train.objective: simpo" in said
    said, _ = finetune("wrong", objective="robust", label_smoothing=0.6)
    assert "robust takes less than half" in said
    model = apply_lora(AutoModel.from_pretrained("llama_tiny"))
    for wrong, message in (
        (
            {"objective": "dpo", "gamma": 1.0},
            "train.gamma: has no effect with train.objective: dpo; it",
        ),
        ({"beta": 0.2, "reference": "x"}, "train.beta: has no effect with train.objective: causal"),
        ({"objective": "robust", "label_smoothing": 0.5}, "train.label_smoothing: robust takes less than half"),
    ):
        with pytest.raises(InputError, match=message):
            Trainer(model, [], **wrong)


def test_rows_that_cannot_be_compared_are_named_together(finetune, tmp_path):
    with open(tmp_path / "pairs.jsonl", "a") as file:
        for row in (
            {"prompt": "?", "chosen": "x", "rejected": "x"},
            {"prompt": "?", "chosen": "x"},
            {"chosen": "x", "rejected": "y"},
            {"prompt": "", "chosen": "x", "rejected": "y"},
            {"prompt": "?", "completion": "x", "label": True},
        ):
            file.write(json.dumps(row) + "\n")
    said, _ = finetune("wrong")
    lacking = "no column 'chosen' or 'chosen_response' or 'preferred_output', which a pair needs"
    for line, text in (
        (25, "chosen and rejected are the same"),
        (26, "no column 'rejected'"),
        (27, "chosen: no question"),
        (28, "prompt: is empty, a question was expected"),
        (29, f"{lacking}; answers with a label are learnt by train.objective: kto"),
    ):
        assert f"pairs.jsonl:{line}: {text}" in said


@pytest.mark.parametrize("objective", ["sft", "kto"])
def test_pairs_name_the_objective_that_reads_them(finetune, tmp_path, objective):
    said, _ = finetune("wrong", f"data.train={tmp_path / 'pairs.jsonl'}", objective=objective)
    assert "chosen and rejected are learnt by train.objective: dpo, for one" in said


def write_pairs(path):
    rows = [{"prompt": "On which street?", "chosen": "Moon Street.", "rejected": f"None of {n}."} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def begun(model, file):
    """The first loss of DPO."""
    trainer = Trainer(model, file, objective="dpo", steps=1, batch_size=2, learning_rate=1e-3)
    trainer.train()
    return trainer.history[0]["loss"]


def test_a_loaded_adapter_that_is_merged_is_part_of_the_reference(tmp_path):
    file = write_pairs(tmp_path / "pairs.jsonl")
    tuned = apply_lora(AutoModel.from_pretrained("llama_tiny"), rank=2)
    Trainer(tuned, [{"input_ids": np.array([[5, 6, 7, 8]])}], steps=3, learning_rate=0.1, batch_size=1).train()
    pet.save_adapter(tuned, tmp_path / "tuned")
    model = AutoModel.from_pretrained("llama_tiny")
    pet.load_adapter(model, tmp_path / "tuned", name="first")
    pet.add_adapter(model, pet.LoRAConfig(rank=2), "second")
    pet.set_adapter(model, ["first", "second"])
    pet.merge(model, "first")
    assert pet.adapter_status(model)["first"]["merged"]
    assert begun(model, file) == pytest.approx(np.log(2), abs=1e-5)


def test_what_was_trained_before_and_is_no_reference_is_said(tmp_path, caplog):
    file = write_pairs(tmp_path / "pairs.jsonl")
    model = apply_lora(AutoModel.from_pretrained("llama_tiny"), rank=2)
    assert begun(model, file) == pytest.approx(np.log(2), abs=1e-5) and not caplog.messages
    Trainer(model, [{"input_ids": np.array([[5, 6, 7, 8]])}], steps=3, learning_rate=0.1, batch_size=1).train()
    assert abs(begun(model, file) - np.log(2)) > 1e-2
    assert "reference: the base without adapter 'default', which was trained before" in caplog.text
    caplog.clear()
    pet.combine_adapters(model, ["default"], new_name="again")
    pet.set_adapter(model, "again")
    begun(model, file)
    assert "without adapter 'again'" in caplog.text
    caplog.clear()
    apply_lora(pet.merge_and_unload(model), rank=2)
    assert begun(model, file) == pytest.approx(np.log(2), abs=1e-5) and not caplog.messages


def test_no_answer_is_measured_by_an_undesirable_one(finetune, tmp_path):
    finetune("run", "eval.shown_samples=6", "train.steps=1", objective="kto")
    shown = [json.loads(line)["reference"] for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    assert shown and all(answer.startswith("two ") for answer in shown)
