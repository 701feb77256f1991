"""Narrow products and recomputation on a reference model: close to, or the same as, the plain losses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

import pet
from adapters.lora import LoRAConfig
from adapters.prefix import PrefixConfig
from adapters.saving import load_adapter
from model_zoo import engine
from model_zoo.auto import AutoModel
from model_zoo.engine import speed
from model_zoo.errors import InputError
from model_zoo.generation.decoders import decoder_for
from model_zoo.graph import evaluating
from pet.recipe.loading import from_dict
from pet.recipe.training import Train
from pet.train import precision
from pet.train.distributed import DistributedContext
from pet.train.precision import NarrowProduct, set_precision, set_recompute
from pet.train.prepare import load_model
from pet.train.trainer import Trainer


@pytest.mark.parametrize("every", [1, 2])
def test_recomputation_renames_no_parameter(fixtures, every):
    """A slice of a CellList is a new CellList, which would name the layers' parameters after itself."""
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    before = [parameter.name for parameter in model.get_parameters()]
    precision.set_recompute(model, every)
    assert [parameter.name for parameter in model.get_parameters()] == before


def losses(fixtures, **settings):
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    load_adapter(model, fixtures / "llama_mha" / "lora_train_init")
    reference = np.load(fixtures / "llama_mha" / "lora_ref.npz")
    rows = zip(reference["train_input_ids"], reference["train_labels"], strict=True)
    trainer = Trainer(
        model,
        [{"input_ids": ids, "labels": labels} for ids, labels in rows],
        steps=6,
        learning_rate=1e-3,
        schedule="constant",
        warmup=0,
        clip_norm=None,
        **settings,
    )
    trainer.train()
    return np.array([line["loss"] for line in trainer.history]), reference["train_losses"][:6], trainer


@pytest.mark.slow
def test_half_precision_trains_like_single(fixtures):
    found, expected, trainer = losses(fixtures, precision="fp16")
    difference = np.abs(found - expected).max()
    assert 1e-6 < difference < 2e-2
    assert trainer.loss_scale.scale == 65536.0
    assert all(p.dtype == trainer.optimizer.segments[0].parameters[0].dtype for p in trainer.model.get_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("every", [True, 2])
def test_recomputed_layers_give_the_same_losses(fixtures, every):
    found, expected, trainer = losses(fixtures, recompute=every)
    assert np.abs(found - expected).max() < 1e-4
    chosen = [getattr(layer, "recomputes", False) for layer in trainer.model.layer_list]
    assert chosen == [index % int(every) == 0 for index in range(len(chosen))] and len(chosen) > 1


@pytest.mark.parametrize(("every", "chosen"), [(1, [0, 1, 2]), (2, [0, 2])])
def test_recomputed_layers_keep_the_names_of_their_parameters(fixtures, every, chosen):
    model = AutoModel.from_pretrained(fixtures / "llama_gqa")
    names = [parameter.name for parameter in model.get_parameters()]
    set_recompute(model, every)
    assert [parameter.name for parameter in model.get_parameters()] == names
    assert [index for index, layer in enumerate(model.layer_list) if getattr(layer, "recomputes", False)] == chosen


def test_recomputed_layers_give_all_gradients_operator_by_operator(fixtures):
    """Those of what layers share, which stands in the first, and of what is trained only later."""
    model, ids = AutoModel.from_pretrained(fixtures / "llama_gqa"), Tensor(np.arange(12, dtype=np.int32)[None])
    pet.add_adapter(model, LoRAConfig(rank=2, init="olora"), "later")
    pet.apply(model, PrefixConfig(length=2, projection=True), "prefix")

    def gradients():
        pet.set_adapter(model, ["prefix", "later"])
        weights = ms.ParameterTuple(pet.trainable_parameters(model))
        return [one.asnumpy() for one in ms.grad(lambda ids: model(ids)[:, -1, 3], None, weights)(ids)]

    expected = gradients()
    pet.set_adapter(model, "prefix")
    set_recompute(model)
    for found, right in zip(gradients(), expected, strict=True):
        assert np.abs(right).max() > 1e-6
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


def test_a_later_trainer_says_that_layers_are_still_recomputed(fixtures, caplog):
    model = AutoModel.from_pretrained(fixtures / "llama_gqa")
    for recompute, said in ((False, 0), (True, 0), (False, 1)):
        precision.prepare_model(model, Train(recompute=recompute), DistributedContext.alone())
        assert caplog.text.count("are recomputed since an earlier trainer") == said


needs_bf16 = pytest.mark.skipif(bool(engine.no_bf16()), reason=engine.no_bf16())


@needs_bf16
def test_a_model_answers_in_the_precision_that_it_has(fixtures):
    """What was made for its answers before is of another one."""
    ids = np.array([[5, 9, 12]])

    def logits(model):
        with evaluating(model):
            decoder = decoder_for(model, 1, ids.shape[1], 1, True)
            return np.stack([decoder.start(ids, np.ones_like(ids)), decoder.step(np.array([7]))])

    model, fresh = (AutoModel.from_pretrained(fixtures / "llama_gqa") for _ in range(2))
    before = logits(model)
    for each in (model, fresh):
        set_precision(each, "bf16")
    rounded = logits(model)
    assert np.array_equal(rounded, logits(fresh)) and not np.array_equal(rounded, before)
    set_precision(model, "fp32")
    assert np.array_equal(logits(model), before)


@needs_bf16
@pytest.mark.parametrize("compiled", [True, False])
def test_bfloat16_trains_like_single(fixtures, compiled):
    found, expected, trainer = losses(fixtures, precision="bf16", compiled=compiled)
    assert 1e-5 < np.abs(found / expected - 1).max() < 2e-3
    assert trainer.precision.name == "bf16"


@needs_bf16
def test_of_a_model_in_bfloat16_the_linear_cells_are_and_nothing_else(fixtures):
    """The base's, and attention's products: adapters compute in float32."""
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    load_adapter(model, fixtures / "llama_mha" / "lora_train_init")

    def rounded():
        return {name.rpartition(".")[0] for name, cell in model.cells_and_names() if isinstance(cell, engine.Rounded)}

    names = list(model.parameters_dict())
    for fast in (False, True):
        model.set_fast(fast)
        set_precision(model, "bf16")
        model.set_fast(False)
        found = rounded()
        assert {name.rpartition(".")[2] for name in found} > {"q_proj", "down_proj", "lm_head", "core"}
        assert not any("adapter" in name for name in found)
        set_precision(model, "fp32")
        assert not rounded() and list(model.parameters_dict()) == names


@pytest.mark.parametrize(
    ("asked", "reason", "speedup", "chosen"),
    [
        ("fp32", "", 9.0, "fp32"),
        ("bf16", "", 9.0, "bf16"),
        ("auto", "", 9.0, "bf16 (auto: bf16 products take 1/9.0 of float32's time here)"),
        ("auto", "", 1.1, "fp32 (auto: bf16 products take 1/1.1 of float32's time here)"),
        ("auto", "an old processor", 0.0, "fp32 (auto: no bf16 products: an old processor)"),
    ],
)
def test_auto_takes_what_is_fast_and_says_why(monkeypatch, asked, reason, speedup, chosen):
    monkeypatch.setattr(precision, "no_bf16", lambda: reason)
    monkeypatch.setattr(precision, "bf16_speedup", lambda: speedup)
    assert str(precision.choose_precision(asked)) == chosen


def test_bfloat16_is_refused_where_it_is_not_there_and_noted_where_it_is_slow(monkeypatch, caplog):
    monkeypatch.setattr(precision, "no_bf16", lambda: "an old processor")
    with pytest.raises(InputError, match="no matrix product here: an old processor; use fp32, or auto"):
        precision.choose_precision("bf16")
    monkeypatch.setattr(precision, "no_bf16", lambda: "")
    monkeypatch.setattr(precision, "bf16_speedup", lambda: 0.5)
    assert precision.choose_precision("bf16").name == "bf16"
    assert [r.message for r in caplog.records] == [
        "train.precision: bf16 products are slower than float32's here (0.5 times as fast)"
    ]


def test_the_speed_is_measured_once_and_kept_beside_the_kernels(monkeypatch, tmp_path):
    library = tmp_path / "native-x.so"
    monkeypatch.setattr(speed, "library", lambda: library)
    monkeypatch.setattr(speed, "product_rates", lambda: {"fp32": 100.0, "bf16": 325.0})
    assert speed.bf16_speedup.__wrapped__() == 3.25
    monkeypatch.setattr(speed, "product_rates", lambda: {"fp32": 100.0, "bf16": 100.0})
    assert speed.bf16_speedup.__wrapped__() == 3.25
    next(tmp_path.glob("native-x.*")).write_text("")  # cut off: measured again
    assert speed.bf16_speedup.__wrapped__() == 1.0


def test_processes_that_measure_at_once_go_by_one_result(monkeypatch, tmp_path):
    monkeypatch.setattr(speed, "library", lambda: tmp_path / "native-x.so")
    rates = iter(range(1, 9))
    monkeypatch.setattr(speed, "product_rates", lambda: {"fp32": 1.0, "bf16": float(next(rates))})
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: speed.bf16_speedup.__wrapped__(), range(4)))
    assert found == {1.0} and next(rates) == 2


def test_half_precision_is_taken_back(fixtures):
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    names = list(model.parameters_dict())

    def narrow():
        return sum(isinstance(cell, NarrowProduct) for _, cell in model.cells_and_names())

    set_precision(model, "fp16")
    assert narrow() > 10 and list(model.parameters_dict()) == names
    set_precision(model, "fp16")
    once = narrow()
    set_precision(model, "fp32")
    assert once > 10 and narrow() == 0


def test_bfloat16_as_a_models_own_type_is_refused_where_nothing_computes_in_it(fixtures):
    """On a CPU such a model can be loaded, saved and merged."""
    path = str(fixtures / "llama_gqa")
    model = AutoModel.from_pretrained(path, dtype="bfloat16")
    for run in (
        lambda: model([[1, 2]]),
        lambda: model.generate([[1, 2]]),
        lambda: Trainer(model, [{"input_ids": [[1, 2]], "labels": [[1, 2]]}], steps=1),
        lambda: load_model(from_dict({"model": {"path": path, "dtype": "bfloat16"}}, check_files=False)),
    ):
        with pytest.raises(InputError, match="dtype bfloat16: MindSpore cannot compute in it on a CPU; dtype auto"):
            run()
