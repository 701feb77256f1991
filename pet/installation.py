"""What the library finds around it: the packages that Python imports, the device, the terminal's encoding."""

from __future__ import annotations

import codecs
import io
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from model_zoo.errors import InputError

OURS = "part of mindspore-pet"
PACKAGES = {"site-packages", "dist-packages"}
"""Directories of installed packages; what lies elsewhere is a user's own."""


TESTED = ("2.7", "2.8", "2.9", "2.10")
"""Versions of MindSpore that tests passed with: with the newest all of them, with the others the quick ones and the
full diagnosis."""


KNOWN = {"mindspore-pet": ("numpy<2", "safetensors<0.8")}
"""What goes wrong without a word; for a library that is run from a directory, and so does not say what it needs."""


def foreign_adapters() -> str | None:
    """What is wrong where ``import adapters`` finds another library, in one line; None where it is this one's.

    AdapterHub's distribution ``adapters`` installs a package of the same name. Whichever of the two comes first on the
    path, or was installed last, is imported. Nothing is imported here to find out: theirs would import torch.
    """
    spec = find_spec("adapters")
    origin = Path(spec.origin) if spec and spec.origin else None
    if origin is not None and OURS in origin.read_text(encoding="utf-8", errors="replace"):
        return None
    places = [*((spec and spec.submodule_search_locations) or ())]
    if places and not PACKAGES.intersection(Path(places[0]).parts):
        return (
            f"the package 'adapters' is that of {places[0]}, of another library or none: Python looks there before it "
            "finds mindspore-pet's; rename that directory, or run from another one"
        )
    found = f"is that of {origin}, of another library" if origin else "is missing"
    return (
        f"the package 'adapters' {found} (AdapterHub's has this name): install mindspore-pet into an environment of "
        "its own, or pip uninstall adapters and then pip install --force-reinstall --no-deps mindspore-pet"
    )


def deleted_directory() -> str | None:
    """What is said where the current directory was deleted, which ends a process that imports MindSpore; else None."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current directory was deleted; change to another (cd)"
    return None


def check_directory() -> None:
    """Raises InputError where the current directory was deleted, or none takes temporary files, without which MindSpore
    ends the process when it is imported."""
    if (gone := deleted_directory()) is not None:
        raise InputError(gone)
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise InputError(f"{error.strerror}: name one that can be written to: export TMPDIR=/…") from None


def needed(package: str, extra: str, purpose: str) -> ModuleType:
    """An optional package.

    Args:
        extra: the extra of mindspore-pet that brings it.
        purpose: what needs it, as the error says.

    Raises:
        InputError: it is not installed, or not one that can be used here; says how to get it.
    """
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and error.name in (name, package)
        why = "" if missing else f", and not the one that is installed ({error})"
        raise InputError(f"{purpose} needs the package {name}{why}: pip install 'mindspore-pet[{extra}]'") from error


def installed(package: str) -> str | None:
    """The version of a distribution that is installed; None where there is none."""
    from importlib.metadata import PackageNotFoundError, version  # a third of what `pet --help` would import

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def unmet() -> Iterator[tuple[str, str]]:
    """Packages that are not as this library or MindSpore needs them: each one's name, and what is wrong. Whoever
    installs another package may change them, of which pip only warns."""
    if not installed("mindspore-pet") and find_spec("mindspore") is None:  # a clone that was never installed
        yield "mindspore-pet", f"is not installed: pip install {shlex.quote(str(Path(__file__).parents[1]))}"
        return
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield "packaging", "is not installed: pip install packaging"
        return
    from importlib.metadata import requires

    for whose in ("mindspore-pet", "mindspore"):
        needs = requires(whose) if installed(whose) else KNOWN.get(whose)
        for need in map(Requirement, needs or ()):
            found = installed(need.name)
            if need.marker and not need.marker.evaluate({"extra": ""}):
                continue
            if found is None:
                yield need.name, f"is not installed: pip install '{need.name}{need.specifier}'"
            elif not need.specifier.contains(found, prereleases=True):
                yield need.name, f"{found}: {whose} needs another: pip install '{need.name}{need.specifier}'"


def on_cpu() -> bool:
    """Whether MindSpore computes on a CPU."""
    import mindspore

    return mindspore.get_context("device_target") == "CPU"


def open_closed_streams() -> None:
    """Puts the null device where this process was given no standard stream (``>&-``): the next file that is opened
    would have the stream's number, and get what others write to that."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115 - until the end


def tolerate_encodings() -> None:
    """A character that the output's encoding lacks is written as ``\\u4f60``: it must not end a run. What is read is
    data, and has to be right: the same as out of a file, without a byte order mark and with any system's line ends."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        marked = "utf-8-sig" if codecs.lookup(sys.stdin.encoding).name == "utf-8" else None
        sys.stdin.reconfigure(encoding=marked, errors="strict", newline=None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
