"""The process that renders chat templates, so that one out of a downloaded file is held to limits whatever it does.

Run as a program by `model_zoo.tokenizers.template_process`. Reads a line of JSON for the template and one for each list
of conversations, and answers each with a line. Imports nothing of this library.

Jinja's sandbox keeps a template from Python's objects. It does not bound time or memory: one multiplication of a text,
one power, or a few nested loops are enough to stop a machine. A process of its own is ended by the system at its limit
of processor time, and is refused memory beyond its limit, in C code too.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from datetime import datetime
from typing import ClassVar

try:
    import resource
except ImportError:  # Windows
    resource = None

MEMORY = 1 << 30
"""Address space in bytes: Python and Jinja take a tenth."""


def memory() -> int:
    """`MEMORY`, or less where the user allows less (`ulimit -v`): no process may raise that."""
    if resource is None:
        return MEMORY
    limits = resource.getrlimit(resource.RLIMIT_AS)
    return min([MEMORY, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])


def bound_memory() -> None:
    """Holds this process to `memory`, where the system can."""
    if resource is not None:
        with suppress(ValueError, OSError):  # macOS counts what all processes share, which is more
            resource.setrlimit(resource.RLIMIT_AS, (memory(), memory()))


class clock:
    """Ends this process when what is within takes more than so many seconds of processor time."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __enter__(self) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, self.seconds)

    def __exit__(self, *_) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)


def environment(opening: str, closing: str):
    """Jinja as transformers sets it up for chat templates; answers are put between the two marks."""
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags: ClassVar[set[str]] = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

        def marked(self, caller) -> str:
            return opening + caller() + closing

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    found = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    found.filters["tojson"] = tojson
    found.globals["raise_exception"] = raise_exception
    found.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return found


def explained(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, RecursionError):
        return "it calls itself without an end"
    if isinstance(error, MemoryError):
        return f"it needs more than {memory() >> 20} MB"
    line = getattr(error, "lineno", None)
    return f"{f'line {line}: ' if line else ''}{error or type(error).__name__}".splitlines()[0][:300]


def main() -> None:
    """Serve until the input ends."""
    bound_memory()
    first = json.loads(sys.stdin.readline())
    template, wrong = None, None
    with clock(first["seconds"]):
        try:
            template = environment(*first["marks"]).from_string(first["template"])
        except RecursionError:
            wrong = "its parts are nested too deeply"
        except Exception as error:
            wrong = explained(error)
    for line in sys.stdin:
        answers = []
        for values in json.loads(line):
            with clock(first["seconds"]):
                try:
                    if wrong is not None:
                        raise ValueError(wrong)
                    text = template.render(**values)
                    if len(text) > first["longest"]:
                        raise ValueError(f"it makes {len(text)} characters; at most {first['longest']} are taken")
                    text.encode("utf-8")
                    answers.append({"text": text})
                except Exception as error:
                    answers.append({"error": explained(error)})
        sys.stdout.write(json.dumps(answers) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
