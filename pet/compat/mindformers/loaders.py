"""What a data loader of a MindFormers file makes of rows: its ``handler`` s, ``text_col`` and ``dataset_name``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pet.compat.prompts import ALPACA, LLAMA_FACTORY
from pet.names import bundled_models
from pet.recipe.translation import Translation

PACKS, ASKS = "PackingHandler", "AlpacaInstructDataHandler"


def handlers_of(loader: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those of a loader: one by itself up to release 1.5, a list later."""
    given = loader.get("handler") or ()
    return [one for one in ((given,) if isinstance(given, Mapping) else given) if isinstance(one, Mapping)]


def put_handlers(t: Translation, loader: Mapping[str, Any]) -> None:
    """How rows are packed, how many are taken, and the prompt of ``AlpacaInstructDataHandler``: Vicuna's, with Alpaca's
    as the question. An answer follows behind a space, which SentencePiece puts there itself."""
    handlers = handlers_of(loader)
    packs = [one.get("pack_strategy", "pack") for one in handlers if one.get("type") == PACKS]
    packs += [loader["packing"]] if loader.get("packing") else []  # of releases up to 1.5
    t.put("data.packing", "pack" if packs else "longest")  # without it a text has a row of its own, there
    if "truncate" in packs:
        t.refuse("train_dataset.data_loader.handler", "pack_strategy: truncate: texts are not cut between rows")
    t.put("data.max_samples", next((one.get("n") for one in handlers if one.get("type") == "take"), None))
    if others := sorted({str(one.get("type")) for one in handlers} - {PACKS, ASKS, "take"}):
        t.ignore("train_dataset.data_loader.handler", f"{', '.join(others)}: questions get the model's own prompt")
    if any(one.get("type") == ASKS for one in handlers):
        space = "" if _by_sentencepiece(t.get("model.path")) else " "
        texts = [text.rstrip() for text in ALPACA["alpaca"][0]]
        _put_templates(t, [f"{LLAMA_FACTORY['vicuna'].default} USER: {text} ASSISTANT:{space}" for text in texts])


def put_texts(t: Translation, loader: Mapping[str, Any]) -> set[str]:
    """Which column a TrainingDataLoader reads, and the prompt of an SFTDataLoader, whose rows have no labels: all of a
    text is learnt. Gives the keys that this reads."""
    if loader.get("type") == "TrainingDataLoader" and loader.get("text_col"):
        t.put("data.columns", {"text": loader["text_col"]})
        t.put("data.format", "text")
        t.put("data.packing", "pack" if loader.get("is_align", True) else None)
    elif loader.get("type") == "SFTDataLoader" and (prompts := BARE.get(str(loader.get("dataset_name")).lower())):
        _put_templates(t, prompts)
        t.put("data.train_on", "all")
    else:
        return set()
    return {"text_col", "dataset_name", "is_align"}


BARE = {"alpaca": ALPACA["alpaca"][0], "advertisegen": ("{prompt}", "{prompt}")}
"""Prompts by ``dataset_name``, with and without an input."""


def _put_templates(t: Translation, texts: Sequence[str]) -> None:
    t.settings.update(zip(("data.template", "data.template_without_input"), texts, strict=True))


def _by_sentencepiece(model: str | None) -> bool:
    """Whether the tokenizer beside a checkpoint is one of SentencePiece's."""
    return (Path(bundled_models().get(str(model), str(model))).expanduser() / "tokenizer.model").is_file()
