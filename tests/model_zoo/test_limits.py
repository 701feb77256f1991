"""What is said where a process may have no more memory, threads or files."""

import errno
import resource
import subprocess
import sys

import pytest
from waiting import HANGING

from model_zoo.limits import out_of_memory, shortage
from model_zoo.unwritable import CannotWrite, explained, what_is_in_the_way
from pet.cli.main import main

FIRST_PRODUCT = """
import os, resource
from pet.cli.imports import import_quickly
import_quickly()
import mindspore, psutil
import numpy as np

matrix, result = np.eye(3), np.empty((3, 3))
most = psutil.Process().memory_info().vms + (4 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
np.dot(matrix, matrix, out=result)
os._exit(0)  # MindSpore may want another thread to end
"""


@pytest.fixture
def limit(monkeypatch):
    """Sets what the system says of this process's limits."""
    found = {"RLIMIT_AS": resource.RLIM_INFINITY, "RLIMIT_NPROC": resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (found[kind], resource.RLIM_INFINITY))
    for name in found:
        monkeypatch.setattr(resource, name, name)
    return found.__setitem__


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 1.50 MiB"),
        RuntimeError("Memory isn't enough and alloc failed, alloc size: 4B."),
        RuntimeError("could not create a primitive"),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=str,
)
def test_memory_that_cannot_be_had(error, limit):
    said, helps = shortage(error)
    assert said.startswith("no memory could be had (") and helps == ""
    limit("RLIMIT_AS", 2_500_000_000)
    assert shortage(error)[1] == "raise the limit on address space (ulimit -v: 2,500 MB)"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        RuntimeError("Resource temporarily unavailable"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    ],
    ids=str,
)
def test_a_thread_that_cannot_be_started(error, limit):
    said, helps = shortage(error)
    assert said.startswith("no thread or process could be started (")
    assert helps == "raise the limit on processes (ulimit -u: unlimited, or the container's)"
    limit("RLIMIT_AS", 2_500_000_000)
    limit("RLIMIT_NPROC", 12)
    assert "ulimit -u: 12" in shortage(error)[1] and "ulimit -v: 2,500 MB" in shortage(error)[1]


def test_a_library_that_is_not_taken_into_memory(limit):
    """By a limit, or since nothing may be executed where packages are; the system's word is the same."""
    error = ImportError("libdnnl.so.3: failed to map segment from shared object")
    assert "noexec" in shortage(error)[1] and not out_of_memory(error)
    limit("RLIMIT_AS", 500_000_000)
    assert shortage(error) == (str(error), "raise the limit on address space (ulimit -v: 500 MB)")
    assert shortage(ImportError("libdnnl.so.3: cannot open shared object file")) is None


def test_other_errors_are_not_about_memory():
    for error in (ValueError("cannot allocate memory"), RuntimeError("shapes differ"), OSError(errno.EIO, "I/O error")):
        assert not out_of_memory(error) and shortage(error) is None


@pytest.mark.parametrize("error", [RuntimeError("could not create a primitive"), MemoryError()], ids=str)
def test_a_command_says_in_one_line_what_it_ran_out_of(error, limit, monkeypatch, capsys):
    def fail(arguments):
        raise error

    limit("RLIMIT_AS", 2_500_000_000)
    monkeypatch.setattr("pet.cli.info.main", fail)
    assert main(["info", "llama_tiny"]) == 1
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("pet info: no memory could be had (")
    assert first.endswith("); raise the limit on address space (ulimit -v: 2,500 MB)")


def test_too_many_open_files_say_which_limit_helps(tmp_path):
    full = OSError(errno.EMFILE, "Too many open files", str(tmp_path / "a"))
    assert what_is_in_the_way(full) == f"{tmp_path / 'a'}: too many files are open (ulimit -n)"
    with (
        pytest.raises(CannotWrite, match=r"too many files are open \(ulimit -n\); raise that limit"),
        explained(tmp_path / "a"),
    ):
        raise full


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on address space is Linux's")
def test_a_product_ends_where_memory_has_run_out():
    """OpenBLAS asks for its buffer at the first product, and without an end where it gets none."""
    subprocess.run([sys.executable, "-c", FIRST_PRODUCT], check=True, timeout=HANGING)
