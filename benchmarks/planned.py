"""What `pet plan` says of memory and messages against what runs of one and two processes on a CPU measure.

    python benchmarks/planned.py [case ...] [--output planned.json]

Each process reports the bytes of its parameters, gradients and optimizer, what it sent in a step, and the peak of
MindSpore's pool, from which all tensors of a step come besides; MindSpore logs that at its end. A plan's activations
and buffers must be within a tenth of the peak. The gradients of the step are in the pool, so they count with it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS, LENGTH, RANK = 16, 256, 8
WIDE = ("float32", "bfloat16")
"""What matrices are kept in where they are not packed."""

LORA = {"method": "lora", "rank": RANK}
ALL = {**LORA, "targets": "all-linear"}


def config_of(kind: str, **sizes) -> dict:
    """A config.json of 8 layers, 512 wide."""
    common = {"model_type": kind, "vocab_size": 4000, "hidden_size": 512, "num_hidden_layers": 8}
    return {**common, "num_attention_heads": 8, "max_position_embeddings": 512, **sizes}


LLAMA = config_of("llama", intermediate_size=1376)
GLM = config_of("glm4", intermediate_size=1024, head_dim=64, num_key_value_heads=2)
QWEN2 = config_of("qwen2", intermediate_size=1376, num_key_value_heads=4)
QWEN3 = config_of("qwen3", intermediate_size=1376, num_key_value_heads=4, head_dim=64)
GEMMA3 = config_of("gemma3_text", intermediate_size=1376, num_key_value_heads=4, head_dim=64, sliding_window=64)
GEMMA3 |= {"query_pre_attn_scalar": 64, "tie_word_embeddings": True}
GPT2 = {"model_type": "gpt2", "vocab_size": 4000, "n_embd": 512, "n_layer": 8, "n_head": 8, "n_positions": 512}


@dataclasses.dataclass(frozen=True)
class Case:
    """What is trained.

    Attributes:
        config: of the model.
        layout: of the processes, as `ParallelContext` takes it.
        method: of tuning, as a recipe's adapter section has it.
        stored: the type that the base's matrices are kept in, or that they are packed in.
        train: further settings of the trainer.
    """

    config: dict
    layout: dict = dataclasses.field(default_factory=dict)
    method: dict = dataclasses.field(default_factory=lambda: LORA)
    stored: str = "float32"
    train: dict = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        method = " ".join(str(value) for key, value in self.method.items() if key != "rank")
        stored = [] if self.stored == "float32" else [self.stored]
        settings = [f"{key} {value}" for key, value in {**self.layout, **self.train}.items()]
        return ", ".join([self.config["model_type"], method, *stored, *settings])


CASES = [
    Case(LLAMA),
    Case(LLAMA, {"data": 2}),
    Case(LLAMA, {"tensor": 2}),
    Case(LLAMA, {"pipeline": 2, "micro_batches": 4}),
    Case(GLM, {"data": 2, "shard_optimizer": True}),
    Case(GLM, {"tensor": 2}),
    Case(GLM, {"pipeline": 2, "micro_batches": 2}),
    Case(GPT2),
    Case(GPT2, {"data": 2}, {"method": "adapter"}),
    Case(QWEN3, method={**ALL, "use_dora": True}),
    Case(GEMMA3, method=ALL),
    Case(LLAMA, method={"method": "none"}),
    Case(LLAMA, method={"method": "prefix"}),
    Case(LLAMA, method=ALL, stored="nf4"),
    Case(QWEN2, method=ALL, stored="bfloat16"),
    Case(LLAMA, method=ALL, train={"precision": "bf16"}),
    Case(QWEN3, {"tensor": 2}, ALL),
    Case(QWEN2, {"pipeline": 2, "micro_batches": 4}, {**ALL, "dropout": 0.1}),
    Case(LLAMA, {"tensor": 2}, ALL, "int8"),
    Case(GEMMA3, {"pipeline": 2, "micro_batches": 2}, ALL, train={"recompute": True}),
]


def work(case: int, counted: bool) -> None:
    """A worker: three steps; its numbers go to its log."""
    from pet.parallel.join import join

    job = join()
    import mindspore
    import numpy as np

    from adapters.apply import apply
    from adapters.methods import method_config
    from pet.parallel.context import ParallelContext
    from pet.train.trainer import Trainer

    told = CASES[case]
    distributed = ParallelContext(**told.layout, profile=counted)
    model, adapter = base_of(told), method_config(told.method)
    model = distributed.prepare(model if adapter is None else apply(model, adapter))
    # but for the keys that dropout draws by
    held = sum(int(p.size) * p.itemsize for p in model.get_parameters() if p.dtype != mindspore.int32)
    ids = np.random.default_rng(0).integers(5, 3000, (ROWS, LENGTH)).astype(np.int32)
    rows = ROWS // distributed.data_size
    batch = {"input_ids": ids[distributed.data_rank * rows : (distributed.data_rank + 1) * rows]}
    trainer = Trainer(model, [batch] * 3, distributed=distributed, steps=3, learning_rate=1e-4, **told.train)
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


def base_of(case: Case):
    """The model, with its matrices stored as the case has them."""
    from model_zoo.auto import AutoModel
    from model_zoo.quantization import Quantization

    model = AutoModel.from_config(case.config)
    if case.stored == "float32":
        return model
    with tempfile.TemporaryDirectory() as directory:
        if case.stored in WIDE:
            model.save_pretrained(directory, dtype=case.stored)
            return AutoModel.from_pretrained(directory, "auto")
        model.save_pretrained(directory)
        return AutoModel.from_pretrained(directory, quantization=Quantization(case.stored))


def planned(case: int, rank: int) -> dict:
    """The plan for the same process."""
    from adapters.methods import method_config
    from model_zoo.quantization import Quantization
    from pet.meta_model import MetaModel
    from pet.parallel.mesh import Mesh
    from pet.parallel.shares import shares
    from pet.planning.process_memory import memory
    from pet.planning.search import Work
    from pet.planning.traffic import Steps, step_traffic

    told, layout = CASES[case], CASES[case].layout
    data, tensor, pipeline, pieces = (layout.get(k, 1) for k in ("data", "tensor", "pipeline", "micro_batches"))
    meta_model, adapter = MetaModel(told.config), method_config(told.method)
    divided = shares(meta_model, adapter, tensor, pipeline)
    packed = None if told.stored in WIDE else Quantization(told.stored)
    stored, again = None if packed else told.stored, int(told.train.get("recompute", 0))
    kept = {"stored": stored, "quantization": packed, "precision": told.train.get("precision", "fp32")}
    job = Work(meta_model, adapter, ROWS, LENGTH, "float32", recompute=again, **kept)
    rows = ROWS // data // pieces
    steps = Steps(data, tensor, pipeline, pieces, rows * LENGTH, 4, "shard_optimizer" in layout, again)
    stage = Mesh(data, tensor, pipeline, rank).stage
    sent = step_traffic(meta_model, divided, steps, stage, adapter)
    if steps.data * steps.tensor * steps.pipeline > 1:
        sent["all_gather", "world"] = [1, 16]  # whether all go on is asked after the step, in a second one
    return {
        **memory(job, divided, steps, stage),
        "sent": {"/".join(key): counts for key, counts in sent.items()},
    }


def measure(case: int) -> list[dict]:
    """What each process of a case measured."""
    found = run(case, True)
    if "tensor" in CASES[case].layout:  # counting runs a step operator by operator, which takes more memory
        found = [{**one, "peak": other["peak"]} for one, other in zip(found, run(case, False), strict=True)]
    return found


def run(case: int, counted: bool) -> list[dict]:
    """A case in processes of its own."""
    layout = CASES[case].layout
    count = layout.get("data", 1) * layout.get("tensor", 1) * layout.get("pipeline", 1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    environment["MS_SUBMODULE_LOG_v"] = "{PRE_ACT:1}"
    command = [sys.executable, "-m", "pet", "launch", "-n", str(count), "--hang-timeout", "0", "--log-dir"]
    with tempfile.TemporaryDirectory() as directory:
        command += [directory, "--", sys.executable, __file__, "--worker", str(case), *(["--counted"] * counted)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise SystemExit(f"{CASES[case]}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        logs = [Path(directory, f"rank_{rank}", "worker.log").read_text(errors="replace") for rank in range(count)]
    found = []
    for text in logs:
        line = next(line for line in text.splitlines() if "RESULT {" in line)
        peaks = re.findall(r"peak used mem:(\d+)M, actual peak", text)
        found.append({**json.loads(line[line.index("{") :]), "peak": int(peaks[-1]) * 2**20})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=int, nargs="*", help="their numbers, from 0 on; all by default")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.counted)
        return
    sys.path.insert(0, str(ROOT))
    from model_zoo.engine import no_bf16

    results = []
    print(f"{'case':<66}{'rank':>5}{'held':>8}{'messages':>10}{'planned MB':>12}{'measured MB':>13}{'off':>7}")
    for case in options.cases or range(len(CASES)):
        told = CASES[case]
        layout = told.layout
        if told.train.get("precision") == "bf16" and (reason := no_bf16()):
            print(f"{told!s:<66} left out: {reason}", flush=True)
            continue
        for found in measure(case):
            plan = planned(case, found["rank"])
            gradients = found["gradients"] * (2 if layout.get("micro_batches", 1) > 1 else 1)
            held = plan["weights"] == found["weights"] and plan["gradients"] == gradients
            held = held and 0.9 * plan["optimizer"] <= found["optimizer"] <= plan["optimizer"]
            pool = plan["activations"] + plan["buffers"] + plan["gradients"]
            off = pool / found["peak"] - 1
            results.append({"case": str(told), "measured": found, "planned": plan, "off": off})
            same = "equal" if plan["sent"] == found["sent"] else "NOT EQUAL"
            print(
                f"{told!s:<66}{found['rank']:>5}{'equal' if held else 'NOT':>8}{same:>10}{pool / 2**20:>12.0f}"
                f"{found['peak'] / 2**20:>13.0f}{100 * off:>+6.0f} %",
                flush=True,
            )
    if options.output:
        options.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
