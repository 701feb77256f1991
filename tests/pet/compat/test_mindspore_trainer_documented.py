"""Tasks in the shape of MindsporeTrainer's document: hooks, losses and datasets."""

from __future__ import annotations

import json
import os
from collections import OrderedDict

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.dataset import GeneratorDataset
from mindspore.train import Accuracy
from pet.compat.mindspore_trainer.apps.tasks import EvalData, Task, TransformerTask, register_task
from pet.compat.mindspore_trainer.data import ExampleInstance, ExampleSet, create_dynamic_dataset

from model_zoo.errors import InputError
from pet.compat import mindspore_trainer
from pet.compat.mindspore_trainer.model import put_trained

pytestmark = pytest.mark.usefixtures("tasks")

WORDS = 12
ROWS = np.random.default_rng(0).integers(0, WORDS, (12, 5)).astype(np.int32)


class Backbone(nn.Cell):
    """Gives a tuple, as there."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(WORDS, 8), nn.Dense(8, 2)

    def construct(self, input_ids, label, weights):
        return (self.out(self.table(input_ids).mean(1)),)


class Loss(nn.Cell):
    """Of all columns and outputs; with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = ms.Parameter(ms.Tensor(1.0), name="scale")

    def construct(self, input_ids, label, weights, logits):
        return (ops.cross_entropy(logits, label.reshape(-1)) * weights.mean() * self.scale,)


class Simple(nn.Cell):
    """Of outputs and the second column."""

    def construct(self, logits, label):
        return ops.cross_entropy(logits, label.reshape(-1))


class Head(nn.Cell):
    """What metrics are updated with."""

    def construct(self, input_ids, label, weights, logits):
        return ops.softmax(logits), label.reshape(-1)


class Sizes(nn.Cell):
    """How many rows there are."""

    def construct(self, input_ids, label, weights, logits):
        return logits.sum() * 0.0 + label.shape[0]


class Counted(Accuracy):
    """How many rows it has seen."""

    def eval(self):
        return self._total_num


class Documented(TransformerTask):
    """The hooks with the document's signatures."""

    def __init__(self, data_dir, args, **kwargs):
        super().__init__(args, **kwargs)
        self.data_dir, self.main_metric, self.optimizer_name, self.seen = data_dir, "acc", "Lamb", []

    @classmethod
    def add_arguments(cls, parser):
        parser.add_argument("--rows", type=int, default=8)
        return parser

    def rows(self, rows, batch_size):
        examples = [ExampleInstance(segments=[row], label=int(row[0] > 5)) for row in rows]
        columns = ["input_ids", "label", "weights"]
        return create_dynamic_dataset(
            ExampleSet(examples), self.get_feature_fn(), batch_size=batch_size, output_columns=columns,
            repeat=self.args.num_train_epochs, num_workers=4, num_shards=self.rank_size, shard_id=self.rank_id,
        )  # fmt: skip

    def train_data(self, max_seq_len=512, batch_size=32, **kwargs):
        assert (max_seq_len, batch_size) == (512, self.args.train_batch_size)
        return self.rows(ROWS[: self.args.rows], batch_size)

    def eval_data(self, max_seq_len=512, batch_size=32, **kwargs):
        return self.rows(ROWS[8:], batch_size)

    def test_data(self, **kwargs):
        return self.rows(ROWS[8:], 2)

    def get_feature_fn(self, max_seq_len=512, ext_params=None, rng=None, **kwargs):
        def example_to_feature(ids, label):
            return ids.astype(np.int32), label.astype(np.int32), np.ones(1, np.float32)

        return example_to_feature

    def get_labels(self):
        return ["small", "large"]

    def get_model(self):
        return Backbone()

    def get_loss(self, *args, **kwargs):
        return Loss()

    def get_eval_head(self, *args, **kwargs):
        return Head()

    def get_metrics(self, **kwargs):
        return OrderedDict(acc=Accuracy())

    def get_opt_fn(self, *args, **kwargs):
        return None

    def get_eval_fn(self, **kwargs):
        data = kwargs.get("data")

        def run_eval(model, name, prefix):
            result = model.eval(data, dataset_sink_mode=False)
            self.seen.append(result)
            Documented.last = self
            return result["acc"]

        return run_eval

    def get_predict_fn(self):
        def predict(logits, output_dir, name, prefix):
            labels = [self.get_labels()[index] for index in logits.argmax(-1)]
            with open(os.path.join(output_dir, f"submit-{name}-{prefix}.tsv"), "w", encoding="utf-8") as file:
                file.write("\n".join(labels))

        return predict


def lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_task_of_the_documents_shape(tmp_path, caplog):
    register_task(name="DEBERTA", desc="as there")(Documented)
    words = "--task_name=deberta --do_train --do_eval --do_predict --data_dir=data --num_train_epochs=2 --rows=6"
    words += " --learning_rate=1e-2 --train_batch_size=3 --eval_batch_size=2 --save_eval_steps=2 --data_workers=4"
    summary = mindspore_trainer.launch([*words.split(), f"--output_dir={tmp_path}/run"])
    assert not [each for each in caplog.records if "cannot be compiled" in each.message]
    task = Documented.last
    assert (task.data_dir, len(task.seen)) == ("data", 2)  # epochs of two steps
    evaluated = [line for line in lines(tmp_path / "run") if "eval_acc" in line]
    assert [line["step"] for line in evaluated] == [2, 4]
    assert [seen["acc"] for seen in task.seen] == [line["eval_acc"] for line in evaluated]
    assert task.seen[0]["loss"] == pytest.approx(evaluated[0]["eval_loss"])
    best = max(evaluated, key=lambda line: line["eval_acc"])
    assert summary["best"]["step"] == best["step"]
    from model_zoo.checkpoint.safetensors_io import read_file

    weights = read_file(tmp_path / "run/trained.safetensors")
    assert "task_loss.scale" in weights and weights["task_loss.scale"] != 1.0  # the loss cell's own parameter learns
    assert len((tmp_path / "run/submit-Documented-final.tsv").read_text().split()) == 4
    # the seed is that of the model, too
    again = [*words.replace("--do_eval --do_predict ", "").split(), f"--output_dir={tmp_path}/again"]
    mindspore_trainer.launch(again)
    assert lines(tmp_path / "again")[0]["loss"] == lines(tmp_path / "run")[0]["loss"]


def test_losses_of_a_bundled_model(tmp_path):
    """A loss cell of (logits, labels), a MindSpore Dataset with further columns, an optimizer that the task makes."""

    class Shifted(nn.Cell):
        def construct(self, logits, labels):
            return ops.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))

    @register_task
    class Language(Task):
        def get_model(self):
            sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": WORDS, "n_positions": 16}
            model, config = mindspore_trainer.build_transformer_model("gpt2", compute_type=ms.float32, **sizes)
            assert config.n_embd == 16
            return model

        def train_data(self, batch_size=32, **kwargs):
            columns = ["input_ids", "labels", "weights"]
            rows = [(row, row, np.ones(1, np.float32)) for row in ROWS]
            return GeneratorDataset(rows, columns, shuffle=False).batch(batch_size)

        def get_loss(self):
            return Shifted()

        def get_opt_fn(self):
            def make(args, network, opt_name=None):
                schedule = nn.PolynomialDecayLR(args.learning_rate, 0.0, 4, 1.0)
                return nn.AdamWeightDecay(network.trainable_params(), schedule, eps=1e-6), False

            return make

    words = f"--do_train --train_batch_size 3 --train_steps 2 --learning_rate 0.01 --output_dir {tmp_path}/run"
    mindspore_trainer.launch(words.split())
    found = lines(tmp_path / "run")
    assert [line["learning_rate"] for line in found] == pytest.approx([0.01, 0.0075])
    assert found[0]["loss"] == pytest.approx(np.log(WORDS), rel=0.1)


def test_eval_data_with_its_own_measure(tmp_path):
    class Named(Documented):
        def eval_data(self, **kwargs):
            def measure(logits, labels):
                return OrderedDict(accuracy=float((logits.argmax(-1) == labels.reshape(-1)).mean()))

            return [EvalData("dev", super().eval_data(**kwargs), metrics_fn=measure)]

        def get_loss(self):
            return Simple()

        def get_eval_fn(self, **kwargs):
            return None

    register_task(name="named")(Named)
    words = "--task_name named --do_train --do_eval --train_batch_size 4 --save_eval_steps 1 --rows 4"
    summary = mindspore_trainer.launch([*words.split(), "--output_dir", f"{tmp_path}/run"])
    (line,) = (line for line in lines(tmp_path / "run") if "eval_acc" in line)
    assert line["eval_dev_accuracy"] == pytest.approx(line["eval_acc"])
    assert summary["after"]["dev_accuracy"] == pytest.approx(line["eval_dev_accuracy"])


def test_a_checkpoint_of_mindspore_is_loaded(tmp_path):
    class Loaded(Documented):
        def get_eval_fn(self, **kwargs):
            return lambda model, name, prefix: float(model.table.embedding_table.asnumpy().max())

    register_task(name="loaded")(Loaded)
    other = Backbone()
    other.table.embedding_table.set_data(ms.Tensor(np.full((WORDS, 8), 7.0, np.float32)))
    ms.save_checkpoint(other, f"{tmp_path}/a.ckpt")
    words = ["--do_eval", "--eval_batch_size", "4", "--output_dir", f"{tmp_path}/run", "--load_checkpoint_path"]
    assert mindspore_trainer.launch([*words, f"{tmp_path}/a.ckpt"])["main_metric"] == 7.0
    ms.save_checkpoint(nn.Dense(2, 2), f"{tmp_path}/b.ckpt")
    with pytest.raises(InputError, match="has no parameter of the model"):
        mindspore_trainer.launch([*words, f"{tmp_path}/b.ckpt"])


def test_a_share_of_the_data_is_refused(monkeypatch, tmp_path):
    class Shared(Documented):
        def train_data(self, **kwargs):
            return GeneratorDataset([(row,) for row in ROWS], ["input_ids"], num_shards=2, shard_id=0).batch(2)

    register_task(name="shared")(Shared)
    with pytest.raises(InputError, match="num_shards"):
        mindspore_trainer.launch(["--do_train", "--output_dir", str(tmp_path)])


@pytest.mark.full
def test_a_batch_is_that_of_all_accumulation_steps(tmp_path):
    """``--train_batch_size`` is the total: tasks get what is computed at once, and a step is the same."""
    found = []
    for steps in (1, 2):
        register_task(name="divided")(Documented)
        words = f"--task_name divided --do_train --train_batch_size 4 --accumulation_steps {steps} --learning_rate 0.01"
        mindspore_trainer.launch([*words.split(), "--output_dir", f"{tmp_path}/{steps}"])
        found.append([line["loss"] for line in lines(tmp_path / str(steps))])
    assert found[1] == pytest.approx(found[0], rel=1e-5) and len(found[0]) == 2
    with pytest.raises(InputError, match="--train_batch_size 1: --accumulation_steps 2 divides these rows"):
        words = "--task_name divided --do_train --train_batch_size 1 --accumulation_steps 2 --output_dir"
        mindspore_trainer.launch([*words.split(), str(tmp_path / "x")])


@pytest.mark.full
def test_rows_are_counted_once_whatever_the_batch(tmp_path):
    """Of 4 rows in a batch of 32, and of 6 in batches of 4, by the task's own loss and measure."""

    class Counting(Documented):
        def get_metrics(self, **kwargs):
            return {"acc": Counted()}

        def get_loss(self):
            return Sizes()

    register_task(name="counting")(Counting)
    words = "--task_name counting --do_train --do_eval --train_batch_size 4 --rows 6 --save_eval_steps 2"
    mindspore_trainer.launch([*words.split(), "--output_dir", f"{tmp_path}/run"])
    found = lines(tmp_path / "run")
    assert [line["loss"] for line in found if "loss" in line] == pytest.approx([4.0, 2.0])
    assert {line["eval_acc"] for line in found if "eval_acc" in line} == {4}


@pytest.mark.full
def test_what_a_cell_has_trained_is_measured_and_asked_later(tmp_path):
    """By its head, which may be one of two; hooks write to an output directory that is there."""
    seen = []

    class Two(nn.Cell):
        def construct(self, logits, label):
            return ops.softmax(logits), label.reshape(-1)

    class Asked(Documented):
        def get_model(self):
            assert os.path.isdir(self.args.output_dir)
            return super().get_model()

        def get_eval_head(self, *args, **kwargs):
            return Two()

        def get_predict_fn(self):
            return lambda logits, output_dir, name, prefix: seen.append(logits)

    register_task(name="asked")(Asked)
    words = "--task_name asked --do_eval --train_batch_size 4 --learning_rate 0.1 --save_eval_steps 2 --output_dir"
    whole = mindspore_trainer.launch(["--do_train", *words.split(), f"{tmp_path}/run"])
    for source in ("run", "run/trained.safetensors", "run/checkpoints/step-000002"):
        given = ["--load_checkpoint_path", f"{tmp_path}/{source}"]
        found = mindspore_trainer.launch([*words.split(), f"{tmp_path}/later", *given])
        assert found["acc"] == pytest.approx(whole["after"]["acc"])
        assert found["loss"] == pytest.approx(whole["after"]["loss"], rel=1e-5)
    mindspore_trainer.launch(["--do_predict", *words.replace("--do_eval ", "").split(), f"{tmp_path}/later", *given])
    assert seen[0].shape == (4, 2) and seen[0].sum(1) == pytest.approx(np.ones(4), rel=1e-5)
    with pytest.raises(InputError, match=r"is of another cell; not in both, or of another shape: .*bias"):
        put_trained(nn.Dense(2, 2), tmp_path / "run/trained.safetensors")
