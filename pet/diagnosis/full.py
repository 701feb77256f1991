"""The sections of a full diagnosis, each run in processes of its own and under a limit of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name

from model_zoo.errors import InputError, explain, nearest
from pet.diagnosis import endings, machine
from pet.diagnosis.report import BAD, NOTE, Row, Section, read_rows, table, write_rows
from pet.launching.addresses import free_address
from pet.launching.environment import OF_A_JOB

LAST_BEGIN, TOTAL_LIMIT = 13 * 60.0, 15 * 60.0
"""Seconds after which no further section begins, and after which the present one is ended."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A section.

    Attributes:
        function: ``module:name`` in this package, called as ``(section, small)``.
        launcher: who starts its processes: ``none`` (one process), ``pet``, ``msrun`` or ``rank_table``.
        limit: seconds that it may take.
        verdict: of a section that ends badly.
    """

    function: str
    launcher: str = "none"
    limit: float = 120.0
    verdict: str = BAD

    def load(self) -> Callable:
        """The function."""
        return resolve_name(f"pet.diagnosis.{self.function}")


SECTIONS = {
    "cells": Part("cells:look"),
    "products": Part("answers:products"),
    "guard": Part("training:guard"),
    "overflow": Part("training:overflow"),
    "speed": Part("training:speed", limit=240),
    "decode": Part("answers:decode"),
    "joining": Part("messages:meet", "pet", 90),
    "joining by msrun": Part("messages:meet", "msrun", 90),
    "joining by rank table": Part("messages:meet", "rank_table", 90),
    "collectives": Part("messages:measure", "pet"),
    "crossing": Part("messages:cross", "pet", 60),
    "crossing at once": Part("messages:cross_at_once", "pet", 60, NOTE),
    "layouts": Part("training:layouts", "pet", 300),
}
ALL = ("machine", *SECTIONS, "endings")


def run(device: str, processes: int, chosen: Sequence[str], output: Path) -> int:
    """Runs the sections, prints each row when it is known, then the table, and writes doctor.json.

    Args:
        device: ``CPU`` or ``Ascend``.
        processes: workers of the sections that have several.
        chosen: names out of `ALL`; none for all of them.

    Returns:
        1 where a row is bad.

    Raises:
        InputError: an unknown section, or fewer than two processes.
    """
    for name in chosen:
        if name not in ALL:
            raise InputError(f"--only: there is no section {name!r}{nearest(name, ALL)}; they are {', '.join(ALL)}")
    if processes < 2:
        raise InputError(f"--processes is {processes}; at least 2 were expected, since most sections are of messages")
    begin, rows, waiting = time.monotonic(), [], together(chosen or ALL, device)
    with tempfile.TemporaryDirectory(prefix="pet_doctor_") as directory:
        while waiting:
            names, left = waiting.pop(0), []
            if time.monotonic() - begin > LAST_BEGIN:
                found = [Row(name, name, NOTE, f"left out: {LAST_BEGIN / 60:.0f} minutes are over") for name in names]
            else:
                print(f"{time.monotonic() - begin:4.0f} s  {', '.join(names)}", flush=True)
                found, left = look(names, device, processes, Path(directory), begin + TOTAL_LIMIT)
            waiting[:0] = [left] if left else []
            rows += found
            for row in found:
                if row.verdict == BAD:
                    print(f"        BAD  {row.check}: {row.measured}", flush=True)
            seconds = time.monotonic() - begin
            write_rows(output, rows, device=device, processes=processes, seconds=seconds)
    bad = sum(row.verdict == BAD for row in rows)
    print(f"\n{table(rows)}\n\n{len(rows)} checks, {bad} bad, {seconds:.0f} s. Written to {output}")
    return 1 if bad else 0


def together(names: Sequence[str], device: str) -> list[list[str]]:
    """Sections that share their processes. On an accelerator each has its own: one that hangs may leave it unusable."""
    found: list[list[str]] = []
    for name in names:
        launcher = SECTIONS[name].launcher if name in SECTIONS else None
        before = SECTIONS[found[-1][-1]].launcher if found and found[-1][-1] in SECTIONS else None
        if device == "CPU" and launcher == before and launcher in ("none", "pet"):
            found[-1].append(name)
        else:
            found.append([name])
    return found


def look(
    names: Sequence[str], device: str, processes: int, directory: Path, until: float
) -> tuple[list[Row], Sequence[str]]:
    """The rows of sections that share their processes, which are ended at the time `until`; and the sections that the
    end of another one has kept from beginning."""
    if names[0] not in SECTIONS:
        section = Section(names[0])
        with section.checking(names[0]):
            if names[0] == "machine":
                machine.look(section)
            else:
                endings.look(section, directory, processes)
        return section.rows, []
    limit = min(sum(SECTIONS[name].limit for name in names), until - time.monotonic())
    try:
        code, seconds, text = start(SECTIONS[names[0]].launcher, limit, [device, *names], processes, directory)
    except OSError as error:  # there is no msrun
        return [Row(name, "section", SECTIONS[name].verdict, explain(error)) for name in names], []
    begun = [name for name in names if (directory / f"{name}.json").is_file()] or list(names[:1])
    rows = [row for name in begun for row in read_rows(directory / f"{name}.json")]
    if code:
        what = f"not done after {limit:.0f} s" if code is TIMED_OUT else f"exit code {code}"
        verdict, told = SECTIONS[begun[-1]].verdict, {"seconds": seconds, "log": text[-4000:]}
        rows.append(Row(begun[-1], "section", verdict, what, told))
    return rows, names[len(begun) :]


TIMED_OUT = -1


def start(launcher: str, limit: float, arguments: list[str], processes: int, directory: Path) -> tuple[int, float, str]:
    """Runs sections. Returns the exit code (`TIMED_OUT`), the seconds, and what was printed."""
    worker = [sys.executable, "-m", "pet.diagnosis", str(directory), *arguments]
    environment = {key: value for key, value in os.environ.items() if key not in OF_A_JOB}
    commands = COMMANDS[launcher](worker, processes, directory, environment)
    begin = time.monotonic()
    log = directory / "section.log"
    with log.open("wb") as file:
        running = [
            subprocess.Popen(
                command,
                env={**environment, **own},
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            for command, own in commands
        ]
        try:
            codes = [one.wait(max(0.0, limit - (time.monotonic() - begin))) for one in running]
            code = next((code for code in codes if code), 0)
        except subprocess.TimeoutExpired:
            code = TIMED_OUT
        finally:
            for one in running:
                end(one)
    return code, time.monotonic() - begin, log.read_text(errors="replace")


def end(process: subprocess.Popen) -> None:
    """Ends a section's processes that still run: msrun's are in sessions of their own. At once: after Ctrl-C there is
    little time, and none of them has anything to save."""
    import psutil

    if process.poll() is not None:
        return
    left = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


Commands = list[tuple[list[str], dict[str, str]]]


def _alone(worker, processes, directory, environment) -> Commands:
    return [(worker, {})]


def _by_pet(worker, processes, directory, environment) -> Commands:
    launch = [sys.executable, "-m", "pet", "launch", "-n", str(processes), "--log-dir", str(directory / "log"), "--"]
    return [([*launch, *worker], {})]


def _by_msrun(worker, processes, directory, environment) -> Commands:
    program = Path(sys.executable).with_name("msrun")
    program = str(program) if program.is_file() else shutil.which("msrun") or "msrun"
    numbers = [f"--worker_num={processes}", f"--local_worker_num={processes}", "--join=True"]
    numbers += [f"--master_port={free_address()[1]}", f"--log_dir={directory / 'msrun'}"]
    # msrun starts a script by whatever is called python
    script = directory / "section.py"
    script.write_text(
        "import runpy, sys\n"
        f"sys.argv = {['pet.diagnosis', *worker[3:]]!r}\n"
        "runpy.run_module('pet.diagnosis', run_name='__main__')\n"
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    return [([program, *numbers, str(script)], {"PATH": path})]


def _by_rank_table(worker, processes, directory, environment) -> Commands:
    """One process per device, as a cluster's scripts start them."""
    table = directory / "rank_table.json"
    devices = [
        {"device_id": str(rank), "device_ip": _device_address(rank), "rank_id": str(rank)} for rank in range(processes)
    ]
    server = {"server_id": socket.gethostbyname(socket.gethostname()), "device": devices, "host_nic_ip": "reserve"}
    table.write_text(
        json.dumps({"version": "1.0", "server_count": "1", "server_list": [server], "status": "completed"})
    )
    common = {"RANK_TABLE_FILE": str(table), "RANK_SIZE": str(processes), "MASTER_PORT": str(free_address()[1])}
    return [(worker, {**common, "RANK_ID": str(rank), "DEVICE_ID": str(rank)}) for rank in range(processes)]


def _device_address(device: int) -> str:
    """An Ascend device's address in its network, out of hccn_tool's file; one that nobody uses where there is none."""
    file = Path("/etc/hccn.conf")
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    found = (line.partition("=")[2].strip() for line in lines if line.startswith(f"address_{device}="))
    return next(found, f"192.168.1.{device + 1}")


COMMANDS = {"none": _alone, "pet": _by_pet, "msrun": _by_msrun, "rank_table": _by_rank_table}
