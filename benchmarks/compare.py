"""Side by side with Hugging Face transformers + peft, in one run: `python benchmarks/compare.py [case ...]`.

Both sides get the same weights and LoRA start (through files in Hugging Face's and PEFT's layout), the same tokens and
AdamW. Each side is a process; only one of them runs at a time, the others are stopped. A round gives each side its
turn; what counts is the median over rounds of the ratio within a round. Training runs are void when the losses of the
first five steps differ by more than 1e-3, decoding when the first tokens differ.

Results are kept in `results.json`, a case at a time, and `RESULTS.md` is written anew from all of them.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from cases import CASES, NEW_TOKENS

HERE = Path(__file__).parent
SIDES = {"pet": ("mine.py", {}), "peer": ("peer.py", {}), "peer active": ("peer.py", {"OMP_WAIT_POLICY": "active"})}
PACKAGES = ("mindspore", "torch", "transformers", "peft", "numpy")


BUSY = 0.2
"""Above this share of the processor used by others, a case is void: the sides do not suffer alike from neighbours."""


CORES = sorted(os.sched_getaffinity(0))
"""The cores that both sides run on: all, or those that `taskset` leaves."""


def busy_seconds() -> float:
    """Time that anything on this machine has used of these cores (Linux)."""
    busy = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in CORES:
            user, nice, system, _, _, irq, softirq, *_ = map(int, fields)
            busy += user + nice + system + irq + softirq
    return busy / os.sysconf("SC_CLK_TCK")


def own_seconds(process: int) -> float:
    """Processor time of one process (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Worker:
    """One side's process, stopped unless it is its turn."""

    def __init__(self, side: str, name: str, directory: Path, threads: int):
        script, extra = SIDES[side]
        adapter = directory / "adapter"
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(HERE.parent), **extra}
        command = [sys.executable, script, name, str(directory / "base"), str(adapter) if adapter.exists() else ""]
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            cwd=HERE,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def turn(self, count: int) -> dict:
        """Lets the process run until it has answered; adds the share of the processor that others used meanwhile."""
        began, busy, own = time.perf_counter(), busy_seconds(), own_seconds(self.process.pid)
        answer = self.answer(count)
        others = busy_seconds() - busy - (own_seconds(self.process.pid) - own)
        answer["others"] = max(0.0, others) / (len(CORES) * (time.perf_counter() - began))
        return answer

    def answer(self, count: int) -> dict:
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                self.process.send_signal(signal.SIGSTOP)
                return json.loads(line)
        raise RuntimeError(f"{self.process.args[1]} ended without an answer")

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


def spread(values: list[float]) -> list[float]:
    """Median, least and most."""
    return [statistics.median(values), min(values), max(values)]


def first_turns(case, workers: dict[str, Worker], start: Callable[[str], Worker]) -> tuple[dict, dict, str]:
    """Start, warm-up and agreement: seconds of the first unit of work, and from process start to its end; why void."""
    firsts, starts, answers = {}, {}, {}
    for side in SIDES:  # one after the other: a process that starts would disturb the others' first step
        worker = workers[side] = start(side)
        first = worker.turn(1)
        firsts[side], starts[side] = first["seconds"], time.perf_counter() - worker.began
        answers[side] = first
        if case.kind == "train":
            answers[side]["losses"] += worker.turn(4)["losses"]
    mine, void = answers["pet"], ""
    for side, other in answers.items():
        if case.kind == "train":
            apart = max(abs(a - b) for a, b in zip(mine["losses"], other["losses"], strict=True))
            if not apart <= 1e-3:
                void = f"losses differ by {apart:.2e} from {side}"
        elif case.kind == "packed":
            if not (mine["finite"] and other["finite"]):
                void = "a loss is not finite"
        else:
            shown = case.length + 16
            if [row[:shown] for row in mine["ids"]] != [row[:shown] for row in other["ids"]]:
                void = f"tokens differ from {side}"
    return firsts, starts, void


def run_case(name: str, rounds: int, steps: int, threads: int) -> dict:
    """All rounds of one case."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([sys.executable, "prepare.py", name, str(directory)], cwd=HERE, check=True, **quiet)
        workers: dict[str, Worker] = {}
        try:
            start = functools.partial(Worker, name=name, directory=directory, threads=threads)
            firsts, starts, void = first_turns(case, workers, start)
            count = 1 if case.kind != "train" else steps
            seconds: dict[str, list[float]] = {side: [] for side in SIDES}
            answers, others = {}, []
            for _ in range(rounds):
                for side, worker in workers.items():
                    answers[side] = worker.turn(count)
                    seconds[side].append(answers[side]["seconds"] / count)
                    others.append(answers[side]["others"])
        finally:
            for worker in workers.values():
                worker.end()
    others = statistics.median(others)
    if not void and others > BUSY:
        void = f"the machine was busy with other things ({others:.0%})"
    result = {
        "void": void,
        "seconds": {side: spread(values) for side, values in seconds.items()},
        "ratio": {
            side: spread([a / b for a, b in zip(seconds["pet"], seconds[side], strict=True)])
            for side in SIDES
            if side != "pet"
        },
        "peak_mb": {side: answer["peak_mb"] for side, answer in answers.items()},
        "first_seconds": firsts,
        "start_seconds": starts,
        "rounds": rounds,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "others": others,
    }
    if case.kind == "packed":
        result["useful_tokens"] = answers["pet"]["useful_tokens"]
    return result


# The report ----------------------------------------------------------------------------------------------------------


def machine() -> str:
    """Processor, cores and versions."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    cores = f"{len(CORES)} of {os.cpu_count()} cores"
    return f"{model}, {cores}. Python {platform.python_version()}, {versions}. All in float32."


def ratio_cell(values: list[float], invert: bool = False) -> str:
    """`0.62 (0.58–0.70)`; inverted for rates, where more is better."""
    middle, low, high = values
    if invert:
        middle, low, high = 1 / middle, 1 / high, 1 / low
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def report(results: dict[str, dict]) -> str:
    """RESULTS.md."""
    lines = [
        "# Measured against transformers + peft",
        "",
        "Written by `python benchmarks/compare.py`, which says how it measures. " + machine(),
        "",
        "Ratios are medians of per-round ratios with the least and the most; *active* is the peer with",
        "`OMP_WAIT_POLICY=active`. *Others* is the share of the processor that other programs used meanwhile (median",
        "over turns); it should be near 0, and above 20 % a case is void.",
        "",
        "## Training step: time of this library / time of the peer",
        "",
        "| case | | batch × length | ratio | ratio, active | peak memory, MB (ratio) | first step, s (peer) "
        "| start to first step, s (peer) | date, others |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        case = CASES[name]
        if case.kind == "train":
            lines.append(train_row(name, case, result))
    lines += [
        "",
        "## Useful tokens per second, and decoded tokens per second: this library / the peer",
        "",
        "| case | | ratio | ratio, active | tokens/s here | peak memory, MB (ratio) | date, others |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        case = CASES[name]
        if case.kind != "train":
            lines.append(rate_row(name, case, result))
    return "\n".join(lines) + "\n"


def memory_cell(result: dict) -> str:
    mine, other = result["peak_mb"]["pet"], result["peak_mb"]["peer"]
    return f"{mine:.0f} ({mine / other:.2f})"


def train_row(name: str, case, result: dict) -> str:
    cells = [f"`{name}`", case.about, f"{case.batch} × {case.length}"]
    if result["void"]:
        cells += [f"void: {result['void']}", "", "", "", ""]
    else:
        first, start = result["first_seconds"], result["start_seconds"]
        cells += [ratio_cell(result["ratio"]["peer"]), ratio_cell(result["ratio"]["peer active"]), memory_cell(result)]
        cells += [f"{first['pet']:.1f} ({first['peer']:.1f})", f"{start['pet']:.1f} ({start['peer']:.1f})"]
    return "| " + " | ".join([*cells, f"{result['date']}, {result['others']:.0%}"]) + " |"


def rate_row(name: str, case, result: dict) -> str:
    tokens = result.get("useful_tokens", case.batch * NEW_TOKENS)
    cells = [f"`{name}`", case.about]
    if result["void"]:
        cells += [f"void: {result['void']}", "", "", ""]
    else:
        cells += [ratio_cell(result["ratio"][side], invert=True) for side in ("peer", "peer active")]
        cells += [f"{tokens / result['seconds']['pet'][0]:.0f}", memory_cell(result)]
    return "| " + " | ".join([*cells, f"{result['date']}, {result['others']:.0%}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"default all: {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="training steps per turn")
    parser.add_argument("--threads", type=int, default=len(CORES))
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    store = HERE / "results.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    for name in options.cases or CASES:
        results[name] = run_case(name, options.rounds, options.steps, options.threads)
        print(name, json.dumps(results[name]), flush=True)
        results = {key: results[key] for key in CASES if key in results}
        store.write_text(json.dumps(results, indent=1) + "\n")
        (HERE / "RESULTS.md").write_text(report(results), encoding="utf-8")


if __name__ == "__main__":
    main()
