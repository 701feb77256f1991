"""LLaMA-Factory's names of 2023."""

from __future__ import annotations

import json

import pytest
from user_job_files import JOBS, job

from pet.compat import llama_factory
from pet.compat.merging import of_file
from pet.compat.yaml_files import load_any


@pytest.mark.parametrize(
    ("given", "found", "problem"),
    [
        ({"checkpoint_dir": "saves/one"}, {"adapter.load": "saves/one"}, ""),
        ({"checkpoint_dir": "saves/one", "adapter_name_or_path": None}, {"adapter.load": None}, ""),  # by the command
        ({"checkpoint_dir": "saves/one", "resume_lora_training": True}, {"adapter.load": "saves/one"}, ""),
        (
            {"checkpoint_dir": "saves/one", "resume_lora_training": False},
            {},
            "create_new_adapter: first pet merge saves/one --base",
        ),
        ({"checkpoint_dir": "saves/one", "finetuning_type": "full"}, {}, "name these weights by model_name_or_path"),
        ({"resume_lora_training": False, "dev_ratio": 0.1, "sft_packing": True}, {"data.eval_fraction": 0.1}, ""),
        ({"prompt_template": "qwen", "system_prompt": "Be kind.", "neft_alpha": 5}, {"train.neftune_alpha": 5.0}, ""),
        ({"max_source_length": 512}, {}, "cutoff_len is the length of question and answer"),
    ],
)
def test_llama_factorys_names_of_2023(tmp_path, given, found, problem):
    t = llama_factory.translate({**JOBS["llama_factory"], **given}, tmp_path / "job.yaml")
    assert {key: t.get(key) for key in found} == found
    assert problem in t.problems[0] if problem else not t.problems
    if "prompt_template" in given:
        assert "Be kind." in t.get("data.template") and "read as default_system" in t.ignored["system_prompt"]


def test_layers_by_llama_factorys_names_of_2023(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"instruction": "Q", "output": "A"}) + "\n")
    old = {"num_layer_trainable": 1, "name_module_trainable": "mlp"}
    new = {"freeze_trainable_layers": 1, "freeze_trainable_modules": "mlp"}
    told = [f"data.train={rows}", "data.max_length=64"]
    file = {**JOBS["llama_factory"], "finetuning_type": "freeze"}
    trained = [load_any(job(tmp_path, **file, **names), told).adapter.trained for names in (old, new)]
    assert trained == [["*.3.mlp*"]] * 2


def test_an_adapter_by_llama_factorys_name_of_2023_can_be_merged(tmp_path):
    merge = of_file(str(job(tmp_path, **JOBS["llama_factory"], checkpoint_dir="saves/run", export_dir="merged")))
    assert (merge["adapters"], merge["output"]) == (["saves/run"], "merged")
