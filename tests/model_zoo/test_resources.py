"""What a container or a batch job may use of the machine."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from sets import some

from model_zoo import resources


@pytest.fixture
def limited(tmp_path, monkeypatch):
    """``limited(groups, {file: its text})``: what a process of these groups finds; paths lie in the mounted groups."""

    def write(groups, files):
        (tmp_path / "cgroup").write_text(groups + "\n")
        for name, text in files.items():
            file = tmp_path / "mount" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")

    monkeypatch.setattr(resources, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resources, "MOUNT", tmp_path / "mount")
    return write


GROUPS = [
    ("0::/", ""),
    ("0::/system.slice/job_7", "system.slice/"),
    ("9:name=systemd:/\n4:cpu,memory:/slurm/job_7\n0::/", "{}/slurm/job_7/"),
    ("4:cpu,cpuacct:/docker/1f\n3:memory:/docker/1f\n0::/", "{}/"),  # a container sees its own group as the root
]


@pytest.mark.parametrize(("groups", "place"), GROUPS)
def test_a_job_has_the_memory_of_its_groups(limited, groups, place):
    limited(groups, {})
    whole = resources.machine_memory()
    file = place.format("memory") + ("memory.limit_in_bytes" if "{}" in place else "memory.max")
    for text in ("max", "9223372036854771712"):
        limited(groups, {file: text})
        assert resources.machine_memory() == whole
    limited(groups, {file: "1000000"})
    assert resources.machine_memory() == 1000000


@pytest.mark.parametrize(("groups", "place"), GROUPS)
@pytest.mark.parametrize(
    ("quota", "cores"), [(None, 64), (20000, 1), (100000, 1), (150000, 2), (6400000, 64), (9000000, 64)]
)
def test_a_job_has_the_cores_of_its_groups(limited, monkeypatch, groups, place, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    old, place = "{}" in place, place.format("cpu")
    files = {f"{place}cpu.cfs_quota_us": str(quota or -1), f"{place}cpu.cfs_period_us": "100000"}
    limited(groups, files if old else {f"{place}cpu.max": f"{quota or 'max'} 100000"})
    assert resources.available_cores() == cores


def test_the_narrowest_group_counts(limited, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    limited("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000", "cpu.max": "800000 100000"})
    assert resources.available_cores() == 2


def test_a_share_of_real_control_groups():
    """Of version 1 or 2, where this process may make one."""
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cgroup.controllers")
    group = (old if old.exists() else new.parent) / f"pet-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group can be made here")
    try:
        if old.exists():
            (group / "cpu.cfs_quota_us").write_text("90000")
        elif (group / "cpu.max").exists():
            (group / "cpu.max").write_text("90000 100000")
        else:
            pytest.skip("control groups here have no cpu controller")
        code = (
            f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
            "from model_zoo.resources import available_cores; print(available_cores())"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout == "1\n"
    finally:
        group.rmdir()


@pytest.mark.parametrize("given", some([None, "3"], ["3"]))
def test_programs_started_from_here_have_as_many_threads_as_the_user_says(given):
    """MindSpore sets OMP_NUM_THREADS for itself."""
    code = "import os, pet; pet.AutoModel; os.system('echo now $OMP_NUM_THREADS')"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"OMP_NUM_THREADS": given} if given else {}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.strip() == f"now {given or ''}".strip()
