"""One adapter in the place of another, in a compiled graph too."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from adapter_sets import add, same, snapshot
from adapter_states import IDS, logits

import pet
from adapters.score import add_head
from model_zoo.labels import Labels

# Exchange in place ----------------------------------------------------------------------------------------------------


def test_hotswap_reaches_a_compiled_graph(model, tmp_path):
    add(model, "a", 1, rank=3)
    add(model, "b", 2, rank=3)
    for name in "ab":
        pet.save_adapter(model, tmp_path / name, name)
    pet.set_adapter(model, "b")
    expected = logits(model)
    pet.delete_adapter(model, "b")
    pet.set_adapter(model, "a")

    @ms.jit
    def forward(ids):
        return model.construct(ids)

    ids = ms.Tensor(IDS.astype(np.int32))
    np.testing.assert_allclose(forward(ids).asnumpy(), logits(model), atol=1e-5)
    parameters, state = [id(p) for p in model.get_parameters()], model.adapter_state
    pet.hotswap_adapter(model, tmp_path / "b", "a")
    np.testing.assert_allclose(forward(ids).asnumpy(), expected, atol=1e-5)
    np.testing.assert_array_equal(logits(model), expected)
    assert [id(p) for p in model.get_parameters()] == parameters and model.adapter_state == state
    pet.save_adapter(model, tmp_path / "again", "a")
    first, again = (tmp_path / part / "adapter_model.safetensors" for part in ("b", "again"))
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 4, "init": "gaussian"},
        {"rank": 2, "use_rslora": True},
        {"rank_pattern": {"1.*q_proj": 1}, "alpha_pattern": {"2.*q_proj": 5}},
        {"layers": ["0-1"], "rank": 1},
        {"targets": ["embed_tokens"], "rank": 2},
        {"use_dora": True, "alpha": 7, "rank": 1},
    ],
    ids=str,
)
def test_hotswap_takes_smaller_ranks_fewer_cells_and_another_scale(model, tmp_path, settings):
    """The change of the weights is the same, also after saving."""
    own = {"targets": ["embed_tokens"]} if "targets" in settings else {}
    add(model, "b", 2, **settings)
    pet.save_adapter(model, tmp_path / "b", "b")
    pet.set_adapter(model, "b")
    expected = logits(model)
    pet.delete_adapter(model, "b")
    add(model, "a", 1, rank=3, use_dora="use_dora" in settings, **own)
    pet.set_adapter(model, "a")
    state = model.adapter_state
    assert np.abs(logits(model) - expected).max() > 0.01
    pet.hotswap_adapter(model, tmp_path / "b", "a")
    assert model.adapter_state == state
    np.testing.assert_allclose(logits(model), expected, rtol=0, atol=1e-4)
    pet.save_adapter(model, tmp_path / "again", "a")
    pet.delete_adapter(model, "a")
    pet.load_adapter(model, tmp_path / "again")
    np.testing.assert_allclose(logits(model), expected, rtol=0, atol=1e-4)


def test_hotswap_takes_the_names_of_labels_along(fixtures, tmp_path):
    for names in (("good", "bad"), ("yes", "no")):
        made = pet.apply_lora(pet.AutoModel.from_pretrained(fixtures / "llama_gqa"), rank=2)
        add_head(made, Labels(names))
        pet.save_adapter(made, tmp_path / names[0])
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    pet.load_adapter(model, tmp_path / "good")
    assert model.labels.names == ("good", "bad")
    pet.hotswap_adapter(model, tmp_path / "yes")
    assert model.labels.names == ("yes", "no")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 4, "alpha": 32}, "rank 4"),
        ({"targets": ["v_proj"]}, "v_proj"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["norm"]}, "norm.weight"),
    ],
)
def test_hotswap_refuses_what_needs_another_graph(model, tmp_path, settings, message):
    add(model, "a", 1)
    add(model, "b", 2, **settings)
    pet.save_adapter(model, tmp_path, "b")
    pet.delete_adapter(model, "b")
    pet.set_adapter(model, "a")
    before = snapshot(model)
    with pytest.raises(pet.InputError, match=message):
        pet.hotswap_adapter(model, tmp_path, "a")
    same(before, snapshot(model))


def test_hotswap_leaves_an_adapter_with_first_factors_of_its_own(model, tmp_path):
    add(model, "a", 1, init="pissa")
    pet.save_adapter(model, tmp_path, "a")
    with pytest.raises(pet.InputError, match=r"first factors \(pissa\) are subtracted, which each adapter has"):
        pet.hotswap_adapter(model, tmp_path, "a")
