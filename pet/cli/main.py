"""The command ``pet``: finds the command, runs it, and turns what goes wrong into a message and an exit code.

Exit codes: 0, all is well; 1, the run failed; 2, the input was wrong; 130, interrupted (Ctrl-C); 143, told to stop
(SIGTERM; 129 for SIGHUP), with everything saved that can be saved; 141, nobody reads the output any more (SIGPIPE).
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from model_zoo import progress
from model_zoo.errors import InputError, explain, similar
from model_zoo.limits import shortage
from model_zoo.unwritable import REASONS, UNFINISHED, CannotWrite, what_is_in_the_way
from pet import __version__, interrupts
from pet.cli.commands import COMMANDS, called_elsewhere
from pet.cli.imports import import_quickly
from pet.installation import (
    check_directory,
    deleted_directory,
    foreign_adapters,
    open_closed_streams,
    tolerate_encodings,
    unmet,
)
from pet.launching.environment import read_job, report_success
from pet.launching.heartbeat import watched

FAILED, WRONG_INPUT, INTERRUPTED, UNREAD = 1, 2, 130, 141
MOST_LINES, WIDEST = 19, 1000

HELP = """\
usage: pet COMMAND ...

Parameter-efficient fine-tuning of GPT, LLaMA and GLM models with MindSpore.

commands:
{commands}

  pet COMMAND --help   what a command takes, with worked examples
  pet --version        the version

{start}Exit codes: 0 done, 1 the run failed, 2 the input was wrong, 130 interrupted, 143 told to stop, \
129 the terminal was closed, 141 nobody reads the output.
"""


def _help() -> str:
    from pet.cli.wrapping import wrapped

    width = max(map(len, COMMANDS)) + 3
    lines = [f"  {name:<{width}}{meaning}" for name, (_, meaning) in COMMANDS.items()]
    start = "Start with: pet finetune glm_lora\n" if "finetune" in COMMANDS else ""
    return wrapped(HELP.format(commands="\n".join(lines), start=start)) + "\n"


def _report(prog: str, error: BaseException | str, debug: bool) -> None:
    """One clear message on stderr, unless it stands there already."""
    if debug:
        traceback.print_exc()
    if getattr(error, "said", False):
        return
    from pet.recipe.variables import hide

    text = hide((getattr(error, "whole", None) or str(error)).strip() or type(error).__name__)
    text = text if text.startswith(f"{prog}: ") else f"{prog}: {text}"
    try:
        print(text if debug else _shortened(text), file=sys.stderr)
    except BrokenPipeError:
        raise
    except OSError:  # the exit code still says it
        closed_streams()


def _shortened(text: str) -> str:
    """What fits on a terminal: a value may be endless, and so may be a list of problems."""
    lines = [line if len(line) <= WIDEST else f"{line[:WIDEST]} …" for line in text.splitlines()]
    left = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], f"… and {left} more lines (--debug shows all)"] if left > 0 else lines)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; errors pass through."""
    if "_ARGCOMPLETE" in os.environ:
        from pet.cli.completion import complete

        complete()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if len(arguments) > 1 and arguments[0] == "help":
            return run([arguments[1], "--help"])
        print(_help(), end="")
        return 0
    name, *rest = arguments
    if name == "--version":
        print(f"pet {__version__}")
        return 0
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        if ours := called_elsewhere(arguments):
            raise InputError(f"there is no {kind} {name!r}; that is pet {ours} FILE here")
        raise InputError(
            f"there is no {kind} {name!r}{similar(name, (*COMMANDS, '--version', '--help'))}; see pet --help"
        )
    if not {"-h", "--help"} & {*rest}:
        check_directory()
    wrong = foreign_adapters() if name != "doctor" else None  # which lists it among its findings
    if wrong:
        raise InputError(wrong)
    return import_module(COMMANDS[name][0]).main(rest) or 0


def _interrupted(prog: str, debug: bool) -> int:
    with contextlib.suppress(OSError):  # the terminal was closed, say
        if debug:
            traceback.print_exc()
        print(f"{prog}: interrupted", file=sys.stderr)
    closed_streams()
    return interrupts.ending() or INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, by default that of this process: returns the exit code."""
    if arguments is None:
        open_closed_streams()
        interrupts.listen()
        import_quickly()
    with watched():
        progress.tick()  # before anything is imported, or another process joined
        code = answer(arguments)
    with interrupts.handled_by(interrupts.end_at_once):
        return leave(code)


def leave(code: int) -> int:
    """What is left to do when a command has ended: nothing that a signal could not cut off."""
    if code == 0:
        report_success()
    job = sys.modules.get("pet.parallel.join")
    half_imported = "mindspore._c_expression" in sys.modules and "mindspore" not in sys.modules
    # waits for the other processes, or does not come back where this one has failed
    if interrupts.ending() or (job is not None and job.leave(code)) or half_imported:
        # everything is written; at its normal end MindSpore's network would say so on the terminal, line by line, and
        # what was interrupted, or an import that failed (of another protobuf), may fail to end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def answer(arguments: Sequence[str] | None) -> int:
    """Runs a command line and turns errors into messages; returns the exit code."""
    tolerate_encodings()
    try:
        return _answer(arguments)
    except BrokenPipeError:  # the reader (head, less) has gone
        closed_streams()
        return UNREAD


def closed_streams(probe: bytes = b"") -> list[str]:
    """What is wrong with standard output and standard error, a line each; what cannot be written gets the null device,
    so that nothing is flushed to it at exit.

    Args:
        probe: is written to see whether it can be: without a buffer there is nothing left to flush.
    """
    found = []
    for name, stream in (("standard output", sys.stdout), ("standard error", sys.stderr)):
        try:
            stream.flush()
            os.write(stream.fileno(), b"" if found else probe)
        except OSError as error:
            if error.errno is None:  # no file at all
                continue
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            found.append(what_is_in_the_way(OSError(error.errno, error.strerror, name)) or f"{name}: {error.strerror}")
    return found


def _answer(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    prog = f"pet {arguments[0]}" if arguments and arguments[0] in COMMANDS else "pet"
    try:
        with interrupts.raising():
            code = run(arguments)
            closed_streams() if code else sys.stdout.flush()  # what has failed keeps its code
        return code
    except InputError as error:
        _report(prog, error, debug)
        return WRONG_INPUT
    except KeyboardInterrupt:
        return _interrupted(prog, debug)
    except BrokenPipeError:
        raise
    except SystemExit as error:
        if isinstance(error.code, str):
            print(f"{prog}: {error.code}", file=sys.stderr)
            return FAILED
        unwritten = closed_streams()  # at exit Python would make another code of it
        return error.code or (FAILED if unwritten else 0)
    except CannotWrite as error:
        _report(prog, error.strerror, debug)
        return FAILED
    except Exception as error:
        if interrupts.ending():  # the exception may have come back from C++ as another
            return _interrupted(prog, debug)
        if str(error) == "Could not determine home directory.":  # by pathlib; users of containers may have none
            _report(prog, "~: there is no such home directory; give the whole path, or set HOME", debug)
            return WRONG_INPUT
        if debug or read_job().distributed:  # of one worker among many only the log is left
            traceback.print_exc()
            return FAILED
        known = what_is_in_the_way(error) if isinstance(error, OSError) else None
        if isinstance(error, FileNotFoundError) and error.filename is None:
            known = deleted_directory()
        if known is None and getattr(error, "errno", None) in REASONS:  # of a file it would have the name
            known = next(iter(closed_streams(b"\n")), None)
        if known is None:
            lacking = "; ".join(filter(None, shortage(error) or ()))
            changed = (f"{package} {wrong}" for package, wrong in unmet())  # which may be why
            said = "\n".join((lacking or explain(error), *changed, f"(pet {' '.join(arguments)} --debug shows where)"))
        _report(prog, known or said, False)
        # of what could not be written there is another error (CannotWrite), or a name of what was being written
        unreadable = isinstance(error, PermissionError) and known and UNFINISHED not in str(error.filename)
        return WRONG_INPUT if unreadable else FAILED
