"""LLaMA-Factory's job files, as settings of a recipe. Names of all releases from 0.7.1 on stand in one table: where a
release renamed a key, both names are there. Those before are in `earlier_names`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from model_zoo.generation_settings import DRAWN, OF_BEAMS
from pet.compat import job_files as jobs
from pet.compat.contradictions import LLAMA_FACTORY as CONTRADICTIONS, SFT_ALONE, refuse_contradictions
from pet.compat.earlier_names import todays
from pet.compat.frozen import KEYS as FROZEN
from pet.compat.lacking_tokens import new_tokens
from pet.compat.llama_factory_data import dataset
from pet.compat.measured import measured, on_the_way, saved
from pet.compat.mindformers.training_arguments import STEPS_WIN, TABLE as ARGUMENTS
from pet.compat.positions import scale_positions
from pet.compat.prompts import LLAMA_FACTORY
from pet.compat.tool_formats import TOOL_FORMATS
from pet.compat.translation import elsewhere, first_of, flag, number, same, schedule_of_transformers, switched_on
from pet.hub import hub_name
from pet.recipe.classes import OPTIONS
from pet.recipe.fields import ADAPTERS_OFF
from pet.recipe.translation import Ignored, Refused, Translation, is_off
from pet.train.schedules import steps_of

PREFERENCES = {"sigmoid": "dpo", "hinge": "hinge", "ipo": "ipo", "orpo": "orpo", "simpo": "simpo"}
"""Losses of stage dpo -> objectives."""
STAGES = {"dpo": "dpo", "orpo": "orpo", "kto": "kto", "rm": "reward"}
"""Stages of preferences -> objectives."""
KEYS = {
    **dict.fromkeys(("pref_beta", "dpo_beta", "orpo_beta", "kto_beta"), "beta"),
    **dict.fromkeys(("pref_ftx", "dpo_ftx"), "sft_weight"),
    "dpo_label_smoothing": "label_smoothing",
    "simpo_gamma": "gamma",
    "kto_chosen_weight": "desirable_weight",
    "kto_rejected_weight": "undesirable_weight",
    "ref_model_adapters": "reference",
}
"""Settings of preferences, by the names of all releases."""
ANSWERS = ("do_sample", "num_beams", "max_new_tokens", "repetition_penalty", "temperature", "top_p", "top_k")
ANSWERS += ("length_penalty",)
"""Settings of generated answers, by the recipe's names."""
REFERENCE = "the reference is the base without adapters, where this is left out; ref_model_adapters names an adapter"
OPTIMIZER = Refused("an optimizer that is not here; see train.optimizer")


def named(base: str) -> str:
    """A base as it is called here: a name on a hub is one on ModelScope if LLaMA-Factory's environment says so."""
    asked = os.environ.get("USE_MODELSCOPE_HUB", "").lower() in ("true", "y", "1")
    return f"modelscope:{base}" if asked and hub_name(base) and ":" not in base else base


def _quantised(t: Translation, name: str, value: Any) -> None:
    if value and value not in jobs.BITS:
        t.refuse(name, f"{value!r}: 4 and 8 are supported")
    t.settings.update(jobs.BITS.get(value, {}))


def _anew(t: Translation, name: str, value: Any) -> None:
    if is_off(before := t.values.get("adapter_name_or_path")):
        t.ignore(name, "there is no adapter_name_or_path, whose adapter would become a part of the base")
    elif switched_on(value):
        base, nothing = t.values.get("model_name_or_path"), f"{name}=null adapter_name_or_path=null"
        t.refuse(name, f"first pet merge {before} --base {base} --output DIR, and then model.path=DIR {nothing}")


def _upload(t: Translation, name: str, value: Any) -> None:
    if switched_on(value):
        where = t.values.get("hub_model_id") or Path(str(t.values.get("output_dir") or "")).name
        if not where:
            t.refuse(name, "hub_model_id or output_dir has to say where to")
        jobs.upload(t, name, where, switched_on(t.values.get("hub_private_repo")) or None)


def _packed(t: Translation, name: str, value: Any) -> None:
    if t.get("train.objective"):
        t.ignore(name, "it is about stage: sft and pt")
    elif name == "packing" or value:
        jobs.packing(t, name, value)


def _of_layers(t: Translation, name: str, value: Any) -> None:
    if t.values.get("finetuning_type") != "freeze" and is_off(t.values.get("use_llama_pro")):
        t.ignore(name, "it is about finetuning_type: freeze")


def _sampled(t: Translation, name: str, value: Any) -> None:
    """The order of rows by Hugging Face's name of it; group_by_length is another one for a value."""
    ways = {"random": {}, "sequential": {"data.shuffle": False}, "group_by_length": {"data.packing": "buckets"}}
    if value in ways:
        t.settings.update(ways[value])
    else:
        t.refuse(name, f"{value!r}: {', '.join(ways)} are supported")


TABLE = {
    "preprocessing_num_workers": "data.workers",  # dataloader_num_workers, which is read after it, wins
    **ARGUMENTS,
    **jobs.COMMON,
    # the base
    "model_name_or_path": lambda t, n, v: jobs.base_model(t, n, named(v)),
    "train_from_scratch": flag("model.from_scratch"),
    "quantization_bit": _quantised,
    "quantization_method": Refused("bitsandbytes' formats are supported", harmless=("bitsandbytes", "bnb")),
    "quantization_type": lambda t, n, v: t.put(
        "model.quantization.type", v if t.get("model.quantization.type") == "nf4" else None
    ),
    "double_quantization": lambda t, n, v: t.put(
        "model.quantization.double", t.get("model.quantization.double") and bool(v)
    ),
    "rope_scaling": scale_positions,
    "model_revision": jobs.revision,
    "use_fast_tokenizer": jobs.MODEL,
    "resize_vocab": Ignored("the embedding has a row for every token"),
    "add_tokens": new_tokens(plain=True),
    "add_special_tokens": new_tokens(plain=False),
    "new_special_tokens*": jobs.TOKENS,
    "init_special_tokens": Ignored("no tokens are added"),
    # the adapter
    "finetuning_type": Refused("lora, full and freeze are supported", harmless=("lora", "full", "freeze")),
    "adapter_name_or_path": jobs.adapter,
    "adapter_folder": Refused("adapter_name_or_path=DIR names the folder itself"),
    "checkpoint_dir": Refused("where every weight is trained, name these weights by model_name_or_path"),
    "lora_target": jobs.targets,
    "lora_rank": "adapter.rank",
    "additional_target": lambda t, n, v: t.put("adapter.modules_to_save", jobs.listed(v)),
    "use_rslora": "adapter.use_rslora",
    "use_dora": flag("adapter.method", "dora"),
    "pissa_init": flag("adapter.init", "pissa"),
    "pissa_iter": Ignored("PiSSA's decomposition is exact here"),
    "pissa_convert": Ignored("a PiSSA adapter is saved as LoRA over the untouched base in any case"),
    "create_new_adapter": _anew,
    "module_dropout": Ignored("OFT is off"),
    **dict.fromkeys(FROZEN, _of_layers),
    "freeze_*": Ignored("it is about models that see"),
    "use_llama_pro": elsewhere,
    "mixture_of_depths": Refused("every token goes through every layer"),
    # data
    **same(elsewhere, "dataset eval_dataset dataset_dir max_samples"),
    **same(elsewhere, "template default_system enable_thinking preserve_thinking"),
    "tool_format": lambda t, n, v: (
        str(t.values.get("template")) in LLAMA_FACTORY or t.ignore(n, "tools are as the model's own tokenizer has them")
    ),
    "cutoff_len": "data.max_length",
    "reserved_label_len": Refused("an answer keeps its share of cutoff_len", harmless=(1,)),
    **same(Refused("cutoff_len is the length of question and answer"), "max_source_length max_target_length"),
    "val_size": number("data.eval_fraction"),
    **same(_packed, "packing neat_packing use_packed_sequences"),
    "train_on_prompt": flag("data.train_on", "all"),
    "mask_history": flag("data.train_on", "last"),
    "ignore_pad_token_for_loss": Ignored("padding is never learnt"),
    "average_tokens_across_devices": Ignored("a loss is the mean over the labelled tokens of all devices"),
    "buffer_size": "data.stream_window",  # see settle
    **same(Refused("data sets are put one after the other", harmless=("concat",)), "mix_strategy interleave_probs"),
    "eval_on_each_dataset": Refused("what is held out is measured as one; give eval_dataset one data set"),
    "disable_shuffling": flag("data.shuffle", False),
    "train_sampling_strategy": _sampled,
    **same(jobs.CACHE, "overwrite_cache tokenized_path data_shared_file_system cache_dir"),
    **same(Ignored(jobs.MEDIA.why), "image_* video_* audio_* use_audio_in_video crop_to_patches train_mm_proj_only"),
    **same(jobs.MEDIA, "visual_inputs media_dir"),
    # stages
    "stage": Refused(f"supported are sft, pt, {', '.join(STAGES)}", harmless=("sft", "pt", *STAGES)),
    **same(Refused(f"supported are {', '.join(PREFERENCES)}", harmless=tuple(PREFERENCES)), "pref_loss dpo_loss"),
    "ref_model": lambda t, n, v: v == t.values.get("model_name_or_path") or t.refuse(n, f"{v!r}: {REFERENCE}"),
    "reward_model*": Refused("nothing is generated and judged in training"),
    "ppo_*": Ignored("it is about stage: ppo"),
    "kto_ftx": Ignored("it is about stage: kto"),
    "use_dft_loss": elsewhere,
    **same(jobs.LOSS, "pref_bco_weight use_asft_loss use_eaft_loss ld_alpha moe_aux_loss_coef"),
    # the run
    **same(Ignored("pet finetune trains, and pet evaluate measures"), "do_train do_predict"),
    "eval_steps": on_the_way,
    "push_to_hub": _upload,
    **same(elsewhere, "hub_model_id hub_private_repo"),
    "hub_strategy": Ignored("the result is uploaded once, at the end"),
    "early_stopping_steps": "eval.patience",
    **same(Refused("no benchmark is run; pet evaluate measures what is held out"), "task split lang n_shot save_dir"),
    **same(measured, "compute_accuracy predict_with_generate"),
    "pure_bf16": flag("train.precision", "bf16"),
    "mixed_precision": Ignored("train.precision says it"),
    "fp8*": Refused("products have fp32, bf16 or fp16; see train.precision"),
    "shift_attn": Refused("every token sees all tokens before it"),
    **same(OPTIMIZER, "use_galore use_apollo use_badam use_adam_mini use_muon"),
    **{name: f"generation.{name}" for name in ANSWERS},
    "max_length": Ignored("of answers max_new_tokens says it"),
    **same(jobs.GENERATION, "generation_* eval_num_beams infer_* vllm_* sglang_* skip_special_tokens"),
    # how it is run
    "use_kt": Refused("experts are not computed apart"),
    **same(Ignored("KTransformers is off"), "kt_* cpu_infer chunk_size"),
    "export_*": Ignored("pet export writes the result"),
    "*_hub_token": jobs.DOWNLOADS,
    **same(jobs.SPEED, "flash_attn use_unsloth* enable_liger_kernel use_v1_kernels use_reentrant_gc"),
    **same(jobs.SPEED, "disable_gradient_checkpointing upcast_* quantization_device_map offload_folder"),
    **same(jobs.SPEED, "preprocessing_batch_size ref_model_quantization_bit use_liger_kernel use_cache use_kv_cache"),
    **same(jobs.SPEED, "torch_empty_cache_steps eval_accumulation_steps eval_do_concat_batches accelerator_config"),
    **same(jobs.LOGS, "project trackio_*"),
    "eval_on_start": Ignored("what is held out is measured before training in any case"),
    "split_special_tokens": Ignored("of what a message says none is a special token in any case"),
    **same(Ignored("it is about what use_… or finetuning_type switches on"), "galore_* apollo_* badam_* oft_*"),
    **same(Ignored("it is about what use_… switches on"), "asft_alpha eaft_alpha"),
    **same(jobs.SPEED, "*_full_eval batch_eval_metrics eval_use_gather_object block_diag_attn"),
    "full_determinism": Ignored("runs repeat bit for bit in any case"),
    **same(jobs.LOGS, "plot_loss include_* report_to logging_first_step log_* logging_nan_inf_filter debug"),
    **same(jobs.LOGS, "skip_memory_metrics print_param_status enable_torch_profiler profiler_*"),
    **same(jobs.LAYOUT, "*_model_parallel_size sequence_parallel placement_strategy master_* ddp_* local_rank"),
    **same(jobs.LAYOUT, "use_distributed_optimizer overlap_* use_megatron_bridge use_mca *hyper_parallel*"),
}
DEFAULTS = {
    "train.learning_rate": 5e-5,
    "train.batch_size": 8,
    "train.epochs": 3.0,
    "train.schedule": "linear",
    "train.warmup": 0,
    "train.keep_last": 1 << 20,  # all
    "data.max_length": 2048,
    "data.packing": "longest",
    "data.too_long": "shorten",
    "eval.batch_size": 8,
}
PRE_TRAINING = {"data.train_on": "all", "data.packing": "pack", "data.too_long": "cut"}


def translate(values: dict[str, Any], file: Path) -> Translation:
    """A LLaMA-Factory file's settings."""
    values, earlier = todays(values)
    t = Translation.of_file(file, values)
    t.ignored.update(earlier)
    full = values.get("finetuning_type") in ("full", "freeze")
    t.put("adapter.method", "none" if full else "lora")
    t.settings.update({**DEFAULTS, **(PRE_TRAINING if values.get("stage") == "pt" else {})})
    given = first_of(values, *STEPS_WIN)
    if not full:
        t.put("adapter.targets", ["all-linear"])
        rank = values.get("lora_rank", 8)
        with t.reading("lora_rank", rank):
            t.put("adapter.alpha", 2.0 * rank)
    loss = values.get("pref_loss") or values.get("dpo_loss") or "sigmoid"
    objective = STAGES.get(str(values.get("stage")), "sft")
    given = jobs.preferences(t, PREFERENCES.get(str(loss), "dpo") if objective == "dpo" else objective, given, KEYS)
    t.apply(given, TABLE)
    if full:  # what is said of LoRA is not read
        t.drop(*[key for key in t.settings if key.startswith("adapter.") and key != "adapter.method"])
    if given.get("save_strategy") is None:
        saved(t, "save_strategy", "steps")
    schedule_of_transformers(t, "lr_scheduler_type", _with_decay(t, given))
    refuse_contradictions(t, values, CONTRADICTIONS)
    if objective == "kto" and t.get("train.batch_size") == 1 and t.get("train.accumulation", 1) % 2 == 0:
        t.settings.update({"train.batch_size": 2, "train.accumulation": t.get("train.accumulation") // 2})
        t.ignore("per_device_train_batch_size", "kto compares two rows, so 2 with half of the accumulation steps")
    if objective == "kto" and t.get("eval.batch_size") == 1:
        t.put("eval.batch_size", 2)
        t.ignore("per_device_eval_batch_size", "kto compares two rows, so 2")
    for name in ("pref_ftx", "dpo_ftx", "kto_ftx") if objective == "kto" else ():
        if not is_off(values.get(name)) and values[name] != 0:
            t.refuse(name, f"{values[name]!r}: kto has no likelihood term here; train.sft_weight belongs to pairs")
    if t.get("adapter.load") and t.get("train.objective") in OPTIONS["reference"]:
        t.settings.setdefault("train.reference", ADAPTERS_OFF)  # theirs is the base, whatever adapter a run starts from
    _answers(t)
    home, texts = Path("data"), values.get("stage") == "pt"
    with t.reading("dataset_dir", values.get("dataset_dir")):
        home = Path(values.get("dataset_dir") or home)
    first, prompt = given.get("max_samples"), {} if texts else _prompts(t, values)  # of texts there is none
    for setting, value in prompt.get(False, {}).items():  # of files that the command line names
        t.put(f"data.{setting}", value)
    found: list[dict[str, Any]] = []
    named = {"dataset": ("data.train", "data.rows"), "eval_dataset": ("data.eval", "data.eval_rows")}
    if not is_off(values.get("do_predict")) and is_off(values.get("do_train")) and not values.get("eval_dataset"):
        named["dataset"] = named.pop("eval_dataset")  # of releases up to 0.9.1
    for name, (key, rows) in named.items():
        if names := values.get(name):
            with t.reading(name, names):
                every = names.split(",") if isinstance(names, str) else names
                read = [dataset(t, key, name, home, str(one).strip(), prompt) for one in every]
                jobs.put_data(t, key, name, read)
                found += read
            with t.reading("max_samples", first):  # of each data set
                jobs.put_parts(t, rows, [f":{int(first)}"] if first else [])
    if prompt and values.get("template") not in (None, *LLAMA_FACTORY):
        jobs.own_template(t, "template", values["template"])
    if (values.get("packing") or values.get("neat_packing")) and isinstance(t.get("data.max_length"), int):
        t.put("data.max_length", t.get("data.max_length") - 1)  # as there, for the sake of their padding
    with t.reading("use_dft_loss", asked := values.get("use_dft_loss")):  # not before: data is read as for sft
        if switched_on(asked) and objective == "sft" and not texts:
            t.put("train.objective", "dft")
        elif switched_on(asked):
            t.ignore("use_dft_loss", SFT_ALONE)
    jobs.settle(t, "*lora_embedding_B*")
    return t


def _with_decay(t: Translation, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings with the numbers that LLaMA-Factory gives warmup_stable_decay: of what follows the warm-up a third
    is stable, and the rest descends."""
    if given.get("lr_scheduler_type") != "warmup_stable_decay":
        return given
    own, written = {}, given.get("lr_scheduler_kwargs") or {}
    with t.reading("lr_scheduler_kwargs", written):
        own.update(json.loads(written) if isinstance(written, str) else written)
    total, stable, decay = t.get("train.steps"), own.pop("num_stable_steps", None), own.get("num_decay_steps")
    if not total:
        t.refuse("lr_scheduler_type", "warmup_stable_decay holds the rate for a third of the steps; give max_steps")
    else:
        left = total - steps_of(t.get("train.warmup", 0), total, "transformers")
        stable = left // 3 if stable is None else stable
        own["num_decay_steps"] = left - left // 3 if decay is None else decay
        if stable + own["num_decay_steps"] != left:
            t.refuse("lr_scheduler_kwargs", f"num_stable_steps: {stable}, but the descent ends with the run here")
    return {**given, "lr_scheduler_kwargs": {"num_decay_steps": 1, **own}}


def _answers(t: Translation) -> None:
    """Draws answers where a file says how, unless it says not to; what then has no effect is noted."""
    drawn = [name for name in DRAWN if f"generation.{name}" in t.settings]
    t.settings.setdefault("generation.do_sample", bool(drawn))
    idle = dict.fromkeys(() if t.get("generation.do_sample") else drawn, "do_sample: true")
    idle |= dict.fromkeys(() if t.get("generation.num_beams", 1) != 1 else OF_BEAMS, "num_beams above 1")
    for name, needed in idle.items():
        if t.settings.pop(f"generation.{name}", None) is not None:
            t.ignore(name, f"it has no effect without {needed}")


def check_trained(t: Translation) -> None:
    """Notes what a file asks for that does not train, where training is asked for."""
    said = {name: t.values[name] for name in ("do_train", "do_predict", "do_eval") if t.values.get(name) is not None}
    with t.reading("do_train", said):
        asked = {name: switched_on(value) for name, value in said.items()}
        if not asked.get("do_train", not any(asked.values())):
            shown = ", ".join(f"{name}: {str(value).lower()}" for name, value in asked.items())
            t.refuse(shown, "nothing is trained; pet evaluate FILE")
        elif t.values.get("export_dir") and not asked.get("do_train"):
            t.refuse("export_dir", "nothing is trained; pet merge FILE")


def _prompts(t: Translation, values: Mapping[str, Any]) -> dict[Any, dict[str, Any]]:
    """The prompt that the file names, with what it says of system texts, thoughts and tools: of data sets of formatting
    openai (True), and of the others (False)."""
    name, system, thinking = values.get("template"), values.get("default_system"), values.get("enable_thinking", True)
    own = {"system": system or None, "enable_thinking": None if thinking else thinking}
    prompt = LLAMA_FACTORY.get(str(name))
    if prompt is None:
        return dict.fromkeys((True, False), own)
    if form := str(values.get("tool_format") or ""):
        if form not in TOOL_FORMATS:
            t.refuse("tool_format", f"{form!r} is not supported; known: {', '.join(TOOL_FORMATS)}")
        calling = "{said}" if prompt.one_end else "{said}{eos}"
        prompt = replace(prompt, tools=TOOL_FORMATS.get(form, prompt.tools), calling=calling)
    if values.get("train_on_prompt") and prompt.one_end:
        t.refuse("train_on_prompt", f"the template {name} does not take it, nor does it there")
    compares, kept = bool(t.get("train.objective")), bool(values.get("preserve_thinking"))
    last = (compares or bool(values.get("mask_history"))) and not kept
    thoughts = {"thinking": thinking, "last_thought": last, "as_said": compares and kept}
    prompt = prompt if system is None else replace(prompt, default=str(system))
    texts = {kind: prompt.jinja(**thoughts, openai=kind) for kind in (True, False)}
    return {kind: {"template": text} for kind, text in texts.items()}
