"""The contract of an objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor, nn, ops

from model_zoo.errors import InputError
from pet.recipe.classes import OPTIONS

MODEL_ARRAYS = ("input_ids", "position_ids", "start", "end")
"""What every model takes, in the order of `CausalLM.hidden_states`. The first arrays of every graph function."""

ADD = ops.ReduceSum()
"""For sums outside of graphs, too. There MindSpore copies whatever among an operator's arguments is no tensor (an axis,
a type) into its pool, and never frees the copy: about 1 kB each time. Of this operator fewer than of ``Tensor.sum``."""


class Objective(nn.Cell):
    """What is learnt from a batch. A sub-class is one file; `loss` is all that it must have.

    It is a cell because graphs are compiled from its methods. A graph function's arguments are the arrays of a batch:
    `MODEL_ARRAYS`, then the objective's own. In a pipeline only the last stage runs the objective.

    Attributes:
        arrays: names of the batch's arrays that `loss` and `measure` take beside the logits.
        documents: how many documents make one sample. They lie side by side in one row and never attend to each other,
            as documents packed into a row do.
        conversations: a function from the columns of a data row to its documents, each a list of messages
            (``{"role", "content"}``); it raises ValueError where the row cannot be used. None: ``data.format`` decides,
            and a row is one document.
        sums: how many numbers `measure` gives.
        counted: what `count` counts, as it is called in metrics.jsonl.
        reported: whether a training step gives the sums of `measure`, too, for its line in metrics.jsonl.
        judges: whether what it learns of is the head `score`, which judges a whole text, and no next token.
        origins: digests of what it depends on beside the data and the base, which a resumed run is compared with
            (`pet.train.origins`); known after `begin`.
    """

    arrays: tuple[str, ...] = ("labels",)
    documents: int = 1
    conversations: Callable[[dict[str, Any]], list[list[dict[str, str]]]] | None = None
    sums: int = 1
    counted: str = "label_tokens"
    reported: bool = False
    judges: bool = False
    origins: dict[str, list] | None = None

    @classmethod
    def from_settings(cls, settings) -> Objective:
        """From a recipe's ``train`` section, of which `OPTIONS` says what the objective takes."""
        return cls(**{name: getattr(settings, name) for name, users in OPTIONS.items() if settings.objective in users})

    @staticmethod
    def extend(model, data=None, seed: int = 0) -> None:
        """Adds to a model, adapter included, what is trained for this objective alone. May be called again.

        Args:
            data: what is trained on: a dataset or a feed.
            seed: of what starts random.
        """

    def prepare(self, batch: dict[str, Any], training: bool) -> dict[str, Any]:
        """A batch of the loader with all the arrays that are needed, on the host; rows may be added in training."""
        return batch

    def begin(self, model, feed, training: bool, distributed, compiled: bool = True) -> None:
        """Called once for each feed before the first step, for what depends on the model as it is then."""

    def begun(self, model) -> None:
        """Called once after `begin` of all feeds of a training run: what these alone needed may go."""

    def count(self, batch: dict[str, Any]) -> int:
        """By what the summed loss of a prepared batch is divided, together with that of all others of its step."""
        raise NotImplementedError(f"{type(self).__name__}.count: by what is the loss divided?")

    def loss(self, logits, *arrays):
        """Logits ``(B, S, V)`` or ``(B·S, V)`` and the arrays → the summed loss, a float32 scalar. Graph code."""
        raise NotImplementedError(f"{type(self).__name__}.loss")

    def construct(self, logits, *arrays):
        return self.loss(logits, *arrays)

    def measure(self, logits, *arrays) -> tuple:
        """The same without dropout, for evaluation → sums, the loss first, in one tensor or several. Graph code."""
        return (self.loss(logits, *arrays),)

    def metrics(self, sums: Sequence[float], count: int) -> dict[str, float]:
        """From the sums of `measure` over all data, and the sum of `count`, to what a user reads."""
        return {"loss": sums[0] / max(count, 1)}

    def loss_of_hidden(self, model) -> Callable | None:
        """``(hidden states (B·S, H), *arrays) → summed loss`` that never holds all logits; None where there is no such
        way. Used in compiled training."""
        return None

    def measure_of_hidden(self, model) -> Callable | None:
        """The same for `measure`."""
        return None

    # Graph functions over a batch's arrays

    def forward(self, model, fast: bool = False) -> Callable:
        """``(*arrays) → summed loss``, or all sums of `measure` where the objective is ``reported``.

        Args:
            model: a `CausalLM` (or a pipeline's last stage, whose first array are hidden states), or any cell that maps
                ``(B, S)`` ids to logits.
            fast: use `loss_of_hidden`.
        """
        return through(model, self.loss, self.loss_of_hidden(model) if fast else None)

    def measured(self, model, fast: bool = False) -> Callable:
        """``(*arrays) → sums`` of `measure`."""
        return through(model, self.measure, self.measure_of_hidden(model) if fast else None)


def check_head(objective: Objective, model) -> None:
    """Raises InputError where the model's head gives other numbers than an objective learns of."""
    judges = getattr(objective, "judges", False)
    if judges and not getattr(model, "scoring", False):
        raise InputError("train.objective: learns of a head that judges texts, and the model has none")
    if getattr(model, "scoring", False) and not judges:
        raise InputError("train.objective: learns of a language model's head, and the model's judges texts")


def through(model, of_logits: Callable, of_hidden: Callable | None) -> Callable:
    """``(*arrays)`` → what `of_hidden`, or else `of_logits`, makes of the model's output and the objective's arrays."""
    if of_hidden is not None:

        def by_hidden(input_ids, position_ids, start, end, *own):
            return of_hidden(model.hidden_states(input_ids, position_ids, start, end, None), *own)

        return by_hidden
    if hasattr(model, "hidden_states") and hasattr(model, "head"):

        def by_head(input_ids, position_ids, start, end, *own):
            return of_logits(model.head(model.hidden_states(input_ids, position_ids, start, end, None)), *own)

        return by_head

    def plain(input_ids, position_ids, start, end, *own):
        logits = model(input_ids)
        if not isinstance(logits, Tensor):
            # a graph knows Python's own exceptions alone
            raise TypeError("the network's output is no tensor of logits (B, S, V); forward_step=function takes others")
        return of_logits(logits, *own)

    return plain


def sums_of(*vectors):
    """The sum of each of these tensors of one size. One operator adds up all (`ADD`). Graph code."""
    rows = []
    for vector in vectors:
        rows.append(vector.reshape(-1))
    added, sums = ADD(ops.stack(rows), 1), []
    for index in range(len(vectors)):
        sums.append(added[index])
    return tuple(sums)


def positive(values):
    """1.0 where a number is above 0, else 0.0, without a cast (`ADD`). Graph code."""
    return ops.relu(ops.sign(values))


def log_sigmoid(values):
    """``log σ(x)``. MindSpore's own is −∞ below −88 and its gradient NaN. Graph code."""
    return -ops.softplus(-values)


def perplexity(loss: float) -> float:
    """``exp(loss)``; infinite where that is beyond a float, and NaN of NaN."""
    return math.inf if loss >= 700 else math.exp(loss)
