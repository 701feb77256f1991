"""How often is saved, measured and logged, and what is measured, in LLaMA-Factory's and axolotl's job files."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from pet.compat.contradictions import SFT_ALONE
from pet.compat.mindformers.training_arguments import TABLE as ARGUMENTS, WRITTEN
from pet.compat.translation import flag
from pet.recipe.translation import Translation
from pet.train.schedules import steps_of


def interval(key: str) -> Any:
    """A rule for a number of steps, or a share of all of them."""

    def rule(t: Translation, name: str, value: Any) -> None:
        if value < 0:
            raise ValueError("a number of steps or a share of them was expected")
        t.put(key, int(value) if value >= 1 else value or None)

    return rule


def saved(t: Translation, name: str, value: Any) -> None:
    """When checkpoints are written, by a word; read after the length of the run and ``save_steps``."""
    if value == "epoch" and t.get("train.epochs") and not t.get("train.steps"):
        t.drop("train.save_every")
        t.put("train.save_every", 1.0 / t.get("train.epochs") if t.get("train.epochs") > 1 else None)
    elif value == "steps":
        t.settings.setdefault("train.save_every", 500)
    elif value == "best":
        t.drop("train.save_every")
        t.ignore(name, "the best one is kept in any case")
    else:
        ARGUMENTS["save_strategy"](t, name, value)


def on_the_way(t: Translation, name: str, value: Any) -> None:
    """After how many steps is measured, which transformers reads beside a strategy alone."""
    if any(t.values.get(strategy) is not None for strategy in STRATEGIES):
        interval("eval.every_steps")(t, name, value)
    else:
        t.ignore(name, "it is about eval_strategy: steps")


STRATEGIES = ("eval_strategy", "evaluation_strategy")
"""Names that say when it is measured."""


def logged(t: Translation, name: str, value: Any) -> None:
    """After how many steps a line is written; read after the length of the run."""
    if value >= 1 or (value > 0 and t.get("train.steps")):
        t.put("train.log_every", steps_of(value, t.get("train.steps", 0), "transformers"))
    else:
        t.ignore(name, "give a number of steps; metrics.jsonl has a line per step")


def per_epoch(t: Translation, name: str, value: Any) -> None:
    """So often in an epoch, which is a share of the run there."""
    share = 1.0 / (value * (t.values.get("num_epochs") or 1)) if value else 1.0
    if share < 1.0:
        t.put("train.save_every" if name == "saves_per_epoch" else "eval.every_steps", share)
    elif value and name == "evals_per_epoch":
        t.put("eval.every_epochs", 1.0 / value)


def saves_with_evaluations(values: Mapping[str, Any]) -> bool:
    """Whether each checkpoint comes with an evaluation; early stopping then ends with the best of them."""
    with contextlib.suppress(ArithmeticError, TypeError, ValueError):
        epochs = values.get("num_epochs") or 1
        every = [
            values.get(f"{what}_steps") or 1 / (values[f"{what}s_per_epoch"] * epochs)
            for what in ("save", "eval")
            if values.get(f"{what}_steps") or values.get(f"{what}s_per_epoch")
        ]
        return len(every) == 2 and every[0] % every[1] == 0
    return False


METRICS = {"compute_accuracy": ["accuracy"], "predict_with_generate": list(WRITTEN.values())}
"""Its switches, and what they measure beside the loss."""


def measured(t: Translation, name: str, value: Any) -> None:
    """One of `METRICS`."""
    if t.get("train.objective"):
        t.ignore(name, SFT_ALONE)
    else:
        flag("eval.metrics", ["loss", "perplexity", *METRICS[name]])(t, name, value)
