"""Dropout of the base's own layers, which only training has."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from first_layers import first_layers
from sets import some

import pet
from adapters.dropout import dropouts, set_dropout_key
from model_zoo.errors import InputError
from pet.names import bundled_models
from pet.parallel.mesh import Mesh
from pet.parallel.stages import cut_stage
from pet.train.base_dropout import HeadDropout, attach_dropout
from pet.train.noise import key_setter
from pet.train.trainer import Trainer

IDS = np.arange(10, 26).reshape(2, 8)


def logits(model):
    return model(IDS).asnumpy()


@pytest.mark.parametrize("place", ["embedding", "hidden", "attention"])
def test_each_place_drops_while_training_only(place):
    model = pet.AutoModel.from_pretrained("gpt_tiny")
    names, plain = [p.name for p in model.get_parameters()], logits(model)
    attach_dropout(model, {place: 0.3})
    assert np.array_equal(logits(model), plain)
    set_key = key_setter(model)
    model.set_train(True)
    set_key(7)
    one = logits(model)
    assert np.abs(one - plain).max() > 1e-3
    set_key(8)
    assert np.abs(logits(model) - one).max() > 1e-3
    set_key(7)
    assert np.array_equal(logits(model), one)
    assert [p.name for p in model.get_parameters() if not hasattr(p, "adapter")] == names


def test_the_expectation_is_the_plain_value():
    """Inverted dropout: what is left is scaled up, so that the embeddings' mean stays."""
    model = pet.AutoModel.from_pretrained("gpt_tiny")
    attach_dropout(model, {"embedding": 0.5})
    drop = model.transformer.drop
    drop.set_train(True)
    from mindspore import Tensor

    dropped = drop(Tensor(np.ones((200, 100), np.float32))).asnumpy()
    assert set(np.unique(dropped)) == {0.0, 2.0}
    assert dropped.mean() == pytest.approx(1.0, abs=0.03)


def losses(compiled, directory=None, base="gpt_tiny", **settings):
    model = pet.AutoModel.from_pretrained(base)
    if directory is None:
        model = pet.apply_lora(model, rank=2)
    batch = {"input_ids": IDS.astype(np.int32)}
    trainer = Trainer(model, [batch] * 3, steps=3, batch_size=2, warmup=0, compiled=compiled, **settings)
    trainer.train()
    if directory is not None:
        pet.save_pretrained(model, directory)
    return [record["loss"] for record in trainer.history]


RATES = {"embedding": 0.1, "hidden": 0.2}, {"attention": 0.2}


@pytest.mark.parametrize("rates", some(RATES, RATES[:1]))
def test_the_engine_draws_what_the_operators_draw(rates, caplog, tmp_path):
    """Hidden states within the fused layers, attention weights outside of them, where each layer is compiled."""
    base = first_layers(bundled_models()["gpt_tiny"], tmp_path, 1)
    fused, plain = (losses(compiled, base=base, base_dropout=rates) for compiled in (True, False))
    assert "cannot be compiled" not in caplog.text
    assert fused == pytest.approx(plain, rel=1e-4)
    assert abs(fused[0] - losses(True, base=base)[0]) > 1e-3


def test_a_later_run_drops_what_it_asks_for_alone():
    """Of the first one nothing is left; but what a program has given the model stays where no run asks for more."""
    ids = {"input_ids": IDS.astype(np.int32)}

    def loss(model, **settings):
        how = {"steps": 1, "batch_size": 2, "warmup": 0, "learning_rate": 1e-12, "compiled": False}
        trainer = Trainer(model, [ids], **how, **settings)
        trainer.train()
        return trainer.history[0]["loss"]

    one, two, own = (pet.apply_lora(pet.AutoModel.from_pretrained("gpt_tiny"), rank=2) for _ in range(3))
    plain, dropped = loss(two), loss(two, base_dropout={"embedding": 0.3})
    assert abs(plain - dropped) > 1e-3
    first = loss(one, base_dropout={"hidden": 0.5})
    assert loss(one) == pytest.approx(plain, abs=1e-5) != pytest.approx(first, abs=1e-3)
    assert loss(one, base_dropout={"embedding": 0.3}) == pytest.approx(dropped, abs=1e-5)
    attach_dropout(own, {"embedding": 0.3})
    assert loss(own) == loss(own) == pytest.approx(dropped, abs=1e-5)


def test_a_model_that_was_trained_whole_is_saved_as_ever(tmp_path):
    losses(True, tmp_path / "model", base_dropout={"embedding": 0.1, "hidden": 0.1})
    saved = pet.AutoModel.from_pretrained(tmp_path / "model")
    assert saved.parameters_dict().keys() == pet.AutoModel.from_pretrained("gpt_tiny").parameters_dict().keys()


def test_divided_heads_draw_their_part_of_one_mask():
    from mindspore import Tensor

    ones = np.ones((2, 4, 3, 5), np.float32)

    def drawn(heads, parts, part):
        drop = HeadDropout(0.5, "core", parts, part)
        drop.set_train(True)
        set_dropout_key(drop, 7, block=1)  # the second block of the rows
        return drop(Tensor(ones[:, :heads])).asnumpy()

    whole = drawn(4, 1, 0)
    assert 0.2 < (whole == 0).mean() < 0.8
    assert np.array_equal(np.concatenate([drawn(2, 2, 0), drawn(2, 2, 1)], 1), whole)


def test_the_embedding_is_dropped_once_in_a_pipeline():
    found = []
    for rank in (0, 1):
        model = pet.AutoModel.from_pretrained("gpt_tiny")
        cut_stage(model, Mesh(1, 1, 2, rank))
        attach_dropout(model, {"embedding": 0.1, "hidden": 0.1})
        found.append(sum(1 for drop in dropouts(model) if drop is model.transformer.drop))
    assert found == [1, 0] and model.transformer.h[-1].mlp.drop is not None


def test_other_families_have_none():
    with pytest.raises(InputError, match="only models of the GPT family"):
        attach_dropout(pet.AutoModel.from_pretrained("llama_tiny"), {"hidden": 0.1})
    attach_dropout(pet.AutoModel.from_pretrained("llama_tiny"), {"hidden": 0.0})


def test_dropout_that_nobody_applies_is_said_once(tmp_path, caplog):
    """transformers applies what config.json says, of GPT-2 also what it leaves out."""

    def said(name, base, config, **settings):
        directory = shutil.copytree(bundled_models()[base], tmp_path / name)
        values = json.loads((directory / "config.json").read_text())
        values = {key: value for key, value in (values | config).items() if value != "left out"}
        (directory / "config.json").write_text(json.dumps(values))
        caplog.clear()
        for _ in range(2):
            model = pet.apply_lora(pet.AutoModel.from_pretrained(directory), rank=2)
            Trainer(model, [{"input_ids": IDS.astype(np.int32)}], steps=1, **settings)
        return [record.message for record in caplog.records if "does not apply" in record.message]

    (line,) = said("some", "gpt_tiny", {"resid_pdrop": 0.1, "attn_pdrop": 0.2})
    assert "resid_pdrop=0.1, attn_pdrop=0.2" in line
    assert "train.base_dropout={'hidden': 0.1, 'attention': 0.2}" in line
    (line,) = said("all", "gpt_tiny", dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), "left out"))
    assert "embd_pdrop=0.1, resid_pdrop=0.1, attn_pdrop=0.1" in line
    assert said("asked", "gpt_tiny", {"resid_pdrop": 0.1}, base_dropout={"hidden": 0.1}) == []
    assert said("refused", "gpt_tiny", {"resid_pdrop": 0.1}, base_dropout={"hidden": 0.0}) == []
    (line,) = said("llama", "llama_tiny", {"attention_dropout": 0.5})
    assert "attention_dropout=0.5" in line and "base_dropout" not in line
    assert said("none", "llama_tiny", {}) == []
