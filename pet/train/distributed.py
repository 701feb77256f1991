"""The distributed context: all that the training loop asks of the other processes. With one process, the identity.

``pet.parallel`` gives an object with the same names whose sums go over all processes. These are the only places where
the loop meets parallelism: token counts and losses (`sum_numbers`), gradients (`all_reduce_sum`), their norm
(`statistics`), what is written (`is_main`, `gather`, `scatter`), and that all stop together (`any`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from model_zoo.errors import InputError
from pet.launching.environment import read_job


class DistributedContext:
    """A single process.

    Attributes:
        rank, size: this process and how many there are, over the whole job.
        data_rank, data_size: which share of every batch this process reads.
        micro_batches: pieces that every batch is cut into.
        tensor_rank: which part of every layer's heads and matrices it has.
        is_main: whether this process writes files and prints.
        divides_model: whether each process has a part of the model only.
        can_generate: whether its part can write texts; one stage of several cannot.
    """

    rank: int = 0
    size: int = 1
    data_rank: int = 0
    tensor_rank: int = 0
    data_size: int = 1
    micro_batches: int = 1
    is_main: bool = True
    divides_model: bool = False
    can_generate: bool = True

    @classmethod
    def alone(cls) -> DistributedContext:
        """That of a trainer to which nobody gave one.

        Raises:
            InputError: others of the job would do the same work, each by itself, and write to the same files.
        """
        job = read_job()
        if job.distributed:
            raise InputError(
                f"Trainer: process {job.rank} of {job.size} would train by itself over these batches; for one training "
                "on all of them give pet.Trainer(model=…, train_dataset=…, args=pet.TrainingArguments(output_dir=…, "
                "use_parallel=True)), or use pet finetune"
            )
        return cls()

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Sums of host numbers over the data-parallel processes."""
        return list(numbers)

    def sum_in_graph(self, segments: Sequence):
        """A cell ``(gradients, vectors of the micro-batches before) → summed vectors`` for the graph of a step's last
        micro-batch, in whose place `all_reduce_sum` does nothing; None: it does all."""
        return None

    def all_reduce_sum(self, vectors: Sequence, segments: Sequence) -> list:
        """The whole gradients from each process's terms: a vector per segment."""
        return list(vectors)

    def statistics(
        self, sums: Sequence[float], squares: Sequence[float], segments: Sequence
    ) -> tuple[list[float], float]:
        """The sums of all replicas, the loss first, and the squared norm of all gradients, each parameter counted once.

        Args:
            sums: over this process's rows; of a pipeline the last stage alone has them, the others give 0.
            squares: of each of this process's segments.
            segments: the same.
        """
        return list(sums), float(sum(squares))

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(flag)

    def barrier(self) -> None:
        """Waits until every process is here."""

    def prepare(self, model, directory=None):
        """Leaves in a whole model what is this process's part, and loads that from a checkpoint if one is given."""
        return model

    def untrained(self, model) -> dict[str, Any]:
        """Parameters by name that files hold and nobody trains, where `whole` has to be told of them."""
        return {}

    def whole(self, model, weights: dict[str, np.ndarray]):
        """The model undivided, for files; ``weights`` are all that these hold (`pet.train.state.whole_weights`). To be
        asked of the main process alone."""
        return model

    def count(self, parameters: Sequence) -> int:
        """How many weights these parameters of the model stand for, over all processes."""
        from model_zoo.layers import weights_of  # imports MindSpore, which reading a checkpoint does without

        return sum(map(weights_of, parameters))

    def step_begins(self) -> None:
        """An optimizer step begins; whoever watches for hangs may expect its end."""

    def step_ends(self) -> None:
        """It is done; what follows may take any time."""

    def traffic_report(self) -> str:
        """What a step sent, where it was counted; one process sends nothing."""
        return "communication: none, this is one process"

    def make_optimizer(self, make: Callable, segments: Sequence, name: str = ""):
        """The optimizer from ``make: segments → optimizer``; several processes may divide it."""
        return make(segments)

    def wrap_step(self, step, model):
        """The training step (`pet.train.step.TrainStep`) as this layout carries it out."""
        return step

    def wrap_measure(self, measure: Callable, model, sums: int | None) -> Callable:
        """The same for a forward alone, ``(*arrays)`` → so many sums; None: a number for each token ``(B·S,)``."""
        return measure

    def gather(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Named tensors of this process → whole ones, for a file that opens on any layout.

        All processes must call it; the main one gets the tensors, the others an empty dictionary.
        """
        return arrays

    def scatter(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Whole tensors → those of this process, each read when it is asked for."""
        return arrays

    def parts(self, arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Of named tensors of this process those that it writes, since it is the first to have them.

        Returns:
            The tensors; and of each that is divided where its numbers belong: the whole ``shape``, the ``axis``, and
            the ``ranges`` along it. All processes must call this.
        """
        return arrays, {}

    def objects(self, value) -> list:
        """Everybody's picklable Python object, in the order of the ranks."""
        return [value]

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """The main process's array; the others give one of the same shape and type."""
        return array
