"""What other programs take of an adapter: LoRA, and of that what each of them has a place for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from adapters.peft_config import CONFIG, lora_scale
from adapters.stored import UNMERGEABLE, Change, StoredAdapter
from model_zoo.atomic import read_json
from model_zoo.checkpoint.reading import read_config
from model_zoo.configs import Config
from model_zoo.counting import config_of
from model_zoo.errors import InputError

MERGE = "merge it (pet export --format merged)"
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
        adapter: its directory.
        config: of its base.
        taker: the program that is to take it, for messages.

    Raises:
        InputError: it is something else; says what, and whether merging helps.
    """
    kind = read_json(Path(adapter) / CONFIG, "an adapter's configuration").get("peft_type")
    if kind != "LORA":
        way = f"it cannot be merged either: {UNMERGEABLE[kind]}" if kind in UNMERGEABLE else MERGE
        raise InputError(f"{adapter}: {taker} takes LoRA, this is an adapter of type {kind}; {way}")
    cells = config.cells()

    def transposed(name: str) -> bool:
        cell = cells.get(name.rpartition(".")[0])  # a tied head has none
        return name.endswith(".weight") and cell is not None and cell.transposed

    with closing(StoredAdapter(adapter)) as stored:
        if stored.needs_packed:
            raise InputError(
                f"{adapter}: was started by LoftQ from what packing left out of the base, and fits no other; "
                "pet merge --dequantize makes a model of it"
            )
        changes = stored.changes(config.shapes(), transposed, config.tied_head())
        problems = [
            f"{adapter}: {change.name}: {taker} cannot take it as an adapter: {why}; {MERGE}"
            for change in changes
            if (why := refusal(change))
        ]
        if problems:
            raise InputError.collect(problems)
        yield stored, changes


class Engine(NamedTuple):
    """A program that serves adapters in PEFT's format.

    Attributes:
        name: as its makers write it.
        largest: the largest rank.
        layouts: of the families whose adapters it serves.
        patterns: whether it reads rank_pattern and alpha_pattern; otherwise one alpha and rank count for all matrices.
        rslora: whether it reads use_rslora.
        embeddings: whether it takes LoRA on embedding and head.
    """

    name: str
    largest: int | None
    layouts: tuple[str, ...] = ("llama", "qwen3", "glm4", "chatglm2")
    patterns: bool = False
    rslora: bool = False
    embeddings: bool = False


ENGINES = {
    "vllm": Engine("vLLM", 512, rslora=True, embeddings=True),
    "mindie": Engine("MindIE", None, patterns=True),
}
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's --max-lora-rank."""


def check_served(adapter: str | Path, base: str | Path, engine: Engine) -> int:
    """The largest rank of an adapter that an engine can serve.

    Raises:
        InputError: it cannot, or its results would differ; with every reason.
    """
    config = config_of(read_config(base))
    if config.family.layout not in engine.layouts:
        raise InputError(f"{adapter}: {engine.name} serves no adapters on a base of the {config.family.name} family")
    with lora_of(adapter, config, engine.name) as (stored, changes):
        settings, problems = stored.settings, []
        common = lora_scale(settings["alpha"], settings["rank"], settings["use_rslora"])
        ends = {f"{path}.weight" for path in (*config.family.embeddings, config.family.head)}
        largest = max(rank_of(stored, change) for change in changes)
        if engine.largest and largest > engine.largest:
            problems.append(f"rank {largest} is above its limit of {engine.largest}")
        if settings["use_rslora"] and not engine.rslora:
            problems.append("it does not read use_rslora, and would divide alpha by the rank")
        if not engine.patterns and any(change.scale != common for change in changes):
            problems.append("it reads one alpha and one rank for all matrices, not rank_pattern and alpha_pattern")
        if not engine.embeddings and (found := sorted(ends & {change.name for change in changes})):
            problems.append(f"it takes LoRA on projections only, not on {', '.join(found)}")
        if problems:
            raise InputError.collect(f"{adapter}: {engine.name} cannot serve it: {why}; {MERGE}" for why in problems)
    return largest


def rank_of(stored: StoredAdapter, change: Change) -> int:
    """The rank of a change by LoRA."""
    return next(stored.file.info(key).shape[0] for part, key in change.tensors.items() if part.endswith("A"))
