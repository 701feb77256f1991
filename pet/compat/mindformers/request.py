"""What a script asks of ``pet.Trainer`` by MindFormers' names, and the equivalent recipe."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adapters.settings import named
from model_zoo.counting import sizes
from model_zoo.errors import InputError
from pet.compat.ckpt.beside import bring, converted
from pet.compat.ckpt.doors import is_ckpt
from pet.compat.mindformers.context import asks_parallel
from pet.compat.mindformers.generation_defaults import no_base
from pet.compat.mindformers.model_file import model_section
from pet.compat.mindformers.padding import put_padding
from pet.compat.mindformers.parallel import (
    TABLE as LAYOUT,
    if_divided,
    layout_in,
    layout_in_recipe,
    layout_of_model,
    put_pipeline,
    rows_of,
    translate_parallel,
)
from pet.compat.mindformers.presets import split_name, usual_alpha
from pet.compat.mindformers.script_config import MindFormerConfig
from pet.compat.mindformers.sizes import facts_of
from pet.compat.mindformers.trainer_config import RECOMPUTE, nothing_said, put_config
from pet.compat.mindformers.training_arguments import TrainingArguments, put_of_schedule, translate_arguments
from pet.compat.mindformers.watching import in_columns
from pet.compat.modelarts import output_directory
from pet.compat.objects import Objects
from pet.compat.optimizers import put_optimizer
from pet.compat.translation import EVALUATIONS, method_of
from pet.compat.yaml_files import load_any, values_of
from pet.launching.environment import read_job
from pet.names import model_config, preset_names
from pet.recipe.callback_names import is_named, translate_callbacks
from pet.recipe.data import Data
from pet.recipe.loading import from_dict
from pet.recipe.training import Callback
from pet.recipe.translation import Translation
from pet.train.metrics import check_available

log = logging.getLogger("pet")

TASKS = ("text_generation", "text_classification", "general")


def is_path(value: Any) -> bool:
    """Whether data or a model is given by its place in the file system, or by name."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(one, (str, os.PathLike)) for one in value)
    return isinstance(value, (str, os.PathLike))


def in_a_list(value: Any) -> list:
    """Callbacks as a list: of one, or of those in an iterable."""
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not isinstance(value, (str, Mapping)) else [value]


class Request:
    """Names, paths, objects and settings; the arguments are those of `pet.Trainer`, and described there.

    Attributes:
        arguments: settings of the run by MindFormers' names.
        by_class: whether they are those of a `TrainingArguments`.
        layout: of processes, by MindFormers' names.
        recompute: whether activations are computed again; None leaves it to the recipe.
    """

    def __init__(
        self,
        model=None,
        task: str = "text_generation",
        pet_method: str = "",
        args: TrainingArguments | Mapping[str, Any] | str | os.PathLike | None = None,
        recipe: str | os.PathLike | MindFormerConfig | None = None,
        train_dataset=None,
        eval_dataset=None,
        tokenizer=None,
        callbacks: Iterable | Any = (),
        data_collator=None,
        do_eval: bool | None = None,
        load_checkpoint: str | os.PathLike | None = None,
        forward_step=None,
        optimizers=None,
        options: Mapping[str, Any] | None = None,
    ):
        if str(task).replace("-", "_") not in TASKS:
            raise InputError(f"Trainer: task {task!r} is not known; supported: {', '.join(TASKS[:2])}")
        self.classifies = str(task).replace("-", "_") == "text_classification"
        if isinstance(model, MindFormerConfig):  # MindFormers' first argument are the settings
            args, model = model, None
        if isinstance(args, MindFormerConfig) or not (args is None or isinstance(args, (TrainingArguments, Mapping))):
            args, recipe = None, args
        self.arguments: dict[str, Any] = dict(args.given if isinstance(args, TrainingArguments) else args or {})
        self.base_recipe, self.by_class = recipe, isinstance(args, TrainingArguments)
        self.model, self.method_settings = split_name(model)
        self.pet_method = method_of(pet_method) if pet_method else ""
        # scripts hand on an argument that nobody gave as an empty text
        data = (None if isinstance(one, str) and not one else one for one in (train_dataset, eval_dataset))
        (self.train_dataset, self.eval_dataset), self.tokenizer = data, tokenizer
        given = in_a_list(callbacks)
        self.named_callbacks = [one for one in given if is_named(one)]  # by MindFormers' names: settings of the recipe
        self.callbacks = [one for one in given if not is_named(one)]
        self.data_collator, self.forward_step = data_collator, forward_step
        self.optimizer, self.rates = optimizers, None
        if optimizers is not None and (is_path(optimizers) or is_path(self.model) or self.model is None):
            raise InputError(
                "Trainer: optimizers= is an optimizer over the parameters of a model that is an object; else args say "
                "optim, learning_rate, weight_decay, adam_beta1 …"
            )
        if isinstance(self.arguments.get("use_parallel"), str):
            self.arguments["use_parallel"] = asks_parallel(self.arguments["use_parallel"], "Trainer: use_parallel")
        self.do_eval = do_eval if do_eval is not None else self.arguments.get("do_eval")
        self.load_checkpoint = load_checkpoint or self.arguments.get("load_checkpoint")
        self.options = dict(options or {})
        layout = {name: self.arguments.pop(name) for name in LAYOUT if name in self.arguments}
        self.layout: dict[str, Any] = layout if self.arguments.get("use_parallel") else {}
        self.recompute: bool | None = None
        self._config = nothing_said()
        if model is None and recipe is None:
            raise InputError("Trainer: model is missing; give a bundled base's name, a checkpoint directory or a cell")

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
        sizes = {"data_parallel": data_parallel, "model_parallel": model_parallel, "pipeline_stage": pipeline_stage}
        said = MindFormerConfig(sizes, micro_batch_num=micro_batch_num, **more)
        translate_parallel(said).finish()
        self._said.micro_batch_interleave_num = said.pop("micro_batch_interleave_num", None)
        self._said.parallel_config = said
        if self._said is self.base_recipe:
            self._said.use_parallel = True

    def set_recompute_config(self, recompute: bool = False, **more) -> None:
        """Computes activations again in the backward pass instead of keeping them; finer choices are not made here."""
        self.recompute = bool(recompute)
        self._said.recompute_config = MindFormerConfig({**RECOMPUTE, "recompute": self.recompute, **more})

    @property
    def config(self) -> MindFormerConfig:
        """What a script changes before a call, by a file's keys: ``trainer.config.runner_config.epochs = 1``.
        Only what is said there is in it."""
        if self.base_recipe is not None and self._said is not self.base_recipe:
            raise InputError("Trainer.config: the settings stand in a file; change them by args= or options=")
        return self._said

    @property
    def _said(self) -> MindFormerConfig:
        return self.base_recipe if isinstance(self.base_recipe, MindFormerConfig) else self._config

    def _take_config(self) -> None:
        """What `config` says of where a call starts, and how it is divided."""
        said = self._config
        loaded = said.load_checkpoint or said.model.model_config.checkpoint_name_or_path
        self.load_checkpoint = loaded or self.load_checkpoint
        self.layout = {**self.layout, **layout_in(said)}
        if said.use_parallel is not None:
            self.arguments["use_parallel"] = asks_parallel(said.use_parallel, "Trainer.config: use_parallel")
        if said.do_eval is not None:
            self.do_eval = said.do_eval

    # The recipe -------------------------------------------------------------------------------------------------------

    def recipe(self, mode: str = "finetune", model: str | None = None):
        """The equivalent recipe of a call.

        Args:
            mode: ``train``, ``finetune``, ``evaluate`` or ``predict``.
            model: a checkpoint in place of the trainer's model.
        """
        self._take_config()
        given = self._layout()
        layout = translate_parallel(given or {}, "set_parallel_config")
        whole = self.by_class and self.base_recipe is None
        translation = translate_arguments(self.arguments, copies=rows_of(layout, given or {}), whole=whole)
        translation.settings.update(layout.settings)
        if self.layout:  # what a file says, its own translation reports
            translation.ignored.update(layout.ignored)
        translation.problems += layout.problems
        put_config(translation, self._config, rows_of(layout, given or {}))
        put_of_schedule(translation)
        if self.base_recipe is None or self.job_file()[0] == "mindformers":
            put_pipeline(translation)
        if self.optimizer is not None:
            translation.drop("train.final_ratio")
            translation.put("train.warmup", 0)  # its rates say all
            self.rates = put_optimizer(translation, self.optimizer)
            if self.rates is None:
                translation.put("train.schedule", "constant")
        if self.recompute is not None:
            translation.put("train.recompute", self.recompute)
        if "output.dir" not in translation.settings and self.base_recipe is None:
            translation.put("output.dir", output_directory("output"))
        self._put_model(translation, mode, model)
        if self.classifies:
            translation.put("train.objective", "classification")
        self._put_padding(translation)
        for name, data in (("train", self.train_dataset), ("eval", self.eval_dataset)):
            if is_path(data):
                paths = data if isinstance(data, (list, tuple)) else [data]
                translation.put(f"data.{name}", [os.fspath(path) for path in paths])
        unmeasured = mode != "evaluate" and self.do_eval is False
        if unmeasured:
            translation.settings["data.eval"] = None
        elif not (self.eval_dataset is None or is_path(self.eval_dataset)):
            translation.put("data.eval", ".")  # rows in memory, of which the recipe says when they are measured
        if unmeasured or (self.in_memory() and self.eval_dataset is None):
            translation.drop(*EVALUATIONS)
        named = [*self.named_callbacks, *self._config.callbacks, *self._config.eval_callbacks]
        translate_callbacks(translation, named, self._config)
        translation.finish()
        has_files = not self.in_memory()
        if self.base_recipe is not None:
            more = translation.settings.pop("callbacks", [])  # they are added to those of the file
            changes = self.changes(mode)
            if given is not None:  # as a MindFormers file says it; empty for one process
                changes |= {"use_parallel": bool(given), "parallel_config": given}
            recipe = load_any(self.base_recipe, translation.settings, check_files=has_files, changes=changes)
            recipe.callbacks += [Callback(**entry) for entry in more]
            return recipe
        self._put_length(translation)
        name = str(self.arguments.get("run_name") or "trainer")
        if translation.get("model.path") in preset_names() and mode == "finetune":
            raise no_base(self.model)
        return from_dict({}, translation.settings, name=name, check_files=has_files)

    def job_file(self) -> tuple[str, Path | None, Any]:
        """What ``recipe`` names: kind, place and content; of no kind but a recipe's where it names nothing."""
        return ("recipe", None, None) if self.base_recipe is None else values_of(self.base_recipe, self.options)

    def changes(self, mode: str) -> dict[str, Any]:
        """What is said here instead of a MindFormers file, by its keys."""
        return {**self.options, "run_mode": {"evaluate": "eval"}.get(mode, mode)}

    def _put_model(self, translation: Translation, mode: str, model: str | None) -> None:
        if is_path(self.model) or model is not None:
            path = os.fspath(model or self.model)
            path = str(converted(path)) if is_ckpt(path) else path
            translation.put("model.path", path)
            if path in preset_names() and mode == "train":
                translation.put("model.from_scratch", True)
        elif self.model is not None:
            translation.put("model.path", ".")  # a cell: its weights are in memory
        if is_path(self.tokenizer):
            translation.put("model.tokenizer", os.fspath(self.tokenizer))
        if self.base_recipe is None or (self.pet_method and self.pet_method != self._method_there()):
            method = self.pet_method or "none"
            if self.method_settings and method in ("none", self.method_settings["method"]):
                translation.put("adapter", dict(self.method_settings))
            else:
                translation.put("adapter", {"method": method})

    def _method_there(self) -> str:
        """The method of the job file's own adapter, whose settings hold for it."""
        pet = self.generation_settings().get("pet_config")
        values = {"adapter": pet} if pet else self.job_file()[2]
        section = values.get("adapter") if isinstance(values, Mapping) else None
        return method_of(section.get("pet_type", section.get("method")) if isinstance(section, Mapping) else None)

    def _put_padding(self, translation: Translation) -> None:
        """See `put_padding`; a file of the settings says it itself."""
        if self.base_recipe is not None:
            return
        config, path = getattr(self.model, "config", None), translation.get("model.path")
        if config is not None:
            sliced = {"input_sliced_sig": getattr(config, "input_sliced_sig", None)}
            put_padding(translation, {**config.to_dict(), **sliced}, getattr(self.model, "loaded_from", None))
        elif is_path(self.model):
            with contextlib.suppress(InputError):  # loading the recipe says it better
                put_padding(translation, model_config(path), path)

    def _put_length(self, translation: Translation) -> None:
        """Rows as long as a small model's context; a larger one has the recipe's default length."""
        path = translation.get("model.path")
        if "data.max_length" in translation.settings or path is None or not is_path(self.model):
            return
        try:
            context = sizes(model_config(path)).context
        except InputError:
            return  # loading the recipe says it better
        default = Data.model_fields["max_length"].default
        method = named(translation.get("adapter", {}).get("method"))
        virtual = method().position_offset if method is not None else 0
        if context < default + virtual:
            translation.put("data.max_length", max(2, context - virtual))

    def _layout(self) -> dict[str, Any] | None:
        """The layout by MindFormers' names: what the script says, or else the file, or else copies of the model; None
        where nothing was said and this is one process.
        """
        job, use = read_job(), self.arguments.get("use_parallel")
        if use is False:
            return {}
        if self.layout or not (use or job.distributed):
            return self.layout or None
        return self._layout_of_file(bool(use)) or layout_of_model(self.model) or {"data_parallel": job.size}

    def _layout_of_file(self, use: bool) -> dict[str, Any]:
        """The recipe's layout, or the MindFormers file's where that or the script (`use`) turns it on."""
        kind, _, values = self.job_file()
        if kind != "mindformers":  # what else a recipe says of its processes is taken with it
            return layout_in_recipe(values)
        use = use or asks_parallel(values.get("use_parallel"), "use_parallel")
        return if_divided(layout_in(values)) if use else {}

    def put_written_metrics(self, recipe) -> None:
        """BLEU and ROUGE for GLM, as MindFormers measures it, where nothing else is asked for."""
        if "metrics" in recipe.eval.model_fields_set or not is_path(self.model) or self.in_memory():
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

    def from_ckpt(self, checkpoint) -> tuple[str | None, Path | None]:
        """(checkpoint directory, adapter directory) for a MindFormers ``.ckpt`` file of this request's model."""
        if self.base_recipe is not None:
            kind, file, values = self.job_file()
            if kind == "mindformers":
                return bring(checkpoint, file, **facts_of(values))
            recipe = load_any(self.base_recipe, check_files=False)
            return bring(checkpoint, recipe.model.path, None, getattr(recipe.adapter, "alpha", None))
        model = self.model if is_path(self.model) else self.model.config.to_dict()
        alpha = (self.method_settings or {}).get("alpha")
        if alpha is None and self.pet_method == "lora":
            alpha = usual_alpha
        return bring(checkpoint, model, None, alpha, self.options.get("src_strategy_path_or_dir"))

    def generation_settings(self) -> dict[str, Any]:
        """The model_config of a MindFormers file, which has settings of generation in it; empty without one."""
        kind, _, values = self.job_file()
        return model_section(values) if kind == "mindformers" else {}

    # Objects ----------------------------------------------------------------------------------------------------------

    def in_memory(self) -> bool:
        """Whether anything is given as an object."""
        given = (self.model, self.train_dataset, self.eval_dataset, self.tokenizer)
        return any(value is not None and not is_path(value) for value in given)

    def _columns(self, name: str) -> Any:
        """The names of the columns of data of tuples."""
        return self.arguments.get(f"{name}_in_columns") or (self._said.get(name) or {}).get("input_columns")

    def objects(self):
        return Objects(
            None if is_path(self.model) else self.model,
            None if is_path(self.tokenizer) else self.tokenizer,
            *(in_columns(getattr(self, name), self._columns(name)) for name in ("train_dataset", "eval_dataset")),
            self.data_collator,
            self.forward_step,
            self.rates,
        )
