"""A plan as text, and as a dictionary."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Collection
from typing import Any

from pet.planning.process_memory import PARTS
from pet.planning.search import Candidate, Plan

SHORT = {"gradients": "grads", "optimizer": "optim", "activations": "activ", "buffers": "buffer"}
TITLES = ["data", "tensor", "pipe", "ZeRO", "rows", "pieces", *(SHORT.get(part, part) for part in PARTS)]
TITLES += ["total", "sent", "bubble", "step", ""]
MEANING = """\
rows: size of a micro-batch; pieces: micro-batches of a replica in a step
weights to total: GB per device, of the fullest stage
sent: GB per step that a device of the busiest stage sends by collectives"""
MARKS = {
    "recompute": "R: with activation checkpointing (train.recompute); too large without it",
    "shard_base": "S: with the frozen base sharded over the replicas (parallel.shard_base); too large without it",
}
"""What a layout needs besides -> its footnote, which begins with the letter behind the layout's line."""


def as_dict(plan: Plan) -> dict[str, Any]:
    """Everything, for a program to read."""
    work = plan.work
    said = ("batch", "length", "dtype", "optimizer", "recompute", "precision", "reduce_dtype")
    return {
        "model_type": work.meta_model.values.get("model_type"),
        "method": "none" if work.adapter is None else work.adapter.method,
        **{name: getattr(work, name) for name in said},
        "quantization": dataclasses.asdict(work.quantization) if work.quantization else None,
        "cluster": dataclasses.asdict(plan.cluster),
        "feasible": [one.to_dict() for one in plan.feasible],
        "infeasible": dict(plan.refused),
        "least_bytes": None if plan.least is None else round(plan.least),
    }


def held_in(work) -> str:
    """The types of activations and of the base."""
    found = work.dtype + (f", base in {work.stored}" if work.stored else "")
    return found + (f", projections in {work.quantization.storage}" if work.quantization else "")


def as_text(plan: Plan, name: str, top: int | None = None) -> str:
    """The table of layouts, and the best one in detail."""
    work, cluster = plan.work, plan.cluster
    method = "every weight" if work.adapter is None else work.adapter.method
    lines = [
        f"{name}: {method}, {work.batch} rows of {work.length} tokens a step, {held_in(work)},",
        f"on {cluster.devices} devices of {cluster.memory / 1e9:g} GB ({cluster.reserve / 1e9:g} GB of it kept by the "
        "runtime)",
    ]
    shown = plan.feasible[:top]
    if shown:
        used = {mark for one in shown for mark in MARKS if getattr(one, mark) and not getattr(work, mark, False)}
        lines_of = [TITLES, *(row(one, used) for one in shown)]
        widths = [max(map(len, column)) for column in zip(*lines_of, strict=True)]
        lines += ["", *(" ".join(map(str.rjust, line, widths)).rstrip() for line in lines_of)]
        lines += ["", MEANING, *(text for mark, text in MARKS.items() if mark in used)]
    if len(shown) < len(plan.feasible):
        lines.append(f"{len(plan.feasible) - len(shown)} more layouts fit; --all lists them")
    why_not = [f"{count} not possible: {why}" for why, count in plan.refused.most_common()]
    if plan.least is not None:
        why_not.append(f"the smallest of those that are too large needs {plan.least / 1e9:.1f} GB per device")
    for paragraph in (why_not, best(plan.feasible[0], work.batch * work.length) if plan.feasible else []):
        lines += ["", *paragraph] if paragraph else []
    return "\n".join(lines).rstrip()


def row(one: Candidate, marks: Collection[str]) -> list[str]:
    """A layout's line, of at most 100 columns; `marks` are those of MARKS that may be set at it."""
    shape = [str(one.data), str(one.tensor), str(one.pipeline), "yes" if one.zero else "no"]
    memory = [f"{one.memory[part] / 1e9:.2f}" for part in PARTS]
    end = [f"{one.total / 1e9:.2f}", f"{one.sent / 1e9:.2f}", f"{100 * one.bubble:.0f}%", seconds(one.seconds)]
    end.append("".join(text[0] for mark, text in MARKS.items() if mark in marks and getattr(one, mark)))
    return [*shape, str(one.micro_batch), str(one.pieces), *memory, *end]


def seconds(value: float) -> str:
    """A time in a unit that suits it."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def best(one: Candidate, tokens: int) -> list[str]:
    """The first layout in detail: what is sent by which collective, and the recipe's lines for it."""
    lines = [
        f"the first: {tokens / one.seconds:,.0f} tokens/s; of its step {seconds(one.compute)} are matrix products, "
        f"{seconds(one.communication)} messages, {100 * one.bubble:.0f}% bubble",
        f"  {'collective':<12}{'group':<10}{'calls':>8}{'MB':>14}   per device and step",
    ]
    for (kind, group), (calls, nbytes) in sorted(one.traffic.items(), key=lambda item: -item[1][1]):
        lines.append(f"  {kind:<12}{group:<10}{calls:>8,}{nbytes / 1e6:>14,.3f}")
    lines.append(
        f"  saving: {one.saving['held'] / 1e9:,.3f} GB of weights on rank 0's host, of which "
        f"{one.saving['received'] / 1e9:,.3f} GB come from others"
    )
    settings = " ".join(f"{key}={str(value).lower()}" for key, value in one.settings().items())
    shown = textwrap.wrap(f"in a recipe: {settings}", 100, initial_indent="  ", subsequent_indent="    ")
    return [*lines, *shown]
