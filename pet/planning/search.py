"""Every layout of a cluster: what it would hold, send and take; the fastest that fits first."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from adapters.method import MethodConfig
from model_zoo.checkpoint.dtypes import STORAGE
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization
from pet.meta_model import MetaModel
from pet.parallel.mesh import Mesh
from pet.parallel.pipeline import bubble
from pet.parallel.shares import Layout, Share, cut, packed_part, uncut
from pet.planning.cluster import Cluster
from pet.planning.operations import flops
from pet.planning.process_memory import OPTIMIZER_STATES, memory, saving_bytes
from pet.planning.traffic import Steps, Traffic, step_traffic


@dataclasses.dataclass(frozen=True, eq=False)  # one is itself alone, so that what is known of it can be kept
class Work:
    """What is to be trained, and how.

    Attributes:
        adapter: a method's configuration; None trains every weight.
        batch: rows of one optimizer step, over all devices.
        length: tokens of a row.
        dtype: of activations, and of the base's weights where `stored` says nothing else.
        recompute: of so many layers the first keeps its input only; 0 for none, where a plan proposes all of them for
            layouts that are too large otherwise.
        micro_batch: rows of one forward pass on one replica; None tries all.
        stored: type that the base's frozen matrices are held in, where it is another one.
        quantization: what is packed in 8 or 4 bits (`model_zoo.quantization`).
        r_drop: whether every row runs twice for R-Drop, whose loss needs all logits where there are no kernels.
        reduce_dtype: type that sums are sent in (``parallel.reduce_dtype``).
        restarts: whether the adapter begins anew within the run (ReLoRA), which keeps the base's own matrices as well.
        precision: of the products (`pet.train.precision.choose_precision`), on a CPU.
    """

    meta_model: MetaModel
    adapter: MethodConfig | None
    batch: int
    length: int
    dtype: str
    optimizer: str = "adamw"
    recompute: int = 0
    micro_batch: int | None = None
    stored: str | None = None
    quantization: Quantization | None = None
    precision: str = "fp32"
    r_drop: bool = False
    restarts: bool = False
    reduce_dtype: str = "float32"

    @property
    def width(self) -> int:
        """Bytes of a number of an activation."""
        return STORAGE[self.dtype].itemsize

    @functools.cached_property
    def packed(self) -> dict[str, bool]:
        """{name of a weight that is packed: whether checkpoints have it as (in, out)}."""
        if self.quantization is None:
            return {}
        config = self.meta_model.config
        return {f"{path}.weight": config.cells()[path].transposed for path in self.quantization.places(config)}

    def bytes(self, share: Share) -> int:
        """Memory of what a process has of a parameter."""
        if share.adapter and not share.copied:
            return 4 * share.size
        if share.name in self.packed:
            transposed = self.packed[share.name]
            storage = packed_part(share, self.quantization.storage, transposed)
            return storage.nbytes(share.part[:: -1 if transposed else 1])
        matrix = len(share.shape) == 2 and not share.trained
        return share.size // share.replicas * STORAGE[(matrix and self.stored) or self.dtype].itemsize


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One layout. Memory and traffic are those of its fullest and its busiest stage.

    Attributes:
        data, tensor, pipeline: replicas, shards, stages.
        zero: whether the optimizer's state is divided over the replicas.
        shard_base: whether the frozen base is.
        micro_batch: rows of one forward pass on one replica.
        pieces: forward passes of one replica in a step.
        memory: bytes per device, by `PARTS`.
        saving: bytes of weights that the main process has whole on its host for a checkpoint (`saving_bytes`).
        traffic: {(collective, group): [calls, bytes]} of one device in one step.
        compute, communication: seconds of one step in matrix products and in messages.
        seconds: of a step.
        reduce_dtype: type that sums are sent in.
        bubble: share of it in which a stage waits for others.
    """

    data: int
    tensor: int
    pipeline: int
    zero: bool
    shard_base: bool
    recompute: int
    micro_batch: int
    pieces: int
    memory: dict[str, float]
    saving: dict[str, int]
    traffic: Traffic
    compute: float
    communication: float
    seconds: float
    bubble: float
    reduce_dtype: str

    @property
    def total(self) -> float:
        """Bytes per device."""
        return sum(self.memory.values())

    @property
    def sent(self) -> int:
        """Bytes that one device hands to collectives in a step."""
        return sum(nbytes for _, nbytes in self.traffic.values())

    @property
    def rounds(self) -> bool:
        """Whether something is sent to be added up, in 16 bits."""
        return self.reduce_dtype != "float32" and any(operation == "all_reduce" for operation, _ in self.traffic)

    def settings(self) -> dict[str, Any]:
        """The recipe's settings for this layout."""
        rows = self.micro_batch * self.data
        piped = self.pipeline > 1
        return {
            "parallel.data": self.data,
            "parallel.tensor": self.tensor,
            "parallel.pipeline": self.pipeline,
            "parallel.micro_batches": self.pieces if piped else 1,
            "parallel.shard_optimizer": self.zero,
            **({"parallel.reduce_dtype": self.reduce_dtype} if self.rounds else {}),
            **({"parallel.shard_base": True} if self.shard_base else {}),
            **({"train.recompute": self.recompute if self.recompute > 1 else True} if self.recompute else {}),
            "train.batch_size": rows * self.pieces if piped else rows,
            "train.accumulation": 1 if piped else self.pieces,
        }

    def to_dict(self) -> dict[str, Any]:
        """The same for a program to read."""
        return {
            **{name: getattr(self, name) for name in ("data", "tensor", "pipeline", "zero", "shard_base", "recompute")},
            **{name: getattr(self, name) for name in ("micro_batch", "pieces")},
            "memory_bytes": {**{key: round(value) for key, value in self.memory.items()}, "total": round(self.total)},
            "saving_bytes": self.saving,
            "traffic": [
                {"collective": kind, "group": group, "calls": calls, "bytes": nbytes}
                for (kind, group), (calls, nbytes) in self.traffic.items()
            ],
            **{name: getattr(self, name) for name in ("seconds", "compute", "communication", "bubble")},
            "settings": self.settings(),
        }


@dataclasses.dataclass(frozen=True)
class Plan:
    """All layouts of a cluster.

    Attributes:
        work, cluster: what was planned.
        feasible: those that fit, fastest first.
        refused: why the others do not, and how many they are.
        least: the fewest bytes per device that any layout needs which is only too large; None where there is none.
    """

    work: Work
    cluster: Cluster
    feasible: list[Candidate]
    refused: Counter
    least: float | None


def plan(work: Work, cluster: Cluster) -> Plan:
    """Looks at every data × tensor × pipeline with as many processes as there are devices, with and without ZeRO-1.

    Where that is too large, layers are computed again; where it still is, replicas share the frozen base.
    """
    feasible, refused, least = [], Counter(), None
    again = work if work.recompute else dataclasses.replace(work, recompute=1)

    whole = functools.cache(functools.partial(uncut, work.meta_model, work.adapter))

    def divide(tensor: int, pipeline: int, replicas: int = 1) -> Layout:
        return cut(work.meta_model, work.adapter, whole(tensor, replicas), pipeline).trained()

    def found(work: Work, divided: Layout, zero: bool) -> list[Candidate]:
        return [candidate(work, cluster, divided, data, tensor, pipeline, zero, micro) for micro in rows]

    def needs(one: Candidate) -> float:
        return one.total + cluster.kept(Mesh(one.data, one.tensor, one.pipeline).communicators)

    def fits(candidates: list[Candidate]) -> list[Candidate]:
        return [one for one in candidates if needs(one) <= cluster.memory]

    for tensor, pipeline in products(cluster.devices):
        data = cluster.devices // (tensor * pipeline)
        choices = (False, True) if data > 1 and OPTIMIZER_STATES[work.optimizer] else (False,)
        try:
            divided = divide(tensor, pipeline)
            rows = micro_batches(work, data, pipeline)
            plain = [found(work, divided, zero) for zero in choices]
        except InputError as error:
            refused[reason(str(error))] += len(choices)
            continue
        for zero, all_found in zip(choices, plain, strict=True):
            fitting = fits(all_found)
            if not fitting and again is not work:
                all_found = found(again, divided, zero)
                fitting = fits(all_found)
            if not fitting and data > 1 and work.adapter is not None and work.quantization is None:
                with contextlib.suppress(InputError):
                    gathered = divide(tensor, pipeline, data)
                    all_found = found(again, gathered, zero)
                    fitting = fits(all_found)
            if fitting:
                feasible.append(min(fitting, key=lambda one: (one.seconds, one.total)))
            else:
                smallest = min(map(needs, all_found))
                least = smallest if least is None else min(least, smallest)
                refused["too large for the memory"] += 1
    feasible.sort(key=lambda one: (one.seconds, one.total, one.pipeline, one.tensor))
    return Plan(work, cluster, feasible, refused, least)


def products(devices: int) -> Iterator[tuple[int, int]]:
    """All (tensor, pipeline) that leave a whole number of replicas."""
    for tensor in range(1, devices + 1):
        if devices % tensor == 0:
            for pipeline in range(1, devices // tensor + 1):
                if devices // tensor % pipeline == 0:
                    yield tensor, pipeline


def reason(message: str) -> str:
    """An error in a few words, alike for all layouts that fail in the same way."""
    for sign, words in (
        ("cannot be divided evenly over", "heads or widths cannot be divided by tensor"),
        ("stages for", "more stages than layers"),
        ("would be cut into pieces of", "blocks of packed weights would be cut too small by tensor"),
    ):
        if sign in message:
            return words
    return message.partition(";")[0].removeprefix("parallel.")


def micro_batches(work: Work, data: int, pipeline: int) -> list[int]:
    """The possible rows of one forward pass. Raises InputError: the batch cannot be divided so."""
    if work.batch % data:
        raise InputError("the batch cannot be divided over the replicas")
    rows = work.batch // data
    sizes = [work.micro_batch] if work.micro_batch else range(1, rows + 1)
    found = [size for size in sizes if rows % size == 0]
    if not found:
        raise InputError("a replica's rows are no multiple of --micro-batch")
    found = [size for size in found if pipeline == 1 or rows // size >= pipeline]
    if not found:
        raise InputError("fewer micro-batches than stages")
    return found


def candidate(
    work: Work, cluster: Cluster, divided: Layout, data: int, tensor: int, pipeline: int, zero: bool, micro: int
) -> Candidate:
    """One layout in numbers."""
    pieces = work.batch // data // micro
    frozen, sums = (STORAGE[name].itemsize for name in (work.stored or work.dtype, work.reduce_dtype))
    tokens = micro * work.length
    steps = Steps(data, tensor, pipeline, pieces, tokens, work.width, zero, work.recompute, frozen, sums)
    stages = [Stage(work, cluster, divided, steps, number) for number in range(pipeline)]
    slowest = max(stage.piece_seconds for stage in stages)
    seconds = (pieces + pipeline - 1) * slowest + max(stage.end_seconds for stage in stages)
    busiest = max(stages, key=lambda stage: stage.sent)
    fullest = max(stages, key=lambda stage: sum(stage.memory.values()))
    return Candidate(
        data,
        tensor,
        pipeline,
        zero,
        divided.gathered,
        work.recompute,
        micro,
        pieces,
        fullest.memory,
        saving_bytes(work, divided, steps),
        busiest.traffic,
        max(stage.compute for stage in stages) * pieces,
        max(stage.talk * pieces + stage.end_seconds for stage in stages),
        seconds,
        bubble(pipeline, pieces),
        work.reduce_dtype,
    )


class Stage:
    """One pipeline stage of a layout in numbers: memory, traffic, and the time of a piece."""

    def __init__(self, work: Work, cluster: Cluster, divided: Layout, steps: Steps, number: int):
        self.memory = memory(work, divided, steps, number)
        self.traffic = step_traffic(work.meta_model, divided, steps, number, work.adapter)
        self.sent = sum(nbytes for _, nbytes in self.traffic.values())
        self.compute = flops(work, divided, steps, number) / (cluster.flops * cluster.utilisation)
        span = {"tensor": steps.tensor, "data": steps.tensor * steps.data}
        span["pipeline"] = span["tied"] = span["data"] + 1  # of neighbouring stages
        self.talk, self.end_seconds = 0.0, 0.0
        for (operation, group), (calls, nbytes) in self.traffic.items():
            if group == "base":  # a gather is half of a sum of the whole
                whole = nbytes * steps.data / 2
                self.talk += cluster.reduce_seconds(whole, calls, steps.data, span["data"]) / steps.pieces
            elif operation == "all_gather":  # a few bytes, several times a step
                self.end_seconds += calls * cluster.latency
            elif group == "tensor" and operation == "all_reduce":
                self.talk += cluster.reduce_seconds(nbytes, calls, steps.tensor, span["tensor"]) / steps.pieces
            elif operation == "send":
                self.talk += cluster.send_seconds(nbytes, calls, span["pipeline"]) / steps.pieces
            elif operation == "all_reduce":
                members = 2 if group == "tied" else steps.data
                self.end_seconds += cluster.reduce_seconds(nbytes, calls, members, span[group])
            elif operation == "broadcast":
                self.end_seconds += cluster.send_seconds(nbytes, calls, span["data"])
        self.piece_seconds = self.compute + self.talk
