"""A LoRA adapter as the GGUF file that llama.cpp puts on a model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from adapters.stored import Change, StoredAdapter
from model_zoo.checkpoint.reading import read_config
from model_zoo.counting import config_of
from model_zoo.errors import InputError
from pet.files import atomic_file
from pet.gguf.architectures import Names, architecture_of
from pet.installation import needed

# why llama.cpp's adapter file has no place for a change
REFUSED = {
    "ia3": "IA3's factors are no product of two matrices",
    "whole": "a weight of its own (modules_to_save, a trained bias) has no place in it",
    "rows": "new rows of an embedding have no place in it",
}
MERGE = "merge it: pet export --format gguf"


def refusal(change: Change, tied: bool) -> str | None:
    """Why llama.cpp cannot take a change as an adapter; None where it can."""
    if change.kind in REFUSED:
        return REFUSED[change.kind]
    if "lora_magnitude_vector" in change.tensors:
        return "DoRA's magnitudes have no place in it"
    if change.kind == "embedding" and tied:
        return "llama.cpp has one tensor for a tied embedding and head, and would change both"
    return None


def write_adapter(adapter: str | Path, base: str | Path, output: str | Path) -> str:
    """Writes a LoRA adapter in PEFT's format as one GGUF file.

    Args:
        adapter: adapter directory.
        base: the checkpoint it belongs on; its config.json gives the layout.
        output: the file.

    Returns:
        one line about the file.

    Raises:
        InputError: a family that llama.cpp does not have, an adapter that is no LoRA or does not fit, or the package
            gguf is missing.
    """
    gguf = needed("gguf", "gguf", "a GGUF file")
    config = config_of(read_config(base))
    architecture, names = architecture_of(config), Names(config)
    shapes, tied = config.shapes(), config.tied_head()
    with closing(StoredAdapter(adapter)) as stored:
        if stored.needs_packed:
            raise InputError(
                f"{adapter}: was started by LoftQ from what packing left out; it fits the packed base alone"
            )
        changes = stored.changes(shapes, lambda name: False, tied)
        problems = {
            f"{adapter}: {change.name}: llama.cpp cannot take it as an adapter: {why}; {MERGE}"
            for change in changes
            if (why := refusal(change, tied is not None))
        }
        problems |= {
            f"{adapter}: {change.name} is tied to the embedding, and llama.cpp has no tensor for it; {MERGE}"
            for change in changes
            if change.name not in shapes
        }
        if problems:
            raise InputError.collect(sorted(problems))
        alpha = float(stored.settings["alpha"])

        def write(path: str) -> None:
            writer = gguf.GGUFWriter(path, architecture.name)
            writer.add_type(gguf.GGUFType.ADAPTER)
            writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
            writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
            for change in changes:
                a, b = _factors(stored, change)
                # llama.cpp has one alpha and divides by each matrix's rank
                b = architecture.rows(change.name, b * (change.scale * b.shape[1] / alpha), config)
                for part, values in (("lora_a", a), ("lora_b", b)):
                    writer.add_tensor(f"{names(change.name)}.{part}", np.ascontiguousarray(values, np.float32))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()

        atomic_file(output, write)
    return (
        f"{output}: LoRA on {len(changes)} matrices of {architecture.name}, {Path(output).stat().st_size / 1e6:.1f} MB"
    )


def _factors(stored: StoredAdapter, change: Change) -> tuple[np.ndarray, np.ndarray]:
    """A and B as llama.cpp takes them: (rank, in) and (out, rank); an embedding's A is (ids, rank)."""
    if change.kind == "embedding":
        return stored.tensor(change.tensors["lora_embedding_A"]).T, stored.tensor(change.tensors["lora_embedding_B"])
    return stored.tensor(change.tensors["lora_A"]), stored.tensor(change.tensors["lora_B"])
