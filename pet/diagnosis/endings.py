"""A training job that is killed, that stops answering, and that goes on: the way it ends, and where it gets to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

import pet
from pet.diagnosis.report import Section
from pet.train.callbacks.records import read_metrics

STEPS, FAULT_AT, SAVE_EVERY = 8, 3, 2
RECIPE = ["gpt_lora", "train.epochs=null", f"train.steps={STEPS}", f"train.save_every={SAVE_EVERY}"]
RECIPE += ["eval.every_epochs=null", "eval.metrics=[loss]", "eval.shown_samples=0"]
LIMIT = 1e-5
END_LIMIT, JOB_LIMIT = 20.0, 200.0
"""Seconds from a fault to the end of the job, and of a whole job."""


def look(section: Section, directory: Path, processes: int) -> None:
    """Four jobs: one runs through, one is killed, in its continuation a worker is stopped, and the last one goes on."""
    whole = Job(directory / "whole", processes)
    code, text = whole.wait()
    right = code == 0 and whole.steps() == STEPS
    section.add("runs through", right, f"exit code {code}, {whole.steps()} steps", **log(right, text))
    if code:
        return
    for name, number, at, expected in (("killed", signal.SIGKILL, FAULT_AT, 137), ("stopped", signal.SIGSTOP, 5, 124)):
        job = Job(directory / "broken", processes, resume=name != "killed", evaluates=False)
        begin = job.fault(number, at)
        code, text = job.wait()
        seconds = time.monotonic() - begin
        blamed = f"rank {processes - 1}" in text
        right = code == expected and blamed and seconds <= END_LIMIT
        told = f"exit code {code} after {seconds:.1f} s" + ("" if blamed else f"; rank {processes - 1} is not blamed")
        section.add(f"a worker is {name}", right, told, seconds=seconds, code=code, **log(right, text))
    job = Job(directory / "broken", processes, resume=True, evaluates=False)
    code, text = job.wait()
    losses = whole.losses(), job.losses()
    if code or losses[0].keys() != losses[1].keys():
        section.add("resumed", False, f"exit code {code}, steps {sorted(losses[1])}", **log(False, text))
        return
    apart = max(abs(losses[0][step] - losses[1][step]) for step in losses[0])
    section.difference("resumed", apart, LIMIT, " of losses from those of the job that ran through")


def log(right: bool, text: str) -> dict[str, str]:
    """What a job printed last, for a row that is bad."""
    return {} if right else {"log": text[-4000:]}


class Job:
    """``pet finetune`` over several processes.

    Args:
        evaluates: whether it does, before the first step and at the end; the graph for it is a quarter of the job.
    """

    def __init__(self, output: Path, processes: int, resume: bool = False, evaluates: bool = True):
        self.output, self.processes = output, processes
        program = [sys.executable, str(Path(pet.__file__).with_name("__main__.py")), "finetune", *RECIPE]
        options = [f"output.dir={output}", f"parallel.data={processes}", f"train.batch_size={4 * processes}"]
        options += [] if evaluates else ["data.eval=null"]
        options += ["--resume"] if resume else []
        self.log = output.with_name(f"{output.name}_{time.monotonic_ns()}.log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*program, *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def fault(self, number: int, step: int) -> float:
        """Sends a signal to the last worker when a step is done. Returns the time of it."""
        limit = time.monotonic() + JOB_LIMIT
        while self.steps() < step and self.process.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)
        with contextlib.suppress(psutil.NoSuchProcess):  # the job has ended by itself
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if child.environ().get("RANK_ID") == str(self.processes - 1):
                        os.kill(child.pid, number)
        return time.monotonic()

    def wait(self) -> tuple[int, str]:
        """The exit code, and what was printed."""
        try:
            code = self.process.wait(JOB_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            code = self.process.wait()
        return code, self.log.read_text(errors="replace")

    def steps(self) -> int:
        """Steps done, of this job and those that it goes on from."""
        return max(self.losses(), default=0)

    def losses(self) -> dict[int, float]:
        """{step: loss}"""
        lines = read_metrics(self.output / "metrics.jsonl")
        return {line["step"]: line["loss"] for line in lines if "loss" in line}
