"""Examples run as a user runs them: in a process of their own, in an empty directory. What needs no process of its own
runs in this one, which saves the imports.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from runs import arguments

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path, own_cache):
    """Runs a command in the test's directory; ``python`` is this one, and scripts are those in ``examples``."""
    binaries = tmp_path / ".bin"
    binaries.mkdir()
    for name, words in (("python", ""), ("pet", " -m pet")):
        (binaries / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        (binaries / name).chmod(0o755)

    def call(*words, code: int = 0, timeout: int = 280, **variables):
        words = [
            str(ROOT / "examples" / word) if word.endswith((".py", ".sh")) else str(word) for word in map(str, words)
        ]
        environment = {
            **{key: value for key, value in os.environ.items() if key not in ("RANK_ID", "RANK_SIZE")},
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([f"{ROOT}/tests/support/quick_runs", str(ROOT), *filter(None, sys.path)]),
            "XDG_CACHE_HOME": own_cache(tmp_path / ".cache"),
            # a font cache made anew in every test would take longer than a run
            "MPLCONFIGDIR": str(Path.home() / ".cache" / "matplotlib"),
            "GLOG_v": "3",
            "OMP_NUM_THREADS": "2",
            **variables,
        }
        result = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert result.returncode == code, result.stdout[-3000:] + result.stderr[-6000:]
        return result

    return call


def run_inside(directory: Path, cache: str, script: str, *words) -> str:
    """Runs an example's ``main`` in this process, in a directory and with a cache of its own; returns what it printed
    and logged."""
    said = io.StringIO()
    handler, log = logging.StreamHandler(said), logging.getLogger("pet")
    log.addHandler(handler)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.chdir(directory)
        patch.syspath_prepend(str(ROOT / "examples"))
        patch.setenv("XDG_CACHE_HOME", cache)
        patch.setattr(sys, "argv", [script, *map(str, words)])
        try:
            module = importlib.import_module(Path(script).stem)  # MindSpore's compiler looks for a module's source
            module.main()
        finally:
            log.removeHandler(handler)
    return said.getvalue()


@pytest.fixture
def inside(tmp_path, own_cache):
    """`run_inside` the test's directory."""
    return lambda script, *words: run_inside(tmp_path, own_cache(tmp_path / ".cache"), script, *words)


@pytest.fixture(scope="session")
def alone(base, tmp_path_factory, own_cache):
    """The run directory of an example with one process, and what it said; each is run once."""
    done = {}

    def result(name: str) -> tuple[Path, str]:
        if name not in done:
            home = tmp_path_factory.mktemp(f"alone_{name}")
            more = {
                "train": ["--output_dir", "run"],
                "task": ["--output_dir", "run"],
                "flagai": ["--save_dir", "run"],
                "mindspore": ["--output_dir", "run", "--train_batch_size", 4, "--do_predict"]
                + ["--do_eval", "--save_eval_steps", 2]
                + ["--allreduce_post_accumulation", "True"],
            }[name]
            said = run_inside(home, own_cache(home / ".cache"), *arguments(name, base), *more)
            done[name] = home / "run", said
        return done[name]

    return result


@pytest.fixture
def losses():
    """The training losses of a run directory."""

    def read(directory: Path) -> list[float]:
        return [json.loads(line)["loss"] for line in (directory / "metrics.jsonl").read_text().splitlines()]

    return read
