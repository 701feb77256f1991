"""Keyword arguments by name, for editors. Written by tests/typing/write_keywords.py."""

from typing import Any, Literal, TypedDict

class TrainSettings(TypedDict, total=False):
    steps: int | None
    epochs: float | None
    max_seconds: float | None
    batch_size: int
    accumulation: int
    learning_rate: float
    optimizer: Literal["adamw", "adam", "sgd", "momentum", "lamb", "adafactor"]
    betas: Any
    eps: float
    weight_decay: float
    decay_vectors: bool
    momentum: float
    groups: Any
    lora_plus_ratio: float | None
    schedule: Literal["constant", "linear", "cosine", "cosine_restarts", "polynomial", "wsd"]
    warmup: Any
    final_ratio: float
    cycles: int
    power: float
    decay: Any
    clip_norm: float | None
    precision: Literal["fp32", "fp16", "bf16", "auto"]
    loss_scale: Any
    recompute: bool
    objective: str
    beta: float | None
    sft_weight: float
    gamma: float
    reference: Any
    label_smoothing: float
    neftune_alpha: float
    r_drop_alpha: float
    seed: int
    log_every: int
    save_every: int | None
    keep_last: int
    resume: bool
    accept_changes: bool
    profile: bool
    max_loss_ratio: float | None

class TrainingArgumentSettings(TypedDict, total=False):
    num_train_epochs: Any
    max_steps: Any
    batch_size: Any
    per_device_train_batch_size: Any
    per_device_eval_batch_size: Any
    eval_batch_size: Any
    gradient_accumulation_steps: Any
    learning_rate: Any
    weight_decay: Any
    adam_beta1: Any
    adam_beta2: Any
    adam_epsilon: Any
    max_grad_norm: Any
    warmup_steps: Any
    warmup_ratio: Any
    lr_scheduler_type: Any
    lr_scheduler: Any
    optim: Any
    optimizer: Any
    label_smoothing_factor: Any
    seed: Any
    data_seed: Any
    save_steps: Any
    save_strategy: Any
    save_total_limit: Any
    logging_steps: Any
    report_interval: Any
    eval_strategy: Any
    evaluation_strategy: Any
    eval_steps: Any
    eval_step_interval: Any
    eval_epoch_interval: Any
    metric_for_best_model: Any
    greater_is_better: Any
    resume_from_checkpoint: Any
    resume_training: Any
    overwrite_output_dir: Any
    fp16: Any
    bf16: Any
    gradient_checkpointing: Any
    recompute: Any
    neftune_noise_alpha: Any
    max_length: Any
    seq_length: Any
    profile: Any
    only_save_strategy: Any
    group_by_length: Any
    do_eval: Any
    do_train: Any
    do_predict: Any
    use_parallel: Any
    load_checkpoint: Any
    sink_mode: Any
    sink_size: Any
    dataloader_num_workers: Any
    dataloader_drop_last: Any
    logging_dir: Any
    logging_strategy: Any
    disable_tqdm: Any
    report_to: Any
    run_name: Any
    ddp_timeout: Any
    load_best_model_at_end: Any
    deepspeed: Any
    fsdp: Any
    push_to_hub: Any
    hub_model_id: Any
