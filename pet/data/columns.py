"""What the columns of a row mean: one table of their roles, and one reader of a row by it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from model_zoo.errors import nearest

from .messages import KWARGS, Wrong, checked_text
from .records import type_name
from .token_rows import TOKEN_COLUMNS


class Role(NamedTuple):
    """What the column of a role may be called, and whether no row may lack it. Of the names that a row has, the first
    that holds something counts."""

    names: tuple[str, ...]
    required: bool = True


def _roles(form: str) -> dict[str, Role]:
    """``role``, ``role/other/names`` or ``role=names``; those in brackets may be missing."""
    found = {}
    for word in form.split():
        role, _, names = word.strip("[]").partition("=")
        found[role.split("/")[0]] = Role(tuple((names or role).split("/")), word[0] != "[")
    return found


NONE = Role((), False)
EARLIER = {"label_ids": "labels", "input_mask": "attention_mask"}
"""Columns by the names that BERT's scripts, and MindFormers' of release 0.6, have for them."""


def names_of(column: str) -> list[str]:
    """The names under which a column of token rows is read, its own first."""
    return [column, *(earlier for earlier, now in EARLIER.items() if now == column)]


_BESIDE = f"[system/system_prompt] [tools/functions] [{KWARGS}]"
_PARTS = f"[input] [history] {_BESIDE}"
_QUESTION = f"[messages/conversations/conversation] [prompt/question/query/instruction] {_PARTS}"
COLUMNS = {
    "chat": _roles(f"messages {_BESIDE}"),
    "sharegpt": _roles(f"messages=conversations/conversation {_BESIDE}"),
    "alpaca": _roles(f"prompt=instruction answer=output {_PARTS}"),
    "adgen": _roles(f"prompt=content answer=summary {_PARTS}"),
    "prompt_completion": _roles(f"prompt/question/query answer=completion/response/answer {_PARTS}"),
    "dolly": _roles(f"prompt=instruction answer=response [input=context/input] [history] {_BESIDE}"),
    "tokens": _roles("input_ids " + " ".join(f"[{'/'.join(names_of(name))}]" for name in TOKEN_COLUMNS[1:])),
    "segments": _roles("segments"),
    "text": _roles("text"),
    "input_target": _roles(f"prompt=input answer=target/output [history] {_BESIDE}"),
}
"""Those of ``data.format``, in the order in which they are recognised by what they require."""
BESIDE, PARTS = _roles(_BESIDE), _roles(_PARTS)
PAIRS = _roles(
    "chosen/chosen_response/preferred_output "
    f"rejected/rejected_response/rejected_messages/non_preferred_output {_QUESTION}"
)
"""Two answers to a question, or two dialogues that are the same but for their last turn: texts of ``Human:`` and
``Assistant:`` turns, or messages, as an answer may be, with or without the question before it. Where the messages end
with an answer, that is the chosen one."""
RANKED = {**PAIRS, **_roles("[margin]")}
"""The same for a reward model: by how much the scores are to differ."""
LABELLED = _roles(f"label=kto_tag/label [answer=completion/response/answer/output] {_QUESTION}")
"""One answer, which may be the last of the messages, and whether it is desirable."""
TEXTS = [
    _roles(f"{texts} label/labels [input_ids] [attention_mask]")
    for texts in (
        "text [text_pair]",
        "text=sentence1 text_pair=sentence2",
        "text=premise text_pair=hypothesis",
        "text=question1 text_pair=question2",
        "text=question text_pair=sentence",
        "text=sentence",
    )
]
"""One text or two that a label is of; the first form counts whose first text a row has."""
OBJECTIVES = {"pairs": PAIRS, "ranked": RANKED, "labelled": LABELLED, "classified": TEXTS[0], "asked": TEXTS[0]}
"""The roles of rows that functions of these names read."""
HELD = {"messages": "a list", "input_ids": "a list", "segments": "a list", "label": "a label"}
HELD |= dict.fromkeys(("chosen", "rejected"), "a text or messages")
"""What the column of a role holds that is not always a string."""
QUESTIONS = (*PAIRS["messages"].names, *PAIRS["prompt"].names)
SAYING_THE_SAME = (QUESTIONS, *(LABELLED[role].names for role in ("answer", "label", "system")))
"""Names of one thing, of which ``data.columns`` leaves one."""
KNOWN = {name for roles in COLUMNS.values() for role in roles.values() for name in role.names} | {
    *RANKED,
    *("images", "image", "videos", "audios", "weight", *LABELLED["label"].names),
}
"""Names of columns that mean something to this or another loader."""


class Missing(Wrong, KeyError):
    """A row lacks a column."""

    __str__ = Exception.__str__


class Columns(dict):
    """The columns of a row, by the roles that they have.

    Args:
        roles: the roles that are read.
        reader: what needs them, as errors say it.

    Attributes:
        asked: the names of the columns that were asked for, by other `Columns` of the same row, too.
    """

    def __init__(self, columns: Mapping[str, Any], roles: Mapping[str, Role] | None = None, reader: str = ""):
        super().__init__(columns)
        self.roles, self.reader = roles or {}, reader
        self.asked: set[str] = getattr(columns, "asked", set())

    def value(self, role: str, required: bool = False) -> Any:
        """What the column of a role holds; None where there is none. Raises `Wrong`."""
        names, found = self.roles.get(role, NONE).names, None
        for name in names:
            if name not in self:
                continue
            value = self[name]
            self.asked.add(name)
            if value is None or (isinstance(value, (str, list, dict)) and not value):
                found = value if found is None else found
            else:
                return value
        if found is not None or not required:
            return found
        there = next((name for name in names if name in self), None)
        if there is not None:
            raise Wrong(f"column {there!r}: expected {HELD.get(role, 'a string')}, found null")
        hint = (role in ("chosen", "label") and compared(self)) or nearest(names[0], self)
        raise Missing(f"no column {' or '.join(map(repr, names))}, which {self.reader} needs{hint}")

    def text(self, role: str, required: bool = False) -> str | None:
        """The same of a column that holds a string."""
        found = self.value(role, required)
        if not isinstance(found, (str, type(None))):
            raise Wrong(f"column {self.name(role)!r}: expected a string, found {type_name(found)}")
        return found and checked_text(found)

    def name(self, role: str) -> str:
        """What the column of a role is called in this row."""
        found = self.value(role)
        return next(name for name in self.roles[role].names if self.get(name) is found)

    def check(self, columns: Mapping[str, str], answers: bool) -> None:
        """Raises `Wrong` where there is no column that ``data.columns`` names and that no row may lack; ``answers``:
        whether those of an answer are such."""
        for role, name in columns.items():
            if name and name not in self and role not in PARTS and (answers or role not in ("answer", "label")):
                raise Wrong(f"no column {name!r}, which is to be the {role}{nearest(name, self)}")

    def unread(self, known: Collection[str]) -> tuple[list[str], list[str]]:
        """The columns that hold something and that nobody asked for: those with one of these names, and those whose
        names mean nothing to any loader."""
        found = [name for name, value in self.items() if name not in self.asked and _is_there(value)]
        return [name for name in found if name in known], [name for name in found if name not in KNOWN]


def _is_there(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip() not in ("", "[]", "{}")
    return value is not None and (not hasattr(value, "__len__") or len(value) > 0)


def compared(names: Iterable[str]) -> str:
    """Which objective reads rows with these columns, where answers are compared in them."""
    names = set(names)
    pair = [role for role in ("chosen", "rejected") if names.intersection(PAIRS[role].names)]
    if len(pair) == 2:
        return "; chosen and rejected are learnt by train.objective: dpo, for one"
    labelled = not pair and names.intersection(LABELLED["label"].names)
    return "; answers with a label are learnt by train.objective: kto" if labelled else ""
