"""MindFormers' ``Trainer``, from names and paths or from objects. ``pet.Trainer`` makes one where it gets no batches.

Trainer(model="glm_tiny", pet_method="lora", args=…, …)     names and paths become a recipe, for `pet.train.run`
Trainer(model=model_cell, train_dataset=dataset, …)         objects go to the core, with a recipe's settings
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.saving import load_adapter
from model_zoo.atomic import read_text
from model_zoo.errors import InputError, similar
from pet.auto import AutoModel, AutoTokenizer
from pet.compat import objects
from pet.compat.ckpt.doors import holds_weights, is_ckpt
from pet.compat.mindformers.callbacks import told
from pet.compat.mindformers.generation_defaults import check_base, give_defaults
from pet.compat.mindformers.logs import logger, report
from pet.compat.mindformers.metrics import answered
from pet.compat.mindformers.presets import split_name
from pet.compat.mindformers.request import Request, in_a_list, is_path
from pet.compat.mindformers.script_config import MindFormerConfig
from pet.compat.mindformers.sizes import tokenizer_of
from pet.compat.mindformers.training_arguments import TrainingArguments
from pet.compat.mindformers.watching import Watched, way_of
from pet.compat.results import bring_checkpoint, find_weights, last_run
from pet.compat.translation import ANY_LAYOUT, refused, same
from pet.data.formats import read_rows
from pet.names import bundled_models
from pet.recipe.callback_names import is_named
from pet.recipe.loading import load
from pet.recipe.translation import Ignored, Translation, is_off
from pet.recipe.trl_names import hint
from pet.train.evaluate_run import evaluate
from pet.train.objectives import make_objective
from pet.train.prepare import load_tokenizer
from pet.train.run import save_strategies, start

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pet.keywords import RequestSettings

log = logging.getLogger("pet")

ARGUMENTS = list(inspect.signature(Request).parameters)
OF_FILES = ("auto_trans_ckpt", "transform_process_num", "src_strategy")
"""Arguments of every call of MindFormers' trainer that say how a checkpoint's files are divided."""
UNLESS_OFF = (*OF_FILES, "ignore_data_skip", "data_skip_steps")
"""Those that count as not given where they are off."""


def _eval_callbacks(t: Translation, name: str, value: Any) -> None:
    if not all(map(is_named, in_a_list(value))):
        t.refuse(name, "an evaluation has no callbacks of its own; give callbacks=")


def _is_checkpoint(value: Any) -> bool:
    """Whether an argument is a checkpoint, an adapter or a run, or a switch for this trainer's own, and no data."""
    if not isinstance(value, (str, os.PathLike)):
        return isinstance(value, bool)
    return str(value) in bundled_models() or holds_weights(value) or (Path(value) / "summary.json").is_file()


THEIRS = {
    "model_name": Ignored("the model says itself what it is"),
    "save_config": Ignored("the run directory holds the settings"),
    "eval_callbacks": _eval_callbacks,
    "wrapper": refused("the step is this library's own; args has what changes it: max_grad_norm …"),
    "compute_metrics": refused("loss and perplexity are measured; eval.metrics of a recipe asks for more"),
    **same(refused("only text generation is supported"), "image_processor audio_processor"),
    "reset_model": refused("every trainer has one model"),
}
"""Arguments of MindFormers' trainer that this one has not."""


def _is_file(value: Any) -> bool:
    """Whether settings are those of a job file."""
    return isinstance(value, MindFormerConfig) or (is_path(value) and os.fspath(value).endswith((".yaml", ".yml")))


def _placed(arguments, model: Any, args: Any, task: Any = None, third: Any = None, *more: Any) -> Any:
    """Puts MindFormers' first positional arguments among those by name, and gives the model."""
    if more:
        raise InputError(
            "Trainer: give what follows the model by name: its order differs between MindFormers' releases"
        )
    for name, value in {"args": args, "task": task}.items():
        if value is not None:
            arguments[name] = _once(name, arguments.get(name), value)
    return _once("model", model, third)


def _once(name: str, by_name: Any, by_place: Any) -> Any:
    if by_name is not None and by_place is not None:
        raise InputError(f"Trainer: {name} is given twice")
    return by_place if by_name is None else by_name


class Trainer(Watched, Request):
    """Trains, tunes, measures and asks a model.

    Args:
        model: a bundled base, checkpoint directory or preset name, also ``X_lora`` (with its LoRA settings); or a cell;
            or a `MindFormerConfig`, which stands for ``args``.
        task: ``text_generation``, or ``text_classification`` of rows with a label.
        pet_method: ``lora``, ``prefix``, ``ptuning2``, ``adapter``, …; empty trains every weight, unless the recipe or
            the model's name says otherwise.
        args: `TrainingArguments`, a dictionary of the same names, or the path of a recipe (or MindFormers YAML file),
            or such a file that was read as a `MindFormerConfig`.
        recipe: the path of a recipe, whose settings `args` then overrides.
        train_dataset, eval_dataset: files or directories, a MindSpore Dataset of ``input_ids``, a list of batches, or
            an indexable dataset of dictionaries.
        model_name: the model, where none is given; of one that is an object, whose tokenizer it has.
        tokenizer: an object, or the place it is read from. Default: the model's own.
        callbacks: one or several of `pet.train.callbacks`, or their names.
        data_collator: from a list of an indexable dataset's samples to a batch.
        do_eval: False measures nothing while training; True wants an eval_dataset. Default: where there is one.
        load_checkpoint: a checkpoint, adapter or run directory to start from; or a MindFormers ``.ckpt`` file.
        forward_step: see `pet.train.trainer.Trainer`.
        optimizers: an optimizer of MindSpore's kind over the parameters of a model that is an object. This library's
            own runs, with its settings and its learning rates.
        options: dotted keys of a MindFormers file with the values to take instead of the file's.

    Raises:
        InputError: an unknown task or method, settings that do not exist or contradict each other.
    """

    def __init__(self, first=None, *more, model=None, **arguments: Unpack[RequestSettings]):
        """``first`` is the model; or, as in MindFormers, the args, behind which the task and the model follow."""
        if more or _is_file(first) or isinstance(first, (TrainingArguments, Mapping)):
            model = _placed(arguments, model, first, *more)
        elif first is not None:
            model = _once("model", model, first)
        own = {name: value for name, value in arguments.items() if name in ARGUMENTS}
        others = [name for name, value in arguments.items() if not (name in own or name in THEIRS or value is None)]
        if others:
            divides = "; its set_parallel_config divides the work" if "parallel" in str(others) else ""
            raise InputError(
                f"Trainer: {', '.join(others)}: settings of a trainer over batches, which needs train_data; or put "
                f"them in args={similar(others[0], ARGUMENTS)}{''.join(map(hint, others))}{divides}"
            )
        self.model_name = arguments.get("model_name") if model is None or not is_path(model) else None
        said = Translation("Trainer")
        kept = [name for name in THEIRS if name != "model_name" or self.model_name is None]
        said.apply({name: arguments[name] for name in kept if not is_off(arguments.get(name))}, THEIRS)
        said.finish()
        if model is None and own.get("recipe") is None and not _is_file(own.get("args")):
            model = self.model_name
        super().__init__(model, **own)
        self.named_callbacks += in_a_list(arguments.get("eval_callbacks"))
        self.result: Path | None = None
        self._loaded: tuple | None = None

    # What they do -----------------------------------------------------------------------------------------------------

    def train(self, train_checkpoint=None, resume=None, **changes) -> dict[str, Any]:
        """Trains. A preset's name starts from random weights; a base with a ``pet_method`` is tuned.

        Args:
            train_checkpoint: start from this directory, or with True from the last result, or that in ``output_dir``.
            resume: go on with the run in ``output_dir``, or with that in the given run or checkpoint directory.
            changes: ``train_dataset``, ``eval_dataset``, ``do_eval``, ``resume_training`` … for this call.

        Returns:
            What summary.json holds.
        """
        # MindFormers' run_mindformer.py calls it for both
        tunes = isinstance(self.base_recipe, MindFormerConfig) and self.base_recipe.run_mode == "finetune"
        return self._run("finetune" if tunes else "train", train_checkpoint, resume, changes)

    def finetune(self, finetune_checkpoint=None, resume=None, **changes) -> dict[str, Any]:
        """Tunes a base; the arguments are those of `train`.

        Raises:
            InputError: a size was named, which has no weights; the message says where they can come from.
        """
        return self._run("finetune", finetune_checkpoint, resume, changes)

    def evaluate(self, eval_dataset=None, eval_checkpoint=None, **changes) -> dict[str, float]:
        """Measures the model as it is: loss and perplexity, for GLM also ROUGE and BLEU; or answers (`answered`).

        Args:
            eval_dataset: instead of the trainer's. Up to release 1.0 the checkpoint comes first, and may do so here.
            eval_checkpoint: a checkpoint, adapter or run directory; by default what this trainer has trained.
        """
        if eval_checkpoint is None and _is_checkpoint(eval_dataset):
            eval_dataset, eval_checkpoint = None, eval_dataset
        self._change({"eval_dataset": eval_dataset, **changes})
        if self.eval_dataset is None and self.base_recipe is None:
            raise InputError("Trainer.evaluate: eval_dataset is missing; there is nothing to measure on")
        model, adapter = self._weights(eval_checkpoint)
        recipe = self.recipe("evaluate", model)
        adapter = self._in_the_file(recipe, model, adapter)
        self.put_written_metrics(recipe)
        found = answered(self, recipe, eval_checkpoint)
        if found is None and self.in_memory():
            return objects.measure(recipe, self.objects(), adapter)
        found = found or evaluate(recipe, model=model, adapter=adapter)
        if isinstance(self.base_recipe, MindFormerConfig):
            logger.info("evaluation: %s", found)
        return found

    def predict(
        self, first=None, /, predict_checkpoint=None, *, input_data=None, **generation
    ) -> list[dict[str, list[str]]]:
        """One text or several with what the model continues them with, by MindFormers' ``pipeline``. A model that a run
        of this library has tuned on questions is asked in their prompt, and its answers stand alone. One that judges
        texts gives their labels.

        Args:
            first: `input_data`; where that is given by name, `predict_checkpoint`, which MindFormers has first.
            input_data: a text, a list of texts, or a file with one on each line.
            predict_checkpoint: a checkpoint, adapter or run directory; by default what this trainer has trained.
            generation: settings of ``generate``: ``max_length``, ``max_new_tokens``, ``top_k``, ``do_sample`` …;
                and ``batch_size``, the number of texts that are continued together and whose results stand together.
        """
        from pet.compat.mindformers.asking import TextClassificationPipeline, TextGenerationPipeline

        if input_data is None:
            input_data = first
        else:
            predict_checkpoint = _once("predict_checkpoint", predict_checkpoint, first)
        generation = self._change_by_call(generation)
        if input_data is None:
            raise InputError("Trainer.predict: input_data is missing; run_mindformer.py takes it by --predict_data")
        if is_path(input_data) and not isinstance(input_data, (list, tuple)) and os.path.isfile(input_data):
            lines = read_text(input_data, "a file of questions").split("\n")
            input_data = [line for line in lines if line.strip()]
        model, tokenizer = self.model_and_tokenizer(predict_checkpoint)
        together = {"batch_size": generation.pop("batch_size")} if "batch_size" in generation else {}
        if judges := getattr(model, "scoring", False):
            answers = TextClassificationPipeline(model, tokenizer, **together, **generation)(input_data)
        else:
            chat = tokenizer.chats and self._tuned_on_questions(predict_checkpoint)
            answers = TextGenerationPipeline(model, tokenizer, chat=chat, **together)(input_data, **generation)
        if isinstance(self.base_recipe, MindFormerConfig):
            task = "classification" if judges else "generation"
            report(answers, self.base_recipe.save_file or f"text_{task}_result.txt")
        return answers

    def export(self, *arguments, **settings) -> None:
        """Raises InputError: MindIR is not written here."""
        raise InputError("run_mode: export writes MindIR in MindFormers; see pet export and pet merge")

    def _tuned_on_questions(self, checkpoint) -> bool:
        """Whether the rows of the run that made what is asked have questions: it was tuned in the prompt of these."""
        own = checkpoint in (None, True)
        run, paths, how = Path((self.result if own else checkpoint) or "."), self.train_dataset if own else None, {}
        for place in (run, run.parent) if self.result or not own else ():
            if (place / "recipe.yaml").is_file():  # there is none beside a model that was an object
                data = load(place / "recipe.yaml", check_files=False).data
                paths, how = data.train, {"format": data.format, "columns": data.columns, "roles": data.roles}
                break
        if not is_path(paths) or (own and self.result is None):
            return False
        with contextlib.suppress(InputError, OSError):  # they may be gone
            return any(row.messages for row in read_rows(paths, limit=1, **how))
        return False

    # Runs -------------------------------------------------------------------------------------------------------------

    def _change(self, changes: dict[str, Any]) -> None:
        """Arguments that MindFormers takes at each call."""
        for name, value in self._change_by_call(changes).items():
            if name not in ("train_dataset", "eval_dataset", "do_eval", "resume_training", "resume_from_checkpoint"):
                raise InputError(f"Trainer: {name!r} is no argument of this call")
            if not name.startswith("resume"):
                setattr(self, name, value)
            elif not isinstance(self.base_recipe, MindFormerConfig):
                self.arguments[name] = value
            else:
                place = name == "resume_from_checkpoint" and isinstance(value, str)
                self.options["load_checkpoint" if place else "resume_training"] = value

    def _change_by_call(self, given: dict[str, Any]) -> dict[str, Any]:
        """Takes what every call may say of a checkpoint's layout; returns the others, as far as somebody gave them."""
        self._take_config()
        left = {name: one for name, one in given.items() if not (one is None or (name in UNLESS_OFF and not one))}
        if strategy := left.pop("src_strategy", None):
            self.options["src_strategy_path_or_dir"] = strategy
        for name in OF_FILES:
            if left.pop(name, None):
                log.warning("%s: ignored: %s", name, ANY_LAYOUT.why)
        return left

    def _run(self, mode: str, checkpoint, resume, changes: dict[str, Any]) -> dict[str, Any]:
        self._change(changes)
        if isinstance(self.base_recipe, MindFormerConfig) and checkpoint and checkpoint is not True:
            self.options["load_checkpoint"], checkpoint = os.fspath(checkpoint), None
        if self.do_eval and self.eval_dataset is None and self.base_recipe is None:
            raise InputError("Trainer: do_eval needs an eval_dataset")
        if self.train_dataset is None and self.base_recipe is None:
            raise InputError(f"Trainer.{mode}: train_dataset is missing")
        checkpoint, resume = way_of(self.arguments, checkpoint, resume)
        resume = self.load_checkpoint if resume is True and self.load_checkpoint else resume
        model, adapter = self._weights(checkpoint, resumed=bool(resume))
        recipe = self.recipe(mode, model)
        resume = recipe.train.resume if resume is None else resume
        recipe.train.resume = bool(resume)
        if resume and resume is not True:
            bring_checkpoint(resume, recipe.output.dir)
        if adapter is not None:
            if recipe.adapter.method == "none":
                raise InputError(f"Trainer.{mode}: {adapter} is an adapter; say by pet_method= which method goes on")
            recipe.adapter.load = str(adapter)
        output = Path(recipe.output.dir).resolve()
        if not resume and any(output == source or output in source.parents for source in self._sources(recipe)):
            recipe.output.dir = f"{output}_{mode}"  # what a run starts from must outlast it
        # scripts of the other systems write over their last run; so do they here, unless they say otherwise
        if not recipe.train.resume and self.arguments.get("overwrite_output_dir") is not False:
            recipe.output.force = True
        self._loaded = None
        if recipe.output.only_save_strategy and self.in_memory() and hasattr(self.model, "config"):
            return save_strategies(recipe, config=self.model.config.to_dict())
        if self.in_memory():
            check_base(self.model, mode)
            summary = objects.run(recipe, self.objects(), callbacks=told(self.callbacks))
        else:
            objective = make_objective(recipe.train, self.forward_step)
            summary = start(recipe, callbacks=told(self.callbacks), objective=objective)
        self.result = Path(recipe.output.dir)
        return summary

    def _sources(self, recipe) -> list[Path]:
        """Where the weights lie that a run starts from."""
        given = [self.result, getattr(recipe.adapter, "load", None), None if self.in_memory() else recipe.model.path]
        return [Path(place).expanduser().resolve() for place in given if place]

    def _weights(self, checkpoint=None, resumed: bool = False) -> tuple[str | None, Path | None]:
        """(checkpoint directory, adapter directory) that a call starts from; None where it is the trainer's own.

        A model that is an object is given the weights at once.
        """
        if checkpoint is True:
            checkpoint = self.result or last_run(self.arguments.get("output_dir") or self._said.output_dir or "output")
        if not checkpoint:
            checkpoint = self.result or (None if resumed else self.load_checkpoint)
        is_object = self.model is not None and not is_path(self.model)
        if checkpoint is None or (is_object and checkpoint == self.result):
            return None, None
        found = self.from_ckpt(checkpoint) if is_ckpt(checkpoint) else find_weights(checkpoint)
        if not is_object:
            return found
        objects.put_weights(self.model, *found)
        return None, None

    def _in_the_file(self, recipe, model, adapter):
        """The adapter of a call that says no checkpoint: the one among the weights that a MindFormers file names."""
        says = model is None and adapter is None and self.base_recipe is not None
        return getattr(recipe.adapter, "load", None) if says and self.job_file()[0] == "mindformers" else adapter

    def model_and_tokenizer(self, checkpoint=None, asks: bool = True) -> tuple:
        """Of a call's checkpoint, or of the trainer's own weights. A model that is not asked may have no tokenizer."""
        if not is_path(self.model) and self.model is not None:
            kind, _, values = self.job_file()
            named = (split_name(self.model_name)[0], tokenizer_of(kind, values))
            places = (self.tokenizer, getattr(self.model, "loaded_from", None), *named)
            tokenizer = next((place for place in places if place is not None), None)
            if tokenizer is None and asks:
                raise InputError("Trainer.predict: a model that is an object, of no checkpoint, needs tokenizer=")
            self._weights(checkpoint)
            return self.model, AutoTokenizer.from_pretrained(tokenizer) if is_path(tokenizer) else tokenizer
        model, adapter = self._weights(checkpoint)
        recipe = self.recipe("predict", model)
        adapter = self._in_the_file(recipe, model, adapter)
        key = (model or recipe.model.path, adapter)
        if self._loaded is None or self._loaded[0] != key:
            loaded = AutoModel.from_pretrained(key[0])
            if adapter is not None:
                load_adapter(loaded, adapter)
            tokenizer = self.tokenizer
            if tokenizer is None or is_path(tokenizer):
                tokenizer = load_tokenizer(recipe, key[0])
            give_defaults(loaded, self.generation_settings(), key[0])
            self._loaded = key, loaded, tokenizer
        return self._loaded[1:]
