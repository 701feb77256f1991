"""Writes are whole or absent, also when the process dies in the middle of one."""

import errno
import json
import math
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path
from shutil import copyfile
from types import SimpleNamespace

import numpy as np
import pytest

from model_zoo.atomic import atomic_write, staged, sync
from model_zoo.checkpoint.safetensors_io import write_file
from model_zoo.errors import InputError
from model_zoo.unwritable import CannotWrite, explained, what_is_in_the_way
from pet import files

ROOT = Path(__file__).resolve().parents[2]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")

    def writer(name):
        Path(name).write_text("new")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        files.atomic_file(path, writer)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_json_is_what_every_program_reads(tmp_path):
    """A browser, a database and jq know no NaN."""
    value = {"灯": [math.nan, (np.float64(math.inf), {"b": -math.inf})], "a": [1, 2.5, None, True, "NaN"]}
    files.write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text("utf-8")
    assert text.startswith('{\n  "灯": [\n    null,') and text.endswith("}\n")
    read = json.loads(text, parse_constant=pytest.fail)
    assert read == {"灯": [None, [None, {"b": None}]], "a": [1, 2.5, None, True, "NaN"]}
    assert json.loads(files.json_text(value)) == read and "\n" not in files.json_text(value)


def test_permissions_are_the_usual_ones(tmp_path):
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "file", "x")
        with files.atomic_directory(tmp_path / "directory"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "directory").stat().st_mode & 0o777 == 0o750


def test_writer_with_a_name_gets_the_suffix(tmp_path):
    names = []

    def writer(name):
        names.append(name)
        Path(name).write_text("x")

    files.atomic_file(tmp_path / "plot.png", writer)
    assert names[0].endswith(".png")
    assert [entry.name for entry in tmp_path.iterdir()] == ["plot.png"]


def test_a_pipe_and_a_device_stay_what_they_are_and_get_what_is_written(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(pipe) as file:
        file.write(b"all of it")
    assert os.read(reader, 100) == b"all of it"
    os.close(reader)
    # the name of an open file, as /dev/stdout is: of one that others write to as well
    with open(tmp_path / "log", "ab") as log:
        (tmp_path / "stdout").symlink_to(f"/proc/self/fd/{log.fileno()}")
        log.write(b"first\n")
        log.flush()
        with atomic_write(tmp_path / "stdout") as file:
            file.write(b"second\n")
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\n"
    with atomic_write(os.devnull) as file:
        monkeypatch.setattr(os, "replace", None)  # a test must not put a file in the place of the machine's
        file.write(b"gone")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "pipe", "stdout"]
    with pytest.raises(InputError, match="is a directory, a file was expected"), atomic_write(tmp_path):
        pass


def test_directory_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "run"
    for content in ("first", "second"):
        with files.atomic_directory(target) as directory:
            (directory / content).write_text(content)
    assert [entry.name for entry in target.iterdir()] == ["second"]
    with pytest.raises(RuntimeError), files.atomic_directory(target) as directory:
        (directory / "third").write_text("x")
        raise RuntimeError
    assert [entry.name for entry in target.iterdir()] == ["second"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_a_mount_point_and_the_target_of_a_link_are_filled_where_they_are(tmp_path, monkeypatch):
    """A mount point can neither be renamed nor be renamed over, and another disk is behind a link, perhaps."""
    target, link = tmp_path / "disk" / "out", tmp_path / "link"
    target.mkdir(parents=True)
    link.symlink_to(target)
    with staged(link) as stage:
        assert stage.parent == target.parent, "which is on the same disk"
        (stage / "a").write_text("old")
    number = target.stat().st_ino
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == target)
    with staged(target) as stage:
        (stage / "a").write_text("new")
    assert [entry.name for entry in target.iterdir()] == ["a"] and (target / "a").read_text() == "new"
    (target / "a").unlink()
    with staged(target) as stage:
        (stage / "a").write_text("first")
    assert [entry.name for entry in target.iterdir()] == ["a"] and target.stat().st_ino == number
    with pytest.raises(RuntimeError), staged(target) as stage:
        (stage / "b").write_text("x")
        raise RuntimeError
    assert [entry.name for entry in target.iterdir()] == ["a"] and link.is_symlink()


def test_a_crash_between_the_two_renames_is_mended(tmp_path):
    target = tmp_path / "run"
    with files.atomic_directory(target) as directory:
        (directory / "content").write_text("x")
    os.rename(target, tmp_path / f".run{files.UNFINISHED}previous")
    files.recover(target)
    assert (target / "content").read_text() == "x"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


# A process per moment, each with the new content: it kills itself before the n-th call that touches the file system.
WRITER = """
import os, signal, sys
from pet import files

def write(path, content):
    files.write_text(path, content * (1 << 20))
    with files.atomic_directory(path + ".d") as directory:
        for name in "ab":
            (directory / name).write_text(content)

def write_until(calls):
    def hook(event, arguments, left=[calls]):
        if event.partition(".")[0] in ("open", "os", "shutil", "tempfile") and event != "os.kill":
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    write(sys.argv[1], "1")
    os._exit(0)

write(sys.argv[1], "0")
calls, status = 0, 9
while status:
    child = os.fork()
    if not child:
        write_until(calls)
    status = os.waitpid(child, 0)[1]
    calls += 1
    print(status, flush=True)
    sys.stdin.readline()
"""


def test_killed_at_any_moment(tmp_path):
    path = tmp_path / "file"
    seen = []
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        for status in process.stdout:
            content = path.read_text()
            assert len(content) == 1 << 20
            assert len(set(content)) == 1
            directory = Path(f"{path}.d")
            files.recover(directory)
            assert (directory / "a").read_text() == (directory / "b").read_text()
            seen.append((int(status), content[0], (directory / "a").read_text()))
            print(file=process.stdin, flush=True)
    assert process.returncode == 0
    assert len(seen) > 10 and {status for status, *_ in seen[:-1]} == {signal.SIGKILL}
    assert [new for _, *new in seen] == sorted(new for _, *new in seen)  # old, then the file, then both
    assert seen[0] == (signal.SIGKILL, "0", "0") and seen[-1] == (0, "1", "1")
    files.sweep(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "file.d"]


@pytest.fixture
def limited():
    """Files may have 64 KiB at most within the test, as on a disk that is almost full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[0][1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
    signal.signal(signal.SIGXFSZ, before[1])


def test_a_file_that_cannot_be_written_is_named_with_the_reason_and_the_remedy(tmp_path, limited):
    """A checkpoint's file is called by its final name, and nothing of it stays."""
    with (
        pytest.raises(
            CannotWrite, match=r"checkpoints/step-000004/weights.safetensors: cannot be written: the file is"
        ),
        files.atomic_directory(tmp_path / "checkpoints" / "step-000004") as stage,
    ):
        write_file(stage / "weights.safetensors", {"a": np.zeros(1 << 15, np.float32)})
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_numpy_hides_why_it_could_not_write_and_the_file_shows_it(tmp_path, limited):
    (tmp_path / "old").write_bytes(b"old")
    for name in ("new", "old"):
        with pytest.raises(CannotWrite, match=f"{name}: cannot be written: the file is larger than the system allows"):
            files.atomic_file(tmp_path / name, np.zeros(1 << 15, np.float32).tofile)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_full_disk_says_how_much_is_needed(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(CannotWrite, match=r"disk is full: [\d.]+ MB are free, 12.5 MB are needed; free some space"),
        explained(tmp_path / "metrics.jsonl", 12_500_000),
    ):
        raise full


def test_a_copy_is_whole_or_absent_and_says_where_it_was_to_go(tmp_path, monkeypatch):
    source = tmp_path / "source"
    files.write_text(source / "in" / "a.txt", "a")
    files.copy(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "in" / "a.txt").read_text() == "a"

    def full(source, target):
        copyfile(source, target)
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(CannotWrite, match=r"/other/in/a.txt: cannot be written: the disk is full"):
        files.copy(source, tmp_path / "other")
    assert not list((tmp_path / "other" / "in").iterdir())
    assert what_is_in_the_way(OSError(errno.ENOSPC, "", "from", None, "to")) == "to: the disk is full"


def test_other_errors_pass_as_they_are(tmp_path):
    with pytest.raises(FileNotFoundError), explained(tmp_path / "x"):
        (tmp_path / "x").read_text()


def test_an_error_of_a_file_that_is_read_meanwhile_is_not_one_of_writing(tmp_path):
    base = tmp_path / "base" / "model.safetensors"
    with pytest.raises(PermissionError) as caught, staged(tmp_path / "out"):
        raise PermissionError(errno.EACCES, "Permission denied", str(base))
    assert what_is_in_the_way(caught.value) == f"{base}: permission denied" and not (tmp_path / "out").exists()


def test_a_directory_that_is_filled_says_what_is_in_the_way(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")  # as a file's own write has it, without a name
    for error in (full, OSError("65536 requested and 160 written")):  # the second is NumPy's
        with (
            pytest.raises(
                CannotWrite, match=r"/out: cannot be written: the disk is full: .* 2.0 MB are needed"
            ) as caught,
            staged(tmp_path / "out", size=2_000_000) as stage,
        ):
            (stage / "a").write_text("x")
            raise error
        assert str(caught.value).startswith(str(tmp_path)), "without the system's number"
    assert not list(tmp_path.iterdir())
    with (
        pytest.raises(CannotWrite, match=rf"^.*{tmp_path}/out: cannot be written"),
        staged(tmp_path / "out") as stage,
        staged(stage),
    ):
        raise full


@pytest.mark.parametrize("write", [files.atomic_directory, staged])
def test_a_disk_without_room_for_another_file_is_not_called_full(tmp_path, monkeypatch, write):
    """It is looked at while what was written is still there: deleting that makes room."""
    found = os.statvfs(tmp_path)

    def statvfs(place):
        left = 0 if any(files.UNFINISHED in entry.name for entry in tmp_path.iterdir()) else 3
        return SimpleNamespace(f_files=16384, f_favail=left, f_bavail=found.f_bavail, f_frsize=found.f_frsize)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with pytest.raises(CannotWrite, match="takes no more than its 16,384 files; delete some"), write(tmp_path / "x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_what_does_not_get_to_the_disk_is_not_called_written(tmp_path, monkeypatch, number):
    """Network file systems take the bytes, and say only when they are asked to keep them that there was no room."""
    files.write_text(tmp_path / "out" / "a", "old")
    synced, real = [], os.fsync

    def fsync(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        if synced[-1].endswith("/below/b"):
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CannotWrite, match=r"/out: cannot be written: the disk"), staged(tmp_path / "out") as stage:
        (stage / "a").write_text("new")
        (stage / "below").mkdir()
        (stage / "below" / "b").write_text("new")
    assert (tmp_path / "out" / "a").read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(os, "fsync", lambda handle: os.fstat(-1))  # EBADF, as of what cannot be synced
    sync(tmp_path / "out" / "a")


def test_directories_within_a_directory_are_replaced_file_by_file(tmp_path):
    for content in ("old", "new"):
        with staged(tmp_path / "out") as stage:
            files.write_text(stage / "below" / content, content)
            files.write_text(stage / "below" / "same", content)
    assert {file.name: file.read_text() for file in (tmp_path / "out" / "below").iterdir()} == {
        "old": "old",
        "new": "new",
        "same": "new",
    }
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_line_is_appended_whole_or_not_at_all(tmp_path, limited):
    path = tmp_path / "metrics.jsonl"
    files.append_text(path, "a" * 65530 + "\n")
    with pytest.raises(CannotWrite, match=r"metrics\.jsonl: cannot be written"):
        files.append_text(path, '{"step": 12, "loss": 0.5}\n')
    assert path.read_text() == "a" * 65530 + "\n"
    files.append_text(path, "é\n")
    assert path.read_text().endswith("a\né\n")


def test_a_directory_that_is_gone_is_called_gone_and_a_long_name_long(tmp_path):
    with pytest.raises(CannotWrite, match=r"run/metrics.jsonl: cannot be written: its directory is gone; make it anew"):
        files.append_text(tmp_path / "run" / "metrics.jsonl", "{}")
    with pytest.raises(CannotWrite, match="cannot be written: the name is too long"):
        files.write_text(tmp_path / "run" / ("x" * 300), "")
