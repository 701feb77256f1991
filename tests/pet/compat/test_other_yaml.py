"""LLaMA-Factory's and axolotl's job files become recipes that say the same."""

from __future__ import annotations

import json

import pytest
import yaml

from model_zoo.errors import InputError
from pet.compat.yaml_files import load_any


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_llama_factory(base, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dataset_info.json").write_text(
        json.dumps({"mine": {"file_name": "rows.json", "columns": {"prompt": "question", "response": "reply"}}})
    )
    (tmp_path / "data/rows.json").write_text(json.dumps([{"question": "Who?", "reply": "Me."}] * 3))
    file = {
        "model_name_or_path": str(base),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora",
        "lora_target": "all",
        "lora_rank": 4,
        "dataset": "mine",
        "dataset_dir": str(tmp_path / "data"),
        "template": "default",
        "cutoff_len": 64,
        "output_dir": str(tmp_path / "saves"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "learning_rate": 1e-4,
        "num_train_epochs": 2.0,
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.1,
        "plot_loss": True,
        "val_size": 0.4,
        "eval_strategy": "steps",
        "eval_steps": 1,
    }
    recipe = load_any(write(tmp_path / "lf.yaml", yaml.safe_dump(file)))
    assert (recipe.adapter.rank, recipe.adapter.alpha, recipe.adapter.targets) == (4, 8.0, ["all-linear"])
    assert recipe.data.train == [str(tmp_path / "data/rows.json")]
    assert recipe.data.columns == {"prompt": "question", "answer": "reply"}
    assert (recipe.train.accumulation, recipe.train.warmup, recipe.train.schedule) == (4, 0.1, "cosine")
    assert (recipe.data.eval_fraction, recipe.eval.every_steps) == (0.4, 1)
    for more, message in (
        ({"quantization_bit": 4}, "quantization_bit: 4: weights are not quantised"),
        ({"template": "alpaca"}, "template: 'alpaca': the prompt is that of the model's own tokenizer"),
        ({"rope_scaling": "linear"}, "rope_scaling: 'linear': positions are those"),
    ):
        with pytest.raises(InputError, match=message):
            load_any(write(tmp_path / "lf.yaml", yaml.safe_dump({**file, **more})))


def test_axolotl(base, tmp_path):
    file = {
        "base_model": str(base),
        "load_in_8bit": False,
        "datasets": [{"path": str(base / "data.jsonl"), "type": "alpaca"}],
        "val_set_size": 0.25,
        "adapter": "lora",
        "lora_r": 4,
        "lora_alpha": 8,
        "lora_target_modules": ["c_attn"],
        "sequence_len": 64,
        "sample_packing": True,
        "micro_batch_size": 2,
        "num_epochs": 2,
        "max_steps": 6,
        "optimizer": "adamw_bnb_8bit",
        "lr_scheduler": "cosine",
        "learning_rate": 2e-4,
        "bf16": "auto",
        "evals_per_epoch": 2,
        "wandb_project": None,
        "special_tokens": None,
        "output_dir": str(tmp_path / "out"),
    }
    recipe = load_any(write(tmp_path / "ax.yaml", yaml.safe_dump(file)), ["adapter.rank=6"])
    assert (recipe.adapter.rank, recipe.adapter.targets, recipe.data.format) == (6, ["c_attn"], "alpaca")
    assert (recipe.train.steps, recipe.train.epochs, recipe.data.packing) == (6, None, "pack")
    assert recipe.eval.every_epochs == 0.5
    with pytest.raises(InputError, match="adapter: 'qlora'"):
        load_any(write(tmp_path / "ax.yaml", yaml.safe_dump({**file, "adapter": "qlora"})))


@pytest.mark.parametrize("system", ["llama_factory", "axolotl"])
def test_bf16_of_a_job_file_falls_back_with_one_line(base, tmp_path, caplog, system):
    file = {
        "llama_factory": {"model_name_or_path": str(base), "stage": "sft", "do_train": True, "finetuning_type": "lora"}
        | {"dataset": str(base / "data.jsonl"), "output_dir": str(tmp_path / "out"), "bf16": True},
        "axolotl": {"base_model": str(base), "adapter": "lora", "output_dir": str(tmp_path / "out"), "bf16": True}
        | {"datasets": [{"path": str(base / "data.jsonl"), "type": "alpaca"}]},
    }[system]
    short = ["data.max_length=64"]
    path = write(tmp_path / "job.yaml", yaml.safe_dump(file))
    assert load_any(path, short).train.precision == "fp32"
    assert sum("this device has no bf16 products; train.precision is fp32" in r.message for r in caplog.records) == 1
    assert (
        load_any(path, [*short, "train.precision=bf16"]).train.precision == "bf16"
    )  # asked for here: an error when it runs
    assert (
        load_any(write(tmp_path / "job.yaml", yaml.safe_dump({**file, "bf16": False})), short).train.precision == "fp32"
    )
