"""What a row says and nothing reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class Columns(dict):
    """The columns of a row, which note what is asked for.

    Attributes:
        asked: the names of the columns that were.
    """

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def unread(self, known: Collection[str]) -> list[str]:
        """Of the columns with one of these names those that hold something and that nobody asked for."""
        return [name for name, value in self.items() if name in known and name not in self.asked and _is_there(value)]


def _is_there(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip() not in ("", "[]", "{}")
    return value is not None and (not hasattr(value, "__len__") or len(value) > 0)


def without_place(row: Any, template: str | None, other: str | None) -> list[str]:
    """What a row says and a template that is a text has no place for; ``other``: that of rows without an input."""
    if template is None or not row.messages:
        return []
    found, messages = [], [message for one in (row.messages, *row.others) for message in one]
    if messages[0]["role"] == "system" and "{system}" not in template + (other or ""):
        found.append("the system message, for which data.template has no {system},")
    if any(message.get("reasoning_content") for message in messages):
        found.append("the thought, for which data.template has no place,")
    return found
