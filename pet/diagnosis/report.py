"""What a section found: rows, which are in a file as soon as they are known."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from model_zoo.errors import explain
from pet.files import write_json

OK, NOTE, BAD = "ok", "note", "bad"


@dataclasses.dataclass(frozen=True)
class Row:
    """One check.

    Attributes:
        section: the part of the diagnosis that it belongs to.
        check: what was looked at.
        verdict: `OK`, `BAD`, or `NOTE` for what has no right or wrong.
        measured: the result in words.
        numbers: the same for a program.
    """

    section: str
    check: str
    verdict: str
    measured: str
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)


class Section:
    """The rows of one section.

    Args:
        path: the file that they go to; None keeps them here alone.
    """

    def __init__(self, name: str, path: Path | None = None):
        self.name, self.path = name, path
        self.rows: list[Row] = []
        if path is not None:  # it has begun
            write_rows(path, self.rows)

    def add(self, check: str, verdict: str | bool, measured: str = "", **numbers: Any) -> None:
        """A row; True and False are right and wrong."""
        if isinstance(verdict, bool):
            verdict = OK if verdict else BAD
        self.rows.append(Row(self.name, check, verdict, measured, numbers))
        if self.path is not None:
            write_rows(self.path, self.rows)

    def difference(self, check: str, largest: float, limit: float, text: str = "", **numbers: Any) -> None:
        """A row of a largest difference, which is right up to a limit; NaN is wrong."""
        measured = f"largest difference {largest:.1e} (limit {limit:.0e}){text}"
        self.add(check, bool(largest <= limit), measured, difference=float(largest), limit=limit, **numbers)

    @contextlib.contextmanager
    def checking(self, check: str, otherwise: str = BAD) -> Iterator[None]:
        """An error within becomes a row of this verdict, and what follows goes on."""
        try:
            yield
        except Exception as error:
            self.add(check, otherwise, explain(error))


def write_rows(path: Path, rows: Sequence[Row], **more: Any) -> None:
    """Rows, and more beside them, as JSON."""
    write_json(path, {**more, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1)


def read_rows(path: Path) -> list[Row]:
    """What `write_rows` wrote; none where there is no file."""
    if not path.is_file():
        return []
    return [Row(**row) for row in json.loads(path.read_text("utf-8"))["rows"]]


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| section | check | verdict | measured |", "|---|---|---|---|"]
    for row in rows:
        cells = (row.section, row.check, row.verdict, row.measured)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)
