"""Versions, driver and devices, without starting MindSpore."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from pet.diagnosis.report import NOTE, OK, Section
from pet.installation import installed

PACKAGES = ("mindspore-pet", "mindspore", "numpy", "safetensors")
ASCEND = Path("/usr/local/Ascend")
VERSIONS = {
    "driver": ("driver/version.info",),
    "firmware": ("firmware/version.info",),
    "CANN": ("ascend-toolkit/latest/version.cfg", "latest/version.cfg", "nnae/latest/version.cfg"),
}
VARIABLES = ("ASCEND_", "HCCL_", "MS_", "RANK_TABLE_FILE", "DEVICE_ID", "GLOG_", "OMP_NUM_THREADS")


def look(section: Section) -> None:
    """The rows of the machine."""
    section.add("system", OK, f"{platform.system()} {platform.release()} {platform.machine()}")
    section.add("python", OK, platform.python_version())
    for package in PACKAGES:
        found = installed(package)
        section.add(package, found is not None, found or "is not installed", version=found)
    for name, places in VERSIONS.items():
        text = next((text for place in places if (text := version_in(ASCEND / place))), None)
        section.add(name, OK if text else NOTE, text or f"no {ASCEND / places[0]}", version=text)
    devices = sorted(path.name for path in Path("/dev").glob("davinci[0-9]*"))
    section.add("devices", OK if devices else NOTE, ", ".join(devices) or "no Ascend device", count=len(devices))
    if shutil.which("npu-smi"):
        with section.checking("npu-smi", NOTE):
            done = subprocess.run(["npu-smi", "info"], capture_output=True, text=True, timeout=30)
            chips = re.findall(r"^\|\s*\d+\s+(\S*\d+\S*)\s*\|", done.stdout, re.MULTILINE)
            section.add("npu-smi", OK if not done.returncode else NOTE, ", ".join(chips), text=done.stdout)
    told = {key: value for key, value in os.environ.items() if key.startswith(VARIABLES)}
    section.add("environment", NOTE, ", ".join(f"{key}={value}" for key, value in sorted(told.items())), **told)


def version_in(path: Path) -> str | None:
    """The version that a file of Ascend's software names."""
    if not path.is_file():
        return None
    found = re.search(r"version[^=]*=\s*\[?([^\s\]]+)", path.read_text(errors="replace"), re.IGNORECASE)
    return found[1].strip('"') if found else None
