"""MindFormers' ``run_check``: whether this installation trains a model and is answered by it."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import numpy as np

from model_zoo.errors import InputError
from pet.compat.mindformers.classes import LlamaForCausalLM
from pet.compat.mindformers.config import LlamaConfig
from pet.compat.mindformers.high_level import Trainer
from pet.compat.mindformers.logs import logger
from pet.compat.mindformers.training_arguments import TrainingArguments

SIZES = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "vocab_size": 100, "seq_length": 8}


def run_check() -> None:
    """What ``pet doctor`` says of this machine; then a small LLaMA is trained for a step, and continues a row.

    Raises:
        InputError: ``pet doctor`` has found what does not work.
    """
    if subprocess.run([sys.executable, "-m", "pet", "doctor"], check=False).returncode:
        raise InputError("run_check: something on this machine does not work; see BAD above")
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    rows = [{"input_ids": np.arange(2, 2 + SIZES["seq_length"])}]
    with tempfile.TemporaryDirectory(prefix="run_check_") as place:
        arguments = TrainingArguments(output_dir=place, batch_size=1, num_train_epochs=1)
        Trainer(model=model, args=arguments, train_dataset=rows).train()
    model.generate([2], do_sample=False, max_new_tokens=2)
    logger.info("All checks passed: a model was trained and has answered")
