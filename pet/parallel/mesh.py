"""Which rank does what: a box of data × pipeline × tensor, with tensor-parallel neighbours next to each other.

    rank = (stage · data + replica) · tensor + shard        data 2, tensor 2, pipeline 2:

      stage 0   replica 0: [0 1]   replica 1: [2 3]         [..] one tensor-parallel group: it talks most, so its
      stage 1   replica 0: [4 5]   replica 1: [6 7]              ranks are the closest

The last stage's numbers follow the first's, since only activations cross stages.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mesh:
    """A layout and this process's place in it.

    Attributes:
        data, tensor, pipeline: how many replicas, shards and stages.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    rank: int = 0

    @property
    def size(self) -> int:
        """Workers of the whole job."""
        return self.data * self.tensor * self.pipeline

    @property
    def shard(self) -> int:
        """Place in the tensor-parallel group."""
        return self.rank % self.tensor

    @property
    def replica(self) -> int:
        """Which copy of the model, and so which share of every batch."""
        return self.rank // self.tensor % self.data

    @property
    def stage(self) -> int:
        """Place in the pipeline."""
        return self.rank // (self.tensor * self.data)

    @property
    def is_first(self) -> bool:
        """Whether this stage has the embedding."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage has the head and the loss."""
        return self.stage == self.pipeline - 1

    def rank_at(self, stage: int | None = None, replica: int | None = None, shard: int | None = None) -> int:
        """The rank at a place; what is left out is this process's own."""
        stage = self.stage if stage is None else stage
        replica = self.replica if replica is None else replica
        shard = self.shard if shard is None else shard
        return (stage * self.data + replica) * self.tensor + shard

    def ranks(self, axis: str) -> list[int]:
        """The ranks that this one forms a group with along ``data``, ``tensor`` or ``pipeline``."""
        if axis == "data":
            return [self.rank_at(replica=replica) for replica in range(self.data)]
        if axis == "tensor":
            return [self.rank_at(shard=shard) for shard in range(self.tensor)]
        return [self.rank_at(stage=stage) for stage in range(self.pipeline)]

    @property
    def communicators(self) -> int:
        """Groups that a process talks in, at most: all of the job, each axis that is not all of it, and the two ends of
        a pipeline with more stages, where they share an embedding."""
        axes = sum(1 < size < self.size for size in (self.data, self.tensor, self.pipeline))
        return (self.size > 1) + axes + (self.pipeline > 2)
