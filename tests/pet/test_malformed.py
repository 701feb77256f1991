"""Malformed inputs of every kind: refused with exit code 2 and a report, or harmless; never a traceback, a file that is
written all the same, or the exit code of a run that failed.

``PET_MALFORMED=2600 pytest -n0 tests/pet/test_malformed.py`` takes as many as that, and prints figures of each kind.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import malformed
import pytest

from pet.cli.main import main
from pet.names import bundled_directory

COUNT = int(os.environ.get("PET_MALFORMED", "320"))
SEED = int(os.environ.get("PET_MALFORMED_SEED", "1"))
PROCESSES = max(2, COUNT // 200)  # of them once more, each in a process of its own
LINES = 20
HANG = 120  # seconds after which a case counts as one that never ends


def run(arguments) -> tuple[int | str, str]:
    """(exit code, errors) of a command line in this process."""
    out, errors = io.StringIO(), io.StringIO()

    def late(*_):
        raise SystemExit("never ends")

    before, stdin = signal.signal(signal.SIGALRM, late), sys.stdin
    signal.alarm(HANG)
    sys.stdin = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            return main(arguments), errors.getvalue()
    except BaseException as error:  # what `main` lets through would be a traceback
        return f"{type(error).__name__}: {error}"[:200], errors.getvalue()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        sys.stdin = stdin


def judge(code, errors: str, before: dict, after: dict) -> str | None:
    """What is wrong with how a case ended."""
    if code not in (0, 2):
        return f"exit code {code}"
    if "Traceback" in errors:
        return "a traceback"
    if code == 2 and not errors.strip():
        return "refused without a word"
    if len(errors.splitlines()) > LINES:
        return f"{len(errors.splitlines())} lines"
    if max(map(len, errors.splitlines()), default=0) > 2000:
        return f"a line of {max(map(len, errors.splitlines()))} characters"
    if code == 2 and before != after:
        return (
            f"written: {sorted({*before} ^ {*after} or {name for name in before if before[name] != after[name]})[:3]}"
        )
    return None


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """What is good: a recipe, a base of one small layer, its run of two steps, adapters, all kinds of tokenizers."""
    from model_zoo.auto import AutoModel
    from model_zoo.checkpoint.saving import save_pretrained

    home = tmp_path_factory.mktemp("good")
    bases = bundled_directory() / "bases"
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 4, "n_positions": 64}
    config = {**json.loads((bases / "gpt_tiny" / "config.json").read_text()), **sizes}
    save_pretrained(AutoModel.from_config(config, seed=3), home / "base")
    for name in ("gpt_tiny", "llama_tiny", "glm_tiny", "glm4_tiny"):
        ignored = shutil.ignore_patterns("*.safetensors", "*.md")
        shutil.copytree(bases / name, home / "tokenizers" / name, ignore=ignored)
    for path in (home / "tokenizers" / "gpt_tiny").iterdir():
        if path.name != "config.json":
            shutil.copyfile(path, home / "base" / path.name)
    row = json.dumps({"prompt": "a", "completion": "b"})
    (home / "good.jsonl").write_text(f"{row}\n" * 4)
    (home / "job.yaml").write_text(
        "name: job\nmodel:\n  path: base\n  dtype: float32\n"
        "adapter:\n  method: lora\n  rank: 2\n  alpha: 4\n  targets: [c_attn]\n"
        "data:\n  train: good.jsonl\n  max_length: 32\n  packing: none\n  cache_dir: cache\n  workers: 0\n"
        "train:\n  steps: 2\n  batch_size: 2\n  warmup: 0\n  learning_rate: 1.0e-3\n  betas: [0.9, 0.99]\n"
        "eval:\n  metrics: [loss]\noutput:\n  dir: run\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert run(["finetune", "job.yaml"])[0] == 0
        prefix = ["adapter.method=prefix", "adapter.length=2", "output.dir=other"]
        text = (home / "job.yaml").read_text()
        (home / "prefix.yaml").write_text(text.replace("  rank: 2\n  alpha: 4\n  targets: [c_attn]\n", ""))
        assert run(["finetune", "prefix.yaml", *prefix])[0] == 0
        merge = ["merge", "run/adapter", "--base", "base", "--output", "sharded", "--max-shard-size", "100KB"]
        assert run(merge)[0] == run(["convert", "base", "--output", "ckpt/model.ckpt"])[0] == 0
    shutil.copytree(home / "run" / "adapter", home / "adapter")
    shutil.copytree(home / "other" / "adapter", home / "prefix")
    shutil.rmtree(home / "other")
    return home


@pytest.mark.slow
def test_malformed_inputs(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong, refused, seen, slowest = [], Counter(), Counter(), (0.0, "")
    for number, case in enumerate(malformed.cases(home, COUNT, SEED)):
        malformed.lay_out(home, case)
        before = malformed.snapshot(tmp_path), malformed.snapshot(home)
        began = time.monotonic()
        code, errors = run(case.arguments)
        slowest = max(slowest, (time.monotonic() - began, case.name))
        after = malformed.snapshot(tmp_path), malformed.snapshot(home)
        problem = judge(code, errors, before[0], after[0])
        if problem is None and before[1] != after[1]:
            problem = "what is good was written to"
        if problem is None and number % (COUNT // PROCESSES) == 0 and case.arguments[0] != "":
            problem = in_a_process(case, home, code)
        if problem:
            wrong.append(f"{number} {case.group} | {case.name} | {case.arguments} | {problem} | {errors[:300]}"[:700])
        seen[case.group] += 1
        refused[case.group] += code == 2
    report = [f"{group}: {refused[group]} of {seen[group]} refused" for group in seen]
    print("\n".join([*report, f"slowest {slowest[0]:.1f} s: {slowest[1]}", f"{len(wrong)} wrong", *wrong]))
    assert not wrong, "\n".join(wrong)
    assert min(refused[group] for group in seen) > 0 and sum(refused.values()) > COUNT / 2, report


def in_a_process(case, home: Path, code: int) -> str | None:
    """What differs when the command line runs by itself."""
    malformed.lay_out(home, case)
    try:
        words = [sys.executable, "-m", "pet", *map(os.fsencode, case.arguments)]
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=HANG)
    except (ValueError, UnicodeEncodeError, OSError):  # no process can have these arguments
        return None
    errors = done.stderr.decode(errors="replace")
    if done.returncode != code:
        return f"exit code {done.returncode} in a process of its own: {errors[-300:]}"
    return judge(done.returncode, errors, {}, {})
