"""``pet.Trainer``: the trainer that a script makes, from names and paths or from objects.

    Trainer(model_cell, batches, steps=20)                      the core's own trainer, as it is
    Trainer(model="glm_tiny", pet_method="lora", args=…, …)     names and paths become a recipe, for `pet.train.run`
    Trainer(model=model_cell, train_dataset=dataset, …)         objects go to the core, with a recipe's settings

The second and third form take MindFormers' arguments.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.compat.mindformers_parallel import translate_parallel
from pet.compat.presets import split_name
from pet.compat.training_arguments import TrainingArguments, translate_arguments
from pet.compat.translation import Translation, method_of
from pet.results import bring_checkpoint, find_weights

log = logging.getLogger("pet")

TASKS = ("text_generation", "general")


def is_path(value: Any) -> bool:
    """Whether data or a model is given by its place in the file system, or by name."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(one, (str, os.PathLike)) for one in value)
    return isinstance(value, (str, os.PathLike))


class Trainer:
    """Trains, tunes, measures and asks a model.

    Args:
        model: a bundled base, checkpoint directory or preset name, also ``X_lora`` (with its LoRA settings); or a cell.
        train_data, eval_data: data for `pet.train.trainer.Trainer`: a loader or a list of batches. Given these, or any
            setting of that class in ``settings``, this object is that trainer.
        task: ``text_generation``.
        pet_method: ``lora``, ``prefix``, ``ptuning2``, ``adapter``, …; empty trains every weight, unless the recipe or
            the model's name says otherwise.
        args: `TrainingArguments`, a dictionary of the same names, or the path of a recipe (or MindFormers YAML file).
        recipe: the path of a recipe, whose settings `args` then overrides.
        train_dataset, eval_dataset: files or directories, a MindSpore Dataset of ``input_ids``, a list of batches, or
            an indexable dataset of dictionaries.
        tokenizer: an object, or the place it is read from. Default: the model's own.
        callbacks: callbacks of `pet.train.callbacks`, or their names.
        data_collator: from a list of an indexable dataset's samples to a batch.
        do_eval: False measures nothing while training; True wants an eval_dataset. Default: where there is one.
        load_checkpoint: a checkpoint, adapter or run directory to start from.
        forward_step: see `pet.train.trainer.Trainer`.

    Raises:
        InputError: an unknown task or method, settings that do not exist or contradict each other.
    """

    def __init__(
        self,
        model=None,
        train_data=None,
        eval_data=None,
        *,
        task: str = "text_generation",
        pet_method: str = "",
        args: TrainingArguments | Mapping[str, Any] | str | os.PathLike | None = None,
        recipe: str | os.PathLike | None = None,
        train_dataset=None,
        eval_dataset=None,
        tokenizer=None,
        callbacks: Iterable = (),
        data_collator=None,
        do_eval: bool | None = None,
        load_checkpoint: str | os.PathLike | None = None,
        forward_step=None,
        **settings,
    ):
        self.core = None
        if train_data is not None or settings:
            self.core = _core(model, train_data, eval_data, callbacks, forward_step, settings)
            return
        if str(task).replace("-", "_") not in TASKS:
            raise InputError(f"Trainer: task {task!r} is not known; supported: text_generation")
        if args is not None and not isinstance(args, (TrainingArguments, Mapping)):
            args, recipe = None, args
        self.arguments: dict[str, Any] = dict(args.given if isinstance(args, TrainingArguments) else args or {})
        self.base_recipe = recipe
        self.model, self.method_settings = split_name(model)
        self.pet_method = method_of(pet_method) if pet_method else ""
        self.train_dataset, self.eval_dataset, self.tokenizer = train_dataset, eval_dataset, tokenizer
        self.callbacks, self.data_collator, self.forward_step = list(callbacks or ()), data_collator, forward_step
        self.do_eval = do_eval if do_eval is not None else self.arguments.get("do_eval")
        self.load_checkpoint = load_checkpoint or self.arguments.get("load_checkpoint")
        self.layout: dict[str, Any] = {}
        self.recompute: bool | None = None
        self.result: Path | None = None
        self._loaded: tuple | None = None
        if model is None and recipe is None:
            raise InputError("Trainer: model is missing; give a bundled base's name, a checkpoint directory or a cell")

    def __getattr__(self, name: str) -> Any:
        core = self.__dict__.get("core")
        if core is None:
            raise AttributeError(f"Trainer has no {name!r}")
        return getattr(core, name)

    # What MindFormers' scripts set before they start ------------------------------------------------------------------

    def set_parallel_config(
        self, data_parallel: int = 1, model_parallel: int = 1, pipeline_stage: int = 1, micro_batch_num: int = 1, **more
    ) -> None:
        """Divides the work: ``data_parallel × model_parallel × pipeline_stage`` processes.

        Args:
            data_parallel: copies of the model; ``batch_size`` is that of each.
            model_parallel: processes that share every layer's matrices.
            pipeline_stage: stages of consecutive layers.
            micro_batch_num: pieces of ``batch_size`` rows in a pipeline's step.
            more: ``optimizer_shard`` (ZeRO stage 1), and MindFormers' other names.
        """
        self.layout = {
            "data_parallel": data_parallel,
            "model_parallel": model_parallel,
            "pipeline_stage": pipeline_stage,
            "micro_batch_num": micro_batch_num,
            **more,
        }
        translate_parallel(self.layout).finish()

    def set_recompute_config(self, recompute: bool = True, **more) -> None:
        """Computes activations again in the backward pass instead of keeping them; finer choices are not made here."""
        self.recompute = bool(recompute)
        if any(more.values()):
            log.warning("recompute_config: %s: layers are recomputed as a whole or not at all", ", ".join(more))

    # What they do -----------------------------------------------------------------------------------------------------

    def train(self, train_checkpoint=None, resume=None, **changes) -> dict[str, Any]:
        """Trains. A preset's name starts from random weights; a base with a ``pet_method`` is tuned.

        Args:
            train_checkpoint: start from this directory, or with True from this trainer's last result.
            resume: go on with the run in ``output_dir``, or with that in the given run or checkpoint directory.
            changes: ``train_dataset``, ``eval_dataset``, ``do_eval``, ``resume_training`` … for this call.

        Returns:
            What summary.json holds.
        """
        if self.core is not None:
            return self.core.train(bool(train_checkpoint) if resume is None else resume)
        return self._run("train", train_checkpoint, resume, changes)

    def finetune(self, finetune_checkpoint=None, resume=None, **changes) -> dict[str, Any]:
        """Tunes a base that has weights; the arguments are those of `train`.

        Raises:
            InputError: there are no base weights; the message says where they can come from.
        """
        if self.core is not None:
            return self.core.train(bool(finetune_checkpoint) if resume is None else resume)
        return self._run("finetune", finetune_checkpoint, resume, changes)

    def evaluate(self, eval_dataset=None, eval_checkpoint=None, **changes) -> dict[str, float] | None:
        """Measures the model as it is: loss and perplexity, for GLM also ROUGE and BLEU of its answers to files.

        Args:
            eval_dataset: instead of the trainer's.
            eval_checkpoint: a checkpoint, adapter or run directory; by default what this trainer has trained.
        """
        if self.core is not None:
            return self.core.evaluate()
        self._change({"eval_dataset": eval_dataset, **changes})
        if self.eval_dataset is None and self.base_recipe is None:
            raise InputError("Trainer.evaluate: eval_dataset is missing; there is nothing to measure on")
        model, adapter = self._weights(eval_checkpoint)
        recipe = self.recipe("evaluate", model)
        self._written_metrics(recipe)
        if self._in_memory():
            from pet.objects import measure

            return measure(recipe, self._objects())
        from pet.train.run import evaluate

        return evaluate(recipe, model=model, adapter=adapter)

    def predict(self, input_data=None, predict_checkpoint=None, **generation) -> list[dict[str, list[str]]]:
        """The answers to one text or several, by `pet.pipeline`.

        Args:
            input_data: a text, a list of texts, or a file with one on each line.
            predict_checkpoint: a checkpoint, adapter or run directory; by default what this trainer has trained.
            generation: settings of ``generate``: ``max_length``, ``max_new_tokens``, ``top_k``, ``do_sample`` …
        """
        from pet.text_generation import TextGeneration

        if self.core is not None:
            raise InputError("Trainer.predict: a trainer over batches has no tokenizer; use model.generate or pipeline")
        if input_data is None:
            raise InputError("Trainer.predict: input_data is missing")
        if isinstance(input_data, (str, os.PathLike)) and Path(str(input_data)[:255]).is_file():
            lines = Path(input_data).read_text("utf-8-sig").splitlines()
            input_data = [line for line in lines if line.strip()]
        model, tokenizer = self._speaker(predict_checkpoint)
        return TextGeneration(model, tokenizer)(input_data, **generation)

    # The recipe -------------------------------------------------------------------------------------------------------

    def recipe(self, mode: str = "finetune", model: str | None = None):
        """The recipe that a call comes to.

        Args:
            mode: ``train``, ``finetune`` or ``evaluate``.
            model: a checkpoint in place of the trainer's model.
        """
        from pet.compat.yaml_files import load_any
        from pet.names import preset_names
        from pet.recipe.loading import from_dict

        layout = self._layout()
        translation = translate_arguments(self.arguments, copies=_rows_of(layout))
        translation.settings.update(layout.settings)
        translation.ignored.update(layout.ignored)
        translation.problems += layout.problems
        if self.recompute is not None:
            translation.put("train.recompute", self.recompute)
        if "output.dir" not in translation.settings and self.base_recipe is None:
            translation.put("output.dir", "output")
        self._put_model(translation, mode, model)
        for name, data in (("train", self.train_dataset), ("eval", self.eval_dataset)):
            if is_path(data):
                paths = data if isinstance(data, (list, tuple)) else [data]
                translation.put(f"data.{name}", [os.fspath(path) for path in paths])
        if mode != "evaluate" and self.do_eval is False:
            translation.settings["data.eval"] = None
            for key in ("eval.every_steps", "eval.every_epochs"):
                translation.settings.pop(key, None)
        if self._in_memory() and not is_path(self.eval_dataset):
            # the rules look for files; the rhythm is given to the trainer beside the recipe
            for key in ("eval.every_steps", "eval.every_epochs"):
                translation.settings.pop(key, None)
        translation.finish()
        has_files = not self._in_memory()
        if self.base_recipe is not None:
            return load_any(self.base_recipe, translation.settings, check_files=has_files)
        self._put_length(translation)
        name = str(self.arguments.get("run_name") or "trainer")
        name = self.model if isinstance(self.model, str) and os.sep not in self.model and not name else name
        if translation.get("model.path") in preset_names() and mode == "finetune":
            raise InputError(
                f"Trainer.finetune: {self.model!r} names a size, there are no base weights: give the directory of a "
                "downloaded checkpoint (model=DIR or finetune_checkpoint=DIR); train() starts from random weights"
            )
        return from_dict({}, translation.settings, name=name, check_files=has_files)

    def _put_model(self, translation: Translation, mode: str, model: str | None) -> None:
        from pet.names import preset_names

        if is_path(self.model) or model is not None:
            path = os.fspath(model or self.model)
            translation.put("model.path", path)
            if path in preset_names() and mode == "train":
                translation.put("model.from_scratch", True)
        elif self.model is not None:
            translation.put("model.path", ".")  # a cell: its weights are in memory
        if is_path(self.tokenizer):
            translation.put("model.tokenizer", os.fspath(self.tokenizer))
        if self.pet_method or self.base_recipe is None:
            method = self.pet_method or "none"
            if self.method_settings and method in ("none", self.method_settings["method"]):
                translation.put("adapter", dict(self.method_settings))
            else:
                translation.put("adapter", {"method": method})

    def _put_length(self, translation: Translation) -> None:
        """Rows as long as a small model's context; a larger one has the recipe's default length."""
        from pet.names import model_config
        from pet.recipe.data import Data
        from pet.recipe.rules import context_length

        path = translation.get("model.path")
        if "data.max_length" in translation.settings or path is None or not is_path(self.model):
            return
        try:
            context = context_length(model_config(path))
        except InputError:
            return  # loading the recipe says it better
        default = Data.model_fields["max_length"].default
        virtual = 20 if translation.get("adapter", {}).get("method") in ("prefix", "prompt", "p_tuning") else 0
        if context is not None and context < default + virtual:
            translation.put("data.max_length", max(2, context - virtual))

    def _layout(self) -> Translation:
        from pet.parallel.environment import read_job

        given, use = dict(self.layout), self.arguments.get("use_parallel")
        if use is False:
            given = {}
        if not given and (use or read_job().distributed):
            given = {"data_parallel": read_job().size}
        return translate_parallel(given, "set_parallel_config")

    # Runs -------------------------------------------------------------------------------------------------------------

    def _change(self, changes: dict[str, Any]) -> None:
        """Arguments that MindFormers takes at each call."""
        for name, value in changes.items():
            if name not in ("train_dataset", "eval_dataset", "do_eval", "resume_training", "resume_from_checkpoint"):
                raise InputError(f"Trainer: {name!r} is no argument of this call")
            if value is None:
                continue
            if name.startswith("resume"):
                self.arguments["resume_from_checkpoint"] = value
            else:
                setattr(self, name, value)

    def _run(self, mode: str, checkpoint, resume, changes: dict[str, Any]) -> dict[str, Any]:
        self._change(changes)
        if self.do_eval and self.eval_dataset is None and self.base_recipe is None:
            raise InputError("Trainer: do_eval needs an eval_dataset")
        if self.train_dataset is None and self.base_recipe is None:
            raise InputError(f"Trainer.{mode}: train_dataset is missing")
        resume = resume if resume is not None else self.arguments.get("resume_from_checkpoint")
        resume = self.load_checkpoint if resume is True and self.load_checkpoint else resume
        model, adapter = self._weights(checkpoint, resumed=bool(resume))
        recipe = self.recipe(mode, model)
        recipe.train.resume = bool(resume)
        if resume and resume is not True:
            bring_checkpoint(resume, recipe.output.dir)
        if adapter is not None:
            if recipe.adapter.method == "none":
                raise InputError(f"Trainer.{mode}: {adapter} is an adapter; say by pet_method= which method goes on")
            recipe.adapter.load = str(adapter)
        source = Path(model or adapter).resolve() if model or adapter else self.result
        output = Path(recipe.output.dir)
        if source is not None and not resume and (output == source or output in source.parents):
            recipe.output.dir = f"{output}_{mode}"  # what a run starts from must outlast it
        # scripts of the other systems write over their last run; so do they here, unless they say otherwise
        if not recipe.train.resume and self.arguments.get("overwrite_output_dir") is not False:
            recipe.output.force = True
        self._loaded = None
        if self._in_memory():
            if mode == "finetune" and getattr(self.model, "random_weights", False):
                raise InputError(
                    "Trainer.finetune: the model has random weights, there is no base to tune: make it by "
                    "from_pretrained(DIR), or call train()"
                )
            from pet.objects import run

            summary = run(recipe, self._objects(), callbacks=self.callbacks, eval_rhythm=self._rhythm())
        else:
            from pet.train.run import start

            summary = start(
                recipe, recipe.train.resume, recipe.output.force, print, self.callbacks, self.forward_step, None
            )
        self.result = Path(recipe.output.dir)
        return summary

    def _rhythm(self) -> dict[str, Any]:
        """When to evaluate on data that is no file."""
        settings = translate_arguments(self.arguments).settings
        return {key: settings[f"eval.{key}"] for key in ("every_steps", "every_epochs") if f"eval.{key}" in settings}

    def _in_memory(self) -> bool:
        """Whether anything is given as an object."""
        given = (self.model, self.train_dataset, self.eval_dataset, self.tokenizer)
        return any(value is not None and not is_path(value) for value in given)

    def _objects(self):
        from pet.objects import Objects

        return Objects(
            None if is_path(self.model) else self.model,
            None if is_path(self.tokenizer) else self.tokenizer,
            self.train_dataset,
            self.eval_dataset,
            self.data_collator,
            self.forward_step,
        )

    def _weights(self, checkpoint=None, resumed: bool = False) -> tuple[str | None, Path | None]:
        """(checkpoint directory, adapter directory) that a call starts from; None where it is the trainer's own."""
        if checkpoint is True:
            if self.result is None:
                raise InputError("Trainer: there is no result of this trainer yet; give a directory")
            checkpoint = self.result
        if not checkpoint:
            checkpoint = self.result or (None if resumed else self.load_checkpoint)
        if checkpoint is None or (self._in_memory() and checkpoint == self.result):
            return None, None
        return find_weights(checkpoint)

    def _speaker(self, checkpoint=None) -> tuple:
        from pet.auto import AutoModel, AutoTokenizer

        if not is_path(self.model) and self.model is not None:
            if self.tokenizer is None:
                raise InputError("Trainer.predict: a model that is an object needs tokenizer=")
            tokenizer = AutoTokenizer.from_pretrained(self.tokenizer) if is_path(self.tokenizer) else self.tokenizer
            return self.model, tokenizer
        model, adapter = self._weights(checkpoint)
        recipe = self.recipe("evaluate")
        key = (model or recipe.model.path, adapter)
        if self._loaded is None or self._loaded[0] != key:
            loaded = AutoModel.from_pretrained(key[0])
            if adapter is not None:
                from adapters.files import load_adapter

                load_adapter(loaded, adapter)
            tokenizer = self.tokenizer
            if tokenizer is None or is_path(tokenizer):
                tokenizer = AutoTokenizer.from_pretrained(tokenizer or recipe.model.tokenizer or key[0])
            self._loaded = key, loaded, tokenizer
        return self._loaded[1:]

    def _written_metrics(self, recipe) -> None:
        """BLEU and ROUGE for GLM, as MindFormers measures it, where nothing else is asked for."""
        from pet.names import model_config
        from pet.train.metrics import check_available

        if "metrics" in recipe.eval.model_fields_set or not is_path(self.model) or self._in_memory():
            return
        if "glm" not in str(model_config(recipe.model.path).get("model_type", "")):
            return
        wanted = ["loss", "perplexity", "rouge_1", "rouge_2", "rouge_l", "bleu"]
        try:
            check_available(wanted)
        except InputError as error:
            log.warning("%s", error)
            return
        recipe.eval.metrics = wanted


def _rows_of(layout: Translation) -> int:
    """By what a batch size of MindFormers is multiplied to be that of a recipe: it counts one copy's micro-batch."""
    return layout.get("parallel.data", 1) * layout.get("parallel.micro_batches", 1)


def _core(model, train_data, eval_data, callbacks, forward_step, settings):
    from pet.train.trainer import Trainer as CoreTrainer

    if train_data is None:
        names = ", ".join(settings)
        raise InputError(
            f"Trainer: {names}: settings of a trainer over batches, which needs train_data; or put them in args="
        )
    return CoreTrainer(model, train_data, eval_data, callbacks=callbacks, forward_step=forward_step, **settings)
