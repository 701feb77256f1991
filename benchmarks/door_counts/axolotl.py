"""axolotl's examples: `axolotl train FILE` -> `pet finetune FILE`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from . import Case, job_files

WHAT = job_files.WHAT

TEXT_MODELS = re.compile(
    r"CodeLlama|open_llama|TinyLlama|Llama-2-7|Llama-3\.2-[13]B|Llama-3-8B|llama-3-70b|Llama-3\.1-405B|Yi-34B|cogito|"
    r"mistralai/Mistral-7B|Ministral-8B|Mistral-Small-3\.1|Devstral|Magistral|Qwen2-7B|Qwen/Qwen3-(8|32)B|DeepCoder|"
    r"Plano|llama-7b|Llama-3\.1-8B|gemma-2-|gemma-3-|Qwen2\.5-(0\.5|3|72)B|Qwen3-30B-A3B-Instruct|SmolLM2|orpheus-3b|"
    r"Reward-V2-Qwen3",
    re.IGNORECASE,
)
"""Models of families that are here; llama_tiny stands for all of them, whose matrices have the same names."""


def about(values: dict[str, Any]) -> tuple[str, str] | None:
    """The base in place of the file's own, and what the file is for."""
    model = str(values.get("base_model"))
    part = job_files.LORA if values.get("adapter") else job_files.FULL
    part = job_files.FREEZES if values.get("unfrozen_parameters") and part == job_files.FULL else part
    if "GLM-4-32B" in model:
        return "glm4_tiny", part
    return (f"llama_tiny{' gptq' * ('GPTQ' in model)}", part) if TEXT_MODELS.search(model) else None


def count(clone: Path, work: Path, seconds: float | None = None) -> list[Case]:
    """What becomes of each file."""
    from pet.compat.axolotl import translate

    return job_files.count(clone, work, seconds, translate, about)
