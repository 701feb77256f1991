"""What is active, merged, disabled and trained are four things: none changes another, and blocks nest."""

from __future__ import annotations

import contextlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

import pet
from adapters.registry import registry

IDS = np.random.default_rng(0).integers(3, 120, (3, 6))


@pytest.fixture(scope="module")
def base(fixtures):
    return pet.AutoModel.from_pretrained(fixtures / "llama_gqa")


@pytest.fixture
def model(base):
    yield base
    pet.unmerge(base)
    for name in pet.list_adapters(base):
        pet.delete_adapter(base, name)


def logits(model):
    return model(IDS).asnumpy()


def randomise(model, name, seed=1, scale=0.3):
    generator = np.random.default_rng(seed)
    for parameter in registry(model).get(name).parameters():
        value = parameter.asnumpy() + scale * generator.standard_normal(parameter.shape)
        ops.assign(parameter, ms.Tensor(value.astype(np.float32)))


def add(model, name, config, seed=1):
    pet.add_adapter(model, config, name)
    randomise(model, name, seed)


def lora(**settings):
    return pet.LoRAConfig(**{"rank": 2, "targets": ["k_proj", "down_proj"], **settings})


def ia3(**settings):
    return pet.IA3Config(**{"targets": ["k_proj", "down_proj"], **settings})


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


# Several methods on one cell ------------------------------------------------------------------------------------------


KINDS = {
    "lora": pet.LoRAConfig(rank=2, targets=["cell"]),
    "dora": pet.LoRAConfig(rank=2, targets=["cell"], use_dora=True),
    "scaled output": pet.IA3Config(targets=["cell"], feedforward=[]),
    "scaled input": pet.IA3Config(targets=["cell"], feedforward=["cell"]),
    "bottleneck": pet.BottleneckConfig(size=4, targets=["cell"]),
    "parallel": pet.BottleneckConfig(size=4, targets=["cell"], placement="parallel"),
    "low rank": pet.LowRankAdapterConfig(targets=["cell"]),
    "bias": pet.BitFitConfig(targets=["cell"]),
}
MERGEABLE = {"lora", "dora", "scaled output", "scaled input"}
READS_OUTPUT = {"scaled output", "bottleneck", "low rank"}


def refused(first, second, which):
    """Whether no weight can stand for what is merged of two kinds that are active in this order."""
    merged = {"one": {first}, "two": {second}, "both": {first, second}}[which]
    if not merged <= MERGEABLE:
        return True
    if which == "both":  # DoRA's norm is of a weight that reads the input as it is
        return merged == {"dora", "scaled input"}
    if {first, second} == {"scaled input", "scaled output"}:  # a row of the weight by one number, a column by another
        return False
    stays = {"one": second, "two": first}[which]
    if stays == "dora" or merged == {"scaled input"}:
        return stays == "dora"
    moves = which == "two" and (first in READS_OUTPUT or second in READS_OUTPUT)
    return moves or stays == "scaled input"


class One(nn.Cell):
    def __init__(self, has_bias):
        super().__init__()
        self.cell = nn.Dense(6, 8, has_bias=has_bias)

    def construct(self, x):
        return self.cell(x)


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_merging_beside_another_method_is_right_or_refused(first, second):
    """The output is what it was, or the merge is refused and nothing has changed."""
    own, x = One(has_bias="bias" not in (first, second)), np.random.default_rng(5).standard_normal((4, 6))
    if own.cell.bias is not None:
        own.cell.bias.set_data(ms.Tensor(np.arange(8.0, dtype=np.float32)))
    x = ms.Tensor(x.astype(np.float32))
    add(own, "one", KINDS[first], 1)
    add(own, "two", KINDS[second], 2)
    pet.set_adapter(own, ["one", "two"])
    before, state = own(x).asnumpy(), own.adapter_state
    for which, names in {"one": ["one"], "two": ["two"], "both": ["one", "two"]}.items():
        if refused(first, second, which):
            with pytest.raises(pet.InputError):
                pet.merge(own, names)
            assert own.adapter_state == state and registry(own).merged_names == ()
        else:
            pet.merge(own, names)
            np.testing.assert_allclose(own(x).asnumpy(), before, rtol=0, atol=1e-5 * np.abs(before).max())
            pet.unmerge(own)
        np.testing.assert_array_equal(own(x).asnumpy(), before)


def test_what_is_not_selected_is_merged_in_front(model):
    add(model, "a", lora(), 1)
    add(model, "s", ia3(feedforward=[]), 2)
    pet.set_adapter(model, ["a", "s"])
    scaled = logits(model)
    for names in (["a", "s"], ["s", "a"]):
        pet.set_adapter(model, "s")
        pet.merge(model, names)
        np.testing.assert_allclose(logits(model), scaled, rtol=0, atol=1e-4)
        pet.unmerge(model)


def test_the_order_of_activation_counts_where_a_method_scales(model):
    add(model, "l", lora(), 1)
    add(model, "s", ia3(feedforward=[]), 2)
    found = {}
    for order in ("ls", "sl"):
        pet.set_adapter(model, list(order))
        active_logits = logits(model)
        pet.set_adapter(model, [])
        for name in order:  # merging what is not active comes to the same as activating it in this order
            pet.merge(model, name)
        np.testing.assert_allclose(logits(model), active_logits, rtol=0, atol=2e-5 * np.abs(active_logits).max())
        pet.unmerge(model)
        found[order] = active_logits
    assert np.abs(found["ls"] - found["sl"]).max() > 0.1


def test_the_reason_names_both_adapters_and_the_cell(model):
    add(model, "l", lora(), 1)
    add(model, "s", ia3(feedforward=[]), 2)
    pet.set_adapter(model, ["l", "s"])
    with pytest.raises(pet.InputError, match=r"'l' is active at model\.layers\.0\..*_proj.*'s'.*merge both"):
        pet.merge(model, "s")


def whole(**settings):
    return lora(targets=["q_proj"], modules_to_save=["lm_head"], **settings)


@pytest.mark.parametrize("order", [["w", "o"], ["o", "w"]])
@pytest.mark.parametrize(
    ("other", "right"),
    [
        (lambda: lora(targets=["lm_head"]), {"w", "wo"}),
        (lambda: lora(targets=["lm_head"], use_dora=True), {"w"}),
        (lambda: ia3(targets=["lm_head"], feedforward=[]), {"w", "wo"}),
        (lambda: lora(trainable_tokens={"lm_head": [5, 9]}), {"w"}),
    ],
    ids=["lora", "dora", "ia3", "tokens"],
)
def test_a_head_that_one_adapter_replaces_and_another_adapts(model, other, right, order):
    add(model, "w", whole(), 1)
    add(model, "o", other(), 2)
    pet.set_adapter(model, order)
    before = logits(model)
    for names in ("w", "o", "wo"):
        if names in right:
            pet.merge(model, list(names))
            np.testing.assert_allclose(logits(model), before, rtol=0, atol=2e-5 * np.abs(before).max())
            pet.unmerge(model)
        else:
            with pytest.raises(pet.InputError, match="lm_head"):
                pet.merge(model, list(names))
        np.testing.assert_array_equal(logits(model), before)


def test_a_tied_head_keeps_the_copy_that_an_active_adapter_trains(fixtures):
    model = pet.AutoModel.from_pretrained(fixtures / "gpt2")
    add(model, "e", lora(targets=["wte"]), 1)
    add(model, "w", lora(targets=["c_attn"], modules_to_save=["lm_head"]), 2)
    pet.set_adapter(model, ["e", "w"])
    before = logits(model)
    pet.merge(model, "e")
    np.testing.assert_allclose(logits(model), before, rtol=0, atol=2e-5 * np.abs(before).max())
    pet.unmerge(model)
    np.testing.assert_array_equal(logits(model), before)


def test_biases_that_one_adapter_replaces_and_another_scales(fixtures):
    model = pet.AutoModel.from_pretrained(fixtures / "gpt2")
    add(model, "b", pet.BitFitConfig(add_missing=False), 1)
    add(model, "s", pet.IA3Config(targets=["c_attn"], feedforward=[]), 2)
    pet.set_adapter(model, ["b", "s"])
    before = logits(model)
    pet.merge(model)
    np.testing.assert_allclose(logits(model), before, rtol=0, atol=2e-5 * np.abs(before).max())
    pet.unmerge(model)
    with pytest.raises(pet.InputError, match=r"'b'.*c_attn\.bias"):
        pet.merge(model, "s")
    np.testing.assert_array_equal(logits(model), before)


# Rows of a batch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["a"], ["a", "__base__"], ["a"] * 4, ["a"] * 6, []], ids=len)
def test_one_adapter_name_per_row(model, names):
    add(model, "a", lora(), 1)
    with pytest.raises(pet.InputError, match="adapter_names"), pet.adapter_names(model, names):
        logits(model)
    with pytest.raises(pet.InputError, match="adapter_names"), pet.adapter_names(model, names):
        model.generate(IDS, max_new_tokens=1)
    assert logits(model).shape == (3, 6, 128)


def test_beams_take_their_rows_adapter(model):
    def written():
        return model.generate(IDS, max_new_tokens=3, num_beams=2, eos_token_id=None, use_cache=False)

    add(model, "a", lora(), 1)
    bare = written()
    pet.set_adapter(model, "a")
    adapted = written()
    assert (bare != adapted).any(1).all()
    with pet.adapter_names(model, ["a", "__base__", "a"]):
        np.testing.assert_array_equal(written(), np.stack([adapted[0], bare[1], adapted[2]]))


class Own(nn.Cell):
    """A user's own cell, with names that begin as those of adapters do."""

    def __init__(self):
        super().__init__()
        self.adapter_first = nn.Dense(6, 5)
        self.adapter_list = nn.CellList([nn.Dense(5, 5)])
        self.last = nn.Dense(5, 4)

    def construct(self, x):
        return self.last(self.adapter_list[0](self.adapter_first(x)))


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_rows_of_a_cell_of_ones_own_are_counted_too(mode):
    own, x = Own(), ms.Tensor(np.ones((4, 6), np.float32))
    bare = own(x).asnumpy()
    pet.apply_lora(own, rank=2, targets=["last"])
    randomise(own, "default")
    adapted = own(x).asnumpy()
    ms.set_context(mode=mode)
    try:
        with pytest.raises(pet.InputError, match="2 adapter names, 4 rows"), pet.adapter_names(own, ["default"] * 2):
            own(x)
        with pet.adapter_names(own, ["default", "__base__"] * 2):
            np.testing.assert_allclose(own(x).asnumpy(), np.where([[1], [0]] * 2, adapted, bare), rtol=0, atol=1e-5)
        np.testing.assert_allclose(own(x).asnumpy(), adapted, rtol=0, atol=1e-5)
        assert own(x[:3]).shape == (3, 4)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_mixed_batches_nest(model):
    bare = logits(model)
    add(model, "a", lora(), 1)
    add(model, "b", lora(), 2)
    with pet.adapter_names(model, ["a", "b", "__base__"]):
        outer = logits(model)
        with pet.adapter_names(model, ["__base__", "a", "b"]):
            inner = logits(model)
            with pet.disable_adapters(model):
                np.testing.assert_array_equal(logits(model), bare)
            np.testing.assert_array_equal(logits(model), inner)
        np.testing.assert_array_equal(logits(model), outer)
        for call in (lambda: pet.delete_adapter(model, "b"), lambda: pet.merge(model, "a")):
            with pytest.raises(pet.InputError, match="adapter_names"):
                call()
        np.testing.assert_array_equal(logits(model), outer)
    assert np.abs(inner - outer).max() > 1e-3
    np.testing.assert_array_equal(logits(model), bare)


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
