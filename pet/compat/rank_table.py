"""Ranges of devices and rank tables, as MindFormers' shell wrappers take them."""

from __future__ import annotations

import os

from model_zoo.errors import InputError
from pet.launching.environment import devices_of, servers_of
from pet.launching.launcher import parse_devices


def devices(span: str, table: str = "") -> str:
    """``0,1,2,3`` for ``[0,4]``; with a rank table, the device numbers that it gives to these ranks."""
    wanted = parse_devices(span)
    if table:
        known = devices_of(table)
        missing = [rank for rank in wanted if rank not in known]
        if missing:
            raise InputError(f"rank table {table}: has no rank {missing[0]}")
        wanted = [known[rank] for rank in wanted]
    return ",".join(map(str, wanted))


def place(span: str, size: int, table: str = "") -> str:
    """The options of ``pet launch`` for the machine that runs the ranks ``span`` of ``size``.

    Raises:
        InputError: the ranks are not a whole machine's share, or nothing says where the first machine is.
    """
    ranks = parse_devices(span)
    count = len(ranks)
    if not count or size % count or ranks[0] % count or ranks[-1] >= size:
        raise InputError(f"{span} of {size}: every machine must have the same number of processes, in order")
    nodes, node = size // count, ranks[0] // count
    chosen = devices(span, table) if table else ",".join(map(str, range(count)))
    options = f"-n {count} --devices {chosen}"
    if nodes == 1:
        return options
    host = servers_of(table)[0]["server_id"] if table else os.environ.get("MASTER_ADDR")
    if not host:
        raise InputError("the first machine's address is not known; give a rank table, or set MASTER_ADDR")
    return f"{options} --nnodes {nodes} --node-rank {node} --master {host}:{os.environ.get('MASTER_PORT', '8118')}"
