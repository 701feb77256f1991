"""Jobs of LLaMA-Factory train as there: its losses and gradient norms (0.9.5, on a CPU in float32) from the same base,
rows and settings."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from pet.compat.yaml_files import load_any
from pet.names import bundled_models
from pet.train.run import finetune

TALK = [
    {
        "conversations": [
            {"from": "human", "value": f"How much is {n} and {n}?"},
            {"from": "gpt", "value": f"It is {2 * n}."},
            {"from": "human", "value": "And one more?"},
            {"from": "gpt", "value": f"Then it is {2 * n + 1}, which is odd."},
        ],
        "system": "Count." if n % 2 else "",
    }
    for n in range(1, 7)
]
PAIRS = [
    {
        "conversations": [{"from": "human", "value": f"Name number {n}."}],
        "chosen": {"from": "gpt", "value": f"Number {n} it is."},
        "rejected": {"from": "gpt", "value": "No, " * n + "I will not."},
    }
    for n in range(1, 7)
]
COLUMNS = {
    "talk": {"messages": "conversations", "system": "system"},
    "pairs": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"},
}
JOB = {
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "dataset": "talk",
    "template": "llama2",
    "cutoff_len": 48,
    "disable_shuffling": True,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 2,
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 1,
    "logging_steps": 1,
    "save_strategy": "no",
    "optim": "adamw_torch",
}
RANKED = {"stage": "dpo", "dataset": "pairs", "per_device_train_batch_size": 1}
FREEZE = {"finetuning_type": "freeze", "freeze_trainable_layers": 1, "freeze_trainable_modules": "mlp"}


@pytest.mark.parametrize(
    ("more", "losses", "norms"),
    [
        pytest.param(
            {"mask_history": True, "template": "default", "default_system": "Be kind."},
            [12.75640, 12.77963, 8.84899, 7.55033],
            [20.2079, 21.2919, 15.0057, 16.6337],
            id="last answers, shortened",
        ),
        pytest.param(
            {**FREEZE, "freeze_extra_modules": "norm", "max_grad_norm": 0.5},
            [11.06119, 11.78911, 10.68449, 11.11195],
            [3.7722, 3.8044, 3.7139, 3.7563],
            id="frozen",
        ),
        pytest.param(
            {**RANKED, "pref_ftx": 0.3, "pref_beta": 0.2},
            [4.01133, 3.94351, 2.51326, 1.69635, 1.29924, 1.11114],
            [53.3196, 77.4742, 10.6188, 5.9113, 4.4442, 4.9000],
            id="dpo",
        ),
        pytest.param(
            {**RANKED, "pref_loss": "orpo"},
            [11.13412, 10.85390, 7.19267, 4.82472, 3.47345, 2.92398],
            [32.6928, 32.7949, 32.2146, 16.8842, 12.2473, 11.0920],
            id="orpo",
        ),
    ],
)
def test_losses_and_gradients_are_llama_factorys(tmp_path, more, losses, norms):
    info = {}
    for name, rows in (("talk", TALK), ("pairs", PAIRS)):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
        info[name] = {"file_name": f"{name}.json", "formatting": "sharegpt", "columns": COLUMNS[name]}
    info["pairs"]["ranking"] = True
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    places = {"model_name_or_path": str(bundled_models()["llama_tiny"]), "dataset_dir": str(tmp_path)}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**JOB, **places, "output_dir": str(tmp_path / "run"), **more}))
    finetune(load_any(tmp_path / "job.yaml"))
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if "gradient_norm" in step]
    np.testing.assert_allclose([step["loss"] for step in steps], losses, rtol=1e-4)
    np.testing.assert_allclose([step["gradient_norm"] for step in steps], norms, rtol=1e-3)
