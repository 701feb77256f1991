"""Time of a training step on 1, 2 and 4 processes with one thread each, and what part of it is communication.

    python benchmarks/scaling.py [--steps 12] [--output scaling.json]

Every layout trains the same small LLaMA with LoRA on the same global batch, each process on a core of its own. They
share one machine's memory, so that a ratio against one process says what dividing costs, not how fast a cluster would
be. Ratios are within one run; absolute times mean little. Communication is measured by repeating a step's messages
alone: those of rank 0, as `--profile` counts them, so that waiting for the others is no part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYOUTS = [
    {},
    {"data": 2},
    {"tensor": 2},
    {"pipeline": 2, "micro_batches": 4},
    {"data": 4},
    {"tensor": 4},
    {"pipeline": 4, "micro_batches": 8},
    {"data": 2, "tensor": 2},
]
CONFIG = {
    "model_type": "llama",
    "vocab_size": 2000,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 128,
}
ROWS, LENGTH, WARM_UP, REPEATS = 8, 128, 3, 20


def work(layout: dict, steps: int) -> None:
    """A worker: trains, and lets rank 0 print the median step and the time of its messages."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK_ID"]) % len(cores)]})
    from pet.parallel.join import join

    job = join()
    import numpy as np

    from adapters.apply import apply_lora
    from model_zoo.auto import AutoModel
    from pet.parallel.context import ParallelContext
    from pet.train.trainer import Trainer

    distributed = ParallelContext(**layout, profile=True)
    model = distributed.prepare(apply_lora(AutoModel.from_config(CONFIG), rank=8))
    ids = np.random.default_rng(0).integers(5, CONFIG["vocab_size"], (ROWS, LENGTH)).astype(np.int32)
    batch = {"input_ids": ids[distributed.data_rank :: distributed.data_size]}
    trainer = Trainer(
        model, [batch] * (steps + WARM_UP), distributed=distributed, steps=steps + WARM_UP, learning_rate=1e-4
    )
    trainer.train()
    seconds = statistics.median(line["seconds"] for line in trainer.history[WARM_UP:])
    talking = 0.0
    for (kind, label), entry in sorted(distributed.meter.traffic().items()):
        talking += entry.calls * message_seconds(distributed, kind, label, entry.bytes // entry.calls)
    if job.rank == 0:
        print("RESULT", json.dumps({"seconds": seconds, "communication": talking}), flush=True)


def message_seconds(distributed, kind: str, label: str, size: int) -> float:
    """Time of one message of that many bytes; every process that has such messages calls this."""
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor

    from pet.parallel import collectives

    vector, mesh = Tensor(np.zeros(max(1, size // 4), np.float32)), distributed.mesh
    group = {
        "data": distributed.data_group,
        "tensor": distributed.tensor_group,
        "pipeline": distributed.pipeline_group,
        "world": collectives.world(),
    }[label]
    if kind == "receive":  # its time is that of the sending
        return 0.0

    def there_and_back() -> None:
        if mesh.stage > 1:
            return
        other = mesh.rank_at(stage=1 - mesh.stage)
        for sends in (mesh.stage == 0, mesh.stage == 1):
            if sends:
                collectives.send(vector, other).wait()
            else:
                collectives.receive(vector.shape, ms.float32, other).asnumpy()

    once = {
        "all_reduce": lambda: collectives.all_reduce(vector, group).asnumpy(),
        "all_gather": lambda: collectives.all_gather(vector, group)[-1].asnumpy(),
        "broadcast": lambda: collectives.broadcast(vector, 0, group).asnumpy(),
        "send": there_and_back,
    }[kind]
    distributed.barrier()
    once()
    begin = time.perf_counter()
    for _ in range(REPEATS):
        once()
    return (time.perf_counter() - begin) / REPEATS / (2 if kind == "send" else 1)


def measure(layout: dict, steps: int) -> dict:
    """One layout in processes of its own."""
    count = layout.get("data", 1) * layout.get("tensor", 1) * layout.get("pipeline", 1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    command = [sys.executable, "-m", "pet", "launch", "-n", str(count), "--hang-timeout", "0", "--log-dir"]
    command += [str(Path.cwd() / "output" / "scaling"), "--", sys.executable, __file__, "--worker", json.dumps(layout)]
    done = subprocess.run([*command, "--steps", str(steps)], env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        raise SystemExit(f"{layout}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {"layout": layout, "processes": count, **json.loads(lines[0].removeprefix("RESULT "))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.steps)
        return
    results = []
    print(f"{'layout':<40}{'processes':>10}{'time / one process':>20}{'communication':>15}")
    for layout in LAYOUTS:
        results.append(found := measure(layout, options.steps))
        found["ratio"] = found["seconds"] / results[0]["seconds"]
        share = found["communication"] / found["seconds"]
        name = ", ".join(f"{key} {value}" for key, value in layout.items()) or "one process"
        told = f"{100 * share:.0f} %" if found["processes"] > 1 else "-"
        print(f"{name:<40}{found['processes']:>10}{found['ratio']:>20.2f}{told:>15}", flush=True)
    if options.output:
        options.output.write_text(json.dumps({"load": os.getloadavg(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
