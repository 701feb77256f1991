"""From a batch to its summed loss, as functions that a graph is made of: one for training, one for measuring."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms

from model_zoo import fused
from model_zoo.engine import available, is_product, native
from model_zoo.layers import Linear
from pet.train.loss import IGNORED, CausalLoss, EvaluationLoss, shift_labels


def plain_head(model):
    """The head's cell, if it is nothing but a float32 product, so that loss and head can be computed in one; else
    None."""
    family = getattr(model, "family", None)
    if family is None:
        return None
    cell = model
    for part in family.head.split("."):
        cell = getattr(cell, part, None)
    plain = type(cell) is Linear and cell.bias is None and is_product(cell.product)
    return cell if plain and cell.weight.dtype == ms.float32 else None


def loss_of_head(model, loss: Callable) -> Callable | None:
    """``(hidden states, labels) → summed loss`` that never holds all logits, or None where there is no such way.

    It takes a `plain_head` and a loss that is nothing but cross-entropy. The gradients are computed along with the
    loss; without C kernels only that of the hidden states is, so that the head must be frozen then.
    """
    head = plain_head(model)
    if head is None or type(loss) is not CausalLoss or loss.label_smoothing > 0 or loss.r_drop_alpha > 0:
        return None
    if not head.weight.requires_grad:
        summed = native(fused.linear_cross_entropy(IGNORED))
    elif available():
        from model_zoo.engine.loss import trained_linear_cross_entropy

        summed = trained_linear_cross_entropy()
    else:
        return None

    def by_head(hidden, labels):
        return summed(hidden, head.weight, shift_labels(labels).reshape(-1))[0]

    return by_head


def measure_of_head(model) -> Callable | None:
    """``(hidden states, labels) → (summed loss, labels ranked first)`` likewise, or None."""
    head = plain_head(model)
    if head is None or not available():
        return None
    from model_zoo.engine.loss import ranked_cross_entropy

    measured = ranked_cross_entropy()

    def by_head(hidden, labels):
        return measured(hidden, head.weight, shift_labels(labels).reshape(-1))

    return by_head


def function_of(model, loss: Callable, by_head: Callable | None) -> Callable:
    """``(input_ids, labels, position_ids, start, end) → loss(logits, labels)``, or what `by_head` makes of it.

    Args:
        model: a `CausalLM`, or any cell that maps ``(B, S)`` ids to logits.
    """
    if by_head is not None:

        def through_head(input_ids, labels, position_ids, start, end):
            return by_head(model.hidden_states(input_ids, position_ids, start, end, None), labels)

        return through_head
    if hasattr(model, "hidden_states") and hasattr(model, "head"):

        def causal(input_ids, labels, position_ids, start, end):
            return loss(model.head(model.hidden_states(input_ids, position_ids, start, end, None)), labels)

        return causal

    def plain(input_ids, labels, position_ids, start, end):
        return loss(model(input_ids), labels)

    return plain


def users(model, forward_step: Callable, from_logits: Callable, from_loss: Callable, prefer: str) -> Callable:
    """The same by a user's own ``(data, model) → dict | Tensor``.

    Args:
        from_logits: ``(logits, labels)`` → what is returned, from the user's ``logits``.
        from_loss: ``(summed loss, number of labels)`` → what is returned, from the user's ``loss`` or tensor, a mean
            over the labels.
        prefer: ``loss`` or ``logits``: which one is taken if the user gives both.
    """

    def custom(input_ids, labels, position_ids, start, end):
        data = {
            "input_ids": input_ids,
            "labels": labels,
            "position_ids": position_ids,
            "start": start,
            "end": end,
        }
        output = forward_step(data, model)
        count = (labels[:, 1:] != IGNORED).astype(ms.float32).sum()
        if not isinstance(output, dict):
            return from_loss(output.astype(ms.float32) * count, count)
        if "logits" in output and (prefer == "logits" or "loss" not in output):
            return from_logits(output["logits"], labels)
        return from_loss(output["loss"].astype(ms.float32) * count, count)

    return custom


def total_alone(total, count):
    return total


def none_ranked(total, count):
    return total, count * 0.0


def make_forward(model, loss: Callable, forward_step: Callable | None, fast: bool = False) -> Callable:
    """A graph function ``(input_ids, labels, position_ids, start, end) → summed loss``.

    Args:
        model: a `CausalLM`, or any cell that maps ``(B, S)`` ids to logits.
        loss: ``(logits, labels) → sum over label tokens``.
        forward_step: the user's ``(data, model) → dict | Tensor``, called instead of the model. Its ``loss`` is taken
            as a mean over the label tokens; from ``logits`` alone the loss is computed here.
        fast: compute head and loss in one, where that can be done. Only for training in compiled graphs: the gradients
            are computed along with the loss.
    """
    if forward_step is not None:
        return users(model, forward_step, loss, total_alone, "loss")
    return function_of(model, loss, loss_of_head(model, loss) if fast else None)


def make_measure(model, forward_step: Callable | None, fast: bool = False) -> Callable:
    """A graph function ``(input_ids, labels, position_ids, start, end) → (summed loss, labels ranked first)``.

    Args:
        forward_step: see `make_forward`; labels can only be ranked where it gives ``logits``.
        fast: as in `make_forward`; nothing but the tokens with a label then goes through the head.
    """
    loss = EvaluationLoss()
    loss.set_train(False)
    if forward_step is not None:
        return users(model, forward_step, loss, none_ranked, "logits")
    return function_of(model, loss, measure_of_head(model) if fast else None)
