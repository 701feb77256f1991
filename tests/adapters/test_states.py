"""What is active, merged, disabled and trained are four things: none changes another, and blocks nest."""

from __future__ import annotations

import contextlib

import mindspore as ms
import numpy as np
import pytest
from adapter_states import IDS, Own, add, logits, lora, randomise
from mindspore import nn

import pet
from adapters.registry import registry


def active(model):
    return [name for name, status in pet.adapter_status(model).items() if status["active"]]


def trained(model):
    return {parameter.name for parameter in pet.trainable_parameters(model)}


# Unmerging ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "merges"),
    [
        (["a"], ["b"]),
        (["a", "b"], ["a", "b"]),
        (["b", "a"], ["a", "b"]),
        (["a"], ["a", "b"]),
        ([], ["b"]),
        (["a", "b"], ["b"]),
    ],
    ids=str,
)
def test_unmerging_restores_what_was_active(model, chosen, merges):
    add(model, "a", lora(), 1)
    add(model, "b", lora(targets=["q_proj", "k_proj"]), 2)
    pet.set_adapter(model, chosen)
    pet.freeze_modules(model, include="*lora_A*")
    before = logits(model), registry(model).active, trained(model)
    for name in merges:
        pet.merge(model, name)
        assert not pet.adapter_status(model)[name]["active"]
        assert not any(parameter.name.split(".")[-2] == name for parameter in pet.trainable_parameters(model))
    pet.unmerge(model)
    np.testing.assert_array_equal(logits(model), before[0])
    assert (registry(model).active, trained(model)) == before[1:]


# Disabling ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merged", [False, True])
def test_nothing_inside_a_disabled_block_switches_adapters_on(model, tmp_path, merged):
    bare = logits(model)
    add(model, "a", lora(), 1)
    pet.set_adapter(model, "a")
    pet.save_adapter(model, tmp_path, "a")
    if merged:
        pet.merge(model)
    adapted, state = logits(model), model.adapter_state
    acts = {
        "save": lambda: pet.save_adapter(model, tmp_path / "again", "a"),
        "status": lambda: pet.adapter_status(model),
    }
    if not merged:
        acts["add"] = lambda: pet.add_adapter(model, lora(), "b")
        acts["load"] = lambda: pet.load_adapter(model, tmp_path, "c", activate=False)
        acts["combine"] = lambda: pet.combine_adapters(model, ["a"], new_name="d")
        acts["choose"] = lambda: pet.set_adapter(model, "a")
        acts["delete"] = lambda: pet.delete_adapter(model, "b")
    with pet.disable_adapters(model):
        assert model.adapter_state != state
        np.testing.assert_array_equal(logits(model), bare)
        with contextlib.suppress(KeyError), pet.disable_adapters(model):
            raise KeyError
        np.testing.assert_array_equal(logits(model), bare)
        for name, act in acts.items():
            act()
            np.testing.assert_array_equal(logits(model), bare, err_msg=name)
        for call in (pet.merge, pet.unmerge, pet.merge_and_unload) if merged else (pet.merge, pet.merge_and_unload):
            with pytest.raises(pet.InputError, match="disable"):
                call(model)
        np.testing.assert_array_equal(logits(model), bare)
    np.testing.assert_array_equal(logits(model), adapted)
    assert model.adapter_state == state


def of_the_base(model):
    return pet.adapter_names(model, ["__base__"] * len(IDS))


@pytest.mark.parametrize("make", [pet.disable_adapters, of_the_base])
def test_a_context_is_entered_again_also_within_itself(model, make):
    base = logits(model)
    add(model, "a", lora())
    pet.set_adapter(model, "a")
    changed, context = logits(model), make(model)
    assert np.abs(changed - base).max() > 0.01
    for _ in range(2):
        with context:
            with context:
                np.testing.assert_array_equal(logits(model), base)
            np.testing.assert_array_equal(logits(model), base)
        np.testing.assert_array_equal(logits(model), changed)
    np.testing.assert_array_equal(context(logits)(model), base)  # as a decorator, too
    np.testing.assert_array_equal(logits(model), changed)


def test_measuring_inside_a_disabled_block_measures_the_base(model):
    from pet.train.trainer import Trainer

    rows = [{"input_ids": IDS.astype(np.int32)}]
    add(model, "a", lora(), 1)
    pet.set_adapter(model, "a")
    trainer = Trainer(model, rows, rows, steps=1, batch_size=3, compiled=False)
    adapted = trainer.evaluate()["loss"]
    with pet.disable_adapters(model):
        bare = trainer.evaluate()["loss"]
        with pet.disable_adapters(model):
            assert trainer.evaluate()["loss"] == bare
        trainer.last_measured = None
        assert trainer.evaluate()["loss"] == bare != adapted
    trainer.last_measured = None
    assert trainer.evaluate()["loss"] == adapted


def test_what_is_chosen_inside_a_disabled_block_counts_after_it(model):
    add(model, "a", lora(), 1)
    add(model, "b", lora(), 2)
    pet.set_adapter(model, "b")
    second = logits(model)
    pet.set_adapter(model, "a")
    with pet.disable_adapters(model):
        pet.set_adapter(model, "b")
        pet.delete_adapter(model, "a")
    np.testing.assert_array_equal(logits(model), second)


def test_a_base_loaded_inside_a_disabled_block_is_merged_anew(fixtures):
    from model_zoo.checkpoint.reading import Checkpoint, load_into

    model = pet.AutoModel.from_config(pet.AutoConfig.from_pretrained(fixtures / "llama_gqa"))
    add(model, "a", lora(), 1)
    pet.set_adapter(model, "a")
    pet.merge(model)
    expected = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    bare = logits(expected)
    add(expected, "a", lora(), 1)
    pet.merge(expected, "a")
    with pet.disable_adapters(model), Checkpoint(fixtures / "llama_gqa") as checkpoint:
        load_into(model, checkpoint)
        np.testing.assert_array_equal(logits(model), bare)
    np.testing.assert_array_equal(logits(model), logits(expected))
    pet.unmerge(model)
    pet.set_adapter(model, [])
    np.testing.assert_array_equal(logits(model), bare)


# What the user made trainable -----------------------------------------------------------------------------------------


def test_only_choosing_adapters_changes_what_is_trained(model, tmp_path):
    add(model, "a", lora(), 1)
    pet.set_adapter(model, "a")
    pet.freeze_modules(model, include="*lora_A*", exclude="*embed_tokens.weight")
    wanted = trained(model)
    assert "model.embed_tokens.weight" in wanted and not any("lora_A" in name for name in wanted)
    pet.save_adapter(model, tmp_path, "a")
    assert trained(model) == wanted
    with pet.disable_adapters(model):
        assert trained(model) == wanted
    assert trained(model) == wanted
    with pet.adapter_names(model, ["a", "__base__", "a"]):
        assert trained(model) == wanted
    assert trained(model) == wanted
    add(model, "b", lora(), 2)
    pet.load_adapter(model, tmp_path, "c", activate=False)
    pet.combine_adapters(model, ["a"], new_name="d")
    pet.delete_adapter(model, "c")
    pet.merge(model, "b")
    pet.unmerge(model)
    pet.merge(model, "a")
    assert trained(model) == {"model.embed_tokens.weight"}
    pet.unmerge(model)
    assert trained(model) == wanted
    pet.set_adapter(model, ["a", "b"])
    assert trained(model) == {"model.embed_tokens.weight"} | {
        parameter.name for name in "ab" for parameter in registry(model).get(name).parameters()
    }
    pet.set_adapter(model, "b")
    assert not any(".a." in name for name in trained(model))


# Cells whose names begin as adapters' do ------------------------------------------------------------------------------


def test_a_users_own_cells_may_be_called_as_adapters_are():
    own, x = Own(), ms.Tensor(np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32))
    bare, names = own(x).asnumpy(), [parameter.name for parameter in own.get_parameters()]
    classes = {path: type(cell) for path, cell in own.cells_and_names()}
    assert len(pet.plan(own, pet.LoRAConfig(targets="all-linear"))) == 3
    pet.apply_lora(own, rank=2, targets=["adapter_first", "re:adapter_list.*"], modules_to_save=["last"])
    randomise(own, "default")
    assert set(registry(own).get("default").modules) == {"adapter_first", "adapter_list.0"}
    adapted = own(x).asnumpy()
    pet.merge(own)
    np.testing.assert_allclose(own(x).asnumpy(), adapted, rtol=0, atol=1e-5)
    pet.unmerge(own)
    pet.delete_adapter(own, "default")
    np.testing.assert_array_equal(own(x).asnumpy(), bare)
    assert [parameter.name for parameter in own.get_parameters()] == names
    assert {path: type(cell) for path, cell in own.cells_and_names()} == classes
    pet.apply_bitfit(own)
    assert {item.saved_name for item in registry(own).get("default").replaced} == {
        f"{path}.bias" for path in ("adapter_first", "adapter_list.0", "last")
    }


class Line(nn.Dense):
    """A Dense with a cell in the place where an adapter of this name would stand."""

    def __init__(self):
        super().__init__(6, 6)
        self.adapter_mine = nn.Identity()

    def construct(self, x):
        return self.adapter_mine(super().construct(x))


def test_an_adapter_takes_no_cells_place():
    own = nn.SequentialCell(Line())
    with pytest.raises(pet.InputError, match=r"adapter_mine"):
        pet.apply_lora(own, rank=2, targets=["0"], name="mine")
    assert pet.list_adapters(own) == [] and isinstance(own[0].adapter_mine, nn.Identity)


# The plain model back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama_gqa", {}),
        ("llama_gqa", {"use_dora": True, "modules_to_save": ["norm"], "trainable_tokens": [5, 77]}),
        ("gpt2", {"targets": ["lm_head"], "bias": "all"}),
    ],
)
def test_merge_and_unload_gives_a_plain_model(fixtures, tmp_path, family, settings):
    model = pet.AutoModel.from_pretrained(fixtures / family)
    plain = {path: type(cell) for path, cell in model.cells_and_names()}
    add(model, "a", pet.LoRAConfig(rank=2, **settings))
    add(model, "left", pet.LoRAConfig(rank=2), 2)
    pet.set_adapter(model, "a")
    adapted = logits(model)
    found = pet.merge_and_unload(model, safe=True)
    assert found is model and pet.list_adapters(model) == []
    assert {path: type(cell) for path, cell in model.cells_and_names()} == plain
    assert all(parameter.requires_grad for parameter in model.get_parameters())
    assert not any("lora" in parameter.name for parameter in model.get_parameters())
    np.testing.assert_allclose(logits(model), adapted, rtol=0, atol=2e-5 * np.abs(adapted).max())
    merged = logits(model)
    pet.save_pretrained(model, tmp_path)
    np.testing.assert_array_equal(logits(pet.AutoModel.from_pretrained(tmp_path)), merged)
    pet.unmerge(model)  # there is nothing to take out
    pet.apply_lora(model, rank=2)
    np.testing.assert_array_equal(logits(model), merged)
    randomise(model, "default")
    with pet.disable_adapters(model):
        np.testing.assert_array_equal(logits(model), merged)


def test_merge_and_unload_refuses_before_anything_is_touched(model):
    add(model, "a", lora(), 1)
    add(model, "n", pet.BottleneckConfig(size=4, targets=["q_proj"]), 2)
    pet.set_adapter(model, ["a", "n"])
    before = logits(model)
    with pytest.raises(pet.InputError, match="non-linear"):
        pet.merge_and_unload(model)
    assert active(model) == ["a", "n"]
    np.testing.assert_array_equal(logits(model), before)


# Another alpha --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dora": True},
        {"use_rslora": True, "alpha_pattern": {"down_proj": 7}},
        {"targets": ["embed_tokens"]},
        {"targets": ["embed_tokens"], "use_dora": True},
        {"init": "pissa"},
        {"init": "pissa", "use_dora": True},
    ],
    ids=str,
)
def test_alpha_of_a_loaded_adapter_is_changed(model, tmp_path, settings):
    add(model, "first", lora(alpha=3, **settings))
    pet.set_adapter(model, "first")
    pet.save_adapter(model, tmp_path / "three", "first")
    three = logits(model)
    pet.load_adapter(model, tmp_path / "three", "default")
    state = model.adapter_state
    pet.set_alpha(model, 12 if "init" not in settings else 24)
    assert model.adapter_state != state
    changed = logits(model)
    assert np.abs(changed - three).max() > 1e-3
    for fast in (True, False):  # the kernels' cells have the scale in them
        model.set_fast(fast)
        np.testing.assert_allclose(logits(model), changed, rtol=0, atol=1e-4)
    pet.save_adapter(model, tmp_path / "twelve")
    pet.load_adapter(model, tmp_path / "twelve", "again")
    np.testing.assert_allclose(logits(model), changed, rtol=0, atol=1e-5)
    pet.set_adapter(model, "default")
    pet.set_alpha(model, 3 if "init" not in settings else 6)
    np.testing.assert_allclose(logits(model), three, rtol=0, atol=1e-5)
    pet.merge(model)
    with pytest.raises(pet.InputError, match="merged"):
        pet.set_alpha(model, 5)


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), 1e300, 1e-60, "8", True, None])
def test_an_alpha_that_is_none_changes_nothing(model, alpha):
    add(model, "default", lora())
    pet.set_adapter(model, "default")
    before = logits(model)
    with pytest.raises(pet.InputError, match="alpha"):
        pet.set_alpha(model, alpha)
    np.testing.assert_array_equal(logits(model), before)
    pet.delete_adapter(model, "default")
    pet.apply_ia3(model)
    with pytest.raises(pet.InputError, match="LoRA"):
        pet.set_alpha(model, 4)


# Settings that choose cells -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [0, [0], "0", [0, 1]])
@pytest.mark.parametrize("apply", ["apply_prefix", "apply_ptuning", "apply_prompt", "apply_p_tuning"])
def test_layers_are_refused_in_every_form(model, apply, layers):
    with pytest.raises(pet.InputError, match="layers has no meaning"):
        getattr(pet, apply)(model, length=2, layers=layers)
