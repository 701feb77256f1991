"""Starts N workers, watches them, and ends them all as soon as one of them fails.

``pet launch -n 4 -- python train.py`` starts four processes on this machine, each with RANK_ID, RANK_SIZE, LOCAL_RANK,
DEVICE_ID, MASTER_ADDR and MASTER_PORT in its environment. With ``--nnodes 2`` it is run once per machine, and the
launchers agree over ``--master`` by a secret that they share (control.py). What rank k writes goes to
``output/log/rank_k/worker.log``; rank 0's output is shown on the terminal too.

A worker that raises, is killed, or hangs (watch.py) ends the job: its traceback is shown, every process group is
killed, and its exit code becomes the launcher's. If the launcher itself is killed, a guard process kills the groups.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from model_zoo.errors import InputError
from model_zoo.posix import resource
from model_zoo.resources import accelerators_present, available_cores
from pet import interrupts
from pet.launching.addresses import resolve
from pet.launching.control import JOIN_LIMIT, SECRET, Alone, Control, job_secret
from pet.launching.ends import describe_end, describe_hang, exit_code
from pet.launching.environment import STARTERS, read_job, said_by, split_address
from pet.launching.heartbeat import BEAT_FILE, JOINING
from pet.launching.output import Output
from pet.launching.stacks import file_of
from pet.launching.watch import BUSY, Watch, find_hanging

LOG_DIRECTORY = "output/log"
LOG_NAME = "worker.log"
IDLE_LIMIT = 10.0
"""Seconds without any sign of life after which a worker counts as hanging: the whole job must end within 20 s, also
where the worker gets two thirds of a core alone."""
GRACE = 3.0
"""Seconds that the others have between SIGTERM and SIGKILL when one worker has failed: they wait for it in vain."""
NOTICE = 60.0
"""Seconds that all have when the launcher is told to end: time to finish a step and save. A second Ctrl-C cuts it."""

# Reads one group id per line; when the launcher is gone, however it went, the pipe ends and the groups are killed.
GUARD = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
groups = []
for line in sys.stdin:
    if line.strip() == "done":
        sys.exit(0)
    groups.append(int(line))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``pet launch``."""
    parser.add_argument("-n", "--workers", type=int, metavar="N", help="workers on this machine (default: --devices)")
    parser.add_argument("--nnodes", type=int, default=1, help="machines; run this command on each (default 1)")
    parser.add_argument("--node-rank", type=int, default=0, help="this machine's number, from 0")
    parser.add_argument("--master", metavar="HOST:PORT", help="where machine 0 listens; needed with --nnodes")
    parser.add_argument("--secret", help=f"which the machines of --nnodes share; better in {SECRET}, which ps lacks")
    parser.add_argument(
        "--join-timeout",
        type=float,
        default=JOIN_LIMIT,
        metavar="SECONDS",
        help=f"how long the machines of --nnodes wait for each other to start (default {JOIN_LIMIT:.0f})",
    )
    parser.add_argument("--devices", metavar="0,1,…", help="device index of each worker (default 0 … N-1)")
    parser.add_argument("--log-dir", default=LOG_DIRECTORY, help=f"default {LOG_DIRECTORY}")
    parser.add_argument("--log-name", default=LOG_NAME, help=f"of the file in rank_N below it (default {LOG_NAME})")
    parser.add_argument(
        "--hang-timeout",
        type=float,
        default=IDLE_LIMIT,
        metavar="SECONDS",
        help="end the job when a worker makes no progress for so long; compiling does not count; 0 never "
        f"(default {IDLE_LIMIT:.0f})",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD", help="what each worker runs")


def run(arguments: argparse.Namespace) -> int:
    """``pet launch``: the exit code of the first worker that fails, or 0."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    devices = parse_devices(arguments.devices)
    workers = arguments.workers if arguments.workers is not None else len(devices)
    if arguments.workers is None and not devices:
        raise InputError("pet launch: how many workers? Give -n N or --devices 0,1,…")
    return launch(
        command,
        workers,
        nodes=arguments.nnodes,
        node=arguments.node_rank,
        master=arguments.master,
        devices=devices or None,
        log_directory=arguments.log_dir,
        log_name=Path(arguments.log_name).name,
        idle_limit=arguments.hang_timeout,
        secret=arguments.secret,
        join_limit=arguments.join_timeout,
    )


def parse_devices(text: str | None) -> list[int]:
    """``"0,1"`` → [0, 1]; ``"[0,4]"``, a range without its end as MindFormers writes it, → [0, 1, 2, 3]."""
    if not text:
        return []
    is_range = text.startswith("[") and text.endswith("]")
    try:
        numbers = [int(part) for part in text.strip("[]").split(",")]
    except ValueError:
        raise InputError(f"--devices must read 0,1,… or [first,end), not {text!r}") from None
    if is_range and len(numbers) == 2:
        numbers = list(range(numbers[0], numbers[1]))
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise InputError(f"--devices: {text!r} must name different devices, from 0")
    return numbers


def launch(
    command: list[str],
    workers: int,
    nodes: int = 1,
    node: int = 0,
    master: str | None = None,
    devices: list[int] | None = None,
    log_directory: str | os.PathLike = LOG_DIRECTORY,
    idle_limit: float = IDLE_LIMIT,
    secret: str | None = None,
    log_name: str = LOG_NAME,
    join_limit: float = JOIN_LIMIT,
) -> int:
    """Runs ``command`` in that many processes and waits for all of them.

    In a job that somebody started already (msrun, ModelArts, another launcher) the command replaces this process
    instead: nothing is started twice.

    Returns:
        0, or the exit code of the first worker that failed (128 + signal for a killed one, 124 for a hang).

    Raises:
        InputError: no command or no such program, no workers, more workers than devices, a machine number outside the
            job, several machines without a secret, or a log directory that cannot be written.
    """
    starters = STARTERS if nodes == 1 else STARTERS[:1]  # mpirun or srun may start one launcher on each machine
    job = read_job(starters=starters)
    there = f"the environment says a job of {job.size} ({said_by(starters=starters)})"
    for wrong, text in (
        (not hasattr(os, "waitid"), "several processes are started and watched on Linux alone; here one process runs"),
        (not command, "no command; write it after --, for example: pet launch -n 2 -- python train.py"),
        (workers < 1, f"-n must be 1 or more, not {workers}"),
        (devices and len(devices) < workers, f"{workers} workers, but --devices names {len(devices or [])}"),
        (not 0 <= node < nodes, f"--node-rank must be 0 … {nodes - 1}, not {node}"),
        (nodes > 1 and not master, "--nnodes needs --master host:port, the address of machine 0"),
        (not idle_limit >= 0, f"--hang-timeout must be 0 or more seconds, not {idle_limit}"),
        (workers > job.size and job.launcher != "none", f"-n {workers}, but {there}; unset it to start processes here"),
        (not join_limit > 0, f"--join-timeout must be more than 0 seconds, not {join_limit}"),
    ):
        if wrong:
            raise InputError(f"pet launch: {text}")
    if shutil.which(command[0]) is None:
        hint = f"; did you mean python {command[0]}?" if command[0].endswith(".py") else ""
        raise InputError(f"pet launch: there is no program {command[0]!r} that can be executed{hint}")
    if job.launcher != "none":
        with interrupts.unblocked():
            os.execvp(command[0], command)
    if nodes > 1:
        host, port = split_address(master)
        if node == 0:
            resolve(host)  # the workers meet there, by IPv4 alone
        control = Control(nodes, node, (host, port), workers, job_secret(secret), join_limit)
    else:
        control = Alone(workers)
    with control:
        return _Workers(command, workers, control, devices, Path(log_directory), log_name, idle_limit).wait()


class _Workers:
    """The processes of this machine."""

    def __init__(self, command, count, control, devices, log_directory: Path, log_name: str, idle_limit: float):
        self.control, self.count, self.log_directory, self.log_name = control, count, log_directory, log_name
        self.idle_limit = idle_limit
        self.failure: tuple[int, str, int] | None = None  # exit code, message, rank
        self.grace, self.interrupted = GRACE, 0.0
        self.processes: list[subprocess.Popen] = []
        self.watches: list[Watch] = []
        self.outputs: list[Output] = []
        self.signals = contextlib.ExitStack()
        self.signals.enter_context(interrupts.handled_by(self._interrupted))
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._suspended)
            self.signals.callback(signal.signal, signal.SIGTSTP, signal.SIG_DFL)
        # a hung worker is ended with SIGABRT, for which Python prints every thread's stack; nobody wants the core file
        self.core_limit = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, self.core_limit[1]))
        self.guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        use_idle = not accelerators_present()
        try:
            for local in range(count):
                self._start(command, local, devices[local] if devices else local)
            for local, process in enumerate(self.processes):
                self.watches.append(Watch(process.pid, self._beat_file(local), idle_limit, use_idle))
        except BaseException:
            self._end(0.0)
            raise

    def _log(self, local: int) -> Path:
        return self.log_directory / f"rank_{self.control.first_rank + local}" / self.log_name

    def _beat_file(self, local: int) -> Path:
        """Two jobs may share a log directory, but not what their workers promise."""
        return self._log(local).with_name(f"beat.{os.getpid()}")

    def _start(self, command: list[str], local: int, device: int) -> None:
        rank, log = self.control.first_rank + local, self._log(local)
        beat_file = self._beat_file(local)
        host, port = self.control.store
        environment = {
            **os.environ,
            "PET_LAUNCH": "1",
            "RANK_ID": str(rank),
            "RANK_SIZE": str(self.control.size),
            "LOCAL_RANK": str(local),
            "DEVICE_ID": str(device),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            BEAT_FILE: str(beat_file.resolve()),
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUNBUFFERED": "1",
        }
        environment.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // self.count)))
        environment.setdefault("GLOG_v", "3")  # MindSpore's cluster warns about every step of a normal start
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            beat_file.write_bytes(b"")
            file = log.open("wb", buffering=0)
            with interrupts.unblocked():
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:  # of the log directory, or of the program
            raise InputError(f"pet launch: {error.filename}: {error.strerror}") from None
        self.processes.append(process)
        self.guard.stdin.write(f"{process.pid}\n")
        self.guard.stdin.flush()
        self.outputs.append(Output(rank, process, file, show=rank == 0))

    def wait(self) -> int:
        """Until all workers of all machines are through, or one has failed."""
        try:
            self._poll()
            if self.failure is not None:
                self.control.fail(*self.failure[:2])
        finally:
            self._end(0.0 if self.failure is None else self.grace)
        if self.failure is None:
            return 0
        code, message, rank = self.failure
        with contextlib.suppress(OSError):  # the terminal was closed, say, for which the job ends
            print(f"pet launch: {message}", file=sys.stderr)
            if rank >= 0:
                self._show_log(rank)
        return code

    def _interrupted(self, number: int) -> None:
        if self.failure is None:
            self.failure, self.grace = (128 + number, f"ended by {signal.Signals(number).name}", -1), NOTICE
            self.interrupted = time.monotonic()
        elif interrupts.pressed_again(number, self.interrupted):
            self.grace = 0.0

    def _suspended(self, number: int, frame) -> None:
        """Ctrl-Z stops the workers, too, which have sessions of their own; they go on with this process. Where no shell
        would continue it, the system does not stop it."""
        self._signal_all(signal.SIGSTOP)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspended)
        self._signal_all(signal.SIGCONT)

    def _poll(self) -> None:
        ended: dict[int, float] = {}  # when
        while self.failure is None:
            for local, process in enumerate(self.processes):
                rank = self.control.first_rank + local
                if local in ended:
                    continue
                code = exit_code(process)
                if code is not None:
                    ended[local] = time.monotonic()
                    self.watches[local].running = False
                    if code:
                        self.failure = (*describe_end(rank, code), rank)
                        break
            if self.failure is not None:
                return
            found = find_hanging(self.watches)
            if found is None and self.idle_limit:
                views = {local: watch.view() for local, watch in enumerate(self.watches) if watch.running}
                # who waited for one that has ended has only now what it waited for
                recent = time.monotonic() - self.idle_limit
                views |= {local: BUSY for local, when in ended.items() if when > recent}
                awaited = self.control.awaited(views)
                found = None if awaited is None else self.watches[awaited]
            if found is not None:
                rank, *others = (self.control.first_rank + one for one in (self.watches.index(found), *sorted(ended)))
                self.failure = (124, describe_hang(rank, found.reason, others), rank)
                self._dump_stacks()
                return
            elsewhere = self.control.exchange(done=len(ended) == self.count)
            if elsewhere is not None:
                self.failure = (*elsewhere, -1) if elsewhere[0] else None
                return
            time.sleep(0.1)

    def _dump_stacks(self) -> None:
        """Has every worker print where it is: SIGABRT, to which Python's fault handler answers."""
        for process in self.processes:
            for number in (signal.SIGABRT, signal.SIGCONT):  # a stopped one answers as soon as it goes on
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, number)
        time.sleep(0.5)

    def _end(self, grace: float) -> None:
        """Ends every process group, first kindly, and the guard."""
        if grace:
            self._signal_all(signal.SIGTERM)
            begin = time.monotonic()
            while self._may_go_on(time.monotonic() - begin, grace):
                time.sleep(0.05)
        # also where all went well: a worker may have left children behind
        self._signal_all(signal.SIGKILL)
        for process in self.processes:
            process.wait()
        limit = time.monotonic() + 2.0  # what has left its group may keep the pipe
        for output in self.outputs:
            output.join(max(0.0, limit - time.monotonic()))
        with contextlib.suppress(OSError):
            self.guard.stdin.write("done\n")
            self.guard.stdin.close()
        self.guard.wait()
        for local in range(len(self.processes)):
            for file in (self._beat_file(local), file_of(self._beat_file(local))):
                file.unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_CORE, self.core_limit)
        self.signals.close()

    def _may_go_on(self, seconds: float, grace: float) -> bool:
        """Whether a worker still runs, so many seconds after SIGTERM. Those that only wait for others to join do so in
        vain, have nothing to save, and may not have received it."""
        running = [watch for watch, each in zip(self.watches, self.processes, strict=True) if exit_code(each) is None]
        for watch in running:
            watch.look()
        limit = GRACE if all(watch.state == JOINING for watch in running) else NOTICE
        return bool(running) and seconds < min(limit, grace, self.grace)

    def _signal_all(self, number: int) -> None:
        for process in self.processes:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, number)

    def _show_log(self, rank: int) -> None:
        """What the failed worker said last: its traceback where there is one. Rank 0's is on the terminal already."""
        log = self._log(rank - self.control.first_rank)
        print(f"pet launch: the log of rank {rank} is {log}", file=sys.stderr)
        if rank == 0 and self.failure[0] != 124:
            return
        lines = self.outputs[rank - self.control.first_rank].last_words()
        print("\n".join(f"[rank {rank}] {line}" for line in lines), file=sys.stderr)
