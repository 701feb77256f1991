"""What TRL calls the settings of its DPO, KTO, ORPO and reward trainers, for hints where such a name is met."""

from __future__ import annotations

NAMES = {
    "loss_type": "train.objective (sigmoid is dpo)",
    "rpo_alpha": "train.sft_weight",
    "simpo_gamma": "train.gamma",
    "cpo_alpha": "train.sft_weight",
    "label_smoothing_factor": "train.label_smoothing",
    "ref_model": "train.reference",
    "ref_adapter_name": "train.reference",
    "model_adapter_name": "adapter.name",
    "precompute_ref_log_probs": "train.reference: precompute, the default",
    "precompute_ref_batch_size": "train.batch_size",
    "reference_free": "train.objective: simpo or orpo",
    "peft_config": "the adapter section, or pet.apply(model, config)",
    "max_prompt_length": "data.max_length, of question and answer together",
    "max_completion_length": "data.max_length, of question and answer together",
    "truncation_mode": "data.too_long",
    "train_dataset": "data.train, in Python train_data",
    "eval_dataset": "data.eval, in Python eval_data",
    "processing_class": "model.tokenizer",
    "per_device_train_batch_size": "train.batch_size, over all processes",
    "per_device_eval_batch_size": "eval.batch_size",
    "gradient_accumulation_steps": "train.accumulation",
    "gradient_checkpointing": "train.recompute",
    "num_train_epochs": "train.epochs",
    "max_steps": "train.steps",
    "max_grad_norm": "train.clip_norm",
    "lr_scheduler_type": "train.schedule",
    "warmup_ratio": "train.warmup",
    "warmup_steps": "train.warmup",
    "logging_steps": "train.log_every",
    "save_steps": "train.save_every",
    "save_total_limit": "train.keep_last",
    "eval_steps": "eval.every_steps",
    "output_dir": "output.dir, in Python directory",
    "report_to": "callbacks",
    "disable_dropout": "adapter.dropout: 0",
    "generate_during_eval": "eval.shown_samples",
}


def hint(name: str) -> str:
    """`` (TRL's loss_type is train.objective …)``; nothing for other names."""
    return f" (TRL's {name} is {NAMES[name]})" if name in NAMES else ""
