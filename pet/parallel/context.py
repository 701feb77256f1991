"""The distributed context of a job with several processes, as `pet/train/distributed.py` has it for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from adapters.saving import form_of
from model_zoo import progress
from model_zoo.checkpoint.reading import load_into
from model_zoo.errors import InputError
from model_zoo.layers import weights_of
from pet.launching.relaunch import check_size
from pet.parallel import collectives, gathered, peers
from pet.parallel.buckets import BucketSums
from pet.parallel.checks import check_optimizer
from pet.parallel.loading import load_parts
from pet.parallel.mesh import Mesh
from pet.parallel.meter import Meter
from pet.parallel.pipeline import Pipeline, PipelineMeasure
from pet.parallel.specs import TIED
from pet.parallel.split import PARTIAL, SPLIT, division_of, role_of
from pet.parallel.stages import cut_stage
from pet.parallel.tensor import shard
from pet.parallel.together import come_together
from pet.parallel.whole import base_fingerprint, saved_parameters, whole_model
from pet.parallel.zero import ShardedOptimizer
from pet.train.checkpoint import Tensors
from pet.train.distributed import DistributedContext
from pet.train.objectives.custom import CustomForward

_concat = ops.Concat(0)


class ParallelContext(DistributedContext):
    """All processes of a job, laid out as data × tensor × pipeline.

    Args:
        data, tensor, pipeline: the layout; their product must be the number of workers.
        micro_batches: pieces that a pipeline cuts each batch into.
        shard_optimizer: divide the optimizer's state over the replicas (ZeRO stage 1).
        shard_base: divide the frozen matrices of the layers over the replicas (`pet.parallel.gathered`).
        reduce_dtype: type in which gradients and activations are sent to be added up.
        reduce_buckets: messages in which gradients are sent while the backward pass runs (`pet.parallel.buckets`),
            where replicas are all that there is; 1 sends them all after it.
        profile: count what a step sends (`traffic_report`).

    Raises:
        InputError: the layout does not fit the job.
    """

    def __init__(
        self,
        data: int = 1,
        tensor: int = 1,
        pipeline: int = 1,
        micro_batches: int = 1,
        shard_optimizer: bool = False,
        shard_base: bool = False,
        reduce_dtype: str = "float32",
        reduce_buckets: int = 1,
        profile: bool = False,
    ):
        job = come_together()
        check_size(data * tensor * pipeline, job.size)
        collectives.check_sums(reduce_dtype)
        self.mesh = mesh = Mesh(data, tensor, pipeline, job.rank)
        self.rank, self.size, self.is_main = job.rank, job.size, job.rank == 0
        self.data_rank, self.data_size, self.tensor_rank = mesh.replica, data, mesh.shard
        self.shard_optimizer, self.micro_batches = shard_optimizer and data > 1, micro_batches
        self.everybody = collectives.world()
        self.data_group, self.tensor_group, self.pipeline_group = (
            collectives.make_group(axis, mesh.ranks(axis), reduce_dtype) for axis in ("data", "tensor", "pipeline")
        )
        self.ends_group = None
        self.reduce_buckets = reduce_buckets if data == job.size and not shard_base else 1
        self.profile, self.meter = profile, None
        self.base_group = collectives.make_group("base", mesh.ranks("data")) if shard_base and data > 1 else None
        self.divides_model = tensor * pipeline > 1 or self.base_group is not None
        self.can_generate = pipeline == 1
        self.stages: list[range] = []
        self.parameters: dict[str, object] = {}
        self.known_names: set[str] = set()

    def prepare(self, model: nn.Cell, directory: str | Path | None = None) -> nn.Cell:
        """Leaves in a model what is this process's share, with its adapters, and returns it.

        Args:
            model: whole, adapters applied. Built but not loaded, it takes no memory yet.
            directory: a checkpoint, of which this process then reads its slices; None where the weights are there.

        Raises:
            InputError: heads, widths or layers that cannot be divided; tensors that do not fit.
        """
        if not self.divides_model:
            if directory is not None:
                load_into(model, directory)
            self.adopt(model)
            return model
        if directory is None and self.is_main and not hasattr(model, "base_fingerprint"):
            model.base_fingerprint = base_fingerprint(model)
        model.base_form = form_of(model)
        shard(model, self.tensor_group, loaded=directory is None)
        self.stages = cut_stage(model, self.mesh)
        if any(role_of(parameter) == TIED for parameter in model.get_parameters()):
            # the first and the last stage share the embedding
            ends = [self.mesh.rank_at(stage=0), self.mesh.rank_at(stage=self.mesh.pipeline - 1)]
            self.ends_group = collectives.make_group("tied", ends, self.data_group.sums)
        if self.base_group is not None:
            gathered.shard_base(model, self.base_group, loaded=directory is None)
        if directory is not None:
            load_parts(model, directory, self.tensor_group)
        self.adopt(model)
        return model

    def adopt(self, model: nn.Cell) -> None:
        """Learns the names and divisions of a model's parameters, after it was divided."""
        self.parameters = {parameter.name: parameter for parameter in model.get_parameters()} | saved_parameters(model)
        everywhere = collectives.all_gather_object(sorted(self.parameters), self.everybody)
        self.known_names = {name for names in everywhere for name in names}

    # Sums ------------------------------------------------------------------------------------------------------------

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        return collectives.sum_numbers(numbers, self.data_group)

    def sum_in_graph(self, segments: Sequence) -> nn.Cell | None:
        return BucketSums(self.data_group, segments, self.reduce_buckets) if self.reduce_buckets > 1 else None

    def all_reduce_sum(self, vectors: Sequence[Tensor], segments: Sequence) -> list[Tensor]:
        """One sum over the tensor-parallel group for what has a term on each member, one over the replicas."""
        vectors = list(vectors)
        if self.reduce_buckets > 1:
            return vectors
        partial = [index for index, segment in enumerate(segments) if role_of_segment(segment) == PARTIAL]
        self._sum_together(vectors, partial, self.tensor_group)
        if self.ends_group is not None:
            tied = [index for index, segment in enumerate(segments) if role_of_segment(segment) == TIED]
            self._sum_together(vectors, tied, self.ends_group)
        self._sum_together(vectors, list(range(len(vectors))), self.data_group)
        return vectors

    @staticmethod
    def _sum_together(vectors: list[Tensor], which: list[int], group: collectives.Group) -> None:
        """Sums some of the vectors over a group, all in one message."""
        if not which or group.size == 1:
            return
        if len(which) == 1:
            vectors[which[0]] = collectives.all_reduce(vectors[which[0]], group)
            return
        total = collectives.all_reduce(_concat([vectors[index].reshape(-1) for index in which]), group)
        sizes = [vectors[index].size for index in which]
        for index, part in zip(which, ops.split(total, sizes), strict=True):
            vectors[index] = part

    def statistics(
        self, sums: Sequence[float], squares: Sequence[float], segments: Sequence
    ) -> tuple[list[float], float]:
        """All in one message: a device waits for the host once. The members of a tensor-parallel group have the same
        sums, and replicas the same gradients; divided parameters are summed over the members, whole ones counted once.
        """
        own = whole = 0.0
        for square, segment in zip(squares, segments, strict=True):
            role = role_of_segment(segment)
            if role == SPLIT:
                own += square
            elif role != TIED or self.mesh.is_first:
                whole += square
        counted = 1.0 if self.mesh.shard == 0 else 0.0
        square = 0.0 if self.mesh.replica else own + (whole if counted else 0.0)
        *sums, square = collectives.sum_numbers(
            [*(value if counted else 0.0 for value in sums), square], self.everybody
        )
        return sums, square

    def any(self, flag: bool) -> bool:
        return collectives.sum_numbers([float(flag)], self.everybody)[0] > 0

    def barrier(self) -> None:
        collectives.barrier()

    # A sign of life --------------------------------------------------------------------------------------------------

    def step_begins(self) -> None:
        peers.step_begins()
        progress.tick()
        if self.meter is not None:
            self.meter.begin()

    def step_ends(self) -> None:
        if self.meter is not None:
            self.meter.end()
        progress.tick()
        peers.step_ends()

    def traffic_report(self) -> str:
        return "" if self.meter is None else self.meter.table()

    # Files -----------------------------------------------------------------------------------------------------------

    def gather(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Divided tensors put together, those of all stages united.

        Each part goes from the first process that has it to the main one, tensor by tensor, and nowhere else.
        """
        senders, described = self._holders(arrays)
        parts: dict[str, list[np.ndarray]] = {}
        for (name, _), rank in sorted(senders.items()):
            if not self.is_main:
                if rank == self.rank:
                    collectives.send_array(arrays[name], 0)
                continue
            shape, dtype, _ = described[name]
            part = arrays[name] if rank == 0 else collectives.receive_array(shape, dtype, rank)
            parts.setdefault(name, []).append(part)
        divisions = {name: division for name, (_, _, division) in described.items()}
        return {name: divisions[name].join(found) if divisions[name] else found[0] for name, found in parts.items()}

    def _holders(self, arrays: dict[str, np.ndarray]) -> tuple[dict[tuple[str, int], int], dict[str, tuple]]:
        """{(tensor, part): the first rank that has it}, and {tensor: shape of a part, type, division}."""
        notes = {name: (array.shape, array.dtype, division_of(self._parameter(name))) for name, array in arrays.items()}
        first: dict[tuple[str, int], int] = {}
        described: dict[str, tuple] = {}
        for rank, (member, held) in enumerate(self.objects((self.mesh.shard, notes))):
            for name, note in held.items():
                first.setdefault((name, 0 if note[2] is None else member), rank)
                described[name] = note
        return first, described

    def parts(self, arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        first, described = self._holders(arrays)
        mine = {name: arrays[name] for (name, _), rank in first.items() if rank == self.rank}
        cuts = {}
        for name, array in mine.items():
            if (division := described[name][2]) is not None:
                ranges = [[part.start, part.stop] for part in division.ranges(self.mesh.shard)]
                cuts[name] = {"shape": division.whole_shape(array.shape), "axis": division.axis, "ranges": ranges}
        return mine, cuts

    def objects(self, value) -> list:
        return collectives.all_gather_object(value, self.everybody)

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        return collectives.broadcast(Tensor(array), 0, self.everybody).asnumpy()

    def untrained(self, model: nn.Cell) -> dict[str, object]:
        if not self.divides_model:
            return {}
        return {name: each for name, each in saved_parameters(model).items() if not each.requires_grad}

    def whole(self, model: nn.Cell, weights: dict[str, np.ndarray]) -> nn.Cell:
        if not self.divides_model:
            return model
        if not hasattr(model, "base_fingerprint"):
            model.base_fingerprint = base_fingerprint(model, model.loaded_from)
        return whole_model(model, weights)

    def count(self, parameters: Sequence) -> int:
        """Divided ones count in full; a tied embedding that two stages hold counts once."""
        held = {p.name: weights_of(p) * (division_of(p).members if division_of(p) else 1) for p in parameters}
        sizes: dict[str, int] = {}
        for place, found in collectives.all_gather_object([[self.mesh.shard, self.mesh.replica], held], self.everybody):
            if place == [0, 0]:
                sizes.update(found)
        return sum(sizes.values())

    def scatter(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """This process's parts. Names that no process knows are passed on, to be complained about."""

        def part(name: str) -> np.ndarray:
            division = division_of(self._parameter(name))
            return arrays[name] if division is None else division.take(arrays[name], self.mesh.shard)

        known = self._parameter
        return Tensors([name for name in arrays if known(name) is not None or self._plain_name(name) is None], part)

    def _plain_name(self, name: str) -> str | None:
        """The parameter that an array belongs to: its own name, or ``<slot>.<parameter name>``."""
        if name in self.known_names:
            return name
        rest = name.partition(".")[2]
        return rest if rest in self.known_names else None

    def _parameter(self, name: str):
        return self.parameters.get(self._plain_name(name))

    # What else depends on the layout ---------------------------------------------------------------------------------

    def make_optimizer(self, make: Callable, segments: Sequence, name: str = ""):
        """The optimizer, divided over the replicas if asked for.

        Raises:
            InputError: an optimizer that needs the norm of whole tensors, where tensors are divided.
        """
        check_optimizer(name, self.mesh.tensor)
        return ShardedOptimizer(make, segments, self.data_group) if self.shard_optimizer else make(segments)

    def wrap_step(self, step, model):
        """With several stages the gradients come from the pipeline.

        Raises:
            InputError: a forward of the user's own, which nobody can cut into stages.
        """
        if self.mesh.pipeline > 1:
            if isinstance(step.objective, CustomForward):
                raise InputError("parallel.pipeline: a forward_step of your own cannot be cut into stages")
            pipeline = Pipeline(step, model, self.mesh, self.micro_batches, self.stages)
            step.accumulate, step.gradient = pipeline.accumulate, pipeline
        if self.profile:
            talking = self.mesh.tensor > 1 or self.base_group is not None or self.reduce_buckets > 1
            self.meter = Meter(step, talking_graphs=talking)
        return step

    def wrap_measure(self, measure, model, sums):
        if self.mesh.pipeline == 1:
            return measure
        return PipelineMeasure(measure, sums, model, self.mesh, self.pipeline_group)


def role_of_segment(segment) -> str:
    """All parameters of a segment have one role."""
    return role_of(segment.parameters[0])
