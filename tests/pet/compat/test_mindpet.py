"""MindPet's layers, put in by hand."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from model_zoo.errors import InputError
from pet.compat import mindpet


def x(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize(
    "make",
    [
        lambda: mindpet.LoRADense(6, 5, lora_rank=2, lora_alpha=4),
        lambda: mindpet.AdapterDense(6, 5, bottleneck_size=3, activation="relu"),
        lambda: mindpet.LowRankAdapterDense(6, 5, reduction_factor=2, low_rank_size=1, non_linearity="GELU"),
    ],
)
def test_a_fresh_layer_is_its_dense(make):
    layer, data = make(), x(2, 3, 6)
    plain = nn.Dense(6, 5, activation="relu" if isinstance(layer, mindpet.AdapterDense) else None)
    ms.load_param_into_net(plain, {"weight": layer.weight, "bias": layer.bias})
    assert np.array_equal(layer(data).asnumpy(), plain(data).asnumpy())
    names = [parameter.name for parameter in layer.get_parameters()]
    assert names[:2] == ["weight", "bias"]
    assert all("mindpet_delta" in name for name in names[2:])
    gradients = ms.grad(lambda data: layer(data).sum(), None, layer.trainable_params())(data)
    assert any(np.abs(gradient.asnumpy()).max() > 0 for gradient in gradients[2:])


def test_lora_by_numpy():
    layer, data = mindpet.LoRADense(6, 5, lora_rank=2, lora_alpha=8), x(4, 6)
    lora = layer.mindpet_delta_lora
    lora.lora_B.weight.set_data(x(5, 2, seed=1))
    a, b, w, bias = (each.asnumpy() for each in (lora.lora_A.weight, lora.lora_B.weight, layer.weight, layer.bias))
    expected = data.asnumpy() @ (w + 4.0 * b @ a).T + bias
    assert np.allclose(layer(data).asnumpy(), expected, atol=1e-5)


def test_prefix_keys_and_values_are_two_things_with_gradients():
    layer = mindpet.PrefixLayer(
        prefix_token_num=3, batch_size=1, num_heads=2, hidden_dim=8, mid_dim=4, dropout_rate=0.0
    )
    key, value = x(2, 2, 5, 4), x(2, 2, 5, 4, seed=1)
    keys, values = layer(key, value)
    assert keys.shape == values.shape == (2, 2, 8, 4)
    assert np.array_equal(keys[:, :, 3:].asnumpy(), key.asnumpy())
    first = layer.past_key_reparam.asnumpy().reshape(3, 2, 4).transpose(1, 0, 2)
    assert np.array_equal(keys[1, :, :3].asnumpy(), first)
    assert not np.allclose(keys[:, :, :3].asnumpy(), values[:, :, :3].asnumpy())

    def only_values(key, value):
        return (layer(key, value)[1] ** 2).sum()

    gradients = ms.grad(only_values, None, layer.trainable_params())(key, value)
    assert all(np.abs(gradient.asnumpy()).max() > 0 for gradient in gradients)


@pytest.mark.parametrize("projection", [False, True])
def test_prefix_encoder(projection):
    layer = mindpet.PrefixEncoder(3, 2, 4, 5, prefix_projection=projection, projection_dim=6, dropout_prob=0.0)
    parts = layer(7)
    assert [part.shape for part in parts] == [(2, 7, 4, 3, 5)] * 2
    whole = layer.mindpet_delta_ptuning2().asnumpy().reshape(3, 4, 4, 5)
    assert np.array_equal(parts[1][0, 6].asnumpy(), whole[:, 2].transpose(1, 0, 2))


def test_freezing_by_mode():
    class Network(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first = mindpet.LoRADense(4, 4, lora_rank=2, lora_alpha=4)
            self.second = mindpet.AdapterLayer(4, 2)
            self.head = nn.Dense(4, 2)

        def construct(self, x):
            return ops.relu(self.head(self.second(self.first(x))))

    network = Network()

    def trained():
        return {parameter.name for parameter in network.trainable_params()}

    mindpet.freeze_delta(network, "LoRA")
    assert trained() == {"first.mindpet_delta_lora.lora_A.weight", "first.mindpet_delta_lora.lora_B.weight"}
    mindpet.freeze_delta(network, "adapter", exclude=["head.*"])
    assert {name.partition(".")[0] for name in trained()} == {"second", "head"}
    before = trained()
    with pytest.raises(InputError, match=r"no-such"):
        mindpet.freeze_delta(network, "lora", include=["no-such*"])
    with pytest.raises(InputError, match="no prefix parameters"):
        mindpet.freeze_delta(network, "prefix")
    assert trained() == before
