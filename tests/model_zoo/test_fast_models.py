"""Fast models against their references, in float32 and in bfloat16."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from operations import numbers

from model_zoo import engine
from model_zoo.auto import AutoModel
from model_zoo.graph import Graph
from pet.train.precision import set_precision


@pytest.mark.skipif(bool(engine.no_bf16()), reason=engine.no_bf16())
@pytest.mark.parametrize("name", ["llama_gqa", "gpt2", "chatglm1"])
def test_layers_in_bfloat16_have_the_gradients_of_the_plain_path(fixtures, monkeypatch, name):
    """Of every parameter, to what rounding changes: that of factors, and with it that of what lies between products, of
    which the plain path knows nothing."""
    model = AutoModel.from_pretrained(fixtures / name)
    ids = Tensor(np.load(fixtures / name / "ref.npz")["input_ids"].astype(np.int32))
    position_ids, start, end, _ = model.layout(ids)
    direction = Tensor(numbers(ids.size, model.config.dims.hidden))
    weights = ms.ParameterTuple([weight for weight in model.layer_list.get_parameters() if weight.ndim == 2])

    def gradients(fast):
        def scalar(ids, position_ids, start, end):
            return (model.hidden_states(ids, position_ids, start, end, None) * direction).sum()

        model.set_fast(fast)
        function = ms.grad(scalar, None, weights)
        if not fast:
            return [gradient.asnumpy() for gradient in function(ids, position_ids, start, end)]
        with engine.fuse_layers(model, list(weights)):
            return [gradient.asnumpy() for gradient in function(ids, position_ids, start, end)]

    single = gradients(False)
    set_precision(model, "bf16")
    low, fast = gradients(False), gradients(True)
    monkeypatch.setattr(engine.run, "round_between_products", lambda instructions: None)
    unrounded = gradients(True)
    for one, plain, mine, wide in zip(single, low, fast, unrounded, strict=True):
        scale = np.linalg.norm(one)
        assert 1e-4 < np.linalg.norm(plain - one) / scale < 0.03
        assert np.linalg.norm(wide - plain) / scale < 0.02
        assert 1e-4 < np.linalg.norm(mine - wide) / scale < 0.03 > np.linalg.norm(mine - one) / scale


@pytest.mark.skipif(bool(engine.no_bf16()), reason=engine.no_bf16())
@pytest.mark.parametrize("name", ["llama_gqa", "gpt2", "glm4_0414"])
def test_what_lies_between_products_in_bfloat16_takes_half(fixtures, name):
    """All but what norms read and statistics, also of a fused projection, whose columns are taken apart."""
    model = AutoModel.from_pretrained(fixtures / name)
    model.set_train(True)
    found = {}
    for precision in ("fp32", "bf16"):
        set_precision(model, precision)
        found[precision] = engine.memory_profile(model, False)
    assert 0.5 < found["bf16"].saved / found["fp32"].saved < 0.75
    assert found["bf16"].backward < found["fp32"].backward


# Layers are held to the plain path in test_whole_layers.py, and that to its reference in test_families.py. Here is a
# graph of the whole, which takes seconds to compile: of two with little in common, one with kernels and one without.
ALIKE = ("glm", "llama_mha", "gpt2", "glm4_0414", "chatglm1", "chatglm2")


@pytest.mark.parametrize(
    "name, in_c",
    [("llama_gqa", True), ("chatglm1", False)]
    + [pytest.param(name, True, marks=pytest.mark.full) for name in ALIKE]
    + [pytest.param("llama_gqa", False, marks=pytest.mark.full)],
)
def test_fast_models_meet_their_references(fixtures, shortened, monkeypatch, name, in_c):
    """Logits of the reference implementation to 1e-4; of the first layer, in a graph, the plain path's logits and its
    gradient of every parameter."""
    if not in_c:  # as without a compiler
        monkeypatch.setattr(engine, "available", lambda: False)
    reference = np.load(fixtures / name / "ref.npz")
    ids = Tensor(reference["input_ids"].astype(np.int32))
    whole = AutoModel.from_pretrained(fixtures / name).set_fast(True)
    np.testing.assert_allclose(whole(ids).asnumpy(), reference["logits"], atol=1e-4)
    model = AutoModel.from_pretrained(shortened(name))
    position_ids, start, end, _ = model.layout(ids)
    direction = Tensor(numbers(*reference["logits"].shape))
    weights = ms.ParameterTuple(model.trainable_params())

    def scalar(ids, position_ids, start, end):
        logits = model.head(model.hidden_states(ids, position_ids, start, end, None)).reshape(direction.shape)
        return (logits * direction).sum(), logits

    inputs = (ids, position_ids, start, end)
    differentiate = ms.value_and_grad(scalar, None, weights, has_aux=True)
    (_, expected), plain = differentiate(*inputs)
    model.set_fast(True)
    (_, logits), fast = Graph(differentiate)(*inputs)
    np.testing.assert_allclose(logits.asnumpy(), expected.asnumpy(), atol=1e-4)
    for weight, mine, expected in zip(weights, fast, plain, strict=True):
        expected = expected.asnumpy()
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(mine.asnumpy(), expected, atol=1e-4 * scale, err_msg=weight.name)
