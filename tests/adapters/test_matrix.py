"""Every method on every family: one test per pair goes through what must hold for all of them. `pytest` runs a cover of
the pairs, `pytest -m full` the remaining ones."""

from __future__ import annotations

import copy
import dataclasses
import zlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, Tensor, nn
from sets import some

import pet
from adapters.bitfit import BitFitConfig
from adapters.bottleneck import BottleneckConfig
from adapters.ia3 import IA3Config
from adapters.lora import LoRAConfig
from adapters.low_rank_adapter import LowRankAdapterConfig
from adapters.method import MethodConfig
from adapters.prefix import PrefixConfig
from adapters.prompt import PromptConfig, PTuningConfig
from adapters.ptuning import PTuningV2Config
from adapters.registry import registry
from model_zoo.errors import InputError

FAMILIES = ("gpt2", "llama_gqa", "glm", "chatglm1", "chatglm2", "glm4_0414")


@dataclasses.dataclass
class Case:
    """One method, and what is expected of it.

    Attributes:
        config: its settings.
        start: how far a fresh adapter may move the logits: 0 means bit for bit; None that it does move them.
        merges: whether it can be merged; None where that depends on the family.
        slope: how far the loss's slope may be off the gradient's length.
    """

    config: object
    start: float | None = 0.0
    merges: bool | None = False
    slope: float = 0.03


CASES = {
    "lora": Case(LoRAConfig(rank=3), merges=True),
    "lora_all": Case(LoRAConfig(rank=2, targets="all-linear", use_rslora=True), merges=True),
    "dora": Case(LoRAConfig(rank=2, use_dora=True), merges=True, slope=0.3),  # its norm counts as constant
    "pissa": Case(LoRAConfig(rank=2, init="pissa"), merges=True),
    "pissa_dora": Case(LoRAConfig(rank=2, init="pissa", use_dora=True), merges=True, slope=0.3),
    "lora_bias": Case(LoRAConfig(rank=2, bias="all"), merges=True),
    "lora_tokens": Case(LoRAConfig(rank=2, trainable_tokens=list(range(8, 120))), merges=True),
    "prefix": Case(PrefixConfig(length=3), start=None),
    "prefix_projection": Case(PrefixConfig(length=3, projection=True, projection_hidden=8), start=None),
    "ptuning2": Case(PTuningV2Config(length=3), start=None),
    "ptuning2_projection": Case(PTuningV2Config(length=3, projection=True, projection_hidden=8), start=None),
    "prompt": Case(PromptConfig(length=3), start=None),
    "p_tuning": Case(PTuningConfig(length=3, projection_hidden=8), start=None),
    "houlsby": Case(BottleneckConfig(size=5, layer_norm=True)),
    "pfeiffer": Case(BottleneckConfig(size=5, placement="pfeiffer", non_linearity="tanh")),
    "parallel": Case(BottleneckConfig(size=5, placement="parallel", scaling=4.0, non_linearity="silu")),
    "low_rank_adapter": Case(LowRankAdapterConfig(rank=2)),
    "ia3": Case(IA3Config(), merges=True),
    "bitfit": Case(BitFitConfig(), merges=None),
    "bitfit_there": Case(BitFitConfig(add_missing=False), merges=True),
}
NO_BIASES = ("llama_gqa",)  # nothing for BitFit to train but what it adds
MERGES_BITFIT = ("gpt2", "chatglm1")  # every Dense has a bias there


@dataclasses.dataclass
class Base:
    """A loaded family."""

    model: nn.Cell
    other: nn.Cell  # the same base again, which never met the adapter that is loaded into it
    ids: np.ndarray
    padded: np.ndarray
    mask: np.ndarray
    logits: np.ndarray


@pytest.fixture(scope="module")
def bases(fixtures, shortened):
    """LLaMA with all its layers, of the others the first: each kind of method is on LLaMA."""
    loaded = {}

    def get(family: str) -> Base:
        if family not in loaded:
            directory = fixtures / family if family == "llama_gqa" else shortened(family)
            reference = np.load(directory / "ref.npz")
            models = [pet.AutoModel.from_pretrained(str(directory)) for _ in range(2)]
            for model in models:
                model.set_train(False)
            ids, padded = reference["input_ids"], reference["pad_input_ids"]
            mask = reference["pad_attention_mask"] if "pad_attention_mask" in reference else (padded != 3).astype(int)
            loaded[family] = Base(*models, ids, padded, mask, models[0](ids).asnumpy())
        base = loaded[family]
        for model in (base.model, base.other):  # what a failed test left behind
            pet.unmerge(model)
            for name in pet.list_adapters(model):
                pet.delete_adapter(model, name)
        return base

    return get


def digest(model) -> dict[str, int]:
    """A checksum of every parameter of the base."""
    return {
        parameter.name: zlib.crc32(parameter.asnumpy().tobytes())
        for parameter in model.get_parameters()
        if not hasattr(parameter, "adapter")
    }


def perturb(model, seed: int, size: float = 0.05) -> None:
    """Moves every trained parameter off its start, where some gradients are zero."""
    generator = np.random.default_rng(seed)
    for parameter in pet.trainable_parameters(model):
        noise = size * generator.standard_normal(parameter.shape).astype(np.float32)
        parameter.set_data(Tensor(parameter.asnumpy() + noise))


def loss_of(model, ids):
    """A smooth function of the logits."""
    tokens = Tensor(ids.astype(np.int32))
    weights = Tensor(np.random.default_rng(0).standard_normal(model(ids).shape[-1]).astype(np.float32))

    def loss():
        logits = model.head(model.hidden_states(tokens, *model.layout(tokens)))
        return (ms.ops.tanh(logits * 0.1) * weights).mean()

    return loss


def check_gradients(model, ids, tolerance: float) -> tuple:
    """Every parameter gets a gradient, and along it the loss moves as fast as the gradient says; returns them."""
    parameters = pet.trainable_parameters(model)
    loss = loss_of(model, ids)
    _, gradients = ms.value_and_grad(loss, None, ParameterTuple(parameters))()
    arrays = [gradient.asnumpy().astype(np.float64) for gradient in gradients]
    silent = [
        parameter.name for parameter, array in zip(parameters, arrays, strict=True) if not np.abs(array).max() > 0
    ]
    assert not silent, f"no gradient reaches {silent}"
    norm = np.sqrt(sum((array**2).sum() for array in arrays))
    values, step = [parameter.asnumpy() for parameter in parameters], 1e-2
    found = []
    for sign in (1, -1):
        for parameter, value, array in zip(parameters, values, arrays, strict=True):
            parameter.set_data(Tensor((value + sign * step * array / norm).astype(np.float32)))
        found.append(float(loss().asnumpy()))
    for parameter, value in zip(parameters, values, strict=True):
        parameter.set_data(Tensor(value))
    assert (found[0] - found[1]) / (2 * step) == pytest.approx(norm, rel=tolerance)
    return gradients


def check_step(model, gradients) -> None:
    """An optimizer's step moves the adapter and nothing else."""
    parameters = pet.trainable_parameters(model)
    base, before = digest(model), [parameter.asnumpy().copy() for parameter in parameters]
    nn.Adam(parameters, 1e-3)(gradients)
    assert digest(model) == base
    for parameter, value in zip(parameters, before, strict=True):
        assert not np.array_equal(parameter.asnumpy(), value), parameter.name


def check_merging(case: Case, family: str, base: Base) -> None:
    """Merged gives the unmerged logits, and unmerging the very bits; or it is refused and nothing has changed."""
    model, adapted = base.model, base.model(base.ids).asnumpy()
    with pet.disable_adapters(model):
        weights = digest(model)
    if not (case.merges if case.merges is not None else family in MERGES_BITFIT):
        with pytest.raises(InputError, match=r"cannot be merged: .{20}"):
            pet.merge(model)
    else:
        pet.merge(model)
        merged = model(base.ids).asnumpy()
        assert np.abs(merged - adapted).max() < 1e-5 * max(1, np.abs(adapted).max())
        assert np.abs(merged - base.logits).max() > 1e-3
        pet.unmerge(model)
    assert np.array_equal(model(base.ids).asnumpy(), adapted)
    with pet.disable_adapters(model):
        assert digest(model) == weights
        assert np.array_equal(model(base.ids).asnumpy(), base.logits)
    assert np.array_equal(model(base.ids).asnumpy(), adapted)


def covers(method: str, family: str) -> tuple:
    """Each kind of method on each family, and each setting on one; and what a family cannot have is refused."""
    if method == "bitfit_there" and family in NO_BIASES:
        return ("refused",)
    kind = next(each for each in type(CASES[method].config).__mro__ if MethodConfig in each.__bases__)
    return method, (kind, family)


@pytest.mark.cover(by=covers)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", CASES)
def test_method_on_family(bases, tmp_path, method, family):
    case, base = CASES[method], bases(family)
    model, names = base.model, [parameter.name for parameter in base.model.get_parameters()]
    weights = digest(model)
    if method == "bitfit_there" and family in NO_BIASES:
        with pytest.raises(InputError, match="no bias to train"):
            pet.apply(model, copy.deepcopy(case.config))
        assert digest(model) == weights and not pet.list_adapters(model)
        return
    config = copy.deepcopy(case.config)
    planned = pet.plan(model, config).parameters
    pet.apply(model, config)
    parameters = pet.trainable_parameters(model)
    assert sum(parameter.size for parameter in parameters) == planned
    fresh = model(base.ids).asnumpy()
    if case.start is None:
        assert np.abs(fresh - base.logits).max() > 1e-3
    elif case.start == 0:
        assert np.array_equal(fresh, base.logits)
    else:
        assert np.abs(fresh - base.logits).max() < case.start
    perturb(model, 1)
    check_step(model, check_gradients(model, base.ids, case.slope))
    adapted = model(base.ids).asnumpy()
    assert np.abs(adapted - base.logits).max() > 1e-3
    check_merging(case, family, base)

    # into a model that never saw it
    pet.save_adapter(model, tmp_path)
    pet.load_adapter(base.other, tmp_path, name="loaded")
    assert np.abs(base.other(base.ids).asnumpy() - adapted).max() < 1e-5 * max(1, np.abs(adapted).max())

    # a second one beside it
    second = copy.deepcopy(case.config)
    if hasattr(second, "seed"):
        second.seed = 7
    pet.add_adapter(model, second, "second")
    pet.set_adapter(model, "second")
    perturb(model, 2)
    assert np.abs(model(base.ids).asnumpy() - adapted).max() > 1e-3
    pet.set_adapter(model, "default")
    assert np.array_equal(model(base.ids).asnumpy(), adapted)
    every = [p.name for adapter in registry(model).adapters.values() for p in adapter.parameters()]
    assert len(set(every)) == len(every)

    # and off again
    pet.delete_adapter(model, "default")
    pet.delete_adapter(model, "second")
    assert [parameter.name for parameter in model.get_parameters()] == names
    assert digest(model) == weights
    assert np.array_equal(model(base.ids).asnumpy(), base.logits)


# Each method on one family. Those that change a token by itself share a model: a compilation takes seconds.
GENERATED = {
    "prefix": "chatglm1",
    "prefix_projection": "gpt2",
    "ptuning2": "chatglm1",
    "prompt": "chatglm2",
    "p_tuning": "llama_gqa",
    "lora lora_tokens houlsby low_rank_adapter bitfit": "gpt2",
    "dora parallel ia3": "llama_gqa",
}


# of a kind with those that are left: three prefixes, two of virtual tokens
@pytest.mark.parametrize("methods", some(GENERATED, GENERATED.keys() - {"prefix_projection", "ptuning2", "p_tuning"}))
def test_cached_generation_is_that_without_a_cache(bases, methods):
    base = bases(GENERATED[methods])
    for method in methods.split():
        pet.add_adapter(base.model, copy.deepcopy(CASES[method].config), method)
    pet.set_adapter(base.model, methods.split())
    perturb(base.model, 1, size=0.5)  # enough to change the greedy choice
    ids, mask = base.padded, base.mask
    if not mask[:, -1].all():
        ids, mask = base.ids, np.ones_like(base.ids)
    plain = base.model.generate(ids, mask, max_new_tokens=4, use_cache=False)
    assert np.array_equal(base.model.generate(ids, mask, max_new_tokens=4), plain)
    with pet.disable_adapters(base.model):
        assert not np.array_equal(base.model.generate(ids, mask, max_new_tokens=4, use_cache=False), plain)
