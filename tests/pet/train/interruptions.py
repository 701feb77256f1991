"""Runs that are killed or interrupted at random moments.

    python interruptions.py kills DIRECTORY [--count 40] [--seed 0] [key.sub=value …]
    python interruptions.py interrupts DIRECTORY [--count 30] [--seed 0] [key.sub=value …]
    python interruptions.py starts DIRECTORY [--count 60] [--seed 0]

``kills``: SIGKILL to a random process of the job, then ``--resume``, until the run is done; its adapter must be that of
the run that nobody killed, byte for byte. ``interrupts``: SIGINT; exit code 130, no traceback, no dump.
``starts``: the same in the first 0.4 s. Before the command's own first line only Python can answer; those are counted.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

RECIPE = ["gpt_lora", "train.epochs=null", "train.steps=24", "train.save_every=4", "adapter.dropout=0.1"]
RECIPE += ["eval.every_epochs=null", "eval.every_steps=8", "eval.metrics=[loss]", "eval.shown_samples=0"]
RECIPE += ["train.batch_size=2", "data.max_samples=64", "data.eval=null", "data.eval_fraction=0.2"]
ADAPTER = "adapter/adapter_model.safetensors"


class Job:
    """A ``pet finetune`` in processes of its own."""

    def __init__(self, directory: Path, run: str, *words: str):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.run = directory, directory / run
        self.out, self.err = directory / "out.txt", directory / "err.txt"
        command = [sys.executable, "-m", "pet", "finetune", *RECIPE, f"output.dir={run}", *words]
        with open(self.out, "w") as out, open(self.err, "w") as err:
            self.process = subprocess.Popen(
                command, cwd=directory, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def family(self) -> list[psutil.Process]:
        """The process and those below it."""
        try:
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.Error:
            return []

    def kill(self, seconds: float, chance: random.Random) -> bool:
        """Kills one of the job's processes after some time, and waits until all are gone; False if it had ended."""
        try:
            self.process.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            members = self.family()
        workers = [one for one in members if "finetune" in " ".join(_line(one))]
        chance.choice(workers or members).kill()
        self.process.wait()
        psutil.wait_procs(members, 120)
        return True

    def blocks(self) -> bool:
        """Whether the command has blocked SIGINT, in order to receive it itself."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        blocked = [line for line in status.splitlines() if line.startswith("SigBlk")]
        return bool(blocked) and bool(int(blocked[0].split()[1], 16) >> (signal.SIGINT - 1) & 1)

    def listens(self, pause: float = 0.01) -> bool:
        """Waits until SIGINT is received by the command; False if it ended before."""
        while self.process.poll() is None:
            if self.blocks():
                return True
            time.sleep(pause)
        return False

    def adapter(self) -> bytes:
        return (self.run / ADAPTER).read_bytes()


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def whole(directory: Path, *words: str) -> tuple[bytes, float]:
    """The adapter of a run that nobody disturbs, and the seconds from its first to its last line; one run for all that
    is done in a directory."""
    adapter, took = directory / "whole" / ADAPTER, directory / "seconds"
    if not took.exists():
        job = Job(directory, "whole", *words)
        job.listens()
        begin = time.monotonic()
        assert job.process.wait() == 0, job.err.read_text()[-2000:]
        took.write_text(str(time.monotonic() - begin))
    return adapter.read_bytes(), float(took.read_text())


def kills(directory: Path, count: int, seed: int, *words: str) -> int:
    """Kills that many times; gives the number of runs that came to their end."""
    chance = random.Random(seed)
    expected, seconds = whole(directory, *words)
    done = ended = 0
    while True:
        job = Job(directory, f"run-{ended}", "--resume", *words)
        if done < count and job.kill(chance.uniform(0.0, seconds), chance):
            done += 1
            print(f"kill {done}: exit code {job.process.returncode}, {len(kept(job.run))} checkpoints", flush=True)
            continue
        assert job.process.wait() == 0, job.err.read_text()[-2000:]
        assert job.adapter() == expected, f"{job.run}: another adapter"
        ended += 1
        if done == count:
            return ended


def kept(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def interrupts(directory: Path, count: int, seed: int, *words: str) -> list[float]:
    """Interrupts that many runs; gives the seconds from the signal, or the step's end after it, to the exit."""
    chance = random.Random(seed)
    _, seconds = whole(directory, *words)
    took = []
    while len(took) < count:
        job = Job(directory, "run", "--force", *words)
        if not job.listens():
            raise AssertionError(job.err.read_text()[-2000:])
        begin = time.monotonic()
        try:
            job.process.wait(chance.uniform(0.0, seconds))
            seconds = min(seconds, time.monotonic() - begin)  # it was faster than the one before
            continue
        except subprocess.TimeoutExpired:
            sent = time.time()
            os.kill(job.process.pid, signal.SIGINT)
        code = job.process.wait()
        out, err = job.out.read_text(), job.err.read_text()
        if code == 0 and "recipe.yaml    " in out:
            continue  # everything was done and said
        assert code == 130, f"exit code {code}\n{err[-2000:]}"
        for trace in ("Traceback", "Error", "ERROR", "Fatal", "core dumped"):
            assert trace not in err, err[-2000:]
        assert ("interrupted" in err) != ("stopped by a signal" in out), out[-500:] + err[-500:]
        assert {entry.name for entry in directory.iterdir()} <= {"whole", "seconds", "run", "out.txt", "err.txt"}
        metrics = job.run / "metrics.jsonl"
        step = metrics.stat().st_mtime if metrics.exists() else 0.0
        took.append(time.time() - max(sent, step))
        print(f"interrupt {len(took)}: {took[-1]:.2f} s; {(out + err).strip().splitlines()[-1][:100]}", flush=True)
    return took


def starts(directory: Path, count: int, seed: int) -> tuple[list[float], int]:
    """Interrupts that many runs in their first moments.

    Returns:
        the milliseconds to the command's first line of some runs, and how many were interrupted before it.
    """
    chance, early, first = random.Random(seed), 0, []
    for number in range(count):
        begin = time.monotonic()
        job = Job(directory, "run", "--force")
        if number % 4 == 0:
            assert job.listens(0.0), job.err.read_text()
            first.append(1000 * (time.monotonic() - begin))
        time.sleep(max(0.0, begin + chance.uniform(0.0, 0.4) - time.monotonic()))
        late = job.blocks()
        os.kill(job.process.pid, signal.SIGINT)
        code, err = job.process.wait(), job.err.read_text()
        if late:
            assert code == 130, f"exit code {code}\n{err}"
            assert err.strip() in ("pet: interrupted", "pet finetune: interrupted"), err
        else:
            early += 1
        print(f"interrupt {number + 1}: {'received' if late else 'too early'}, exit code {code}", flush=True)
    return first, early


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "interrupts", "starts"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options, words = parser.parse_known_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs behind the scenes
    if options.what == "kills":
        count = options.count or 40
        print(f"{count} kills, {kills(options.directory, count, options.seed, *words)} runs ended, all bit-equal")
    elif options.what == "starts":
        first, early = starts(options.directory, options.count or 60, options.seed)
        said = f"{min(first):.0f} to {max(first):.0f} ms from the start"
        print(f"{options.count or 60} interrupts, {early} of them before the first line, which came {said}")
    else:
        took = interrupts(options.directory, options.count or 30, options.seed, *words)
        print(f"{len(took)} interrupts, at most {max(took):.2f} s")


if __name__ == "__main__":
    main()
