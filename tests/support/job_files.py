"""Job files of LLaMA-Factory and axolotl, as little as each has to say."""

from __future__ import annotations

import json

from pet.compat import llama_factory
from pet.compat.prompts import AXOLOTL


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


CHATML = AXOLOTL["chatml"].jinja(ends="eos_token == '<|im_end|>'")
JOBS = {
    "llama_factory": {
        "model_name_or_path": "org/base",
        "stage": "sft",
        "finetuning_type": "lora",
        "dataset": "identity",
    },
    "axolotl": {"base_model": "org/base", "adapter": "lora", "lora_target_linear": True}
    | {"datasets": [{"path": "org/rows", "type": "alpaca"}]},
}


def of_llama_factory(tmp_path, entries=None, **given):
    """A job file of LLaMA-Factory over data sets of these entries of its list."""
    entries = entries or {"a": {}}
    (tmp_path / "dataset_info.json").write_text(
        json.dumps({name: {"file_name": f"{name}.json", **entry} for name, entry in entries.items()})
    )
    file = {**JOBS["llama_factory"], "dataset": ",".join(entries), "dataset_dir": str(tmp_path), **given}
    return llama_factory.translate(file, tmp_path / "job.yaml")


CHAT = {"path": "rows.jsonl", "type": "chat_template"}
