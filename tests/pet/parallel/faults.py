"""Faults in one worker of a job, at a place of its work: the job must end soon, and blame that worker.

    python faults.py run DIRECTORY [--count 50] [--seed 0] [--nodes 1] [--limit 20] [--others 0] [key.sub=value …]
    python faults.py run DIRECTORY --place step --fault loop
    python faults.py run DIRECTORY --place compiling --fault compile --long 600
    python faults.py saves DIRECTORY [--half 0]

Each job is ``pet finetune`` in two processes, on one machine or under two launchers. Printed are the exit code, what is
wrong, and the seconds from the fault to the end of the launchers. Two faults are none, and the job goes on to its end:
``compile``, where the worker compiles for ``--long`` seconds, and ``none``. ``full`` is what the system says of a disk
that is full, where a file is written. ``--others`` is so many processes beside the jobs that always want a core.

``saves``: each worker in turn is killed, or finds its disk full, while its part of the second checkpoint is written.
That checkpoint must not be there; ``--resume`` goes on from the one before, to the next fault, and in the end to the
adapter of the job that nobody disturbed, byte for byte.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RECIPE = ["gpt_lora", "train.epochs=null", "train.steps=6", "train.save_every=3", "eval.every_epochs=null"]
RECIPE += ["data.eval=null", "eval.metrics=[loss]", "eval.shown_samples=0", "output.dir=run"]
RECIPE += ["train.batch_size=2", "data.max_samples=24", "adapter.dropout=0.1"]
RECIPE += ["parallel.data=2", "parallel.shard_optimizer=true"]  # so that both workers write to a checkpoint
PLACES = {  # a function of the worker's, at which of its calls, and perhaps at the first call of what within
    "starting": ("pet.cli.main:run", 1),
    "importing": (None, 1),
    "joining": ("pet.parallel.join:_connect", 1),
    "loading": ("model_zoo.checkpoint.safetensors_io:SafetensorsFile.read_into", 2),
    "compiling": ("model_zoo.graph:api._JitExecutor.compile", 1),
    "first run": ("model_zoo.graph:api._JitExecutor._generate_run_args", 1),
    "step": ("pet.train.trainer:Trainer.one_step", 3),
    "saving": ("pet.train.saving:Saving.save", 1),
    "part": ("pet.train.checkpoint:_write", 2, "os:fsync"),  # the file has all its bytes, and not its name yet
    "next part": ("pet.train.checkpoint:_write", 1, "os:fsync"),
}
HANGS, ENDS = ("stop", "sleep", "loop", "calls"), {"kill": 137, "raise": 1, "exit": 3, "full": 1}
CHANCE = {"stop": 3, "loop": 4, "sleep": 2, "calls": 2, "kill": 2, "raise": 1, "exit": 1}


def hang(fault: str) -> None:
    """Begins the fault; only what is none comes back."""
    Path(os.environ["FAULT_FILE"]).write_text(str(time.time()))
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "raise":
        raise ArithmeticError("a fault")  # which is not taken for one of MindSpore's compiler
    elif fault == "exit":
        os._exit(ENDS[fault])
    elif fault == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif fault == "compile":
        # Python code of MindSpore's, as its parser is, and then a long call that keeps Python's lock
        import mindspore

        code = "def compile(seconds):\n    while time.monotonic() < seconds: pass\n    sum(range(3 * 10**8))"
        space = {"time": time}
        exec(compile(code, str(Path(mindspore.__file__).parent / "graph" / "api.py"), "exec"), space)
        space["compile"](time.monotonic() + float(os.environ["FAULT_LONG"]))
        return
    elif fault == "none":
        return
    while fault == "sleep":
        time.sleep(1000.0)
    while fault == "loop":
        pass
    while True:
        sorted(range(1000), key=lambda number: -number)


def arm(place: str, fault: str) -> None:
    """Puts the fault into its place."""
    name, count, *within = PLACES[place]
    if name is None:
        sys.meta_path.insert(0, _Finder(fault))
        return
    begin(name, count, lambda: begin(within[0], 1, lambda: hang(fault)) if within else hang(fault))


def begin(name: str, count: int, what: Callable[[], None]) -> None:
    """Lets something happen at that call of a function, before it."""
    module, path = name.split(":")
    *owners, last = path.split(".")
    owner = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    before, calls = getattr(owner, last), [0]

    def faulty(*arguments, **named):
        calls[0] += 1
        if calls[0] == count:
            what()
        return before(*arguments, **named)

    setattr(owner, last, faulty)


class _Finder:
    def __init__(self, fault: str):
        self.fault = fault

    def find_spec(self, name, *_):
        if name == "pet.train.run":
            hang(self.fault)


def worker(place: str, fault: str, rank: str, *words: str) -> None:
    sys.argv = ["pet", *words]
    if os.environ["RANK_ID"] == rank:
        arm(place, fault)
    from pet.__main__ import main

    sys.exit(main())


def job(
    directory: Path,
    place: str,
    fault: str,
    rank: int,
    nodes: int,
    words: list[str],
    long: float = 0.0,
    hang: float = 0.0,
) -> tuple[int, str, float]:
    """Runs one job; gives its exit code, what the launchers said, and the seconds from the fault to the end."""
    directory.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "FAULT_FILE": str(directory / "fault"),
        "FAULT_LONG": str(long),
        "PET_LAUNCH_SECRET": "the same on both machines",
    }
    command = [sys.executable, str(Path(__file__)), "worker", place, fault, str(rank), "finetune", *RECIPE, *words]
    launchers = []
    port = random.randrange(20000, 30000)
    for node in range(nodes):
        options = ["-n", str(2 // nodes), "--log-dir", f"log_{node}"]
        options += ["--hang-timeout", str(hang)] if hang else []
        if nodes > 1:
            options += ["--nnodes", str(nodes), "--node-rank", str(node), "--master", f"127.0.0.1:{port}"]
        launchers.append(
            subprocess.Popen(
                [sys.executable, "-m", "pet", "launch", *options, "--", *command],
                cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    said = "\n".join(launcher.communicate()[1] for launcher in launchers)
    begin = directory / "fault"
    seconds = time.time() - float(begin.read_text()) if begin.exists() else float("nan")
    return max(launcher.returncode for launcher in launchers), said, seconds


def judge(fault: str, rank: int, code: int, said: str, seconds: float, limit: float, long: float = 0.0) -> str:
    """What is wrong, or nothing."""
    if fault in ("compile", "none"):
        right = code == 0 and seconds > (long if fault == "compile" else 0.0)
        return "" if right else "a job that is only slow was taken for one that hangs"
    wanted = ENDS.get(fault, 124)
    blamed = re.findall(r"rank (\d+) (?:hangs|ended|was killed)", said)
    wrong = [f"exit code {code} for {wanted}"] if code != wanted else []
    wrong += [f"blamed {blamed}"] if set(blamed) != {str(rank)} else []
    wrong += [f"{seconds:.1f} s"] if not seconds < limit else []
    return "; ".join(wrong)


def run(options, words: list[str]) -> int:
    """Runs jobs; gives how many went wrong."""
    chance, failures = random.Random(options.seed), 0
    for number in range(options.count):
        place = options.place or chance.choice(list(PLACES))
        fault = options.fault or chance.choices(list(CHANCE), list(CHANCE.values()))[0]
        rank, directory = chance.randrange(2), options.directory / f"{options.seed}-{number}"
        code, said, seconds = job(directory, place, fault, rank, options.nodes, words, options.long, options.hang)
        wrong = judge(fault, rank, code, said, seconds, options.limit, options.long)
        failures += bool(wrong)
        print(f"{number + 1}: rank {rank}, {fault} in {place}: {code} after {seconds:.1f} s  {wrong}", flush=True)
        if wrong:
            print(said[:1500], flush=True)
    return failures


def saves(options, words: list[str]) -> int:
    """Disturbs the second of three checkpoints of one run again and again; gives how many jobs went wrong."""
    words, failures = ["train.save_every=2", *words], 0
    directory, beside = options.directory / "disturbed", ThreadPoolExecutor()
    expected = beside.submit(finished, options.directory / "whole", words)
    place = "part"
    for fault, rank in itertools.product(("kill", "full"), (0, 1)):
        if options.half is not None and (rank == (fault == "full")) != (options.half == 0):
            continue
        code, said, seconds = job(directory, place, fault, rank, 1, words)
        wrong = [judge(fault, rank, code, said, seconds, options.limit)]
        if fault == "full":
            wrong += ["" if "the disk is full" in said + logs(directory) else "not said that the disk is full"]
        kept = sorted(each.name for each in (directory / "run" / "checkpoints").glob("[!.]*"))
        wrong = [each for each in (*wrong, "" if kept == ["step-000002"] else f"there are {kept}") if each]
        failures += bool(wrong)
        print(f"rank {rank}, {fault}: {code} after {seconds:.1f} s  {'; '.join(wrong)}", flush=True)
        if wrong:
            print(said[:1500], flush=True)
        if place == "part":  # from here on, a job begins behind the first checkpoint
            place, words = "next part", [*words, "--resume"]
    if finished(directory, words) != expected.result():
        failures += 1
        print("resumed to another adapter", flush=True)
    if left := [str(each) for each in (directory / "run").rglob("*unfinished*")]:
        failures += 1
        print(f"left are {left}", flush=True)
    return failures


def logs(directory: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(directory.glob("log_*/**/*.log")))


def finished(directory: Path, words: list[str]) -> bytes:
    """The adapter of a job that nobody disturbs."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pet", "finetune", *RECIPE, *words]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return (directory / "run" / "adapter" / "adapter_model.safetensors").read_bytes()


def main() -> None:
    if sys.argv[1] == "worker":
        return worker(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "saves"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1, choices=[1, 2])
    parser.add_argument("--limit", type=float, default=20.0, help="seconds to the job's end; more on a busy machine")
    parser.add_argument("--place", choices=list(PLACES))
    parser.add_argument("--fault", choices=[*CHANCE, "full", "compile", "none"])
    parser.add_argument("--hang", type=float, default=0.0, help="--hang-timeout of the launchers; 0 for its default")
    parser.add_argument(
        "--half", type=int, choices=[0, 1], help="of `saves`: one worker is killed, the other's disk full"
    )
    parser.add_argument("--long", type=float, default=60.0, help="seconds that the fault compile takes")
    parser.add_argument("--others", type=int, default=0, help="processes beside the jobs that always want a core")
    options, words = parser.parse_known_args()
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.others)]
    try:
        failures = {"run": run, "saves": saves}[options.what](options, words)
    finally:
        for other in others:
            other.kill()
    print(f"{failures} went wrong")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
