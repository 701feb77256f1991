"""Evaluation by itself: a recipe's model, or another, measured on the recipe's held-out data."""

from __future__ import annotations

import os
from collections.abc import Callable

from model_zoo.errors import InputError
from pet.train.run import measure


def evaluate(
    recipe,
    *,
    model: str | os.PathLike | None = None,
    adapter: str | os.PathLike | None = None,
    strict: bool = True,
    show: Callable[[str], None] = print,
) -> dict[str, float]:
    """Measures a model on a recipe's held-out data, by the same code and settings as the run itself.

    Args:
        recipe: a `pet.recipe.Recipe`; its ``data.test`` is measured where it has one, else ``data.eval``.
        model: a checkpoint to measure in place of the recipe's base.
        adapter: an adapter directory to put on it; None measures the plain model.
        strict: refuse an adapter that was made on another base.
        show: takes the table for the user.

    Raises:
        InputError: no held-out data, or something that the recipe names is missing.
    """
    from adapters.saving import load_adapter
    from adapters.stored import check_loadable
    from pet.data.load import load_dataset
    from pet.train import prepare as parts, report
    from pet.train.agreement import check_alike
    from pet.train.metrics import check_available
    from pet.train.objectives import make_objective

    check_available(recipe.eval.metrics)
    recipe = parts.with_reference(recipe, adapter)
    distributed = parts.make_distributed_context(recipe)
    check_alike(recipe if model is None else parts.on_checkpoint(recipe, model), distributed, adapter=adapter)
    tokenizer = parts.tokenizer_for_data(recipe, model)
    if recipe.data.test:
        settings = parts.held_out_settings(recipe, deduplicate=False)
        held_out = load_dataset(recipe.data.test, tokenizer, settings=settings)
    else:
        _, held_out = parts.load_data(recipe, tokenizer)
    if held_out is None:
        raise InputError("data.eval: missing; there is nothing to measure on (data.test, data.eval or eval_fraction)")

    def prepare(model, adapter) -> parts.Prepared:
        def attach(whole) -> None:
            if adapter is not None:
                load_adapter(whole, adapter, strict=strict)

        if adapter is not None:
            check_loadable(adapter)  # before the model is loaded
        measured = parts.build(recipe if model is None else parts.on_checkpoint(recipe, model), distributed, attach)
        found = parts.Prepared(measured, tokenizer, str(model or recipe.model.path), None, held_out)
        parts.make_feeds(recipe, found, distributed)
        return found

    objective = make_objective(recipe.train)
    if model is not None and getattr(objective, "uses_reference", False):
        base = prepare(None, None)  # another checkpoint than this one is no reference
        objective.begin(base.model, base.eval_feed, False, distributed)
        del base
    prepared = prepare(model, adapter)
    prepared.questions = parts.load_asked(recipe, prepared, required=False)
    found = measure(recipe, prepared, distributed, objective)
    if distributed.is_main:
        titles = report.titles_of(found)
        show("\n".join(report.table([["", "held out"], *([t, report.number(found[n])] for n, t in titles.items())])))
    return found
