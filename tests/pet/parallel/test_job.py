"""Real workers: collectives that say what they should, jobs that others started, and the end of a failing one."""

import json
import os
import socket
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from sets import some
from waiting import HANGING

from pet.launching.environment import OF_A_JOB

ROOT = Path(__file__).resolve().parents[3]
CHECK = """
from pet.cli.imports import import_quickly
import_quickly()
import warnings
import numpy as np
from pet.parallel.join import join, leave
job = join()
import mindspore as ms
from mindspore import Tensor, nn, ops
from pet.parallel import collectives
from pet.parallel.gathered import GatheredProduct
everybody, other = collectives.world(), 1 - job.rank
with collectives.counting() as traffic:
    half = Tensor(np.full((2, 3), job.rank + 1, np.float32)).astype(ms.bfloat16)
    assert collectives.all_reduce(half, everybody).astype(ms.float32).asnumpy().tolist() == [[3.0] * 3] * 2
    assert collectives.all_reduce(Tensor(np.arange(3)), everybody).asnumpy().tolist() == [0, 2, 4]
    warnings.simplefilter("error")  # of an infinite norm: a step of half precision that overflows is nothing to warn of
    assert collectives.sum_numbers([1e10 + job.rank + 0.25, np.inf], everybody) == [2e10 + 1.5, np.inf]
    notes = [(np.dtype("int8"), collectives.Group("", "", (0,), rank)) for rank in (0, 1)]
    assert collectives.all_gather_object(notes[job.rank], everybody) == notes  # also what is no type of Python's own
    x = Tensor(np.full(4, job.rank, np.float32))
    assert collectives.broadcast(x, 1, everybody).asnumpy().tolist() == [1.0] * 4
    sent = collectives.send(x, other)
    assert collectives.receive((4,), ms.float32, other).asnumpy().tolist() == [other] * 4
    sent.wait()
# what a checkpoint is sent by to machines that do not have it
from pet.parallel.context import ParallelContext
block = np.frombuffer(bytes(range(100)) * 300, np.int8)
assert (ParallelContext(data=2).broadcast(block if job.rank == 0 else np.zeros_like(block)) == block).all()
assert traffic["send", "pipeline"].bytes == 16 and traffic["all_reduce", "world"].calls == 2

# what of the gradients is added up over whom, and that each number counts once in their norm; all go by any one
from types import SimpleNamespace as Some
segments = [Some(parameters=[Some(parallel_role=role)]) for role in ("whole", "split", "partial", "tied")]
own, rank = [1.0, 10.0, 100.0, 1000.0], job.rank + 1
vectors = [Tensor(np.full((2, 2), rank * value, np.float32)) for value in own]
for layout, sums, summed, loss, square in (
    ({"data": 2}, [rank], [3, 3, 3, 3], 3.0, 1111.0),  # whose summed gradients, so their squares, are the same
    ({"tensor": 2}, [7.0], [rank, rank, 3, rank], 7.0, 1131.0),
    ({"pipeline": 2, "micro_batches": 2}, [5.0 * job.rank], [rank, rank, rank, 3], 5.0, 1333.0),
):
    context = ParallelContext(**layout)
    if "pipeline" in layout:
        context.ends_group = collectives.make_group("tied", [0, 1])
    found = context.all_reduce_sum(vectors, segments)
    assert [float(each.asnumpy().reshape(-1)[-1]) for each in found] == [a * b for a, b in zip(summed, own)], layout
    squares = [value * (rank if "pipeline" in layout or (value == 10.0 and "tensor" in layout) else 1) for value in own]
    assert context.statistics(sums, squares, segments) == ([loss], square), layout
    assert [context.any(flag) for flag in (job.rank == 0, job.rank == 1, False)] == [True, True, False]

# a matrix of which each has two rows: gathered forward, and again for the gradient of what it is multiplied with
whole, x = np.arange(12, dtype=np.float32).reshape(4, 3), np.float32([[1, 2, 3]])
for dtype in (ms.float32, ms.float16, ms.bfloat16):
    rows = ms.Parameter(Tensor(whole[2 * job.rank : 2 * job.rank + 2]).astype(dtype), requires_grad=False)
    product = GatheredProduct(True, everybody, dtype)
    with collectives.counting() as traffic:
        y, slope = ms.value_and_grad(lambda x: product(x, rows)[:, 1:].sum())(Tensor(x))
    assert float(y.asnumpy()) == (x @ whole.T)[:, 1:].sum() and slope.asnumpy().tolist() == [whole[1:].sum(0).tolist()]
    counts = traffic["all_gather", "world"]
    assert (counts.calls, counts.bytes) == (2, 2 * 6 * rows.itemsize), (dtype, counts)

class Region(nn.Cell):
    def __init__(self):
        super().__init__()
        self.copy, self.reduce = collectives.CopyToGroup(everybody), collectives.ReduceFromGroup(everybody)
        self.share = float(job.rank + 1)
    def construct(self, x):
        return (self.reduce(self.copy(x) * x * self.share)).sum()

class Slope(nn.Cell):
    def __init__(self):
        super().__init__()
        self.slope = ms.value_and_grad(Region(), 0)
    @ms.jit
    def construct(self, x):
        return self.slope(x)

# the sum of rank-weighted x²: 3·x², of which the copied factor's slope is summed, the other's is not
value, slope = Slope()(Tensor(np.full(4, 2.0, np.float32)))
assert float(value.asnumpy()) == 3 * 4 * 4 and slope.asnumpy().tolist() == [2 * 3.0 + 2 * (job.rank + 1.0)] * 4
"""


def run(tmp_path, launcher: list[str], code: str) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK_", "MS_", "PET_"))}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [sys.executable, "-m", *launcher, sys.executable, str(script)]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANGING)


def test_processes_of_a_shell_script_with_a_rank_table_meet_on_a_cpu(tmp_path):
    """As MindFormers' own wrappers start them: one process each, RANK_TABLE_FILE naming addresses of accelerators. They
    set DEVICE_ID as well, which a script by hand leaves to the table."""
    devices = [{"device_id": str(rank), "device_ip": "192.1.27.6", "rank_id": str(rank)} for rank in range(2)]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"server_list": [{"server_id": "10.1.2.3", "device": devices}]}))
    script = tmp_path / "script.py"
    script.write_text(
        "from pet.cli.imports import import_quickly\nimport_quickly()\n"
        "from pet.compat.mindformers import init_context\nprint(init_context(use_parallel=True))\n"
        "from pet.parallel.join import barrier\nbarrier()\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK_", "MS_", "PET_"))}
    environment |= {"PYTHONPATH": str(ROOT), "RANK_TABLE_FILE": str(table), "RANK_SIZE": "2", "MASTER_PORT": str(port)}
    workers = [
        subprocess.Popen(
            [sys.executable, script],
            env={**environment, "RANK_ID": str(rank), **({"DEVICE_ID": "0"} if rank == 0 else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    assert ["(0, 2)" in workers[0].communicate()[0], "(1, 2)" in workers[1].communicate()[0]] == [True, True]
    assert [worker.returncode for worker in workers] == [0, 0]


def test_collectives_and_a_failing_worker_that_ends_those_that_wait_for_it(tmp_path):
    code = CHECK + (
        "print('all is well', flush=True)\n"
        "collectives.barrier()\n"
        "if job.rank == 1:\n"
        "    raise RuntimeError('in the middle of a step')\n"
        "try:\n    collectives.barrier()\nfinally:\n    print('gave up by itself')\n"
    )
    done = run(tmp_path, ["pet", "launch", "-n", "2", "--"], code)
    assert done.returncode == 1
    assert "all is well" in done.stdout and "all is well" in (tmp_path / "output/log/rank_1/worker.log").read_text()
    assert "gave up by itself" not in done.stdout  # the launcher has ended it
    assert "[rank 1] RuntimeError: in the middle of a step" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", some([1, 2], [2]))
def test_msrun_runs_the_command_line(tmp_path, base, workers):
    job = tmp_path / "job.yaml"
    job.write_text(
        f"model: {{path: {base}}}\ndata: {{train: {base / 'data.jsonl'}, max_length: 32}}\n"
        "adapter: {method: lora, rank: 2}\ntrain: {steps: 2, batch_size: 4}\n"
    )
    port = 10000 + os.getpid() % 20000
    numbers = [f"--worker_num={workers}", f"--local_worker_num={workers}"]
    options = [*numbers, "--join=True", f"--master_port={port}", "--log_dir=msrun"]
    # the collectives as in any script; then the command line, whose exit code must be msrun's too
    command = ["finetune", str(job), f"parallel.data={workers}", "output.dir=run"]
    code = (CHECK if workers > 1 else "from pet.launching.environment import read_job\njob = read_job()\n") + (
        f"assert job.launcher == 'msrun'\nimport sys\nfrom pet.cli.main import main\nsys.exit(main({command!r}))\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK_", "MS_", "PET_"))}
    environment |= {"PYTHONPATH": f"{ROOT / 'tests/support/quick_runs'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"  # msrun starts what is called python
    (tmp_path / "script.py").write_text(code)
    msrun = next(file for file in distribution("mindspore").files if file.name == "msrun").locate()
    command = [str(msrun), *options, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads((tmp_path / "run/summary.json").read_text())["steps"] == 2


def test_a_process_that_nobody_numbered_does_not_wait_for_others(monkeypatch):
    from model_zoo.errors import InputError
    from pet.parallel import join

    monkeypatch.setattr(join, "_job", None)
    monkeypatch.setenv("RANK_SIZE", "2")
    for name in {*OF_A_JOB} - {"RANK_SIZE"}:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"2 workers, but no RANK_ID says which one this is.*pet launch -n 2"):
        join.join()
