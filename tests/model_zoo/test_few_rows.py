"""Single tokens by C kernels: products of few rows, attention over a cache, layers as one operator."""

import ctypes

import numpy as np
import pytest
from mindspore import Parameter, Tensor
from sets import some

import pet
from adapters.lora import LoRAConfig
from adapters.prefix import PrefixConfig
from adapters.ptuning import PTuningV2Config
from model_zoo.auto import AutoModel
from model_zoo.engine import available
from model_zoo.engine.build import library
from model_zoo.engine.decode import TokenTracer, WholeTokenTracer, cache_by_core
from model_zoo.engine.ir import NotTraceable
from model_zoo.engine.trace import Tracer
from model_zoo.generation import decoders
from model_zoo.quantization import Quantization

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler here")


def run(name: str, *arrays: np.ndarray) -> None:
    """A kernel on arrays, of which it writes the last."""
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    dimensions = (ctypes.c_int * len(arrays))(*(array.ndim for array in arrays))
    shapes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    lines = (ctypes.POINTER(ctypes.c_int64) * len(arrays))(
        *(ctypes.cast(line, ctypes.POINTER(ctypes.c_int64)) for line in shapes)
    )
    kernel = getattr(ctypes.CDLL(str(library())), name)
    assert kernel(len(arrays), pointers, dimensions, lines, None, None, None) == 0


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9, 12])
def test_products_of_few_rows(rows):
    generator = np.random.default_rng(rows)
    for columns, depth in ((1, 1), (7, 5), (33, 70), (65, 17), (130, 64), (300, 511)):
        a = generator.standard_normal((rows, depth), np.float32)
        b = generator.standard_normal((columns, depth), np.float32)
        expected = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(np.float32)
        for name, right in (("product_of_rows", b), ("plain_product", np.ascontiguousarray(b.T))):
            found = np.full((rows, columns), np.nan, np.float32)
            run(name, a, right, found)
            assert np.allclose(found, expected, rtol=1e-5, atol=1e-5 * depth**0.5), (name, columns, depth)
            alone = np.empty((1, columns), np.float32)  # a row's sums do not depend on how many others there are
            run(name, a[-1:], right, alone)
            assert np.array_equal(alone[0], found[-1])


@pytest.mark.parametrize("front", [0, 3])
@pytest.mark.parametrize(("heads", "key_heads", "width"), [(2, 2, 5), (4, 2, 16), (6, 1, 64), (3, 3, 88)])
def test_attention_of_one_token(heads, key_heads, width, front):
    """Against softmax by NumPy: rows at columns of their own, hidden ones, some in front."""
    generator = np.random.default_rng(heads * width)
    batch, length, ends = 3, 37, np.array([[1], [20], [37]], np.int32)
    query = generator.standard_normal((batch, heads, 1, width), np.float32)
    keys, values = generator.standard_normal((2, batch, key_heads, front + 1, width), np.float32)
    kept = generator.standard_normal((2, batch, key_heads, length, width), np.float32)
    columns = (generator.random((batch, front + length)) < 0.7).astype(np.int32)
    for row in range(batch):
        columns[row, front + ends[row, 0] - 1] = 1
    before, found = kept.copy(), np.empty((batch, heads * width), np.float32)
    flat = kept.reshape(2, -1, width)
    numbers = np.array([width**-0.5], np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32)
    run("token_attention", query, keys, values, flat[0], flat[1], ends, columns, *numbers, found)
    for row in range(batch):
        end = ends[row, 0]
        before[0, row, :, end - 1], before[1, row, :, end - 1] = keys[row, :, front], values[row, :, front]
        seen = columns[row, : front + end] != 0
        for head in range(heads):
            own = head // (heads // key_heads)
            k, v = (
                np.concatenate([given[row, own, :front], all_kept[row, own, :end]])[seen].astype(np.float64)
                for given, all_kept in ((keys, before[0]), (values, before[1]))
            )
            scores = k @ query[row, head, 0] / np.sqrt(width)
            shares = np.exp(scores - scores.max())
            expected = shares @ v / shares.sum()
            assert np.allclose(found[row, head * width : (head + 1) * width], expected, atol=2e-6)
    assert np.array_equal(kept, before)  # the new key and value are in their place, and nothing else has changed


def adapt(model, name, config) -> None:
    """An adapter that changes something."""
    generator = np.random.default_rng(3)
    pet.add_adapter(model, config, name)
    for parameter in model.get_parameters():
        if ".lora_B." in parameter.name or "prompt_embeddings" in parameter.name:
            values = generator.standard_normal(parameter.shape).astype(np.float32)
            parameter.set_data(Tensor(values * np.float32(0.5)))


def untraceable(model) -> list[bool]:
    """For each layer, whether it runs operator by operator."""
    (decoder,) = model.__dict__["_decoders"].values()
    found = []
    for path, _ in decoder.cache.cores:
        layer = dict(model.cells_and_names())[path.removesuffix("." + model.family.attention_core)]
        tracer = TokenTracer(model.config.dims.hidden, layer, cache_by_core(decoder.cache))
        try:
            tracer.run(layer, tracer.hidden)
            found.append(False)
        except NotTraceable:
            found.append(True)
    return found


@pytest.mark.parametrize(
    "family",
    # of the others one, whose projections are fused as theirs are
    some(["llama_gqa", "chatglm1", "gpt2", "chatglm2"], ["llama_gqa", "chatglm1"]),
)
def test_ids_with_adapters_are_those_of_the_plain_path(family, fixtures):
    """LoRA on some cells and a prefix at every attention core, rows padded on the left; then LoRA alone, and nothing:
    always in layers as one operator."""
    directory = fixtures / family
    reference = np.load(directory / "ref.npz")
    padded = reference["gen_pad_ids"][:, :-16]
    mask = (padded != 3).astype(int) if family == "chatglm1" else reference["pad_attention_mask"][:, : padded.shape[1]]
    model = AutoModel.from_pretrained(directory)
    adapt(model, "low", LoRAConfig(rank=2, targets="all-linear"))
    adapt(model, "front", PrefixConfig(length=3))
    answers = []
    for names in (["low", "front"], ["low"]):
        if family in ("gpt2", "chatglm1") and names == ["low"]:
            continue  # what is left to see there costs as much again to compile
        pet.set_adapter(model, names)
        model.__dict__.pop("_decoders", None)
        found = model.generate(padded, mask, max_new_tokens=8)
        assert np.array_equal(found, model.generate(padded, mask, max_new_tokens=8, use_cache=False))
        assert not any(untraceable(model))
        answers.append(found)
        assert not model.runs_fast
    assert all(not np.array_equal(found, reference["gen_pad_ids"][:, : found.shape[1]]) for found in answers)
    pet.set_adapter(model, [])
    assert not any(untraceable(model))


def with_dora(directory, quantization=None, **settings):
    """A model with magnitudes and factors other than at the start."""
    model = AutoModel.from_pretrained(directory, quantization=quantization)
    adapt(model, "magnitudes", LoRAConfig(rank=2, targets="all-linear", use_dora=True, **settings))
    pet.set_adapter(model, "magnitudes")
    for parameter in model.get_parameters():
        if "lora_magnitude_vector" in parameter.name:
            factors = 1.0 + 0.3 * np.random.default_rng(0).standard_normal(parameter.shape)
            parameter.set_data(Tensor((parameter.asnumpy() * factors).astype(np.float32)))
    return model


@pytest.mark.parametrize(
    ("family", "init", "packed"),
    [
        pytest.param("llama_gqa", "default", None, marks=pytest.mark.full),
        pytest.param("llama_gqa", "pissa", None, marks=pytest.mark.full),
        ("llama_gqa", "pissa", Quantization("nf4")),
        ("gpt2", "olora", None),
        pytest.param("qwen3_moe", "default", None, marks=pytest.mark.full),
    ],
)
def test_ids_with_dora_are_those_of_the_plain_path(family, init, packed, fixtures):
    model, reference = with_dora(fixtures / family, packed, init=init), np.load(fixtures / family / "ref.npz")
    prompts = reference["gen_pad_ids"][:, :-16][-1:]
    found = model.generate(prompts, max_new_tokens=8)
    assert np.array_equal(found, model.generate(prompts, max_new_tokens=8, use_cache=False))
    assert not np.array_equal(found, reference["gen_pad_ids"][-1:, : found.shape[1]])
    assert not any(untraceable(model))


def test_factors_of_dora_are_computed_once_for_an_answer_to_the_same_bits(fixtures, monkeypatch):
    """What is trained in place is seen by the next answer, and in a longer cache that was kept."""
    monkeypatch.setattr(decoders, "FIRST_COLUMNS", 8)
    model, ids = with_dora(fixtures / "llama_gqa").set_train(False), np.arange(3, 33)[None]
    answers, kept = [], {}
    for once in (WholeTokenTracer.once, Tracer.once):
        monkeypatch.setattr(WholeTokenTracer, "once", once)
        model.__dict__.pop("_decoders", None)
        for seed in range(2):
            for parameter in model.get_parameters():
                if ".lora_B." in parameter.name:
                    moved = np.random.default_rng(seed).standard_normal(parameter.shape)
                    parameter.asnumpy()[...] = moved.astype(np.float32)
            decoder = decoders.decoder_for(model, 1, ids.shape[1], 40, True)
            answers.append([decoder.start(ids, np.ones_like(ids)), *(decoder.step(ids[:, i]) for i in range(30))])
            kept[once, seed] = list(model._decoders.values())
        assert len(kept[once, 0]) == 2 and kept[once, 0] == kept[once, 1]
    cells = 7 * model.config.dims.layers
    assert [len(decoder.token.held) for each in kept.values() for decoder in each] == [cells] * 4 + [0] * 4
    assert np.array_equal(answers[0], answers[2]) and np.array_equal(answers[1], answers[3])
    assert not np.array_equal(answers[0], answers[1])


@pytest.mark.parametrize("method", [PrefixConfig, PTuningV2Config])
def test_a_projected_prefix_is_computed_once_for_an_answer(method, fixtures, monkeypatch):
    """To the plain path's logits: what is trained in place is seen by the next answer, and in a longer cache that was
    kept."""
    monkeypatch.setattr(decoders, "FIRST_COLUMNS", 8)
    model, ids = AutoModel.from_pretrained(fixtures / "llama_gqa").set_train(False), np.arange(3, 53)[None]
    pet.add_adapter(model, method(length=3, projection=True, projection_hidden=8), "front")
    pet.set_adapter(model, "front")
    answers, kept = [], []
    for seed in range(2):
        for parameter in model.get_parameters():
            if parameter.requires_grad:
                moved = np.random.default_rng(seed).standard_normal(parameter.shape)
                parameter.asnumpy()[...] = moved.astype(np.float32)
        decoder = decoders.decoder_for(model, 1, 30, 20, True)
        found = [decoder.start(ids[:, :30], np.ones((1, 30), np.int32))]
        found += [decoder.step(ids[:, i]) for i in range(30, 50)]
        expected = model(Tensor(ids.astype(np.int32)))[0, 29:].asnumpy()
        assert np.abs(np.concatenate(found) - expected).max() < 3e-5
        answers.append(expected)
        kept.append(list(model._decoders.values()))
        assert all(decoder.token is not None for decoder in kept[-1])
        assert kept[-1][0].eager(kept[-1][0].prefill)
    assert len(kept[0]) == 2 and kept[0] == kept[1]
    assert np.abs(answers[0] - answers[1]).max() > 1


def test_ids_are_those_of_parameters_that_took_the_place_of_others(fixtures):
    """Another head, and one that shares its weight with the embedding, behind an answer by the old ones."""
    model, ids = AutoModel.from_pretrained(fixtures / "llama_mha"), np.array([[5, 9, 77, 3]])
    answers = [model.generate(ids, max_new_tokens=6, eos_token_id=None)]
    embedding = model.model.embed_tokens.weight
    for weight in (Parameter(np.roll(model.lm_head.weight.asnumpy(), 1, 0), name="lm_head.weight"), embedding):
        model.lm_head.weight = weight
        expected = model.generate(ids, max_new_tokens=6, eos_token_id=None, use_cache=False)
        assert not np.array_equal(expected, answers[-1])
        answers.append(model.generate(ids, max_new_tokens=6, eos_token_id=None))
        assert np.array_equal(answers[-1], expected)


@pytest.mark.parametrize("answered", [False, True])
def test_ids_of_weights_that_are_views_are_those_of_their_copies(answered, fixtures):
    """Matrices of a checkpoint that has them as (in, out), say: ``weight.set_data(other.T)``."""
    model, ids = AutoModel.from_pretrained(fixtures / "llama_mha"), np.array([[5, 9, 77, 3]])
    expected = model.generate(ids, max_new_tokens=6, eos_token_id=None)
    if not answered:
        model = AutoModel.from_pretrained(fixtures / "llama_mha")
    for parameter in model.get_parameters():
        if parameter.ndim == 2:
            parameter.set_data(Tensor(parameter.asnumpy().T.copy()).T)
            assert not parameter.is_contiguous()
    assert np.array_equal(model.generate(ids, max_new_tokens=6, eos_token_id=None), expected)
