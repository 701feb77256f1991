"""What a user reads before and after a run: plain tables, the same on a terminal and in a log."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pet.train.evaluate import Answer

WIDTH = 100
# Metrics as they are told, in this order.
TITLES = {
    "loss": "held-out loss",
    "perplexity": "perplexity",
    "accuracy": "token accuracy",
    "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "bleu": "BLEU",
    "exact_match": "exact match",
}


def width(text: str) -> int:
    """Columns that a text takes on a terminal; Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def padded(text: str, columns: int) -> str:
    """The text, filled up with spaces."""
    return text + " " * max(0, columns - width(text))


def wrapped(text: str, columns: int) -> list[str]:
    """The text in lines of at most so many columns, broken between words where there are any."""
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        line, last_space = "", -1
        for character in paragraph:
            line += character
            if character == " ":
                last_space = len(line)
            if width(line) > columns:
                cut = last_space if last_space > 0 else len(line) - 1
                lines.append(line[:cut].rstrip())
                line, last_space = line[cut:], -1
        lines.append(line)
    return lines or [""]


def table(rows: Sequence[Sequence[str]], numbers_from: int = 1) -> list[str]:
    """Rows as aligned columns; those from ``numbers_from`` on are set to the right. The first row is the head."""
    columns = [max(width(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for index, cell in enumerate(row):
            space = " " * (columns[index] - width(cell))
            cells.append(space + cell if index >= numbers_from else cell + space)
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("─" * column for column in columns))
    return lines


def number(value: float | None) -> str:
    """A measure with as many digits as mean something."""
    if value is None:
        return "–"
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"


def before(facts: dict[str, Any]) -> str:
    """The summary in front of a run.

    Args:
        facts: label → what stands beside it, in order; values are texts.
    """
    widest = max(width(label) for label in facts)
    return "\n".join(f"{padded(label, widest)}  {value}" for label, value in facts.items())


def comparison(first: dict[str, float] | None, last: dict[str, float] | None) -> str:
    """The measures before and after, side by side; empty where nothing was measured."""
    names = [name for name in TITLES if name in (last or {}) or name in (first or {})]
    if not names:
        return ""
    rows = [["", "before", "after"]]
    rows += [[TITLES[name], number((first or {}).get(name)), number((last or {}).get(name))] for name in names]
    return "\n".join(table(rows))


def samples(first: Sequence[Answer], last: Sequence[Answer], columns: int = WIDTH) -> str:
    """Answers side by side: what the base wrote, and what the tuned model writes."""
    half = (columns - 3) // 2
    by_place = {(answer.where, answer.prompt): answer.answer for answer in first}
    blocks = []
    for answer in last:
        lines = [*(f"  {line}" for line in wrapped(f"? {answer.prompt}", columns - 2))]
        if answer.reference:
            lines += [f"  {line}" for line in wrapped(f"= {answer.reference}", columns - 2)]
        left = wrapped(by_place.get((answer.where, answer.prompt), "–") or "(nothing)", half)
        right = wrapped(answer.answer or "(nothing)", half)
        lines.append(f"{padded('base', half)} │ tuned")
        lines.append("─" * half + "─┼─" + "─" * half)
        for row in range(max(len(left), len(right))):
            one = left[row] if row < len(left) else ""
            two = right[row] if row < len(right) else ""
            lines.append(f"{padded(one, half)} │ {two}".rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def where(directory: Path, contents: dict[str, str]) -> str:
    """Where everything lies: file or directory → what it is; what does not exist is left out."""
    there = {name: text for name, text in contents.items() if (directory / name).exists()}
    widest = max((len(name) for name in there), default=0)
    lines = [str(directory)]
    lines += [f"  {name:<{widest}}  {text}" for name, text in there.items()]
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """``75`` → ``1 min 15 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
