"""A job file as MindFormers publishes it."""

from __future__ import annotations

JOB = {
    "run_mode": "train",
    "load_checkpoint": "",
    "src_strategy_path_or_dir": "",
    "remote_save_url": "Please input obs url on AICC platform.",
    "runner_config": {"epochs": 2, "batch_size": 2, "sink_mode": True},
    "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "llama2_7b"},
    "optimizer": {"type": "FP32StateAdamWeightDecay", "beta1": 0.9, "beta2": 0.95},
    "lr_schedule": {"type": "polynomial", "learning_rate": 1e-4, "total_steps": -1},
    "use_parallel": False,
    "parallel_config": {"data_parallel": 8, "use_seq_parallel": True, "mem_coeff": 0.1},
    "train_dataset": {"data_loader": {"type": "MindDataset", "dataset_dir": ""}, "input_columns": ["input_ids"]},
    "model": {
        "model_config": {
            "type": "LlamaConfig", "hidden_size": 4096, "num_layers": 32, "num_heads": 32, "vocab_size": 32000,
            "seq_length": 64, "checkpoint_name_or_path": "llama2_7b", "compute_in_2d": True, "use_past_shard": False,
            "max_position_embedding": 4096, "extend_method": "None",
        },
        "arch": {"type": "LlamaForCausalLM"},
    },
    "callbacks": [{"type": "ObsMonitor", "keep_last": False}],
}  # fmt: skip


def notes(caplog) -> str:
    return " ".join(record.message for record in caplog.records)
