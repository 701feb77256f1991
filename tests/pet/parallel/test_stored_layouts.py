"""A base that is kept in 16 bits, divided: the losses and the adapter of the same base in float32."""

import json
from pathlib import Path

import pytest

import pet

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "llama_lora.yaml"
LAYOUTS = {"tensor": ["tensor=2"], "pipeline": ["pipeline=2", "micro_batches=2"]}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pair) -> Path:
    """Holds a run directory for each layout and type, ``tensor_auto`` and so on."""
    home = tmp_path_factory.mktemp("stored")
    pet.AutoModel.from_pretrained("llama_tiny").save_pretrained(home / "base", dtype="bfloat16")
    settings = [f"model.path={home / 'base'}", "train.steps=2", "data.eval=null", "eval.metrics=[loss]"]
    commands = []
    for name, layout in LAYOUTS.items():
        for dtype in ("float32", "auto"):
            own = [f"model.dtype={dtype}", f"output.dir={home / f'{name}_{dtype}'}"]
            commands.append(["finetune", RECIPE, *settings, *own, *(f"parallel.{setting}" for setting in layout)])
    pair(*commands)
    return home


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bits_are_those_of_float32(layout, trained):
    found = []
    for dtype in ("float32", "auto"):
        out = trained / f"{layout}_{dtype}"
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses = [record["loss"] for record in records if "loss" in record]
        found.append((losses, (out / "adapter" / "adapter_model.safetensors").read_bytes()))
    assert len(found[0][0]) == 2 and found[0] == found[1]
