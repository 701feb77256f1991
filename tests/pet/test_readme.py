"""The README's program runs as it is pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_program_runs_as_pasted(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.S)
    (tmp_path / "program.py").write_text(program, "utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment
    )
    assert result.returncode == 0, result.stderr
    first, *losses = result.stdout.splitlines()
    assert re.fullmatch(r"trainable params: [\d,]+ \|\| all params: [\d,]+ \|\| trainable%: [\d.]+", first)
    assert len(losses) == 10
    assert float(losses[-1]) < float(losses[0]) / 2
    assert (tmp_path / "my_adapter" / "adapter_config.json").is_file()
    assert (tmp_path / "my_adapter" / "adapter_model.safetensors").stat().st_size > 1000
