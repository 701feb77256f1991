"""Callbacks that lean on other programs: TensorBoard's writer and MindSpore's profiler."""

from __future__ import annotations

import json
import sys
import threading
import types

import numpy as np
import pytest
import yaml
from sets import some

from model_zoo import progress
from model_zoo.errors import InputError
from model_zoo.unwritable import CannotWrite
from pet.data.wrap import CollateLoader, from_mindspore
from pet.launching import heartbeat
from pet.train.callbacks import Callback, make_callback, make_callbacks
from pet.train.callbacks.trackers import Tracker
from pet.train.trainer import Trainer


def run(model, batch, directory, callback, **more):
    settings = {"learning_rate": 0.01, "steps": 4, "batch_size": 4, "warmup": 0, **more}
    trainer = Trainer(model, [batch], directory=directory, callbacks=[callback], **settings)
    trainer.train()
    return trainer


def test_code_of_the_users_own_may_take_any_time(toy, batch, tmp_path, monkeypatch):
    """Its length is not known, and it may sleep: the launcher must not take it for a hang."""
    monkeypatch.setenv(heartbeat.BEAT_FILE, str(tmp_path / "beat"))
    told = set()

    def tell(name):
        progress.tick()  # what it calls of the library promises nothing in its place
        told.add((name, int((tmp_path / "beat").read_bytes().split()[1])))

    class Own(Callback):
        def start(self, trainer):
            tell("start")

        def step(self, trainer, record):
            tell("step")

        def save(self, trainer, path):
            tell("save")

        def end(self, trainer, summary):
            tell("end")

    class Rows(list):
        def __getitem__(self, index):
            tell("row")
            return super().__getitem__(index)

    def collate(samples):
        tell("collate")
        return batch(len(samples))

    class Dataset:
        def get_col_names(self):
            return ["input_ids"]

        def create_dict_iterator(self, **settings):
            tell("dataset")
            yield {"input_ids": np.arange(4)}

    def measure():
        tell("measure")
        return {"loss": 1.0}

    feed = CollateLoader(Rows([{}] * 4), 4, collate_fn=collate)
    monkeypatch.setitem(sys.modules, "teller", types.SimpleNamespace(tell=tell, Own=Own))
    named = "from teller import Own, tell\ntell('import')\nclass Named(Own):\n    def __init__(self): tell('init')"
    (tmp_path / "named.py").write_text(named)
    monkeypatch.syspath_prepend(tmp_path)
    own = {"callbacks": ["named:Named"], "evaluation": measure}
    with heartbeat.watched():
        from_mindspore(Dataset())
        Trainer(toy(), feed, directory=tmp_path / "run", steps=2, warmup=0, **own).train()
    moments = ("start", "step", "save", "end", "row", "collate", "dataset", "measure", "import", "init")
    assert told == {(moment, heartbeat.PAUSING) for moment in moments}


def test_tensorboard_gets_every_number(toy, batch, tmp_path, monkeypatch):
    written = {}

    class SummaryWriter:
        def __init__(self, directory, purge_step, max_queue):
            written["directory"], written["purge"] = directory, purge_step

        def add_scalar(self, name, value, step):
            written[name, step] = value

        def close(self):
            written["closed"] = True

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    run(toy(), batch(4), tmp_path, "tensorboard")
    assert written["directory"] == str(tmp_path / "tensorboard") and written["purge"] == 1 and written["closed"]
    assert [written["train/loss", step] for step in (1, 2, 3, 4)] == sorted(
        (written["train/loss", step] for step in (1, 2, 3, 4)), reverse=True
    )


def test_tensorboard_shows_the_recipe_line_by_line(tmp_path, monkeypatch):
    """Indented for Markdown; a mark that Unicode takes for the end of a line is none of a file."""
    written = []
    writer = types.SimpleNamespace(add_text=lambda name, text: written.append((name, text)))
    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=lambda *_, **__: writer))
    config = {"data": {"system": "one\n\ntwo\u2028three\x85four"}}
    make_callback("tensorboard").open(tmp_path, "a title", config, None)
    dumped = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    assert written == [("recipe", "    " + dumped.rstrip("\n").replace("\n", "\n    ") + "\n")]


@pytest.mark.parametrize("real", [False, True], ids=["stand-in", "tensorboardX"])
def test_a_run_does_not_wait_for_a_tensorboard_writer_whose_thread_has_ended(tmp_path, monkeypatch, caplog, real):
    """As tensorboardX's does on a full disk: its queue would fill up."""
    if real:
        pytest.importorskip("tensorboardX")
    else:
        ended = types.SimpleNamespace(event_writer=types.SimpleNamespace(_worker=threading.Thread()))
        writer = types.SimpleNamespace(file_writer=ended)
        monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=lambda *_, **__: writer))
    tracker = make_callback("tensorboard")
    tracker.open(tmp_path, "a title", {}, 1)
    if real:
        tracker.writer.file_writer.event_writer._worker.stop()
    tracker.step(None, {"step": 1, "loss": 2.5})
    assert "TensorBoard gets nothing from step 1 on: OSError: its thread has ended" in caplog.text


@pytest.fixture
def recorded(toy, batch, tmp_path):
    """Runs four steps with a tracker, in a run directory with a recipe; gives {(number, step): value}."""

    def train(tracker, directory=tmp_path):
        directory.mkdir(exist_ok=True)
        (directory / "recipe.yaml").write_text("train: {steps: 4}\n")
        trainer = run(toy(), batch(4), directory, tracker)
        return {
            (f"train/{name}", line["step"]): value
            for line in trainer.history
            for name, value in line.items()
            if name != "step"
        }

    return train


class Fails(Callback):
    """A run that ends with an error."""

    def step(self, trainer, record):
        raise RuntimeError("the disk is full")


def fail(tracker, toy, batch, directory):
    trainer = Trainer(toy(), [batch(4)], directory=directory, callbacks=[tracker, Fails()], steps=4, warmup=0)
    with pytest.raises(RuntimeError, match="the disk is full"):
        trainer.train()


def test_tensorboard_reads_what_was_written(recorded, tmp_path):
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    numbers = recorded(make_callback("tensorboard"))
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    scalars = {(tag, one.step): one.value for tag in found.Tags()["scalars"] for one in found.Scalars(tag)}
    assert scalars == {key: pytest.approx(value, rel=1e-6) for key, value in numbers.items()}
    assert b"steps: 4" in found.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0]


def wandb_records(wandb, directory):
    """What a run's file holds, which is in blocks of records with 7 bytes in front of each."""
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its own process writes the file, and has done so when it has ended
    (file,) = (directory / "wandb").glob("offline-run-*/run-*.wandb")
    data, place, whole, found = file.read_bytes(), 7, b"", []
    while place < len(data):
        if (left := (1 << 15) - place % (1 << 15)) < 7:
            place += left
            continue
        size, part = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole, place = whole + data[place + 7 : place + 7 + size], place + 7 + size
        if part in (1, 4):  # all of one, or its end
            found.append(Record.FromString(whole))
            whole = b""
    return found


def test_wandb_offline(recorded, toy, batch, tmp_path):
    wandb = pytest.importorskip("wandb")
    numbers = recorded(make_callback("wandb", {"mode": "offline", "project": "tests"}))
    found, settings = {}, {}
    for record in wandb_records(wandb, tmp_path):
        items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        found |= {(name, int(items["_step"])): json.loads(one) for name, one in items.items() if name[0] != "_"}
        settings |= {item.key: item.value_json for item in record.run.config.update}
    assert found == numbers
    assert json.loads(settings["train"]) == {"steps": 4}
    fail(make_callback("wandb", {"mode": "offline"}), toy, batch, tmp_path / "failed")
    assert [one.exit.exit_code for one in wandb_records(wandb, tmp_path / "failed") if one.HasField("exit")] == [1]


def swanlab_records(directory):
    """What the package itself reads to synchronise a run: its scalars and its end."""
    from swanlab.log.backup.datastore import DataStore
    from swanlab.log.backup.models import ModelsParser

    (file,) = (directory / "swanlog").glob("run-*/backup.swanlab")
    store = DataStore()
    store.open_for_scan(str(file))
    with ModelsParser() as parser:
        for record in store:
            if record is not None:
                parser.parse_record(record)
    *_, scalars, _, end = parser.get_parsed()
    return {(one.key, one.step): one.metric["data"] for one in scalars if not one.key.startswith("_")}, end


def test_swanlab_offline(recorded, toy, batch, tmp_path, capfd):
    pytest.importorskip("swanlab.log.backup.datastore", reason="SwanLab 0.6")
    numbers = recorded(make_callback("swanlab", {"mode": "offline", "project": "tests"}))
    assert swanlab_records(tmp_path)[0] == numbers
    files = [path for path in (tmp_path / "swanlog").rglob("*") if path.is_file()]
    assert any("steps" in path.read_text() for path in files if path.name == "config.yaml")
    fail(make_callback("swanlab", {"mode": "offline"}), toy, batch, tmp_path / "failed")
    assert [swanlab_records(path)[1].success for path in (tmp_path, tmp_path / "failed")] == [True, False]


def test_mlflow_in_files(recorded, toy, batch, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    numbers = recorded(make_callback("mlflow", {"project": "tests"}))
    fail(make_callback("mlflow", {"project": "tests"}), toy, batch, tmp_path / "failed")
    found = {}
    for directory in (tmp_path, tmp_path / "failed"):
        client = mlflow.MlflowClient((directory / "mlruns").as_uri())
        (one,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
        found[directory.name] = one
        assert one.info.run_name == directory.name
    assert found["failed"].info.status == "FAILED"
    one, client = found[tmp_path.name], mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    assert (one.info.status, one.data.params) == ("FINISHED", {"train.steps": "4"})
    histories = {name: client.get_metric_history(one.info.run_id, name) for name in one.data.metrics}
    assert {(name, point.step): point.value for name, points in histories.items() for point in points} == numbers


def test_a_tracker_that_fails_does_not_end_the_run(toy, batch, tmp_path, caplog):
    """But one that cannot be opened does, before the first step."""

    class Server(Tracker):
        written = ()

        def open(self, directory, title, config, step):
            if step > 1:
                raise ConnectionError("refused")

        def write(self, numbers, step):
            self.written += (step,)
            if step == 2:
                raise ConnectionError("reset")

        def close(self, error):
            raise ConnectionError("gone")

    server = Server()
    assert len(run(toy(), batch(4), tmp_path, server).history) == 4 and server.written == (1, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "callbacks: Server gets nothing from step 2 on: ConnectionError: reset",
        "callbacks: Server did not get the end of the run: ConnectionError: gone",
    ]
    with pytest.raises(ConnectionError, match="refused"):
        Trainer(toy(), [batch(4)], directory=tmp_path, callbacks=[Server()], steps=8, warmup=0).train(resume=True)


@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow"])
def test_a_tracker_without_its_package_says_what_to_install(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"callbacks: {name} needs the package {name}: pip install '.*\[{name}\]'"):
        make_callback(name)


def test_without_a_writer_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"needs the package tensorboardX: pip install 'mindspore-pet\[tensorboard\]'"):
        make_callback("tensorboard")


PROFILED = {"first": 2, "steps": 2}, {"first": 9}  # in the run, and beyond its end


@pytest.mark.parametrize("settings", some(PROFILED, PROFILED[:1]), ids=str)
def test_the_profiler_leaves_its_files(toy, batch, tmp_path, settings):
    run(toy(), batch(4), tmp_path, make_callback("profiler", settings), log_every=4)
    assert list((tmp_path / "profile").rglob("*.csv"))


def test_one_callback_needs_no_list():
    assert [type(one) for one in make_callbacks("csv")] == [type(make_callback("csv"))]


def test_a_run_directory_that_was_moved_is_not_made_anew_for_a_checkpoint(toy, batch, tmp_path):
    """The run would go on in two halves, and end as if all were well."""
    place, moved = tmp_path / "run", tmp_path / "moved"

    class Moves(Callback):
        every_step = True

        def step(self, trainer, record):
            if record["step"] == 3:
                place.rename(moved)

    settings = {"learning_rate": 0.01, "steps": 6, "save_every": 2, "log_every": 100, "batch_size": 4, "warmup": 0}
    with pytest.raises(CannotWrite, match="its directory is gone"):
        Trainer(toy(), [batch(4)], directory=place, callbacks=["metrics", Moves()], **settings).train()
    assert not place.exists() and [path.name for path in (moved / "checkpoints").iterdir()] == ["step-000002"]
