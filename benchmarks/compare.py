"""Side by side with Hugging Face transformers + peft, in one run: `python benchmarks/compare.py [case ...]`.

All sides get the same weights and LoRA start (through files in Hugging Face's and PEFT's layout), the same tokens and
AdamW. `sides.py` lists the ways of running the peer. Each of them is tried by itself first, in its first five steps,
two generations or one pass over the documents; the fastest of each precision goes on against this library, in both of
its precisions.

Each side is a process; only one of them runs at a time, the others are stopped. A round gives each side its turn; what
counts is the median over rounds of the ratio within a round. A training case is void when losses of the first five
steps differ by more than 1e-3 between sides in float32, or by more than 1 % between any two; decoding when the first
tokens differ in float32.

Results are kept in `results.json`, by machine and case, and `RESULTS.md` is written anew from all of them.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cases import CASES, QUICK
from machine import about, key_of
from report import report
from sides import OURS, SIDES, Side, sides_of

HERE = Path(__file__).parent

BUSY = 0.2
"""Above this share of the processor used by others, a case is void: the sides do not suffer alike from neighbours."""

AGAIN = {"train": 4, "packed": 0, "decode": 1}
"""Turns of one step, pass or generation behind a side's first one, by kind of case; the fastest of them is what a peer
is chosen by. A pass over the documents is long enough for its first steps not to count."""

ROUNDS, FEW_ROUNDS, LONG = 5, 3, 1.0
"""Rounds of a case; and those of one in which some side takes so many seconds for a step, generation or pass: what is
long is disturbed less."""

CORES = sorted(os.sched_getaffinity(0))
"""The cores that all sides run on: all, or those that `taskset` leaves."""


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

    def __init__(self, side: Side, name: str, directory: Path, threads: int):
        adapter = directory / "adapter"
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(HERE.parent)}
        told = side.precision if side.script == OURS else json.dumps(dict(side.options))
        files = [str(directory / "base"), str(adapter) if adapter.exists() else ""]
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, side.script, name, *files, told],
            cwd=HERE,
            env={**environment, **side.environment},
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
        raise RuntimeError(f"{' '.join(self.process.args)} ended without an answer")

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


def spread(values: list[float]) -> list[float]:
    """Median, least and most."""
    return [statistics.median(values), min(values), max(values)]


class Run:
    """One case.

    Args:
        name: of the case.
        directory: of bases and adapters; what an earlier case has left there is used again.
        rounds: how many there are; 0 as `ROUNDS` says.
        steps: training steps of a turn.
        threads: of each side.
        quick: leave out the sides that take long to begin.
    """

    def __init__(self, name: str, directory: Path, rounds: int, steps: int, threads: int, quick: bool):
        self.name, self.case, self.threads = name, CASES[name], threads
        self.rounds, self.steps, self.quick = rounds, steps if self.case.kind == "train" else 1, quick
        self.directory = directory / "-".join([self.case.model, *self.case.targets, *["dora"] * self.case.dora])
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if not self.directory.exists():
            subprocess.run([sys.executable, "prepare.py", name, str(self.directory)], cwd=HERE, check=True, **quiet)

    def start(self, side: str) -> tuple[Worker, dict]:
        """A process after its first turns: what the first gave, with its seconds from the start on, the losses of all
        and the seconds of the fastest of the others."""
        worker = Worker(self.sides[side], self.name, self.directory, self.threads)
        first = worker.turn(1)
        first["start"] = time.perf_counter() - worker.began
        more = [worker.turn(1) for _ in range(AGAIN[self.case.kind])]
        first["losses"] = [loss for answer in [first, *more] for loss in answer.get("losses", ())]
        first["quickest"] = min(answer["seconds"] for answer in more or [first])
        return worker, first

    def places(self, peer: str) -> list[str]:
        """What a peer may be the fastest of: those of its precision, and of the packed ones of it. The fastest of all
        may pad; the packed ones are what is alike."""
        side = self.sides[peer]
        packed = self.case.kind == "packed" and side.options.get("packed")
        return [side.precision, *[f"packed {side.precision}"] * bool(packed)]

    def chosen(self, workers: dict[str, Worker], firsts: dict[str, dict]) -> tuple[dict[str, float], dict[str, str]]:
        """Tries one peer after the other; those that are the fastest of something are left in ``workers``.

        Returns:
            Seconds of each, of one that fails none; which is the fastest of what, the fastest of all first.
        """
        tried, fastest = {}, {}
        for name in (name for name, side in self.sides.items() if side.script != OURS):
            try:
                workers[name], firsts[name] = self.start(name)
            except (RuntimeError, BrokenPipeError):
                print(f"{self.name}: {name} fails", flush=True)
                continue
            tried[name] = firsts[name]["quickest"]
            for place in self.places(name):
                fastest[place] = min(fastest.get(place, name), name, key=tried.get)
            for beaten in set(workers) & set(tried) - set(fastest.values()):
                workers.pop(beaten).end()
                del firsts[beaten]
        return tried, dict(sorted(fastest.items(), key=lambda item: tried[item[1]]))

    def result(self, rates: dict[str, float]) -> dict:
        """All of it, as `results.json` has it, on a machine of these rates."""
        self.sides = sides_of(self.name, self.quick, rates)
        ours = [name for name, side in self.sides.items() if side.script == OURS]
        workers, firsts, answers, others = {}, {}, {}, []
        try:
            tried, peers = self.chosen(workers, firsts)
            for name in ours:  # one after the other: a process that starts would disturb the others' first step
                workers[name], firsts[name] = self.start(name)
            longest = max(first["quickest"] for first in firsts.values())
            rounds = self.rounds or (FEW_ROUNDS if longest > LONG else ROUNDS)
            seconds = {name: [] for name in workers}
            for _, name in itertools.product(range(rounds), workers):
                answers[name] = workers[name].turn(self.steps)
                seconds[name].append(answers[name]["seconds"] / self.steps)
                others.append(answers[name]["others"])
        finally:
            for worker in workers.values():
                worker.end()
        void, busy = self.disagreement(firsts), statistics.median(others)
        if not void and busy > BUSY:
            void = f"the machine was busy with other things ({busy:.0%})"
        return {
            "void": void,
            "tried": tried,
            "peers": peers,
            "seconds": {name: spread(values) for name, values in seconds.items()},
            "ratio": {
                f"{mine} / {other}": spread([a / b for a, b in zip(seconds[mine], seconds[other], strict=True)])
                for mine, other in itertools.product(ours, dict.fromkeys(peers.values()))
            },
            "peak_mb": {name: answer["peak_mb"] for name, answer in answers.items()},
            "first_seconds": {name: first["seconds"] for name, first in firsts.items()},
            "start_seconds": {name: first["start"] for name, first in firsts.items()},
            "useful_tokens": answers[ours[0]].get("useful_tokens"),
            "rounds": rounds,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "others": busy,
        }

    def disagreement(self, firsts: dict[str, dict]) -> str:
        """Why sides do not compute the same, or ""."""
        for (one, a), (other, b) in itertools.combinations(firsts.items(), 2):
            single = self.sides[one].precision == self.sides[other].precision == "fp32"
            if self.case.kind == "train":
                apart = max(abs(x - y) / (1 if single else y) for x, y in zip(a["losses"], b["losses"], strict=True))
                if not apart <= (1e-3 if single and not self.case.nf4 else 1e-2):
                    return f"losses of {one} and {other} differ by {apart:.1e}"
            elif self.case.kind == "packed":
                if not (a["finite"] and b["finite"]):
                    return "a loss is not finite"
            elif single:
                shown = self.case.length + 16
                if [row[:shown] for row in a["ids"]] != [row[:shown] for row in b["ids"]]:
                    return f"tokens of {one} and {other} differ"
        return ""

    def rates(self) -> dict[str, float]:
        """GFLOP/s of both sides' products."""
        found = {}
        for script, name in (("torch", "eager"), ("pet", "pet fp32")):
            worker = Worker(SIDES[name], self.name, self.directory, self.threads)
            rates = worker.turn(0)["rates"]
            worker.end()
            found.update({f"{script} {precision}": rate for precision, rate in rates.items()})
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"default all: {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=0, help="default 5, or 3 where they take long")
    parser.add_argument("--steps", type=int, default=1, help="training steps per turn")
    parser.add_argument("--threads", type=int, default=len(CORES))
    parser.add_argument(
        "--quick", action="store_true", help=f"{', '.join(QUICK)} alone, three rounds, without torch.compile"
    )
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    store = HERE / "results.json"
    results = json.loads(store.read_text()) if store.exists() else {}
    here = results.setdefault(key_of(len(CORES)), {"cases": {}})
    here["about"] = about()
    with tempfile.TemporaryDirectory() as directory:
        for name in options.cases or (QUICK if options.quick else CASES):
            rounds = 3 if options.quick else options.rounds
            run = Run(name, Path(directory), rounds, options.steps, options.threads, options.quick)
            if "rates" not in here:
                here["rates"] = run.rates()
            here["cases"][name] = run.result(here["rates"])
            print(name, json.dumps(here["cases"][name]), flush=True)
            here["cases"] = {key: here["cases"][key] for key in CASES if key in here["cases"]}
            store.write_text(json.dumps(results, indent=1) + "\n")
            (HERE / "RESULTS.md").write_text(report(results), encoding="utf-8")


if __name__ == "__main__":
    main()
