"""Job files that users have written."""

from __future__ import annotations

import yaml


def job(tmp_path, name="job.yaml", **settings):
    path = tmp_path / name
    path.write_text(yaml.safe_dump(settings))
    return path


JOBS = {
    "axolotl": {"base_model": "llama_tiny", "adapter": "lora", "datasets": [{"path": "a", "type": "alpaca"}]},
    "llama_factory": {"model_name_or_path": "llama_tiny", "finetuning_type": "lora", "dataset": "a"},
}
