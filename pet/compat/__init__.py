"""The names of the systems that people come from: one file per system, each a translation into this library's own.

Nothing here trains, reads data or writes files by itself: names and settings become a recipe, and the core runs it.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from model_zoo.errors import InputError


def _in_one_line(kind, error, trace, others=sys.excepthook) -> None:
    """What is wrong with a script's input is one message, with the script's own line, and exit code 2."""
    if not issubclass(kind, InputError):
        return others(kind, error, trace)
    here = traceback.extract_tb(trace)[0]
    print(f"{Path(here.filename).name}:{here.lineno}: {error}", file=sys.stderr)
    raise SystemExit(2)


sys.excepthook = _in_one_line
