"""What the launcher recognises and refuses before anything starts: environments, addresses, tables, directories."""

import json
import os
import shutil
import subprocess
import sys
from unittest.mock import Mock

import pytest
from launches import ENVIRONMENT, ROOT
from waiting import HANGING

import pet
from model_zoo.errors import InputError
from pet.cli.launch import main
from pet.data.workers import Workers
from pet.launching import launcher
from pet.launching.addresses import free_address
from pet.launching.environment import Job, read_job, report_success, split_address
from pet.launching.launcher import launch, parse_devices
from pet.launching.relaunch import relaunch


def test_an_address_that_is_none_of_this_machine_is_named():
    """IPv4 may have none at all, not even 127.0.0.1."""
    with pytest.raises(InputError, match=r"workers cannot meet at 198\.51\.100\.9: Cannot assign requested address"):
        free_address("198.51.100.9")


def test_a_job_of_fewer_than_are_to_be_started_is_refused(tmp_path):
    """A machine's RANK_SIZE=1 would leave -n without effect."""
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "RANK_ID": "0", "RANK_SIZE": "1"}
    command = [sys.executable, "-m", "pet", "launch", "-n", "2", "--", "true"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 2 and "-n 2, but the environment says" in done.stderr and "RANK_SIZE" in done.stderr


def test_environments_are_recognised():
    assert read_job({}) == Job()
    msrun = {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "8", "MS_NODE_ID": "5", "DEVICE_ID": "1"}
    assert read_job(msrun) == Job(5, 8, 1, "msrun", "")
    assert read_job({"MS_ROLE": "MS_SCHED", "MS_WORKER_NUM": "8"}).launcher == "msrun"
    model_arts = {"RANK_ID": "9", "RANK_SIZE": "16", "RANK_TABLE_FILE": "/t", "VC_WORKER_HOSTS": "a,b"}
    assert read_job(model_arts) == Job(9, 16, 9, "rank_table", "a:8118")
    mpi = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert read_job(mpi) == Job(2, 4, 0, "environment", "127.0.0.1:8118")
    assert read_job({**mpi, "RANK_SIZE": "4"}) == Job(2, 4, 0, "environment", "127.0.0.1:8118")
    assert read_job({"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALRANKID": "1"}).rank == 1  # MPICH, Intel MPI
    torchrun = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    assert read_job(torchrun) == Job(3, 4, 1, "environment", "a:29500")
    assert read_job({**torchrun, "TORCHELASTIC_USE_AGENT_STORE": "True"}).master == "a:29501"
    slurm = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2"}
    assert read_job({**slurm, "SLURM_STEP_NODELIST": "n[03-07,12]x,m"}) == Job(2, 4, 0, "environment", "n03x:8118")
    assert read_job({**slurm, "SLURM_STEP_NODELIST": "a,b", "MASTER_PORT": "9"}).master == "a:9"
    # what a script of Slurm's has in which nothing was started by srun, and one process alone, which may start others
    for alone in (
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
        {**slurm, "SLURM_STEP_NUM_TASKS": "1"},
        {"WORLD_SIZE": "4"},
    ):
        assert read_job(alone) == Job()
    with pytest.raises(InputError, match="rank 4 of 4"):
        read_job({"RANK_ID": "4", "RANK_SIZE": "4"})
    with pytest.raises(InputError, match="RANK_SIZE must be a whole number"):
        read_job({"RANK_ID": "0", "RANK_SIZE": "four"})


def test_what_srun_starts_may_be_the_launcher_of_a_machine(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(InputError, match=r"of 2 \(SLURM_STEP_NUM_TASKS\)"):
        launch(["true"], 3)
    with pytest.raises(InputError, match="PET_LAUNCH_SECRET"):
        launch(["true"], 3, nodes=2, master="127.0.0.1:8118")


def test_machines_that_meet_by_ipv6_are_refused_before_they_wait(monkeypatch):
    monkeypatch.setenv("PET_LAUNCH_SECRET", "0123456789abcdef")
    for name in ("RANK_SIZE", "MS_ROLE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="fd00::1: has no IPv4 address"):
        launch(["true"], 1, nodes=2, master="[fd00::1]:8118", join_limit=0.1)


def devices(*ranks: int) -> list[dict]:
    return [{"device_id": str(place), "rank_id": str(rank)} for place, rank in enumerate(ranks)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"server_list": [{"server_id": "a", "device": devices(0)}]}, "has 1 devices, but RANK_SIZE says 2 workers"),
        ({"server_list": [{"server_id": "a", "device": devices(0, 0)}]}, "ranks 0, 0; .* each from 0 to 1 once"),
        ({"server_list": [{"server_id": "a", "device": devices(0, 2)}]}, "ranks 0, 2; .* each from 0 to 1 once"),
        ({"server_list": [{"server_id": "a", "device": 2 * devices(0)}]}, "a device of a to two ranks|each from 0"),
        (
            {"server_list": [{"server_id": "a", "device": [*devices(0), {"device_id": 0, "rank_id": 1}]}]},
            "gives a device of a to two ranks",
        ),
        (
            {"server_count": "2", "server_list": [{"server_id": "a", "device": devices(0, 1)}]},
            "says server_count 2, but lists 1 servers",
        ),
        ({"server_list": {}}, "has no devices"),
        ({"server_list": 3}, "cannot be read"),
        ("{oops", "table.json, line 1, column 2: not valid JSON"),
        (None, "table.json: not found, a rank table was expected"),
    ],
)
def test_a_rank_table_that_does_not_fit_is_refused_before_anybody_waits(tmp_path, monkeypatch, table, message):
    from pet.parallel import join

    path = tmp_path / "table.json"
    if table is not None:
        path.write_text(table if isinstance(table, str) else json.dumps(table))
    for name, value in {"RANK_SIZE": "2", "RANK_ID": "1", "RANK_TABLE_FILE": str(path), "MASTER_ADDR": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(join, "_connect", lambda job, limit: pytest.fail("waits"))
    with pytest.raises(InputError, match=message):
        join.join()


def test_wrong_arguments_are_refused_before_anything_starts(monkeypatch):
    assert parse_devices("[0,4]") == [0, 1, 2, 3] and parse_devices("2,0") == [2, 0]
    monkeypatch.setattr(subprocess, "Popen", None)
    for arguments, message in (
        (([], 2), "no command"),
        ((["no_such_program"], 1), "there is no program 'no_such_program'"),
        ((["train.py"], 1), "did you mean python train.py"),
        ((["true"], 1, 1, 0, None, None, "log", float("nan")), "--hang-timeout"),
        ((["true"], 1, 1, 0, None, None, "log", 1.0, None, "log", 0.0), "--join-timeout"),
        ((["x"], 0), "-n must be 1 or more"),
        ((["x"], 3, 1, 0, None, [0, 1]), "--devices names 2"),
        ((["x"], 1, 2, 2, "h:1"), "--node-rank must be 0 … 1"),
        ((["x"], 1, 2, 0), "--master"),
    ):
        with pytest.raises(InputError, match=message):
            launch(*arguments)
    with pytest.raises(InputError, match="how many workers"):
        main(["--", "true"])
    for text in ("0,0", "a", "[3,3]"):
        with pytest.raises(InputError, match="--devices"):
            parse_devices(text)
    with pytest.raises(InputError, match="host:port"):
        split_address("here")
    assert split_address("[fd00::1]:8118") == ("fd00::1", 8118)
    monkeypatch.delattr(os, "waitid")  # macOS has none
    with pytest.raises(InputError, match="on Linux alone"):
        launch(["true"], 2)


def test_logs_that_cannot_be_made_are_named(tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(InputError, match=f"pet launch: {place}/rank_0: Not a directory"):
        launch(["true"], 1, log_directory=place)
    with pytest.raises(InputError, match=f"{place}/log: Not a directory"):
        relaunch(2, [], place / "log")


@pytest.fixture
def shadows(tmp_path, monkeypatch):
    """The current directory, with modules in it that must not be imported: they leave a file `shadowed` and end."""
    (tmp_path / "pet").mkdir()
    trap = f"import os; open({str(tmp_path / 'shadowed')!r}, 'w').close(); os._exit(0)"
    for name in ("pet/__init__", "pet/__main__", "model_zoo", "adapters", "signal", "pickle", "yaml", "contextlib"):
        (tmp_path / f"{name}.py").write_text(trap)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_modules_in_the_current_directory_shadow_nothing(shadows, monkeypatch, capfd):
    assert launch([sys.executable, "-I", "-c", "print('well')"], 1) == 0  # with its guard
    monkeypatch.setattr(launcher, "launch", lambda command, *_, **__: subprocess.run(command, check=True).returncode)
    assert relaunch(2, ["--version"], "output/log") == 0
    assert capfd.readouterr().out == f"well\npet {pet.__version__}\n"
    with Workers(json.loads, 1) as workers:
        assert list(workers.map(["[1]"])) == [[1]]
    assert not (shadows / "shadowed").exists()


def test_success_is_what_rank_0_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pet, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "__main__.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    logs = tmp_path / "run" / "log"
    assert relaunch(2, ["2"], logs) == 2
    assert not (tmp_path / "run").exists()  # wrong input leaves nothing behind
    assert relaunch(2, ["0"], logs) == 1
    assert "rank 0 did not write" in capsys.readouterr().err
    assert (logs / "rank_1/worker.log").exists()


def test_a_job_keeps_its_logs_when_another_one_is_refused(tmp_path, monkeypatch, until):
    """Two that start at once in one new directory: the second neither starts workers nor removes anything."""
    logs, refused = tmp_path / "run" / "log", []

    def launch(*_, **__):
        (logs / "rank_0").mkdir()
        code = (
            "import sys\nfrom model_zoo.errors import InputError\nfrom pet.launching import relaunch\n"
            "relaunch.launcher.launch = None\n"
            "try:\n    relaunch.relaunch(2, [], sys.argv[1])\nexcept InputError as error:\n    print(error)"
        )
        command = [sys.executable, "-c", code, str(logs)]
        environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
        refused.append(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
        assert (logs / "rank_0").exists()
        monkeypatch.setenv("RANK_ID", "0")
        monkeypatch.setenv("RANK_SIZE", "2")
        shutil.rmtree(logs)  # and whoever does so does not make a failure of it
        report_success()
        monkeypatch.undo()
        return 0

    monkeypatch.setattr(launcher, "launch", launch)
    assert relaunch(2, [], logs) == 0
    assert refused == [
        f"another job is running, with its logs in {logs}; wait until it has ended, or give another output.dir\n"
    ]


def test_what_another_job_has_in_the_directory_of_the_logs_stays(tmp_path, monkeypatch):
    logs = tmp_path / "run" / "log"

    def launch(*_, **__):
        for name in ("rank_0", "evaluate/rank_0"):
            (logs / name).mkdir(parents=True)
        return 2

    monkeypatch.setattr(launcher, "launch", launch)
    assert relaunch(2, [], logs) == 2
    assert [str(path.relative_to(logs)) for path in sorted(logs.rglob("*"))] == ["evaluate", "evaluate/rank_0"]
    refuse = Mock(side_effect=InputError("no"))
    monkeypatch.setattr(launcher, "launch", refuse)
    with pytest.raises(InputError):
        relaunch(2, [], tmp_path / "other" / "log")
    assert refuse.called and not (tmp_path / "other").exists()
