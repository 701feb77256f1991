"""A command of ``pet`` that starts itself anew, in as many processes as its layout has."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pet
from model_zoo.errors import InputError
from model_zoo.posix import fcntl
from pet.files import lock
from pet.launching import launcher
from pet.launching.environment import RESULT_FILE, read_job, said_by


def relaunch(size: int, arguments: list[str], log_directory: str | os.PathLike) -> int | None:
    """Runs ``pet ARGUMENTS`` in ``size`` workers, two or more, unless this process is a worker already.

    Args:
        log_directory: where logs go, ``rank_N/worker.log`` of each. Where the input was wrong nothing is left there.

    Returns:
        The exit code, or None where this process is itself to do the work: in a job of ``size`` workers.

    Raises:
        InputError: the surrounding job has another number of workers than the layout asks for, or another job has its
            logs there.
    """
    job = read_job()
    if job.launcher != "none":
        check_size(size, job.size)
        return None
    log_directory = Path(log_directory)
    made = [path for path in (log_directory, *log_directory.parents) if not path.exists()]
    with locked(log_directory):
        result = log_directory / "finished"
        result.unlink(missing_ok=True)
        os.environ[RESULT_FILE] = str(result.absolute())
        # by its path: python -m would run whatever is called pet in the current directory
        program = [sys.executable, str(Path(pet.__file__).with_name("__main__.py"))]
        try:
            code = launcher.launch([*program, *arguments], size, log_directory=log_directory)
        except InputError:
            remove(made)
            raise
        finally:
            os.environ.pop(RESULT_FILE, None)
        if code == 2:
            remove(made)
    if code == 0 and not result.is_file():
        print(f"pet launch: the workers ended with exit code 0, but rank 0 did not write {result}", file=sys.stderr)
        return 1
    return code


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Makes a directory of logs, and keeps other jobs from it within the block.

    Raises:
        InputError: another job has its logs there, or it cannot be made.
    """
    if fcntl is None:  # Windows, where nothing is launched
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = lock(directory)
    except BlockingIOError:
        raise InputError(
            f"another job is running, with its logs in {directory}; wait until it has ended, or give another output.dir"
        ) from None
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None
    try:
        yield
    finally:
        os.close(handle)


def remove(made: Sequence[Path]) -> None:
    """Removes the logs of a job from the directories that it has made, and these where nothing else is in them.

    Args:
        made: the directory of the logs, and those above it; none where it was there.
    """
    for path in made[0].glob("rank_*") if made else ():
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        for path in made:
            path.rmdir()


def check_size(size: int, workers: int) -> None:
    """Raises InputError where a layout of so many processes is not that of the surrounding job."""
    if size != workers:
        raise InputError(
            f"parallel: data x tensor x pipeline = {size}, but the environment says a job of {workers} workers "
            f"({said_by()}); the product must be the number of workers"
        )
