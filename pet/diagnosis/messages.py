"""How workers meet, and what their messages come to. Runs in every worker of a job."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model_zoo.errors import explain
from pet.diagnosis.report import NOTE, Section
from pet.parallel import collectives
from pet.parallel.join import join
from pet.parallel.mesh import Mesh
from pet.parallel.schedule import Neighbour

DTYPES = {"float32": ms.float32, "float16": ms.float16, "bfloat16": ms.bfloat16, "int32": ms.int32}
SMALL, CROSSING = 1 << 10, (1 << 10, 100 * 10**6)
LARGE = {True: 1 << 20, False: 100 * 10**6}
"""Bytes of the message whose bandwidth is measured: on a CPU, and on an accelerator."""
REPEATS = 5


def meet(section: Section, small: bool) -> None:
    """Joins the job, and adds up over all workers."""
    begin = time.perf_counter()
    job = join()
    seconds = time.perf_counter() - begin
    everybody = collectives.world()
    total = collectives.all_reduce(Tensor(np.array([job.rank, 1], np.float32)), everybody).asnumpy().tolist()
    right = total == [job.size * (job.size - 1) / 2, job.size]
    section.add("joining", right, f"{job.size} workers by {job.launcher} in {seconds:.1f} s", seconds=seconds)


def measure(section: Section, small: bool) -> None:
    """Every collective of every type over every group, against sums that are known; latency and bandwidth."""
    dtypes = {name: dtype for name, dtype in DTYPES.items() if _has_kernels(section, name, dtype)}
    for group in groups():
        for name, dtype in dtypes.items():
            for operation, call in operations(group).items():
                with section.checking(f"{operation} {name} {group.label}"):
                    _measure(section, f"{operation} {name} {group.label}", call, dtype, group, LARGE[small])
    with section.checking("all_reduce in a graph"):
        _in_graph(section, dtypes)


def _has_kernels(section: Section, name: str, dtype) -> bool:
    """Whether the device can fill a tensor of this type. Found out before any message: an operator that fails does so
    later on some workers than on others, and their messages would no longer belong together."""
    try:
        ops.zeros_like(Tensor(np.ones(4, np.float32)).astype(dtype)).astype(ms.float32).asnumpy()
    except Exception as error:
        section.add(name, NOTE, explain(error))
        return False
    return True


def groups() -> Iterator[collectives.Group]:
    """All workers, and where there are four or more, each half of them."""
    job = join()
    yield collectives.world()
    if job.size >= 4 and job.size % 2 == 0:
        half = job.size // 2
        first = job.rank // half * half
        yield collectives.make_group("half", range(first, first + half))


def operations(group: collectives.Group) -> dict[str, Callable]:
    """{collective: ``tensor → (results, what they must be of each member's number)``}."""
    neighbour = group.ranks[group.place ^ 1] if group.place ^ 1 < group.size else None

    def swap(x):
        if neighbour is None:
            return []
        sends_first = group.place % 2 == 0
        sent = collectives.send(x, neighbour) if sends_first else None
        received = collectives.receive(x.shape, x.dtype, neighbour)
        sent = sent or collectives.send(x, neighbour)
        sent.wait()
        return [(received, lambda members: members[group.place ^ 1])]

    return {
        "all_reduce": lambda x: [(collectives.all_reduce(x, group), sum)],
        "all_gather": lambda x: [
            (part, lambda members, place=place: members[place])
            for place, part in enumerate(collectives.all_gather(x, group))
        ],
        "broadcast": lambda x: [(collectives.broadcast(x, group.size - 1, group), lambda members: members[-1])],
        "send, receive": swap,
    }


def _measure(section: Section, check: str, call: Callable, dtype, group: collectives.Group, large: int) -> None:
    seconds, right = {}, True
    for nbytes in (SMALL, large):
        count = nbytes // Tensor(0, dtype).itemsize
        members = [rank % 3 + 1 for rank in group.ranks]  # small numbers, whose sums every type holds
        x = Tensor(np.full(count, members[group.place], np.float32)).astype(dtype)
        times = []
        for _ in range(REPEATS):
            collectives.all_reduce(Tensor(np.zeros(1, np.float32)), group).asnumpy()  # all begin together
            begin = time.perf_counter()
            results = call(x)
            found = [(result.astype(ms.float32).asnumpy(), expected(members)) for result, expected in results]
            times.append(time.perf_counter() - begin)
            right = right and all((array == value).all() for array, value in found)
        seconds[nbytes] = statistics.median(times)
    rate = large / seconds[large] / 1e9
    text = f"{seconds[SMALL] * 1e6:,.0f} us for {SMALL} bytes, {rate:.2f} GB/s for {large:,}"
    section.add(check, right, text, latency=seconds[SMALL], bytes_per_second=rate * 1e9, bytes=large)


def _in_graph(section: Section, dtypes: dict) -> None:
    """The only collective that compiled steps hold."""
    group = collectives.world()

    class Sum(nn.Cell):
        def __init__(self):
            super().__init__()
            self.sum = collectives.GroupSum(group)

        @ms.jit
        def construct(self, x):
            return self.sum(x * 2.0)

    expected, cell = 2.0 * sum(rank + 1 for rank in group.ranks), Sum()
    for name in (name for name in dtypes if "float" in name):
        with section.checking(f"all_reduce in a graph {name}"):
            x = Tensor(np.full((4, 8), group.place + 1, np.float32)).astype(DTYPES[name])
            result = cell(x).astype(ms.float32).asnumpy()
            section.add(f"all_reduce in a graph {name}", bool((result == expected).all()), f"{expected:g} expected")


def cross(section: Section, small: bool) -> None:
    """Messages that cross between neighbouring ranks, in pairs as a pipeline sends them."""
    job = join()
    half = job.size // 2
    for nbytes in CROSSING if job.rank < 2 * half else ():  # the last of an odd number has no partner
        with section.checking(f"crossing messages, paired, {nbytes:,} bytes"):
            mesh, width = Mesh(data=half, pipeline=2, rank=job.rank), nbytes // 4
            other = Neighbour(mesh, 1 - mesh.stage, width, ms.float32)
            begin = time.perf_counter()
            received = other.exchange(Tensor(np.full((1, width), job.rank, np.float32)), 1)
            right = bool((received.asnumpy() == other.rank).all())
            other.finish()
            seconds = time.perf_counter() - begin
            section.add(f"crossing messages, paired, {nbytes:,} bytes", right, f"{seconds:.3f} s", seconds=seconds)


def cross_at_once(section: Section, small: bool) -> None:
    """The same where both send first. Nothing here does that: whether it blocks is worth knowing all the same."""
    job = join()
    other = job.rank ^ 1
    for nbytes in CROSSING if other < job.size else ():
        check = f"crossing messages, both send first, {nbytes:,} bytes"
        section.add(check, NOTE, "blocks, or failed")
        begin = time.perf_counter()
        sent = collectives.send(Tensor(np.full(nbytes // 4, job.rank, np.float32)), other)
        right = bool((collectives.receive((nbytes // 4,), ms.float32, other).asnumpy() == other).all())
        sent.wait()
        section.rows.pop()
        section.add(check, NOTE if right else False, f"{time.perf_counter() - begin:.3f} s: does not block here")
