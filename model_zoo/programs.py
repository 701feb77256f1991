"""Programs of ours beside this process, by the same Python."""

from __future__ import annotations

import os
import sys

FIND = r"import sys; sys.path += sys.argv.pop(1).split('\n'); "
"""A directory's name may have a colon in it."""


def program(code: str, *arguments: str) -> list[str]:
    """The command that runs Python code apart: neither the environment nor the current directory changes what it
    imports.

    It finds the packages that this process finds, wherever they lie: in a user's own directory (``pip install
    --user``), or one that ``PYTHONPATH`` names. Python's option -I alone would hide both.
    """
    # not those beside a current directory that is gone
    places = "\n".join(os.path.abspath(place) for place in sys.path if place and os.path.exists(place))
    return [sys.executable, "-I", "-c", FIND + code, places, *arguments]


def file_program(path: str | os.PathLike, *arguments: str) -> list[str]:
    """`program` of a file."""
    return program("import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')", os.fspath(path), *arguments)
