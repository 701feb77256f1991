"""LLaMA-Factory's examples that train LoRA: `llamafactory-cli train FILE` -> `pet finetune FILE`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from . import Case, job_files

WHAT = job_files.WHAT

TEXT_MODELS = re.compile(r"Llama-3(?!.*Vision)|Llama-2|Qwen3-4B", re.IGNORECASE)
"""Models of families that are here; llama_tiny stands for all of them, whose matrices have the same names."""
PACKED = re.compile(r"GPTQ|AWQ|AQLM")


def about(values: dict[str, Any]) -> str | None:
    """The base in place of the file's own."""
    model = str(values.get("model_name_or_path"))
    if not (values.get("do_train") and values.get("finetuning_type") == "lora" and TEXT_MODELS.search(model)):
        return None
    packed = (PACKED.search(model) or [""])[0].lower()
    return f"llama_tiny {packed}".strip()


def count(clone: Path, work: Path, seconds: float | None = None) -> list[Case]:
    """What becomes of each file."""
    from pet.compat.llama_factory import translate

    return job_files.count(clone, work, seconds, translate, about)
