"""A base that is kept in 16 bits, divided: the losses and the adapter of the same base in float32."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pet

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("layout", ["tensor=2", "pipeline=2 parallel.micro_batches=2"])
def test_the_bits_are_those_of_float32(layout, tmp_path):
    pet.AutoModel.from_pretrained("llama_tiny").save_pretrained(tmp_path / "base", dtype="bfloat16")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK_", "MS_"))}
    found = []
    for dtype in ("float32", "auto"):
        out = tmp_path / dtype
        settings = [f"model.path={tmp_path / 'base'}", f"model.dtype={dtype}", f"output.dir={out}", "train.steps=2"]
        command = [sys.executable, "-m", "pet", "finetune", str(ROOT / "recipes" / "llama_lora.yaml"), *settings]
        command += ["eval.metrics=[loss]", *f"parallel.{layout}".split()]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses = [record["loss"] for record in records if "loss" in record]
        found.append((losses, (out / "adapter" / "adapter_model.safetensors").read_bytes()))
    assert len(found[0][0]) == 2 and found[0] == found[1]
