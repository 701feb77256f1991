"""A row of a file, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .dataset import place_name
from .records import BEGINNING, Place


@dataclass(slots=True)
class Row:
    """One row of a file, in the one form that everything after it reads. Exactly one of the four contents is set.

    Attributes:
        path: its file.
        line: where it begins there.
        messages: ``[{"role": "system" | "user" | "assistant" | "tool", "content": str}, …]``; an answer that is not
            learnt has ``"weight": 0`` besides.
        tools: JSON schemas of the functions that may be called, for chat templates.
        thinking: ``data.enable_thinking`` of this row; None for that of all.
        text: raw text.
        tokens: (ids, trained) of a row that was tokenised before.
        segments: (text, whether it is learnt), whose control tokens are such.
        input: the ``input`` column of an alpaca row, which is already part of its last question; for templates.
        prompt: the question without that input; for templates.
        others: further documents of the same sample, messages each.
        place: where reading goes on after it.
        row: its number, where another row begins on its line; otherwise 0. With file and line it names the row.
        unread: columns of a known name that hold something and were not read.
        beside: such columns of other names.
        met: the roles of ``data.columns`` whose column it has, and words of ``data.roles`` that the file had so far.
        text_pair: a second text that is judged with the first.
        label: what the data says of it, for objectives that learn that: a name, a number, or a list of these; of an
            answer whether it is desirable, of a pair its margin.
    """

    path: Path
    line: int
    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    tokens: tuple[list[int], list[bool]] | None = None
    segments: list[tuple[str, bool]] | None = None
    input: str = ""
    prompt: str = ""
    others: list[list[dict[str, Any]]] = field(default_factory=list)
    place: Place = BEGINNING
    row: int = 0
    text_pair: str | None = None
    label: Any = None
    tools: list[dict[str, Any]] | None = None
    thinking: bool | None = None
    unread: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    met: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """``file:line`` for reports."""
        return place_name(self.path, self.line, self.row)

    @property
    def is_judged(self) -> bool:
        """Whether it is one text, or two, with a label."""
        return self.messages is None and self.label is not None

    @property
    def size(self) -> int:
        """Characters, or tokens: memory and time go by them."""
        if self.messages is None:
            return len(self.text or "") + len(self.text_pair or "") + (len(self.tokens[0]) if self.tokens else 0)
        return sum(len(message["content"]) for messages in (self.messages, *self.others) for message in messages)
