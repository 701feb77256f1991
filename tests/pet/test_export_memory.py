"""Merging on disk takes the memory of one tensor."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from merged_adapters import lora_directory, random_lora

from model_zoo.checkpoint.fingerprint import fingerprint
from model_zoo.checkpoint.reading import Checkpoint
from model_zoo.checkpoint.safetensors_io import header_bytes, write_file
from model_zoo.counting import parameter_shapes

LARGE = {
    "model_type": "llama",
    "num_hidden_layers": 5,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "intermediate_size": 8192,
    "vocab_size": 32768,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
MEASURE = textwrap.dedent("""
    import json, sys
    from pet.export import merge_checkpoint
    base, adapter, output, dtype = sys.argv[1:]
    report = merge_checkpoint(base, adapter, output, dtype=dtype or None, max_shard_size="400MB")
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
    print(json.dumps({"peak": peak, "changed": report.changed, "mindspore": "mindspore" in sys.modules}))
""")


def sparse_checkpoint(directory, config, kept):
    """A checkpoint of zeros that takes no room on the disk."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    shapes = parameter_shapes(config)
    head, _ = header_bytes({name: (kept, shape) for name, shape in shapes.items()}, {"format": "pt"})
    with open(directory / "model.safetensors", "wb") as file:
        file.write(head)
        file.truncate(
            len(head) + sum(int(np.prod(shape)) for shape in shapes.values()) * (4 if kept == "float32" else 2)
        )
    assert (directory / "model.safetensors").stat().st_size >= 10**9
    return shapes


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept, dtype, layers, marked",
    [
        pytest.param("float32", "", 3, True, marks=pytest.mark.full),
        pytest.param("bfloat16", "", 8, False, marks=pytest.mark.full),
        ("float32", "bfloat16", 3, False),
    ],
)
def test_peak_memory(kept, dtype, layers, marked, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("peak memory is read from /proc")
    config = {**LARGE, "num_hidden_layers": layers}
    shapes = sparse_checkpoint(tmp_path / "base", config, kept)
    parts = {}
    for name, shape in shapes.items():
        if name.endswith(("q_proj.weight", "down_proj.weight")) or name == "lm_head.weight":
            parts |= random_lora(name.removesuffix(".weight"), *shape, rank=8)
    metadata = {"format": "pt"}
    if marked:
        with Checkpoint(tmp_path / "base") as checkpoint:
            metadata["base_fingerprint"] = fingerprint(config, checkpoint)
    adapter = lora_directory(tmp_path / "adapter", ["q_proj", "down_proj", "lm_head"], {}, r=8)
    prefixed = {f"base_model.model.{key}": value for key, value in parts.items()}
    write_file(adapter / "adapter_model.safetensors", prefixed, metadata)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "base"), str(adapter), str(tmp_path / "out"), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["changed"] == len(parts) // 2 and not measured["mindspore"]
    with Checkpoint(tmp_path / "out") as checkpoint:
        assert len(checkpoint.files) > 1
        exact = 4 / 8 * parts["lm_head.lora_B.weight"][-4:] @ parts["lm_head.lora_A.weight"]
        np.testing.assert_allclose(checkpoint.read("lm_head.weight", slice(-4, None)), exact, rtol=0.01, atol=0.01)
    largest = max(np.prod(shape) for shape in shapes.values()) * (4 if kept == "float32" else 2) / 2**20
    assert measured["peak"] <= 3 * largest + 200, measured
    shutil.rmtree(tmp_path)  # more than a gigabyte
