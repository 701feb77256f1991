"""What must hold between the settings of an ``eval`` section, in a recipe and in `pet.train.trainer.Trainer`."""

from __future__ import annotations

from collections.abc import Iterator

from pet.recipe.classes import COMPARED, JUDGING
from pet.recipe.training import COMPARED_BY, GENERATED, Eval
from pet.recipe.training_rules import given

SCHEDULE = ("eval.every_steps", "eval.every_epochs")
NO_ANSWERS = "the model judges texts and writes no answers"


def problems(section: Eval, held_out: bool, give: str = "set data.eval") -> Iterator[tuple[str, str, str]]:
    """(key, the keys that it is at odds with, what is wrong) of each problem.

    Args:
        held_out: whether there is anything to measure on.
        give: what would be measured on.
    """
    schedule = section.every_steps or section.every_epochs
    if section.every_steps and section.every_epochs:
        yield *SCHEDULE, "give every_steps or every_epochs, not both"
    if schedule and not held_out:
        name = SCHEDULE[not section.every_steps]
        yield name, "data.eval data.eval_fraction", f"there is nothing to evaluate on; {give}"
    along = {
        "patience": section.patience,
        "min_delta": section.min_delta,
        "best_metric": given(section, "best_metric"),
        "best_mode": section.direction() != section.model_copy(update={"best_mode": None}).direction(),
        "load_best_model_at_end": section.load_best_model_at_end,
        "generate": section.generate == "ends",
    }
    for name in () if schedule else (name for name, asked in along.items() if asked):
        needed = "needs evaluations along the way; set eval.every_steps or eval.every_epochs"
        yield f"eval.{name}", " ".join(SCHEDULE), needed
    if section.generate == "ends" and section.best_metric in GENERATED:
        why = f"eval.best_metric is {section.best_metric}, which has to be measured along the way; set always"
        yield "eval.generate", "eval.best_metric", why
    if section.best_metric not in (*section.metrics, *COMPARED_BY):
        why = f"{section.best_metric} is not measured; expected one of {', '.join(section.metrics)}"
        yield "eval.best_metric", "eval.metrics", why
    if len(set(section.metrics)) < len(section.metrics):
        yield "eval.metrics", "", "names a metric twice"


def unmeasured(section: Eval, objective: str) -> Iterator[tuple[str, str, str]]:
    """The same of metrics that an objective has not, and of answers where it learns of none."""
    metrics, chooser = "eval.metrics", "train.objective"
    for name in ("shown_samples", "generate") if objective in JUDGING else ():
        if given(section, name) and getattr(section, name) != 0:
            yield f"eval.{name}", chooser, NO_ANSWERS
    if objective in JUDGING and (written := section.written):
        yield metrics, chooser, f"{', '.join(written)}: {NO_ANSWERS}"
    if "f1" in section.metrics and objective != "classification":
        yield metrics, chooser, "f1 is measured with train.objective: classification"
    if "accuracy" in section.metrics and objective in COMPARED:
        why = f"accuracy is of tokens or of labels; with {objective} reward_accuracy is always measured"
        yield metrics, chooser, why
    if "perplexity" in section.metrics and given(section, "metrics") and objective in (*COMPARED, *JUDGING):
        yield metrics, chooser, f"perplexity is of tokens one by one, which {objective} does not measure"
    if section.best_metric == "perplexity" and not given(section, "metrics") and objective in (*COMPARED, *JUDGING):
        yield "eval.best_metric", chooser, f"perplexity is of tokens one by one, which {objective} does not measure"
    if section.best_metric in COMPARED_BY and objective not in COMPARED:
        yield "eval.best_metric", chooser, f"is measured with {', '.join(COMPARED)}"
