"""A base that is kept in 16 bits, divided: the losses and the adapter of the same base in float32."""

import itertools
import json
from pathlib import Path

import pytest
from first_layers import first_layers

import pet
from model_zoo.checkpoint.safetensors_io import write_stream
from pet.names import bundled_directory

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
LAYOUTS = {
    "tensor": ("llama", ["parallel.tensor=2"]),
    "pipeline": ("gpt", ["parallel.pipeline=2", "parallel.micro_batches=2"]),
    "data": ("glm", ["parallel.data=2"]),
    "replicas": ("llama", ["parallel.data=2", "parallel.shard_base=true", "parallel.shard_optimizer=true"]),
}
LAYERS = {"llama": 2, "gpt": 3, "glm": 2}  # a stage of several, and fewer where each takes its time to compile
SETTINGS = ("train.steps=2", "adapter.dropout=0.1", "data.packing=pack", "data.eval=null", "eval={metrics: [loss]}")

pytestmark = pytest.mark.slow


def write_mixed(family: str, directory: Path) -> None:
    """A tiny base with its matrices in turn in both types; the others are float32."""
    first_layers(bundled_directory() / "bases" / f"{family}_tiny", directory, LAYERS[family])
    arrays = {name: p.asnumpy() for name, p in pet.AutoModel.from_pretrained(directory).parameters_dict().items()}
    types = itertools.cycle(("bfloat16", "float16"))
    described = {
        name: (next(types) if array.ndim == 2 else "float32", array.shape) for name, array in sorted(arrays.items())
    }
    with open(directory / "model.safetensors", "wb") as file:
        write_stream(file, described, arrays.__getitem__)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pair) -> Path:
    """Holds a run directory for each layout and type, ``tensor_auto`` and so on."""
    home = tmp_path_factory.mktemp("stored")
    commands = []
    for name, (family, layout) in LAYOUTS.items():
        if not (home / family).exists():
            write_mixed(family, home / family)
        for dtype in ("float32", "auto"):
            own = [f"model.path={home / family}", f"model.dtype={dtype}", f"output.dir={home / f'{name}_{dtype}'}"]
            commands.append(["finetune", RECIPES / f"{family}_lora.yaml", *SETTINGS, *own, *layout])
    pair(*commands)
    return home


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bits_are_those_of_float32(layout, trained):
    found = []
    for dtype in ("float32", "auto"):
        out = trained / f"{layout}_{dtype}"
        records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses = [record["loss"] for record in records if "loss" in record]
        found.append((losses, (out / "adapter" / "adapter_model.safetensors").read_bytes()))
    assert len(found[0][0]) == 2 and found[0] == found[1]
