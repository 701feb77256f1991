"""A classifier: the label of a text, several labels, or a value, by the head's numbers at its last token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops

from model_zoo.errors import InputError
from model_zoo.labels import MULTI, REGRESSION, labels_for
from model_zoo.layers import int_range
from pet.train.objectives.base import ADD, Objective
from pet.train.objectives.reference import documents_of


class Classification(Objective):
    """transformers' losses by ``problem_type``, per text: the cross-entropy of its label, the mean over all labels of
    their binary cross-entropies, or of squared errors."""

    arrays = ("targets", "judged")
    judges = True
    counted = "texts"

    def __init__(self):
        super().__init__()
        self.labels, self.kind = None, ""

    @staticmethod
    def extend(model, data=None, seed: int = 0) -> None:
        from adapters.score import add_head

        if data is None and model.labels is None:  # it is asked again with data
            return
        add_head(model, labels_for(said_in(data), model.config.to_dict(), model.labels), seed)

    def know(self, model) -> None:
        """What the numbers of the model's head mean, once it has one."""
        if model.labels is not None:
            self.labels, self.kind = model.labels, model.labels.kind
            self.sums = 1 if self.kind == REGRESSION else 2 + 3 * len(self.labels.names)

    def begin(self, model, feed, training: bool, distributed, compiled: bool = True) -> None:
        """Refuses a feed with a label that the head does not have."""
        self.know(model)
        if (dataset := getattr(feed, "dataset", None)) is not None and hasattr(dataset, "said_of"):
            for number, first in zip(*np.unique(dataset.said_of, return_index=True), strict=True):
                self.targets(dataset.said[number], dataset.where(int(first)))

    def targets(self, said: Any, where: Any) -> list[float]:
        """See `Labels.targets`."""
        try:
            return self.labels.targets(said)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def prepare(self, batch: dict[str, Any], training: bool) -> dict[str, Any]:
        """Adds, at the last token of each text, what the head's numbers are to be, and 1.0."""
        documents, said = documents_of(batch), batch.get("said")
        if said is None:
            raise InputError("classification: a batch has no labels; expected label, with one for each row")
        targets = np.zeros((*documents.shape, len(self.labels.names)), np.float32)
        judged = np.zeros(documents.shape, np.float32)
        for row, (labels, where) in enumerate(zip(said, batch["sample_ids"], strict=True)):
            if not np.isin(documents[row], np.arange(len(labels))).any():  # padding alone, which fills up a batch
                continue
            last = np.searchsorted(documents[row], np.arange(len(labels)), side="right") - 1
            for place, label, sample in zip(last, labels, where if isinstance(where, list) else [where], strict=True):
                judged[row, place], targets[row, place] = 1.0, self.targets(label, sample)
        return {**batch, "targets": targets, "judged": judged}

    def count(self, batch: dict[str, Any]) -> int:
        return int(batch["judged"].sum())

    def forward(self, model, fast: bool = False):
        self.know(model)
        return super().forward(model, fast)

    def measured(self, model, fast: bool = False):
        self.know(model)
        return super().measured(model, fast)

    # Graph code

    def of_tokens(self, logits, targets, judged):
        """→ per token ``(B·S,)`` its loss, 0.0 but at a text's end; logits, targets ``(B·S, labels)`` and ``judged
        (B·S, 1)``."""
        width = targets.shape[-1]
        logits, targets = logits.reshape(-1, width).astype(ms.float32), targets.reshape(-1, width)
        if self.kind == REGRESSION:
            losses = ADD(ops.square(logits - targets), 1) / width
        elif self.kind == MULTI:
            apart = ops.maximum(logits, 0.0) - logits * targets + ops.log1p(ops.exp(-ops.abs(logits)))
            losses = ADD(apart, 1) / width
        else:
            losses = -ADD(ops.log_softmax(logits, -1) * targets, 1)
        return losses * judged.reshape(-1), logits, targets, judged.reshape(-1, 1)

    def loss(self, logits, targets, judged):
        return ADD(self.of_tokens(logits, targets, judged)[0])

    def measure(self, logits, targets, judged):
        """One vector: the loss, the texts whose labels are all right, and for each label in how many texts it was
        right, chosen, and the data's."""
        losses, logits, targets, judged = self.of_tokens(logits, targets, judged)
        if self.kind == REGRESSION:
            return (ADD(losses),)
        if self.kind == MULTI:
            chosen = logits > 0
        else:
            chosen = int_range(targets.shape[-1]) == logits.argmax(-1).astype(ms.int32).reshape(-1, 1)
        chosen = chosen.astype(ms.float32)
        wrong = (ADD(ops.abs(chosen - targets), 1) > 0).astype(ms.float32).reshape(-1, 1)
        whole = ops.stack((ADD(losses), ADD((1.0 - wrong) * judged)))
        return (
            ops.concat((whole, ADD(chosen * targets * judged, 0), ADD(chosen * judged, 0), ADD(targets * judged, 0))),
        )

    def metrics(self, sums: Sequence[float], count: int) -> dict[str, float]:
        """``loss``; ``accuracy``, the share of texts whose labels are all right; ``f1``, the mean of each label's F1,
        but for those that neither the data nor the model gives any text. Of values the loss alone, which is their mean
        squared error."""
        found = {"loss": sums[0] / max(count, 1)}
        if self.kind == REGRESSION:
            return found
        right, chosen, given = np.reshape(sums[2:], (3, -1))
        there = chosen + given > 0
        return {
            **found,
            "accuracy": sums[1] / max(count, 1),
            "f1": float(np.mean(2 * right[there] / (chosen + given)[there])) if there.any() else 0.0,
        }


def said_in(data) -> list[Any]:
    """What training data says of its texts, each once; nothing where that is not known beforehand."""
    data = getattr(data, "dataset", data)
    if hasattr(data, "said"):
        return list(data.said)
    every = [one for batch in getattr(data, "list", ()) for row in batch.get("said", ()) for one in row]
    return [one for number, one in enumerate(every) if one not in every[:number]]
