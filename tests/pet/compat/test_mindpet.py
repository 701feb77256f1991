"""MindPet's layers, put in by hand, its files, and its names under its module paths."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from importlib import import_module

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.dataset import GeneratorDataset
from mindspore.train import CheckpointConfig, Model

import pet
from model_zoo.errors import InputError
from pet.compat import mindpet

ADAPTER = "mindpet_delta_adapter"
LOW_RANK = "mindpet_delta_low_rank_adapter"


def x(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@contextmanager
def in_mode(mode):
    """MindSpore compiles, or does not."""
    before = ms.get_context("mode")
    ms.set_context(mode=mode)
    try:
        yield
    finally:
        ms.set_context(mode=before)


class Network(nn.Cell):
    """One of each layer."""

    def __init__(self):
        super().__init__()
        self.query = mindpet.LoRADense(6, 5, lora_rank=2, lora_alpha=4)
        self.dense = mindpet.AdapterDense(5, 4, bottleneck_size=3)
        self.thin = mindpet.LowRankAdapterDense(4, 4, reduction_factor=2, low_rank_size=1)
        self.prefix = mindpet.PrefixLayer(4, 2, num_heads=2, hidden_dim=8, embed_dim=6, mid_dim=5, dropout_rate=0.0)
        self.encoder = mindpet.PrefixEncoder(3, 2, 4, 5, prefix_projection=True, projection_dim=6)
        self.head = nn.Dense(4, 2)

    def construct(self, x):
        return ops.relu(self.head(self.thin(self.dense(self.query(x)))))


# (name in a network, shape) of what MindPet 1.0 saves of such a network
THEIRS = {
    "query.weight": (5, 6),
    "query.bias": (5,),
    "query.mindpet_delta_lora_a": (2, 6),
    "query.mindpet_delta_lora_b": (5, 2),
    "dense.weight": (4, 5),
    "dense.bias": (4,),
    f"dense.{ADAPTER}.{ADAPTER}_block.{ADAPTER}_down_sampler.weight": (3, 4),
    f"dense.{ADAPTER}.{ADAPTER}_block.{ADAPTER}_down_sampler.bias": (3,),
    f"dense.{ADAPTER}.{ADAPTER}_block.{ADAPTER}_up_sampler.weight": (4, 3),
    f"dense.{ADAPTER}.{ADAPTER}_block.{ADAPTER}_up_sampler.bias": (4,),
    "thin.weight": (4, 4),
    "thin.bias": (4,),
    f"thin.{LOW_RANK}.{LOW_RANK}_down_sampler.{LOW_RANK}_weight_left": (4, 1),
    f"thin.{LOW_RANK}.{LOW_RANK}_down_sampler.{LOW_RANK}_weight_right": (1, 2),
    f"thin.{LOW_RANK}.{LOW_RANK}_down_sampler.bias": (2,),
    f"thin.{LOW_RANK}.{LOW_RANK}_up_sampler.{LOW_RANK}_weight_left": (2, 1),
    f"thin.{LOW_RANK}.{LOW_RANK}_up_sampler.{LOW_RANK}_weight_right": (1, 4),
    f"thin.{LOW_RANK}.{LOW_RANK}_up_sampler.bias": (4,),
    "prefix.input_tokens": (4,),
    "prefix.mindpet_delta_prefixtuning_wte.embedding_table": (4, 6),
    "prefix.mindpet_delta_prefixtuning_control_trans.0.weight": (5, 6),
    "prefix.mindpet_delta_prefixtuning_control_trans.0.bias": (5,),
    "prefix.mindpet_delta_prefixtuning_control_trans.2.weight": (8, 5),
    "prefix.mindpet_delta_prefixtuning_control_trans.2.bias": (8,),
    "encoder.mindpet_delta_ptuning2_prefix": (3,),
    "encoder.mindpet_delta_ptuning2_embedding.embedding_table": (3, 80),
    "encoder.mindpet_delta_ptuning2_dense_in.weight": (6, 80),
    "encoder.mindpet_delta_ptuning2_dense_in.bias": (6,),
    "encoder.mindpet_delta_ptuning2_dense_out.weight": (80, 6),
    "encoder.mindpet_delta_ptuning2_dense_out.bias": (80,),
    "head.weight": (2, 4),
    "head.bias": (2,),
}
OURS_ALONE = {f"prefix.mindpet_delta_prefixtuning_value.{part}" for part in ("weight", "bias")}


def test_files_of_mindpet_go_in_and_out_bit_for_bit(tmp_path):
    random = np.random.default_rng(1)
    arrays = {name: random.normal(size=shape).astype(np.float32) for name, shape in THEIRS.items()}
    arrays["prefix.input_tokens"] = np.arange(4, dtype=np.int32)
    arrays["encoder.mindpet_delta_ptuning2_prefix"] = np.arange(3)
    ms.save_checkpoint([{"name": name, "data": Tensor(array)} for name, array in arrays.items()], f"{tmp_path}/a.ckpt")
    network = Network()
    missing, left = ms.load_param_into_net(network, ms.load_checkpoint(f"{tmp_path}/a.ckpt"))
    assert set(missing) == OURS_ALONE and not left
    ms.save_checkpoint(network, f"{tmp_path}/b.ckpt")
    found = {name: parameter.asnumpy() for name, parameter in ms.load_checkpoint(f"{tmp_path}/b.ckpt").items()}
    assert set(found) - set(arrays) == OURS_ALONE
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name
    # MindPet's one projection: values are keys
    stem = "prefix.mindpet_delta_prefixtuning"
    inner = np.tanh(
        arrays[f"{stem}_wte.embedding_table"].astype(np.float64) @ arrays[f"{stem}_control_trans.0.weight"].T
        + arrays[f"{stem}_control_trans.0.bias"]
    )
    keys = inner @ arrays[f"{stem}_control_trans.2.weight"].T + arrays[f"{stem}_control_trans.2.bias"]
    assert np.allclose(network.prefix.past_key_reparam.asnumpy(), keys, atol=1e-5)
    assert np.array_equal(network.prefix.past_key_reparam.asnumpy(), network.prefix.past_value_reparam.asnumpy())


def test_names_of_a_layer_alone():
    names = [parameter.name for parameter in mindpet.LoRADense(6, 5, lora_rank=2, lora_alpha=4).get_parameters()]
    assert names == ["weight", "bias", "mindpet_delta_lora_A", "mindpet_delta_lora_B"]


@pytest.mark.parametrize("mode", (ms.PYNATIVE_MODE, ms.GRAPH_MODE))
@pytest.mark.parametrize(
    "make",
    [
        lambda: mindpet.LoRADense(6, 5, lora_rank=2, lora_alpha=4, lora_dropout=0.5),
        lambda: mindpet.AdapterDense(6, 5, bottleneck_size=3, activation="relu"),
        lambda: mindpet.LowRankAdapterDense(6, 5, reduction_factor=2, low_rank_size=1, non_linearity="fast_gelu"),
    ],
)
def test_a_fresh_layer_is_its_dense(make, mode):
    layer, data = make(), x(2, 3, 6)
    plain = nn.Dense(6, 5, activation="relu" if isinstance(layer, mindpet.AdapterDense) else None)
    ms.load_param_into_net(plain, {"weight": layer.weight, "bias": layer.bias})
    with in_mode(mode):
        assert np.array_equal(layer(data).asnumpy(), plain(data).asnumpy())
    gradients = ms.grad(lambda data: layer(data).sum(), None, layer.trainable_params())(data)
    assert any(np.abs(gradient.asnumpy()).max() > 0 for gradient in gradients[2:])


def test_lora_by_numpy():
    layer, data = mindpet.LoRADense(6, 5, lora_rank=2, lora_alpha=8, lora_b_init=x(5, 2, seed=1)), x(4, 6)
    a, b = layer.mindpet_delta_lora_a.asnumpy(), layer.mindpet_delta_lora_b.asnumpy()
    expected = data.asnumpy() @ (layer.weight.asnumpy() + 4.0 * b @ a).T + layer.bias.asnumpy()
    assert np.allclose(layer(data).asnumpy(), expected, atol=1e-5)
    half = mindpet.LoRADense(6, 5, 2, 8, compute_dtype=ms.float16, param_init_type=ms.float16)
    assert half.mindpet_delta_lora_a.dtype == ms.float16 and half(data).dtype == ms.float32


def test_low_rank_adapter_by_numpy():
    layer, data = mindpet.LowRankAdapterLayer(4, 2, low_rank_size=1, non_linearity="relu"), x(3, 4)
    up = layer.mindpet_delta_low_rank_adapter_up_sampler
    up.mindpet_delta_low_rank_adapter_weight_right.set_data(x(1, 4, seed=2))
    (dl, dr, db), (ul, ur, ub) = (
        [parameter.asnumpy() for parameter in (
            cell.mindpet_delta_low_rank_adapter_weight_left, cell.mindpet_delta_low_rank_adapter_weight_right, cell.bias
        )]
        for cell in (layer.mindpet_delta_low_rank_adapter_down_sampler, up)
    )  # fmt: skip
    expected = data.asnumpy() + np.maximum(data.asnumpy() @ dl @ dr + db, 0) @ ul @ ur + ub
    assert np.allclose(layer(data).asnumpy(), expected, atol=1e-5)


def test_prefix_keys_and_values_train_apart():
    layer = mindpet.PrefixLayer(
        prefix_token_num=3, batch_size=1, num_heads=2, hidden_dim=8, mid_dim=4, dropout_rate=0.0
    )
    key, value = x(2, 2, 5, 4), x(2, 2, 5, 4, seed=1)
    keys, values = layer(key, value)
    assert keys.shape == values.shape == (2, 2, 8, 4)
    assert np.array_equal(keys[:, :, 3:].asnumpy(), key.asnumpy())
    assert np.array_equal(values[:, :, 3:].asnumpy(), value.asnumpy())
    first = layer.past_key_reparam.asnumpy().reshape(3, 2, 4).transpose(1, 0, 2)
    assert np.array_equal(keys[1, :, :3].asnumpy(), first)

    def only_values(key, value):
        return (layer(key, value)[1] ** 2).sum()

    parameters = layer.trainable_params()
    gradients = ms.grad(only_values, None, parameters)(key, value)
    assert all(np.abs(gradient.asnumpy()).max() > 0 for gradient in gradients)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.set_data(parameter - gradient)
    keys, values = layer(key, value)
    assert not np.allclose(keys[:, :, :3].asnumpy(), values[:, :, :3].asnumpy())


@pytest.mark.parametrize("projection", [False, True])
def test_prefix_encoder(projection):
    layer = mindpet.PrefixEncoder(3, 2, 4, 5, prefix_projection=projection, projection_dim=6, dropout_prob=0.0)
    parts = layer(7)
    assert [part.shape for part in parts] == [(2, 7, 4, 3, 5)] * 2
    whole = layer.mindpet_delta_ptuning2_embedding.embedding_table
    if projection:
        whole = layer.mindpet_delta_ptuning2_trans(whole)
    assert np.array_equal(parts[1][0, 6].asnumpy(), whole.asnumpy().reshape(3, 4, 4, 5)[:, 2].transpose(1, 0, 2))


def trained(network) -> set[str]:
    return {parameter.name for parameter in network.trainable_params()}


def test_freezing_by_mode():
    network = Network()
    mindpet.freeze_delta(model=network, mode="LoRA")
    assert trained(network) == {"query.mindpet_delta_lora_a", "query.mindpet_delta_lora_b"}
    mindpet.freeze_delta(network, "adapter", exclude=["head.*"])
    assert {name.partition(".")[0] for name in trained(network)} == {"dense", "head"}
    for mode in ("prefix", "prefixtuning"):
        mindpet.freeze_delta(network, mode)
        expected = {name for name in (*THEIRS, *OURS_ALONE) if name.startswith("prefix.mindpet")}
        assert trained(network) == expected
    before = trained(network)
    with pytest.raises(InputError, match="no-such"):
        mindpet.freeze_delta(network, "lora", include=["no-such*"])
    with pytest.raises(InputError, match="no ia3 parameters"):
        mindpet.freeze_delta(network, "ia3")
    assert trained(network) == before


class Named(nn.Cell):
    """A cell of a plain kind, called as MindPet calls its own."""

    def __init__(self):
        super().__init__()
        self.mindpet_delta_lora, self.dense = nn.Dense(3, 3), nn.Dense(3, 3)


def test_cells_are_seen_by_their_names():
    network = Named()
    mindpet.freeze_delta(network, "lora")
    assert trained(network) == {"mindpet_delta_lora.weight", "mindpet_delta_lora.bias"}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: mindpet.freeze_modules(5, ["*"]), TypeError),
        (lambda: mindpet.freeze_modules(Named(), "*"), TypeError),
        (lambda: mindpet.freeze_modules(Named()), ValueError),
        (lambda: mindpet.freeze_delta(Named(), ""), ValueError),
        (lambda: mindpet.freeze_from_config(Named(), None), TypeError),
        (lambda: mindpet.freeze_from_config(Named(), ""), ValueError),
        (lambda: mindpet.LoRADense(2, 2, lora_rank=1.5, lora_alpha=2), TypeError),
        (lambda: mindpet.LoRADense(2, 2, lora_rank=0, lora_alpha=2), ValueError),
        (lambda: mindpet.LoRADense(2, 2, lora_rank=1, lora_alpha=True), TypeError),
        (lambda: mindpet.LoRADense(2, 2, 1, 2, lora_dropout=1.0), ValueError),
        (lambda: mindpet.LoRADense(2, 2, 1, 2, lora_a_init=x(2, 2)), ValueError),
        (lambda: mindpet.LoRADense(2, 2, 1, 2, compute_dtype=ms.float64), TypeError),
        (lambda: mindpet.AdapterLayer(4, 2, non_linearity="gelo"), TypeError),
        (lambda: mindpet.LowRankAdapterLayer(4, reduction_factor=8), ValueError),
        (lambda: mindpet.LowRankAdapterLayer(4, 2, low_rank_w_init=1), TypeError),
        (lambda: mindpet.PrefixLayer(3, 2, 2, 8), ValueError),
        (lambda: mindpet.AdapterLayer(4, 2).shard(strategy_residual_add=1), TypeError),
        (lambda: mindpet.AdapterLayer(4, 2, "logsoftmax").shard(), ValueError),
    ],
)
def test_arguments_are_checked_as_there(call, error):
    """By MindPet's kinds of errors, of which a script shows one line."""
    with pytest.raises(InputError) as caught:
        call()
    assert isinstance(caught.value, error)


def test_freezing_by_a_file(tmp_path):
    from pet.compat.mindpet.utils.exceptions import ModelConfigFreezeInfoError, ReadYamlFileError

    path = tmp_path / "freeze.yaml"
    path.write_text("freeze: {include: ['dense*']}")
    network = Named()
    mindpet.freeze_from_config(network, config_path=str(path))
    assert trained(network) == {"mindpet_delta_lora.weight", "mindpet_delta_lora.bias"}
    path.write_text("other: 1")
    with pytest.raises(ModelConfigFreezeInfoError, match="freeze"):
        mindpet.freeze_from_config(network, str(path))
    with pytest.raises(ReadYamlFileError):
        mindpet.freeze_from_config(network, str(tmp_path / "none.yaml"))


def test_checkpoints_are_mindspores(tmp_path):
    from pet.compat.mindpet.utils.exceptions import AbsolutePathError, LinkPathError

    network = Named()
    network.construct = lambda x: network.mindpet_delta_lora(network.dense(x))
    mindpet.freeze_delta(network, "lora")
    rows = [(np.ones(3, np.float32), np.zeros(3, np.float32))] * 6
    data = GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(2)
    model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 1e-2))
    config = CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=2)
    saved = mindpet.TrainableParamsCheckPoint(directory=str(tmp_path), prefix="delta", config=config)
    with in_mode(ms.PYNATIVE_MODE):
        model.train(1, data, callbacks=[saved], dataset_sink_mode=False)
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["delta-1_2.ckpt", "delta-1_3.ckpt"]
    found = ms.load_checkpoint(f"{tmp_path}/delta-1_3.ckpt")
    assert set(found) == trained(network)
    for parameter in network.trainable_params():
        assert np.array_equal(found[parameter.name].asnumpy(), parameter.asnumpy())
    with pytest.raises(AbsolutePathError):
        mindpet.TrainableParamsCheckPoint("relative")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(LinkPathError):
        mindpet.TrainableParamsCheckPoint(f"{tmp_path}/link")


def test_checkpoints_from_this_librarys_trainer(tmp_path, fixtures):
    import pet
    from pet.train.trainer import Trainer

    model = pet.apply_bitfit(pet.AutoModel.from_pretrained(str(fixtures / "gpt2")))
    rows = np.random.default_rng(0).integers(3, 120, (2, 8)).astype(np.int32)
    config = CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=2)
    saved = mindpet.TrainableParamsCheckPoint(str(tmp_path), "bias", config)
    settings = {"steps": 3, "batch_size": 2, "learning_rate": 0.01, "compiled": False}
    Trainer(model, [{"input_ids": rows}], callbacks=[saved], **settings).train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bias-step-000002.ckpt", "bias-step-000003.ckpt"]
    last = ms.load_checkpoint(f"{tmp_path}/bias-step-000003.ckpt")
    for parameter in pet.trainable_parameters(model):
        assert np.array_equal(last[parameter.name].asnumpy(), parameter.asnumpy())


def test_shard_is_accepted_and_said_once(caplog):
    layer = mindpet.LoRADense(4, 4, lora_rank=2, lora_alpha=4)
    with caplog.at_level(logging.WARNING, "pet"):
        for _ in range(2):
            layer.shard(strategy_org_dense_matmul=((2, 1), (4, 1)), strategy_activation=None)
            layer.shard(((2, 1), (4, 1)), ((2, 4), (4,)))
    assert [record.message.partition(":")[0] for record in caplog.records] == ["LoRADense.shard"]


def test_r_drop_by_its_formula():
    random = np.random.default_rng(0)
    logits, labels = random.standard_normal((6, 5)).astype(np.float32), np.repeat([1, 3, 0], 2).astype(np.int32)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(1, keepdims=True)
    first, second = p[0::2], p[1::2]
    divergence = ((first - second) * np.log(first / second)).sum()
    cross_entropy = -np.log(p[np.arange(6), labels]).mean()
    for alpha in (4, 2):
        found = mindpet.RDropLoss()(Tensor(logits), Tensor(labels), alpha=alpha).asnumpy()
        assert found == pytest.approx(cross_entropy + divergence * alpha / 4, rel=1e-5)
    # its gradient has that of the logarithms alone, as MindSpore's KLDivLoss has it
    slope = ms.grad(lambda given: mindpet.RDropLoss()(given, Tensor(labels), alpha=2))(Tensor(logits)).asnumpy()
    own = (p - np.eye(5)[labels]) / 6
    own[0::2] += (first - second) * 2 / 4
    own[1::2] += (second - first) * 2 / 4
    assert np.allclose(slope, own, atol=1e-6)
    for loss in (mindpet.RDropLoss(), pet.RDropLoss()):
        with pytest.raises(ValueError, match="odd number of rows; repeat each"):
            loss(Tensor(logits[:3]), Tensor(labels[:3]))
    (repeated,) = mindpet.rdrop_repeat(np.array([1, 2]))
    assert np.array_equal(repeated, [1, 1, 2, 2])


@pytest.mark.parametrize("prefix", ("pet.compat.mindpet", "mindpet"))
def test_names_stand_under_mindpets_paths(prefix, monkeypatch):
    known = set(sys.modules)
    monkeypatch.setitem(sys.modules, "mindpet", mindpet)
    try:
        assert import_module(f"{prefix}.delta.lora").LoRADense is mindpet.LoRADense
        assert import_module(f"{prefix}.delta").PrefixEncoder is mindpet.PrefixEncoder
        assert import_module(f"{prefix}.graph.freeze_utils").freeze_delta is mindpet.freeze_delta
        assert import_module(f"{prefix}.graph.ckpt_util").TrainableParamsCheckPoint is mindpet.TrainableParamsCheckPoint
        assert issubclass(import_module(f"{prefix}.utils.exceptions").LinkPathError, InputError)
        with pytest.raises(AttributeError, match="no attribute 'LoRA'"):
            _ = import_module(f"{prefix}.delta.lora").LoRA
        with pytest.raises(ModuleNotFoundError):
            import_module(f"{prefix}.delta.no_such")
    finally:
        for name in set(sys.modules) - known:
            if name.startswith("mindpet"):
                del sys.modules[name]
