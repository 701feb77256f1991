"""Classification: logits, steps and families against transformers and PEFT."""

from __future__ import annotations

import re

import numpy as np
import pytest
from labelled_texts import BASES, padded, texts

import pet
from pet import AutoModel, InputError
from pet.data.dataset import TokenDataset
from pet.data.loader import Loader
from pet.data.settings import DataSettings
from pet.train.trainer import Trainer

LABELS = {
    "single_label_classification": [2, 0, 1, 2, 0, 0, 1, 2],
    "multi_label_classification": [
        [0, 1, 1],
        [1, 0, 0],
        [0, 0, 0],
        [1, 1, 1],
        [0, 1, 0],
        [1, 0, 1],
        [0, 0, 1],
        [1, 1, 0],
    ],
    "regression": [0.5, -1.0, 2.0, 1.5, 0.0, 3.0, -0.5, 1.0],
}
"""Of eight texts, by what is learnt."""
STEPS, RATE = 10, 1e-3
EPS = 1e-7
"""Adam's, above how gradients are rounded: those of 0 are rounding alone, which it divides by their own size."""


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("base", BASES)
def test_logits_are_those_of_transformers(theirs, base, side, tmp_path):
    torch, adapted = theirs.torch, theirs(base).eval()
    adapted.save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(base)
    pet.load_adapter(model, tmp_path)
    ids, mask = padded(texts(), adapted.config.pad_token_id, side)
    with torch.no_grad():
        positions = np.maximum(np.cumsum(mask, 1) - 1, 0)  # GPT-2's forward counts padding; its generate does not
        found = adapted(
            torch.tensor(ids), attention_mask=torch.tensor(mask), position_ids=torch.tensor(positions)
        ).logits.numpy()
    assert np.abs(found).max() > 1e-2 and found.shape == (8, 3)
    np.testing.assert_allclose(pet.scores(model, ids, mask), found, atol=1e-5)


@pytest.mark.parametrize(
    ("base", "problem"),
    [*((base, "single_label_classification") for base in BASES), *(("llama_tiny", p) for p in list(LABELS)[1:])],
)
@pytest.mark.parametrize("packing", ["none", "pack"])
def test_steps_are_those_of_transformers_and_peft(theirs, base, problem, packing, tmp_path):
    """Losses and weights of ten steps from one adapter, on the same texts."""
    torch, adapted = theirs.torch, theirs(base, problem)
    adapted.save_pretrained(tmp_path / "start")
    rows, labels = texts(), LABELS[problem]
    data = TokenDataset.from_samples([(ids, [True] * len(ids)) for ids in rows], labels)
    loader = Loader(data, 8, DataSettings(packing=packing, max_length=16, shuffle=False))
    model = AutoModel.from_pretrained(base)
    pet.load_adapter(model, tmp_path / "start")
    how = {"learning_rate": RATE, "schedule": "constant", "warmup": 0, "clip_norm": None, "eps": EPS}
    ours = Trainer(model, loader, objective="classification", steps=STEPS, **how)
    ours.train()
    ids, mask = (torch.tensor(array) for array in padded(rows, adapted.config.pad_token_id, "right"))
    given = torch.tensor(labels) if problem.startswith("single") else torch.tensor(labels, dtype=torch.float32)
    trained = [one for one in adapted.parameters() if one.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0, eps=EPS), []
    for _ in range(STEPS):
        loss = adapted(ids, attention_mask=mask, labels=given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] - losses[-1] > 0.02
    np.testing.assert_allclose([line["loss"] for line in ours.history], losses, atol=1e-5)
    adapted.save_pretrained(tmp_path / "theirs")
    pet.save_adapter(model, tmp_path / "ours")
    from safetensors.numpy import load_file

    found, expected = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("ours", "theirs"))
    assert found.keys() == expected.keys() and "base_model.model.score.weight" in found
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-5, err_msg=name)


FAMILIES = ["mistral", "qwen2_5", "qwen3", "qwen3_moe", "gemma2", "gemma3", "glm4_0414"]


@pytest.mark.parametrize("family", FAMILIES)
def test_classifiers_of_other_families_open(theirs, fixtures, family, tmp_path):
    torch, transformers = theirs.torch, theirs.transformers
    torch.manual_seed(0)
    auto = transformers.AutoModelForSequenceClassification
    how = {"dtype": torch.float32, "attn_implementation": "eager"}  # the other one passes over Gemma 2's cap
    plain = auto.from_pretrained(fixtures / family, num_labels=3, **how).eval()
    plain.save_pretrained(tmp_path / "theirs")
    model = AutoModel.from_pretrained(tmp_path / "theirs")
    ids = np.random.default_rng(0).integers(5, 60, (2, 7))
    with torch.no_grad():
        expected = torch.cat([plain(torch.tensor(row[None])).logits for row in ids]).numpy()
    np.testing.assert_allclose(pet.scores(model, ids), expected, atol=1e-5)
    pet.save_pretrained(model, tmp_path / "ours")
    again = auto.from_pretrained(tmp_path / "ours", **how).eval()
    with torch.no_grad():
        np.testing.assert_allclose(again(torch.tensor(ids[:1])).logits.numpy(), expected[:1], atol=1e-5)


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_of_a_program_are_judged_at_their_last_token(side):
    """The loss before the first step is the cross-entropy of the scores, wherever the padding is."""
    rows, labels = [*texts(5), [11], [12, 13, 14]], [2, 0, 1, 2, 0, 1, 1]
    ids, mask = padded(rows, 2, side)
    model = pet.apply_lora(AutoModel.from_pretrained("llama_tiny"), rank=4, targets=["q_proj"])
    batch = {"input_ids": ids, "attention_mask": mask, "label": labels}
    trainer = Trainer(model, [batch], objective="classification", steps=1, learning_rate=1e-9)
    scores = pet.scores(model, ids, mask)
    trainer.train()
    expected = np.log(np.exp(scores).sum(1)) - scores[np.arange(7), labels]
    assert trainer.history[0]["loss"] == pytest.approx(expected.mean(), abs=1e-5)

    empty = {name: np.concatenate((batch[name], np.zeros_like(ids[:2]))) for name in ("input_ids", "attention_mask")}
    how = {"objective": "classification", "steps": 1, "learning_rate": 1e-9}
    filled = Trainer(model, [{**empty, "label": [*labels, 0, 0]}], **how)
    filled.train()  # rows of padding alone fill up a batch
    assert (filled.history[0]["texts"], filled.history[0]["loss"]) == (7, pytest.approx(expected.mean(), abs=1e-5))

    def forward_step(data, model):
        states = model.hidden_states(*(data[name] for name in ("input_ids", "position_ids", "start", "end")), None)
        return {"logits": model.head(states)}

    own = Trainer(model, [batch], forward_step=forward_step, **how)
    own.train()
    assert own.history[0]["loss"] == pytest.approx(expected.mean(), abs=1e-5)
    several = [[0, 1]] * 3 + [[2]] * 4  # of another number in each row
    with pytest.raises(InputError, match=r"batch 0, row 0: label \[0, 1\] is none of 3"):
        Trainer(model, [{**batch, "label": several}], objective="classification", steps=1)
    for wrong in ([1], 1, None):
        with pytest.raises(InputError, match=f"label is {re.escape(str(wrong))}; one for each of 7 rows expected"):
            Trainer(model, [{**batch, "label": wrong}], objective="classification", steps=1)
    with pytest.raises(InputError, match="a batch has no labels; expected label"):
        Trainer(model, [{"input_ids": ids}], objective="classification", steps=1)
