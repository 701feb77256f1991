"""Where a worker's main thread is. The launcher asks by a signal, and the worker answers with its stack.

Only Python code answers, since Python calls its signal handlers between two of its own instructions: a main thread that
is within C++ does not. (Its fault handler would answer from there as well, but crashes where it reads a frame that is
just being made.) A worker that nobody asks pays nothing. The signal does nothing to a process without the handler, and
no worker gets it otherwise, having no terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from model_zoo.errors import OURS

QUESTION = getattr(signal, "SIGWINCH", None)
STANDARD = ("<frozen ", f"{sysconfig.get_path('stdlib')}{os.sep}")
LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def file_of(beat_file: str | os.PathLike) -> Path:
    """The file of a worker's answers, beside that of its lines (heartbeat.py)."""
    return Path(f"{beat_file}.stack")


@contextlib.contextmanager
def answering(beat_file: Callable[[], str | None]) -> Iterator[None]:
    """Within, this process answers, where this is the main thread.

    Args:
        beat_file: names the file of its lines; None where nobody watches yet.
    """
    if QUESTION is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def answer(number, frame) -> None:
        place, frames = beat_file(), []
        while place and frame is not None:
            frames.append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
        if not place:
            return
        with contextlib.suppress(OSError):
            file_of(place).write_text(json.dumps(frames))

    before = signal.signal(QUESTION, answer)
    signal.siginterrupt(QUESTION, False)
    try:
        yield
    finally:
        signal.signal(QUESTION, before)


class Stack:
    """A worker's answer.

    Args:
        frames: file and function of each, the innermost first.

    Attributes:
        in_library: whether what runs is another library's code, such as MindSpore's compiler. What the standard library
            does is its caller's.
        compiling: whether that is MindSpore's compiler.
        importing: the modules that are being imported, the outermost last.
    """

    def __init__(self, frames: Sequence[Sequence[str]]):
        callers = [file for file, _ in frames if _of_library(file) or not file.startswith(STANDARD)]
        self.in_library = bool(callers) and _of_library(callers[0]) and not callers[0].startswith(OURS)
        self.compiling = self.in_library and any(
            "compile" in name and f"{os.sep}mindspore{os.sep}" in file for file, name in frames
        )
        imports = any(file.startswith("<frozen importlib") for file, _ in frames)
        self.importing = [file for file, name in frames if name == "<module>"] if imports else []


def _of_library(file: str) -> bool:
    return any(part in file for part in LIBRARIES)
