"""What machine this is, for results of several to stand side by side."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("mindspore", "torch", "transformers", "peft", "numpy")

INSTRUCTIONS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX-BF16"}
"""Those that decide how fast products are, by their names in /proc/cpuinfo."""


def fields() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def key_of(cores: int) -> str:
    """The name of this machine: processor and its family, since virtual machines call several generations alike,
    instruction sets, cores."""
    found = fields()
    model = found.get("model name", platform.processor() or platform.machine())
    known = set(found.get("flags", found.get("Features", "")).split())
    sets = [name for flag, name in INSTRUCTIONS.items() if flag in known]
    family = f" family {found['cpu family']}" if "cpu family" in found else ""
    return f"{model}{family} ({', '.join(sets[-2:]) or 'no vectors known'}), {cores} cores"


def about() -> str:
    """Versions of what was compared."""
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return f"Python {platform.python_version()}, {versions}"
