"""axolotl's examples that train LoRA: `axolotl train FILE` -> `pet finetune FILE`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from . import Case, job_files

WHAT = job_files.WHAT

TEXT_MODELS = re.compile(
    r"CodeLlama|open_llama|TinyLlama|Llama-2-7|Llama-3\.2-[13]B|Llama-3-8B|llama-3-70b|Llama-3\.1-405B|Yi-34B|cogito|"
    r"mistralai/Mistral-7B|Ministral-8B|Mistral-Small-3\.1|Devstral|Magistral|Qwen2-7B|Qwen/Qwen3-(8|32)B|DeepCoder|"
    r"Plano",
    re.IGNORECASE,
)
"""Models of families that are here; llama_tiny stands for all of them, whose matrices have the same names."""


def about(values: dict[str, Any]) -> str | None:
    """The base in place of the file's own."""
    model = str(values.get("base_model"))
    if values.get("adapter") not in ("lora", "qlora"):
        return None
    if "GLM-4-32B" in model:
        return "glm4_tiny"
    return f"llama_tiny{' gptq' * ('GPTQ' in model)}" if TEXT_MODELS.search(model) else None


def count(clone: Path, work: Path, seconds: float | None = None) -> list[Case]:
    """What becomes of each file."""
    from pet.compat.axolotl import translate

    return job_files.count(clone, work, seconds, translate, about)
