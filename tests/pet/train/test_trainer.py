"""A trainer's loop: steps, epochs, what it says of them, and what is left behind it."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import types

import numpy as np
import pytest
from toy_trainer import make

from adapters.apply import apply_lora, apply_prefix
from model_zoo.auto import AutoModel
from model_zoo.engine import available
from model_zoo.errors import InputError
from pet.data import DataSettings, Loader, TokenDataset
from pet.names import bundled_models
from pet.recipe.training import Train
from pet.train.callbacks import Callback
from pet.train.distributed import DistributedContext
from pet.train.feed import as_feed
from pet.train.memory import present_memory


def test_it_learns_and_tells_what_it_did(toy, batch):
    trainer = make(toy(), [batch(4, seed=0), batch(4, seed=1)], steps=40, learning_rate=0.03, compiled=True)
    outcome = trainer.train()
    assert trainer.history[-1]["loss"] < 0.3 * trainer.history[0]["loss"]
    assert [line["step"] for line in trainer.history] == list(range(1, 41))
    assert outcome["steps"] == 40 and outcome["epochs"] == 20.0
    assert outcome["compile_seconds"] > 0 and outcome["padding"] == 0
    assert not trainer.model.training


@pytest.mark.parametrize("accumulation", [1, None], ids=["training", "evaluation"])
def test_a_loader_lays_documents_out_as_the_model_has_them(fixtures, accumulation):
    model = AutoModel.from_pretrained(fixtures / "gpt2")
    apply_prefix(model, length=3)
    data = TokenDataset.from_samples([([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 1])])
    feed = as_feed(Loader(data, 1, DataSettings(shuffle=False)), accumulation, model)
    assert next(iter(feed.batches()))["position_ids"][0, :5].tolist() == [3, 4, 5, 3, 4]
    own = Loader(
        data, 1, DataSettings(shuffle=False), layout=lambda ids: (np.arange(len(ids)) + 7, np.arange(len(ids)))
    )
    assert next(iter(as_feed(own, accumulation, model).batches()))["position_ids"][0, 0] == 7


def test_epochs_give_the_number_of_steps(toy, batch):
    data = [batch(2, seed=seed) for seed in range(6)]
    assert make(toy(), data, steps=None, epochs=2.5, accumulation=2).total_steps == 8
    assert make(toy(), data, steps=None, epochs=None, accumulation=2).total_steps == 9
    assert make(toy(), data, steps=None, epochs=0.1).total_steps == 1
    # transformers' own numbers: a part of an epoch is rounded up, though 1.1 - 1 is more than 0.1
    for epochs, steps in ((0.21, 3), (1.1, 11), (2.1, 21), (2.71, 28), (3.0, 30)):
        assert make(toy(), [data[0]] * 10, steps=None, epochs=epochs).total_steps == steps


def test_the_schedule_and_log_every(toy, batch):
    trainer = make(toy(), [batch(4)], schedule="linear", warmup=2, steps=6, log_every=2)
    trainer.train()
    assert [line["step"] for line in trainer.history] == [2, 4, 6]
    assert [line["learning_rate"] for line in trainer.history] == pytest.approx([0.01, 0.0075, 0.0025])
    measured = make(toy(), [batch(4)], [batch(4)], steps=7, log_every=5, eval={"every_steps": 2})
    measured.train()
    lines = {line["step"]: "eval_loss" in line for line in measured.history}
    assert lines == {2: True, 4: True, 5: False, 6: True, 7: True}
    own = {"evaluation": lambda: {"score": 1.0}, "eval": {"every_steps": 2}}
    scored = make(toy(), [batch(4)], steps=7, log_every=5, **own)
    scored.train()
    assert [line["step"] for line in scored.history if "eval_score" in line] == [2, 4, 6, 7]


def test_intervals_may_be_shares_of_the_run_and_are_rounded_up_as_in_transformers(toy, batch, tmp_path):
    how = {"save_every": 0.4, "keep_last": 9, "eval": {"every_steps": 0.15, "before": False}}
    trainer = make(toy(), [batch(4)], [batch(4)], steps=7, directory=tmp_path, **how)
    trainer.train()
    saved = {int(path.name.removeprefix("step-")) for path in (tmp_path / "checkpoints").iterdir()}
    assert {3, 6, 7} <= saved and [line["step"] for line in trainer.history if "eval_loss" in line] == [2, 4, 6, 7]


def test_a_callback_may_ask_for_every_step(toy, batch):
    seen = {True: [], False: []}

    class Sees(Callback):
        def __init__(self, every_step):
            self.every_step = every_step

        def step(self, trainer, record):
            seen[self.every_step].append(record["step"])

    make(toy(), [batch(4)], steps=6, log_every=4, callbacks=[Sees(True), Sees(False)]).train()
    assert seen == {True: [1, 2, 3, 4, 5, 6], False: [4, 6]}


def test_a_batch_that_replicas_cannot_share_is_refused(tmp_path):
    three = DistributedContext()
    three.data_size = 3
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    how = {"model": AutoModel.from_pretrained(bundled_models()["llama_tiny"]), "distributed": three}
    with pytest.raises(InputError, match="batch_size: 4 rows cannot be shared by 3 replicas"):
        as_feed(tmp_path / "rows.jsonl", settings=Train(batch_size=4), **how)


def test_the_last_step_of_a_list_has_the_batches_that_are_left(toy, batch):
    """And its loss is the mean over their labels: the whole of a list is learnt, by the weights of one batch."""
    parts = [batch(2, seed=seed) for seed in range(3)]
    whole = {key: np.concatenate([part[key] for part in parts[:2]]) for key in parts[0] if key != "sample_ids"}
    apart, together = toy(), toy()
    trainer = make(apart, parts, accumulation=2, steps=None, epochs=2.0, batch_size=2)
    trainer.train()
    assert [line["epoch"] for line in trainer.history] == [0.5, 1.0, 1.5, 2.0]
    make(together, [whole, parts[2]], steps=4).train()
    np.testing.assert_allclose(apart.embed.asnumpy(), together.embed.asnumpy(), atol=1e-6)


def test_a_run_that_is_done_says_that_nothing_is_trained(toy, batch, caplog):
    trainer = make(toy(), [batch(4)], steps=2)
    trainer.train()
    assert "nothing is trained" not in caplog.text
    trainer.train()
    assert "all 2 steps are done: nothing is trained" in caplog.text and len(trainer.history) == 2


def test_a_process_among_others_promises_no_more_than_they_keep(toy, batch, tmp_path):
    """Another one may be gone, for which the signal comes: nothing is saved then, since all would have to take part."""
    trainer = make(toy(), [batch(2)], directory=tmp_path)
    assert trainer.announce() == "ending after this step, with everything saved"
    trainer.distributed = types.SimpleNamespace(size=2)
    assert trainer.announce().endswith("with everything saved where no process has failed")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_trainer_that_is_copied_is_an_error(toy, batch, copied):
    with pytest.raises(InputError, match="a trainer cannot be copied or pickled"):
        copied(make(toy(), [batch(2, seed=0)]))


def test_weights_of_a_model_are_freed_after_its_training(batch):
    """38 MB each, which MindSpore kept for every training of a process."""
    config = json.loads((bundled_models()["llama_tiny"] / "config.json").read_text())
    config.update(num_hidden_layers=1, hidden_size=256, intermediate_size=12288)

    def resident():
        model = AutoModel.from_config(config)
        apply_lora(model, rank=2)
        make(model, [batch(2)], steps=1, compiled=True).train()
        del model
        gc.collect()
        return present_memory()

    resident(), resident()
    held = [resident() for _ in range(3)]
    most = 9 if available() else 19  # a training's graphs leave 12 MB where there are no kernels
    assert min(np.diff(held)) < most, held  # the allocator may take some once, in a process that has much
