"""``pet doctor --full``: it runs whole on a CPU, finds what is wrong, and a failing section costs its own rows only."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import psutil
import pytest

from pet.cli.main import main
from pet.diagnosis import cells, endings, full, messages
from pet.diagnosis.answers import FORMS
from pet.diagnosis.full import ALL, SECTIONS, Part, run
from pet.diagnosis.report import BAD, NOTE, OK, Section, read_rows, table
from pet.diagnosis.training import possible
from pet.launching.environment import Job


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    return tmp_path


def rows_of(path: Path) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for row in json.loads(path.read_text())["rows"]:
        found.setdefault(row["section"], []).append(row)
    return found


@pytest.mark.full
def test_it_runs_whole_on_a_cpu(here, all_cores, capsys):
    assert main(["doctor", "--full", "--device", "CPU", "--processes", "2"]) == 0, capsys.readouterr().out
    out, found = capsys.readouterr().out, rows_of(here / "doctor.json")
    assert list(found) == list(ALL)
    verdicts = {row["verdict"] for rows in found.values() for row in rows}
    assert verdicts == {OK, NOTE}
    assert all(row["check"].replace("|", "\\|") in out for rows in found.values() for row in rows)
    layouts = {row["check"] for row in found["layouts"]}
    assert len(layouts) == len(list(possible(2))) == 5
    assert {row["check"] for row in found["endings"]} == {
        "runs through",
        "a worker is killed",
        "a worker is stopped",
        "resumed",
    }
    # what is printed can be pasted: a table, each row of as many cells
    lines = [line for line in out.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}


def test_chosen_sections_and_their_file(here, capsys):
    assert main(["doctor", "--full", "--only", "machine,products", "--output", "some.json"]) == 0
    found = rows_of(here / "some.json")
    assert list(found) == ["machine", "products"]
    assert {row["check"] for row in found["products"]} == {
        *(
            f"{form} {kind} {what}"
            for form in FORMS
            for kind in ("float32", "float16")
            for what in ("product", "gradient")
        ),
        *(f"{form} bfloat16" for form in FORMS),
    }
    assert {"int8", "nf4", "fp4", "int4", "int4 with zero points"} == set(FORMS)
    limits = {"float32": 1e-6, "float16": 2e-3}
    for row in found["products"]:
        kind = next(word for word in row["check"].split() if "float" in word)
        assert row["verdict"] == (OK if kind in limits else NOTE)
        assert kind not in limits or row["numbers"]["difference"] < limits[kind]
    assert "0 bad" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--full", "--only", "cell"], "no section 'cell'.*cells"),
        (["--full", "--processes", "1"], "at least 2"),
        (["--full", "--device", "Ascend"], "MindSpore's device here is CPU"),
        (["--full", "--quick"], "--quick does not go with --full"),
        (["--processes", "2"], "--processes belongs to --full"),
    ],
)
def test_wrong_options(here, arguments, message, capsys):
    assert main(["doctor", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (here / "doctor.json").exists()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("os._exit(3)", "exit code 3"),
        ("threading.Event().wait()", "not done after"),
        ("raise ValueError('\\n\\nsome reason\\nand more')", "ValueError: some reason"),
    ],
)
def test_a_section_that_fails_costs_no_other_rows(here, monkeypatch, until, code, told, capsys):
    class Worker(subprocess.Popen):
        """One that waits has had its time as soon as it does."""

        def wait(self, timeout=None):
            monkeypatch.setattr(Worker, "wait", subprocess.Popen.wait)
            if "wait" in code:
                until(lambda: read_rows(Path(self.args[3], "cells.json")))
                assert 0.0 < timeout <= 60.0
                timeout = 0.0
            return super().wait(timeout)

    monkeypatch.setattr(full, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Worker}))
    worker = (
        "import os, sys, threading; from pathlib import Path; from pet.diagnosis.report import Section\n"
        "section = Section(sys.argv[3], Path(sys.argv[1], f'{sys.argv[3]}.json'))\n"
        f"with section.checking(sys.argv[3]):\n    section.add('before', True)\n    {code}\n"
    )
    monkeypatch.setitem(full.COMMANDS, "none", lambda old, *_: [([sys.executable, "-c", worker, *old[3:]], {})])
    monkeypatch.setitem(SECTIONS, "cells", Part("cells:look", limit=60.0))
    assert run("CPU", 2, ["machine", "cells"], here / "doctor.json") == 1
    found = rows_of(here / "doctor.json")
    assert [row["verdict"] for row in found["cells"]] == [OK, BAD]
    assert told in found["cells"][1]["measured"] and told in capsys.readouterr().out
    assert found["machine"]


def test_what_a_section_has_started_ends_at_once(until):
    """Ctrl-C ends the command after three seconds. It left msrun and its workers, which waited for a SIGTERM that they
    had inherited as blocked."""

    class Starter(subprocess.Popen):
        def wait(self, timeout=None):
            assert timeout is None
            return super().wait()

    code = (
        "import signal, subprocess, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "wait = [sys.executable, '-c', 'import signal; signal.pause()']\n"
        "print(subprocess.Popen(wait, start_new_session=True).pid, flush=True)\n"
        "signal.pause()"
    )
    process = Starter([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    started = psutil.Process(int(process.stdout.readline()))
    try:
        full.end(process)
        until(lambda: not started.is_running() or started.status() == "zombie")
    finally:
        for one in (process, started):
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.stdout.close()


def test_sections_behind_one_that_ends_their_process_run_in_another(here, monkeypatch, capsys):
    worker = (
        "import os, sys; from pathlib import Path; from pet.diagnosis.report import Section\n"
        "for name in sys.argv[3:]:\n"
        "    section = Section(name, Path(sys.argv[1], f'{name}.json'))\n"
        "    if name != 'overflow':\n        section.add('before', True)\n"
        "    if name in ('products', 'overflow'):\n        os._exit(3)\n"
    )
    monkeypatch.setitem(full.COMMANDS, "none", lambda old, *_: [([sys.executable, "-c", worker, *old[3:]], {})])
    names = ["cells", "products", "guard", "overflow", "decode"]
    assert run("CPU", 2, names, here / "doctor.json") == 1
    found = {name: [row["verdict"] for row in rows] for name, rows in rows_of(here / "doctor.json").items()}
    assert found == {"cells": [OK], "products": [OK, BAD], "guard": [OK], "overflow": [BAD], "decode": [OK]}
    assert capsys.readouterr().out.count("exit code 3") == 4  # as it is found, and in the table


def test_a_job_that_ends_before_its_fault_says_how_it_ended(tmp_path):
    job = object.__new__(endings.Job)
    job.output, job.processes, job.log = tmp_path / "run", 2, tmp_path / "log"
    job.log.write_text("a reason")
    job.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    job.process.wait()
    job.fault(9, 1)
    assert job.wait() == (3, "a reason")


def test_a_launcher_that_is_not_there_costs_its_own_row(here, monkeypatch, capsys):
    monkeypatch.setitem(full.COMMANDS, "msrun", lambda *_: [(["no_such_program"], {})])
    assert run("CPU", 2, ["machine", "joining by msrun"], here / "doctor.json") == 1
    (row,) = rows_of(here / "doctor.json")["joining by msrun"]
    assert row["verdict"] == BAD and "no_such_program" in row["measured"]


def test_a_wrong_cell_is_found():
    subject = cells.subjects(ms.float32)["RMSNorm"]
    right = cells.differences(subject, ms.float32)
    assert max(right) < 1e-6
    subject.cell.eps = 0.1
    wrong = cells.differences(subject, ms.float32)
    assert min(wrong) > 1e-3


def test_a_gradient_that_is_not_the_forwards_is_found():
    class Halved(ms.nn.Cell):
        def construct(self, x):
            return x * x

        def bprop(self, x, out, dout):
            return (x * dout,)

    found = cells.differences(cells.Subject(Halved(), lambda x: x * x, [(3, 4)]), ms.float32)
    assert found[0] < 1e-6 and 0.4 < found[1] < 0.6


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_is_found(bad):
    class Broken(ms.nn.Cell):
        def construct(self, x):
            return x * x

        def bprop(self, x, out, dout):
            return (x * dout * bad,)

    found = cells.differences(cells.Subject(Broken(), lambda x: x * x, [(3, 4)]), ms.float32)
    assert found[0] < 1e-6 and not found[1] < np.inf


def test_differences_that_are_no_numbers_are_bad(tmp_path):
    section = Section("some", tmp_path / "some.json")
    section.difference("a", float("nan"), 1.0)
    section.difference("b", 0.5, 1.0)
    section.difference("c", np.inf, 1.0)
    assert [row.verdict for row in read_rows(tmp_path / "some.json")] == [BAD, OK, BAD]
    assert table(section.rows).count("\n") == 4


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_of_an_odd_number_of_workers_all_but_the_last_cross(monkeypatch, rank):
    class Other:
        def __init__(self, mesh, stage, width, dtype):
            self.rank = mesh.rank_at(stage=stage)

        def exchange(self, x, rows):
            return ms.Tensor(np.full((rows, 2), self.rank, np.float32))

        def finish(self):
            pass

    monkeypatch.setattr(messages, "Neighbour", Other)
    monkeypatch.setattr(messages, "CROSSING", (16, 64))
    monkeypatch.setattr(messages, "join", lambda: Job(rank, 3))
    messages.cross(section := Section("crossing"), True)
    assert [row.verdict for row in section.rows] == ([OK, OK] if rank < 2 else [])


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_every_layout_is_tried(size):
    found = [
        tuple(layout.get(key, False) for key in ("data", "tensor", "pipeline", "shard_optimizer", "reduce_buckets"))
        for layout in possible(size)
    ]
    assert len(found) == len(set(found))
    assert all(data * tensor * pipeline == size for data, tensor, pipeline, *_ in found)
    assert {layout["pipeline"] for layout in possible(4)} == {1, 2, 4}


def test_sections_share_processes_on_a_cpu_and_not_on_an_accelerator():
    assert full.together(ALL, "Ascend") == [[name] for name in ALL]
    together = full.together(ALL, "CPU")
    assert [name for names in together for name in names] == list(ALL) and len(together) < len(ALL)
