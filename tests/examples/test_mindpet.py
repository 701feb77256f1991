"""The MindPet script: trained layers learn, and only they are saved."""

from __future__ import annotations

import re

import mindspore as ms


def test_layers_by_hand(tmp_path, run):
    said = run("python", "mindpet_layers.py", "--output", "trained").stdout
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", said)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2
    (file,) = (tmp_path / "trained").glob("*.ckpt")
    tensors = {name: parameter.asnumpy() for name, parameter in ms.load_checkpoint(str(file)).items()}
    assert sorted(tensors) == sorted(
        f"{layer}.mindpet_delta_lora_{part}" for layer in ("query", "head") for part in "ab"
    )
    assert all(abs(tensors[f"{layer}.mindpet_delta_lora_b"]).max() > 0 for layer in ("query", "head"))
