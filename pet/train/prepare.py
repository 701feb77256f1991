"""From a recipe to the things that a run is made of: model, tokenizer, adapter, data."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adapters.patterns import names_like
from model_zoo.errors import InputError
from model_zoo.tokenizers.files import TokenizerFiles
from pet.launching.environment import read_job
from pet.names import own_tokenizer
from pet.recipe.adapter import MANAGEMENT, recipe_method
from pet.recipe.classes import JUDGING, OPTIONS, find_objective
from pet.recipe.fields import PRECOMPUTE
from pet.recipe.training_rules import given
from pet.train.settings import OF_ANSWERS

log = logging.getLogger("pet")


@dataclasses.dataclass
class Prepared:
    """What a run works with.

    Attributes:
        model, tokenizer: the model with its adapter on it.
        base: name or directory of the base, as the recipe says it.
        train, evaluation: datasets of samples; None where the recipe has none.
        train_feed, eval_feed: their loaders.
        questions: what the model is asked in evaluations.
    """

    model: Any
    tokenizer: Any
    base: str
    train: Any = None
    evaluation: Any = None
    train_feed: Any = None
    eval_feed: Any = None
    questions: list = dataclasses.field(default_factory=list)


def make_distributed_context(recipe):
    """The processes that the recipe's layout asks for. To be called before any tensor is made."""
    from pet.train.distributed import DistributedContext

    layout = recipe.parallel
    for name in ("shard_optimizer", "shard_base"):
        if getattr(layout, name) and layout.data == 1:
            log.warning("parallel.%s divides nothing: parallel.data is 1", name)
    if layout.processes == 1:
        if read_job().joins:  # of the two processes that msrun starts for a single worker one is its scheduler
            from pet.parallel.together import come_together

            come_together()
        return DistributedContext()
    from pet.parallel.context import ParallelContext

    return ParallelContext(**layout.model_dump(), profile=recipe.train.profile)


def on_checkpoint(recipe, path: str | os.PathLike):
    """The recipe over another checkpoint, which is read as it is stored; the tokenizer stays what the recipe names."""
    chosen = recipe.model_copy(deep=True)
    section = chosen.model
    section.path, section.config, section.from_scratch = str(path), {}, False
    section.quantization = type(section.quantization)()
    return chosen


def with_reference(recipe, measured: str | os.PathLike | None = None):
    """The recipe with the adapter that its run starts from as the reference, where it leaves that out; unless it is the
    one that is `measured`, whose reference is the base."""
    recipe = recipe.model_copy(deep=True)
    train, start = recipe.train, getattr(recipe.adapter, "load", None)
    unsaid = train.objective in OPTIONS["reference"] and train.reference in (None, PRECOMPUTE)
    if unsaid and start is not None and (measured is None or Path(measured).resolve() != Path(start).resolve()):
        train.reference = start
    return recipe


def load_model(recipe):
    """The recipe's base model: published weights, or random ones where it says ``from_scratch``.

    Raises:
        InputError: no such model, ``from_scratch`` with a name that says no sizes, or a type that the device cannot
            compute in.
    """
    from model_zoo.auto import compute_type
    from model_zoo.families import config_class
    from model_zoo.inputs import check_runs
    from pet.auto import AutoModel
    from pet.names import find_model

    section, quantization = recipe.model, recipe.model.quantization.settings()
    check_runs(compute_type(section.dtype))
    if section.from_scratch:
        return AutoModel.from_config(section.config_json(), dtype=section.dtype, seed=recipe.train.seed)
    if not section.config:
        return AutoModel.from_pretrained(section.path, section.dtype, quantization)
    directory = find_model(section.path)
    values = section.config_json()
    return AutoModel.from_directory(directory, config_class(values).from_dict(values), section.dtype, quantization)


def build(recipe, distributed, attach: Callable[[Any], None], fresh: bool = False):
    """This process's part of the recipe's base, with what `attach` puts on the whole one; `fresh`: an untrained adapter
    of the recipe's own. Errors are those of `load_model` and `attach`, and of a layout that does not fit."""
    if distributed.divides_model:
        from pet.parallel.build import divided_model

        return divided_model(recipe, distributed, load_model, attach, fresh)
    model = load_model(recipe)
    attach(model)
    return distributed.prepare(model)


def load_tokenizer(recipe, model: str | None = None):
    """The recipe's tokenizer; that of the model, or of the recipe's, unless it names another. One that is nothing but a
    vocabulary is read as that of a model of this family."""
    from model_zoo.tokenizers import AutoTokenizer
    from pet.names import find_tokenizer, model_config

    place, config = find_tokenizer(recipe.model.tokenizer or model or recipe.model.path), None
    with contextlib.suppress(InputError):  # a model that is an object has no place
        config = model_config(recipe.model.path)
    return AutoTokenizer.from_pretrained(place, config=config)


def tokenizer_for_data(recipe, model: str | None = None):
    """See `load_tokenizer`; None where there is none, and none is needed: MindRecord files hold token ids."""
    from pet.data.finding import find_files, kind_of

    try:
        return load_tokenizer(recipe, model)
    except InputError as error:
        data = recipe.data
        files = find_files([*(data.train or ()), *(data.eval or ()), *(data.test or ())])
        if recipe.eval.written or data.template or any(kind_of(file) != "mindrecord" for file in files):
            raise
        log.warning("%s; the rows are token ids, so it goes without", error)
        return None


def attach_adapter(model, recipe, tokenizer=None, data=None) -> None:
    """Puts the recipe's adapter on the model, new or loaded; without one, its weights are trained. What the objective
    trains for itself, which may go by the data, is added.

    Raises:
        InputError: a target matches nothing; or a loaded adapter has other settings than the recipe says.
    """
    section = recipe.adapter
    if section.method == "none":
        parameters = {parameter.name: parameter for parameter in model.get_parameters()}
        chosen = {name for pattern in section.trained or ("*",) for name in names_like(pattern, parameters)}
        for name, parameter in parameters.items():
            parameter.requires_grad = name in chosen
    elif section.load is not None:
        config = recipe_method(section, recipe.train.seed, tokenizer)
        from adapters.apply import set_adapter
        from adapters.saving import load_adapter

        load_adapter(model, section.load, name=section.name)
        set_adapter(model, section.name)
        check_loaded(model, recipe, config)
        tell_of_template(recipe, tokenizer)
    else:
        from adapters.apply import apply

        apply(model, recipe_method(section, recipe.train.seed, tokenizer), name=section.name)
    find_objective(recipe.train.objective).extend(model, data, recipe.train.seed)


def tell_of_template(recipe, tokenizer) -> None:
    """Says so where a loaded adapter was trained with another chat template than the recipe's, which stays."""
    own = own_tokenizer(recipe.adapter.load)
    if own is None or tokenizer is None or recipe.data.template is not None:
        return
    if (template := TokenizerFiles(own).chat_template()) and template != tokenizer.chat_template:
        log.warning("%s: has a chat template of its own, which is not used; model.tokenizer=%s takes it", own, own)


CELLS = ("targets", "exclude", "layers")
"""Settings of an adapter that together say which cells it goes to."""


def check_loaded(model, recipe, config) -> None:
    """Refuses a loaded adapter whose settings are other than what the recipe says of them. Another alpha is given to
    it: the tensors stay what they are. Cells may be named otherwise, if they are the same ones."""
    from adapters.alpha import set_alpha
    from adapters.matching import plan
    from adapters.registry import registry

    section, adapter = recipe.adapter, registry(model).get(recipe.adapter.name)
    loaded = adapter.config
    if loaded.method != config.method:
        raise InputError(f"{recipe.where('adapter.load')}: holds {loaded.method}, adapter.method is {section.method}")
    problems = []
    for key, field in type(section).model_fields.items():
        said = getattr(section, key)
        if key in (*MANAGEMENT, "method") or said == field.get_default(call_default_factory=True):
            continue
        if key in CELLS:
            meant = {entry.site.path for entry in plan(model, config).entries if not entry.whole}
            if apart := sorted(meant.symmetric_difference(adapter.sites)):
                whose = "is one of these, but not" if apart[0] in meant else "is none of these, but one"
                problems.append(
                    f"{recipe.where('adapter.' + key)}: {said!r}: {apart[0]} {whose} of the adapter in adapter.load"
                )
            continue
        found = getattr(loaded, key)
        found = sorted(found) if isinstance(found, (set, tuple)) else found
        if key == "alpha" and found != said:
            set_alpha(model, said, section.name)
        elif found != said and (not isinstance(said, list) or sorted(map(str, said)) != sorted(map(str, found or []))):
            problems.append(
                f"{recipe.where('adapter.' + key)}: {said!r}, but the adapter in adapter.load has {found!r}"
            )
    InputError.raise_any(problems)


def data_settings(recipe, **changes):
    """The recipe's data section as the loader takes it."""
    from pet.data import DataSettings
    from pet.data.settings import FULL
    from pet.recipe.classes import rows_of

    data = recipe.data
    own = {"longer": FULL} if data._room is not None and data.max_length >= data._room else {}
    return DataSettings.of(data, **{**own, **rows_of(recipe.train.objective), **changes})


def load_data(recipe, tokenizer) -> tuple[Any, Any]:
    """The training and the evaluation samples; each None where the recipe has none."""
    from pet.data.load import load_dataset, mix_dataset, split_dataset

    settings = data_settings(recipe)
    tell_unused(recipe, settings)
    train = load_dataset(recipe.data.train, tokenizer, settings=settings) if recipe.data.train else None
    evaluation = None
    if recipe.data.eval:
        evaluation = load_dataset(recipe.data.eval, tokenizer, settings=held_out_settings(recipe), unlike=train)
    if train is not None and recipe.data.mix:
        train = mix_dataset(train, recipe.data.train, recipe.data.mix, settings.seed)
    if evaluation is None and train is not None and recipe.data.eval_fraction > 0:
        train, evaluation = split_dataset(train, recipe.data.eval_fraction, settings.seed)
    return train, evaluation


def tell_unused(recipe, settings) -> None:
    """Warns of what is said of the data, and of evaluations, and reaches nothing: a path once more, a format beside an
    objective's own, metrics where nothing is held out."""
    data = recipe.data
    asked = [name for name in ("metrics", "batch_size", "before", *OF_ANSWERS) if given(recipe.eval, name)]
    if recipe.eval.batch_size == recipe.train.batch_size:  # as it is filled in
        asked = [name for name in asked if name != "batch_size"]
    if asked and not (
        data.eval or data.eval_fraction or data.test or "eval" in data.model_fields_set
    ):  # a null is meant
        log.warning("eval.%s: there is nothing to evaluate on; set data.eval", ", eval.".join(asked))
    drawn = data.eval_fraction or any(weight % 1 for weight in data.mix or ())
    if data.seed != recipe.train.seed and not data.shuffle and not drawn:
        log.warning("%s: has no effect without data.shuffle or data.eval_fraction", recipe.where("data.seed"))
    own_format = data.eval_format or data.format
    for name, apart, form in (("train", data.mix or data.rows, data.format), ("eval", data.eval_rows, own_format)):
        paths = getattr(data, name) or []
        for path, count in Counter(map(os.fspath, paths)).items():
            if count > 1 and not apart:
                more = "; a weight of 2 in data.mix has its rows twice" if name == "train" else ""
                log.warning("%s: %s is named %d times and read once%s", recipe.where(f"data.{name}"), path, count, more)
        formats = {form, *(getattr(path, "own", {}).get("format", "auto") for path in paths)}
        if paths and settings.conversations and (unused := formats - {"auto", "mindrecord"}):
            said = f"format {', '.join(sorted(unused))} is not used"
            log.warning(
                "%s: %s: %s reads rows of its own form", recipe.where(f"data.{name}"), said, recipe.train.objective
            )


def held_out_settings(recipe, **changes):
    """Evaluation data: all of it, in its own order, never streaming, in a format and with columns of its own."""
    data, own = recipe.data, {"rows": recipe.data.eval_rows, **changes}
    if data.eval_format is not None:
        own.update(format=data.eval_format, columns={})
    if data.eval_columns is not None:
        own["columns"] = data.eval_columns
    return data_settings(recipe, shuffle=False, drop_last=False, max_samples=None, streaming=False, **own)


def check_vocabulary(dataset, vocabulary: int) -> None:
    """Refuses ids that the model has no embedding for: another tokenizer's, or those of rows that are ids already."""
    tokens = getattr(dataset, "tokens", None)  # data that streams has none yet
    if tokens is None or len(tokens) == 0 or int(tokens.max()) < vocabulary:
        return
    place = int(tokens.argmax())
    sample = int(np.searchsorted(dataset.starts, place, side="right")) - 1
    raise InputError(
        f"{dataset.where(sample)}: token id {int(tokens[place])} is beyond the model's vocabulary of {vocabulary}; "
        "the tokens are another tokenizer's"
    )


def make_feeds(recipe, prepared: Prepared, distributed) -> None:
    """Loaders over the datasets, for this process's share of every batch."""
    from pet.train.feed import shared_loader

    for dataset in (prepared.train, prepared.evaluation):
        check_vocabulary(dataset, prepared.model.config.dims.vocab)
    how = (prepared.model, prepared.tokenizer, distributed)
    if prepared.train is not None:
        rows, accumulation = recipe.train.batch_size, recipe.train.accumulation
        prepared.train_feed = shared_loader(prepared.train, rows, data_settings(recipe), *how, accumulation)
    if prepared.evaluation is not None:
        rows = recipe.eval.batch_size or recipe.train.batch_size
        prepared.eval_feed = shared_loader(prepared.evaluation, rows, held_out_settings(recipe), *how)


def load_asked(recipe, prepared: Prepared, required: bool = True) -> list:
    """The questions of the evaluation data, as many as the recipe wants answered.

    Those that fill the model's context alone are left out, with a warning.

    Args:
        required: whether metrics of answers must be had; otherwise a warning says that they are left out.

    Raises:
        InputError: they must, and there is no question.
    """
    from pet.data.load import load_questions
    from pet.train.evaluate import context_of

    written, limit = recipe.eval.written, recipe.eval.asked
    if prepared.evaluation is None or prepared.tokenizer is None or recipe.train.objective in JUDGING or limit == 0:
        return []
    found = load_questions(prepared.evaluation, prepared.tokenizer, settings=held_out_settings(recipe), limit=limit)
    context = context_of(prepared.model)
    asked = [question for question in found if len(question.prompt_ids) < context]
    if len(asked) < len(found):
        where = next(question.where for question in found if len(question.prompt_ids) >= context)
        said = f"{len(found) - len(asked)} of {len(found)} questions are not asked"
        log.warning("%s: they fill the model's context of %d tokens, such as %s", said, context, where)
    if written and not asked:
        said = "compare answers to questions, and the evaluation data holds none that could be asked"
        text = f"{recipe.where('eval.metrics')}: {', '.join(written)} {said}"
        if required:
            raise InputError(text)
        log.warning("%s", text)
    return asked


def prepare(recipe, distributed) -> Prepared:
    """Everything a training run works with. Nothing is written.

    Raises:
        InputError: whatever is missing: model, tokenizer, targets, data, packages.
    """
    from pet.train.metrics import check_available

    if recipe.data.eval or recipe.data.eval_fraction:
        check_available(recipe.eval.metrics)
    tokenizer = tokenizer_for_data(recipe)
    train, evaluation = load_data(recipe, tokenizer)
    if train is None:
        raise InputError("data.train: missing; a training run needs a file or a directory of files")

    def attach(model) -> None:
        attach_adapter(model, recipe, tokenizer, train)

    model = build(recipe, distributed, attach, fresh=getattr(recipe.adapter, "load", None) is None)
    if recipe.output.merged and model.scoring:  # that there is none shows now rather than after the training
        model.config.as_classifier(model.labels)
    prepared = Prepared(model, tokenizer, recipe.model.path, train, evaluation)
    make_feeds(recipe, prepared, distributed)
    prepared.questions = load_asked(recipe, prepared) if distributed.can_generate else []
    return prepared
