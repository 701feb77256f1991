"""Graphs with Ascend's fused operators, gradients included, as MindSpore compiles them here: it takes all the calls,
and finds a gradient for each, before it misses the kernels, which a CPU has not."""

import re

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from model_zoo import activations, layers, norms, rotary
from model_zoo.ascend.attention import document_ends
from model_zoo.graph import Graph

B, S, HEADS, D = 2, 6, 4, 16
START = np.zeros((B, S), np.int32)
END = np.tile(np.arange(S, dtype=np.int32) + 1, (B, 1))


@pytest.fixture(autouse=True)
def _device(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # where MindSpore leaves what it could not compile
    for module in ("norms", "rotary", "activations"):
        monkeypatch.setattr(f"model_zoo.{module}.has_operators", lambda: True)
    monkeypatch.setattr("model_zoo.layers.has_fused_attention", lambda width: True)


class Attention(nn.Cell):
    """Without padding."""

    def __init__(self):
        super().__init__()
        self.core = layers.AttentionCore(HEADS, 2, D)

    def construct(self, query, keys, values, start, end):
        return self.core(query, keys, values, start, end, None)


def normal(*shape, dtype=np.float32):
    return Tensor(np.random.default_rng(1).normal(size=shape).astype(dtype))


def rotated(form: str):
    angles = normal(B, 1, S, 8)
    return layers.SplitRotary(rotary.Rotary(form, 8, D), D), [normal(B * S, HEADS * D), angles, angles, Tensor(START)]


def attention(end):
    heads = [normal(B, count, S, D, dtype=np.float16) for count in (HEADS, 2, 2)]
    return Attention(), [*heads, Tensor(START), Tensor(end)]


CASES = {
    "RmsNorm": lambda: (norms.RMSNorm(8, 1e-6), [normal(4, 8)]),
    "RmsNorm in 16 bits": lambda: (norms.RMSNorm(8, 1e-6, ms.float16), [normal(4, 8, dtype=np.float16)]),
    "RmsNorm with an offset": lambda: (norms.RMSNorm(8, 1e-6, offset=1.0), [normal(4, 8)]),
    "Swiglu": lambda: (activations.SwiGLU(), [normal(4, 8), normal(4, 8)]),
    "Swiglu of one": lambda: (activations.Joined(activations.SwiGLU()), [normal(4, 8)]),
    "RotaryPositionEmbedding half": lambda: rotated("half"),
    "RotaryPositionEmbedding interleaved": lambda: rotated("interleaved"),
    "FlashAttentionScore": lambda: attention(END),
    "FlashAttentionScore by documents": lambda: attention(document_ends(START, END)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gradient", [False, True])
def test_only_the_kernel_is_missing(name, gradient):
    cell, inputs = CASES[name]()

    def loss(*given):
        return cell(*given).astype(ms.float32).sum()

    with pytest.raises(RuntimeError, match="Kernel select failed") as error:
        Graph(ms.grad(loss) if gradient else loss)(*inputs)
    assert re.search(rf"Unsupported op \[{name.split()[0]}(Grad)?\] on CPU", str(error.value))


def test_layer_norm_is_there_on_every_device():
    cell, x = norms.LayerNorm(8, 1e-6), normal(4, 8)
    layers.name_parameters(cell)

    def loss(given):
        return (cell(given) * given).sum()

    found = Graph(ms.grad(loss))(x).asnumpy()
    cell.device = None
    assert np.abs(found - ms.grad(loss)(x).asnumpy()).max() < 1e-5
