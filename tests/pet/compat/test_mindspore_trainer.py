"""MindsporeTrainer's hooks and flags: each reaches the run."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError
from pet.compat.mindspore_trainer import Task, build_transformer_model, launch, make_parser, make_recipe, register_task
from pet.compat.mindspore_trainer.running import Main

ROWS = np.random.default_rng(0).integers(1, 40, (12, 9))
SIZES = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40, "n_positions": 16}


class Hooks(Task):
    """Uses every hook; notes what it is called with."""

    seen: list

    def add_arguments(self, parser):
        parser.add_argument("--extra", type=int)

    def get_labels(self, args):
        return ["a", "b"]

    def get_model(self, args):
        self.seen.append(("model", args.extra))
        return pet.apply_lora(build_transformer_model(**SIZES, config_path="gpt2")[0], rank=2)

    def train_data(self, args):
        return [{"ids": row} for row in ROWS[:8]]

    def eval_data(self, args):
        return [{"ids": row} for row in ROWS[8:]]

    def get_feature_fn(self, args):
        def batch(samples):
            self.seen.append(("batch", len(samples)))
            return {"input_ids": np.stack([sample["ids"] for sample in samples])}

        return batch

    def get_loss(self, args):
        from mindspore import ops

        def loss(data, model):
            hidden = model.hidden_states(data["input_ids"], data["position_ids"], data["start"], data["end"], None)
            logits = model.head(hidden).reshape(data["input_ids"].shape + (-1,))[:, :-1]
            labels = data["labels"][:, 1:].reshape(-1)
            return 2.0 * ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels)

        return loss

    def get_opt_fn(self, args):
        return {"optimizer": "lamb", "betas": [0.8, 0.9]}

    def get_metrics(self, args):
        return ["loss", "accuracy"]

    def get_eval_fn(self, args):
        return lambda model, measured: -measured["step"]  # the first evaluation is the best

    def test_data(self, args):
        return ROWS[:2]

    def get_predict_fn(self, args):
        return lambda model, data, args: self.seen.append(("predict", len(data), type(model).__name__))


def test_every_hook_is_asked(tmp_path):
    Hooks.seen = []
    register_task(name="hooks")(Hooks)
    words = "--task_name hooks --do_train --do_eval --do_predict --extra 3 --train_batch_size 4 --eval_batch_size 2 "
    words += "--num_train_epochs 2 --save_eval_steps 2 --learning_rate 0.05 --warmup 0.25 --report_interval 1"
    summary = launch([*words.split(), "--output_dir", str(tmp_path / "run")])
    assert ("model", 3) in Hooks.seen
    assert {size for what, size, *_ in Hooks.seen if what == "batch"} == {4, 2}
    assert Hooks.seen[-1] == ("predict", 2, "GPT2LMHeadModel")
    assert summary["best"]["step"] == 2
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    # the task's own loss is twice the cross-entropy of random weights, about log 40
    assert lines[0]["loss"] == pytest.approx(2 * np.log(40), rel=0.1)
    # a warm-up of one step of four, which begins at 0
    assert [line["learning_rate"] for line in lines[:2]] == pytest.approx([0.0, 0.05])
    assert "eval_accuracy" in lines[1]
    recipe, _ = make_recipe(make_parser().parse_args(["--do_train", "--output_dir", "o"]), Hooks())
    assert (recipe.eval.metrics, recipe.train.optimizer, recipe.train.betas) == (
        ["loss", "accuracy"],
        "lamb",
        [0.8, 0.9],
    )


def test_flags_become_settings():
    words = "--do_train --output_dir o --num_train_epochs 2 --learning_rate 1e-3 --train_batch_size 5 --seed 9 "
    words += "--eval_batch_size 3 --accumulation_steps 2 --warmup 0.2 --fp16 --loss_scale_value 512 --scale_factor 4 "
    words += "--scale_window 100 --report_interval 7 --save_eval_steps 11 --optimizer momentum --schedule polynomial "
    words += "--enable_global_norm False --weight_decay 0.3 --device_num 1 --device_id 0 --data_workers 2 --tag x"
    recipe, _ = make_recipe(make_parser().parse_args(words.split()), Task())
    train = recipe.train
    assert (train.epochs, train.learning_rate, train.batch_size, train.seed) == (2.0, 1e-3, 5, 9)
    assert (train.accumulation, train.warmup, train.log_every, train.save_every) == (2, 0.2, 7, 11)
    assert (train.optimizer, train.schedule, train.clip_norm, train.weight_decay) == (
        "momentum",
        "polynomial",
        None,
        0.3,
    )
    assert (train.precision, recipe.eval.batch_size) == ("fp16", 3)
    assert train.loss_scale.model_dump(include={"initial", "factor", "window"}) == {
        "initial": 512.0,
        "factor": 4.0,
        "window": 100,
    }


def test_a_task_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from pet.compat.mindspore_trainer import Task, register_task\n"
        "@register_task(name='from_file', desc='d')\nclass T(Task):\n    pass\n"
    )
    from pet.compat.mindspore_trainer import find_task

    assert find_task("mine", str(tmp_path)).desc == "d"
    with pytest.raises(InputError, match="get_model is missing"):
        launch(
            ["--task_name", "mine.py", "--task_dir", str(tmp_path), "--do_train", "--output_dir", str(tmp_path / "o")]
        )
    with pytest.raises(InputError, match=r"--schedule.*'linnear'.*'linear'"):
        make_recipe(make_parser().parse_args(["--do_train", "--output_dir", "o", "--schedule", "linnear"]), Task())


NAME = "transformer.h.0.mlp.c_fc.weight"


@pytest.mark.parametrize(("smallest", "best"), [(False, 1), (True, 2)])
def test_the_best_by_the_main_metric_is_that_of_the_whole_run(smallest, best, tmp_path):
    """Also where it came before the part that was gone on with, whose checkpoint is deleted otherwise."""
    metric = [0.0, 0.9, 0.1, 0.4, 0.5]

    def trainer(steps):
        decide = Main(lambda model, numbers: metric[numbers["step"]], smallest)
        model = pet.apply(pet.AutoModel.from_pretrained("llama_tiny"), pet.LoRAConfig(rank=1, targets=["q_proj"]))
        how = {"eval": {"every_steps": 1, "before": False}, "evaluation": lambda: {"loss": 1.0}, "compiled": False}
        batches = [{"input_ids": [[5, 6, 7]]}]
        return pet.Trainer(model, batches, directory=tmp_path, callbacks=[decide], steps=steps, keep_last=1, **how)

    trainer(2).train()
    assert trainer(4).train(resume=True)["best"]["step"] == best
    assert (tmp_path / "checkpoints" / f"step-{best:06d}").is_dir()


def test_build_transformer_model(base, tmp_path, caplog):
    from pet.compat.ckpt.doors import to_file

    model, config = build_transformer_model(str(base))
    assert config.n_embd == 32
    to_file(base, tmp_path / "gpt.ckpt")
    other, _ = build_transformer_model(str(base), checkpoint_path=str(tmp_path / "gpt.ckpt"))
    assert np.array_equal(other([[5, 6]]).asnumpy(), model([[5, 6]]).asnumpy())
    caplog.clear()
    same, config = build_transformer_model(str(base), compute_type="float16", padding_idx=0, layer_norm_epsilon=1e-3)
    assert np.array_equal(same.parameters_dict()[NAME].asnumpy(), model.parameters_dict()[NAME].asnumpy())
    assert config.layer_norm_epsilon == 1e-3 and not caplog.records
    changed, config = build_transformer_model(str(base), n_layer=1)
    assert config.n_layer == 1
    assert not np.array_equal(changed.parameters_dict()[NAME].asnumpy(), model.parameters_dict()[NAME].asnumpy())
    assert [record.message for record in caplog.records] == [
        "build_transformer_model: weights are random, their shapes change by n_layer"
    ]
    for name in ("config_path", "checkpoint_path"):
        with pytest.raises(InputError, match=f"{name} is 3; a text or a path was expected"):
            build_transformer_model(**{"config_path": str(base), name: 3})


def test_build_transformer_model_of_a_class_of_the_scripts_own(base):
    """Its weights are the script's to load: a path of some was passed over, or ended in Python's words."""

    class Model:
        def __init__(self, config, compute_type=None):
            self.width, self.kind = config["n_embd"], compute_type

    model, config = build_transformer_model(base / "config.json", Model, compute_type="float16", n_embd=8)
    assert (model.width, model.kind, config["n_embd"]) == (8, "float16", 8)
    for paths in ((base / "config.json", base), (None, base)):
        with pytest.raises(InputError, match=r"checkpoint_path: .*load_param_into_net"):
            build_transformer_model(paths[0], Model, checkpoint_path=paths[1])
    with pytest.raises(InputError, match="config_path is missing"):
        build_transformer_model(model=Model)
