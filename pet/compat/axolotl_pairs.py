"""Data sets of preferences in axolotl's job files: which columns each type reads, and the texts that it makes of them.

Its types write a question and its answers as texts, which TRL reads with the tokenizer's opening token in front and its
end token behind an answer that does not end so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_zoo.errors import InputError
from pet.compat.prompts import AXOLOTL
from pet.data.finding import find_files
from pet.data.prompt import Prompt
from pet.data.readers import read_records
from pet.data.records import Problems
from pet.recipe.translation import Translation

STYLES = {"icr": "input", "intel": "question", "prompt_pairs": "prompt", "ultra": "prompt", "argilla": "instruction"}
"""Of ``chatml`` and ``llama3``: ``chatml.intel`` has its question in this column."""
EITHER = {
    "prompt": ("prompt", "input", "question", "instruction"),
    "chosen": ("chosen", "chosen_response"),
    "rejected": ("rejected", "rejected_response"),
}
"""Of their style ``default``: the columns of which the first that rows have is read."""
TEXT_STYLES = {
    "kto": "argilla argilla_chat intel prompt_pairs ultra",
    "orpo": "",
    "dpo": "default argilla_chat icr intel prompt_pairs ultra",
}
CHAT_STYLES = {"kto": "", "orpo": "argilla", "dpo": "default argilla_chat"}
"""Objectives, of which the others are as dpo -> the styles of ``chatml`` and ``llama3``, and of ``chat_template``."""
PREPARED = ("None", "passthrough")
"""Types that leave rows as they are, for TRL."""
ALREADY = Prompt("{said}", "{said}", "", whole=True)
"""Of rows whose texts are prompts already."""


def known_types(objective: str) -> list[str]:
    """The types that axolotl has for an objective."""
    if objective == "reward":
        return ["chat_template", "bradley_terry", "llama3", "chatml"]
    texts, chats = (table.get(objective, table["dpo"]).split() for table in (TEXT_STYLES, CHAT_STYLES))
    every = [
        *(f"chat_template.{style}" for style in chats),
        *(f"{k}.{one}" for k in ("chatml", "llama3") for one in texts),
    ]
    return [*every, *PREPARED, *(name.removesuffix(".default") for name in every if name.endswith(".default"))]


def written(prompt: Prompt, objective: str, kind: str) -> str:
    """A prompt's chat template for an objective and a kind of data set. What follows an answer is learnt where TRL or
    the type has the whole conversation's text; scores are of any conversation."""
    if objective == "reward":
        return prompt.jinja()
    if kind in PREPARED or objective == "orpo":
        prompt = replace(prompt, end=prompt.end + prompt.behind, behind="")
    if kind in PREPARED:
        return prompt.jinja()
    return prompt.jinja(ranked="bos" if objective in ("orpo", "simpo") else "opening")


def plain_texts(kind: str, style: str, objective: str, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """How rows are read of types that write texts; None for those that read messages.

    Args:
        row: the first one, for types that read what there is.
    """
    if kind in PREPARED:
        return None if isinstance(row.get("prompt", row.get("chosen")), list) else as_texts(ALREADY, objective, {})
    if kind not in ("chatml", "llama3") or objective == "reward":
        return None
    columns: dict[str, str] = {"prompt": STYLES[style]} if style in STYLES else {"system": ""}
    if style in ("", "default"):
        first = {role: [name for name in names if name in row] for role, names in EITHER.items()}
        columns = {role: names[0] for role, names in first.items() if names}
    return as_texts(replace(AXOLOTL[kind], strips=False), objective, columns)


def as_texts(prompt: Prompt, objective: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """A prompt, and the columns of its rows, whose questions have no further input."""
    own = {"input": ""} if columns.get("prompt") != "input" else {}
    return {"template": written(prompt, objective, ""), "columns": {**own, **columns}}


def own_texts(t: Translation, name: str, given: Mapping[str, Any], objective: str) -> dict[str, Any]:
    """The file's own formats."""
    said = ["completion"] if objective == "kto" else ["chosen", "rejected"]
    answer, *others = [(given.get(f"{one}_format") or f"{{{one}}}").replace(f"{{{one}}}", "{said}") for one in said]
    if others not in ([], [answer]):
        t.refuse(name, "chosen_format and rejected_format: both answers are written in one form here")
    question = (given.get("prompt_format") or "{prompt}").replace("{prompt}", "{said}")
    if question.endswith(" "):  # which tokenizers put in front of the next word
        question, answer = question[:-1], " " + answer
    return as_texts(Prompt(question, answer, "", whole=True), objective, {})


def first_row(file: Any) -> dict[str, Any]:
    """The columns of a file's first row; none where it cannot be read, which is said where it is used."""
    with contextlib.suppress(InputError, StopIteration):
        return next(read_records(find_files([file])[0], Problems())).columns
    return {}
