"""All communication between processes.

Within a compiled graph there is one operation, the sum over a group (`GroupSum`), and the two cells that tensor
parallelism is made of, each the other's derivative (Shoeybi et al. 2019):

    CopyToGroup      forward: as it is        backward: sum over the group
    ReduceFromGroup  forward: sum over group  backward: as it is

and `GroupGather`, the rows of all members, by which a frozen matrix comes together.

Outside graphs there are broadcast, all-gather, send and receive besides. MCCL, the CPU's library, sums float32 and
float16 alone and can do little else, so everything here is built from what both it and HCCL have.

Every call is counted: see `counting`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import create_group
from mindspore.mint import distributed

from model_zoo.errors import InputError
from pet.installation import on_cpu
from pet.launching.heartbeat import waiting
from pet.parallel.join import barrier as barrier, join, world_group


@dataclasses.dataclass(frozen=True)
class Group:
    """Processes that talk to each other.

    Attributes:
        label: what the traffic is counted under, for example ``tensor``.
        name: MindSpore's name of the group.
        ranks: its members, by their rank in the job.
        place: of this process among them.
        sums: type in which tensors are sent to be added up.
    """

    label: str
    name: str
    ranks: tuple[int, ...]
    place: int
    sums: str = "float32"

    @property
    def size(self) -> int:
        return len(self.ranks)


_groups: dict[tuple[int, ...], str] = {}


def check_sums(dtype: str) -> None:
    """Raises InputError for a type that the device's library cannot add up."""
    if dtype == "bfloat16" and ms.get_context("device_target") == "CPU":
        raise InputError(
            "parallel.reduce_dtype: bfloat16 cannot be added up on a CPU, whose library sums float32 and float16"
        )


def make_group(label: str, ranks: Sequence[int], sums: str = "float32") -> Group:
    """The group of these ranks, of which this process is one. All members must call this, and in the same order."""
    job, ranks = join(), tuple(ranks)
    if len(ranks) > 1 and ranks not in _groups:
        if ranks == tuple(range(job.size)):
            _groups[ranks] = world_group()
        else:
            # not the ranks themselves: HCCL takes names of 127 characters
            _groups[ranks] = f"pet_{hashlib.sha256(repr(ranks).encode()).hexdigest()[:32]}"
            create_group(_groups[ranks], list(ranks))
    return Group(label, _groups.get(ranks, ""), ranks, ranks.index(job.rank), sums)


def world() -> Group:
    """The group of all processes."""
    return make_group("world", range(join().size))


# Counting ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Traffic:
    """Traffic of one kind of collective: calls, and bytes of the tensors as they are handed in."""

    calls: int = 0
    bytes: int = 0


_traffic: dict[tuple[str, str], Traffic] | None = None
_graphs_count = True


@contextlib.contextmanager
def counting(graphs: bool = True) -> Iterator[dict[tuple[str, str], Traffic]]:
    """Counts the collectives called within, as {(operation, group label): Traffic}.

    Args:
        graphs: also count those that stand in graph code, when it is compiled or runs uncompiled.

    Calls in a compiled graph happen out of Python's sight. They are counted where the same code runs operator by
    operator: once is enough, since every step does the same.
    """
    global _traffic, _graphs_count
    before = _traffic, _graphs_count
    _traffic, _graphs_count = defaultdict(Traffic), graphs
    try:
        yield _traffic
    finally:
        _traffic, _graphs_count = before


def traffic_table(traffic: dict[tuple[str, str], Traffic]) -> str:
    """The counts as lines of text, largest first."""
    lines = [f"{'collective':<12}{'group':<10}{'calls':>7}{'bytes':>14}"]
    for (operation, label), entry in sorted(traffic.items(), key=lambda item: -item[1].bytes):
        lines.append(f"{operation:<12}{label:<10}{entry.calls:>7}{entry.bytes:>14,}")
    return "\n".join(lines)


def _count(operation: str, label: str, nbytes: int) -> None:
    if _traffic is not None:
        entry = _traffic[operation, label]
        entry.calls += 1
        entry.bytes += nbytes


@ops.constexpr
def _count_in_graph(operation, label, shape, itemsize):
    """Runs in Python at every uncompiled call; in a compiled graph only while it is compiled."""
    nbytes = int(itemsize)
    for axis in shape:
        nbytes *= axis
    if _graphs_count:
        _count(operation, label, nbytes)
    return 0


# In graphs -----------------------------------------------------------------------------------------------------------


def in_graphs(group: Group) -> bool:
    """Whether a compiled graph can sum over a group: before 2.8 MindSpore's operators for a CPU know the group of all
    processes alone."""
    return group.name in ("", world_group()) or not (on_cpu() and ms.__version__.startswith("2.7."))


def summing(group: Group) -> Callable[[Tensor], Tensor]:
    """What sums a tensor over a group: an operator, and where graphs have none, a function for outside of them."""
    if in_graphs(group):
        return ops.AllReduce(group=group.name)

    def total(x: Tensor) -> Tensor:
        result = x.copy()
        with waiting():
            distributed.all_reduce(result, group=group.name)
            _arrived(result)
        return result

    return total


class GroupSum(nn.Cell):
    """The sum of a tensor over a group, also within a compiled graph. No derivative: use the two cells below."""

    def __init__(self, group: Group):
        super().__init__()
        self.group, self.label = group, group.label
        self.alone = group.size == 1
        self.reduce = None if self.alone else summing(group)
        # float32 by default: MCCL cannot add bfloat16, and adding halves loses bits on any backend
        self.sums, self.itemsize = getattr(ms, group.sums), 4 if group.sums == "float32" else 2

    def construct(self, x):
        if self.alone:
            return x
        _count_in_graph("all_reduce", self.label, x.shape, self.itemsize)
        if x.dtype == self.sums:
            return self.reduce(x)
        return self.reduce(x.astype(self.sums)).astype(x.dtype)


class GroupGather(nn.Cell):
    """The rows of all members one after the other, ``(N, …) → (size·N, …)``. No derivative.

    Within graphs it is an operator, which on a CPU knows the group of all processes alone; outside it is not.
    """

    def __init__(self, group: Group, dtype):
        super().__init__()
        self.group, self.itemsize = group, Tensor(0, dtype).itemsize
        self.gather, self.join = ops.AllGather(group=group.name), ops.Concat(0)

    def __call__(self, x):
        _count_in_graph("all_gather", self.group.label, x.shape, self.itemsize)
        return self.join(_gathered(x, self.group))

    def construct(self, x):
        _count_in_graph("all_gather", self.group.label, x.shape, self.itemsize)
        return self.gather(x)


class CopyToGroup(nn.Cell):
    """Identity whose gradient is summed over the group: in front of what each member computes a share of."""

    def __init__(self, group: Group):
        super().__init__()
        self.sum = GroupSum(group)

    def construct(self, x):
        return x

    def trace(self, tracer, x):
        return tracer.copy_to_group(x, self.sum)

    def bprop(self, x, out, dout):
        return (self.sum(dout),)


class ReduceFromGroup(nn.Cell):
    """Sum over the group whose gradient is passed on as it is: behind what each member computes a share of."""

    def __init__(self, group: Group):
        super().__init__()
        self.sum = GroupSum(group)

    def construct(self, x):
        return self.sum(x)

    def trace(self, tracer, x):
        return tracer.sum_over_group(x, self.sum)

    def bprop(self, x, out, dout):
        return (dout,)


# Outside graphs ------------------------------------------------------------------------------------------------------


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """The sum of a tensor over a group, sent and added in the group's type of sums."""
    sums = getattr(ms, group.sums)
    sent = x if x.dtype == sums else x.astype(sums)
    _count("all_reduce", group.label, sent.size * sent.itemsize)
    total = summing(group)(sent)
    return total if sent is x else total.astype(x.dtype)


def sum_numbers(numbers: Sequence[float], group: Group) -> list[float]:
    """Sums of host numbers in double precision: gathered, and added in the order of the ranks."""
    if group.size == 1:
        return [float(number) for number in numbers]
    # as pairs of float32, since MCCL carries no doubles: a number and what it lost
    exact = np.asarray(numbers, np.float64)
    high = exact.astype(np.float32)
    low = np.subtract(exact, high, out=np.zeros_like(exact), where=np.isfinite(high)).astype(np.float32)
    parts = all_gather(Tensor(np.stack([high, low])), group)
    return sum(part.asnumpy().astype(np.float64).sum(0) for part in parts).tolist()


def all_gather(x: Tensor, group: Group) -> list[Tensor]:
    """Everybody's tensor, in the order of the group's ranks; all must have the same shape and type."""
    _count("all_gather", group.label, x.size * x.itemsize)
    return _gathered(x, group)


def _gathered(x: Tensor, group: Group) -> list[Tensor]:
    parts = [x.copy() for _ in group.ranks]  # zeros in bfloat16 MindSpore 2.7 has not on a CPU
    with waiting():
        distributed.all_gather(parts, x, group=group.name)
        _arrived(parts[-1])
    return parts


def all_gather_object(value, group: Group) -> list:
    """Everybody's picklable Python object, in the order of the group's ranks."""
    values = [None] * group.size
    with waiting():
        # as bytes: before 2.9 MindSpore unpickles no classes but Python's own
        distributed.all_gather_object(values, pickle.dumps(value), group=group.name)
    return [pickle.loads(found) for found in values]


def broadcast(x: Tensor, place: int, group: Group) -> Tensor:
    """The tensor of the member at that place; the others give one of the same shape and type."""
    _count("broadcast", group.label, x.size * x.itemsize)
    result = x.copy()
    with waiting():
        distributed.broadcast(result, group.ranks[place], group=group.name)
        _arrived(result)
    return result


def send_array(array: np.ndarray, rank: int) -> None:
    """Sends an array of any type to a rank, as its bytes, and returns when it is gone."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.int8)
    with waiting():
        send(Tensor(flat), rank, "files").wait()


def receive_array(shape: Sequence[int], dtype: np.dtype, rank: int) -> np.ndarray:
    """Waits for an array that `send_array` sends."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return receive((nbytes,), ms.int8, rank, "files").asnumpy().view(dtype).reshape(shape)


def send(x: Tensor, rank: int, label: str = "pipeline"):
    """Starts sending a tensor to a rank; ``wait()`` of the result returns when it may be forgotten."""
    _count("send", label, x.size * x.itemsize)
    return distributed.isend(x, rank)


def receive(shape: Sequence[int], dtype, rank: int, label: str = "pipeline") -> Tensor:
    """Waits for a tensor of this shape and type from a rank. Messages between two ranks arrive in order."""
    # not ops.zeros, whose arguments MindSpore keeps; without a device MindSpore 2.7 takes an accelerator's
    result = mint.empty(tuple(shape), dtype=dtype, device="CPU" if on_cpu() else None)
    _count("receive", label, result.size * result.itemsize)
    with waiting():
        distributed.recv(result, rank)
        _arrived(result)
    return result


def _arrived(x: Tensor) -> None:
    """On a CPU a process sleeps until a message is there; that must be over before it may no longer seem idle."""
    if on_cpu():
        x.asnumpy()
