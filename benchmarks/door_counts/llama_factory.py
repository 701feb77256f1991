"""LLaMA-Factory's examples: `llamafactory-cli train|export|chat FILE` -> `pet finetune|merge|predict FILE`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from . import Case, job_files

WHAT = job_files.WHAT

TEXT_MODELS = re.compile(
    r"Llama-3(?!.*Vision)|Llama-2|Qwen2-1\.5B|Qwen2\.5-(0\.5|7)B|Qwen3-(4|8|30|235)B|saves/(llama3|qwen3-4b)|llama3-8b.*pro",
    re.IGNORECASE,
)
"""Models of families that are here, and what was made of them; llama_tiny stands for all of them, whose matrices have
the same names."""
PACKED = re.compile(r"GPTQ|AWQ|AQLM")
TRAINED = {"lora": job_files.LORA, "oft": job_files.LORA, "full": job_files.FULL, "freeze": job_files.FREEZES}


def about(values: dict[str, Any]) -> tuple[str, str] | None:
    """The base in place of the file's own, and what the file is for."""
    model = str(values.get("model_name_or_path"))
    if not TEXT_MODELS.search(model):
        return None
    packed = (PACKED.search(model) or [""])[0].lower()
    if values.get("do_train"):
        part = TRAINED[values.get("finetuning_type", "lora")]
    elif values.get("export_dir"):
        part = job_files.MERGES
    elif values.get("do_predict"):
        part = job_files.MEASURES
    else:
        part = job_files.BENCHMARK if values.get("task") else job_files.ASKS
    return f"llama_tiny {packed}".strip(), part


def count(clone: Path, work: Path, seconds: float | None = None) -> list[Case]:
    """What becomes of each file."""
    from pet.compat.llama_factory import translate

    return job_files.count(clone, work, seconds, translate, about)
