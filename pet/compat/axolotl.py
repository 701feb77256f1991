"""axolotl's job files, as settings of a recipe. Names of all releases from 0.1 on stand in one table: where a release
renamed a key, both names are there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pet.compat.axolotl_data import OF_THE_FILE, chat_template, datasets, texts
from pet.compat.contradictions import AXOLOTL as CONTRADICTIONS, refuse_contradictions
from pet.compat.job_files import (
    BITS,
    CACHE,
    COMMON,
    DOWNLOADS,
    GENERATION,
    LAYOUT,
    LOGS,
    LOSS,
    MEDIA,
    MODEL,
    OWN_TOKENS,
    SPEED,
    TOKENS,
    adapter,
    base_model,
    eval_steps,
    own_template,
    packing,
    preferences,
    revision,
    settle,
    targets,
    uploaded,
)
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


def _tokens(t: Translation, name: str, value: Any) -> None:
    """New tokens; before 0.2 what is now ``special_tokens``."""
    if isinstance(value, Mapping):
        _special_tokens(t, name, value)
    else:
        t.refuse(name, f"{value!r}: {TOKENS.why}")


def _ends_of_turns(t: Translation, name: str, value: Any) -> None:
    others = [word for word in value if word not in OWN_TOKENS]
    if others:
        t.refuse(name, f"{', '.join(others)}: turns end as in the model's own prompt")
    elif not t.get("data.template"):
        t.ignore(name, "an answer is learnt with the token that ends it")


def _unfrozen(t: Translation, name: str, value: Any) -> None:
    if t.get("adapter.method") != "none":
        t.ignore(name, "an adapter's base is frozen")


def _special_tokens(t: Translation, name: str, value: Any) -> None:
    changed = {role: word for role, word in value.items() if role != "pad_token" and word not in (None, *OWN_TOKENS)}
    if changed:
        t.refuse(name, f"{', '.join(sorted(changed))}: the tokenizer keeps its own")
    else:
        t.ignore(name, "the tokenizer keeps its own; padding is masked, whatever token it is")


def _plugins(t: Translation, name: str, value: Any) -> None:
    others = [one for one in value if one.rpartition(".")[2] not in PLUGINS]
    if others:
        t.refuse(name, f"{', '.join(others)}: see callbacks and train.objective")
    else:
        t.ignore(name, SPEED.why)


def _packed_length(t: Translation, name: str, value: Any) -> None:
    """Of the first releases: rows of this length hold samples of at most ``sequence_len``."""
    t.put("data.packing", "pack")
    t.ignore(name, "samples are packed into rows of sequence_len")


def _template(t: Translation, name: str, value: Any) -> None:
    """The prompt of data sets of messages that name none, and of preferences; it has been read with them."""
    own = [one for key in ("datasets", "test_datasets") for one in t.values.get(key) or ()]
    told = [str(one.get("type")).startswith(OF_THE_FILE) and not one.get("chat_template") for one in own]
    if t.sources and not any(told):
        t.ignore(name, "the data sets have a prompt of their own")
    elif (text := chat_template(t, value, {})) is None:
        if not (value == "jinja" and t.values.get("chat_template_jinja")):
            own_template(t, name, value)
    elif not t.sources:
        t.put("data.template", text)


def _system(t: Translation, name: str, value: Any) -> None:
    if not any(str(one.get("type")).startswith("sharegpt") for one in t.values.get("datasets") or ()):
        t.ignore(name, "it stands in no prompt of axolotl's")


def _shuffled(t: Translation, name: str, value: Any) -> None:
    if t.get("data.streaming"):
        t.put("data.shuffle", value)
    else:
        t.ignore(name, "every epoch has an order of its own")


def _every_linear(t: Translation, name: str, value: Any) -> None:
    """All linear cells, beside what lora_target_modules names."""
    if value:
        t.put("adapter.targets", [*t.get("adapter.targets", []), "all-linear"])


BNB = {
    "bnb_4bit_use_double_quant": "model.quantization.double",
    "bnb_4bit_quant_type": "model.quantization.type",
    **same(SPEED, "bnb_4bit_compute_dtype bnb_4bit_quant_storage"),
}
INITS = {word: word for word in ("gaussian", "pissa", "olora", "loftq")}


def _init(t: Translation, name: str, value: Any) -> None:
    if value is not True:  # PEFT's own, as here
        choice("adapter.init", INITS)(t, name, str(value).partition("_niter")[0])


def _peft(t: Translation, name: str, value: Any) -> None:
    """LoftQ in 4 bits: the base is packed as PEFT packs it, and the adapter begins with what that leaves out."""
    loftq = value.get("loftq_config") or {}
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
    if t.get("train.precision") == "fp16":  # of the two auto stands back
        if value == "auto":
            return
        t.ignore("fp16", "bf16 takes its place")
    flag("train.precision", "bf16", "auto", "full")(t, name, value)


def _quadratic(t: Translation, name: str, value: Any) -> None:
    """The warm-up of the cosine schedule alone, which then ends at 0."""
    if not value:
        return
    if t.get("train.schedule") != "cosine":
        t.ignore(name, "it is about lr_scheduler: cosine")
        return
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


def _saves_with_evaluations(values: Mapping[str, Any]) -> bool:
    """Whether each checkpoint comes with an evaluation; early stopping then ends with the best of them."""
    with contextlib.suppress(ArithmeticError, TypeError, ValueError):
        epochs = values.get("num_epochs") or 1
        every = [
            values.get(f"{what}_steps") or 1 / (values[f"{what}s_per_epoch"] * epochs)
            for what in ("save", "eval")
            if values.get(f"{what}_steps") or values.get(f"{what}s_per_epoch")
        ]
        return len(every) == 2 and every[0] % every[1] == 0
    return False


TABLE = {
    **COMMON,
    **picked(
        ARGUMENTS,
        "learning_rate lr_scheduler optimizer adam_beta1 adam_beta2 weight_decay warmup_steps warmup_ratio seed "
        "max_grad_norm neftune_noise_alpha gradient_accumulation_steps eval_batch_size "
        "fp16 group_by_length output_dir logging_steps save_total_limit resume_from_checkpoint metric_for_best_model "
        "greater_is_better load_best_model_at_end noisy_embedding_alpha=neftune_noise_alpha "
        "micro_batch_size=batch_size num_epochs=num_train_epochs adam_eps*=adam_epsilon",
    ),
    "lr_scheduler_kwargs": elsewhere,
    # the base
    "base_model": base_model,
    "revision_of_model": revision,
    "reinit_weights": flag("model.from_scratch"),
    "tokenizer_config": "model.tokenizer",
    "special_tokens": _special_tokens,
    "tokens": _tokens,
    "resize_token_embeddings_to_32x": TOKENS,
    **same(MODEL, "base_model_config cls_model_config base_model_ignore_patterns model_type num_labels"),
    **same(
        MODEL,
        "is_*_derived_model tokenizer_type tokenizer_use_* tokenizer_legacy torch_dtype float16 bfloat16 float32 gptq "
        "gptq_* type_of_model",
    ),
    "lora_fan_in_fan_out": MODEL,
    "load_in_8bit": lambda t, n, v: t.settings.update(BITS[8] if v and not is_off(v) else {}),
    "load_in_4bit": lambda t, n, v: t.settings.update(BITS[4] if v and not is_off(v) else {}),
    "bnb_config_kwargs": lambda t, n, v: t.apply(v if t.get("model.quantization.type") else {}, BNB, f"{n}."),
    # the adapter
    "adapter": Refused("lora and qlora are supported", harmless=("lora", "qlora")),
    "lora_model_dir": adapter,
    "lora_r": "adapter.rank",
    "lora_target_modules": targets,
    "lora_target_linear": _every_linear,
    "lora_modules_to_save": "adapter.modules_to_save",
    "peft_use_dora": flag("adapter.method", "dora"),
    "peft_use_rslora": "adapter.use_rslora",
    "peft_init_lora_weights": _init,
    "peft_layers_to_transform": "adapter.layers",
    "peft_trainable_token_indices": "adapter.trainable_tokens",
    "lora_rank_pattern": "adapter.rank_pattern",
    "lora_alpha_pattern": "adapter.alpha_pattern",
    "peft": _peft,
    "unfrozen_parameters": _unfrozen,
    **same(elsewhere, "relora relora_*steps relora_prune_* jagged_restart_*"),
    "relora_cpu_offload": Ignored("sums are made on the host"),
    # data
    **same(datasets, "datasets test_datasets"),
    "dataset_prepared_path": CACHE,
    **same("data.workers", "dataset_processes dataset_num_proc"),
    "dataset_exact_deduplication": "data.deduplicate",
    "hf_use_auth_token": DOWNLOADS,
    "val_set_size": number("data.eval_fraction"),
    "sequence_len": "data.max_length",
    "excess_length_strategy": choice("data.too_long", {"drop": "drop", "truncate": "cut"}),
    "max_packed_sequence_len": _packed_length,
    "sample_packing": packing,
    "pretraining_dataset": texts,
    "streaming": "data.streaming",
    "streaming_multipack_buffer_size": lambda t, n, v: t.put("data.stream_window", t.get("data.streaming") and v),
    "curriculum_sampling": flag("data.shuffle", False),
    "shuffle_merged_datasets": _shuffled,
    "min_sample_len": "data.min_length",
    "train_on_inputs": flag("data.train_on", "all"),
    "chat_template": _template,
    "chat_template_jinja": lambda t, n, v: t.sources or t.settings.setdefault("data.template", v),
    "eot_tokens": _ends_of_turns,
    "default_system_message": _system,
    "remove_unused_columns": Ignored("columns without a role are not read"),
    **same(MEDIA, "skip_prepare_dataset processor_type image_*"),
    # preferences
    "rl": Refused(f"supported are {', '.join(RL)}", harmless=RL),
    "trl": _trl,
    "vllm": NOTHING_GENERATED,
    "cpo_alpha": Ignored("it is about rl: simpo"),
    "reward_model": Refused("true or false was expected", harmless=(True,)),
    "process_reward_model": Refused("one score for a whole answer is supported: reward_model"),
    "dpo_loss_type": Refused(f"one of {', '.join(LOSSES)}", harmless=tuple([name] for name in LOSSES)),
    **same(LOSS, "dpo_use_* dpo_loss_weights use_eaft eaft_*"),
    **same(Refused("every weight is trained as it is, in fp32, bf16 or fp16"), "qat fp8 fp8_* lisa_*"),
    # the run
    "batch_size": lambda t, n, v: t.put("train.accumulation", max(1, v // t.get("train.batch_size"))),
    "max_steps": "train.steps",
    "gradient_checkpointing": flag("train.recompute", True, "offload", "offload_disk", "unsloth"),
    "bf16": _bf16,
    "cosine_min_lr_ratio": number("train.final_ratio"),
    "cosine_constant_lr_ratio": Refused("the schedule falls to its end"),
    "lr_groups": lambda t, n, v: t.put(
        "train.groups", [{"match": [f"*{m}*" for m in one["modules"]], "learning_rate": float(one["lr"])} for one in v]
    ),
    **same(Refused("see train.groups"), "embedding_lr embedding_lr_scale"),
    "lr_quadratic_warmup": _quadratic,
    "loss_watchdog_*": Ignored("train.max_loss_ratio stops a run whose loss explodes"),
    **same(ARGUMENTS["eval_strategy"], "eval_strategy evaluation_strategy"),
    "eval_steps": eval_steps,
    "evals_per_epoch": lambda t, n, v: t.put("eval.every_epochs", 1.0 / v if v else None),
    **same(GENERATION, "eval_max_new_tokens generate_samples num_generation_samples generation_* gradio_*"),
    "early_stopping_patience": "eval.patience",
    "save_strategy": Ignored("save_steps says it; a checkpoint is written at the end"),
    "saves_per_epoch": Ignored("give save_steps; a checkpoint is written at the end"),
    "auto_resume_from_checkpoints": flag("train.resume"),
    # how it is run
    **same(Refused("every token sees all tokens before it"), "s2_attention landmark_attention"),
    "scaling_softmax": Refused("attention has the checkpoint's own scale"),
    "plugins": _plugins,
    **same(SPEED, "lora_*_kernel fused_attn_kernel attn_implementation *_attention flash_* liger_* cut_cross_entropy"),
    **same(SPEED, "sample_packing_* eval_sample_packing pad_to_sequence_len pretrain_multipack_*"),
    **same(SPEED, "precompute_ref_log_probs torchdistx_path activation_offloading tiled_mlp flex_attn_compile_kwargs"),
    **same(SPEED, "experts_implementation use_kernels use_scattermoe use_sonicmoe lora_on_cpu embeddings_skip_upcast"),
    **same(SPEED, "deepcompile selective_checkpointing layer_offloading torch_empty_cache_steps max_memory"),
    **same(SPEED, "batch_flattening pad_to_multiple_of multipack_real_batches sdpa_varlen fp32_norm* merge_method"),
    **same(SPEED, "dataset_keep_in_memory gpu_memory_limit chunked_cross_entropy* total_num_tokens"),
    **same(LAYOUT, "local_rank ddp* use_ray dp_* tensor_parallel_size expert_parallel_* sequence_parallel_degree"),
    **same(LAYOUT, "heads_k_stride ring_attn_func accelerator_config"),
    **same(LOGS, "debug eval_table_* use_wandb* mlflow_* use_mlflow comet_* use_comet otel_* use_otel_metrics"),
    **same(LOGS, "use_tensorboard gc_* use_trackio trackio_* hf_mlflow_* profiler_steps* include_t*"),
    **same(uploaded, "push_dataset_to_hub hub_*"),
    "strict": Ignored("checkpoints are always read strictly"),
    "save_safetensors": Ignored("adapters are always safetensors"),
    **same(Ignored("axolotl reads no such key; it stands in its own examples"), "test_value eta_min"),
}
STRATEGIES = ("eval_strategy", "evaluation_strategy")
STRATEGY_LAST = [(often, strategy) for often in ("eval_steps", "evals_per_epoch") for strategy in STRATEGIES]
DEFAULTS = {
    "train.batch_size": 1,
    "train.epochs": 1.0,
    "train.schedule": "cosine",
    "train.warmup": 0.03,
    "data.max_length": 512,
    "data.packing": "longest",
    "data.too_long": "drop",
}


def translate(values: dict[str, Any], file: Path) -> Translation:
    """An axolotl file's settings."""
    t = Translation.of_file(file, values)
    t.put("adapter.method", "lora" if values.get("adapter") else "none")
    t.settings.update(DEFAULTS)
    given = first_of(values, ("max_steps", "num_epochs"), *STRATEGY_LAST)
    for name in [name for name in given if name.startswith(("lora_", "peft_")) and not values.get("adapter")]:
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
    loss = values.get("dpo_loss_type")
    if objective == "dpo" and isinstance(loss, list) and len(loss) == 1:
        objective = LOSSES.get(str(loss[0]), "dpo")
    given = preferences(t, objective, given, keys)
    t.apply(given, TABLE)
    refuse_contradictions(t, values, CONTRADICTIONS)
    schedule_of_transformers(t, "lr_scheduler", given)
    _restarts(t, given)
    if t.get("eval.patience") and _saves_with_evaluations(values):
        t.put("eval.load_best_model_at_end", True)
    if t.get("train.warmup"):
        t.put("train.warmup_like", "axolotl")
    if not {"warmup_steps", "warmup_ratio"} & {name for name in given if given[name] is not None}:
        t.put("train.warmup_most", 100 if t.get("train.warmup") else None)
    settle(t)
    return t
