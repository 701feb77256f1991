"""Twenty steps on every family's reference model against the losses of an independent implementation: by the command
line, from files of token ids, for LoRA; by the trainer for what starts otherwise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from adapters.saving import load_adapter
from model_zoo.auto import AutoModel
from model_zoo.checkpoint.safetensors_io import read_file
from pet.cli.main import main
from pet.train.trainer import Trainer

MODELS = ("chatglm1", "chatglm2", "glm", "glm4_0414", "gpt2", "llama_gqa", "llama_mha")


def run(fixtures, name, adapter, numbers="lora_ref.npz"):
    model = AutoModel.from_pretrained(fixtures / name)
    load_adapter(model, fixtures / name / adapter)
    reference = np.load(fixtures / name / numbers)
    base = {p.name: p.asnumpy().copy() for p in model.get_parameters() if not p.requires_grad}
    rows = zip(reference["train_input_ids"], reference["train_labels"], strict=True)
    trainer = Trainer(
        model,
        [{"input_ids": ids, "labels": labels} for ids, labels in rows],
        steps=20,
        learning_rate=1e-3,
        schedule="constant",
        warmup=0,
        clip_norm=None,
    )
    trainer.train()
    for parameter in model.get_parameters():
        if parameter.name in base and not getattr(parameter, "buffer", False):
            assert np.array_equal(parameter.asnumpy(), base[parameter.name]), f"{parameter.name} has changed"
    return np.array([line["loss"] for line in trainer.history]), reference


# A callback of the user's own, found in the current directory: the frozen weights end with the bytes they began with.
KEEPER = """
from zlib import crc32
from pet.train.callbacks import Callback

class Keeper(Callback):
    def digest(self, model):
        return {p.name: crc32(p.asnumpy().tobytes()) for p in model.get_parameters() if not p.requires_grad}

    def start(self, trainer):
        self.base = self.digest(trainer.model)
        assert len(self.base) > 10

    def end(self, trainer, summary):
        assert self.digest(trainer.model) == self.base
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_loss_curve_by_the_command_line(fixtures, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base, reference = fixtures / name, np.load(fixtures / name / "lora_ref.npz")
    rows = zip(*(reference[f"train_{key}"].reshape(-1, 16).tolist() for key in ("input_ids", "labels")), strict=True)
    lines = [json.dumps({"input_ids": ids, "labels": labels}) for ids, labels in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "keeper_of_the_base.py").write_text(KEEPER)
    (tmp_path / "job.yaml").write_text(
        f"model: {{path: {base}, tokenizer: gpt_tiny}}\n"  # the rows are ids already
        f"adapter: {{method: lora, load: {base / 'lora_train_init'}}}\n"
        "data: {train: rows.jsonl, max_length: 16, packing: none, shuffle: false, workers: 0, cache_dir: cache}\n"
        "train: {steps: 20, batch_size: 4, learning_rate: 1e-3, schedule: constant, warmup: 0, clip_norm: null}\n"
        "output: {dir: run}\ncallbacks: ['keeper_of_the_base:Keeper']\n"
    )
    assert main(["finetune", "job.yaml"]) == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert np.abs(np.array(losses) - reference["train_losses"]).max() < 1e-4
    ours, theirs = (
        read_file(folder / "adapter_model.safetensors")
        for folder in (tmp_path / "run/adapter", base / "lora_train_final")
    )
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        np.testing.assert_allclose(ours[key], value, rtol=0, atol=1e-4, err_msg=key)


def test_loss_curve_from_an_adapter_that_is_not_zero(fixtures):
    losses, reference = run(fixtures, "llama_gqa", "lora")
    assert np.abs(losses - reference["train_losses_from_nonzero"]).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glm", "llama_gqa"])
def test_loss_curve_of_a_prefix(fixtures, name):
    """The real tokens stand behind the prefix: their positions must reach the step moved by its length."""
    losses, reference = run(fixtures, name, "prefix", "prefix_ref.npz")
    assert np.abs(losses - reference["train_losses"]).max() < 1e-4
