"""Where a training step's time goes, by kind of kernel: `python benchmarks/operators.py CASE [--steps N]`.

The case is one of `cases.py`; weights are random, the adapter is a fresh LoRA. MindSpore's profiler times each kernel
of the compiled step. `taskset -c 0` in front shows one core's work, without the waiting of threads for one another.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

from cases import CASES
from mindspore.profiler import ProfilerActivity, profile, tensorboard_trace_handler
from mine import Mine

HERE = Path(__file__).parent


def kernel_times(run, steps: int) -> list[tuple[str, float, float]]:
    """Kind of kernel, how often it runs in a step, and its milliseconds per step; the longest first."""
    with tempfile.TemporaryDirectory() as directory:
        profiler = profile(activities=[ProfilerActivity.CPU], on_trace_ready=tensorboard_trace_handler(directory))
        run(steps)
        profiler.stop()
        (table,) = Path(directory).rglob("cpu_op_type_info_*.csv")
        with table.open() as file:
            rows = [
                (row["op_type"], int(row["type_occurrences"]) / steps, float(row["total_compute_time"]) / steps)
                for row in csv.DictReader(file)
            ]
    return sorted(rows, key=lambda row: -row[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=[name for name, case in CASES.items() if case.kind == "train"])
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, "prepare.py", options.case, directory], cwd=HERE, check=True)
        adapter = Path(directory, "adapter")
        side = Mine(options.case, str(Path(directory, "base")), str(adapter) if adapter.exists() else "")
        side.run(3)
        rows = kernel_times(side.run, options.steps)
    total = sum(milliseconds for _, _, milliseconds in rows)
    print(f"{'kernel':20} {'a step':>8} {'ms':>9} {'share':>7}")
    for kind, count, milliseconds in rows:
        if milliseconds > total / 200:
            print(f"{kind:20} {count:8.0f} {milliseconds:9.1f} {milliseconds / total:7.1%}")
    print(f"{'all':20} {sum(row[1] for row in rows):8.0f} {total:9.1f}")


if __name__ == "__main__":
    main()
