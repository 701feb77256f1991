"""PiSSA and OLoRA on a base in 8 or 4 bits: what they leave of the weight is quantised."""

from __future__ import annotations

import copy
import os
import types

import mindspore as ms
import numpy as np
import pytest
from first_layers import first_layers
from sets import some

import pet
from adapters.deltas import low_rank_product
from adapters.dora import row_norms
from adapters.lora import LoRAConfig
from adapters.registry import registry
from adapters.sites import weight_array
from model_zoo.auto import AutoConfig, AutoModel
from model_zoo.checkpoint.reading import Checkpoint, load_into
from model_zoo.engine import available, run as whole
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization
from model_zoo.quantization.cells import quantized_cells
from model_zoo.quantization.loading import fill
from pet.parallel.specs import ShardSpecs
from pet.parallel.tensor import cut_packed
from pet.quantize import quantize_checkpoint

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from first_factors import BASE, NF4, codes, input_ids, loaded, modules, moved, originals, same_codes, started, train


@pytest.fixture(scope="module")
def peers():
    """PEFT and bitsandbytes, on one thread: on several the order of bitsandbytes' sums depends on how many."""
    torch = pytest.importorskip("torch", reason="compared with where it is installed")
    found = [pytest.importorskip(name) for name in ("peft", "transformers", "bitsandbytes")]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch, *found
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("family", "init", "quantization"),
    [
        (BASE, "pissa", NF4),
        (BASE, "olora", Quantization("nf4", double=True)),
        ("gpt2", "pissa", Quantization("fp4", 32)),
        (BASE, "pissa", Quantization("int8")),
    ],
    ids=str,
)
def test_factors_are_pefts_and_codes_are_bitsandbytes_of_what_they_leave(fixtures, peers, family, init, quantization):
    torch, peft, transformers, bitsandbytes = peers
    targets = {"gpt2": ["c_attn", "c_fc"], BASE: ["q_proj", "v_proj", "down_proj"]}[family]
    model = started(loaded(fixtures, family, quantization), init, targets=targets)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(str(fixtures / family), dtype=torch.float32)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=init)
    theirs = dict(peft.get_peft_model(theirs, config).base_model.model.named_modules())
    weights = originals(fixtures, model, family)
    for path, module in modules(model).items():
        their, cell = theirs[path], quantized_cells(model)[f"{path}.weight"]
        a, b = module.lora_A.weight.asnumpy(), module.lora_B.weight.asnumpy()
        sign = np.sign((a * their.lora_A["default"].weight.detach().numpy()).sum(1))
        np.testing.assert_allclose(a * sign[:, None], their.lora_A["default"].weight.detach().numpy(), atol=1e-4)
        np.testing.assert_allclose(b * sign, their.lora_B["default"].weight.detach().numpy(), atol=1e-4)
        rest = (weights[path] - low_rank_product(b, a, module.scale)).astype(np.float32)
        their_rest = their.base_layer.weight.detach().numpy()
        np.testing.assert_allclose(rest, their_rest.T if cell.published_transposed else their_rest, atol=1e-5)
        given = torch.from_numpy(rest)
        if quantization.type == "int8":
            packed = bitsandbytes.nn.Int8Params(given, requires_grad=False).to("cpu")
            found = {"weight": packed.data, "SCB": packed.SCB}
        else:
            packed, state = bitsandbytes.functional.quantize_4bit(
                given,
                blocksize=quantization.block,
                compress_statistics=quantization.double,
                quant_type=quantization.type,
            )
            found = {"weight": packed, "absmax": state.absmax}
            found |= {"nested_absmax": state.state2.absmax} if quantization.double else {}
        for part, array in found.items():
            assert np.array_equal(cell.arrays()[part], array.numpy()), f"{path}: {part}"


@pytest.mark.parametrize(("family", "init"), [(BASE, "pissa"), ("chatglm2", "pissa"), ("gpt2", "olora")])
def test_the_base_is_nearer_to_the_unquantised_one_and_comes_back(fixtures, family, init):
    model = loaded(fixtures, family)
    ids, before, parts = input_ids(fixtures, family), {}, codes(model)
    plain = model(ids).asnumpy()
    before = {name: cell.dequantized() for name, cell in quantized_cells(model).items()}
    started(model, init, rank=8)
    assert not same_codes(model, parts)
    if init == "pissa":  # QR's first columns are no large directions
        for path, weight in originals(fixtures, model, family).items():
            now = quantized_cells(model)[f"{path}.weight"].dequantized()
            assert np.square(now - weight).sum() < 0.9 * np.square(before[f"{path}.weight"] - weight).sum()
    fresh = model(ids).asnumpy()
    with pet.disable_adapters(model):  # an adapter starts as its base
        np.testing.assert_allclose(model(ids).asnumpy(), fresh, atol=1e-4)
    moved(model)
    with pet.disable_adapters(model):
        np.testing.assert_allclose(model(ids).asnumpy(), fresh, atol=1e-4)
    assert np.abs(model(ids).asnumpy() - fresh).max() > 1e-2
    pet.delete_adapter(model, "default")
    assert same_codes(model, parts)
    assert np.array_equal(model(ids).asnumpy(), plain)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("compiled", some([True, False], [False]))
def test_it_trains_as_over_the_same_numbers_in_float32(fixtures, compiled, dora, tmp_path):
    base = first_layers(fixtures / BASE, tmp_path, 1)  # each takes its time to compile
    packed = started(pet.AutoModel.from_pretrained(base, quantization=NF4), dropout=0.1, use_dora=dora)
    wide = pet.AutoModel.from_pretrained(base)
    values = {parameter.name: parameter for parameter in wide.get_parameters()}
    for name, cell in quantized_cells(packed).items():
        values[name].asnumpy()[...] = cell.published()
    config = copy.deepcopy(registry(packed).get("default").config)
    first = {path: (m.initial_B.weight.asnumpy(), m.initial_A.weight.asnumpy()) for path, m in modules(packed).items()}
    config.first = first
    pet.apply(wide, config)
    ids = input_ids(fixtures)
    mine, other = (train(model, ids, compiled=compiled) for model in (packed, wide))
    for step, reference in zip(mine.history, other.history, strict=True):
        assert step["loss"] == pytest.approx(reference["loss"], abs=1e-5)
    theirs = {parameter.name: parameter.asnumpy() for parameter in pet.trainable_parameters(wide)}
    for parameter in pet.trainable_parameters(packed):
        np.testing.assert_allclose(parameter.asnumpy(), theirs[parameter.name], atol=1e-5, err_msg=parameter.name)


@pytest.mark.skipif(not available(), reason="there are no C kernels here")
def test_its_layers_are_one_operator(fixtures, monkeypatch):
    made, replace = [], whole.replace_layers
    monkeypatch.setattr(whole, "replace_layers", lambda old, new: made.extend(new) or replace(old, new))
    train(started(loaded(fixtures)), input_ids(fixtures), compiled=True)
    assert made and all(isinstance(cell, whole.FusedLayers) for cell in made)


def test_dora_starts_as_loftq_does(fixtures):
    found = []
    for dora in (False, True):
        model = started(loaded(fixtures), "loftq", use_dora=dora)
        found.append(model(input_ids(fixtures)).asnumpy())
    with pet.disable_adapters(model):
        assert np.abs(model(input_ids(fixtures)).asnumpy() - found[0]).max() > 1e-2
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


def test_a_second_adapter_works_over_the_base_that_the_first_one_left(fixtures):
    model, ids = started(loaded(fixtures)), input_ids(fixtures)
    before = codes(model)
    with pytest.raises(InputError, match=r"q_proj is packed without the first factors of another adapter; delete"):
        pet.add_adapter(model, LoRAConfig(rank=2, init="pissa", targets=["q_proj"]), "second")
    assert pet.list_adapters(model) == ["default"] and same_codes(model, before)
    for name, settings in (("plain", {}), ("dora", {"use_dora": True})):
        with pet.disable_adapters(model):
            base = model(ids).asnumpy()
        pet.add_adapter(model, LoRAConfig(rank=2, targets="all-linear", **settings), name)
        pet.set_adapter(model, name)
        np.testing.assert_allclose(model(ids).asnumpy(), base, atol=1e-4)


OTHERS = {
    "dora": pet.LoRAConfig(rank=2, targets=["down_proj"], use_dora=True),
    "ia3": pet.IA3Config(targets=["down_proj"], feedforward=[]),
    "ia3 at the input": pet.IA3Config(targets=["down_proj"], feedforward=["down_proj"]),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("other", OTHERS)
def test_another_adapter_beside_it_computes_over_the_whole_weight(fixtures, other, first):
    """The cell and the adapter then leave out nothing that the other one reads."""
    model, path = loaded(fixtures), "model.layers.1.mlp.down_proj"
    if first:
        pet.add_adapter(model, OTHERS[other], "other")
    started(model, targets=["down_proj"])
    if not first:
        pet.add_adapter(model, OTHERS[other], "other")
    pet.set_adapter(model, ["other", "default"])
    generator = np.random.default_rng(0)
    for parameter in pet.trainable_parameters(model):
        parameter.set_data(parameter + ms.Tensor(0.1 * generator.standard_normal(parameter.shape), ms.float32))
    site, x = registry(model).get("default").sites[path], generator.standard_normal((3, 112)).astype(np.float32)
    weight, own, theirs = weight_array(site), modules(model)[path], modules(model, "other")[path]
    change = x @ own.delta(weight).T
    if other == "dora":
        assert np.array_equal(theirs.magnitude.norm.asnumpy(), row_norms(weight))
        expected = x @ (weight + theirs.delta(weight)).T + change
    else:
        factor = theirs.ia3_l.asnumpy().reshape(-1)
        expected = ((x * factor) @ weight.T if theirs.changes_input else x @ weight.T * factor) + change
    np.testing.assert_allclose(site.cell(ms.Tensor(x)).asnumpy(), expected, atol=1e-4)
    pet.delete_adapter(model, "default")
    if other == "dora":
        assert np.array_equal(theirs.magnitude.norm.asnumpy(), row_norms(weight_array(site)))


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_another_base_beneath_it_is_packed_without_its_first_factors(fixtures, tmp_path, dora, trained):
    other = pet.AutoModel.from_pretrained(str(fixtures / BASE))
    for parameter in other.get_parameters():
        parameter.set_data(parameter * 1.25)
    other.save_pretrained(tmp_path)
    model = started(loaded(fixtures), use_dora=dora)
    if trained:
        for module in modules(model).values():
            module.lora_A.weight.set_data(module.lora_A.weight + 0.01)
    change = {path: module.factors() for path, module in modules(model).items()}
    load_into(model, tmp_path)
    for path, module in modules(model).items() if dora else ():
        norms = np.linalg.norm(quantized_cells(model)[f"{path}.weight"].dequantized().astype(np.float64), axis=1)
        np.testing.assert_allclose(module.magnitude.norm.asnumpy(), norms, rtol=1e-6)
        np.testing.assert_array_equal(module.lora_magnitude_vector.asnumpy(), module.magnitude.norm.asnumpy())
    if trained:  # the first factors of the other base stay beside what was learnt over them
        for path, module in modules(model).items():
            for now, then in zip(module.factors(), change[path], strict=True):
                np.testing.assert_array_equal(now, then)
        return
    fresh = started(pet.AutoModel.from_pretrained(str(tmp_path), quantization=NF4), use_dora=dora)
    assert same_codes(model, codes(fresh))
    assert np.array_equal(model(input_ids(fixtures)).asnumpy(), fresh(input_ids(fixtures)).asnumpy())


@pytest.mark.parametrize("init", ["pissa", "olora", "loftq"])
def test_a_base_that_is_packed_in_its_files_has_nothing_to_start_from(fixtures, tmp_path, init):
    quantize_checkpoint(fixtures / BASE, tmp_path, NF4)
    model = pet.AutoModel.from_pretrained(str(tmp_path))
    before = codes(model)
    with pytest.raises(InputError, match=r"q_proj.*unquantised weight is not in the files.*model\.quantization"):
        started(model, init)
    assert same_codes(model, before) and pet.list_adapters(model) == []


def test_a_member_reads_its_part_of_what_the_factors_leave(fixtures, tmp_path):
    """The adapter is on before the base is loaded, and cut to the member's part by then."""
    whole = started(loaded(fixtures))
    pet.save_adapter(whole, tmp_path / "adapter")
    group = types.SimpleNamespace(size=2, place=1)
    with Checkpoint(fixtures / BASE) as checkpoint:
        model = AutoModel.unloaded(checkpoint, AutoConfig.from_pretrained(fixtures / BASE), "float32", NF4)
        pet.load_adapter(model, tmp_path / "adapter", strict=False)
        specs = ShardSpecs(model.config, 2)
        for name, cell in quantized_cells(model).items():
            path = name.removesuffix(".weight")
            division = specs.of_base(path, "weight")[1]
            if division is None:
                continue
            cut_packed(cell, path, division, group, False)
            fill(cell, checkpoint, name)
            for one in (cell, quantized_cells(whole)[name]):  # look at the codes alone
                assert one.taken is not None
                object.__setattr__(one, "taken", None)
            assert np.array_equal(cell.published(), division.take(quantized_cells(whole)[name].published(), 1))
