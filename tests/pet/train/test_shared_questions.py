"""A question stands once between two answers: the numbers are those of two documents, in fewer tokens."""

from __future__ import annotations

import numpy as np
import pytest

import pet
from model_zoo.engine import available
from pet.data.dataset import TokenDataset
from pet.data.settings import DataSettings
from pet.train import feed
from pet.train.distributed import DistributedContext
from pet.train.objectives.reference import Score, documents_of, keys_of
from pet.train.trainer import Trainer

pytestmark = pytest.mark.skipif(not available(), reason="no C kernels here: nothing is shared")
PAIRS, LENGTH = 6, 24


def loader_of(model, shared: bool, packing: str):
    """The same pairs, whose answers share their questions or do not."""
    random, documents = np.random.default_rng(3), []
    for _ in range(PAIRS):
        question = random.integers(10, 60, random.integers(2, 12)).tolist()
        if model.family.name == "glm":  # the question ends with what it is read by, in both directions
            question += [model.config.gmask_token_id, model.config.bos_token_id]
        for _ in range(2):
            answer = random.integers(10, 60, random.integers(1, 9)).tolist()
            documents.append((question + answer, [False] * len(question) + [True] * len(answer)))
    data = TokenDataset.from_samples(documents)
    data.documents = 2
    settings = DataSettings(packing=packing, max_length=LENGTH, shuffle=False, share_question=shared)
    return feed.shared_loader(data, 2, settings, model, None, DistributedContext())


@pytest.mark.parametrize("base", ["llama_tiny", "gpt_tiny", "glm_tiny", "glm4_tiny"])
def test_log_probabilities_beside_a_shared_question(base):
    model, found, tokens = pet.AutoModel.from_pretrained(base), [], []
    for shared in (False, True):
        loader, score, answers = loader_of(model, shared, "pack"), Score(model, DistributedContext()), {}
        for batch in loader.batches(0):
            for keys, rows in zip(keys_of(batch, documents_of(batch)), score(batch), strict=True):
                for key, values in zip(keys, rows, strict=True):
                    backwards = shared and key % 2 == 0  # the first of two answers
                    answers[key] = values[values != 0][:: -1 if backwards else 1]
        found.append(answers)
        tokens.append(sum(batch.useful_tokens for batch in loader.batches(0)))
    assert len(found[0]) == 2 * PAIRS and tokens[1] < 0.85 * tokens[0]
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
def test_steps_beside_a_shared_question(base, objective, adapt):
    found = []
    for shared in (False, True):
        model = adapt(pet.AutoModel.from_pretrained(base))
        loader = loader_of(model, shared, "none")
        how = {"objective": objective, "steps": 3, "learning_rate": 1e-3, "seed": 1}
        trainer = Trainer(model, loader, loader_of(model, shared, "pack"), **how)
        trainer.train()
        found.append(trainer.history)
    for name in ("loss", "gradient_norm", "reward_margin"):
        expected = [line[name] for line in found[0]]
        assert [line[name] for line in found[1]] == pytest.approx(expected, rel=2e-4, abs=2e-6), name
    assert found[1][-1]["eval_loss"] == pytest.approx(found[0][-1]["eval_loss"], rel=1e-4)
    assert found[1][0]["padding"] > found[0][0]["padding"], "rows of one length, with less in them"


def test_a_window_and_operators_without_kernels_share_nothing(monkeypatch):
    model = pet.AutoModel.from_pretrained("llama_tiny")
    settings = DataSettings(max_length=LENGTH)
    assert feed.shares_question(model, settings) and not feed.shares_question(object(), settings)
    monkeypatch.setattr(type(model.config), "windows", (0, LENGTH))
    assert feed.shares_question(model, settings), "no answer is so long that the window hides its question"
    monkeypatch.setattr(type(model.config), "windows", (0, LENGTH - 1))
    assert not feed.shares_question(model, settings)
    monkeypatch.undo()
    monkeypatch.setattr(feed, "available", lambda: False)
    assert not feed.shares_question(model, settings)
