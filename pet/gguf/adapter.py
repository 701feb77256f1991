"""A LoRA adapter as the GGUF file that llama.cpp puts on a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adapters.stored import Change, StoredAdapter
from model_zoo.checkpoint.reading import read_config
from model_zoo.counting import config_of
from model_zoo.errors import InputError
from pet.files import atomic_file
from pet.gguf.architectures import Names, architecture_of
from pet.installation import needed
from pet.serving import MERGE, lora_of


def write_adapter(adapter: str | Path, base: str | Path, output: str | Path) -> str:
    """Writes a LoRA adapter in PEFT's format as one GGUF file.

    Args:
        base: the checkpoint it belongs on; its config.json gives the layout.

    Raises:
        InputError: a family that llama.cpp does not have, an adapter that is no LoRA or does not fit, or the package
            gguf is missing.
    """
    gguf = needed("gguf", "gguf", "a GGUF file")
    config = config_of(read_config(base))
    architecture, names = architecture_of(config), Names(config)
    with lora_of(adapter, config, "llama.cpp") as (stored, changes):
        head, embedding = config.tied_head() or (None, None)
        problems = [
            f"{adapter}: {change.name}: llama.cpp has one tensor for a tied embedding and head; {MERGE}"
            for change in changes
            if change.name in (head, embedding)
        ]
        InputError.raise_any(problems)
        alpha = float(stored.config.alpha)

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
