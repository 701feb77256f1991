"""A checkpoint on machines that do not share its directory: rank 0 has it and sends it, each of them keeps a copy."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from model_zoo import progress
from model_zoo.atomic import open_file, until_exit
from pet.train.distributed import DistributedContext

BLOCK = 1 << 24
"""Bytes of a message."""


def bring(path: Path, first: str, files: Iterable[str], distributed: DistributedContext) -> Path:
    """Where this process can read rank 0's checkpoint: the directory itself, or a copy that is gone when it ends.

    All processes must call this.

    Args:
        path: the checkpoint, as this process calls it. What lies there may be another job's.
        first: the file by whose content checkpoints differ.
        files: names of the others; those that rank 0 gives count.
    """
    own = _digest(path / first)
    known = distributed.objects(own)
    if known[0] is None or all(each == known[0] for each in known):
        return path
    place, makes = _share(path if own == known[0] else None, distributed)
    sent = [(name, (path / name).stat().st_size) for name in (first, *files) if (path / name).is_file()]
    for name, size in distributed.objects(sent if distributed.is_main else None)[0]:
        _send(place / name, size, makes, distributed)
    return place


def _digest(file: Path) -> bytes | None:
    """None where there is none."""
    try:
        with open_file(file) as stream:
            return hashlib.sha256(stream.read()).digest()
    except (OSError, ValueError):
        return None


def _share(place: Path | None, distributed: DistributedContext) -> tuple[Path, bool]:
    """A directory for each process that has none, one on each machine; and whether this process made it."""
    made = False
    while True:
        lacking = [rank for rank, each in enumerate(distributed.objects(place)) if each is None]
        if not lacking:
            return place, made
        made |= distributed.rank == lacking[0]
        offered = distributed.objects(until_exit() if distributed.rank == lacking[0] else None)[lacking[0]]
        # its name is unlike that of any directory of another machine
        place = offered if place is None and offered.is_dir() else place


def _send(file: Path, size: int, writes: bool, distributed: DistributedContext) -> None:
    """Rank 0's file, to those that write it."""
    if writes:
        file.parent.mkdir(parents=True, exist_ok=True)
    mode = "rb" if distributed.is_main else "wb"
    with open(file, mode) if distributed.is_main or writes else contextlib.nullcontext() as stream:
        for start in range(0, size, BLOCK):
            progress.tick()
            block = np.zeros(min(BLOCK, size - start), np.int8)
            if distributed.is_main:
                block = np.frombuffer(stream.read(len(block)), np.int8)
            block = distributed.broadcast(block)
            if writes:
                stream.write(block.tobytes())
    distributed.barrier()
