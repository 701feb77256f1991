"""What the columns of a row say and nothing has read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from .messages import SAID_BY, Wrong
from .preferences import TURN

OTHER = ("tools", "functions", "input_ids", "images", "image", "videos", "audios")
"""Columns that loaders read, but not as texts."""
COMPARED = ("chosen", "rejected")
CALLS = ("tool_calls", "function_call")
FURTHER = ("history", "input")
"""Parts of a question; no loader says what they mean beside messages."""


class Unread:
    """Notices what is left out of the rows of a file.

    Args:
        known: role -> the names that its column has in any format.
        columns: `data.columns`; an empty name is a column that is not to be read.
        compares: whether the rows hold answers to compare.
    """

    def __init__(self, known: Mapping[str, Collection[str]], columns: Mapping[str, str], compares: bool) -> None:
        left_out = {name for role, there in columns.items() if not there for name in (role, *known.get(role, ()))}
        named = [there for role, there in columns.items() if role in known]
        every = [name for names in (*known.values(), named, () if compares else COMPARED, OTHER) for name in names]
        self.names = [name for name in dict.fromkeys(every) if name and name not in left_out]
        self.refused = () if any(columns.values()) else FURTHER
        groups = {role: {*known[role], columns.get(role)} for role in ("messages", "text", "prompt", "answer")}
        self.contents, self.answers = groups["messages"] | groups["text"] | groups["prompt"], groups["answer"]
        self.asked = set() if compares else groups["prompt"]

    def __call__(self, columns: Mapping[str, Any], row: Any) -> list[str]:
        """The columns with something that is nowhere in the row which was made of them.

        Raises:
            Wrong: it is a part of a question, and nobody has said which columns are read.
        """
        taken = {"tools": row.tools, "input_ids": row.tokens, "input": row.input}
        given = [name for name in self.names if _is_there(columns.get(name)) and not taken.get(name)]
        given = given if row.tokens else self._in_question(given)
        found = self._not_said(given, columns, row) if given else []
        for name in found if row.messages else ():
            if name in self.refused:
                raise Wrong(
                    f"column {name!r}: is not read beside messages; write it into them, or leave it out by "
                    f"data.columns: {{{name}: ''}}"
                )
        return found

    def _in_question(self, given: list[str]) -> list[str]:
        """Those that have to be looked for: not the only question, nor its only answer."""
        questions = [name for name in given if name in self.contents]
        if self.asked and len(questions) == 1:
            answers = [name for name in given if name in self.answers and questions[0] in self.asked]
            given = [name for name in given if name not in questions and (len(answers) > 1 or name not in answers)]
        return given

    def _not_said(self, given: list[str], columns: Mapping[str, Any], row: Any) -> list[str]:
        said = [message for one in (row.messages or (), *row.others) for message in one]
        parts = [part for one in said for part in (one["content"], one.get("reasoning_content"))]
        parts = [part for part in (*parts, row.text) if part]
        lines = [line for part in parts for line in part.split("\n") if line.strip()]
        whole = "\n".join(parts)
        return [name for name in given if name in OTHER or not _is_read(columns[name], lines, whole)]


def _is_there(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip() not in ("", "[]", "{}")
    return value is not None and (not hasattr(value, "__len__") or len(value) > 0)


def _is_read(value: Any, lines: list[str], whole: str) -> bool:
    """Whether a text has all of a value. What has all of its lines, as a prompt beside its parts, says no more."""

    def is_said(text: str | None) -> bool:
        return text is not None and (
            text.strip() in whole or all(part.strip() in whole for part in TURN.split(text)[::2])
        )

    if isinstance(value, str) and (is_said(value) or (lines and all(line in value for line in lines))):
        return True
    return all(is_said(text) for text in _texts(value))


def _texts(value: Any) -> Iterator[str | None]:
    """The texts of a value, those of messages and pairs among them; None for what is no text."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, Mapping):
        is_call = any(name in value or name in (value.get("from"), value.get("role")) for name in CALLS)
        given = [value[name] for name in (*SAID_BY[1], "text") if value.get(name) is not None]
        for text in () if is_call else given:
            yield from _texts(text)
        if not given and not is_call:
            yield None


def without_place(row: Any, template: str | None, other: str | None) -> list[str]:
    """What a row says and a template that is a text has no place for; ``other``: that of rows without an input."""
    messages = [message for one in (row.messages or (), *row.others) for message in one]
    if template is None or not messages:
        return []
    found = []
    if messages[0]["role"] == "system" and "{system}" not in template + (other or ""):
        found.append("the system message, for which data.template has no {system},")
    if any(message.get("reasoning_content") for message in messages):
        found.append("the thought, for which data.template has no place,")
    return found
