"""Networks that nobody here wrote: methods, training by MindSpore's own means, files, graphs around them."""

from __future__ import annotations

import copy
import types

import mindspore as ms
import numpy as np
import pytest
from adapted_networks import randomise, weights
from foreign_networks import NETWORKS, Small, Squared, Text, Vision, numbers
from mindspore import Tensor, amp, nn, ops

import pet
from adapters.cells import weight_of
from adapters.registry import registry
from model_zoo.graph import api

METHODS = {
    "lora": lambda targets: pet.LoRAConfig(rank=2, alpha=3, targets=targets),
    "dora": lambda targets: pet.LoRAConfig(rank=2, targets=targets, use_dora=True),
    "rslora": lambda targets: pet.LoRAConfig(rank=2, targets=targets, use_rslora=True),
    "ia3": lambda targets: pet.IA3Config(targets="all-linear"),
    "adapter": lambda targets: pet.BottleneckConfig(size=2, targets="all-linear"),
    "low_rank_adapter": lambda targets: pet.LowRankAdapterConfig(reduction_factor=2, targets="all-linear"),
    "bitfit": lambda targets: pet.BitFitConfig(),
}


def checkpoint(network) -> dict[str, ms.Parameter]:
    return {name: ms.Parameter(Tensor(array), name=name) for name, array in weights(network).items()}


def adapted(make, method: str = "lora"):
    network = make()
    return pet.apply(network, METHODS[method](list(make.targets))), make.example()


def loaded(make, base):
    """A network with the weights of another; nothing of the two is left over."""
    network = make()
    assert ms.load_param_into_net(network, base) == ([], [])
    return network


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", NETWORKS)
def test_methods(kind, method, tmp_path):
    plain = NETWORKS[kind]()
    names, base, x = list(weights(plain)), checkpoint(plain), plain.example()
    before = plain(x).asnumpy()
    network, _ = adapted(NETWORKS[kind], method)
    with pet.base_loading(network):  # beneath the adapters
        missing, unused = ms.load_param_into_net(network, base)
    assert unused == [] and not set(missing) & set(names)
    np.testing.assert_array_equal(network(x).asnumpy(), before)
    randomise(network)
    changed = network(x).asnumpy()
    assert np.abs(changed - before).max() > 1e-4
    try:
        pet.merge(network)
        np.testing.assert_allclose(network(x).asnumpy(), changed, atol=1e-5)
        pet.unmerge(network)
    except pet.InputError as error:
        assert method in ("adapter", "low_rank_adapter", "bitfit") and "cannot be merged" in str(error)
    np.testing.assert_array_equal(network(x).asnumpy(), changed)
    pet.save_adapter(network, tmp_path)
    fresh = loaded(NETWORKS[kind], base)
    pet.load_adapter(fresh, tmp_path)
    np.testing.assert_array_equal(fresh(x).asnumpy(), changed)
    pet.delete_adapter(network, "default")
    np.testing.assert_array_equal(network(x).asnumpy(), before)
    assert list(weights(network)) == names and len(network.trainable_params()) == len(plain.trainable_params())


@pytest.mark.parametrize("make", NETWORKS.values())
def test_training(make):
    check_training(make)


def test_training_in_graphs(mode):
    check_training(Small)


def check_training(make):
    """The gradients are those that the merged weight's gradient gives: dB = s·dW·Aᵀ, dA = s·Bᵀ·dW. Steps of MindSpore's
    own change the adapter alone."""
    network, x = adapted(make)
    randomise(network)
    adapter, loss = registry(network).get("default"), Squared(network)
    tensors = adapter.tensors()
    found = dict(zip(tensors, ms.grad(loss, None, ms.ParameterTuple(tensors.values()))(x), strict=True))
    pet.merge(network)
    merged = ms.ParameterTuple([weight_of(site.cell) for site in adapter.sites.values()])
    for parameter in merged:
        parameter.requires_grad = True
    gradients = ms.grad(Squared(network), None, merged)(x)
    for parameter in merged:
        parameter.requires_grad = False
    pet.unmerge(network)
    for site, gradient in zip(adapter.sites.values(), gradients, strict=True):
        b, a = adapter.modules[site.path].factors()  # the scale is in B
        scale, dw = adapter.modules[site.path].scale, gradient.asnumpy().astype(np.float64)
        dw = dw.T if site.transposed or site.kind == "embedding" else dw.reshape(dw.shape[0], -1)
        first, second = [key for key in tensors if key.startswith(f"{site.path}.lora_")]
        for key, expected in ((first, b.T @ dw), (second, scale * dw @ a.T)):
            largest = np.abs(expected).max()
            assert largest > 1e-5, key
            gradient = found[key].asnumpy().reshape(expected.shape)
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5 * max(largest, 1.0), err_msg=key)
    before = weights(network)
    step = nn.TrainOneStepCell(loss, nn.Adam(pet.trainable_parameters(network), 1e-2)).set_train()
    losses = [float(step(x)) for _ in range(4)]
    assert losses[-1] < losses[0]
    for name, array in weights(network).items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_model_train(mode):
    from mindspore.dataset import GeneratorDataset
    from mindspore.train import Model

    network, x = adapted(Small)
    rows = [(row, np.ones(4, np.float32)) for row in x.asnumpy()]
    data = GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(3)
    model = Model(network, nn.MSELoss(), nn.Adam(pet.trainable_parameters(network), 1e-2), metrics={"loss"})
    before = model.eval(data, dataset_sink_mode=False)["loss"]
    model.train(2, data, dataset_sink_mode=False)
    assert model.eval(data, dataset_sink_mode=False)["loss"] < before


def test_a_jitted_step_with_a_loss_scale():
    network, x = adapted(Small)
    optimizer, scaler = nn.Adam(pet.trainable_parameters(network), 1e-2), amp.DynamicLossScaler(1024, 2, 10)

    def scaled(x):
        return scaler.scale(ops.square(network(x) - 1.0).mean())

    differentiate = ms.value_and_grad(scaled, None, optimizer.parameters)

    @ms.jit
    def step(x):
        loss, gradients = differentiate(x)
        optimizer(scaler.unscale(gradients))
        return scaler.unscale(loss)

    losses = [float(step(x)) for _ in range(3)]
    assert losses[-1] < losses[0]


class Around(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, x):
        return self.network(x) * 1.0


def test_graphs_around_a_network_follow_its_adapters(mode):
    network, x = adapted(Small)
    before = loaded(Small, checkpoint(network))(x).asnumpy()
    randomise(network)
    changed, cell = network(x).asnumpy(), Around(network)

    @ms.jit
    def function(x):
        return network(x) * 1.0

    for graph in (cell, function):
        for _ in range(2):  # in the second round no state is new
            np.testing.assert_allclose(graph(x).asnumpy(), changed, atol=1e-6)
            with pet.disable_adapters(network):
                np.testing.assert_allclose(graph(x).asnumpy(), before, atol=1e-6)
        pet.merge(network)  # and not counted twice
        np.testing.assert_allclose(graph(x).asnumpy(), changed, atol=1e-5)
        pet.unmerge(network)


def test_graphs_of_a_state_are_kept_for_it():
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        network, x = adapted(Small)
        cell = Around(network)
        cell(x)
        names = set(cell.compile_cache)
        with pet.disable_adapters(network):
            assert names and not cell.compile_cache
        assert cell.compile_cache == names
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_graphs_with_an_adapter_that_is_gone_are_freed():
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        network, x = Small(), Small.example()
        cell = Around(network)

        @ms.jit
        def function(x):
            return network(x) * 1.0

        bare, kept = network(x).asnumpy(), set(network.compile_cache)
        for _ in range(2):
            pet.apply_lora(network, rank=2, targets=list(Small.targets))
            randomise(network)
            changed = [run(x).asnumpy() for run in (network, cell, function)]
            names = network.compile_cache | cell.compile_cache
            assert all(api._cell_graph_executor.has_compiled(name) for name in names | kept) and len(names) == 2
            pet.delete_adapter(network, "default")
            assert not any(api._cell_graph_executor.has_compiled(name) for name in names)
            assert all(api._cell_graph_executor.has_compiled(name) for name in kept)
            for run, adapted_output in zip((network, cell, function), changed, strict=True):
                np.testing.assert_allclose(run(x).asnumpy(), bare, atol=1e-6)
                assert np.abs(adapted_output - bare).max() > 1e-4
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_what_stands_in_for_weights_gives_way_while_a_base_is_loaded():
    """BitFit's and modules_to_save's copies stand in the place of the base's; DoRA's norms are the base's."""
    other = checkpoint(Vision())
    expected = loaded(Vision, other)
    for config in (pet.BitFitConfig(), pet.LoRAConfig(targets=["qkv"], use_dora=True, modules_to_save=["head"])):
        network = pet.apply(Vision(), config)
        with pet.base_loading(network):
            assert ms.load_param_into_net(network, other)[1] == []
        np.testing.assert_array_equal(network(Vision.example()).asnumpy(), expected(Vision.example()).asnumpy())


@pytest.mark.parametrize("apply", (pet.apply_lora, pet.apply_adapter))
def test_precision_of_the_network_is_not_the_adapters(apply, mode):
    network, x = Small(), Small.example()
    plain = network(x).asnumpy()
    apply(network, targets="all-linear", dropout=0.1)
    mixed = amp.auto_mixed_precision(network, "O2", ms.float16)
    np.testing.assert_allclose(mixed(x).asnumpy(), plain, atol=2e-2)
    trained = pet.trainable_parameters(mixed)
    step = nn.TrainOneStepCell(Squared(mixed), nn.Adam(trained, 1e-2)).set_train()
    losses = [float(step(x)) for _ in range(3)]
    assert np.isfinite(losses).all() and all(parameter.dtype == ms.float32 for parameter in trained)


def test_checkpoints_and_export(tmp_path):
    network, x = adapted(Small)
    randomise(network)
    expected = network(x).asnumpy()
    ms.save_checkpoint(network, str(tmp_path / "all.ckpt"))
    again, _ = adapted(Small)
    assert ms.load_param_into_net(again, ms.load_checkpoint(str(tmp_path / "all.ckpt"))) == ([], [])
    np.testing.assert_array_equal(again(x).asnumpy(), expected)
    ms.export(network, x, file_name=str(tmp_path / "network"), file_format="MINDIR")
    exported = nn.GraphCell(ms.load(str(tmp_path / "network.mindir")))
    np.testing.assert_allclose(exported(x).asnumpy(), expected, atol=1e-5)
    pet.merge_and_unload(network)
    plain = loaded(Small, checkpoint(network))
    np.testing.assert_allclose(plain(x).asnumpy(), expected, atol=1e-5)


def test_this_librarys_trainer_takes_tokens():
    network, x = adapted(Text)
    batches = [{"input_ids": x.asnumpy()}]
    settings = {"steps": 3, "batch_size": 2, "learning_rate": 0.01, "warmup": 0, "compiled": False}
    trainer = pet.Trainer(network, batches, **settings)
    trainer.train()
    assert trainer.history[-1]["loss"] < trainer.history[0]["loss"]

    def forward_step(data, model):
        return ops.square(model(data["input_ids"])).mean()

    trainer = pet.Trainer(network, batches, forward_step=forward_step, **settings)
    trainer.train()
    assert trainer.history[-1]["loss"] < trainer.history[0]["loss"]
    with pytest.raises(pet.InputError, match="batch 0 has no input_ids"):
        pet.Trainer(network, [{"pixels": numbers(1, 3).asnumpy()}], steps=1)


class Pair(Text):
    """As other libraries' language models are: with a configuration of their own, and several outputs."""

    config = types.SimpleNamespace(vocab_size=20)

    def construct(self, ids):
        return super().construct(ids), ids


def test_this_librarys_trainer_says_what_it_takes():
    network, x = adapted(Pair)
    batches = [{"input_ids": x.asnumpy()}]
    with pytest.raises(TypeError, match=r"output is no tensor of logits .*forward_step=function takes others"):
        pet.Trainer(network, batches, steps=1, batch_size=2, compiled=False).train()
    trainer = pet.Trainer(
        *(network, batches), steps=1, batch_size=2, forward_step=lambda data, model: model(data["input_ids"])[0].mean()
    )
    trainer.train()


@pytest.mark.parametrize("kind", [list, tuple, lambda cells: dict(enumerate(cells)), nn.CellList])
def test_cells_that_mindspore_does_not_see_are_named(kind, caplog):
    class Inner(nn.Cell):
        def __init__(self):
            super().__init__()
            self.blocks, self.sizes = kind([nn.Dense(3, 3), nn.Dense(3, 3)]), [3, 3]

    network = nn.SequentialCell(nn.Dense(3, 3), Inner())
    network[1].again = [network[0]]  # which is seen where it stands
    pet.apply_lora(network, targets="all-linear", rank=1)
    pet.add_adapter(network, pet.LoRAConfig(rank=2, targets="all-linear"), "b")
    told = [line.getMessage() for line in caplog.records if "does not see" in line.getMessage()]
    whole = kind is nn.CellList
    assert len(pet.trainable_parameters(network)) == (6 if whole else 2)
    assert [line.partition(":")[0] for line in told] == ([] if whole else ["1.blocks"])
    assert whole or "use nn.CellList" in told[0]


def test_adapters_on_parts_of_a_network():
    class Two(nn.Cell):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = Vision(), Vision()

        def construct(self, x):
            return self.encoder(x) + self.decoder(x)

    network = Two()
    for part in (network.encoder, network.decoder):
        pet.apply_lora(part, rank=2, targets=["head"])
    names = [one.name for part in (network.encoder, network.decoder) for one in pet.trainable_parameters(part)]
    assert names == [f"{part}.head.lora_{factor}.weight" for part in ("encoder", "decoder") for factor in "AB"]


def test_a_network_that_becomes_a_part_is_given_back_as_it_was():
    network = pet.apply_lora(Vision(), rank=2, targets=["head"])
    Around(network)  # which renames its parameters
    pet.delete_adapter(network, "default")
    assert all(parameter.requires_grad for parameter in network.get_parameters())


def test_a_copy_has_adapters_of_its_own():
    network, x = adapted(Small)
    randomise(network)
    expected, copied = network(x).asnumpy(), copy.deepcopy(network)
    pet.merge_and_unload(copied)
    np.testing.assert_allclose(copied(x).asnumpy(), expected, atol=1e-5)
    assert pet.list_adapters(network) == ["default"] and pet.list_adapters(copied) == []
    np.testing.assert_array_equal(network(x).asnumpy(), expected)
