"""The examples' runs that several tests look at."""

from __future__ import annotations

from pathlib import Path

SIZES = ["--num_train_epochs", 2, "--batch_size", 4, "--learning_rate", 0.01, "--seq_length", 48, "--warmup_steps", 1]


def arguments(name: str, base: Path, do=("--do_train",)) -> list:
    """An example and its arguments for a run of four rows a step; what divides it over processes may follow."""
    return {
        "train": ["distribute_task.py", "--model_type", base, "--run_mode", "train"]
        + ["--train_dataset", base / "data.jsonl", *SIZES],
        "task": ["distribute_task.py", "--model_type", base, "--pet_method", "lora", "--run_mode", "finetune"]
        + ["--train_dataset", base / "data.jsonl", *SIZES],
        "flagai": ["flagai_trainer.py", "--model", base],
        "mindspore": ["mindspore_task.py", "--task_name", "questions", *do, "--base", base]
        + ["--data_dir", base, "--learning_rate", 0.01, "--train_steps", 6],
    }[name]
