"""Where Python has not POSIX's modules (Windows), one process still does all: a stand-in, without such a system."""

from __future__ import annotations

import subprocess
import sys

from waiting import HANGING

PROGRAM = """
import importlib, pkgutil, sys
import mindspore, psutil  # what is not ours may have them
sys.modules.update(dict.fromkeys(("fcntl", "resource", "termios", "pwd", "grp", "readline"), None))
import adapters, model_zoo, pet
for package in (adapters, model_zoo, pet):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
from model_zoo.engine import available
from pet.cli.main import main
base, output = sys.argv[1:]
sys.exit(available() or main(["quantize", base, "--output", output, "--type", "int8"]))
"""


def test_every_module_is_imported_and_a_command_runs(fixtures, tmp_path):

    command = [sys.executable, "-c", PROGRAM, str(fixtures / "llama_gqa"), str(tmp_path / "packed")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "packed" / "model.safetensors").is_file()
