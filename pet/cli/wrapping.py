"""Text as wide as the terminal; apart from the parser, since `pet --help` has no other use for that."""

from __future__ import annotations

import re
import shutil
import textwrap


def columns(elsewhere: int = 80) -> int:
    """Columns of a line, 100 at most: the terminal's, or so many where there is none."""
    return min(100, shutil.get_terminal_size((elsewhere, 24)).columns)


def wrapped(text: str, width: int | None = None) -> str:
    """Lines as wide as the terminal, up to 100 columns. What is too long goes on beneath its second column or its own
    indentation, a command after a backslash."""
    width = width or columns()
    lines = []
    for line in text.splitlines():
        column = re.match(r"\s*(\S+( \S+)* {2,})?", line)
        assert column is not None
        command = line.startswith("  pet ") and not column[1]
        if len(line) <= width - 2 * command:
            lines.append(line.rstrip())
            continue
        broken = textwrap.wrap(
            line,
            width - 2 * command,
            subsequent_indent=" " * (10 if command else column.end()),
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines.append((" \\\n" if command else "\n").join(broken))
    return "\n".join(lines)
