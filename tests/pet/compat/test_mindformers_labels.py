"""MindFormers' classification of texts: its files, its rows with a label, its task and its pipeline."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml
from mindspore.mindrecord import FileWriter

import pet
from adapters.score import add_head
from model_zoo.labels import Labels
from pet.compat.mindformers import Trainer, pipeline

DROPOUTS = dict.fromkeys(("hidden_dropout_rate", "attention_dropout_rate", "embedding_dropout_prob"), 0.0)
FILE = {
    "run_mode": "finetune",
    "trainer": {"type": "TextClassificationTrainer", "model_name": "gpt2_txtcls"},
    "runner_config": {"epochs": 1, "batch_size": 8},
    "optimizer": {"type": "FusedAdamWeightDecay", "learning_rate": 1e-4},
    "train_dataset": {
        "data_loader": {"type": "MindDataset", "shuffle": False},
        "input_columns": ["input_ids", "attention_mask", "labels"],
    },
    "train_dataset_task": {"type": "TextClassificationDataset"},
    "model": {"model_config": {"type": "GPT2Config", "num_labels": 3, "seq_length": 16, **DROPOUTS}},
    "metric": {"type": "Accuracy", "eval_type": "classification"},
}


def rows(pad: int):
    """What its script makes of texts: the end token on both sides, padding, and a label."""
    random, length = np.random.default_rng(0), 16
    for number in range(8):
        ids = [pad, *random.integers(20, 300, random.integers(2, 9)).tolist(), pad]
        mask = np.arange(length) < len(ids)
        yield np.array(ids + [pad] * (length - len(ids))), mask.astype(np.int64), number % 3


def test_a_file_is_trained_on_the_loss_that_it_has_there(tmp_path, monkeypatch):
    """The cross-entropy of the logits at the last token that attention_mask has, which is the end token."""
    model = pet.AutoModel.from_pretrained("gpt_tiny")
    pad, data = model.eos_token_ids[0], tmp_path / "rows.mindrecord"
    writer, names = FileWriter(str(data)), ("input_ids", "attention_mask", "labels")
    writer.add_schema({name: {"type": "int64", "shape": [-1]} for name in names}, "rows")
    given = list(rows(pad))
    values = [(ids, mask, [label]) for ids, mask, label in given]
    writer.write_raw_data([dict(zip(names, map(np.int64, row), strict=True)) for row in values])
    writer.commit()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run_gpt2_txtcls.yaml").write_text(yaml.safe_dump(FILE))
    how = {"use_parallel": False, "output_dir": str(tmp_path / "run")}
    trainer = Trainer(recipe="run_gpt2_txtcls.yaml", args=how, train_dataset=str(data), load_checkpoint="gpt_tiny")
    assert trainer.finetune()["steps"] == 1
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    add_head(model, Labels.plain(3), seed=trainer.recipe("finetune", "gpt_tiny").train.seed)
    ids, mask, labels = (np.array(column) for column in zip(*given, strict=True))
    logits = model(ids, mask).asnumpy()[np.arange(8), mask.sum(1) - 1]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(8), labels]
    assert line["texts"] == 8 and line["loss"] == pytest.approx(losses.mean(), abs=1e-5)
    found = pipeline("text_classification", model=str(tmp_path / "run/model"), max_length=16)("a red shirt", top_k=2)
    assert len(found) == 1 and [one["label"] for one in found[0]] <= ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert found[0][0]["score"] > found[0][1]["score"]


def test_its_task_learns_the_labels_of_rows_and_predicts_them(tmp_path, monkeypatch):
    words = ("awful", "great")
    texts = [{"sentence": f"Shirt {n} is {words[n % 2]}.", "label": words[n % 2]} for n in range(24)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in texts))
    monkeypatch.chdir(tmp_path)
    args = {"num_train_epochs": 8, "learning_rate": 5e-3, "batch_size": 2, "output_dir": "out"}
    trainer = Trainer("llama_tiny", task="text_classification", pet_method="lora", args=args, train_dataset=str(file))
    trainer.finetune()
    found = trainer.predict(["Shirt 3 is great.", "Shirt 4 is awful."], top_k=1)
    assert [row[0]["label"] for row in found] == ["great", "awful"] and len(found[0]) == 1
