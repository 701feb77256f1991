"""What TRL calls the settings of its SFT, preference and reward trainers, for hints where such a name is met."""

from __future__ import annotations

NAMES = {
    "loss_type": "train.objective (sigmoid is dpo)",
    "loss_weights": "train.sft_weight, for sft beside another loss",
    **dict.fromkeys(("rpo_alpha", "cpo_alpha"), "train.sft_weight"),
    "simpo_gamma": "train.gamma",
    "label_smoothing_factor": "train.label_smoothing",
    **dict.fromkeys(("ref_model", "ref_adapter_name"), "train.reference"),
    "model_adapter_name": "adapter.name",
    "precompute_ref_log_probs": "train.reference: precompute, the default",
    "precompute_ref_batch_size": "train.batch_size",
    "reference_free": "train.objective: simpo or orpo",
    "peft_config": "the adapter section, or pet.apply(model, config)",
    "max_prompt_length": "data.max_prompt, which cuts a question's end; data.max_length is of both together",
    "max_completion_length": "data.max_answer, an answer's end token aside; data.max_length is of both together",
    "chat_template_path": "data.template",
    "truncation_mode": "data.too_long",
    "train_dataset": "data.train, in Python train_data",
    "eval_dataset": "data.eval, in Python eval_data",
    **dict.fromkeys(
        ("processing_class", "tokenizer"), "model.tokenizer, in Python an argument of pet.data.load_dataset"
    ),
    "per_device_train_batch_size": "train.batch_size, over all processes",
    "per_device_eval_batch_size": "eval.batch_size",
    "gradient_accumulation_steps": "train.accumulation",
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), "train.recompute"),
    "num_train_epochs": "train.epochs",
    "max_steps": "train.steps",
    "max_grad_norm": "train.clip_norm",
    "lr_scheduler_type": "train.schedule",
    **dict.fromkeys(("warmup_ratio", "warmup_steps"), "train.warmup"),
    **dict.fromkeys(("logging_steps", "logging_strategy"), "train.log_every"),
    **dict.fromkeys(("save_steps", "save_strategy"), "train.save_every"),
    "save_total_limit": "train.keep_last",
    "eval_steps": "eval.every_steps",
    **dict.fromkeys(("eval_strategy", "evaluation_strategy"), "eval.every_steps or eval.every_epochs"),
    "overwrite_output_dir": "output.force, in Python a directory of its own",
    "run_name": "the recipe's name",
    "lr_scheduler_kwargs": "train.cycles, power, final_ratio and decay",
    "max_seq_length": "data.max_length",
    "group_by_length": "data.packing: buckets",
    "dataloader_drop_last": "data.drop_last",
    "output_dir": "output.dir, in Python directory",
    "report_to": "callbacks",
    "disable_dropout": "adapter.dropout: 0",
    "generate_during_eval": "eval.shown_samples",
    "args": "the train section, in Python its settings by name",
    "data_collator": "collate_fn of pet.data.make_loader, whose loader stands in the place of the data's file",
    "compute_metrics": "eval.metrics",
    "metric_for_best_model": "eval.best_metric",
    "greater_is_better": "eval.best_mode",
    "eval_on_start": "eval.before",
    "optim": "train.optimizer",
    **dict.fromkeys(("adam_beta1", "adam_beta2"), "train.betas"),
    "adam_epsilon": "train.eps",
    "bf16": "train.precision: bf16",
    "fp16": "train.precision: fp16",
    "neftune_noise_alpha": "train.neftune_alpha",
    "resume_from_checkpoint": "train.resume",
    "data_seed": "data.seed",
    **dict.fromkeys(("dataset_num_proc", "dataloader_num_workers"), "data.workers"),
    "padding_free": "data.packing",
    "packing_strategy": "data.packing: pack, which cuts no sample",
    "eval_packing": "data.packing, of both",
    **dict.fromkeys(
        ("assistant_only_loss", "completion_only_loss"), "data.train_on: answers, the default (false is all)"
    ),
    "dataset_text_field": "data.columns, the role text",
    **dict.fromkeys(("shuffle_dataset", "train_sampling_strategy"), "data.shuffle"),
}
NEEDLESS = (
    *("auto_find_batch_size", "ddp_find_unused_parameters", "remove_unused_columns", "save_on_each_node"),
    *("dataloader_pin_memory", "gradient_checkpointing_kwargs", "save_safetensors", "disable_tqdm"),
)
"""What changes nothing here."""
MISSING = (
    *("discopop_tau", "f_alpha_divergence_coef", "f_divergence_type", "ld_alpha", "ref_model_mixup_alpha"),
    *("ref_model_sync_steps", "router_aux_loss_coef", "sync_ref_model", "use_weighting"),
)
"""Settings of TRL's that change what is learnt and have no counterpart."""


def hint(name: str) -> str:
    """`` (TRL's loss_type is train.objective …)``; nothing for other names."""
    if name in MISSING:
        return f" (TRL's {name} has no counterpart)"
    if name in NEEDLESS:
        return f" (leave it out: TRL's {name} changes nothing here)"
    return f" (TRL's {name} is {NAMES[name]})" if name in NAMES else ""
