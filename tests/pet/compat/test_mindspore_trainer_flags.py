"""Flags, names and processes of MindsporeTrainer's document."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pet.compat.mindspore_trainer.apps.tasks import Task, register_task
from sets import some
from waiting import HANGING

import pet
from model_zoo.errors import InputError
from pet.compat import mindspore_trainer
from pet.compat.mindspore_trainer import make_parser, make_recipe
from pet.compat.mindspore_trainer.tasks import TASKS, find_task

pytestmark = pytest.mark.usefixtures("tasks")


def test_documented_defaults():
    args = make_parser().parse_args(["--do_train", "--output_dir", "o"])
    recipe, _ = make_recipe(args, Task())
    train = recipe.train
    assert (train.epochs, train.learning_rate, train.batch_size, recipe.eval.batch_size) == (1.0, 5e-5, 64, 32)
    assert (train.seed, train.save_every, train.keep_last, train.warmup) == (1234, 1000, 1, 0.1)
    assert (train.clip_norm, train.accumulation, train.log_every, train.precision) == (None, 1, 1, "fp32")
    assert (args.predict_batch_size, args.loss_scale_value, args.scale_factor, args.scale_window) == (32, 1024, 4, 1000)


def test_flags_that_say_nothing_here_and_those_that_cannot_be_had(caplog):
    register_task(name="nothing")(Task)
    words = "--do_train --output_dir o --enable_data_sink --data_sink_steps 2 --debug --thor False --train_steps -1"
    words += " --accumulative_update 1"
    words += " --lr_schedule warmup_cosine --adam_beta1 0.5 --enable_save_ckpt true --amp_level auto --prefix backbone"
    recipe, _ = make_recipe(make_parser().parse_args([*words.split(), "--resume_opt_path", ""]), Task())
    assert recipe.train.epochs == 1.0
    (said,) = caplog.records
    assert "--adam_beta1, --lr_schedule: MindsporeTrainer reads no such flag, either" in said.message
    assert "--enable_data_sink, --data_sink_steps" in said.message
    for flag, reason in (
        ("--thor", "second-order"),
        ("--GAN", "adversarial"),
        ("--resume_opt_path x", "optimizer too"),
        ("--enable_save_ckpt false", "checkpoints are saved"),
        ("--amp_level O3", "--fp16 says the precision"),
        ("--restore_by_prefix", "by their whole names"),
    ):
        with pytest.raises(InputError, match=reason):
            make_recipe(make_parser().parse_args([*words.replace("--thor False ", "").split(), *flag.split()]), Task())
    with pytest.raises(InputError, match="--output_dir: is missing"):
        mindspore_trainer.launch(["--do_train"])
    task = Task()
    task.optimizer_name = "Momentum"
    train = make_recipe(make_parser().parse_args(["--do_train", "--output_dir", "o"]), task)[0].train
    assert (train.optimizer, train.schedule, train.warmup, train.weight_decay) == ("momentum", "constant", 0, 0)


def test_registered_names_in_a_directory(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"file_{name}.py").write_text(
            "from pet.compat.mindspore_trainer.task import Task, register_task\n"
            f"@register_task(name='Task_{name}', desc='{name}')\nclass T(Task):\n    pass\n"
        )
    (tmp_path / "_not_a_task.py").write_text("raise RuntimeError")
    assert find_task("TASK_two", str(tmp_path)).desc == "two"
    TASKS.clear()
    assert find_task("file_one", str(tmp_path)).desc == "one"
    with pytest.raises(InputError, match=r"'task_three' is not registered.*task_one"):
        find_task("task_three", str(tmp_path))
    with pytest.raises(InputError, match=r"no such directory"):
        find_task("task_three", str(tmp_path / "none"))


SCRIPT = """
import os, time
from pathlib import Path
from pet.compat.mindspore_trainer import Task, launch, register_task
@register_task(name="x")
class T(Task):
    def get_model(self):
        Path(f"rank_{self.rank_id}_of_{self.rank_size}_on_{os.environ['DEVICE_ID']}").touch()
        while len(list(Path().glob("rank_*_of_*"))) < 2:  # the first that ends so ends the other
            time.sleep(0.01)
        raise SystemExit(5)
launch()
"""


@pytest.mark.parametrize("how", some(("--device_num=2 --device_id=0,1", "RANK_SIZE"), ["RANK_SIZE"]))
def test_the_script_starts_its_processes(tmp_path, how):
    (tmp_path / "run.py").write_text(SCRIPT)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK_", "MS_", "PET_"))}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    words = ["--do_train", "--output_dir", "o", "--distribute"]
    if how == "RANK_SIZE":
        environment.update(RANK_SIZE="2", RANK_TABLE_FILE="/none/hccl.json")
    else:
        words += how.split()
    command = [sys.executable, "run.py", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    assert sorted(path.name for path in tmp_path.glob("rank_*")) == ["rank_0_of_2_on_0", "rank_1_of_2_on_1"]


def test_numbers_of_processes_that_differ(monkeypatch):
    register_task(name="x")(Task)
    monkeypatch.setenv("RANK_SIZE", "4")
    monkeypatch.delenv("RANK_ID", raising=False)
    with pytest.raises(InputError, match="different numbers"):
        mindspore_trainer.launch(["--do_train", "--output_dir", "o", "--device_num", "2"])


def test_names_at_the_top():
    assert pet.Task is Task and pet.launch is mindspore_trainer.launch


def test_a_program_in_the_directory_of_the_tasks_is_not_begun_anew(tmp_path):
    (tmp_path / "run.py").write_text("import pet.compat.mindspore_trainer as mst\nmst.launch()\n")
    (tmp_path / "other.py").write_text("")
    words = [sys.executable, "run.py", "--task_dir=.", "--task_name=none", "--do_train", "--output_dir=o"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=HANGING)
    assert "'none' is not registered" in done.stderr and "RecursionError" not in done.stderr
