"""What must hold between the settings of a recipe: each rule names the keys it looks at and yields what is wrong.

Two kinds: settings that contradict each other, and settings that would reach nothing. A setting that is ignored is as
bad as a wrong one, because the user believes that it works.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from adapters.matching import check_names
from adapters.patterns import names_like
from adapters.schema import TARGETS, Settings
from adapters.settings import NO_HEAD, method_and_settings, named
from model_zoo.configs import Config
from model_zoo.errors import InputError, nearest
from model_zoo.generation_settings import DRAWN, OF_BEAMS, is_missed
from pet.launching.environment import read_job, said_by
from pet.meta_model import MetaModel
from pet.recipe import evaluation_rules
from pet.recipe.adapter import MANAGEMENT
from pet.recipe.classes import COMPARED, JUDGING
from pet.recipe.data import WITHOUT_QUESTIONS, Reading
from pet.recipe.fields import ADAPTERS_OFF, PRECOMPUTE, is_jinja
from pet.recipe.schema import Recipe
from pet.recipe.training_rules import Finding, given, length, restarts, without_effect


def settings_of(recipe: Recipe) -> Settings | None:
    """What the adapter section sets; None where there is no adapter."""
    method, settings = method_and_settings(recipe.adapter.model_dump(exclude=MANAGEMENT))
    return method(**settings) if method is not None else None


def adapter(recipe: Recipe) -> Iterator[Finding]:
    """What the method itself refuses together."""
    settings = settings_of(recipe)
    for name, message in settings.problems() if settings is not None else ():
        yield f"adapter.{name}", "", message.removeprefix(name).removeprefix(":").lstrip()


def batches(recipe: Recipe) -> Iterator[Finding]:
    """The batch against the layout of processes."""
    rows, parallel = recipe.train.batch_size, recipe.parallel
    pieces = parallel.data * parallel.micro_batches
    if rows % parallel.data:
        yield "train.batch_size", "parallel.data", f"{rows} rows cannot be divided over {parallel.data} copies"
    elif rows % pieces:
        yield (
            "train.batch_size",
            "parallel.data parallel.micro_batches",
            f"{rows} rows cannot be divided over {parallel.data} × {parallel.micro_batches} micro-batches",
        )
    if parallel.pipeline > 1 and parallel.micro_batches < parallel.pipeline:
        yield (
            "parallel.micro_batches",
            "parallel.pipeline",
            f"{parallel.micro_batches} micro-batches leave stages idle; expected at least {parallel.pipeline}, "
            "one per stage",
        )
    if parallel.reduce_dtype != "float32" and parallel.processes == 1:
        yield "parallel.reduce_dtype", "parallel.data parallel.tensor", "one process adds nothing up over others"
    if parallel.reduce_buckets > 1 and (parallel.data != parallel.processes or parallel.data == 1):
        names = "parallel.data parallel.tensor parallel.pipeline"
        yield "parallel.reduce_buckets", names, "gradients are sent in pieces between replicas alone"
    elif parallel.reduce_buckets > 1 and parallel.shard_base:
        yield "parallel.reduce_buckets", "parallel.shard_base", "gathers and sums would meet in one graph"
    if getattr(recipe.adapter, "trained", None) and parallel.tensor * parallel.pipeline > 1:
        names = "parallel.tensor parallel.pipeline"
        yield "adapter.trained", names, "the weights that stay are in no process whole; expected parallel.data alone"
    if parallel.shard_base and recipe.adapter.method == "none":
        yield "parallel.shard_base", "adapter.method", "every weight is trained, and what is frozen is shared"
    elif parallel.shard_base and recipe.model.quantization.type is not None:
        yield "parallel.shard_base", "model.quantization.type", "packed weights are not gathered"
    if parallel.pipeline == 1 and parallel.micro_batches > 1:
        yield (
            "parallel.micro_batches",
            "parallel.pipeline",
            "only a pipeline is cut into micro-batches; use train.accumulation",
        )
    if parallel.pipeline > 1 and (metrics := recipe.eval.written):
        yield (
            "eval.metrics",
            "parallel.pipeline",
            f"{', '.join(metrics)} need generated answers, and a pipeline does not generate; "
            "evaluate afterwards with pet evaluate",
        )
    started = 1
    with contextlib.suppress(InputError):  # joining the job says what is wrong with its variables
        started = read_job().size
    if started not in (1, parallel.processes):
        yield (
            "parallel.data",
            "parallel.tensor parallel.pipeline",
            f"data × tensor × pipeline = {parallel.data} × {parallel.tensor} × {parallel.pipeline} = "
            f"{parallel.processes}, but {started} processes were started; to run each by itself, unset {said_by()}",
        )


def optimizer(recipe: Recipe) -> Iterator[Finding]:
    """Settings of another optimizer, schedule or precision than the chosen one."""
    train = recipe.train
    for name, chooser, message in without_effect(train):
        yield f"train.{name}", f"train.{chooser}", message
    method, fields = recipe.adapter.method, getattr(named(recipe.adapter.method), "__dataclass_fields__", ())
    if train.lora_plus_ratio is not None and "learning_rate_ratio" not in fields:
        yield "train.lora_plus_ratio", "adapter.method", f"has no effect with adapter.method: {method}"
    random = getattr(recipe.adapter, "dropout", 0), *train.base_dropout.values(), train.neftune_alpha
    if train.r_drop_alpha > 0 and not any(random):
        why = "compares two dropouts of a row, but adapter.dropout is 0 or not there, and train.base_dropout says none"
        yield "train.r_drop_alpha", "adapter.method adapter.dropout train.base_dropout train.neftune_alpha", why


EXCHANGED = "answers of two rows are exchanged; give an even number for each process"
LESS_THAN_HALF = "robust takes less than half of the pairs to be wrong"
STEP_PER_WINDOW = "each window of what streams has a step of its own at the end"


ASKED = ("template", "template_without_input", "enable_thinking", "system", "max_prompt", "max_answer")
"""Settings of the data that are about a question and its answer."""
OF_IDS = ("padding", "labels_ahead", "other_labels")
"""Settings of rows of token ids."""
SHORTENED = "shorten is of questions and answers"


def unread(objective: str) -> dict[str, str]:
    """The settings of the data that an objective's rows have no use for, and why."""
    if objective in COMPARED:
        return dict.fromkeys(OF_IDS, f"is of rows of token ids, which {objective} does not read")
    if objective != "classification":
        return {}
    of_tokens = dict.fromkeys(("labels_ahead", "other_labels"), "has no effect: a label is of a text, and of no token")
    return {**dict.fromkeys((*ASKED, "train_on", "roles"), f"has no effect: {JUDGED}"), **of_tokens}


JUDGED = "texts are judged as they stand, without a prompt"


def preferences(recipe: Recipe) -> Iterator[Finding]:
    """Settings that do not go with learning from preferences."""
    train = recipe.train
    if train.objective == "robust" and train.label_smoothing >= 0.5:
        yield "train.label_smoothing", "train.objective", LESS_THAN_HALF
    for name in ("train", "eval") if train.objective == "kto" else ():
        if (getattr(recipe, name).batch_size or 2 * recipe.parallel.data) // recipe.parallel.data % 2:
            yield f"{name}.batch_size", "train.objective", f"kto: {EXCHANGED}"
    if train.objective in JUDGING and recipe.adapter.method != "none" and not named(recipe.adapter.method).targeted:
        yield "adapter.method", "train.objective", f"{recipe.adapter.method} {NO_HEAD}; expected lora, for one"
    if train.reference == ADAPTERS_OFF and recipe.adapter.method == "none":
        yield "adapter.method", "train.reference", f"{ADAPTERS_OFF}: there is no adapter to switch off"
    if train.reference == PRECOMPUTE and recipe.data.streaming:
        yield "data.streaming", "train.reference", f"{PRECOMPUTE} reads the data beforehand; leave it out"


def evaluation(recipe: Recipe) -> Iterator[Finding]:
    """Evaluation settings that need data, metrics or a schedule."""
    evaluation, data = recipe.eval, recipe.data
    if data.eval and data.eval_fraction:
        yield "data.eval_fraction", "data.eval", "has no effect beside data.eval; keep one of them"
    if data.eval_fraction and not data.train:
        yield "data.eval_fraction", "data.train", "takes rows out of data.train, which is missing"
    for name in ("eval_format", "eval_columns", "eval_rows"):
        if getattr(data, name) is not None and not (data.eval or data.test):
            yield f"data.{name}", "data.eval", "is about the files of data.eval and data.test, which are missing"
        elif name != "eval_rows" and getattr(data, name) is not None and data.eval_fraction:
            yield f"data.{name}", "data.eval_fraction", "rows held out of data.train are in its format"
    yield from evaluation_rules.problems(evaluation, bool(data.eval or data.eval_fraction))
    yield from evaluation_rules.unmeasured(evaluation, recipe.train.objective)


def generation(recipe: Recipe) -> Iterator[Finding]:
    """Settings of sampling without sampling, of beams without beams, and of answers where there are none."""
    settings = recipe.generation
    if recipe.train.objective in JUDGING:
        for name in sorted(settings.model_fields_set - {"seed"}):  # which a finished recipe has in any case
            if given(settings, name):
                yield f"generation.{name}", "train.objective", evaluation_rules.NO_ANSWERS
        return
    beams = settings.num_beams is None or settings.num_beams > 1  # the base may have some
    for names, key, needed in (
        (() if settings.do_sample else DRAWN, "do_sample", "do_sample: true"),
        (() if beams else OF_BEAMS, "num_beams", "num_beams above 1"),
    ):
        for name in names:
            if is_missed(name, getattr(settings, name)) and given(settings, name):
                yield f"generation.{name}", f"generation.{key}", f"has no effect without {needed}"


def data(recipe: Recipe) -> Iterator[Finding]:
    """Row lengths, padding and templates."""
    settings = recipe.data
    for name in ("max_prompt", "max_answer"):
        if getattr(settings, name) is not None:
            for other, value in (("train_on", "all"), ("too_long", "shorten")):
                if getattr(settings, other) == value:
                    yield f"data.{name}", f"data.{other}", f"does not go with data.{other}: {value}"
    if settings.padding_ends and settings.padding is None:
        yield "data.padding_ends", "data.padding", "has no effect without data.padding"
    if settings.buckets is not None:
        if settings.packing != "buckets":
            yield "data.buckets", "data.packing", f"has no effect with data.packing: {settings.packing}"
        if sorted(set(settings.buckets)) != settings.buckets:
            yield "data.buckets", "", "expected rising lengths, such as [128, 256, 512]"
        elif settings.buckets[-1] != settings.max_length:
            why = f"the longest must be data.max_length ({settings.max_length})"
            yield "data.buckets", "data.max_length", why
    if settings.too_long == "drop" and (settings.min_length or 0) > settings.max_length:
        yield "data.min_length", "data.max_length", f"{settings.max_length} and data.too_long: drop leave nothing"
    for name, path in (("mix", "train"), ("rows", "train"), ("eval_rows", "eval"), ("eval_rows", "test")):
        count, paths = len(getattr(settings, name) or []), len(getattr(settings, path) or [])
        fits = count in (0, paths) or (name != "mix" and count == 1) or (path != "train" and not paths)
        if not fits:
            what = "weights" if name == "mix" else "parts"
            yield f"data.{name}", f"data.{path}", f"{count} {what} for {paths} paths in data.{path}"
    paths = {name: getattr(settings, name) or [] for name in ("train", "eval", "test")}
    every = {f"data.{name}.{index}": path for name in paths for index, path in enumerate(paths[name])}
    for at, reading in {"data": settings, **every}.items():
        for name, other, message in prompts(reading) if isinstance(reading, Reading) else ():
            yield f"{at}.{name}", f"{at}.{other}", message
        if recipe.train.objective in COMPARED and getattr(reading, "train_on", "") == "all":
            yield f"{at}.train_on", "train.objective", f"{recipe.train.objective} compares last answers alone"
        for name, why in unread(recipe.train.objective).items() if isinstance(reading, Reading) else ():
            if given(reading, name):
                yield f"{at}.{name}", "train.objective", why
        if recipe.train.objective == "classification" and getattr(reading, "too_long", "") == "shorten":
            yield f"{at}.too_long", "train.objective", f"{SHORTENED}: {JUDGED}"
    asked = settings.eval_format or settings.format
    measured = settings.eval or settings.eval_fraction or settings.test
    if measured and asked in WITHOUT_QUESTIONS and (written := recipe.eval.written):
        key = "data.eval_format" if settings.eval_format else "data.format"
        yield "eval.metrics", key, f"{', '.join(written)} compare answers to questions, and {asked} rows hold none"


def prompts(settings: Reading) -> Iterator[tuple[str, str, str]]:
    """(setting, the other one, what is wrong) of how rows become prompts."""
    written = settings.template is not None and not is_jinja(settings.template)
    for name in ("template", "template_without_input"):
        text = getattr(settings, name)
        if written and text is not None and "{prompt}" not in text:
            yield name, name, "the text must hold {prompt}, where the question goes"
    if settings.template_without_input is not None and not written:
        yield "template_without_input", "template", "belongs to a template that is a text with {prompt}"
    if written and settings.enable_thinking is not None:
        yield "enable_thinking", "template", "a text has no such switch; a chat template may have one"
    if written and settings.system is not None and "{system}" not in settings.template:
        yield "system", "template", "the text has no {system}, where the system message goes"
    for name in OF_IDS:
        value = getattr(settings, name)
        if value is not None and value is not False and settings.format not in ("auto", "mindrecord", "tokens"):
            yield name, "format", f"is of rows of token ids, which {settings.format} rows are not"
    if settings.format not in WITHOUT_QUESTIONS:
        return
    for name in ASKED:
        if getattr(settings, name) is not None:
            yield name, "format", f"{settings.format} rows have no question that it could go with"
    if settings.roles:
        yield "roles", "format", f"{settings.format} rows hold no messages"
    if settings.too_long == "shorten":
        yield "too_long", "format", f"{SHORTENED}, which {settings.format} rows do not hold"
    # of a text everything is learnt, so "all" says what happens; of ids what their own labels say
    if settings.train_on in {"text": ("last",), "segments": ("last",), "tokens": ("last", "all")}[settings.format]:
        yield "train_on", "format", f"has no effect on {settings.format} rows"


def streaming(recipe: Recipe) -> Iterator[Finding]:
    """What cannot be known of data that is tokenised while it is used."""
    settings = recipe.data
    if not settings.streaming:
        if given(recipe.data, "stream_window"):
            yield "data.stream_window", "data.streaming", "has no effect without data.streaming: true"
        return
    whole = {
        "eval_fraction": "rows that stream cannot be divided; give data.eval a file of its own",
        "mix": "streaming data cannot be mixed",
        "rows": "files stream as a whole",
        "drop_last": STEP_PER_WINDOW,
        "deduplicate": "samples that stream cannot be compared",
    }
    for name, why in whole.items():
        if getattr(settings, name):
            yield f"data.{name}", "data.streaming", why
    if settings.packing == "buckets" and settings.buckets is None:
        yield (
            "data.buckets",
            "data.packing data.streaming data.max_length",
            f"streaming cannot choose the lengths by the data; give them, such as "
            f"[{settings.max_length // 4}, {settings.max_length // 2}, {settings.max_length}]",
        )
    unknown = "how long an epoch is shows only at its end"
    if recipe.train.steps is None:
        yield "train.steps", "train.epochs data.streaming", f"is needed with data.streaming: {unknown}"
    if recipe.eval.every_epochs is not None:
        yield "eval.every_epochs", "data.streaming", f"{unknown} when data streams; set eval.every_steps"


def model(recipe: Recipe) -> Iterator[Finding]:
    """Random weights and adapters."""
    if recipe.model.from_scratch and recipe.adapter.method != "none":
        yield (
            "model.from_scratch",
            "adapter.method",
            f"an adapter ({recipe.adapter.method}) on random weights learns nothing useful; set adapter.method: none",
        )
    elif recipe.model.from_scratch and recipe.adapter.trained:
        yield "adapter.trained", "model.from_scratch", "random weights have to be trained, all of them"
    if recipe.output.force and recipe.train.resume:
        yield "output.force", "train.resume", "deletes the run that train.resume would go on with; keep one"
    if recipe.output.merged and (reason := getattr(named(recipe.adapter.method), "unmergeable", "")):
        yield "output.merged", "adapter.method", f"{recipe.adapter.method} cannot be merged into the weights: {reason}"
    if recipe.output.merged and recipe.adapter.method == "none":
        yield "output.merged", "adapter.method", "has no effect without an adapter"


def packed(recipe: Recipe) -> Iterator[Finding]:
    """Frozen weights in 8 or 4 bits."""
    section = recipe.model.quantization
    if section.type is None:
        for name in ("block", "double", "skip"):
            if given(section, name):
                yield f"model.quantization.{name}", "", "has no effect without model.quantization.type"
        return
    try:
        section.settings()
    except InputError as error:
        name = next((name for name in ("block", "double") if name in str(error)), "type")
        yield f"model.quantization.{name}", "model.quantization.type", str(error)
    if section.type == "int8" and given(section, "block"):
        yield "model.quantization.block", "model.quantization.type", "has no effect with int8, which goes by row"
    if recipe.model.from_scratch:
        yield "model.quantization", "model.from_scratch", "random weights are trained, and packed ones cannot be"
    elif recipe.adapter.method == "none":
        yield "model.quantization", "adapter.method", f"weights in {section.type} cannot be trained; choose an adapter"


def room(recipe: Recipe, base: Config) -> int:
    """Tokens that a row may have: the model's context without virtual tokens."""
    settings = settings_of(recipe)
    return base.dims.context - (0 if settings is None else settings.position_offset)


def cells(recipe: Recipe, base: Config) -> Iterator[Finding]:
    """Names of weights, cells, layers and tokens that a model lacks, by its config.json, as the run says it."""
    names = list(base.shapes())
    for pattern in getattr(recipe.adapter, "trained", None) or ():
        if not names_like(pattern, names):
            yield "adapter.trained", "model.path", f"{pattern!r} matches no weight{nearest(pattern, names)}"
    settings = settings_of(recipe)
    if settings is None or not settings.targeted or any(settings.problems()):
        return
    try:
        check_names(MetaModel(base), settings)
    except InputError as error:
        for problem in error.listed or (str(error),):
            name, _, message = problem.partition(": ")
            key = name if name in settings.__dataclass_fields__ else "method"
            others = "adapter.method model.path model.config " + " ".join(f"adapter.{one}" for one in TARGETS)
            yield f"adapter.{key}", others, message


def context(recipe: Recipe, base: Config) -> Iterator[Finding]:
    """What a model's own sizes rule out, by its config.json, without loading the model."""
    limit, rest = base.dims.context, room(recipe, base)
    virtual = limit - rest
    if recipe.data.max_length > rest + 1:  # one more is predicted, and read by none
        sum_ = f"{recipe.data.max_length}" + (f" + {virtual} virtual tokens" if virtual else "")
        yield (
            "data.max_length",
            "model.path model.config adapter.length",
            f"{sum_} is longer than the model's context of {limit} tokens",
        )
    if recipe.model.quantization.type is not None:
        try:
            recipe.model.quantization.settings().places(base)
        except InputError as error:
            yield "model.quantization", "model.quantization.type model.path", str(error)
    # evaluations' own limit gives way to a small context by itself
    if recipe.generation.max_new_tokens is not None and recipe.generation.max_new_tokens + virtual >= limit:
        yield (
            "generation.max_new_tokens",
            "model.path model.config adapter.length",
            f"{recipe.generation.max_new_tokens} leave no room for a question in the model's context of {limit} tokens",
        )


RULES = (adapter, length, restarts, batches, optimizer, preferences)
RULES += (evaluation, generation, data, streaming, model, packed)
