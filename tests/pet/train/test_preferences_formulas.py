"""Objectives of preferences: losses and gradients against their formulas in torch."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from compared_answers import VOCABULARY, dataset, pairs_of

import pet
from model_zoo.errors import InputError
from pet.data.dataset import IGNORED
from pet.data.loader import Loader
from pet.data.settings import DataSettings
from pet.recipe.training import Train
from pet.train.objectives import make_objective
from pet.train.objectives.reference import picked_of_hidden, picked_of_logits

OBJECTIVES = {
    "dpo": {"beta": 0.3},
    "dpo smoothed": {"beta": 0.3, "label_smoothing": 0.1, "sft_weight": 0.5},
    "robust": {"label_smoothing": 0.2},
    "hinge": {"beta": 0.3},
    "ipo": {"beta": 0.4},
    "simpo": {"beta": 1.5, "gamma": 0.7},
    "orpo": {"beta": 0.25},
}


def packed(documents, rows: int = 2, together: int = 2, said=None):
    settings = DataSettings(packing="pack", max_length=24 // together, shuffle=False)
    return next(iter(Loader(dataset(documents, together, said), rows, settings).batches(0)))


def per_token(documents, references):
    """Log-probabilities of whole answers as those of their tokens, some of which are learnt."""
    found = {}
    for key, total in references.items():
        learnt = np.flatnonzero(documents[key][1]) - 1
        found[key] = np.zeros(len(documents[key][0]), np.float32)
        shares = np.arange(1, len(learnt) + 1)
        found[key][learnt] = shares / shares.sum() * total
    return found


def by_torch(name: str, settings, logits, batch, references):
    """The loss of a batch by the formulas, pair by pair."""
    import torch
    from torch.nn.functional import logsigmoid

    total, beta = 0.0, settings.get("beta", 0.1)
    log_p = torch.log_softmax(logits, -1)
    for row, members in enumerate(batch["sample_ids"]):
        found = {}
        for number, key in enumerate(members):
            own = [at for at in range(batch["labels"].shape[1]) if batch["document"][row, at] == number]
            learnt = [at for at in own if batch["labels"][row, at] != IGNORED]
            found[key] = torch.stack([log_p[row, at - 1, batch["labels"][row, at]] for at in learnt])
        for chosen, rejected in zip(members[::2], members[1::2], strict=True):
            pc, pr = found[chosen], found[rejected]
            delta = pc.sum() - references[chosen] - pr.sum() + references[rejected]
            share = settings.get("label_smoothing", 0.0)
            if name == "dpo":
                loss = -(1 - share) * logsigmoid(beta * delta) - share * logsigmoid(-beta * delta)
            elif name == "robust":
                loss = -(1 - share) * logsigmoid(beta * delta) + share * logsigmoid(-beta * delta)
                loss = loss / (1 - 2 * share)
            elif name == "hinge":
                loss = torch.relu(1 - beta * delta)
            elif name == "ipo":
                means = (pc.sum() - references[chosen]) / len(pc) - (pr.sum() - references[rejected]) / len(pr)
                loss = (means - 1 / (2 * beta)) ** 2
            elif name == "simpo":
                loss = -logsigmoid(beta * (pc.mean() - pr.mean()) - settings["gamma"])
            else:
                odds = [p.mean() - torch.log1p(-torch.exp(p.mean())) for p in (pc, pr)]
                loss = -pc.mean() - beta * logsigmoid(odds[0] - odds[1])
            total = total + loss - settings.get("sft_weight", 0.0) * pc.mean()
    return total


FAR = 300  # beyond 88, where float32's exp() ends


@pytest.mark.parametrize(
    ("name", "spread"),
    [(name, spread) for spread in (1, FAR) for name in OBJECTIVES if (name, spread) != ("orpo", FAR)],
)  # ORPO's odds end where a probability is 1
def test_losses_and_gradients_are_the_formulas(name, spread):
    torch = pytest.importorskip("torch")
    settings = OBJECTIVES[name]
    objective = make_objective(Train(objective=name.split()[0], **settings))
    documents = pairs_of(1, 5)
    references = dict(enumerate(np.random.default_rng(2).normal(-5, 1, len(documents)).tolist()))
    if not objective.uses_reference:
        references = dict.fromkeys(references, 0.0)
    objective.reference.known[True] = per_token(documents, references)
    batch = objective.prepare(packed(documents), training=True)
    assert objective.count(batch) == 5
    logits = np.random.default_rng(3).normal(0, spread, (*batch["labels"].shape, VOCABULARY)).astype(np.float32)
    arrays = [ms.Tensor(batch[array]) for array in objective.arrays]
    value, gradient = ms.value_and_grad(lambda x: objective.loss(x, *arrays))(ms.Tensor(logits))
    leaf = torch.tensor(logits.astype(np.float64), requires_grad=True)
    expected = by_torch(name.split()[0], settings, leaf, batch, references)
    expected.backward()
    assert float(value) == pytest.approx(float(expected.detach()), rel=1e-5)
    np.testing.assert_allclose(gradient.asnumpy(), leaf.grad.numpy(), rtol=1e-5, atol=1e-5)
    measured = [float(one) for one in objective.measure(ms.Tensor(logits), *arrays)]
    assert measured[0] == pytest.approx(float(expected.detach()), rel=1e-5)


def test_log_probabilities_of_labels_without_logits():
    model = pet.AutoModel.from_pretrained("llama_tiny")
    for parameter in model.get_parameters():
        parameter.requires_grad = False
    random = np.random.default_rng(0)
    hidden = ms.Tensor(random.normal(size=(12, model.config.dims.hidden)).astype(np.float32))
    labels = random.integers(0, model.config.dims.vocab, (2, 6)).astype(np.int32)
    labels[0, :3] = IGNORED
    slopes = ms.Tensor(random.normal(size=12).astype(np.float32))
    objective = make_objective(Train(objective="dpo"))

    def by_logits(x):
        return picked_of_logits(objective.token, model.head(x), ms.Tensor(labels)) * slopes

    expected, slope = ms.value_and_grad(lambda x: by_logits(x).sum())(hidden)
    for measured in (False, True):
        if (picked := picked_of_hidden(model, measured)) is None:
            pytest.skip("no C kernels here: logits are used")
        found = (picked(hidden, ms.Tensor(labels)) * slopes).sum()
        assert float(found) == pytest.approx(float(expected), rel=1e-5)
    picked = picked_of_hidden(model)
    found = ms.grad(lambda x: (picked(x, ms.Tensor(labels)) * slopes).sum())(hidden)
    np.testing.assert_allclose(found.asnumpy(), slope.asnumpy(), atol=1e-5)


def test_labels_of_kto_are_truth_values_of_any_kind():
    objective = make_objective(Train(objective="kto", desirable_weight=0.7, undesirable_weight=1.2))
    objective.reference.known[True] = per_token(documents := pairs_of(2, 1), dict.fromkeys(range(2), -1.0))
    objective.moved = lambda *_: 0.0
    for liked in ([True, False], np.array([True, False]), [1, 0]):
        batch = objective.prepare(packed(documents, together=1, said=liked), training=True)
        assert sorted(batch["weight"][batch["weight"] != 0]) == pytest.approx([-1.2, 0.7])
    for wrong in (None, ["True", "False"], [True, 2]):
        with pytest.raises(InputError, match=r"kto: an answer's label is .*; true or false was expected"):
            objective.prepare(packed(documents, together=1, said=wrong), training=True)


@pytest.mark.parametrize("moved", [0.0, 1.5])
def test_ktos_losses_and_gradients_are_the_formulas(moved):
    torch = pytest.importorskip("torch")
    objective = make_objective(Train(objective="kto", beta=0.3, desirable_weight=0.7, undesirable_weight=1.2))
    liked = [True, False, True, True, False, False]
    documents = pairs_of(4, 3)
    batch = packed(documents, together=1, said=liked)
    random = np.random.default_rng(5)
    references = random.normal(-5, 1, len(documents)).tolist()
    objective.reference.known[True] = per_token(documents, dict(enumerate(references)))
    objective.moved = lambda *_: moved
    batch = objective.prepare(batch, training=True)
    assert objective.count(batch) == 6
    logits = random.normal(0, 1, (*batch["labels"].shape, VOCABULARY)).astype(np.float32)
    arrays = [ms.Tensor(batch[array]) for array in objective.arrays]
    value, gradient = ms.value_and_grad(lambda x: objective.loss(x, *arrays))(ms.Tensor(logits))
    leaf = torch.tensor(logits.astype(np.float64), requires_grad=True)
    log_p, total, whole, gains = torch.log_softmax(leaf, -1), 0.0, np.zeros(6), np.zeros(6)
    for row, members in enumerate(batch["sample_ids"]):
        for number, key in enumerate(members):
            learnt = np.flatnonzero((batch["document"][row] == number) & (batch["labels"][row] != IGNORED))
            ratio = sum(log_p[row, at - 1, batch["labels"][row, at]] for at in learnt) - references[key]
            whole[key], gains[key] = ratio.detach() + references[key], 0.3 * (ratio.detach() - moved)
            sign, weight = (1, 0.7) if liked[key] else (-1, 1.2)
            total = total + weight * (1 - torch.sigmoid(0.3 * sign * (ratio - moved)))
    total.backward()
    assert float(value) == pytest.approx(float(total.detach()), rel=1e-5)
    np.testing.assert_allclose(gradient.asnumpy(), leaf.grad.numpy(), atol=1e-5)
    sums = [float(one) for one in objective.measure(ms.Tensor(logits), *arrays)]
    there, rewards = np.array(liked), gains + 0.3 * moved
    chosen, rejected = rewards[there].mean(), rewards[~there].mean()
    assert objective.metrics(sums, 6) == pytest.approx(
        {
            "loss": float(total.detach()) / 6,
            "reward_accuracy": np.where(there, gains > 0, gains <= 0).mean(),
            "reward_margin": chosen - rejected,
            "reward_chosen": chosen,
            "reward_rejected": rejected,
            "logp_chosen": whole[there].mean(),
            "logp_rejected": whole[~there].mean(),
            "kl": moved,
        },
        rel=1e-4,
    )
