"""A family's model as a script changes it: put into a cell of its own, or with a cell exchanged."""

import json

import numpy as np
import pytest
from mindspore import nn

import pet
from model_zoo.checkpoint.reading import load_into
from model_zoo.labels import Labels


class Around(nn.Cell):
    """What gives a script's loss, say: MindSpore puts its attribute in front of the model's names."""

    def __init__(self, model):
        super().__init__()
        self.inner = model


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("late", [False, True])
def test_a_model_within_another_cell_is_saved_and_loaded_as_it_is_alone(late, tmp_path):
    found = {}
    for around in (False, True):
        place = tmp_path / str(around)
        model = pet.AutoModel.from_pretrained("llama_tiny")
        if around and not late:
            Around(model)
        pet.apply_lora(model, rank=2, modules_to_save=["norm"])
        if around and late:
            Around(model)
        if around:
            assert model.model.embed_tokens.weight.name == "inner.model.embed_tokens.weight"
        pet.save_adapter(model, place / "adapter")
        pet.delete_adapter(model, "default")
        assert pet.load_adapter(model, tmp_path / "False" / "adapter") == []  # the base is known as that of the file
        with pet.disable_adapters(model):
            pet.save_pretrained(model, place / "base")
        load_into(model, place / "base")
        found[around] = [files(place / name) for name in ("adapter", "base")]
    assert found[True] == found[False]


def test_a_network_with_a_family_of_its_own_is_no_models():
    network = nn.SequentialCell(nn.Dense(4, 4))
    network.family = "mine"
    pet.apply_lora(network, rank=2, targets=["0"])
    assert pet.list_adapters(network) == ["default"]


def test_a_merged_head_is_saved_within_another_cell(tmp_path):
    model = pet.AutoModel.from_pretrained("llama_tiny")
    model.add_score(Labels.plain(3))
    pet.merge(pet.apply_lora(model, rank=2, modules_to_save=["score"]))
    Around(model)
    pet.save_pretrained(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaForSequenceClassification"]


@pytest.mark.parametrize(("base", "bias", "name"), [("gpt_tiny", False, "weight"), ("llama_tiny", True, "bias")])
def test_a_head_that_the_configuration_has_not_is_not_left_out(tmp_path, base, bias, name):
    """GPT-2's head is its embedding, LLaMA's has no bias: the files would be of another model."""
    model = pet.AutoModel.from_pretrained(base)
    model.lm_head = nn.Dense(model.config.dims.hidden, model.config.dims.vocab, has_bias=bias)
    beyond = rf"the model's configuration has no lm_head\.{name}: another cell stands there"
    with pytest.raises(pet.InputError, match=beyond):
        pet.save_pretrained(model, tmp_path / "model")
    with pytest.warns(UserWarning, match=beyond):
        pet.apply_lora(model, rank=2)
    with pytest.raises(pet.InputError, match=beyond):
        pet.save_adapter(model, tmp_path / "adapter")
    assert not list(tmp_path.iterdir())


def test_a_model_with_an_exchanged_cell_is_refused_before_its_adapter_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = pet.AutoModel.from_pretrained("llama_tiny")
    size = model.config.hidden_size
    model.model.layers[0].self_attn.q_proj = nn.Dense(size, size, has_bias=False)
    lacking = r"the model lacks model\.layers\.0\.self_attn\.q_proj\.weight: another cell stands there"
    with pytest.warns(UserWarning, match=f"{lacking}.*; save_adapter will refuse adapter 'default'") as warned:
        pet.apply_lora(model, rank=2, targets=["v_proj"])
    assert warned[0].filename == __file__
    with pytest.raises(pet.InputError, match=lacking):
        pet.save_adapter(model, "adapter")
    ids = np.arange(16).reshape(2, 8)
    with pytest.raises(pet.InputError, match=lacking):
        pet.Trainer(model=model, train_dataset=[{"input_ids": ids, "labels": ids}]).train()
    assert not (tmp_path / "output" / "metrics.jsonl").exists()
