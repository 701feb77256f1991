"""axolotl's job files, as settings of a recipe. Names of all releases from 0.1 to 0.19 stand in one table: where a
release renamed a key, both names are there. What a key does is what it does in 0.19."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pet.compat import axolotl_data as data, job_files as jobs
from pet.compat.contradictions import AXOLOTL as CONTRADICTIONS, refuse_contradictions
from pet.compat.measured import STRATEGIES, per_epoch, saved, saves_with_evaluations
from pet.compat.mindformers.training_arguments import TABLE as ARGUMENTS
from pet.compat.translation import choice, elsewhere, first_of, flag, number, picked, same, schedule_of_transformers
from pet.recipe.classes import OPTIONS
from pet.recipe.translation import Ignored, Refused, Translation, is_off

RL = ("dpo", "ipo", "simpo", "orpo", "kto")
KEYS = {
    **dict.fromkeys(("rl_beta", "dpo_beta", "orpo_alpha"), "beta"),
    "rpo_alpha": "sft_weight",
    "kto_desirable_weight": "desirable_weight",
    "kto_undesirable_weight": "undesirable_weight",
    "dpo_label_smoothing": "label_smoothing",
    "simpo_gamma": "gamma",
    "center_rewards_coefficient": "center_rewards_coefficient",
}
"""Settings of preferences, by the names of all releases."""
LOSSES = {"sigmoid": "dpo", "hinge": "hinge", "ipo": "ipo", "robust": "robust"}
"""What ``dpo_loss_type`` makes of ``rl: dpo``."""
PLUGINS = ("CutCrossEntropyPlugin", "LigerPlugin", "SpectrumPlugin", "SwanLabPlugin", "KernelsPlugin")
PLUGINS += ("ExpertParallelPlugin",)
"""Plugins that change speed, logs, or how the work is divided."""


def _plugins(t: Translation, name: str, value: Any) -> None:
    others = [one for one in jobs.listed(value) if one.rpartition(".")[2] not in PLUGINS]
    if others:
        t.refuse(name, f"{', '.join(others)}: see callbacks and train.objective")
    else:
        t.ignore(name, jobs.SPEED.why)


def _packed_length(t: Translation, name: str, value: Any) -> None:
    """Of the first releases: rows of this length hold samples of at most ``sequence_len``."""
    t.put("data.packing", "pack")
    t.ignore(name, "samples are packed into rows of sequence_len")


def _template(t: Translation, name: str, value: Any) -> None:
    """The prompt of data sets of messages that name none, and of preferences; it has been read with them."""
    own = [one for key in ("datasets", "test_datasets") for one in t.values.get(key) or ()]
    told = [str(one.get("type")).startswith(data.OF_THE_FILE) and not one.get("chat_template") for one in own]
    if t.sources and not any(told):
        t.ignore(name, "the data sets have a prompt of their own")
    elif (text := data.chat_template(t, value, {})) is None:
        if not (value == "jinja" and t.values.get("chat_template_jinja")):
            jobs.own_template(t, name, value)
    elif not t.sources:
        t.put("data.template", text)


def _of_template(t: Translation, name: str, value: Any) -> None:
    if others := [key for key in value if key != "enable_thinking"]:
        t.refuse(name, f"{', '.join(others)}: enable_thinking alone is read")
    t.put("data.enable_thinking", value.get("enable_thinking"))


def _system(t: Translation, name: str, value: Any) -> None:
    if not any(str(one.get("type")).startswith("sharegpt") for one in t.values.get("datasets") or ()):
        t.ignore(name, "it stands in no prompt of axolotl's")


def _shuffled(t: Translation, name: str, value: Any) -> None:
    if t.get("data.streaming"):
        t.put("data.shuffle", value)
    else:
        t.ignore(name, "every epoch has an order of its own")


def _config(t: Translation, name: str, value: Any) -> None:
    """Numbers in place of those of the base's config.json."""
    own = {name: value} if name == "rope_scaling" else value
    given = {key: x for key, x in own.items() if any(x.values() if isinstance(x, Mapping) else [x is not None])}
    t.put("model.config", {**t.get("model.config", {}), **given} or None)


BNB = {
    "bnb_4bit_use_double_quant": "model.quantization.double",
    "bnb_4bit_quant_type": "model.quantization.type",
    **same(jobs.SPEED, "bnb_4bit_compute_dtype bnb_4bit_quant_storage"),
}
INITS = {word: word for word in ("gaussian", "pissa", "olora", "loftq")}


def _init(t: Translation, name: str, value: Any) -> None:
    if value is not True:  # PEFT's own, as here
        choice("adapter.init", INITS)(t, name, str(value).partition("_niter")[0])


def _peft(t: Translation, name: str, value: Any) -> None:
    """LoftQ in 4 bits: the base is packed as PEFT packs it, and the adapter begins with what that leaves out."""
    loftq = {key: number for key, number in (value.get("loftq_config") or {}).items() if number is not None}
    others = [key for key in value if key != "loftq_config" and not is_off(value[key])]
    if others or loftq.get("loftq_bits", 4) != 4 or loftq.get("loftq_iter", 1) != 1:
        t.refuse(name, f"{value!r}: LoftQ with loftq_bits: 4 and loftq_iter: 1 is supported")
    elif loftq:
        t.settings.update({"model.quantization.type": "nf4", "adapter.init": "loftq"})


NOTHING_GENERATED = Refused("nothing is generated in training")


def _trl(t: Translation, name: str, value: Any) -> None:
    """A section about what is generated in training, but for beta, which comes before ``rl_beta``."""
    others = [key for key in value if key != "beta" and not is_off(value[key])]
    if others:
        t.refuse(name, f"{', '.join(others)}: {NOTHING_GENERATED.why}")
    elif value.get("beta") is not None and t.get("train.objective") in OPTIONS["beta"]:
        t.put("train.beta", float(value["beta"]))


def _bf16(t: Translation, name: str, value: Any) -> None:
    before = t.get("train.precision")
    if before is None or value != "auto":  # of fp16 and auto the second stands back
        flag("train.precision", "bf16", "auto", "full")(t, name, value)
    if (before, t.get("train.precision")) == ("fp16", "bf16"):
        t.ignore("fp16", "bf16 takes its place")


def _of_cosine(t: Translation, name: str, value: Any) -> None:
    """What counts with the cosine schedule alone: where it ends, and a warm-up with which it ends at 0."""
    if t.get("train.schedule") != "cosine":
        t.ignore(name, "it is about lr_scheduler: cosine")
    elif name == "cosine_min_lr_ratio":
        t.put("train.final_ratio", float(value))
    elif value:
        t.put("train.warmup_power", 2.0)
        if t.settings.pop("train.final_ratio", None) is not None:
            t.ignore("cosine_min_lr_ratio", "lr_quadratic_warmup leaves it out")


def _restarts(t: Translation, given: Mapping[str, Any]) -> None:
    """ReLoRA: ``relora_steps`` until 0.9, then ``relora: true`` with ``jagged_restart_steps``, which by themselves only
    make the learning rate fall and rise. The model that axolotl writes is a merged one."""
    begin = "relora" if given.get("relora_steps") else "jagged_restart"
    every = given.get(f"{begin}_steps")
    if begin == "jagged_restart" and is_off(given.get("relora")):
        if every:
            t.refuse("jagged_restart_steps", "without relora; see train.schedule: cosine_restarts")
        return
    if not every:
        return t.refuse("relora", "jagged_restart_steps says when an adapter begins anew")
    how, ratio = given.get("relora_prune_method") or "magnitude", given.get("relora_prune_ratio")
    if how == "reset" and ratio is None:
        how, ratio = "magnitude", 1.0
    if how != "magnitude":
        t.refuse("relora_prune_method", f"{how!r}: the smallest numbers are left out; see train.restart_prune")
    for key, theirs, usual in (("every", "steps", None), ("warmup", "warmup_steps", 10), ("decay", "anneal_steps", 1)):
        name = f"{begin}_{theirs}"
        with t.reading(name, value := given.get(name) or usual):
            t.put(f"train.restart_{key}", int(value))
    with t.reading("relora_prune_ratio", ratio):
        t.put("train.restart_prune", None if ratio is None else float(ratio))
    t.put("output.merged", True)


TABLE = {
    **picked(
        ARGUMENTS,
        "learning_rate lr_scheduler optimizer adam_beta1 adam_beta2 weight_decay warmup_steps seed "
        "max_grad_norm neftune_noise_alpha gradient_accumulation_steps eval_batch_size "
        "fp16 group_by_length output_dir max_steps logging_steps resume_from_checkpoint metric_for_best_model "
        "greater_is_better load_best_model_at_end noisy_embedding_alpha=neftune_noise_alpha "
        "micro_batch_size=batch_size num_epochs=num_train_epochs adam_epsilon adam_eps=adam_epsilon",
    ),
    **jobs.COMMON,
    "warmup_ratio": lambda t, n, v: (  # from 1 on the recipe has a number of steps
        t.put("train.warmup", float(v)) if float(v) < 1 else t.refuse(n, f"{v!r}: a share of the steps below 1")
    ),
    **same(Ignored("it is about optimizer: came_pytorch"), "adam_beta3 adam_epsilon2"),
    **same(Ignored("it is about another optimizer"), "dion_* qgalore_*"),
    # the base
    "base_model": jobs.base_model,
    **same(jobs.revision, "revision_of_model model_revision"),
    "reinit_weights": flag("model.from_scratch"),
    **same(_config, "model_config overrides_of_model_config rope_scaling"),
    "tokenizer_config": lambda t, n, v: t.put("model.tokenizer", v if v != t.values.get("base_model") else None),
    "special_tokens": data.special_tokens,
    "tokens": data.tokens,
    **same(jobs.TOKENS, "added_tokens_overrides shrink_embeddings fix_untrained_tokens"),
    "resize_token_embeddings_to_32x": Ignored("rows that no token has change no result"),
    "mean_resizing_embeddings": Ignored("no tokens are added"),
    "quantization": Ignored("it is about axolotl quantize; see pet quantize"),
    "overrides_of_model_kwargs": Refused("a base is opened as its files say; see model_config"),
    **same(Refused("load_in_8bit and load_in_4bit pack a base"), "model_quantization_config use_onebitllms"),
    "model_quantization_config_kwargs": Ignored("it is about model_quantization_config"),
    **same(jobs.MODEL, "base_model_config cls_model_config base_model_ignore_patterns model_type num_labels"),
    **same(jobs.MODEL, "is_*_derived_model tokenizer_type tokenizer_use_* tokenizer_legacy torch_dtype float16"),
    **same(jobs.MODEL, "float32 gptq gptq_* type_of_model lora_fan_in_fan_out"),
    "load_in_8bit": lambda t, n, v: t.settings.update(jobs.BITS[8] if v and not is_off(v) else {}),
    "load_in_4bit": lambda t, n, v: t.settings.update(jobs.BITS[4] if v and not is_off(v) else {}),
    "bnb_config_kwargs": lambda t, n, v: t.apply(v if t.get("model.quantization.type") else {}, BNB, f"{n}."),
    # the adapter
    "adapter": Refused("lora and qlora are supported", harmless=("lora", "qlora")),
    "lora_model_dir": jobs.adapter,
    "lora_r": "adapter.rank",
    "lora_target_modules": jobs.targets,
    "lora_target_linear": lambda t, n, v: t.put(  # beside what lora_target_modules names
        "adapter.targets", [*t.get("adapter.targets", []), "all-linear"] if v else None
    ),
    "lora_modules_to_save": "adapter.modules_to_save",
    "peft_use_dora": flag("adapter.method", "dora"),
    "peft_use_rslora": "adapter.use_rslora",
    "peft_init_lora_weights": _init,
    "peft_layers_to_transform": "adapter.layers",
    "peft_trainable_token_indices": "adapter.trainable_tokens",
    "lora_rank_pattern": "adapter.rank_pattern",
    "lora_alpha_pattern": "adapter.alpha_pattern",
    "peft": _peft,
    "lora_target_parameters": Refused("modules alone get adapters; an expert's are modules here"),
    **same(Refused("adapter.layers names the layers"), "peft_layers_pattern peft_layer_replication"),
    "peft_ensure_weight_tying": Refused("adapter.modules_to_save says what is trained whole"),
    "peft_autocast_adapter_dtype": Ignored("adapters are trained in fp32"),
    "unfrozen_parameters": lambda t, n, v: (
        t.get("adapter.method") == "none" or t.ignore(n, "an adapter's base is frozen")
    ),
    **same(elsewhere, "relora relora_*steps relora_prune_* jagged_restart_*"),
    "relora_cpu_offload": Ignored("sums are made on the host"),
    # data
    **same(data.datasets, "datasets test_datasets"),
    **same(jobs.CACHE, "dataset_prepared_path num_dataset_shards_to_save"),
    **same("data.workers", "dataset_processes dataset_num_proc"),
    "dataset_exact_deduplication": "data.deduplicate",
    "hf_use_auth_token": jobs.DOWNLOADS,
    "val_set_size": number("data.eval_fraction"),
    "sequence_len": "data.max_length",
    "excess_length_strategy": choice("data.too_long", {"drop": "drop", "truncate": "cut"}),
    "max_packed_sequence_len": _packed_length,
    "sample_packing": jobs.packing,
    "pretraining_dataset": data.texts,
    "streaming_multipack_buffer_size": "data.stream_window",  # see settle
    "curriculum_sampling": flag("data.shuffle", False),
    **same(_shuffled, "shuffle_merged_datasets shuffle_before_merging_datasets"),
    "min_sample_len": "data.min_length",
    "train_on_inputs": flag("data.train_on", "all"),
    "chat_template": _template,
    "chat_template_jinja": lambda t, n, v: t.sources or t.settings.setdefault("data.template", v),
    "chat_template_kwargs": _of_template,
    "eot_tokens": data.ends_of_turns,
    "default_system_message": _system,
    **same(jobs.MEDIA, "skip_prepare_dataset processor_type processor_kwargs role_boundaries image_*"),
    "freeze_mm_modules": Ignored(jobs.MEDIA.why),
    **same(Refused("data.rows takes a part of each file"), "dataset_shard_num dataset_shard_idx"),
    "eval_sequence_len": Refused("held-out rows have the length of sequence_len"),
    "pretraining_sample_concatenation": flag("data.packing", "pack"),
    **same(Refused("positions go from 0 to the end of a text"), "use_pose pose_*"),
    # preferences
    "rl": Refused(f"supported are {', '.join(RL)}", harmless=RL),
    "trl": _trl,
    **same(NOTHING_GENERATED, "vllm ebft"),
    "cpo_alpha": Ignored("it is about rl: simpo"),
    "reward_model": Refused("true or false was expected", harmless=(True,)),
    "process_reward_model": Refused("one score for a whole answer is supported: reward_model"),
    "dpo_loss_type": Refused(f"one of {', '.join(LOSSES)}", harmless=tuple([name] for name in LOSSES)),
    **same(jobs.LOSS, "dpo_use_weighting dpo_norm_loss dpo_loss_weights use_eaft eaft_* trainer_cls"),
    "max_prompt_len": Ignored("a question and its answer are left out together where they are too long"),
    **same(Refused("every weight is trained as it is, in fp32, bf16 or fp16"), "qat fp8 fp8_* lisa_*"),
    # the run
    "batch_size": lambda t, n, v: t.put("train.accumulation", max(1, v // t.get("train.batch_size"))),
    "gradient_checkpointing": flag("train.recompute", True, "offload", "offload_disk", "unsloth"),
    "bfloat16": flag("train.precision", "bf16"),
    "bf16": _bf16,
    **same(_of_cosine, "cosine_min_lr_ratio lr_quadratic_warmup"),
    "cosine_constant_lr_ratio": Refused("the schedule falls to its end"),
    "lr_groups": lambda t, n, v: t.put(
        "train.groups",
        [{"match": [f"*{m}*" for m in jobs.listed(one["modules"])], "learning_rate": float(one["lr"])} for one in v],
    ),
    **same(Refused("see train.groups"), "embedding_lr embedding_lr_scale"),
    "loss_watchdog_*": Ignored("train.max_loss_ratio stops a run whose loss explodes"),
    **same(ARGUMENTS["eval_strategy"], "eval_strategy evaluation_strategy"),
    "evals_per_epoch": per_epoch,
    **same(jobs.GENERATION, "eval_max_new_tokens generate_samples num_generation_samples generation_* gradio_*"),
    **same(jobs.GENERATION, "dpo_generate_during_eval do_bench_eval bench_* do_causal_lm_eval eval_causal_lm_metrics"),
    "early_stopping_patience": "eval.patience",
    "saves_per_epoch": per_epoch,
    "auto_resume_from_checkpoints": flag("train.resume"),
    # how it is run
    **same(Refused("every token sees all tokens before it"), "s2_attention landmark_attention"),
    "scaling_softmax": Refused("attention has the checkpoint's own scale"),
    "scaling_softmax_*": Ignored("it is about scaling_softmax"),
    "plugins": _plugins,
    **same(jobs.SPEED, "lora_*_kernel fused_attn_kernel attn_implementation *_attention flash_* liger_*"),
    **same(jobs.SPEED, "cut_cross_entropy sample_packing_* eval_sample_packing pad_to_sequence_len"),
    **same(jobs.SPEED, "pretrain_multipack_* precompute_ref_log_probs torchdistx_path activation_offloading tiled_mlp"),
    **same(jobs.SPEED, "flex_attn_compile_kwargs experts_implementation use_kernels use_scattermoe use_sonicmoe"),
    **same(jobs.SPEED, "lora_on_cpu embeddings_skip_upcast deepcompile selective_checkpointing layer_offloading"),
    **same(jobs.SPEED, "torch_empty_cache_steps max_memory batch_flattening pad_to_multiple_of multipack_real_batches"),
    **same(jobs.SPEED, "sdpa_varlen fp32_norm* merge_method dataset_keep_in_memory gpu_memory_limit"),
    **same(jobs.SPEED, "dpo_padding_free dpo_use_liger_kernel dpo_use_logits_to_keep experimental_skip_move_to_device"),
    **same(jobs.SPEED, "gemma4_hybrid_attn_impl ple_cpu_offload llama4_linearized_experts quantize_moe_experts"),
    **same(
        jobs.SPEED,
        "preprocess_iterable chunked_cross_entropy* total_num_tokens unsloth_* tiled_mlp_* qlora_sharded_model_loading",
    ),
    **same(jobs.LAYOUT, "local_rank ddp* use_ray dp_* tensor_parallel_size expert_parallel_* sequence_parallel_degree"),
    **same(jobs.LAYOUT, "device heads_k_stride ring_attn_func accelerator_config world_size"),
    **same(jobs.LOGS, "debug eval_table_* use_wandb* mlflow_* use_mlflow comet_* use_comet otel_* use_otel_metrics"),
    **same(jobs.LOGS, "use_tensorboard gc_* use_trackio trackio_* hf_mlflow_* profiler_steps* include_t*"),
    "push_dataset_to_hub": Refused("rows are not uploaded; push_dataset_to_hub=null on the command line leaves it out"),
    "hub_model_id": lambda t, n, v: jobs.upload(t, n, v, private=True),
    "hub_revision": Refused("results go to the branch main"),
    "hub_*": Ignored("hub_model_id is uploaded to once, at the end"),
    "strict": Ignored("checkpoints are always read strictly"),
    **same(Ignored("train.save_every says when a checkpoint is written"), "save_first_step dynamic_checkpoint"),
    "auto_find_batch_size": Ignored("the batch is the one that the file says"),
    "save_safetensors": Ignored("adapters are always safetensors"),
    **same(Ignored("axolotl reads no such key"), "test_value eta_min data_seed lr_div_factor report_to run_name"),
    **same(Ignored("axolotl reads no such key"), "push_to_hub use_peft padding_side save_embedding_layers"),
    "bnb_4bit_*": Ignored("axolotl reads it within bnb_config_kwargs alone"),
    **same(Ignored("axolotl itself sets it"), "is_preprocess total_supervised_tokens axolotl_config_path merge_lora"),
    **same(Ignored("axolotl itself sets it"), "capabilities env_capabilities tokenizer_save_jinja_files"),
}
STRATEGY_LAST = [(often, strategy) for often in ("eval_steps", "evals_per_epoch") for strategy in STRATEGIES]
DEFAULTS = {
    "train.batch_size": 1,
    "train.epochs": 1.0,
    "train.schedule": "cosine",
    "train.warmup": 0.03,
    "train.keep_last": 4,
    "data.max_length": 512,
    "data.packing": "longest",
    "data.too_long": "drop",
}


def _one_loss(given: dict[str, Any]) -> dict[str, Any]:
    """``dpo_loss_type: [sigmoid, sft]`` as the loss that compares, and the likelihood beside it as ``rpo_alpha``."""
    names, weights = given["dpo_loss_type"], given.get("dpo_loss_weights")
    losses = dict(zip(names, weights or [1.0] * len(names), strict=False))
    likelihood = losses.pop("sft", None)
    if likelihood is None or len(names) != 2 or list(losses.values()) != [1.0]:
        return given
    return {**given, "dpo_loss_type": list(losses), "dpo_loss_weights": None, "rpo_alpha": likelihood}


def translate(values: dict[str, Any], file: Path) -> Translation:
    """An axolotl file's settings."""
    t = Translation.of_file(file, values)
    full = is_off(values.get("adapter"))
    t.put("adapter.method", "none" if full else "lora")
    t.settings.update(DEFAULTS)
    given = first_of({"bf16": "auto", **values}, ("max_steps", "num_epochs"), *STRATEGY_LAST)
    for name in [name for name in given if full and name.startswith(("lora_", "peft_"))]:
        if not is_off(given.pop(name)):
            t.ignore(name, "there is no adapter")
    reward = "reward" if values.get("reward_model") is True else "sft"
    keys = KEYS
    if values.get("rl") == "simpo":  # by CPO's trainer, whose likelihood term has the weight 1 unless one is given
        weight = given.get("cpo_alpha")
        keys, given = {"cpo_alpha": "sft_weight", **KEYS}, {**given, "cpo_alpha": 1.0 if weight is None else weight}
    elif values.get("rl") and values["rl"] not in RL:  # how its data sets are read is no matter
        given = {name: value for name, value in given.items() if name not in ("datasets", "test_datasets")}
    objective = values["rl"] if values.get("rl") in RL else reward
    if objective == "dpo" and isinstance(values.get("dpo_loss_type"), list):
        given = _one_loss(given)
        objective = LOSSES.get(str(given["dpo_loss_type"][0]), "dpo")
    given = jobs.preferences(t, objective, given, keys, random=("sft",))
    if objective != "sft" and given.pop("train_on_inputs", None) is True:
        t.ignore("train_on_inputs", "answers are compared or judged, and no question is learnt")
    t.apply(given, TABLE)
    if objective == "reward":
        t.put("data.too_long", "cut")  # there whatever the file says of such rows
    if values.get("optimizer") == "lion_pytorch" and None in (given.get("adam_beta1"), given.get("adam_beta2")):
        t.put("train.betas", [0.9, 0.99])  # that package's, unless the file has both
    if t.get("train.lora_plus_ratio") and t.settings.pop("train.weight_decay", None):
        t.ignore("weight_decay", "with loraplus_lr_ratio PEFT decays nothing")
    if not any(values.get(name) for name in ("save_steps", "saves_per_epoch", "save_strategy", "max_steps")):
        saved(t, "save_strategy", "epoch")
    refuse_contradictions(t, values, CONTRADICTIONS)
    schedule_of_transformers(t, "lr_scheduler", given)
    _restarts(t, given)
    if t.get("eval.patience") and saves_with_evaluations(values):
        t.put("eval.load_best_model_at_end", True)
    if t.get("train.warmup"):
        t.put("train.warmup_like", "axolotl")
    if not {"warmup_steps", "warmup_ratio"} & {name for name in given if given[name] is not None}:
        t.put("train.warmup_most", 100 if t.get("train.warmup") else None)
    jobs.settle(t)
    return t
