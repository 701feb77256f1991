"""Every layout against one process: losses, gradients, evaluation, generation, files, traffic, memory.

Two jobs, of two and of four workers, train all cases (layout_cases.py); the four are started by two launchers, as on
two machines. Meanwhile this process trains the same cases by itself.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from layout_cases import ACCUMULATION, FOUR, LENGTH, ROWS, STEPS, TWO, Case, generated, make_trainer, numbers

from adapters.files import save_adapter
from model_zoo.auto import AutoModel
from model_zoo.errors import InputError
from model_zoo.safetensors_io import read_file
from pet.parallel.control import Alone
from pet.parallel.mesh import Mesh
from pet.parallel.split import Division
from pet.parallel.stages import balance
from pet.parallel.tensor import check_divisible
from pet.train import checkpoint, state
from pet.train.world import World

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
LIMIT = 900

pytestmark = pytest.mark.slow


def start(output: Path, which: str, options: list[str], name: str) -> subprocess.Popen:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK_", "MS_", "PET_"))}
    environment |= {"PYTHONPATH": f"{ROOT}:{HERE}", "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    command = [sys.executable, "-m", "pet", "launch", *options, "--log-dir", str(output / f"log_{name}"), "--"]
    command += [sys.executable, str(HERE / "layout_job.py"), which, str(output)]
    return subprocess.Popen(
        command, cwd=output, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """(directory, the alone-trained cases by base and method)"""
    output = tmp_path_factory.mktemp("layouts")
    config = {"model_type": "llama", "vocab_size": 2000, "hidden_size": 768, "intermediate_size": 3072}
    config |= {"num_hidden_layers": 6, "num_attention_heads": 12, "max_position_embeddings": 64}
    from model_zoo.saving import save_pretrained

    save_pretrained(AutoModel.from_config(config), output / "large")
    running = [start(output, "two", ["-n", "2"], "two")]
    alone = {}
    try:
        for case in (*TWO, *FOUR):
            key = (case.base, case.method)
            if key not in alone:
                alone[key] = train_alone(Case(*key), output)
        finish(running.pop())
        master = f"127.0.0.1:{Alone(1).store[1]}"
        for node in ("0", "1"):
            options = ["-n", "2", "--nnodes", "2", "--node-rank", node, "--master", master]
            running.append(start(output, "four", options, f"four_{node}"))
        while running:
            finish(running.pop())
    finally:
        for process in running:
            process.terminate()
    return output, alone


def finish(process: subprocess.Popen) -> None:
    text, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, text[-6000:]


def train_alone(case: Case, output: Path) -> dict[str, np.ndarray]:
    trainer = make_trainer(case, World())
    trainer.train()
    trainer.model.set_train(False)
    save_adapter(trainer.model, output / f"{case.base}-{case.method}" / "adapter")
    found = {**numbers(trainer), "generated": generated(trainer.model)}
    trainer.model = None
    return found


@pytest.mark.parametrize("case", [*TWO, *FOUR], ids=lambda case: case.name)
def test_equals_one_process(jobs, case):
    output, alone = jobs
    expected, found = alone[case.base, case.method], dict(np.load(output / f"{case.name}.npz"))
    assert len(found["loss"]) == STEPS
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["norm"], expected["norm"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["eval"], expected["eval"], rtol=0, atol=1e-5)
    assert np.array_equal(found["labels"], expected["labels"])  # nothing lost, nothing seen twice
    assert abs(expected["loss"][0] - expected["loss"][-1]) > 0 and abs(np.diff(expected["eval"])[0]) > 1e-4
    if "generated" in found:
        assert np.array_equal(found["generated"], expected["generated"])
    # one file format whatever the layout, from which the base can be told
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (output / case.name / "adapter" / name).is_file()
    one, many = (output / folder / "adapter" for folder in (f"{case.base}-{case.method}", case.name))
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in (one, many)]
    assert configs[0] == configs[1]
    tensors = [read_file(folder / "adapter_model.safetensors") for folder in (one, many)]
    assert tensors[0].keys() == tensors[1].keys()
    for name, array in tensors[0].items():
        np.testing.assert_allclose(tensors[1][name], array, rtol=0, atol=1e-5, err_msg=name)


def test_checkpoint_of_four_workers_opens_in_one(jobs):
    output, _ = jobs
    case = FOUR[1]
    path = output / case.name / "checkpoints" / "step-000010"
    trainer = make_trainer(Case(case.base, case.method), World())
    trainer.resume(path)
    stored = checkpoint.load(path)
    weights, optimizer, _ = state.snapshot(trainer)
    for whole, found in ((weights, stored.weights), (optimizer, stored.optimizer)):
        assert whole.keys() == found.keys() and all(np.array_equal(whole[name], found[name]) for name in whole)


def test_traffic_is_that_of_the_textbook(jobs):
    output, _ = jobs
    # tensor: two sums of B·S·H per layer forward, two backward; the first layer's input needs no gradient
    graph = json.loads((output / "graph_traffic.json").read_text())
    block, layers = ROWS * LENGTH * graph["hidden"] * 4, graph["layers"]
    assert graph["forward"] == [2 * layers, 2 * layers * block]
    assert graph["both"] == [4 * layers - 1, (4 * layers - 1) * block]
    # data: the adapter's gradients, in one message per step
    case = TWO[-1]
    traffic = json.loads((output / f"{case.name}.traffic.json").read_text())
    trained = sum(array.size for array in read_file(output / case.name / "adapter/adapter_model.safetensors").values())
    assert traffic["all_reduce.data"] == [STEPS, STEPS * trained * 4]
    assert traffic["broadcast.data"] == [STEPS * 2, STEPS * trained * 4]  # ZeRO: each owner's weights
    # pipeline: one activation per micro-batch each way, and one per evaluated batch
    case = TWO[1]
    hidden = AutoModel.from_pretrained(HERE.parents[1] / "fixtures" / case.base).config.dims.hidden
    traffic = json.loads((output / f"{case.name}.traffic.json").read_text())
    forwards, piece = STEPS * ACCUMULATION * case.micro_batches, ROWS // case.micro_batches * LENGTH * hidden * 4
    evaluated = 2 * 2  # twice, two batches
    assert traffic["send.pipeline"] == [forwards + evaluated, forwards * piece + evaluated * ROWS * LENGTH * hidden * 4]
    assert traffic["receive.pipeline"] == [forwards, forwards * piece]


def test_a_process_holds_its_part_alone(jobs):
    output, _ = jobs
    for rank in (0, 1):
        part, before, peak = json.loads((output / f"memory_{rank}.json").read_text())
        assert part > 100  # MB: enough to be seen
        assert peak - before < 1.3 * part + 64, f"{peak - before:.0f} MB for a part of {part:.0f} MB"


def test_what_cannot_be_divided_is_refused(fixtures):
    config = AutoModel.from_pretrained(fixtures / "llama_gqa").config
    with pytest.raises(InputError, match="key/value heads cannot be divided evenly over"):
        check_divisible(config, config.dims.kv_heads * 2)
    with pytest.raises(InputError, match="the product must be the number of workers"):
        Mesh(2, 2, 1, rank=4)
    with pytest.raises(InputError, match="but the job has 3 workers"):
        Mesh(2, 2, 1).check_world(3)
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
    with pytest.raises(InputError, match="cannot be divided evenly over 3"):
        Division(0, (8, 4, 4), 3)
