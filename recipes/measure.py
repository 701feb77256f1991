"""Runs the recipes of the tiny bases one after another and writes what they came to into recipes/README.md.

    python recipes/measure.py                     # all that are not measured yet
    python recipes/measure.py glm_dora gpt_lora   # these, where they are not measured yet
    python recipes/measure.py --table             # only write README.md again

A recipe is measured again when its text, its base or its data have changed. The numbers are kept in
recipes/measured.json after each run, so that the work can be stopped and gone on with at any time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
STORE, TABLE = HERE / "measured.json", HERE / "README.md"
METRICS = {"loss": "held-out loss", "accuracy": "accuracy", "rouge_l": "ROUGE-L"}


def tunable() -> dict[str, Path]:
    """Recipes that run on a bundled base: name → file."""
    found = {path.stem: path for path in sorted(HERE.glob("*.yaml"))}
    return {name: path for name, path in found.items() if (HERE / "bases" / base_of(path) / "config.json").is_file()}


def base_of(path: Path) -> str:
    """The model that a recipe names."""
    return str(yaml.safe_load(path.read_text("utf-8"))["model"]["path"])


def digest(path: Path) -> str:
    """Of all that a run's result depends on: the recipe's text, the files of its base, its data."""
    data = yaml.safe_load(path.read_text("utf-8"))["data"]
    base = sorted(file for file in (HERE / "bases" / base_of(path)).iterdir() if file.is_file())
    total = hashlib.sha256()
    for file in (path, *base, HERE / data["train"], HERE / data["eval"]):
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]


def processor() -> str:
    """The machine's processor by name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine() -> dict:
    """Where and with what is measured."""
    packages = {}
    for name in ("mindspore", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not known"
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "not limited"),
        "python": platform.python_version(),
        **packages,
    }


def measure(name: str, path: Path) -> dict:
    """Run a recipe in a directory of its own, and keep what its summary says."""
    key, load = digest(path), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pet", "finetune", str(path), f"output.dir={directory}/run"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        }
        done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        summary = json.loads(Path(directory, "run", "summary.json").read_text())
    kept = ("steps", "seconds", "compile_seconds", "useful_tokens_per_second", "peak_memory_mb", "trainable", "total")
    return {
        "digest": key,
        "before": {metric: summary["before"].get(metric) for metric in METRICS},
        "after": {metric: summary["after"].get(metric) for metric in METRICS},
        **{word: summary[word] for word in kept},
        "load": load,
        "date": date.today().isoformat(),
        "machine": machine(),
    }


def change(row: dict, metric: str, digits: int) -> str:
    """``before → after``."""
    before, after = row["before"].get(metric), row["after"].get(metric)
    return "–" if before is None or after is None else f"{before:.{digits}f} → {after:.{digits}f}"


def line(name: str, path: Path, row: dict) -> str:
    """A recipe's row of the table."""
    cells = [
        f"[`{name}`]({path.name})",
        f"`{base_of(path)}`",
        change(row, "loss", 3),
        change(row, "accuracy", 3),
        change(row, "rouge_l", 3),
        str(row["steps"]),
        f"{row['seconds']:.0f}",
        f"{row['compile_seconds']:.0f}",
        f"{row['useful_tokens_per_second']:,.0f}",
        f"{row['peak_memory_mb']:,.0f}",
        f"{100 * row['trainable'] / row['total']:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def conditions(rows: dict[str, dict]) -> list[str]:
    """The machines and days that the rows come from, one line each."""
    groups: dict[str, list[dict]] = {}
    for row in rows.values():
        where = row["machine"]
        text = (
            f"{where['processor']}, {where['cores']} core(s) given to it, OMP_NUM_THREADS {where['threads']}; Python "
            f"{where['python']}, MindSpore {where['mindspore']}, NumPy {where['numpy']}; {row['date']}"
        )
        groups.setdefault(text, []).append(row)
    lines = []
    for text, members in groups.items():
        loads = [row["load"] for row in members]
        lines.append(
            f"- {text}: {len(members)} rows. The machine's load average was {min(loads):.1f} to {max(loads):.1f} when "
            "they began; above the number of cores, seconds and tokens/s say more about what else ran."
        )
    return lines


HEAD = """\
# The recipes, measured

`pet recipes` lists them, `pet recipes show NAME` shows every setting, `pet finetune NAME` runs one. Those named after a
published size (`glm_6b_lora`, `llama3_8b_lora`, …) need its weights and say at their top how to get them; those below
`pretrain/` made the tiny bases.

The table below is written by `python recipes/measure.py`, which runs each recipe as it stands and reads its
`summary.json`. Before is the base without an adapter, after the tuned one, both on rows that were not trained on.
Accuracy is the share of the answers' tokens that the model ranks first, of a classifier the share of the texts whose
label is right. ROUGE-L compares answers that the model writes.
Seconds are the whole run: loading, both evaluations, compilation, training, saving. Useful tokens are those of samples,
without padding. Bases differ in tokenizer and data, so losses compare within one base only.
"""


def write_table(store: dict[str, dict]) -> None:
    """README.md from what has been measured; what has not is said."""
    recipes = tunable()
    rows = {name: store[name] for name in recipes if name in store and store[name]["digest"] == digest(recipes[name])}
    missing = [name for name in recipes if name not in rows]
    names = [*METRICS.values(), "steps", "seconds", "of it compiling", "useful tokens/s", "peak MB", "trained %"]
    parts = [HEAD]
    if rows:
        parts.append("| recipe | base | " + " | ".join(names) + " |\n|---|---|" + "---|" * len(names))
        parts[-1] += "\n" + "\n".join(line(name, recipes[name], row) for name, row in rows.items()) + "\n"
        parts.append("Measured on:\n\n" + "\n".join(conditions(rows)) + "\n")
    if missing:
        parts.append("Not measured yet: " + ", ".join(f"`{name}`" for name in missing) + ".\n")
    TABLE.write_text("\n".join(parts), "utf-8")


def main() -> None:
    """Measure what is asked for, and keep each result at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes to measure; left out: all, glm_lora last")
    parser.add_argument("--table", action="store_true", help="measure nothing, only write README.md")
    options = parser.parse_args()
    recipes = tunable()
    unknown = [name for name in options.names if name not in recipes]
    if unknown:
        parser.error(f"no recipe on a bundled base is called {', '.join(unknown)}")
    store = json.loads(STORE.read_text("utf-8")) if STORE.is_file() else {}
    names = [] if options.table else options.names or sorted(recipes, key=lambda name: (name == "glm_lora", name))
    for name in names:
        if not (HERE / "bases" / base_of(recipes[name]) / "model.safetensors").is_file():
            print(f"{name}: {base_of(recipes[name])} has no weights yet")
            continue
        if store.get(name, {}).get("digest") == digest(recipes[name]):
            print(f"{name}: measured already")
            continue
        row = store[name] = measure(name, recipes[name])
        print(
            f"{name}: loss {change(row, 'loss', 4)}, ROUGE-L {change(row, 'rouge_l', 3)}, {row['seconds']:.0f} s",
            flush=True,
        )
        STORE.write_text(json.dumps(dict(sorted(store.items())), indent=1) + "\n", "utf-8")
        write_table(store)
    write_table(store)


if __name__ == "__main__":
    main()
