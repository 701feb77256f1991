"""Jobs that tests start with the launcher."""

import os
import subprocess
import sys
from pathlib import Path

from waiting import HANGING

from pet.launching import launcher

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("RANK_", "MS_", "OMPI_", "PET_"))}
STARTER = """
import argparse, sys
from model_zoo.errors import InputError
from pet.launching import launcher as launch
launch.IDLE_LIMIT = {idle_limit}
parser = argparse.ArgumentParser()
launch.add_arguments(parser)
try:
    sys.exit(launch.run(parser.parse_args()))
except InputError as error:
    sys.exit(f"input error: {{error}}")
"""


def start(tmp_path, options, code, idle_limit=launcher.IDLE_LIMIT, **more):
    """`pet launch OPTIONS -- python -c CODE`, as a process; the launcher's own output is piped. ``idle_limit``: what
    holds without an option; ``more``: of ``Popen``."""
    return subprocess.Popen(
        [sys.executable, "-c", STARTER.format(idle_limit=idle_limit), *options, "--", sys.executable, "-c", code],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def finish(process):
    """(exit code, standard output, standard error); the workers that the launcher must end would never end."""
    out, err = process.communicate(timeout=HANGING)
    return process.returncode, out, err


# What each worker begins with: it notes its id. `forever` ends with the worker alone, `noted(n)` when n ids are there.
NOTE_PID = """
import os, pathlib, signal, subprocess, sys, time
r = int(os.environ['RANK_ID'])
pathlib.Path('pids').mkdir(exist_ok=True)
pathlib.Path('pids', str(os.getpid())).touch()
def forever():
    while True: signal.pause()
def noted(count):
    while len(list(pathlib.Path().glob('pids/*'))) < count: time.sleep(0.02)
def work():
    while True:
        sum(range(10**6))
        time.sleep(0.03)
"""


def line(terminal) -> bytes:
    """The next line that a terminal shows: a read may give a part of it, without its end."""
    said = b""
    while not said.endswith(b"\n"):
        said += terminal.read(4096)
    return said
