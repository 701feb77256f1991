"""What other programs take of an adapter: LoRA, and of that what each of them has a place for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adapters.file_names import PREFIX
from adapters.peft_config import CONFIG, WEIGHTS
from adapters.settings import LoRA
from adapters.stacked import UnstackedFile
from adapters.stored import UNMERGEABLE, Change, StoredAdapter
from model_zoo.atomic import atomic_write, read_json, write_json
from model_zoo.checkpoint.reading import read_config
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, write_stream
from model_zoo.configs import Config
from model_zoo.counting import config_of
from model_zoo.errors import InputError
from pet.meta_model import MetaModel

MERGE = "merge it (pet export --format merged; for llama.cpp --format gguf)"
# why no program of these has a place for a change
REFUSED = {
    "ia3": "IA3's factors are no product of two matrices",
    "whole": "it is a weight of its own (modules_to_save, a trained bias)",
    "rows": "it is new rows of an embedding",
}


def refusal(change: Change) -> str | None:
    """Why a change is no LoRA as other programs have it; None where it is."""
    return "it has DoRA's magnitudes" if "lora_magnitude_vector" in change.tensors else REFUSED.get(change.kind)


@contextmanager
def lora_of(adapter: str | Path, config: Config, taker: str) -> Iterator[tuple[StoredAdapter, list[Change]]]:
    """An open adapter and its changes, where all of them are plain LoRA.

    Args:
        taker: the program that is to take it, for messages.

    Raises:
        InputError: it is something else; says what, and whether merging helps.
    """
    kind = read_json(Path(adapter) / CONFIG, "an adapter's configuration").get("peft_type")
    if kind != "LORA":
        way = f"it cannot be merged either: {UNMERGEABLE[kind]}" if kind in UNMERGEABLE else MERGE
        raise InputError(f"{adapter}: {taker} takes LoRA, this is an adapter of type {kind}; {way}")
    with closing(StoredAdapter(adapter)) as stored:
        if stored.needs_packed:
            raise InputError(
                f"{adapter}: was started by LoftQ from what packing left out of the base, and fits no other; "
                "pet merge --dequantize makes a model of it"
            )
        changes = stored.changes(MetaModel(config))
        problems = [
            f"{adapter}: {change.name}: {taker} cannot take it as an adapter: {why}; {MERGE}"
            for change in changes
            if (why := refusal(change))
        ]
        InputError.raise_any(problems)
        yield stored, changes


def _by_last_names(lora: LoRA, path: str) -> float:
    """Keys of patterns are a matrix's last two names, word for word (``self_attn.v_proj``)."""
    key = ".".join(path.split(".")[-2:])
    alpha = (lora.alpha_pattern or {}).get(key, lora.alpha)
    return lora.scale_of(alpha, (lora.rank_pattern or {}).get(key, lora.rank))


class Engine(NamedTuple):
    """A program that serves adapters in PEFT's format.

    Attributes:
        name: as its makers write it.
        models: {layout of the family: {model_type whose adapters it serves: names of matrices where it takes none}}.
        largest: the largest rank, and alpha where that is bounded.
        scale: what it multiplies the B·A of a matrix by: ``(LoRA's settings, path)`` → factor.
        says: how it reads rank_pattern and alpha_pattern.
        everywhere: whether an adapter needs a LoRA at every projection: q, k and v are one matrix there, and so are
            gate and up, and one that lacks a part is passed over or ends the loading.
        plain_bias: whether it refuses a ``bias`` other than "none" that trains nothing on this base.
    """

    name: str
    models: Mapping[str, Mapping[str, tuple[str, ...]]]
    largest: Mapping[str, int]
    scale: Callable[[LoRA, str], float]
    says: str
    everywhere: bool = False
    plain_bias: bool = False


ENDS = "embed_tokens", "lm_head"
# Where it comes from: vLLM 0.23 to 0.33 (vllm/lora, vllm/model_executor/models; 0.32 was run over such adapters on a
# CPU); MindIE-LLM's three loaders (mindie_llm/runtime/lora, atb_llm/layers/lora, atb_llm/utils/adapter_manager.py, run
# with the hardware left out), and for the models its user guide on Multi-LoRA.
ENGINES = {
    "vllm": Engine(
        "vLLM",
        {
            "llama": {"llama": (), "qwen2": ENDS, "mistral": ENDS},
            "qwen3": {"qwen3": ()},
            "qwen3_moe": {"qwen3_moe": ()},
            "gemma2": {"gemma2": ENDS},
            "gemma3": {"gemma3_text": ENDS, "gemma3": ENDS},
            "glm4": {"glm": (*ENDS, "gate_up_proj"), "glm4": (*ENDS, "gate_up_proj")},
            "chatglm2": {"chatglm": ("word_embeddings", "output_layer")},
        },
        {"rank": 512},
        lambda lora, path: lora.scale_of(lora.alpha, lora.rank),
        "releases up to 0.30, and vLLM-Ascend's, read one alpha and one rank for all matrices, not rank_pattern and "
        "alpha_pattern",
        plain_bias=True,
    ),
    "mindie": Engine(
        "MindIE",
        {"llama": {"llama": ENDS, "qwen2": ENDS}, "qwen3": {"qwen3": ENDS}},
        {"rank": 1024, "alpha": 1024},
        _by_last_names,
        "it looks rank_pattern and alpha_pattern up by a matrix's last two names, as 'self_attn.v_proj'",
        everywhere=True,
    ),
}
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's --max-lora-rank."""


def check_served(adapter: str | Path, base: str | Path, engine: Engine) -> int:
    """The largest rank of an adapter that an engine can serve.

    Raises:
        InputError: it cannot, or its results would differ; with every reason.
    """
    config = config_of(read_config(base))
    none_at = engine.models.get(config.family.layout, {}).get(config.model_type)
    if none_at is None:
        known = ", ".join(kind for kinds in engine.models.values() for kind in kinds)
        raise InputError(
            f"{adapter}: {engine.name} serves no adapters on a base of type {config.model_type!r} "
            f"({config.family.name} family), only on {known}; {MERGE}"
        )
    with lora_of(adapter, config, engine.name) as (stored, changes):
        lora = stored.config
        firsts = {change.name: key for change in changes for part, key in change.tensors.items() if part.endswith("A")}
        ranks = {name: stored.file.info(key).shape[0] for name, key in firsts.items()}
        alphas = lora.alpha, *(lora.alpha_pattern or {}).values()
        found = {"rank": max(ranks.values()), "alpha": max(alphas)}
        problems = [
            f"{key} {found[key]:g} is above its limit of {limit}"
            for key, limit in engine.largest.items()
            if found[key] > limit
        ]
        if other := [one for one in changes if one.scale != engine.scale(lora, one.name.removesuffix(".weight"))]:
            problems.append(f"{engine.says}, and would scale {other[0].name} otherwise")
        if outside := sorted(name for name in ranks if name.split(".")[-2] in none_at):
            problems.append(f"on this base it takes no LoRA on {', '.join(outside)}")
        if not as_it_lies(stored.file):
            written = (
                "the matrices of each expert, not stacked ones (target_parameters)"
                if isinstance(stored.file, UnstackedFile)
                else "the names and the matrices that PEFT writes now, not those of this file"
            )
            problems.append(
                f"it takes {written}; load and save it here (pet.load_adapter, pet.save_adapter) for one in that form"
            )
        if engine.plain_bias and lora.bias != "none":
            problems.append(f"it takes bias 'none' only; adapter_config.json has {lora.bias!r}")
        InputError.raise_any(f"{adapter}: {engine.name} cannot serve it: {why}; {MERGE}" for why in problems)
    return found["rank"]


def as_it_lies(file: SafetensorsFile) -> bool:
    """Whether an adapter's tensors are shown under the names and in the shapes that others find in the file."""
    with closing(SafetensorsFile(file.path)) as bare:
        return all(name in bare.tensors and bare.info(name).shape == info.shape for name, info in file.tensors.items())


def fill(adapter: str | Path, base: str | Path, output: Path) -> int:
    """Writes an adapter with a LoRA of zeros at each projection that it leaves out; returns at how many.

    Args:
        adapter: a directory that `check_served` has passed.
        output: a copy of it, whose two adapter files are written.
    """
    config = config_of(read_config(base))
    names = sorted((*config.family.attention, *config.family.mlp))
    with closing(StoredAdapter(adapter)) as stored:
        file, zeros = stored.file, {}
        dtype = next(iter(file.tensors.values())).dtype
        for path, cell in config.cells().items():
            key = f"{PREFIX}{path}.lora_{{}}.weight"
            if path.rpartition(".")[2] in names and key.format("A") not in file.tensors:
                rank = stored.config.rank_at(path)
                out, width = cell.weight
                zeros |= {key.format("A"): (dtype, (rank, width)), key.format("B"): (dtype, (out, rank))}
        described = {name: (info.dtype, info.shape) for name, info in file.tensors.items()} | zeros

        def values(name: str) -> np.ndarray | Iterable[memoryview]:
            return np.zeros(zeros[name][1], np.float32) if name in zeros else file.blocks(name)

        with atomic_write(output / WEIGHTS) as written:
            write_stream(written, described, values, file.metadata)
    narrowed = dict.fromkeys(("exclude_modules", "layers_pattern", "layers_to_transform"))
    write_json(output / CONFIG, {**read_json(output / CONFIG), **narrowed, "target_modules": names})
    return len(zeros) // 2
