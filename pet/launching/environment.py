"""Which job this process belongs to, read from the environment. Needs no MindSpore."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from model_zoo.atomic import read_json
from model_zoo.errors import InputError

DEFAULT_PORT = 8118
"""Where workers meet when nobody says so: MindSpore's own default for its scheduler."""


class Starter(NamedTuple):
    """Variables by which one who starts processes tells each its place, the last among those of its machine."""

    size: str
    rank: str
    local: str


STARTERS = (
    Starter("RANK_SIZE", "RANK_ID", "LOCAL_RANK"),  # `pet launch`, ModelArts, shell scripts
    Starter("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    Starter("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),  # MPICH, Intel MPI
    Starter("WORLD_SIZE", "RANK", "LOCAL_RANK"),  # torchrun, Kubernetes' operators
    Starter("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),  # srun
)
"""In this order: who writes RANK_SIZE and RANK_ID within another's job means these."""
MSRUN = Starter("MS_WORKER_NUM", "MS_NODE_ID", "LOCAL_RANK")
OF_A_JOB = (
    *(name for one in (*STARTERS, MSRUN) for name in one),
    "MS_ROLE",
    "RANK_TABLE_FILE",
    "PET_LAUNCH",
    "DEVICE_ID",
)
"""All by which a process finds its place."""
RESULT_FILE = "PET_RESULT_FILE"
"""Names the file that rank 0 of ``pet COMMAND`` writes when the command has succeeded."""


def report_success() -> None:
    """Writes it for the launcher that asked for it: exit code 0 alone could be that of any program."""
    path = os.environ.pop(RESULT_FILE, None)
    if path and read_job().rank == 0:
        Path(path).parent.mkdir(parents=True, exist_ok=True)  # somebody may have tidied up
        open(path, "wb").close()


@dataclasses.dataclass(frozen=True)
class Job:
    """A process's place among the workers.

    Attributes:
        rank, size: the place, and how many workers there are.
        device: index of the accelerator to use; without meaning on a CPU.
        launcher: who started the workers: ``none``, ``pet``, ``msrun``, ``rank_table`` (a cluster's engine with a
            rank table file) or ``environment`` (variables of `STARTERS` alone).
        master: ``host:port`` where the workers meet; empty where MindSpore knows by itself.
    """

    rank: int = 0
    size: int = 1
    device: int = 0
    launcher: str = "none"
    master: str = ""

    @property
    def distributed(self) -> bool:
        """Whether there is another worker."""
        return self.size > 1

    @property
    def joins(self) -> bool:
        """Whether this process is to say that it is here: to other workers, or to msrun's scheduler, which serves a
        single one as well.
        """
        return self.distributed or self.launcher == "msrun"


def read_job(environ: Mapping[str, str] | None = None, starters: Sequence[Starter] = STARTERS) -> Job:
    """The job described by the environment of msrun or of one of `STARTERS`; else a job of one.

    Raises:
        InputError: a rank outside the size, or a variable that is not a number.
    """
    environ = os.environ if environ is None else environ
    by = started_by(environ, starters)
    if not by:
        return Job(device=_number(environ, "DEVICE_ID", 0))
    size = _number(environ, by[0].size)
    # a script may give RANK_SIZE to what mpirun starts, or RANK_ID to what msrun does
    rank = _first(environ, (one.rank for one in by), _number(environ, "RANK_ID", 0))
    if by[0] is MSRUN:
        launcher, master = "msrun", ""
    else:
        launcher = "pet" if "PET_LAUNCH" in environ else "environment"
        if launcher == "environment" and environ.get("RANK_TABLE_FILE"):
            launcher = "rank_table"
        master = _master(environ, by[0])
    if not 0 <= rank < size:
        raise InputError(f"the environment says rank {rank} of {size} workers; ranks go from 0 to {size - 1}")
    local_rank = _first(environ, (one.local for one in by), rank)
    return Job(rank, size, _number(environ, "DEVICE_ID", local_rank), launcher, master)


def started_by(environ: Mapping[str, str], starters: Sequence[Starter] = STARTERS) -> list[Starter]:
    """Who started this process as one of several, the one that counts first.

    Of those who start any program so (MPI, torchrun, srun) a single process is no job: it may start others itself.
    """
    # msrun runs the script once more as its scheduler: there joining serves the workers until they end
    msrun = environ.get("MS_ROLE") in ("MS_WORKER", "MS_SCHED") and MSRUN.size in environ
    return [MSRUN] * msrun + [
        one
        for one in starters
        if one.size in environ and (one is STARTERS[0] or (one.rank in environ and _number(environ, one.size) > 1))
    ]


def said_by(environ: Mapping[str, str] | None = None, starters: Sequence[Starter] = STARTERS) -> str:
    """The variables that say of how many workers the job is; without them each process is alone."""
    return " and ".join(one.size for one in started_by(os.environ if environ is None else environ, starters))


def has_rank(environ: Mapping[str, str]) -> bool:
    """Whether somebody has told this process which of several it is."""
    return any(name in environ for name in ("RANK_ID", "MS_ROLE", *(one.rank for one in started_by(environ))))


def _first(environ: Mapping[str, str], names: Iterable[str], default: int) -> int:
    return next((_number(environ, name) for name in names if name in environ), default)


def _number(environ: Mapping[str, str], key: str, default: int | None = None) -> int:
    text = environ.get(key)
    if text is None and default is not None:
        return default
    try:
        return int(text)
    except (TypeError, ValueError):
        raise InputError(f"the environment variable {key} must be a whole number, not {text!r}") from None


def _master(environ: Mapping[str, str], by: Starter) -> str:
    """MASTER_ADDR and MASTER_PORT, or the first host that ModelArts, srun or a table of several servers lists, or this
    machine.
    """
    host = environ.get("MASTER_ADDR") or environ.get("VC_WORKER_HOSTS", "").split(",")[0]
    if not host and (table := environ.get("RANK_TABLE_FILE")):
        servers = servers_of(table)
        host = servers[0]["server_id"] if len(servers) > 1 else ""
    if not host and _first(environ, ["SLURM_STEP_NUM_NODES"], 1) > 1:
        host = _first_host(environ.get("SLURM_STEP_NODELIST", ""))
    port = _number(environ, "MASTER_PORT", DEFAULT_PORT)
    if by.size == "WORLD_SIZE" and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port += 1  # at its own torchrun itself listens
    return f"{host or '127.0.0.1'}:{port}"


def _first_host(hosts: str) -> str:
    """``n03x`` of Slurm's ``n[03-07,12]x,m1``."""
    first = re.match(r"([^,[]*)(?:\[(\w+)[^]]*\])?([^,[]*)", hosts)
    return "".join(part or "" for part in first.groups())


@functools.cache
def servers_of(path: str) -> list[dict[str, Any]]:
    """The servers of a rank table, each ``{"server_id": host, "device": [{"device_id", "rank_id"}, …]}``.

    Raises:
        InputError: no such file, or no rank table; or one that does not fit together, for which HCCL would wait.
    """
    try:
        table = read_json(path, "a rank table")
        servers = [*table["server_list"]]
        hosts = [str(server["server_id"]) for server in servers]
        devices = [[(int(one["rank_id"]), int(one["device_id"])) for one in server["device"]] for server in servers]
        ranks = sorted(rank for server in devices for rank, _ in server)
        count = int(table.get("server_count", len(servers)))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"rank table {path}: cannot be read: {error!r}") from None
    wrong = "has no devices" if not ranks else ""
    if ranks != [*range(len(ranks))]:
        wrong = f"lists the ranks {', '.join(map(str, ranks))}; it must have each from 0 to {len(ranks) - 1} once"
    for host, each in zip(hosts, devices, strict=True):
        if len({device for _, device in each}) < len(each):
            wrong = f"gives a device of {host} to two ranks"
    if count != len(servers):
        wrong = f"says server_count {count}, but lists {len(servers)} servers"
    if wrong:
        raise InputError(f"rank table {path}: {wrong}")
    return servers


def devices_of(path: str) -> dict[int, int]:
    """{rank: its device} of a rank table. Errors are those of `servers_of`."""
    return {int(one["rank_id"]): int(one["device_id"]) for server in servers_of(path) for one in server["device"]}


def on_device(job: Job) -> Job:
    """The job, on the device that its rank table gives this rank where it came with one and without a DEVICE_ID, for
    which MindSpore asks beside a table, on a CPU as well.

    Raises:
        InputError: the table is not one of so many workers.
    """
    table = os.environ.get("RANK_TABLE_FILE")
    if not table or job.launcher != "rank_table":
        return job
    devices = devices_of(table)
    if len(devices) != job.size:
        raise InputError(f"rank table {table}: has {len(devices)} devices, but RANK_SIZE says {job.size} workers")
    return dataclasses.replace(job, device=int(os.environ.setdefault("DEVICE_ID", str(devices[job.rank]))))


def split_address(text: str) -> tuple[str, int]:
    """``host:port`` → (host, port), an IPv6 address without its brackets. Raises InputError for anything else."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise InputError(f"an address must read host:port, for example 10.0.0.1:8118, not {text!r}")
    return host, int(port)
