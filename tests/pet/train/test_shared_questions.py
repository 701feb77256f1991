"""A question stands once between two answers: the numbers are those of two documents, in fewer tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import pet
from model_zoo.engine import available
from model_zoo.errors import InputError
from pet.cli.main import main
from pet.data import DataSettings, Loader, TokenDataset
from pet.planning import room
from pet.recipe.loading import from_dict
from pet.train import feed
from pet.train.distributed import DistributedContext
from pet.train.feed import count_useful
from pet.train.objectives.reference import Score, documents_of, keys_of
from pet.train.prepare import prepare
from pet.train.trainer import Trainer

pytestmark = pytest.mark.skipif(not available(), reason="no C kernels here: nothing is shared")
LENGTH = 24


@pytest.mark.parametrize("base", ["llama_tiny", "gpt_tiny", "glm_tiny", "glm4_tiny"])
def test_log_probabilities_beside_a_shared_question(base, comparisons):
    model, found, tokens = pet.AutoModel.from_pretrained(base), [], []
    for shared in (False, True):
        loader = comparisons(model, shared=shared, packing="pack")
        score, answers = Score(model, DistributedContext()), {}
        for batch in loader.batches(0):
            for keys, rows in zip(keys_of(batch, documents_of(batch)), score(batch), strict=True):
                for key, values in zip(keys, rows, strict=True):
                    backwards = shared and key % 2 == 0  # the first of two answers
                    answers[key] = values[values != 0][:: -1 if backwards else 1]
        found.append(answers)
        tokens.append(sum(map(count_useful, loader.batches(0))))
    assert len(found[0]) == 12 and tokens[1] < 0.85 * tokens[0]
    for key, expected in found[0].items():
        np.testing.assert_allclose(found[1][key], expected, atol=2e-5)


@pytest.mark.parametrize(
    ("base", "objective", "adapt"),
    [
        ("llama_tiny", "dpo", lambda model: pet.apply_lora(model, rank=4, targets="all-linear")),
        ("llama_tiny", "reward", lambda model: pet.apply_lora(model, rank=4, targets="all-linear")),
        ("gpt_tiny", "dpo", lambda model: pet.apply_prefix(model, length=3)),
        ("llama_tiny", "simpo", lambda model: pet.apply_prompt(model, length=3)),
    ],
)
def test_steps_beside_a_shared_question(base, objective, adapt, comparisons):
    found = []
    for shared in (False, True):
        model = adapt(pet.AutoModel.from_pretrained(base))
        loader, held_out = (comparisons(model, shared=shared, packing=packing) for packing in ("none", "pack"))
        how = {"objective": objective, "steps": 3, "learning_rate": 1e-3, "seed": 1}
        trainer = Trainer(model, loader, held_out, **how)
        trainer.train()
        found.append(trainer.history)
    for name in ("loss", "gradient_norm", "reward_margin"):
        expected = [line[name] for line in found[0]]
        assert [line[name] for line in found[1]] == pytest.approx(expected, rel=2e-4, abs=2e-6), name
    assert found[1][-1]["eval_loss"] == pytest.approx(found[0][-1]["eval_loss"], rel=1e-4)
    assert found[1][0]["padding"] > found[0][0]["padding"], "rows of one length, with less in them"


def test_pet_data_shows_what_a_run_does(capsys, tmp_path):
    """Rows, padding and shapes are those of the loader that trains, with the questions that pairs share."""
    rows = [{"prompt": "w" * (3 * n + 9), "chosen": f"yes {n}", "rejected": f"no, {n} never"} for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = {"model.path": "llama_tiny", "data.train": str(tmp_path / "pairs.jsonl"), "data.eval_fraction": 0.2}
    job |= {"data.max_length": 64, "train.objective": "dpo", "train.batch_size": 2, "train.accumulation": 2}
    recipe = from_dict({}, {**job, "output.dir": str(tmp_path / "run")})
    words = [f"{key}={value}" for key, value in job.items()]
    (tmp_path / "job.yaml").write_text("{}")
    prepared = prepare(recipe, DistributedContext())
    for split, loader in (("train", prepared.train_feed), ("eval", prepared.eval_feed)):
        assert main(["data", str(tmp_path / "job.yaml"), "--split", split, "--samples", "0", *words]) == 0
        said = capsys.readouterr().out
        chosen = next(line for line in said.splitlines() if "← chosen" in line)
        steps = loader.steps_per_epoch()
        assert f"{loader.padding():.1%} in {steps} step{'s' * (steps != 1)}, 1 shape" in chosen
        tokens = sum(map(count_useful, loader.batches(0)))
        assert f"  {tokens} tokens in rows: a pair's question stands there once" in said
        assert tokens < 0.8 * loader.dataset.lengths.sum()


def test_the_room_of_pairs_that_stream_is_that_of_both_answers(tmp_path, monkeypatch):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "?", "chosen": "yes", "rejected": "no"}\n')
    job = {"model.path": "llama_tiny", "data.train": str(tmp_path / "pairs.jsonl"), "data.streaming": True}
    job |= {"data.max_length": 32, "train.objective": "dpo", "train.steps": 1, "output.dir": str(tmp_path / "run")}
    recipe, seen = from_dict({}, job), []
    monkeypatch.setattr(room, "step_memory", lambda *given, **types: seen.append(given[-1]) or 0.0)
    room.check_room(recipe, prepare(recipe, DistributedContext()))
    assert seen == [64]


WITHOUT_KERNELS = """
import json, sys
import numpy as np
import pet
from model_zoo.engine import available
from pet.data import DataSettings, TokenDataset
from pet.train.distributed import DistributedContext
from pet.train.feed import shared_loader
random, documents = np.random.default_rng(3), []
for _ in range(4):
    question = random.integers(10, 60, random.integers(40, 70)).tolist()
    for length in random.integers(10, 55, 2):
        documents.append((question + random.integers(10, 60, length).tolist(), [0] * len(question) + [1] * length))
data = TokenDataset.from_samples(documents)
data.documents = 2
model = pet.apply_lora(pet.AutoModel.from_pretrained("llama_tiny"), rank=4)
settings = DataSettings(max_length=250, shuffle=False, share_question=True)
loader = shared_loader(data, 1, settings, model, None, DistributedContext())
trainer = pet.Trainer(model, loader, objective="dpo", steps=2, learning_rate=1e-3, seed=1, warmup=0)
trainer.train()
names = ("loss", "gradient_norm", "padding")
print(json.dumps([available(), [[line[name] for name in names] for line in trainer.history]]))
"""


@pytest.mark.full
def test_without_kernels_pairs_are_packed_alike(capsys):
    """Rows are longer than a block of the plain operators' queries, so that these have to look behind it."""
    environment = {**os.environ, "PET_NATIVE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WITHOUT_KERNELS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    native, plain = json.loads(done.stdout.splitlines()[-1])
    assert not native
    exec(WITHOUT_KERNELS, {})
    native, fast = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert native
    assert plain == [pytest.approx(line, rel=1e-4) for line in fast]
    assert [line[2] for line in plain] == [line[2] for line in fast]


def test_a_window_and_a_device_s_operators_share_nothing(monkeypatch):
    model = pet.AutoModel.from_pretrained("llama_tiny")
    settings = DataSettings(max_length=LENGTH)
    assert feed.shares_question(model, settings) and not feed.shares_question(object(), settings)
    monkeypatch.setattr(type(model.config), "windows", (0, LENGTH))
    assert feed.shares_question(model, settings), "no answer is so long that the window hides its question"
    monkeypatch.setattr(type(model.config), "windows", (0, LENGTH - 1))
    assert not feed.shares_question(model, settings)
    pairs = TokenDataset.from_samples([([5, 6, 7], [0, 1, 1]), ([5, 6, 8], [0, 1, 1])])
    pairs.documents = 2
    loader = Loader(pairs, 1, DataSettings.of(settings, share_question=True))
    with pytest.raises(InputError, match="share_question: attention of this model"):
        feed.as_feed(loader, model=model)
    monkeypatch.undo()
    assert feed.as_feed(loader, model=model) is loader
    monkeypatch.setattr(feed, "on_ascend", lambda: True)
    assert not feed.shares_question(model, settings)
