"""What preferences are measured against: computed once, in steps, by another adapter; resumed and evaluated."""

from __future__ import annotations

import errno
import json
import shutil

import numpy as np
import pytest
from sets import some

import pet
from model_zoo.errors import InputError
from model_zoo.unwritable import CannotWrite
from pet import AutoModel
from pet.cli.main import main
from pet.data import DataSettings, Loader, TokenDataset
from pet.data.dataset import IGNORED
from pet.train.distributed import DistributedContext
from pet.train.objectives import reference
from pet.train.objectives.pairs import DPO
from pet.train.trainer import Trainer


@pytest.fixture
def references(monkeypatch):
    """The feeds for which a reference is computed, one entry each."""
    found, compute = [], reference.computed
    monkeypatch.setattr(reference, "computed", lambda *arguments: found.append(arguments[1]) or compute(*arguments))
    return found


@pytest.fixture
def graphs(monkeypatch):
    """The graphs of log-probabilities that are made, one entry each."""
    found, make = [], reference.Score
    monkeypatch.setattr(reference, "Score", lambda *arguments: found.append(make(*arguments)) or found[-1])
    return found


def test_a_reference_is_computed_once_and_kept_on_disk(finetune, references, llama_layer, tmp_path):
    cache = f"data.cache_dir={tmp_path / 'cache'}"
    first, _ = finetune("first", cache)
    assert len(references) == 2, "of the training and of the evaluation data"
    second, _ = finetune("second", cache, "adapter.rank=4")
    assert len(references) == 2 and second[0]["logp_chosen"] == first[0]["logp_chosen"]
    finetune("other data", cache, "data.max_samples=12")
    assert len(references) == 4
    base = tmp_path / "base"
    model = AutoModel.from_pretrained(llama_layer)
    weight = model.model.norm.weight
    weight.set_data(weight * (1 + 1e-6))
    pet.save_pretrained(model, base)
    finetune("other base", cache, f"model.path={base}")
    assert len(references) == 6, "however little it differs"
    for file in (tmp_path / "cache").glob("reference-*.npz"):
        file.write_bytes(file.read_bytes()[:-40])
    again, _ = finetune("damaged", cache)
    assert len(references) == 8 and [line["loss"] for line in again] == [line["loss"] for line in first]


def test_a_reference_by_batch_is_the_precomputed_one(finetune):
    expected, _ = finetune("kept", "data.shuffle=false", steps=3)
    lines, _ = finetune("by batch", "data.shuffle=false", "train.reference=adapters_off", steps=3)
    assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in expected], rel=1e-5)


def test_a_prefix_takes_no_part_in_the_reference(finetune, references, tmp_path):
    """Nor do the positions that it takes up: GPT-2 has learned ones."""
    cache = f"data.cache_dir={tmp_path / 'cache'}"
    finetune("prefix", cache, "model.path=gpt_tiny", "train.steps=1", adapter={"method": "prefix", "length": 4})
    feed, model = references[0], AutoModel.from_pretrained("gpt_tiny")
    plain = Loader(feed.dataset, feed.batch_size, feed.settings)
    alone = DistributedContext()
    expected = dict(reference.computed(reference.Score(model, alone), plain))
    found = reference.kept(reference.Score(model, alone, offset=4), feed, alone)
    for key, values in expected.items():
        np.testing.assert_allclose(found[key][-len(values) :], values, atol=1e-5)


def test_every_weight_may_be_trained(finetune):
    lines, summary = finetune("full", adapter={"method": "none"}, learning_rate=1e-3)
    assert lines[0]["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert summary["after"]["loss"] < summary["before"]["loss"]


RESUMED = some(("dpo", "kto", "hinge", "ipo", "robust", "simpo", "orpo"), ("dpo", "kto"))


@pytest.mark.slow
@pytest.mark.parametrize("objective", RESUMED)
def test_resuming_gives_the_same_bits(finetune, tmp_path, objective):
    """Also beside another adapter as reference (dpo), and beside the one that the run started from (kto)."""
    how = {"objective": objective, "steps": 4}
    if objective in ("dpo", "kto"):
        finetune("start", "train.steps=2")
        start = str(tmp_path / "start/adapter")
        how |= {"reference": start} if objective == "dpo" else {"adapter": {"method": "lora", "load": start}}
    finetune("whole", "train.save_every=2", "data.packing=pack", **how)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed/checkpoints/step-000004")
    shutil.rmtree(tmp_path / "resumed/adapter")
    lines, _ = finetune("resumed", "--resume", "train.save_every=2", "data.packing=pack", **how)
    assert len(lines) == 4
    name = "adapter/adapter_model.safetensors"
    assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


STREAM = "data.streaming=true", "data.eval_fraction=0", "data.shuffle=false"


@pytest.mark.parametrize(("objective", "start"), [("dpo", "load"), ("kto", "none")])
def test_data_that_streams_have_the_same_reference(finetune, tmp_path, objective, start):
    """What steps ask for, with the values that the run began with, is what is computed before the first one; also once
    an earlier run has counted the steps."""
    adapter = {"method": "none"}
    if start == "load":
        finetune("start", "train.steps=2")
        adapter = {"method": "lora", "load": str(tmp_path / "start/adapter")}
    how = {"objective": objective, "adapter": adapter, "steps": 4, "learning_rate": 1e-3}
    beforehand, _ = finetune("beforehand", *STREAM[1:], **how)
    for name in ("streamed", "again"):
        streamed, _ = finetune(name, *STREAM, **how)
        for key in ("loss", "reward_margin", "kl"):
            expected = [line[key] for line in beforehand]
            assert [line[key] for line in streamed] == pytest.approx(expected, rel=1e-4, abs=1e-5), key
    assert streamed[0]["loss"] == pytest.approx(np.log(2) if objective == "dpo" else 0.5, abs=1e-5)
    assert streamed[-1]["loss"] < streamed[0]["loss"] - 0.02


def test_an_adapter_is_asked_in_steps(finetune, llama_layer, tmp_path):
    """The adapter that a run starts from, said by its directory or in memory, where it goes on: the same numbers. It is
    in no file, and merging knows nothing of it."""
    finetune("start", "train.steps=2")
    start, file = tmp_path / "start/adapter", tmp_path / "labelled.jsonl"
    found = []
    for directory in (str(start), None):
        model = AutoModel.from_pretrained(llama_layer)
        pet.load_adapter(model, start)
        how = {"objective": "kto", "steps": 3, "batch_size": 6, "learning_rate": 2e-3, "reference": directory}
        for _ in range(2):  # what the first one left on the model is nothing to the second
            trainer = Trainer(model, file, **how)
        trainer.train()
        pet.save_adapter(model, tmp_path / f"tuned {directory is None}")
        pet.merge(model)
        found.append(([line["loss"] for line in trainer.history], model(np.array([[5, 6, 7]])).asnumpy()))
    assert found[0][0][0] == pytest.approx(0.5, abs=1e-5) and len(set(found[0][0])) == 3
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-5)
    files = [(tmp_path / f"tuned {name}/adapter_model.safetensors").read_bytes() for name in (True, False)]
    assert len(files[0]) == len(files[1])


@pytest.mark.parametrize("start", ["load", "none"])
def test_a_run_is_not_resumed_beside_another_reference(finetune, llama_layer, tmp_path, start):
    """A model that has gone on learning in the meantime is not what the run began with, though its checkpoint fits."""
    finetune("start", "train.steps=2")

    def begin(model=None):
        if model is None:
            model = AutoModel.from_pretrained(llama_layer)
            if start == "load":
                pet.load_adapter(model, tmp_path / "start/adapter")
        how = {"objective": "dpo", "batch_size": 6, "learning_rate": 2e-3, "save_every": 1, "keep_last": 9}
        return Trainer(model, tmp_path / "pairs.jsonl", directory=tmp_path / "run", steps=3, **how)

    whole = begin()
    whole.train()
    for step in (2, 3):
        shutil.rmtree(tmp_path / f"run/checkpoints/step-00000{step}")
    with pytest.raises(InputError, match=r"train\.reference: what the run began with has another content"):
        begin(whole.model).train(resume=True)
    again = begin()
    again.train(resume=True)
    assert [line["loss"] for line in again.history][-2:] == [line["loss"] for line in whole.history][1:]


def test_an_objective_of_a_second_trainer_has_its_own_reference(comparisons):
    """Documents of other data have the same numbers."""
    objective = DPO(0.1)
    for seed in (1, 2):
        model = pet.apply_lora(AutoModel.from_pretrained("gpt_tiny"), rank=2, targets=["c_attn"])
        feed = comparisons(model, shuffle=True, seed=seed, packing="none")
        feed.dataset.tokens[...] = (feed.dataset.tokens + seed) % 60
        trainer = Trainer(model, feed, objective=objective, steps=1, compiled=False)
        trainer.train()
        assert trainer.history[0]["loss"] == pytest.approx(np.log(2), abs=1e-5)
        assert trainer.history[0]["kl"] == pytest.approx(0, abs=1e-8)


def test_numbers_that_find_no_room_on_disk_are_used_all_the_same(comparisons, monkeypatch, caplog):
    def full(path, writer):
        raise CannotWrite(errno.ENOSPC, f"{path}: cannot be written: the disk is full")

    monkeypatch.setattr(reference, "atomic_file", full)
    model = pet.apply_lora(AutoModel.from_pretrained("gpt_tiny"), rank=2, targets=["c_attn"])
    trainer = Trainer(model, comparisons(model), objective="dpo", steps=1, compiled=False)
    trainer.train()
    assert trainer.history[0]["loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert "the disk is full; another run computes the log-probabilities again" in caplog.text


def test_numbers_on_disk_are_those_of_the_same_marks(tmp_path):
    """Of the same tokens other ones may be learnt, which have log-probabilities then and before had none."""

    class Marks:
        model, compiled = AutoModel.from_pretrained("llama_tiny"), False

        def __call__(self, batch):
            learnt = np.asarray(batch["labels"]) != IGNORED
            return [[mask.astype(np.float32)] for mask in learnt]

    settings = DataSettings(packing="none", max_length=4, shuffle=False, cache_dir=str(tmp_path))
    for marks in ([0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 0, 1]):
        feed = Loader(TokenDataset.from_samples([([5, 6, 7, 8], marks)]), 1, settings)
        assert reference.kept(Marks(), feed, DistributedContext())[0].tolist() == marks
    assert len(list(tmp_path.glob("reference-*.npz"))) == 2


@pytest.mark.parametrize("values", [np.zeros(4, np.float32), np.zeros((5, 1), np.float32), np.zeros(5)], ids=str)
def test_numbers_of_other_data_are_computed_again(tmp_path, caplog, values):
    file = tmp_path / "reference.npz"
    assert reference.read(file, 5) is None and not caplog.records
    reference.write(file, np.arange(5, dtype=np.float32))
    assert reference.read(file, 5).tolist() == [0, 1, 2, 3, 4]
    reference.write(file, values)
    assert reference.read(file, 5) is None and "damaged log-probabilities" in caplog.text


def test_what_a_reference_cannot_be_is_an_error(finetune):
    said, _ = finetune("wrong", *STREAM, "train.reference=precompute")
    assert "data.streaming: precompute reads the data beforehand" in said
    said, _ = finetune("wrong", "train.reference=adapters_off", adapter={"method": "none"})
    assert "adapter.method: adapters_off: there is no adapter to switch off" in said
    said, _ = finetune("wrong", "train.reference=nowhere")
    assert "train.reference: " in said and "nowhere: no such directory" in said


def test_a_trainers_reference_that_is_not_there_is_named(finetune, tmp_path):
    model = pet.apply_lora(AutoModel.from_pretrained("llama_tiny"), rank=4)
    for directory, message in (
        (str(tmp_path / "nowhere"), "nowhere: no such directory"),
        ("adapter_off", r"no such directory.*did you mean 'adapters_off'\?"),
    ):
        with pytest.raises(InputError, match=f"^train.reference: .*{message}"):
            Trainer(model, tmp_path / "pairs.jsonl", objective="dpo", steps=1, reference=directory)


@pytest.mark.parametrize(("objective", "start"), [("dpo", "none"), ("kto", "load")])
def test_an_evaluation_afterwards_has_the_same_reference(finetune, graphs, llama_layer, tmp_path, objective, start):
    """And all that is asked of one model with the same adapters is one graph: KTO also asks the trained one."""
    adapter = {"method": "none"}
    if start == "load":
        finetune("start", "train.steps=2")
        adapter = {"method": "lora", "load": str(tmp_path / "start/adapter")}
    graphs.clear()
    _, summary = finetune("run", objective=objective, adapter=adapter, steps=3, learning_rate=1e-3)
    assert len(graphs) == (2 if objective == "kto" else 1)
    assert abs(summary["after"]["reward_margin"]) > 1e-2
    assert main(["evaluate", str(tmp_path / "run"), "--output", str(tmp_path / "numbers.json")]) == 0
    found = json.loads((tmp_path / "numbers.json").read_text())
    assert found == pytest.approx(summary["after"], rel=1e-5, abs=1e-6)
    if start == "load":  # an adapter by the recipe whose run began with another one
        words = [str(tmp_path / "run.yaml"), f"model.path={llama_layer}", "--output", str(tmp_path / "again.json")]
        assert main(["evaluate", *words, "--adapter", str(tmp_path / "run/adapter")]) == 0
        assert json.loads((tmp_path / "again.json").read_text()) == found
