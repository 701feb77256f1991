"""The MindPet script: trained layers learn, and only they are saved."""

from __future__ import annotations

import re

from model_zoo.checkpoint.safetensors_io import read_file


def test_layers_by_hand(tmp_path, run):
    said = run("python", "mindpet_layers.py", "--output", "trained").stdout
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", said)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2
    (file,) = (tmp_path / "trained").iterdir()
    tensors = read_file(file)
    assert sorted(tensors) == sorted(
        f"{layer}.mindpet_delta_lora.lora_{part}.weight" for layer in ("query", "head") for part in "AB"
    )
    assert all(abs(tensors[f"{layer}.mindpet_delta_lora.lora_B.weight"]).max() > 0 for layer in ("query", "head"))
