"""Frozen weights in the 16 bits that they are stored in: the bits of the same checkpoint loaded as float32."""

from __future__ import annotations

import itertools
import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops
from sets import some

import pet
from adapters.apply import apply
from adapters.lora import LoRAConfig
from model_zoo import layers, storage
from model_zoo.auto import AutoModel
from model_zoo.checkpoint.fingerprint import fingerprint
from model_zoo.checkpoint.safetensors_io import write_stream
from model_zoo.engine import available, plain_products, run as whole
from model_zoo.graph import Graph

FAMILIES = ("llama_gqa", "gpt2", "chatglm1", "chatglm2", "glm", "glm4_0414", "qwen2_5", "mistral", "qwen3")
FAMILIES += ("gemma2", "gemma3", "qwen3_moe")
TYPES = ("bfloat16", "float16", "float32")


@pytest.fixture(scope="module")
def mixed(fixtures, tmp_path_factory):
    """A family's tiny checkpoint with its tensors in turn in each of the types."""

    def of(family: str):
        model, out = AutoModel.from_pretrained(fixtures / family), tmp_path_factory.mktemp(family)
        arrays = {name: parameter.asnumpy() for name, parameter in model.parameters_dict().items()}
        matrices, others = itertools.cycle(TYPES), itertools.cycle(TYPES)
        described = {
            name: (next(matrices if array.ndim > 1 else others), array.shape) for name, array in sorted(arrays.items())
        }
        with open(out / "model.safetensors", "wb") as file:
            write_stream(file, described, arrays.__getitem__)
        (out / "config.json").write_text(json.dumps(model.config.to_dict()))
        return out, {name: word for name, (word, _) in described.items()}

    return of


@pytest.fixture(scope="module")
def llama(mixed):
    return mixed("llama_gqa")[0]


def batch_of(model, seed: int, rows: int = 2, length: int = 17) -> dict[str, np.ndarray]:
    """Two documents in each row, the second of which sees nothing of the first."""
    ids = np.random.default_rng(seed).integers(10, 60, (rows, length)).astype(np.int32)
    index = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    start = np.where(index < length // 3, 0, length // 3).astype(np.int32)
    positions = index - start
    if model.family.name == "glm":
        positions = np.stack([positions, positions // 2], 1)
    return {"input_ids": ids, "labels": ids, "position_ids": positions, "start": start, "end": index + 1}


def prompt_of(model) -> np.ndarray:
    ids = np.random.default_rng(1).integers(10, 60, (2, 9)).astype(np.int32)
    if model.family.name == "glm":
        ids[:, 4] = model.config.bos_token_id
    return ids


def outcome(directory, dtype: str, config, out, compiled: bool = True):
    """Of a model that an adapter is trained on for five steps: logits before and after, losses, the adapter's bytes."""
    model = AutoModel.from_pretrained(directory, dtype=dtype)
    ids = prompt_of(model)
    logits = [model(ids).asnumpy()]
    apply(model, config)
    batches = [batch_of(model, seed) for seed in range(5)]
    trainer = pet.Trainer(model, batches, compiled=compiled, steps=5, learning_rate=1e-2, batch_size=2)
    trainer.train()
    logits.append(model(ids).asnumpy())
    pet.save_adapter(model, out)
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    return model, logits, [record["loss"] for record in trainer.history], files


def same(directory, config, tmp_path, **settings):
    """Whether a checkpoint as it is stored gives the bits that it gives in float32."""
    _, logits, losses, files = outcome(directory, "float32", config, tmp_path / "wide", **settings)
    model, its_logits, its_losses, its_files = outcome(directory, "auto", config, tmp_path / "kept", **settings)
    assert len(set(losses)) == 5 and its_losses == losses
    assert all(np.array_equal(*pair) for pair in zip(logits, its_logits, strict=True))
    assert not np.array_equal(*logits)
    assert its_files == files
    return model


@pytest.mark.parametrize(
    "family", some(FAMILIES, ("llama_gqa", "gpt2", "chatglm1", "glm4_0414", "gemma3", "qwen3_moe"))
)
def test_the_bits_are_those_of_float32(family, mixed, tmp_path, monkeypatch):
    """With dropout, and two documents in each row; layers that are one operator stay so."""
    groups = []
    replace = whole.replace_layers
    monkeypatch.setattr(whole, "replace_layers", lambda old, new: groups.append(list(new)) or replace(old, new))
    directory, types = mixed(family)
    model = same(directory, LoRAConfig(rank=3, targets="all-linear", dropout=0.2), tmp_path)
    held = {p.name: str(p.dtype).lower() for p in model.get_parameters() if not hasattr(p, "adapter")}
    for name, shape in model.config.shapes().items():
        wide = len(shape) == 1 or (not available() and types[name] == "bfloat16")
        assert held[name] == ("float32" if wide else types[name])
    if available():
        assert groups and all(isinstance(cell, whole.FusedLayers) for group in groups for cell in group)


@pytest.mark.parametrize(
    "config",
    [
        LoRAConfig(rank=2, targets="all-linear", use_dora=True, modules_to_save=["lm_head", "embed_tokens"]),
        LoRAConfig(rank=2, targets=["q_proj", "embed_tokens"], bias="all", trainable_tokens=[3, 11]),
    ],
    ids=["dora", "tokens"],
)
def test_what_is_trained_is_float32(config, llama, tmp_path):
    """DoRA's norms, copies of whole weights, rows of the embedding."""
    if config.trainable_tokens:
        config.targets = ["q_proj"]
    model = same(llama, config, tmp_path)
    assert {str(parameter.dtype) for parameter in model.trainable_params()} == {"Float32"}


def test_operator_by_operator(llama, tmp_path):
    same(llama, LoRAConfig(rank=2, targets="all-linear"), tmp_path, compiled=False)


@pytest.mark.skipif(not available(), reason="there is no C compiler")
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_ids_of_64_bits_have_their_rows(kind):
    """A graph of the caller's own hands them on as they are; each was read as two of 32 bits."""
    table = Tensor(np.random.default_rng(0).standard_normal((9, 20), np.float32)).astype(getattr(ms, kind))
    ids = np.array([[3, 8, 1], [7, 2, 5]])
    expected = table.astype(ms.float32).asnumpy()[ids]
    rows = storage.stored_rows()

    def within(table, ids):
        return rows(table, ids)

    for compute in (rows, Graph(within)):
        for width in (ms.int32, ms.int64):
            assert np.array_equal(compute(table, Tensor(ids, width)).asnumpy(), expected)


def test_decoding_evaluation_and_fingerprint(llama):
    kept, wide = (AutoModel.from_pretrained(llama, dtype=dtype) for dtype in ("auto", "float32"))
    assert fingerprint(kept.config.to_dict(), kept) == fingerprint(wide.config.to_dict(), wide)
    ids = prompt_of(kept)
    assert np.array_equal(*(model.generate(ids, max_new_tokens=4) for model in (kept, wide)))
    measured = []
    for model in (kept, wide):
        apply(model, LoRAConfig(rank=2))
        batches = [batch_of(model, 0)]
        measured.append(pet.Trainer(model, batches, batches, steps=1, batch_size=2).evaluate())
    assert measured[0] == measured[1]


def test_training_every_weight_widens_them(llama, tmp_path):
    """Sums of small changes are not in 16 bits: what is trained is float32 from the first step on, and its gradient."""
    found = []
    for dtype in ("float32", "auto"):
        model = AutoModel.from_pretrained(llama, dtype=dtype)
        batches = [batch_of(model, seed) for seed in range(2)]
        trainer = pet.Trainer(model, batches, steps=2, learning_rate=1e-3, batch_size=2)
        assert {str(parameter.dtype) for parameter in model.get_parameters()} == {"Float32"}
        trainer.train()
        arrays = [parameter.asnumpy().tobytes() for parameter in model.get_parameters()]
        found.append((arrays, [record["loss"] for record in trainer.history]))
    assert found[0] == found[1]


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_without_kernels_a_product_is_that_of_the_widened_weight(kind, turned):
    """Forward and backward, as the table's plain column has it."""
    generator = np.random.default_rng(0)
    x = Tensor(generator.standard_normal((5, 12), np.float32))
    narrow = Tensor(generator.standard_normal((7, 12) if turned else (12, 7), np.float32)).astype(getattr(ms, kind))
    product = plain_products.Widened(ops.MatMul(transpose_b=turned))

    def squares(x, weight):
        y = product(x, weight)
        return (y * y).sum()

    graph = Graph(ms.value_and_grad(squares, 0))
    found = [[one.asnumpy() for one in graph(x, weight)] for weight in (narrow, narrow.astype(ms.float32))]
    assert all(np.array_equal(*pair) for pair in zip(*found, strict=True))


def test_what_stays_as_it_is_stored(fixtures, monkeypatch):
    """Matrices, never norms and biases; without kernels nothing in bfloat16, which MindSpore lacks on a CPU."""
    config = AutoModel.from_pretrained(fixtures / "gpt2").config
    shapes = config.shapes()
    stored = {name: TYPES[index % 3] for index, name in enumerate(shapes)}
    matrices = {name: word for name, word in stored.items() if len(shapes[name]) == 2 and word != "float32"}
    assert set(matrices.values()) == {"bfloat16", "float16"}
    for there, kept in ((True, {"bfloat16", "float16"}), (False, {"float16"})):
        monkeypatch.setattr(storage, "available", lambda there=there: there)
        found = storage.kept_types(config, stored)
        assert found == {name: word for name, word in matrices.items() if word in kept}


def test_a_tied_head_stays_the_embeddings(fixtures, tmp_path):
    AutoModel.from_pretrained(fixtures / "gpt2").save_pretrained(tmp_path / "narrow", dtype="float16")
    model = AutoModel.from_pretrained(tmp_path / "narrow", dtype="auto")
    assert model.lm_head.weight is model.transformer.wte.weight
    assert isinstance(model.lm_head, layers.Linear) and model.lm_head.weight.dtype == ms.float16
