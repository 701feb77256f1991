"""The home of a run of some thousand weights."""

WATCHER = '''
import json
from pathlib import Path


class Watcher:
    """Notes what lies in the run directory when the run is over."""

    def start(self, trainer):
        pass

    step = evaluation = save = lambda self, trainer, told: None

    def end(self, trainer, summary):
        there = sorted(path.relative_to(trainer.directory).as_posix() for path in trainer.directory.rglob("*"))
        Path(f"seen-{trainer.directory.name}.json").write_text(json.dumps({"there": there, "summary": summary}))
'''
SIGNALLER = '''
import os
import time

from pet.train import stop


class Signaller:
    """Sends a signal to its own process after a step, and waits until it is received."""

    def __init__(self, at, number):
        self.at, self.number = at, number

    start = end = evaluation = save = lambda self, trainer, told=None: None

    def step(self, trainer, record):
        if record["step"] == self.at:
            os.kill(os.getpid(), self.number)
            while stop._watching.received is None:
                time.sleep(0.01)
'''
QUESTIONS = [f'{{"prompt": "What is {number}?", "completion": "It is {number}."}}' for number in range(12)]


def content(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
