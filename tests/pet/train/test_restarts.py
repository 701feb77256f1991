"""ReLoRA: LoRA that becomes part of the base and begins anew while it is trained."""

from __future__ import annotations

import dataclasses
import json
import shutil

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from restarted_runs import ALPHA, KINDS, RANK, batches, made, trainer

import pet
from adapters.registry import registry
from adapters.relora import begin_anew
from model_zoo.checkpoint.reading import Checkpoint
from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.errors import InputError
from model_zoo.quantization import codec
from pet.cli.main import main
from pet.meta_model import MetaModel
from pet.parallel.shares import shares
from pet.planning.process_memory import weight_bytes
from pet.planning.search import Work
from pet.train.callbacks.records import read_metrics
from pet.train.restarts import prune

PATH = "model.layers.0.self_attn.q_proj"


def logits(model):
    return model(Tensor(batches()[0]["input_ids"], ms.int32)).asnumpy()


def lines(directory):
    keys = ("step", "loss", "learning_rate", "gradient_norm", "eval_loss")
    return [tuple(line.get(key) for key in keys) for line in read_metrics(directory / "metrics.jsonl")]


def stored(directory, step):
    return read_file(directory / "checkpoints" / f"step-{step:06d}" / "weights.safetensors")


@pytest.fixture(scope="module")
def whole(fixtures, tmp_path_factory):
    """A run of ten steps with two restarts, over each kind of base."""
    runs = {}

    def run(kind):
        if kind not in runs:
            directory = tmp_path_factory.mktemp(kind)
            model = made(fixtures, kind)
            trainer(model, directory).train()
            runs[kind] = model, directory
        return runs[kind]

    return run


def product(arrays, before="", path=PATH):
    b, a = (arrays[f"{before}{path}.lora_{name}.weight"].astype(np.float64) for name in "BA")
    return ALPHA / RANK * (b @ a)


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_is_the_sum_of_all_parts_rounded_once(fixtures, whole, kind):
    """By what checkpoints hold in front of each restart."""
    model, directory = whole(kind)
    first, second, last = (stored(directory, step) for step in (4, 8, 10))
    assert not any(name.startswith("earlier.") for name in first)
    np.testing.assert_array_equal(product(second, "earlier."), product(first))
    parts = product(first) + product(second)
    np.testing.assert_allclose(product(last, "earlier."), parts, rtol=0, atol=1e-12)
    assert np.abs(parts).max() > 1e-3 and last[f"{PATH}.lora_A.weight"].shape[0] == RANK
    with Checkpoint(fixtures / "llama_gqa") as checkpoint:
        base = checkpoint.read(f"{PATH}.weight")
    cell = dict(model.cells_and_names())[PATH]
    if kind == "float32":
        np.testing.assert_array_equal(cell.weight.asnumpy(), (base + parts).astype(np.float32))
    else:
        summed = (base.astype(np.float64) + parts).astype(np.float32)
        again = codec.quantize(cell.storage, cell.shape, lambda rows: summed[rows])
        assert all(np.array_equal(cell.arrays()[part], array) for part, array in again.items())
    with registry(model).disabled():
        own = cell.weight.asnumpy() if kind == "float32" else cell.dequantized()
        first_of_all = made(fixtures, kind).cells_and_names()
        bare = dict(first_of_all)[PATH]
        np.testing.assert_array_equal(own, bare.weight.asnumpy() if kind == "float32" else bare.dequantized())


@pytest.mark.parametrize("step", [2, 4, 6, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.cover
def test_resumed_runs_go_on_bit_for_bit(fixtures, whole, tmp_path, kind, step):
    """In front of the first restart, where one is due, and between two."""
    model, directory = whole(kind)
    again = made(fixtures, kind)
    trainer(again, tmp_path).train(resume=directory / "checkpoints" / f"step-{step:06d}")
    assert lines(tmp_path) == lines(directory)[step:]
    there, here = ({one.name: one.asnumpy() for one in each.get_parameters()} for each in (model, again))
    assert there.keys() == here.keys() and all(np.array_equal(there[name], here[name]) for name in there)
    left, right = stored(directory, 10), stored(tmp_path, 10)
    assert left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"down_proj": 3}, "alpha_pattern": {"q_proj": 5.0}, "init": "gaussian"},
        {"bias": "lora_only", "modules_to_save": ["norm"]},
        {"trainable_tokens": [3, 7]},
    ],
)
def test_what_is_saved_is_one_adapter_on_the_untouched_base(fixtures, tmp_path, settings):
    model = made(fixtures, **settings)
    trainer(model, tmp_path, save_every=None).train()
    pet.save_adapter(model, tmp_path / "adapter")
    values = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    growth = 3**0.5 if "use_rslora" in settings else 3
    assert (values["r"], values["lora_alpha"]) == (3 * RANK, pytest.approx(growth * ALPHA))
    plain = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    pet.load_adapter(plain, tmp_path / "adapter")
    np.testing.assert_allclose(logits(plain), logits(model), atol=2e-5)
    assert np.abs(logits(plain) - logits(pet.AutoModel.from_pretrained(fixtures / "llama_gqa"))).max() > 1e-2
    pet.merge_and_unload(model)
    np.testing.assert_allclose(logits(plain), logits(model), atol=2e-5)


def test_peft_opens_it(fixtures, whole, tmp_path):
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, _ = whole("float32")
    pet.save_adapter(model, tmp_path)
    base = transformers.AutoModelForCausalLM.from_pretrained(fixtures / "llama_gqa", dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path)
    with torch.no_grad():
        found = theirs(torch.tensor(batches()[0]["input_ids"])).logits.numpy()
    np.testing.assert_allclose(found, logits(model), atol=2e-4)


def test_what_begins_anew_computes_what_it_did(fixtures):
    model = made(fixtures)
    module = registry(model).get("default").modules[PATH]
    module.lora_B.weight.asnumpy()[...] = 0.1
    a, before = module.lora_A.weight.asnumpy().copy(), logits(model)
    assert begin_anew(model, seed=1) == 2 * RANK
    np.testing.assert_allclose(logits(model), before, atol=1e-5)
    assert not module.lora_B.weight.asnumpy().any()
    second = module.lora_A.weight.asnumpy().copy()
    assert not np.isclose(second, a).any() and second.std() == pytest.approx(a.std(), rel=0.3)
    assert begin_anew(model, seed=2) == 3 * RANK and not np.isclose(module.lora_A.weight.asnumpy(), second).any()


@pytest.mark.parametrize("kind", KINDS)
def test_merging_the_last_part_rounds_all_parts_once(fixtures, kind):
    """A packed weight out of its file, again, and not out of the codes that hold the earlier parts."""
    model, random = made(fixtures, kind), np.random.default_rng(0)
    cell, module = dict(model.cells_and_names())[PATH], registry(model).get("default").modules[PATH]
    with Checkpoint(fixtures / "llama_gqa") as checkpoint:
        summed = checkpoint.read(f"{PATH}.weight").astype(np.float64)
    for restarts in (True, False):
        module.lora_B.weight.asnumpy()[...] = random.normal(0, 0.05, module.lora_B.weight.shape)
        b, a = (each.weight.asnumpy().astype(np.float64) for each in (module.lora_B, module.lora_A))
        summed = summed + ALPHA / RANK * (b @ a)
        if restarts:
            begin_anew(model, seed=1)
    pet.merge(model, requantize=True)
    if kind == "float32":
        np.testing.assert_array_equal(cell.weight.asnumpy(), summed.astype(np.float32))
    else:
        codes = codec.quantize(cell.storage, cell.shape, lambda rows: summed.astype(np.float32)[rows])
        assert all(np.array_equal(cell.arrays()[part], array) for part, array in codes.items())


def test_an_adapter_whose_earlier_parts_are_merged_stays_as_it_is(fixtures, tmp_path):
    model = made(fixtures)
    pet.save_adapter(model, tmp_path)
    begin_anew(model, seed=1)
    for change, what in (
        (lambda: pet.set_alpha(model, 1.0), "changing its alpha"),
        (lambda: pet.hotswap_adapter(model, tmp_path), "exchanging it"),
        (lambda: pet.unmerge(model), "unmerging"),
    ):
        with pytest.raises(InputError, match=f"adapter 'default' was begun anew.*before {what} save it"):
            change()


@pytest.mark.parametrize("kind", KINDS)
def test_unmerging_gives_back_what_was_before_the_merge(fixtures, tmp_path, kind):
    """The earlier parts stay in the weights: without them the model would be another one than the one that is saved."""
    model = made(fixtures, kind)
    plain = logits(model)
    for seed in (1, 2):
        for parameter in pet.trainable_parameters(model):
            parameter.set_data(parameter + 0.02)
        begin_anew(model, seed)
    for parameter in pet.trainable_parameters(model):
        parameter.set_data(parameter + 0.02)
    before = logits(model)
    pet.merge(model, requantize=True)
    pet.unmerge(model)
    np.testing.assert_array_equal(logits(model), before)
    assert registry(model).merged_names == ("default-earlier",) and len(pet.trainable_parameters(model)) > 0
    assert begin_anew(model, 3) == 4 * RANK
    pet.save_adapter(model, tmp_path)
    pet.delete_adapter(model, "default")  # with all its parts
    assert pet.list_adapters(model) == []
    np.testing.assert_array_equal(logits(model), plain)
    pet.load_adapter(model, tmp_path)
    if kind == "float32":
        np.testing.assert_allclose(logits(model), before, atol=1e-4)


def test_the_best_weights_are_of_their_step(fixtures, whole, tmp_path):
    """Loading them takes what was merged later out of the base again."""
    _, directory = whole("float32")
    model = made(fixtures)
    one = trainer(model, tmp_path, steps=4)
    one.train()
    expected = logits(model)
    later = trainer(made(fixtures), directory)
    later.resume(directory / "checkpoints" / "step-000010")
    assert registry(later.model).merged_names == ("default-earlier",)
    later.best.step = 4
    later.load_best()
    assert registry(later.model).merged_names == () and registry(later.model).get("default").earlier is None
    np.testing.assert_array_equal(logits(later.model), expected)


def test_a_training_that_goes_on_begins_anew_once(fixtures, tmp_path):
    """What failed behind a restart does not restart again when it goes on."""
    model = made(fixtures)
    one = trainer(model, tmp_path, steps=6)
    step, calls = one.train_step, []

    def failing(*arguments, **keywords):
        calls.append(one.position.step)
        if calls == [0, 1, 2, 3, 4]:
            raise RuntimeError("lost")
        return step(*arguments, **keywords)

    one.train_step = failing
    with pytest.raises(RuntimeError, match="lost"):
        one.train()
    one.train()
    assert registry(model).get("default").earlier.config.rank == RANK and one.position.restarted == 4


@pytest.mark.cover(pairs=False)
@pytest.mark.parametrize("optimizer", ["adamw", "lion", "adafactor", "sgd"])
@pytest.mark.parametrize("share", [0.9, 1.0])
def test_the_smallest_of_the_state_is_forgotten(fixtures, optimizer, share):
    model = made(fixtures, modules_to_save=["norm"])
    one = trainer(model, None, optimizer=optimizer, steps=3, save_every=None, restart_every=None, restart_warmup=10)
    one.train()
    names = {each.name for each in registry(model).get("default").parameters() if "lora_" in each.name}
    before = one.optimizer.state_arrays()
    assert {key.partition(".")[2] for key in before} - names or optimizer == "sgd"
    prune(one.optimizer, names, share)
    after = one.optimizer.state_arrays()
    for key, array in before.items():
        slot, _, name = key.partition(".")
        kept = after[key] != 0
        if name not in names:
            np.testing.assert_array_equal(after[key], array)
        elif share == 1.0:
            assert not kept.any()
        else:
            np.testing.assert_array_equal(after[key], np.where(kept, array, 0))
            assert kept.mean() <= 0.1 + 1 / array.size
            if slot == "exp_avg":
                assert kept.any() and np.abs(array[kept]).min() >= np.abs(array[~kept]).max()
                if f"exp_avg_sq.{name}" in after:
                    np.testing.assert_array_equal(after[f"exp_avg_sq.{name}"] != 0, kept)


@pytest.mark.full
@pytest.mark.slow
def test_replicas_begin_anew_as_one_process_does(preference_runs, llama_layer, pair, tmp_path):
    """Their checkpoint is taken over by one process."""
    rows = [{"text": f"{number} and {number + 1} are {2 * number + 1}"} for number in range(24)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    how = {"objective": "causal", "steps": 7, "restart_every": 3, "restart_warmup": 2, "save_every": 2, "keep_last": 9}
    own = [f"model.path={llama_layer}", "data.format=text", "model.quantization.type=nf4"]
    assert main(preference_runs.command(tmp_path, "alone", *own, **how)) == 0
    pair(preference_runs.command(tmp_path, "together", *own, "parallel.data=2", **how))
    (one, alone), (two, together) = (preference_runs.result(tmp_path / name) for name in ("alone", "together"))
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-5)
    assert together["after"] == pytest.approx(alone["after"], rel=1e-4)
    left, right = (read_file(tmp_path / name / "adapter/adapter_model.safetensors") for name in ("alone", "together"))
    assert left.keys() == right.keys() and all(np.allclose(left[name], right[name], atol=1e-3) for name in left)
    for step in (6, 7):
        shutil.rmtree(tmp_path / "together" / "checkpoints" / f"step-{step:06d}")
    assert main(preference_runs.command(tmp_path, "together", *own, "--resume", **how)) == 0
    resumed, _ = preference_runs.result(tmp_path / "together")
    assert [line["seconds"] for line in resumed[:4]] == [line["seconds"] for line in two[:4]], (
        "these were not run again"
    )
    assert [line["loss"] for line in resumed] == pytest.approx([line["loss"] for line in one], rel=1e-5)


@pytest.mark.parametrize("kind", ["float32", "nf4"])
def test_the_second_copy_of_the_weights_is_planned(fixtures, kind):
    model = made(fixtures, kind)
    meta_model, adapter = MetaModel(model.config.to_dict()), registry(model).get("default").config
    work = Work(meta_model, adapter, 2, 10, "float32", quantization=KINDS[kind])
    divided = shares(meta_model, adapter)
    once, twice = (weight_bytes(one, divided, 0)[0] for one in (work, dataclasses.replace(work, restarts=True)))
    begin_anew(model, 1)
    kept = (target.kept for target in registry(model).merged.targets)
    arrays = [array for one in kept for array in (one[0].values() if isinstance(one, tuple) else [one])]
    assert twice - once == sum(array.nbytes for array in arrays)
