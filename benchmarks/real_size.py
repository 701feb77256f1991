"""A model of published size on this machine, by the command line: load, train, evaluate, save, resume, generate, merge.

    python benchmarks/real_size.py llama_7b|glm_6b --dtype bf16|int8|nf4 [--directory DIR] [--layers N] [--keep]

A checkpoint of the published dimensions with random bfloat16 weights is written in shards (13.5 GB for llama_7b; as
much again for the merged one) and deleted afterwards, unless it is kept. What each command took stands in REAL_SIZE.md,
beside what `pet plan` says. The loss is that of random weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = Path(__file__).parent / "REAL_SIZE.md"
TOKENIZERS = {"llama_7b": "llama_tiny", "glm_6b": "glm_tiny"}
LAYERS = ("num_hidden_layers", "num_layers")
TYPES = {
    "bf16": {},
    "int8": {"type": "int8"},
    "nf4": {"type": "nf4", "double": True},
}
LENGTH, STEPS, TOKENS = 512, 3, 16


# The checkpoint -------------------------------------------------------------------------------------------------------


def write_checkpoint(model: str, directory: Path, layers: int | None) -> int:
    """Random weights of the published dimensions, matrices normal with deviation 0.02. Returns the bytes."""
    from model_zoo.atomic import write_json
    from model_zoo.checkpoint.dtypes import to_bfloat16
    from model_zoo.checkpoint.saving import write_weights
    from model_zoo.counting import config_of
    from model_zoo.families import PRESETS

    values = dict(PRESETS[model])
    tiny = json.loads((ROOT / "recipes" / "bases" / TOKENIZERS[model] / "config.json").read_text("utf-8"))
    values.update({key: number for key, number in tiny.items() if key.endswith("_token_id")})  # the tokenizer's
    if layers is not None:
        values.update({key: layers for key in LAYERS if key in values})
    config = config_of(values)
    shapes = config.shapes()
    generator = np.random.default_rng(0)
    pool = to_bfloat16(generator.standard_normal(1 << 24, dtype=np.float32) * np.float32(0.02))

    def blocks(shape):
        """A tensor's bytes out of the pool, from a place of its own on."""
        left, place = math.prod(shape), int(generator.integers(pool.size))
        while left:
            piece = pool[place : place + left]
            yield memoryview(piece).cast("B")
            left, place = left - piece.size, 0

    def data(name):
        shape = shapes[name]
        if len(shape) == 2:
            return blocks(shape)
        fill = 0.0 if name.endswith(".bias") else 1.0
        return to_bfloat16(np.full(shape, fill, np.float32))

    directory.mkdir(parents=True)
    write_weights(directory, {name: ("bfloat16", shape) for name, shape in shapes.items()}, data, 5 * 10**9)
    write_json(directory / "config.json", config.for_file(config.to_dict(), "bfloat16"))
    return 2 * sum(map(math.prod, shapes.values()))


def write_recipe(model: str, base: Path, work: Path, dtype: str, recompute: bool, precision: str) -> Path:
    """LoRA of rank 8 on all linear layers, one row of 512 tokens a step."""
    row = " ".join(f"The number {number} follows the number {number - 1}." for number in range(1, 400))
    (work / "text.jsonl").write_text("".join(json.dumps({"text": row[30 * i :]}) + "\n" for i in range(8)))
    (work / "held_out.jsonl").write_text(json.dumps({"text": row[: 2 * LENGTH]}) + "\n")
    how = {"precision": precision, "recompute": recompute}
    data = {"format": "text", "max_length": LENGTH, "packing": "pack", "shuffle": False}
    recipe = {
        "model": {"path": str(base), "tokenizer": TOKENIZERS[model], "quantization": TYPES[dtype]},
        "adapter": {"method": "lora", "rank": 8, "targets": "all-linear"},
        "data": {"train": "text.jsonl", "eval": "held_out.jsonl", **data},
        "train": {"steps": STEPS, "batch_size": 1, "save_every": STEPS, "learning_rate": 1e-4, **how},
        "eval": {"before": False, "batch_size": 1, "shown_samples": 0},
        "output": {"dir": str(work / "run")},
    }
    path = work / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


# Commands -----------------------------------------------------------------------------------------------------------


def measured(name: str, command: list[str], log: Path) -> dict:
    """Runs a command; its seconds and the peak of its resident memory."""
    print(f"{name} …", flush=True)
    begin = time.perf_counter()
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
    seconds, code = time.perf_counter() - begin, os.waitstatus_to_exitcode(status)
    if code:
        raise SystemExit(f"{name} ended with {code}:\n{log.read_text()[-3000:]}")
    found = {"name": name, "seconds": seconds, "peak_gb": usage.ru_maxrss * 1024 / 1e9}
    print(f"{name}: {seconds:.1f} s, {found['peak_gb']:.2f} GB", flush=True)
    return found


def pet(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pet", *arguments]


OPEN = """
import sys, json, pet
quantization = json.loads(sys.argv[2]) or None
model = pet.AutoModel.from_pretrained(sys.argv[1], *sys.argv[3:], quantization=quantization)
print(sum(parameter.nbytes for parameter in model.get_parameters()))
"""


def steps_of(run: Path) -> list[dict]:
    """The steps in a run's metrics."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "loss" in row and "step" in row and "learning_rate" in row]


def run_case(model: str, dtype: str, work: Path, layers: int | None, recompute: bool, precision: str) -> dict:
    """All commands."""
    base, run, merged = work / "base", work / "run", work / "merged"
    if not base.exists():
        begin = time.perf_counter()
        size = write_checkpoint(model, base, layers)
        print(f"{size / 1e9:.2f} GB written in {time.perf_counter() - begin:.1f} s", flush=True)
    size = sum(path.stat().st_size for path in base.glob("*.safetensors"))
    begin = time.perf_counter()
    for path in base.glob("*.safetensors"):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass
    read = time.perf_counter() - begin
    recipe = str(write_recipe(model, base, work, dtype, recompute, precision))
    asked = json.dumps(TYPES[dtype])
    steps, log = [], lambda name: work / f"{name}.log"
    steps.append(measured("load", [sys.executable, "-c", OPEN, str(base), asked, "auto"], log("load")))
    steps.append(measured("train, evaluate, save", pet("finetune", recipe), log("train")))
    rows = steps_of(run)
    steps[-1]["tokens_per_second"] = [row["useful_tokens_per_second"] for row in rows]
    more = pet("finetune", recipe, f"train.steps={STEPS + 1}", "--resume")
    steps.append(measured("resume for one step", more, log("resume")))
    question = ["--input", "The number", "--max-new-tokens", str(TOKENS)]
    steps.append(measured(f"generate {TOKENS} tokens", pet("predict", "--run", str(run), *question), log("predict")))
    into = ["--base", str(base), "--output", str(merged)]
    steps.append(measured("merge, streaming", pet("merge", str(run / "adapter"), *into), log("merge")))
    steps.append(
        measured("open the merged shards", [sys.executable, "-c", OPEN, str(merged), asked, "auto"], log("open"))
    )
    shutil.rmtree(merged)
    options = ["--targets", "all-linear", "--batch", "1", "--length", str(LENGTH)] + ["--recompute"] * recompute
    products = json.loads((run / "summary.json").read_text())["precision"]
    options += ["--precision", products.split()[0]]
    options += ["--quantization", TYPES[dtype]["type"]] if TYPES[dtype] else []
    options += ["--double"] if TYPES[dtype].get("double") else []
    place = ["--devices", "1", "--memory", "64GB", "--reserve", "0GB", "--json"]
    told = subprocess.run(
        pet("plan", str(base), *options, *place), capture_output=True, text=True, check=True, cwd=ROOT
    )
    planned = json.loads(told.stdout)["feasible"][0]["memory_bytes"]
    return {
        "model": model,
        "dtype": dtype,
        "layers": layers,
        "recompute": recompute,
        "precision": products,
        "stored_gb": size / 1e9,
        "read_seconds": read,
        "steps": steps,
        "losses": [row["loss"] for row in rows],
        "planned_gb": {key: value / 1e9 for key, value in planned.items()},
    }


# The report -----------------------------------------------------------------------------------------------------------

HEAD = """# Models of published size on one machine

`python benchmarks/real_size.py llama_7b|glm_6b --dtype bf16|int8|nf4`: random bfloat16 weights of the published
dimensions, LoRA of rank 8 on all linear layers, one row of 512 tokens a step. Every row is a command of its own, from
its start to its end, loading included; memory is the peak of the whole process's resident memory. *planned* is what
`pet plan` says of a step.
"""


def section(found: dict) -> str:
    """One case as Markdown."""
    title = f"{found['model']}, {found['dtype']}" + ("" if found["recompute"] else ", without recomputation")
    title += f", {found['layers']} layers" if found["layers"] else ""
    planned = found["planned_gb"]
    parts = ", ".join(f"{key} {value:.2f}" for key, value in planned.items() if key != "total" and value >= 0.005)
    lines = [
        f"## {title}",
        "",
        f"{machine()}. {found['stored_gb']:.1f} GB on disk, read in {found['read_seconds']:.1f} s. Products in "
        f"{found['precision']}. Planned: {planned['total']:.2f} GB ({parts}).",
        "",
        "| command | seconds | tokens/s | peak GB |",
        "|---|---|---|---|",
    ]
    for step in found["steps"]:
        speed = ", ".join(f"{value:.1f}" for value in step.get("tokens_per_second", ()))
        lines.append(f"| {step['name']} | {step['seconds']:.1f} | {speed} | {step['peak_gb']:.2f} |")
    losses = ", ".join(f"{value:.4f}" for value in found["losses"])
    return "\n".join([*lines, "", f"Losses of the steps: {losses}."])


def machine() -> str:
    """The processor, the cores and the memory."""
    import psutil

    name = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cores = len(os.sched_getaffinity(0))
    return f"{name[1] if name else 'CPU'}, {cores} cores, {psutil.virtual_memory().total / 1e9:.0f} GB"


def write_report(found: dict, path: Path) -> None:
    """Puts a case's section into the report, in the place of an earlier one."""
    text = path.read_text(encoding="utf-8") if path.exists() else HEAD
    new = section(found)
    head, *sections = re.split(r"(?m)^(?=## )", text)
    title = new.splitlines()[0]
    kept = [one.rstrip() for one in sections if one.splitlines()[0] != title]
    path.write_text("\n\n".join([head.rstrip(), *kept, new]) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=TOKENIZERS)
    parser.add_argument("--dtype", choices=TYPES, default="nf4")
    parser.add_argument("--directory", type=Path, help="where the checkpoints are written; default: a temporary one")
    parser.add_argument("--layers", type=int, help="fewer layers than published, for a trial")
    parser.add_argument("--no-recompute", action="store_true", help="keep activations for the backward pass")
    parser.add_argument(
        "--precision", default="auto", help="of products; default: auto, as the recipes of real sizes have it"
    )
    parser.add_argument("--keep", action="store_true", help="leave the base checkpoint, and use one that is there")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the report")
    options = parser.parse_args()
    parent = options.directory or Path(tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    work = parent / f"{options.model}-{options.layers or 'all'}"
    if work.exists() and not options.keep:
        raise SystemExit(f"{work} exists; delete it, or --keep to use the checkpoint in it")
    work.mkdir(exist_ok=True)
    try:
        for name in ("run", "merged"):
            shutil.rmtree(work / name, ignore_errors=True)
        found = run_case(
            options.model, options.dtype, work, options.layers, not options.no_recompute, options.precision
        )
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    write_report(found, options.output)
    print(section(found))


if __name__ == "__main__":
    main()
