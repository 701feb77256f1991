"""Runs that are killed or interrupted at random moments.

    python interruptions.py kills DIRECTORY [--count 40] [--seed 0] [key.sub=value …]
    python interruptions.py interrupts DIRECTORY [--count 30] [--seed 0] [key.sub=value …]

``kills``: SIGKILL to a random process of the job, then ``--resume``, until the run is done; its adapter must be that of
the run that nobody killed, byte for byte. ``interrupts``: SIGINT; exit code 130, no traceback, no dump.
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

    def listens(self) -> bool:
        """Waits until SIGINT is received by the command (its threads block it); False if it ended before."""
        status = Path(f"/proc/{self.process.pid}/status")
        while self.process.poll() is None:
            blocked = [line for line in status.read_text().splitlines() if line.startswith("SigBlk")]
            if blocked and int(blocked[0].split()[1], 16) >> (signal.SIGINT - 1) & 1:
                return True
            time.sleep(0.01)
        return False

    def adapter(self) -> bytes:
        return (self.run / "adapter" / "adapter_model.safetensors").read_bytes()


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def whole(directory: Path, *words: str) -> tuple[bytes, float]:
    """The adapter of a run that nobody disturbs, and the seconds from its first to its last line."""
    job = Job(directory, "whole", *words)
    job.listens()
    begin = time.monotonic()
    assert job.process.wait() == 0, job.err.read_text()[-2000:]
    return job.adapter(), time.monotonic() - begin


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
        try:
            job.process.wait(chance.uniform(0.0, seconds))
            continue  # it was faster than the one before
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
        assert {entry.name for entry in directory.iterdir()} <= {"whole", "run", "out.txt", "err.txt"}
        metrics = job.run / "metrics.jsonl"
        step = metrics.stat().st_mtime if metrics.exists() else 0.0
        took.append(time.time() - max(sent, step))
        print(f"interrupt {len(took)}: {took[-1]:.2f} s; {(out + err).strip().splitlines()[-1][:100]}", flush=True)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["kills", "interrupts"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options, words = parser.parse_known_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs behind the scenes
    if options.what == "kills":
        count = options.count or 40
        print(f"{count} kills, {kills(options.directory, count, options.seed, *words)} runs ended, all bit-equal")
    else:
        took = interrupts(options.directory, options.count or 30, options.seed, *words)
        print(f"{len(took)} interrupts, at most {max(took):.2f} s")


if __name__ == "__main__":
    main()
