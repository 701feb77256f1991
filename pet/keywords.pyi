"""Keyword arguments by name, for editors. Written by tests/typing/write_keywords.py."""

from typing import Any, Literal, TypedDict

class OfBothTrainers(TypedDict, total=False):
    task: Any
    pet_method: Any
    args: Any
    recipe: Any
    train_dataset: Any
    eval_dataset: Any
    tokenizer: Any
    data_collator: Any
    do_eval: Any
    load_checkpoint: Any
    optimizers: Any
    options: Any
    model_name: Any
    save_config: Any
    eval_callbacks: Any
    wrapper: Any
    compute_metrics: Any
    image_processor: Any
    audio_processor: Any
    reset_model: Any

class TrainSettings(OfBothTrainers, total=False):
    steps: int | None
    epochs: float | None
    max_seconds: float | None
    batch_size: int
    accumulation: int
    learning_rate: float
    optimizer: Literal["adamw", "adam", "sgd", "momentum", "lamb", "lion", "adafactor"]
    betas: list[float]
    eps: float
    bias_correction: bool
    weight_decay: float
    decay_vectors: bool
    momentum: float
    groups: Any
    lora_plus_ratio: float | None
    schedule: Literal["constant", "linear", "cosine", "cosine_restarts", "polynomial", "wsd", "inverse_sqrt"]
    warmup: float
    warmup_power: float
    warmup_from: float
    schedule_steps: int | None
    warmup_like: Literal["transformers", "mindformers", "axolotl"] | None
    warmup_most: int | None
    final_ratio: float
    cycles: int
    power: float
    decay: float
    decay_shape: Literal["linear", "cosine", "1-sqrt"]
    restart_every: int | None
    restart_warmup: int
    restart_decay: int
    restart_prune: float
    clip_norm: float | None
    precision: Literal["fp32", "fp16", "bf16", "auto"]
    loss_scale: Any
    recompute: bool | int
    beta: float | None
    sft_weight: float
    gamma: float
    desirable_weight: float
    undesirable_weight: float
    center_rewards_coefficient: float
    reference: str | None
    label_smoothing: float
    base_dropout: dict[Literal["embedding", "hidden", "attention"], float]
    neftune_alpha: float
    r_drop_alpha: float
    seed: int
    log_every: int
    save_every: float | None
    keep_last: int
    save_prefix: str
    resume: bool
    accept_changes: bool
    profile: bool
    max_loss_ratio: float | None

class RequestSettings(OfBothTrainers, total=False):
    callbacks: Any
    forward_step: Any

class TrainingArgumentSettings(TypedDict, total=False):
    run_name: Any
    overwrite_output_dir: Any
    only_save_strategy: Any
    train_dataset: Any
    eval_dataset: Any
    data_seed: Any
    num_samples: Any
    shuffle: Any
    group_by_length: Any
    dataloader_num_workers: Any
    max_length: Any
    seq_length: Any
    seed: Any
    num_train_epochs: Any
    max_steps: Any
    gradient_accumulation_steps: Any
    dataloader_drop_last: Any
    label_smoothing_factor: Any
    neftune_noise_alpha: Any
    fp16: Any
    bf16: Any
    max_grad_norm: Any
    use_clip_grad: Any
    per_device_train_batch_size: Any
    batch_size: Any
    eval_batch_size: Any
    per_device_eval_batch_size: Any
    gradient_checkpointing: Any
    recompute: Any
    learning_rate: Any
    weight_decay: Any
    adam_beta1: Any
    adam_beta2: Any
    adam_epsilon: Any
    warmup_steps: Any
    warmup_ratio: Any
    warmup_epochs: Any
    lr_scheduler_type: Any
    lr_scheduler: Any
    lr_end: Any
    optim: Any
    optimizer: Any
    layer_scale: Any
    lr_scale: Any
    warmup_lr_init: Any
    total_steps: Any
    repeat: Any
    save_steps: Any
    save_prefix: Any
    save_total_limit: Any
    logging_steps: Any
    report_interval: Any
    eval_steps: Any
    eval_step_interval: Any
    eval_epoch_interval: Any
    eval_epochs: Any
    save_strategy: Any
    eval_strategy: Any
    evaluation_strategy: Any
    metric_for_best_model: Any
    greater_is_better: Any
    load_best_model_at_end: Any
    resume_from_checkpoint: Any
    resume_training: Any
    ignore_data_skip: Any
    data_skip_steps: Any
    profile: Any
    remote_save_url: Any
    push_to_hub: Any
    hub_model_id: Any
    logging_dir: Any
    logging_strategy: Any
    disable_tqdm: Any
    report_to: Any
    do_eval: Any
    use_parallel: Any
    load_checkpoint: Any
    data_parallel: Any
    model_parallel: Any
    tensor_parallel: Any
    pipeline_stage: Any
    pipeline_parallel: Any
    micro_batch_num: Any
    micro_size: Any
    optimizer_shard: Any
    use_seq_parallel: Any
    seq_split_num: Any
    mem_coeff: Any
    context_parallel: Any
    expert_parallel: Any
    vocab_emb_dp: Any
    gradient_aggregation_group: Any
    micro_batch_interleave_num: Any
    train_dataset_in_columns: Any
    eval_dataset_in_columns: Any
    do_train: Any
    do_predict: Any
    expert_num: Any
    ddp_timeout: Any
    deepspeed: Any
    fsdp: Any
    mode: Any
    device_target: Any
    device_id: Any
    full_batch: Any
    gradients_mean: Any
    max_device_memory: Any
    enable_graph_kernel: Any
    max_call_depth: Any
    save_graphs: Any
    save_graphs_path: Any
    sink_mode: Any
    sink_size: Any
    auto_trans_ckpt: Any
    src_strategy: Any
    transform_process_num: Any
    use_cpu: Any
    parallel_mode: Any
    loss_repeated_mean: Any
    enable_alltoall: Any
    dataset_strategy: Any
    search_mode: Any
    gradient_accumulation_shard: Any
    parallel_optimizer_threshold: Any
    optimizer_weight_shard_size: Any
    strategy_ckpt_save_file: Any
    capacity_factor: Any
    aux_loss_factor: Any
    layer_decay: Any
    num_experts_chosen: Any
    select_recompute: Any
    parallel_optimizer_comm_recompute: Any
    mp_comm_recompute: Any
    recompute_slice_activation: Any
    lr_scale_factor: Any
    dataset_task: Any
    dataset_type: Any
    train_dataset_out_columns: Any
    eval_dataset_out_columns: Any
    python_multiprocessing: Any
    numa_enable: Any
    prefetch_size: Any
    wrapper_type: Any
    scale_sense: Any
    loss_scale_value: Any
    loss_scale_factor: Any
    loss_scale_window: Any
    max_scale_window: Any
    min_scale_window: Any
    metric_type: Any
    save_directory: Any
    save_seconds: Any
    keep_checkpoint_per_n_minutes: Any
    save_on_each_node: Any
    integrated_save: Any
    save_network_params: Any
    async_save: Any
    save_trainable_params: Any
    profile_start_step: Any
    profile_end_step: Any
    init_start_profile: Any
    profile_memory: Any
    profile_communication: Any
    auto_tune: Any
    filepath_prefix: Any
    autotune_per_step: Any
    hub_strategy: Any
    hub_token: Any
    hub_private_repo: Any
    hub_always_push: Any
    check_for_nan_in_loss_and_grad: Any
    calculate_per_token_loss: Any
