"""Every layout against one process: losses, gradients, evaluation, generation, files, traffic, memory.

Two jobs, of two and of four workers, train the cases (layout_cases.py); the four are started by two launchers, as on
two machines. The two also train each case alone, as one process does. Some cases are trained in `pytest -m full` alone.
"""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor
from waiting import HANGING

sys.path.insert(0, str(Path(__file__).parent))

import layout_cases
from layout_cases import (
    ACCUMULATION,
    CARRIED,
    CASES,
    FOUR,
    LENGTH,
    ROWS,
    STEPS,
    TWO,
    base_of,
    config_for,
    make_trainer,
    shorten,
)
from sets import asked

import pet
from model_zoo.auto import AutoModel
from model_zoo.checkpoint.reading import Checkpoint
from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.errors import InputError
from pet.launching.control import Alone
from pet.launching.relaunch import check_size
from pet.meta_model import MetaModel
from pet.parallel.build import starts_from_base
from pet.parallel.checks import check_divisible
from pet.parallel.collectives import Group
from pet.parallel.loading import load_parts
from pet.parallel.mesh import Mesh
from pet.parallel.shares import shares
from pet.parallel.specs import balance
from pet.parallel.split import Division, parts_of
from pet.parallel.tensor import shard
from pet.parallel.whole import base_fingerprint
from pet.planning.process_memory import memory, saving_bytes
from pet.planning.search import Work
from pet.planning.traffic import Steps, step_traffic
from pet.train import checkpoint, state
from pet.train.distributed import DistributedContext

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
LIMIT = 2 * HANGING  # a job is dozens of runs

pytestmark = pytest.mark.slow


def cases(*names: str):
    """A test of each case that has these attributes."""
    params = [
        pytest.param(case, id=case.name, marks=[pytest.mark.full] if case.full else [])
        for case in CASES
        if all(getattr(case, name) for name in names)
    ]
    return pytest.mark.parametrize("case", params)


def start(output: Path, which: str, sets: str, cores: list[int], options: list[str], name: str) -> subprocess.Popen:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK_", "MS_", "PET_"))}
    environment |= {"PYTHONPATH": f"{ROOT}:{HERE}:{ROOT / 'tests' / 'support'}", "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    environment["PET_LAUNCH_SECRET"] = "of both of the launchers"
    environment |= {"LAYOUT_BASES": str(output / "bases"), "LAYOUT_CORES": json.dumps(cores)}
    options = [*options, "--log-dir", str(output / f"log_{name}")]
    command = [sys.executable, "-m", "pet", "launch", *options, "--"]
    command += [sys.executable, str(HERE / "layout_job.py"), which, sets, str(output)]
    return subprocess.Popen(
        command, cwd=output, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory, own_cores) -> Path:
    """The directory that both jobs have written to, which train the sets of cases that tests ask for."""
    tests = asked(request, "jobs")
    sets = {"full" if "case" in parameters and parameters["case"].full else "usual" for parameters in tests}
    return train(tmp_path_factory.mktemp("layouts"), "+".join(sorted(sets)), own_cores)


@pytest.fixture
def jobs(trained, monkeypatch) -> Path:
    """The same, whose bases are those that cases name."""
    monkeypatch.setattr(layout_cases, "SHORTENED", trained / "bases")
    return trained


def train(output: Path, sets: str, cores: list[int]) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_cases, "SHORTENED", output / "bases")
        for case in CASES:
            if case.layers:
                shorten(case)
    config = {"model_type": "llama", "vocab_size": 2000, "hidden_size": 768, "intermediate_size": 3072}
    config |= {"num_hidden_layers": 6, "num_attention_heads": 12, "max_position_embeddings": 64}
    from model_zoo.checkpoint.saving import save_pretrained

    save_pretrained(AutoModel.from_config(config), output / "large")
    running = [start(output, "two", sets, cores, ["-n", "2"], "two")]
    try:
        finish(running.pop())
        master = f"127.0.0.1:{Alone(1).store[1]}"
        for node in ("0", "1"):
            options = ["-n", "2", "--nnodes", "2", "--node-rank", node, "--master", master]
            running.append(start(output, "four", sets, cores, options, f"four_{node}"))
        while running:
            finish(running.pop())
    finally:
        for process in running:
            process.terminate()
    return output


def finish(process: subprocess.Popen) -> None:
    text, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, text[-6000:]


@cases()
def test_equals_one_process(jobs, case):
    expected, found = (dict(np.load(jobs / f"{each.name}.npz")) for each in (case.in_one, case))
    assert len(found["loss"]) == STEPS
    # half precision rounds the sum over a whole batch once, and the sums over its parts once each
    half = ("precision", "fp16") in case.settings
    near = 1e-2 if half or case.rounds else 1e-5
    if case.rounds:  # and it is rounded
        assert np.abs(found["loss"] - expected["loss"]).max() > 1e-7
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=0, atol=near)
    np.testing.assert_allclose(found["norm"], expected["norm"], rtol=1e-2 if near > 1e-5 else 1e-4, atol=1e-5)
    np.testing.assert_allclose(found["eval"], expected["eval"], rtol=0, atol=near)
    assert np.array_equal(found["scale"], expected["scale"]) and np.array_equal(found["skipped"], expected["skipped"])
    assert found["skipped"].any() == half and not found["skipped"].all()
    if half:  # the loss scale falls and rises again
        assert (np.diff(found["scale"]) < 0).any() and (np.diff(found["scale"]) > 0).any(), found["scale"]
    assert np.array_equal(found["labels"], expected["labels"])  # nothing lost, nothing seen twice
    assert abs(expected["loss"][0] - expected["loss"][-1]) > 0 and abs(np.diff(expected["eval"])[0]) > 1e-4
    assert ("generated" in found) == (case.whole and case.pipeline == 1)
    if "generated" in found:
        assert np.array_equal(found["generated"], expected["generated"])
    one, many = jobs / case.in_one.name, jobs / case.name
    if not case.adapted:
        tensors = [read_file(folder / "weights.safetensors") for folder in (one, many)]
        assert tensors[0].keys() == tensors[1].keys()
        for name, array in tensors[0].items():
            np.testing.assert_allclose(tensors[1][name], array, rtol=0, atol=near, err_msg=name)
        return
    # one file format whatever the layout, from which the base can be told
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (jobs / case.name / "adapter" / name).is_file()
    one, many = one / "adapter", many / "adapter"
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in (one, many)]
    assert configs[0] == configs[1]
    tensors = [read_file(folder / "adapter_model.safetensors") for folder in (one, many)]
    assert tensors[0].keys() == tensors[1].keys()
    for name, array in tensors[0].items():
        np.testing.assert_allclose(tensors[1][name], array, rtol=0, atol=near, err_msg=name)


def test_no_sample_is_lost_or_seen_twice(jobs):
    (steps, losses), *found = (json.loads((jobs / f"samples_{who}.json").read_text()) for who in ("alone", 0, 1))
    assert sorted(sample for step in steps for sample in step) == list(range(37))
    # the same samples in the same step, each on one of the replicas, and each replica has some
    assert [sorted(left + right) for left, right in zip(found[0][0], found[1][0], strict=True)] == steps
    assert all(any(seen) for seen, _ in found)
    for _, numbers_there in found:
        np.testing.assert_allclose(numbers_there, losses, rtol=0, atol=1e-5)


@cases("planned")
def test_plans_are_what_is_measured(jobs, case):
    """Bytes of parameters, gradients and optimizer on every process, and all that it sends in a step and for a file."""
    meta_model = MetaModel(case.config)
    adapter = config_for(case.method, meta_model.family)
    divided = shares(meta_model, adapter, case.tensor, case.pipeline, case.replicas)
    sizes = (ACCUMULATION * ROWS, LENGTH, "float32", dict(case.settings).get("optimizer", "adamw"))
    work = Work(meta_model, adapter, *sizes, quantization=case.quantization)
    rows = ROWS // case.data // case.micro_batches
    pieces, tokens = ACCUMULATION * case.micro_batches, rows * LENGTH
    recompute = int(dict(case.settings).get("recompute", 0))
    saved = []
    layout = (case.data, case.tensor, case.pipeline, pieces, tokens, 4, case.shard_optimizer, recompute)
    steps = Steps(*layout, sum=2 if case.rounds else 4)
    for rank in range(case.data * case.tensor * case.pipeline):
        stage = Mesh(case.data, case.tensor, case.pipeline, rank).stage
        held = json.loads((jobs / f"{case.name}.memory_{rank}.json").read_text())
        planned = memory(work, divided, steps, stage)
        assert planned["weights"] == held["weights"]
        assert planned["gradients"] == 2 * held["gradients"]  # the sum, and the micro-batch's under way
        # of ZeRO's owners the fullest is planned for
        assert 0.9 * planned["optimizer"] <= held["optimizer"] <= planned["optimizer"]
        divisions = {
            share.name: share.division and [share.division.axis, *share.division.blocks]
            for share in divided.of_stage(stage)
            if not share.adapter
        }
        assert divisions == {name: held["divisions"][name] for name in divisions}
        sent = json.loads((jobs / f"{case.name}.step_{rank}.json").read_text())
        expected = step_traffic(meta_model, divided, steps, stage, work.adapter)
        if case.reduce_buckets > 1:  # a plan has one
            expected["all_reduce", "data"][0] = case.reduce_buckets
        expected["all_gather", "world"] = [1, 16]  # whether all go on is asked after the step, in a second one
        assert sent == {"/".join(key): counts for key, counts in expected.items()}
        saved.append(json.loads((jobs / f"{case.name}.saving_{rank}.json").read_text()))
    found = {"held": saved[0]["held"], "received": saved[0]["receive"]}
    assert found == saving_bytes(work, divided, steps)
    assert sum(each["send"] for each in saved) == found["received"]  # nothing goes anywhere else
    assert not any(each["held"] or each["receive"] for each in saved[1:])


def test_checkpoints_go_from_one_over_four_to_one(jobs):
    for case, step in ((FOUR[1], STEPS), (CARRIED, STEPS // 2)):
        path = jobs / case.name / "checkpoints" / f"step-{step:06d}"
        # each process has written what it was the first to have, and its part of the optimizer's state
        there = {file.name for file in path.glob("*.safetensors")}
        assert {f"optimizer-{rank:05d}-of-00004.safetensors" for rank in range(4)} <= there
        trainer = make_trainer(case.in_one, DistributedContext())
        trainer.resume(path)
        stored = checkpoint.load(path)
        weights, optimizer, _ = state.snapshot(trainer)
        for whole, found in ((weights, stored.weights), (optimizer, stored.optimizer)):
            assert whole.keys() == found.keys() and all(np.array_equal(whole[name], found[name]) for name in whole)
    # over to CARRIED, nothing changed
    first = checkpoint.load(jobs / FOUR[1].name / "checkpoints" / f"step-{STEPS // 2:06d}")
    assert first.weights.keys() == stored.weights.keys() and first.optimizer.keys() == stored.optimizer.keys()
    for whole, found in ((first.weights, stored.weights), (first.optimizer, stored.optimizer)):
        assert all(np.array_equal(whole[name], found[name]) for name in whole)


def test_traffic_is_that_of_the_textbook(jobs):
    # tensor: two sums of B·S·H per layer forward, two backward; the first layer's input needs no gradient
    graph = json.loads((jobs / "graph_traffic.json").read_text())
    block, layers = ROWS * LENGTH * graph["hidden"] * 4, graph["layers"]
    assert graph["forward"] == [2 * layers, 2 * layers * block]
    assert graph["both"] == [4 * layers - 1, (4 * layers - 1) * block]
    # data: the adapter's gradients, in one message per step
    case = next(case for case in TWO if case.shard_optimizer and case.data == 2)
    sent = json.loads((jobs / f"{case.name}.step_0.json").read_text())
    trained = sum(array.size for array in read_file(jobs / case.name / "adapter/adapter_model.safetensors").values())
    assert sent["all_reduce/data"] == [1, trained * 4]
    assert sent["broadcast/data"] == [2, trained * 4]  # ZeRO: each owner's weights
    # the same bytes while the backward pass runs
    case = next(case for case in TWO if case.reduce_buckets > 1)
    pieces = json.loads((jobs / f"{case.name}.step_0.json").read_text())
    assert pieces["all_reduce/data"] == [case.reduce_buckets, trained * 4]
    # the frozen base: a replica hands in its half of each matrix forward and, but for the first three, backward
    case = next(case for case in TWO if case.shard_base and case.method == "lora")
    sent = json.loads((jobs / f"{case.name}.step_0.json").read_text())
    model = AutoModel.from_pretrained(base_of(case))
    sizes = [p.size for p in model.get_parameters() if len(p.shape) == 2 and ".layers." in p.name]
    first = sum(p.size for p in model.get_parameters() if re.search(r"\.0\.self_attn\.[qkv]_proj\.weight", p.name))
    assert sent["all_gather/base"] == [ACCUMULATION * (2 * len(sizes) - 3), ACCUMULATION * 2 * (2 * sum(sizes) - first)]
    # pipeline: one activation per micro-batch each way
    case = next(case for case in TWO if case.pipeline == 2)
    hidden = AutoModel.from_pretrained(base_of(case)).config.dims.hidden
    sent = json.loads((jobs / f"{case.name}.step_0.json").read_text())
    pieces, piece = ACCUMULATION * case.micro_batches, ROWS // case.micro_batches * LENGTH * hidden * 4
    assert sent["send/pipeline"] == sent["receive/pipeline"] == [pieces, pieces * piece]


def test_a_process_holds_its_part_alone(jobs):
    for rank in (0, 1):
        part, before, peak = json.loads((jobs / f"memory_{rank}.json").read_text())
        assert part > 100  # MB: enough to be seen
        assert peak - before < 1.3 * part + 64, f"{peak - before:.0f} MB for a part of {part:.0f} MB"


@pytest.mark.parametrize("targets", [["embed_tokens"], ["embed_tokens", "q_proj", "o_proj", "lm_head"]])
def test_a_loaded_dora_gets_the_norms_of_a_base_that_is_read_after_it(fixtures, tmp_path, targets):
    base, random = fixtures / "llama_gqa", np.random.default_rng(0)
    whole = pet.apply_lora(AutoModel.from_pretrained(base), rank=2, targets=targets, use_dora=True)
    for parameter in pet.trainable_parameters(whole):
        parameter.set_data(Tensor(parameter.asnumpy() + random.normal(0, 0.1, parameter.shape).astype(np.float32)))
    pet.save_adapter(whole, tmp_path)
    with Checkpoint(base) as checkpoint:
        model = AutoModel.unloaded(checkpoint, whole.config, "float32", None)
    model.base_fingerprint = base_fingerprint(model, base)
    pet.load_adapter(model, tmp_path)
    assert not starts_from_base(model)  # so that no process need load the whole
    load_parts(model, base, Group("tensor", "", (0,), 0))
    ids = np.arange(5, 21).reshape(2, 8)
    assert np.array_equal(model(ids).asnumpy(), whole(ids).asnumpy())


def test_copies_that_are_trained_whole_begin_as_the_base_that_is_read_after_them(fixtures):
    base, settings = fixtures / "qwen2_5", {"rank": 2, "targets": ["up_proj"], "bias": "all"}
    settings["modules_to_save"] = ["embed_tokens", "o_proj", "input_layernorm"]
    whole = pet.apply_lora(AutoModel.from_pretrained(base), **settings)
    with Checkpoint(base) as checkpoint:
        model = pet.apply_lora(AutoModel.unloaded(checkpoint, whole.config, "float32", None), **settings)
    load_parts(model, base, Group("tensor", "", (0,), 0))
    held = {parameter.name: parameter.asnumpy() for parameter in whole.get_parameters()}
    assert any("modules_to_save" in name and name.endswith("bias") for name in held)
    for parameter in model.get_parameters():
        assert np.array_equal(parameter.asnumpy(), held.pop(parameter.name)), parameter.name
    assert not held


def test_loaded_copies_are_cut_though_the_base_is_read_after_them(fixtures, tmp_path):
    """They became zeros, as the base's own parameters do until they are read."""
    base, random = fixtures / "llama_gqa", np.random.default_rng(0)
    whole = pet.apply_lora(AutoModel.from_pretrained(base), rank=2, modules_to_save=["o_proj", "up_proj"])
    for parameter in pet.trainable_parameters(whole):
        parameter.set_data(Tensor(random.normal(0, 0.1, parameter.shape).astype(np.float32)))
    pet.save_adapter(whole, tmp_path)
    with Checkpoint(base) as checkpoint:
        model = AutoModel.unloaded(checkpoint, whole.config, "float32", None)
    model.base_fingerprint = base_fingerprint(model, base)
    pet.load_adapter(model, tmp_path)
    shard(model, Group("tensor", "", (0, 1), 1), loaded=False)
    held = {parameter.name: parameter.asnumpy() for parameter in pet.trainable_parameters(whole)}
    copies = [parameter for parameter in pet.trainable_parameters(model) if "modules_to_save" in parameter.name]
    assert len(copies) == 6  # of three layers
    for copy in copies:
        expected = held[copy.name]
        axis = next(place for place, size in enumerate(copy.shape) if size != expected.shape[place])
        assert np.array_equal(copy.asnumpy(), np.split(expected, 2, axis)[1]), copy.name


def test_what_cannot_be_divided_is_refused(fixtures):
    config = AutoModel.from_pretrained(fixtures / "llama_gqa").config
    with pytest.raises(InputError, match="key/value heads cannot be divided evenly over"):
        check_divisible(config.dims, config.dims.kv_heads * 2)
    with pytest.raises(InputError, match=r"a job of 3 workers .*; the product must be the number of workers"):
        check_size(4, 3)
    with pytest.raises(InputError, match="5 stages for 4 layers"):
        balance([1] * 4, 0, 0, 5)


def test_places_in_the_mesh():
    places = [Mesh(2, 2, 2, rank) for rank in range(8)]
    assert [(place.stage, place.replica, place.shard) for place in places] == [
        (stage, replica, shard) for stage in (0, 1) for replica in (0, 1) for shard in (0, 1)
    ]
    assert places[5].ranks("tensor") == [4, 5]
    assert places[5].ranks("data") == [5, 7]
    assert places[5].ranks("pipeline") == [1, 5]


def test_stages_are_balanced_by_parameters():
    # an embedding as large as two layers and a head as large as three take layers from their stages
    parts = balance([1] * 8, 2, 3, 3)
    sizes = [len(part) for part in parts]
    assert [part.start for part in parts] == [0, sizes[0], sizes[0] + sizes[1]] and sum(sizes) == 8
    assert max(sizes[0] + 2, sizes[1], sizes[2] + 3) == 5  # 13 over three stages
    assert balance([5, 1, 1, 1], 0, 0, 2) == [range(0, 1), range(1, 4)]


def test_divisions_join_to_the_whole():
    whole = np.arange(16 * 3).reshape(16, 3)
    for axis, blocks in ((0, (16,)), (0, (8, 4, 4))):
        division = Division(axis, blocks, 2)
        parts = [division.take(whole, member) for member in (0, 1)]
        assert parts[0].shape == division.part_shape(whole.shape) == (8, 3)
        assert division.whole_shape(parts[0].shape) == whole.shape
        assert np.array_equal(division.join(parts), whole)
    assert parts[0][:, 0].tolist() == [0, 3, 6, 9, 24, 27, 36, 39]  # rows 0-3 of q, 8-9 of k, 12-13 of v
    # replicas share a member's part by rows, whichever axis that is cut along
    whole = np.arange(16 * 6).reshape(16, 6)
    for each in (None, division, Division(1, (2, 4), 2), Division(0, (16,), 2)):
        for member in (0, 1):
            part = whole if each is None else each.take(whole, member)
            for rows in (slice(0, len(part) // 2), slice(len(part) // 2, len(part))):
                axis, pieces = parts_of(types.SimpleNamespace(division=each, rows=rows), member)
                assert np.array_equal(np.concatenate([whole[index] for index in pieces], axis), part[rows])
    with pytest.raises(InputError, match="cannot be divided evenly over 3"):
        Division(0, (8, 4, 4), 3)
