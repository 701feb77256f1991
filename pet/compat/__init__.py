"""The names of the systems that people come from: one file per system, each a translation into this library's own.

Nothing here trains, reads data or writes files by itself: names and settings become a recipe, and the core runs it.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path

from model_zoo.errors import InputError


def _in_one_line(kind, error, trace, others=sys.excepthook) -> None:
    """What is wrong with a script's input is one message, with the script's own line, and exit code 2."""
    if (logs := sys.modules.get("pet.compat.mindformers.logs")) is not None:
        logs.note(kind, error, trace)
    if not issubclass(kind, InputError):
        return others(kind, error, trace)
    here = traceback.extract_tb(trace)[0]
    end(InputError(f"{Path(here.filename).name}:{here.lineno}: {error}"))


def end(error: InputError, code: int = 2) -> None:
    """Ends a script whose input is wrong: says so, to the other processes of its job as well.

    Raises:
        SystemExit: always.
    """
    from pet.launching.environment import read_job

    with contextlib.suppress(Exception):  # what else is wrong does not count any more
        if read_job().joins:
            from pet.parallel.together import come_together

            try:
                come_together(error)
            except InputError as found:
                error = found
    if not error.said:
        print(error, file=sys.stderr)
    leave(code)


def leave(code: int) -> None:
    """Ends a script with this exit code; the other processes of its job need not wait for it.

    Raises:
        SystemExit: always.
    """
    job = sys.modules.get("pet.parallel.join")
    if job is not None:
        job.leave(code)
    raise SystemExit(code)


sys.excepthook = _in_one_line
