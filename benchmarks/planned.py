"""What `pet plan` says of memory and messages against what runs of one and two processes on a CPU measure.

    python benchmarks/planned.py [--output planned.json]

Each process reports the bytes of its parameters, gradients and optimizer, what it sent in a step, and the peak of
MindSpore's pool, from which all tensors of a step come besides; MindSpore logs that at its end. A plan's activations
and buffers must be within a tenth of the peak. The gradients of the step are in the pool, so they count with it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LLAMA = {"model_type": "llama", "vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1376}
LLAMA |= {"num_hidden_layers": 8, "num_attention_heads": 8, "max_position_embeddings": 512}
GLM = {"model_type": "glm4", "vocab_size": 4000, "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64}
GLM |= {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 512}
CASES = [
    ({}, LLAMA),
    ({"data": 2}, LLAMA),
    ({"tensor": 2}, LLAMA),
    ({"pipeline": 2, "micro_batches": 4}, LLAMA),
    ({"data": 2, "shard_optimizer": True}, GLM),
    ({"tensor": 2}, GLM),
    ({"pipeline": 2, "micro_batches": 2}, GLM),
]
ROWS, LENGTH, RANK = 16, 256, 8


def work(case: int, counted: bool) -> None:
    """A worker: three steps; its numbers go to its log."""
    from pet.parallel.join import join

    job = join()
    import numpy as np

    from adapters.apply import apply_lora
    from model_zoo.auto import AutoModel
    from pet.parallel.context import ParallelContext
    from pet.train.trainer import Trainer

    layout, config = CASES[case]
    distributed = ParallelContext(**layout, profile=counted)
    model = distributed.prepare(apply_lora(AutoModel.from_config(config), rank=RANK))
    held = sum(int(p.size) * p.itemsize for p in model.get_parameters())
    ids = np.random.default_rng(0).integers(5, 3000, (ROWS, LENGTH)).astype(np.int32)
    rows = ROWS // distributed.data_size
    batch = {"input_ids": ids[distributed.data_rank * rows : (distributed.data_rank + 1) * rows]}
    trainer = Trainer(model, [batch] * 3, distributed=distributed, steps=3, learning_rate=1e-4)
    trainer.train()
    traffic = distributed.meter.traffic() if counted else {}
    sent = {"/".join(key): [entry.calls, entry.bytes] for key, entry in traffic.items()}
    found = {
        "rank": job.rank,
        "weights": held,
        "gradients": 4 * sum(segment.size for segment in trainer.optimizer.segments),
        "optimizer": sum(array.nbytes for array in trainer.optimizer.state_arrays().values()),
        "sent": sent,
    }
    print("RESULT", json.dumps(found), flush=True)


def planned(case: int, rank: int) -> dict:
    """The plan for the same process."""
    from adapters.lora import LoRAConfig
    from pet.meta_model import MetaModel
    from pet.parallel.mesh import Mesh
    from pet.parallel.shares import shares
    from pet.planning.search import Work, memory
    from pet.planning.traffic import Steps, step_traffic

    layout, config = CASES[case]
    data, tensor, pipeline, pieces = (layout.get(k, 1) for k in ("data", "tensor", "pipeline", "micro_batches"))
    meta_model, adapter = MetaModel(config), LoRAConfig(rank=RANK)
    divided = shares(meta_model, adapter, tensor, pipeline)
    job = Work(meta_model, adapter, ROWS, LENGTH, "float32")
    steps = Steps(data, tensor, pipeline, pieces, ROWS // data // pieces * LENGTH, 4, "shard_optimizer" in layout)
    stage = Mesh(data, tensor, pipeline, rank).stage
    sent = step_traffic(meta_model, divided, steps, stage, adapter)
    if steps.data * steps.tensor * steps.pipeline > 1:
        sent["all_gather", "world"] = [1, 16]  # whether all go on is asked after the step, in a second one
    return {
        **memory(job, divided, steps, stage, divided.of_stage(stage)),
        "sent": {"/".join(key): counts for key, counts in sent.items()},
    }


def measure(case: int) -> list[dict]:
    """What each process of a case measured."""
    found = run(case, True)
    if "tensor" in CASES[case][0]:  # counting runs a step operator by operator, which takes more memory
        found = [{**one, "peak": other["peak"]} for one, other in zip(found, run(case, False), strict=True)]
    return found


def run(case: int, counted: bool) -> list[dict]:
    """A case in processes of its own."""
    layout, _ = CASES[case]
    count = layout.get("data", 1) * layout.get("tensor", 1) * layout.get("pipeline", 1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    environment["MS_SUBMODULE_LOG_v"] = "{PRE_ACT:1}"
    command = [sys.executable, "-m", "pet", "launch", "-n", str(count), "--hang-timeout", "0", "--log-dir"]
    with tempfile.TemporaryDirectory() as directory:
        command += [directory, "--", sys.executable, __file__, "--worker", str(case), *(["--counted"] * counted)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise SystemExit(f"{layout}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        logs = [Path(directory, f"rank_{rank}", "worker.log").read_text(errors="replace") for rank in range(count)]
    found = []
    for text in logs:
        line = next(line for line in text.splitlines() if "RESULT {" in line)
        peaks = re.findall(r"peak used mem:(\d+)M, actual peak", text)
        found.append({**json.loads(line[line.index("{") :]), "peak": int(peaks[-1]) * 2**20})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.counted)
        return
    sys.path.insert(0, str(ROOT))
    results = []
    print(f"{'layout':<46}{'rank':>5}{'held':>8}{'messages':>10}{'planned MB':>12}{'measured MB':>13}{'off':>7}")
    for case, (layout, config) in enumerate(CASES):
        for found in measure(case):
            plan = planned(case, found["rank"])
            gradients = found["gradients"] * (2 if layout.get("micro_batches", 1) > 1 else 1)
            held = plan["weights"] == found["weights"] and plan["gradients"] == gradients
            held = held and 0.9 * plan["optimizer"] <= found["optimizer"] <= plan["optimizer"]
            pool = plan["activations"] + plan["buffers"] + plan["gradients"]
            off = pool / found["peak"] - 1
            kind = config["model_type"]
            results.append({"layout": layout, "model": kind, "measured": found, "planned": plan, "off": off})
            name = ", ".join([kind, *(f"{key} {value}" for key, value in layout.items())])
            same = "equal" if plan["sent"] == found["sent"] else "NOT EQUAL"
            print(
                f"{name:<46}{found['rank']:>5}{'equal' if held else 'NOT':>8}{same:>10}{pool / 2**20:>12.0f}"
                f"{found['peak'] / 2**20:>13.0f}{100 * off:>+6.0f} %",
                flush=True,
            )
    if options.output:
        options.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
