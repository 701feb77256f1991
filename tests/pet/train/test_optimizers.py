"""Each optimizer against its formula in float64 NumPy, and against torch where it is installed."""

from __future__ import annotations

import types

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from sets import some

from model_zoo.errors import InputError
from pet.recipe.training import Train
from pet.train import segments as segments_module
from pet.train.optimizers import OPTIMIZERS, SGD, Adafactor, Adam, AdamW, Lamb, Lion, Momentum, segments_of
from pet.train.segments import make_segments, vectors_of

SHAPES = {"a.weight": (4, 6), "b.weight": (5, 3), "a.bias": (6,)}
SHAPES |= {"c.weight": (3, 2, 4), "d.weight": (2, 3, 3, 2), "e.weight": (3, 1, 4), "f.weight": (4, 1), "scale": ()}
DECAY = 0.1


def parameters(dtype=np.float32):
    random = np.random.default_rng(0)
    return [Parameter(Tensor(np.asarray(random.normal(size=s), dtype)), name=name) for name, s in SHAPES.items()]


def gradients(step):
    """Some large, some so small that eps matters."""
    random = np.random.default_rng(100 + step)
    size = np.array([1.0, 1e-8, 1e-3, 1.0, 1e-2, 0.1, 0.1, 0.1])
    return {
        name: np.asarray(random.normal(size=shape) * s, np.float32)
        for (name, shape), s in zip(SHAPES.items(), size, strict=True)
    }


def run(kind, steps=12, learning_rate=0.01, dtype=np.float32, **settings):
    trained = parameters(dtype)
    segments = make_segments(trained, weight_decay=DECAY)
    optimizer = kind(segments, **settings)
    for step in range(steps):
        values = gradients(step)
        vectors = [Tensor(segment.join(values)) for segment in segments]
        optimizer.apply(vectors, 0.5, learning_rate * (1 + step), step + 1)
    return {p.name: p.asnumpy() for p in trained}, optimizer


def decay_of(name):
    return DECAY if name.endswith("weight") else 0.0


def reference(rule, steps=12, learning_rate=0.01):
    weights = {p.name: p.asnumpy().astype(np.float64) for p in parameters()}
    states = {name: {} for name in weights}
    for step in range(steps):
        for name, gradient in gradients(step).items():
            rate = learning_rate * (1 + step)
            weights[name] = rule(weights[name], gradient * 0.5, states[name], rate, decay_of(name), step + 1)
    return weights


def adam_moments(gradient, state, step):
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * gradient**2
    return state["m"] / (1 - 0.9**step), np.sqrt(state["v"] / (1 - 0.999**step)) + 1e-8


def adamw(weight, gradient, state, rate, decay, step):
    mean, root = adam_moments(gradient, state, step)
    return weight * (1 - rate * decay) - rate * mean / root


def adam(weight, gradient, state, rate, decay, step):
    mean, root = adam_moments(gradient + decay * weight, state, step)
    return weight - rate * mean / root


def sgd(weight, gradient, state, rate, decay, step):
    return weight - rate * (gradient + decay * weight)


def momentum(weight, gradient, state, rate, decay, step):
    state["v"] = 0.8 * state.get("v", 0) + gradient + decay * weight
    return weight - rate * state["v"]


def lamb(weight, gradient, state, rate, decay, step):
    mean, root = adam_moments(gradient, state, step)
    update = mean / root + decay * weight
    return weight - rate * np.linalg.norm(weight) / np.linalg.norm(update) * update


def lion(weight, gradient, state, rate, decay, step):
    mean = state.get("m", 0)
    state["m"] = 0.99 * mean + 0.01 * gradient
    return weight * (1 - rate * decay) - rate * np.sign(0.9 * mean + 0.1 * gradient)


def adafactor(weight, gradient, state, rate, decay, step):
    keep = 1 - step**-0.8
    square = gradient.astype(np.float64) ** 2 + 1e-30
    if weight.ndim > 1:
        state["r"] = keep * state.get("r", 0) + (1 - keep) * square.mean(-1)
        state["c"] = keep * state.get("c", 0) + (1 - keep) * square.mean(-2)
        factors = state["r"][..., None] * state["c"][..., None, :]
        update = gradient / np.sqrt(factors / state["r"].mean(-1)[..., None, None])
    else:
        state["v"] = keep * state.get("v", 0) + (1 - keep) * square
        update = gradient / np.sqrt(state["v"])
    update = update / max(1.0, np.sqrt((update**2).mean()))
    return weight * (1 - rate * decay) - rate * update


@pytest.mark.parametrize(
    ("kind", "rule", "settings"),
    [
        (AdamW, adamw, {}),
        (Adam, adam, {}),
        (SGD, sgd, {}),
        (Momentum, momentum, {"momentum": 0.8}),
        (Lamb, lamb, {}),
        (Lion, lion, {}),
        (Adafactor, adafactor, {}),
    ],
)
def test_the_formula(kind, rule, settings):
    ours, _ = run(kind, **settings)
    for name, expected in reference(rule).items():
        np.testing.assert_allclose(ours[name], expected, atol=2e-6, rtol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "theirs", "settings", "torch_settings"),
    [
        (AdamW, "AdamW", {"betas": (0.8, 0.95), "eps": 1e-6}, {"betas": (0.8, 0.95), "eps": 1e-6}),
        (Adam, "Adam", {}, {}),
        (SGD, "SGD", {}, {}),
        (Momentum, "SGD", {"momentum": 0.9}, {"momentum": 0.9}),
        (Adafactor, "Adafactor", {}, {"scale_parameter": False, "relative_step": False}),
    ],
)
def test_equal_to_torch(kind, theirs, settings, torch_settings):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    trained = {p.name: torch.nn.Parameter(torch.tensor(p.asnumpy())) for p in parameters()}
    groups = [{"params": [value], "weight_decay": decay_of(name)} for name, value in trained.items()]
    home = torch.optim if theirs != "Adafactor" else pytest.importorskip("transformers.optimization")
    reference = getattr(home, theirs)(groups, lr=0.01, **torch_settings)
    for step in range(20):
        for group in reference.param_groups:
            group["lr"] = 0.01 * (1 + step)
        for name, gradient in gradients(step).items():
            trained[name].grad = torch.tensor(gradient * np.float32(0.5))
        reference.step()
    ours, optimizer = run(kind, steps=20, **settings)
    for name, value in trained.items():
        theirs_now = value.detach().numpy()
        scale = np.abs(theirs_now).max()
        assert np.abs(ours[name] - theirs_now).max() <= (2e-7 if theirs != "Adafactor" else 1e-6) * max(1.0, scale), (
            name
        )
        for slot, vector in reference.state[value].items():
            mine = optimizer.state_arrays().get(f"{slot}.{name}")
            if mine is not None and not (slot == "exp_avg_sq_row" and value.shape[-2] == 1):  # which nothing reads
                mine = mine.reshape(vector.shape)
                np.testing.assert_allclose(mine, vector.numpy(), rtol=1e-6, atol=3e-7 * float(vector.abs().max()))


@pytest.mark.parametrize("compiled", [True, False])
def test_without_correction_it_is_mindspores_adam_weight_decay(compiled):
    settings = {"betas": (0.8, 0.95), "eps": 1e-6}
    theirs = parameters()
    groups = [{"params": [value], "weight_decay": decay_of(value.name)} for value in theirs]
    rates = [0.01 * (1 + step) for step in range(20)]
    update = nn.AdamWeightDecay(groups, rates, *settings["betas"], settings["eps"])
    for step in range(20):
        update(tuple(Tensor(gradients(step)[value.name] * np.float32(0.5)) for value in update.parameters))
    ours, _ = run(AdamW, steps=20, compiled=compiled, bias_correction=False, **settings)
    corrected, _ = run(AdamW, steps=20, compiled=compiled, **settings)
    for value in theirs:
        np.testing.assert_allclose(ours[value.name], value.asnumpy(), rtol=2e-6, atol=2e-6, err_msg=value.name)
    assert np.abs(corrected["a.weight"] - ours["a.weight"]).max() > 0.01


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_in_place_as_operator_by_operator(dtype):
    """Weights that C moves where they lie, and MindSpore's operators: the same numbers, bit for bit."""
    (mine, one), (plain, other) = (run(AdamW, dtype=dtype, compiled=compiled) for compiled in (True, False))
    for name, expected in plain.items():
        assert mine[name].dtype == expected.dtype == dtype and np.array_equal(mine[name], expected), name
    for name, expected in other.state_arrays().items():
        assert np.array_equal(one.state_arrays()[name], expected), name


@pytest.mark.parametrize("kind", some([AdamW, Momentum, Lion, Adafactor], [AdamW, Adafactor]))
def test_a_loaded_state_goes_on_bit_for_bit(kind):
    trained = parameters()
    segments = make_segments(trained, weight_decay=DECAY)

    def steps(optimizer, first, last):
        for step in range(first, last):
            vectors = [Tensor(segment.join(gradients(step))) for segment in segments]
            optimizer.apply(vectors, 0.5, 0.01 * (1 + step), step + 1)
        return {parameter.name: parameter.asnumpy().copy() for parameter in trained}

    before, after = kind(segments), kind(segments)
    weights = steps(before, 0, 5)
    state = {name: array.copy() for name, array in before.state_arrays().items()}
    whole = steps(before, 5, 9)
    for parameter in trained:
        parameter.set_data(Tensor(weights[parameter.name]))
    after.load_state(state)
    for name, found in steps(after, 5, 9).items():
        assert np.array_equal(found, whole[name]) and not np.array_equal(found, weights[name]), name


def test_narrow_parameters_keep_float32_weights():
    """Steps of 1e-5 of the weight are lost in float16, and must add up all the same."""
    value = np.ones((4, 4), np.float16)
    parameter = Parameter(Tensor(value), name="weight")
    segments = make_segments([parameter])
    optimizer = SGD(segments)
    for step in range(400):
        optimizer.apply([Tensor(np.ones(16, np.float32))], 1.0, 1e-5, step + 1)
    assert np.allclose(parameter.asnumpy(), 1 - 4e-3, atol=5e-4)
    assert np.allclose(optimizer.state_arrays()["master.weight"], 1 - 4e-3, atol=1e-6)


def test_state_of_another_model_is_refused_with_every_problem():
    _, optimizer = run(AdamW, steps=1)
    arrays = optimizer.state_arrays()
    arrays["exp_avg.a.weight"] = np.zeros((4, 7), np.float32)
    del arrays["exp_avg_sq.a.bias"]
    with pytest.raises(InputError) as caught:
        optimizer.load_state(arrays)
    assert "exp_avg.a.weight" in str(caught.value) and "exp_avg_sq.a.bias" in str(caught.value)


def test_groups_decay_and_lora_plus():
    names = ["l.q.lora_A.weight", "l.q.lora_B.weight", "l.q.lora_B.second.weight", "l.norm.bias", "head.weight"]
    trained = [Parameter(Tensor(np.ones((2,) if "bias" in n else (2, 2), np.float32)), name=n) for n in names]
    group = types.SimpleNamespace(match=["head.*"], learning_rate=1e-5, weight_decay=0.5)
    segments = make_segments(trained, learning_rate=1e-3, weight_decay=0.01, groups=[group], lora_plus_ratio=16.0)
    found = {name: (s.learning_rate_ratio, s.weight_decay) for s in segments for name in s.names}
    assert found == {
        "l.q.lora_A.weight": (1.0, 0.01),
        "l.q.lora_B.weight": (16.0, 0.01),
        "l.q.lora_B.second.weight": (16.0, 0.01),
        "l.norm.bias": (16.0, 0.0),  # a vector, as in PEFT
        "head.weight": (pytest.approx(1e-2), 0.5),
    }
    other = types.SimpleNamespace(match=["*"], learning_rate=2e-3, weight_decay=None)
    segments = make_segments(trained, learning_rate=1e-3, weight_decay=0.01, groups=[group, other])
    found = {name: (s.learning_rate_ratio, s.weight_decay) for s in segments for name in s.names}
    assert found["head.weight"] == (pytest.approx(1e-2), 0.5), "the first group that matches counts"
    assert found["l.q.lora_A.weight"] == (2.0, 0.01) and found["l.norm.bias"] == (2.0, 0.0)
    segments = make_segments(trained, weight_decay=0.01, decay_vectors=True)
    assert {s.weight_decay for s in segments} == {0.01} and sum(len(s.names) for s in segments) == len(names)
    with pytest.raises(InputError, match=r"'head\.\*' has no effect: what it matches is in groups before it"):
        make_segments(trained, learning_rate=1e-3, groups=[other, group])
    with pytest.raises(InputError, match="lora_plus_ratio: has no effect"):
        make_segments(trained, learning_rate=1e-3, groups=[other], lora_plus_ratio=16.0)
    group.match = ["heda.*"]
    with pytest.raises(InputError, match=r"heda\.\*"):
        make_segments(trained, groups=[group])


def test_a_group_of_parameters_that_another_stage_has():
    """It was refused as one that matches nothing."""
    mine, theirs = ["layers.0.lora_A.weight"], ["layers.1.lora_A.weight"]
    trained = [Parameter(Tensor(np.ones((2, 2), np.float32)), name=name) for name in mine]
    stage = types.SimpleNamespace(size=2, objects=lambda own: [own, theirs])
    train = Train(groups=[{"match": ["layers.1.*"], "learning_rate": 1e-5}])
    assert [segment.learning_rate_ratio for segment in segments_of(train, trained, stage)] == [1.0]
    train.groups[0].match = ["layers.2.*"]
    with pytest.raises(InputError, match=r"layers\.2\.\*"):
        segments_of(train, trained, stage)


def test_long_segments_are_cut_between_parameters():
    trained = [Parameter(Tensor(np.zeros((3, 4), np.float32)), name=f"p{i}") for i in range(5)]
    assert [len(s.parameters) for s in make_segments(trained, longest=24)] == [2, 2, 1]
    assert [len(s.parameters) for s in make_segments(trained, longest=5)] == [1] * 5


def test_large_parameters_are_segments_by_themselves_where_that_is_asked_for(monkeypatch):
    monkeypatch.setattr(segments_module, "ALONE", 15)
    trained = parameters()[:3]
    assert [s.names for s in make_segments(trained, apart=True)] == [["a.weight"], ["b.weight"], ["a.bias"]]
    monkeypatch.setattr(segments_module, "ALONE", 16)
    assert [s.names for s in make_segments(trained, apart=True)] == [["a.weight"], ["b.weight", "a.bias"]]
    assert [s.names for s in make_segments(trained)] == [["a.weight", "b.weight", "a.bias"]]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kind", OPTIMIZERS.values())
def test_a_segment_of_one_takes_its_gradient_as_it_is(kind, dtype):
    """As a matrix, as a view of another one as the weight is, and as a vector: to the bit the same weights."""
    found = []
    for form in ("matrix", "view", "vector"):
        trained = parameters(dtype)[:1]
        if form == "view":
            trained[0].set_data(Tensor(trained[0].asnumpy().T.copy()).T)
        optimizer = kind(make_segments(trained, weight_decay=DECAY))
        for step in range(3):
            gradient = gradients(step)["a.weight"]
            given = Tensor(gradient.T.copy()).T if form == "view" else Tensor(gradient)
            (given,) = vectors_of((given,), ((0, 1),)) if form != "vector" else (given.reshape(-1),)
            assert given.shape == ((24,) if form == "vector" else (4, 6))
            optimizer.apply([given], 0.5, 0.01, step + 1)
        found.append(trained[0].asnumpy())
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert not np.array_equal(found[0], parameters(dtype)[0].asnumpy())
