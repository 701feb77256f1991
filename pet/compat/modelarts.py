"""ModelArts: a job's output is uploaded while it runs and at its end, and its environment says where everything lies.

``file://`` addresses are directories, ``obs://`` ones are reached by moxing, which ModelArts' images bring.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from model_zoo.atomic import read_json
from model_zoo.errors import InputError
from pet.files import copy
from pet.recipe import variables
from pet.train.callbacks.base import Callback

log = logging.getLogger("pet")


def expand(text: str) -> str:
    """A path or address with ``${NAME}`` replaced by the environment variable.

    Raises:
        InputError: a variable is not set.
    """
    missing: list[str] = []
    expanded = variables.expand(str(text), missing.append)
    if missing:
        raise InputError(f"{text}: the environment variable {missing[0]!r} is not set")
    return expanded


CACHE = Path("/cache/ma-user-work")
"""Where ModelArts has room; its images give a container's own disk a few gigabytes."""
ON_MODELARTS = ("MA_LOG_DIR", "MA_JOB_DIR", "MA_LOCAL_LOG_PATH")


DEFAULT_OUTPUT = Path("output")
"""What MindFormers' files say; until release 0.8 they were to say nothing else."""


def output_directory(given: str) -> str:
    """A run's directory: in a ModelArts job a relative one lies below `CACHE`, as MindFormers' output does. The default
    is where LOCAL_DEFAULT_PATH says: until 0.8 the wrappers start processes where they empty all before a run.
    """
    if Path(given) == DEFAULT_OUTPUT:
        given = os.environ.get("LOCAL_DEFAULT_PATH") or given
    inside = any(name in os.environ for name in ON_MODELARTS) and os.access(CACHE.parent, os.W_OK)
    return str(CACHE / given) if inside and not Path(given).is_absolute() else given


class Target:
    """Where files are uploaded to.

    Args:
        url: ``file:///directory`` or ``obs://bucket/directory``; ``${NAME}`` is an environment variable.

    Raises:
        InputError: another kind of address, or ``obs://`` where moxing is not installed.
    """

    def __init__(self, url: str):
        self.url = expand(url).rstrip("/")
        scheme, colon, rest = self.url.partition("://")
        if not colon or scheme not in ("file", "obs") or not rest:
            raise InputError(f"remote_save_url {url!r}: file:///directory or obs://bucket/directory was expected")
        self.directory = Path(rest) if scheme == "file" else None
        self.moxing = None
        if scheme == "obs":
            try:
                import moxing
            except ImportError:
                raise InputError(
                    f"remote_save_url {url!r}: obs:// needs the package moxing, which ModelArts' images bring "
                    "(moxing-framework); without it use file:// to a mounted directory"
                ) from None
            self.moxing = moxing

    def put(self, source: Path, name: str) -> None:
        """Copies one file to a name below the address; with ``file://`` it is there whole or not at all."""
        if self.moxing is not None:
            self.moxing.file.copy(str(source), f"{self.url}/{name}")
            return
        copy(source, self.directory / name)


class Upload(Callback):
    """Uploads a run directory: what is new or changed, every so many steps, at each checkpoint, and at the end, also
    of a run that failed.

    Args:
        url: see `Target`.
        every: steps between uploads; None uploads at checkpoints and at the end only.
        extra: further directories, by default the one that MINDSPORE_DUMP_CONFIG names.

    Raises:
        InputError: see `Target`.
    """

    def __init__(self, url: str, every: int | None = None, extra: tuple[str, ...] | None = None):
        if every is not None and every < 1:
            raise InputError(f"upload_sequence is {every}; a number of steps of at least 1 was expected")
        self.target, self.every, self.last = Target(url), every, 0
        self.extra = dump_directories() if extra is None else [Path(one) for one in extra]
        self.seen: dict[Path, tuple[int, int]] = {}

    def upload(self, directory: Path) -> list[str]:
        """Uploads what changed since the last time; returns the names."""
        sent = []
        for root, prefix in [(directory, ""), *((extra, f"{extra.name}/") for extra in self.extra)]:
            for path in sorted(root.rglob("*")) if root.is_dir() else ():
                relative = path.relative_to(root)
                # a run's hidden files are unfinished ones; a dump's belong to it
                hidden = not prefix and any(part.startswith(".") for part in relative.parts)
                if hidden or not path.is_file():
                    continue
                state = path.stat()
                mark = (state.st_mtime_ns, state.st_size)
                if self.seen.get(path) == mark:
                    continue
                self.target.put(path, prefix + relative.as_posix())
                self.seen[path] = mark
                sent.append(prefix + relative.as_posix())
        return sent

    def _try(self, trainer) -> None:
        if trainer.directory is None:
            return
        try:
            self.upload(Path(trainer.directory))
        except Exception as error:  # a full or absent store must not end the training
            log.warning("upload to %s failed: %s", self.target.url, error)

    def step(self, trainer, record) -> None:
        # not by the remainder: of several steps only one may be logged, and it need not be a multiple
        if self.every and record["step"] // self.every > self.last // self.every:
            self.last = record["step"]
            self._try(trainer)

    def save(self, trainer, path) -> None:
        self._try(trainer)

    def end(self, trainer, summary) -> None:
        self._try(trainer)


def dump_directories() -> list[Path]:
    """Where MindSpore dumps tensors to, by the file that MINDSPORE_DUMP_CONFIG names; empty without it."""

    name = os.environ.get("MINDSPORE_DUMP_CONFIG")
    if not name:
        return []
    try:
        path = read_json(name, "a dump configuration")["common_dump_settings"]["path"]
    except (InputError, KeyError, TypeError) as error:
        raise InputError(f"MINDSPORE_DUMP_CONFIG {name}: no dump configuration: {error}") from None
    return [Path(path)]
