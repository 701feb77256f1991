"""Uploads: incremental, at the interval and at the end, also of a run that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pet
from model_zoo.errors import InputError
from pet.compat import modelarts
from pet.compat.modelarts import Target, Upload, expand
from pet.compat.yaml_files import load_any
from pet.train.callbacks import Callback


def test_only_what_changed_is_sent_again(tmp_path):
    run, store = tmp_path / "run", tmp_path / "store"
    (run / "adapter").mkdir(parents=True)
    (run / "a.txt").write_text("1")
    (run / "adapter/b.txt").write_text("2")
    (run / ".unfinished").write_text("3")
    upload = Upload(f"file://{store}")
    assert upload.upload(run) == ["a.txt", "adapter/b.txt"]
    assert upload.upload(run) == []
    (run / "a.txt").write_text("11")
    assert upload.upload(run) == ["a.txt"]
    assert (store / "a.txt").read_text() == "11"
    assert sorted(path.name for path in store.rglob("*") if path.is_file()) == ["a.txt", "b.txt"]


def test_addresses(monkeypatch, tmp_path):
    monkeypatch.setenv("MA_MOUNT_PATH", str(tmp_path))
    assert expand("${MA_MOUNT_PATH}/data") == f"{tmp_path}/data"
    with pytest.raises(InputError, match="'MA_NOT_THERE' is not set"):
        expand("${MA_NOT_THERE}/data")
    with pytest.raises(InputError, match="obs:// needs the package moxing"):
        Target("obs://bucket/place")
    with pytest.raises(InputError, match="was expected"):
        Target("/just/a/path")


def test_the_dump_is_uploaded_too(monkeypatch, tmp_path):
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump/tensor.npy").write_bytes(b"0")
    (tmp_path / "dump.json").write_text(json.dumps({"common_dump_settings": {"path": str(tmp_path / "dump")}}))
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", str(tmp_path / "dump.json"))
    (tmp_path / "run").mkdir()
    assert Upload(f"file://{tmp_path}/store").upload(tmp_path / "run") == ["dump/tensor.npy"]


class Fails(Callback):
    def step(self, trainer, record):
        if record["step"] == 3:
            raise RuntimeError("power cut")


def test_a_failed_run_is_uploaded(base, tmp_path):
    store = tmp_path / "store"
    trainer = pet.Trainer(
        model=str(base),
        pet_method="lora",
        args={"output_dir": str(tmp_path / "run"), "max_steps": 4, "batch_size": 4, "save_steps": 2, "max_length": 48},
        train_dataset=str(base / "data.jsonl"),
        callbacks=[Upload(f"file://{store}"), Fails()],
    )
    with pytest.raises(RuntimeError, match="power cut"):
        trainer.finetune()
    assert (store / "checkpoints/step-000002/state.json").is_file()
    assert len((store / "metrics.jsonl").read_text().splitlines()) == 3


def test_obs_by_moxing(monkeypatch, tmp_path):
    """Where moxing can be imported, every file goes to its place below the address."""
    import sys
    import types

    copied = {}
    moxing = types.ModuleType("moxing")
    moxing.file = types.SimpleNamespace(copy=lambda source, target: copied.update({target: Path(source).read_text()}))
    monkeypatch.setitem(sys.modules, "moxing", moxing)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/a.txt").write_text("1")
    Upload("obs://bucket/place/").upload(tmp_path)
    assert copied == {"obs://bucket/place/adapter/a.txt": "1"}


def test_uploads_at_the_interval(tmp_path):
    """Also where not every step is logged."""
    import types

    run, store = tmp_path / "run", tmp_path / "store"
    run.mkdir()
    upload, sent = Upload(f"file://{store}", every=3), []
    monitor = types.SimpleNamespace(directory=run)
    for step in (2, 4, 5, 8, 9):
        (run / f"{step}.txt").write_text("")
        upload.step(monitor, {"step": step})
        sent.append(len(list(store.glob("*.txt"))) if store.exists() else 0)
    assert sent == [0, 2, 2, 4, 5]


def test_a_store_that_fails_does_not_end_the_run(tmp_path, caplog):
    import types

    (tmp_path / "run").mkdir()
    (tmp_path / "run/a.txt").write_text("")
    (tmp_path / "file").write_text("")
    Upload(f"file://{tmp_path}/file/below").end(types.SimpleNamespace(directory=tmp_path / "run"), {})
    assert "upload to file://" in caplog.text
    with pytest.raises(InputError, match="upload_sequence is 0"):
        Upload(f"file://{tmp_path}", every=0)


def test_in_a_job_relative_output_lies_where_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(modelarts, "CACHE", tmp_path / "ma-user-work")
    assert modelarts.output_directory("./output") == "./output"
    monkeypatch.setenv("MA_JOB_DIR", "/home/ma-user/modelarts")
    assert modelarts.output_directory("./output") == str(tmp_path / "ma-user-work/output")
    assert modelarts.output_directory("/mnt/run") == "/mnt/run"
    job = tmp_path / "job.yaml"
    job.write_text("runner_config: {epochs: 1}\nload_checkpoint: gpt_tiny\noutput_dir: ./output\n")
    assert load_any(job, check_files=False).output.dir == str(tmp_path / "ma-user-work/output")
    monkeypatch.setattr(modelarts, "CACHE", tmp_path / "no/such/place")
    assert modelarts.output_directory("./output") == "./output"


def test_the_default_output_lies_where_shell_wrappers_say(tmp_path, monkeypatch):
    job = tmp_path / "job.yaml"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_DEFAULT_PATH", "../output")
    for given, expected in ("./output", "../output"), ("./run", "run"):
        job.write_text(f"runner_config: {{epochs: 1}}\nload_checkpoint: gpt_tiny\noutput_dir: '{given}'\n")
        assert Path(load_any(job, check_files=False).output.dir) == (tmp_path / expected).resolve()


def test_the_monitors_prefix_names_the_checkpoints(tmp_path):
    job = tmp_path / "job.yaml"
    callbacks = "callbacks: [{type: CheckpointMointor, prefix: 'glm2 6b', save_checkpoint_steps: 2}]"
    job.write_text(f"runner_config: {{epochs: 1}}\nload_checkpoint: gpt_tiny\n{callbacks}\n")
    recipe = load_any(job, check_files=False)
    assert (recipe.train.save_prefix, recipe.train.save_every) == ("glm2_6b", 2)
