"""Whole jobs: from a recipe to a finished run directory, and from a run directory back to its numbers."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.files import atomic_directory, write_json

log = logging.getLogger("pet")


def finetune(recipe, **how) -> dict[str, Any]:
    """Runs a recipe that tunes a base: its adapter, or every weight. Arguments, result and errors are `start`'s.

    Raises:
        InputError: the recipe starts from random weights; that is what `train` is for.
    """
    if recipe.model.from_scratch:
        raise InputError("model.from_scratch: random weights are trained by pet train; pet finetune needs a base")
    return start(recipe, **how)


def train(recipe, **how) -> dict[str, Any]:
    """Trains every weight: of a base, or from random ones where the recipe says ``model.from_scratch: true``.
    Arguments, result and errors are `start`'s.

    Raises:
        InputError: the recipe has an adapter; that is what `finetune` is for.
    """
    if recipe.adapter.method != "none":
        raise InputError(
            f"adapter.method: {recipe.adapter.method}: pet train trains every weight; set adapter.method: none, "
            "or use pet finetune"
        )
    return start(recipe, **how)


def start(
    recipe,
    *,
    resume: bool = False,
    force: bool = False,
    show: Callable[[str], None] = print,
    callbacks: Iterable = (),
    objective=None,
    distributed=None,
) -> dict[str, Any]:
    """Looks at everything that can be wrong with a recipe, then trains, measures before and after, and fills the run
    directory.

    Args:
        recipe: a `pet.recipe.Recipe`.
        resume: go on from the last whole checkpoint in the run directory; with none there, start.
        force: overwrite an existing run in the output directory.
        show: takes the texts for the user.
        callbacks: more of them, besides those of the recipe and the built-in ones.
        objective: what is learnt, in place of the recipe's ``train.objective``.
        distributed: sums over processes.

    Returns:
        What summary.json holds.

    Raises:
        InputError: something that the recipe names is missing or unsupported. Nothing is written then.
        RunFailed: the loss is not finite or explodes.
        Interrupted: a signal came; everything is saved.
    """
    from pet import run_directory
    from pet.planning.room import check_room
    from pet.train.agreement import check_alike
    from pet.train.prepare import make_distributed_context, prepare, with_reference

    if recipe.output.only_save_strategy:
        return save_strategies(recipe, show)
    recipe = with_reference(recipe)
    recipe.train.resume, recipe.output.force = recipe.train.resume or resume, recipe.output.force or force
    distributed = distributed or make_distributed_context(recipe)
    check_alike(recipe, distributed)
    with locked(recipe, distributed):
        prepared = prepare(recipe, distributed)
        if distributed.is_main:
            check_room(recipe, prepared)
        if distributed.is_main and recipe.train.resume:
            for change in run_directory.changes(recipe, recipe.output.dir):
                log.warning("%s was %s, is %s now: the run continues, but not bit for bit as it would have", *change)
        return execute(recipe, prepared, distributed, show=show, callbacks=callbacks, objective=objective)


@contextlib.contextmanager
def locked(recipe, distributed):
    """The run directory, checked and then locked within the block."""
    from pet import run_directory
    from pet.train.agreement import raised_everywhere

    with raised_everywhere(distributed.objects):
        if distributed.is_main:
            run_directory.check(recipe)
            run_directory.claim(recipe.output.dir)
    try:
        yield
    finally:
        run_directory.release(recipe.output.dir)


def save_strategies(
    recipe, show: Callable[[str], None] = print, config: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Writes the strategy files of the recipe's layout instead of running it; returns their names.

    Every process of a job that was started already may call this: rank 0 writes. ``config`` is the config.json of a
    model that is in memory, in place of the recipe's.
    """
    from pet.launching.environment import read_job
    from pet.parallel.strategy import recipe_strategies

    directory = Path(recipe.output.dir) / "strategy"
    if read_job().rank > 0:
        return {"strategy": str(directory)}
    files = recipe_strategies(recipe, directory, config)
    show(f"{directory}: the strategies of {len(files)} processes; nothing was trained (output.only_save_strategy)")
    return {"strategy": str(directory), "files": [str(path) for path in files]}


def execute(
    recipe,
    prepared,
    distributed,
    *,
    show: Callable[[str], None] | None = None,
    callbacks: Iterable = (),
    objective=None,
    save: Callable | None = None,
    rates: Callable[[int], float] | None = None,
    measures: Callable[[], dict[str, float]] | None = None,
) -> dict[str, Any]:
    """The run itself, once everything that can be wrong with the recipe has been looked at.

    Args:
        recipe, prepared: settings, and what they come to.
        distributed: sums over processes.
        show: takes the texts for the user; None where there are none.
        objective: see `start`.
        save: `save_result`, or what stands in for it where the recipe does not say all, since model or data are
            objects. Such a run has no recipe.yaml: it could not be run again from that.
        rates: those of `pet.train.trainer.Trainer`.
        measures: further numbers for every evaluation.
    """
    # what a run answers and writes with is not imported after hours: another version may have taken its place
    from model_zoo.generation import generate  # noqa: F401
    from pet import export  # noqa: F401
    from pet.run_directory import RECIPE, open_for
    from pet.train import report
    from pet.train.objectives import make_objective
    from pet.train.origins import origins_of
    from pet.train.state import whole_weights
    from pet.train.stop import NO_CHECKPOINT, Interrupted
    from pet.train.trainer import Trainer

    begin, complete, save = time.perf_counter(), save is None, save or save_result
    model, directory = prepared.model, Path(recipe.output.dir)
    objective = objective or make_objective(recipe.train)
    evaluation = make_evaluation(recipe, prepared, distributed, objective, measures)
    counted = count(model, distributed)
    title = recipe.name or directory.name
    built_in = ["progress", "metrics", "samples", "plot"]
    if recipe.train.profile and "profiler" not in [callback.name for callback in recipe.callbacks]:
        built_in.append("profiler")

    def finish(outcome: dict[str, Any]) -> dict[str, Any]:
        """All files of the run, before the callbacks are told of its end: one that uploads finds everything."""
        after = trainer.evaluate(anew=False)
        summary = summarise(recipe, trainer, outcome, after, counted, time.perf_counter() - begin)
        weights = whole_weights(trainer)
        if distributed.is_main:
            save(recipe, prepared, directory, distributed.whole(model, weights))
            write_json(directory / "summary.json", summary)
        distributed.barrier()
        return summary

    trainer = Trainer(
        model,
        prepared.train_feed,
        train=recipe.train,
        eval=recipe.eval,
        directory=directory,
        callbacks=[*(built_in if distributed.is_main else ()), *recipe.callbacks, *callbacks],
        objective=objective,
        evaluation=evaluation,
        distributed=distributed,
        save_extra=lambda stage: save(recipe, prepared, stage, distributed.whole(model, trainer.whole_weights)),
        finish=finish,
        origins=(origins_of(recipe) if distributed.is_main else {}) if complete else None,
        title=f"{title}: {recipe.adapter.method} on {Path(prepared.base).name}" if complete else title,
        rates=rates,
    )
    if recipe.train.resume:
        trainer.resume()  # which checks the checkpoint: a run that is refused writes nothing
    show = tolerant(show) if show is not None and distributed.is_main else None
    if distributed.is_main:
        open_for(recipe)
        if not complete:
            (directory / RECIPE).unlink()
    if show:
        show(report.before(report.facts(recipe, prepared, trainer, counted)))
    distributed.barrier()
    try:
        summary = trainer.train()
    except Interrupted:
        if show:
            saved = trainer.last_checkpoint() is not None
            then = f"go on with --resume ({directory})" if saved else NO_CHECKPOINT
            show(f"stopped by a signal after step {trainer.position.step}; {then}")
        raise
    if show:
        show(report.told(trainer, evaluation, summary, directory))
        if recipe.train.profile:
            show("\n" + distributed.traffic_report())
    distributed.barrier()
    return summary


def tolerant(show: Callable[[str], None]) -> Callable[[str], None]:
    """`show` for a run, which a closed terminal or a full disk under its log is no reason to end."""

    def shown(text: str) -> None:
        try:
            show(text)
        except BrokenPipeError:  # who reads the output has left on purpose
            raise
        except OSError as error:
            log.warning("standard output: %s", error.strerror)

    return shown


def make_evaluation(recipe, prepared, distributed, objective, measures: Callable | None = None):
    """What measures a run's model, by the recipe's ``eval`` section; None where there is nothing to measure on."""
    from pet.train.evaluate import Answers, Evaluation, LossEvaluation

    if prepared.eval_feed is None:
        return None
    losses, answers = LossEvaluation(prepared.model, prepared.eval_feed, objective, distributed=distributed), None
    if prepared.questions:
        rows = recipe.eval.batch_size or recipe.train.batch_size
        generation = recipe.generation.in_evaluations()
        answers = Answers(prepared.model, prepared.tokenizer, prepared.questions, generation, rows, recipe.train.seed)
    return Evaluation(losses, answers, recipe.eval, measures)


def measure(recipe, prepared, distributed, objective=None, measures: Callable | None = None) -> dict[str, float]:
    """The metrics of a model that is not trained here, and those that `measures` adds."""
    from pet.train.measuring import fast
    from pet.train.objectives import make_objective

    evaluation = make_evaluation(recipe, prepared, distributed, objective or make_objective(recipe.train), measures)
    with fast(prepared.model):
        return evaluation()


def count(model, distributed) -> tuple[int, int]:
    """Trainable and all parameters, without buffers such as dropout's key."""
    parameters = [parameter for parameter in model.get_parameters() if not getattr(parameter, "buffer", False)]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return distributed.count(trained), distributed.count(parameters)


def save_result(recipe, prepared, directory: Path, model) -> str | None:
    """Puts what was trained into a directory: ``adapter/``, or ``model/`` where every weight is.

    Args:
        model: the whole one; where processes divide it, its frozen base is not there.

    Returns:
        ``"model"`` where that holds every trained weight under its own name, so that no checkpoint needs it twice.
    """
    if recipe.adapter.method == "none":
        save_model(model, prepared.tokenizer, directory / "model")
        return "model"
    from adapters.saving import save_adapter
    from pet.hub import bare

    model.base_name = bare(recipe.model.path)  # a bundled or a hub's name, or an absolute path
    with atomic_directory(directory / "adapter") as stage:
        save_adapter(model, stage, name=recipe.adapter.name)
    if recipe.output.merged and (directory / "recipe.yaml").exists():
        from adapters.registry import registry
        from adapters.saving import form_of

        if model is not prepared.model or form_of(model) or model.config.left_out or registry(model).merged_names:
            merge_on_disk(recipe, prepared.tokenizer, directory)
            return None
        from adapters.merge import merge, unmerge

        merge(model)
        try:
            save_model(model, prepared.tokenizer, directory / "merged")
        finally:
            unmerge(model)
    return None


def merge_on_disk(recipe, tokenizer, directory: Path) -> None:
    """Merges a run's adapter into its base's files; into what packing left of them where these are packed, or where the
    adapter fits nothing else (LoftQ). The run's own tokenizer takes the place of the base's, where it is another."""
    from model_zoo.checkpoint.reading import Checkpoint
    from model_zoo.checkpoint.saving import TOKENIZER
    from pet.export import merge_checkpoint
    from pet.names import find_model

    base = find_model(recipe.model.path)
    with Checkpoint(base) as checkpoint:
        dequantize = bool(checkpoint.packed) or getattr(recipe.adapter, "init", None) == "loftq"
    shutil.rmtree(directory / "merged", ignore_errors=True)
    merge_checkpoint(base, directory / "adapter", directory / "merged", dequantize=dequantize)
    if tokenizer is not None and recipe.model.tokenizer != recipe.model.path:
        for file in (file for pattern in TOKENIZER for file in (directory / "merged").glob(pattern)):
            file.unlink()
        tokenizer.save_pretrained(directory / "merged")


def save_model(model, tokenizer, directory: Path) -> None:
    """The whole model with its tokenizer, if it has one, as a Hugging Face checkpoint."""
    from model_zoo.checkpoint.saving import save_pretrained

    with atomic_directory(directory) as stage:
        save_pretrained(model, stage)
        if tokenizer is not None:
            tokenizer.save_pretrained(stage)


def summarise(recipe, trainer, outcome: dict[str, Any], after, counted, seconds: float) -> dict[str, Any]:
    """What summary.json holds."""
    from pet.train.memory import peak_memory

    trainable, total = counted
    measuring = getattr(getattr(trainer.evaluation, "losses", None), "measure", None)  # its first forwards compiled
    return {
        "name": recipe.name,
        "method": recipe.adapter.method,
        "before": trainer.before,
        "after": after,
        **outcome,
        "seconds": seconds,
        "compile_seconds": outcome["compile_seconds"] + float(getattr(measuring, "seconds", 0.0)),
        "peak_memory_mb": peak_memory(),
        "trainable": trainable,
        "total": total,
        "precision": str(trainer.precision),
    }
