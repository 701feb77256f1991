"""Results on Hugging Face's hub: its own client, and a server that speaks its protocol."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from hub_server import TOKEN, running

import pet
from model_zoo.errors import InputError
from pet.cli.main import main
from pet.train.callbacks.hub import Hub

ADAPTER = {"adapter_config.json", "adapter_model.safetensors", "README.md", "tokenizer.model"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    api = pytest.importorskip("huggingface_hub.hf_api")
    constants = importlib.import_module("huggingface_hub.constants")
    with running() as server:
        for module in (constants, api):  # older ones have it in both
            monkeypatch.setattr(module, "ENDPOINT", server.url, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # which other tests' peers set for this process
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.chdir(tmp_path)
        yield server


def job(tmp_path, **given):
    """A file of LLaMA-Factory's."""
    rows = [{"instruction": f"Question {number}?", "output": f"Answer {number}."} for number in range(4)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    values = {"model_name_or_path": "llama_tiny", "stage": "sft", "finetuning_type": "lora", "template": "empty"}
    values |= {"dataset": "rows", "dataset_dir": ".", "cutoff_len": 64, "max_steps": 1, "output_dir": "out", **given}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(values))
    return "job.yaml"


def test_a_run_is_uploaded_at_its_end(hub, tmp_path, capsys):
    file = job(tmp_path, push_to_hub=True, hub_model_id="me/mine", hub_private_repo=True)
    assert main(["finetune", file]) == 0
    assert "uploaded: " + hub.url in capsys.readouterr().out
    stored = hub.repositories["me/mine"]
    assert stored.keys() >= ADAPTER and hub.private == {"me/mine"} and hub.messages == ["out: 1 steps"]
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        content = (tmp_path / "out" / "adapter" / name).read_bytes()
        assert stored[name] == content or json.loads(stored[name]) == json.loads(content)
    assert b"base_model: llama_tiny" in stored["README.md"]

    # what is written may go there, too: into the account's own, as one file, or merged as a job file says
    assert main(["export", "out", "--output", "shared", "--hub", "again"]) == 0
    assert main(["export", "out", "--format", "gguf", "--output", "m.gguf", "--hub", "me/gguf", "--private"]) == 0
    assert hub.repositories["me/again"].keys() == stored.keys()
    assert hub.repositories["me/gguf"] == {"m.gguf": (tmp_path / "m.gguf").read_bytes()}
    merge = {"model_name_or_path": "llama_tiny", "adapter_name_or_path": "out", "template": "empty"}
    (tmp_path / "export.yaml").write_text(
        yaml.safe_dump({**merge, "export_dir": "merged", "export_hub_model_id": "me/merged"})
    )
    assert main(["merge", "export.yaml"]) == 0
    assert hub.repositories["me/merged"]["model.safetensors"] == (tmp_path / "merged/model.safetensors").read_bytes()
    assert hub.private == {"me/mine", "me/gguf"}

    # a run whose upload fails is whole, also one of a script's objects
    hub.full = True
    batch = [{"input_ids": np.arange(1, 9).reshape(1, 8).astype(np.int32)}]
    model = pet.apply_lora(pet.AutoModel.from_pretrained("llama_tiny"), rank=2)
    trainer = pet.Trainer(
        model=model, args=pet.TrainingArguments(output_dir="own"), train_dataset=batch, callbacks=Hub("me/own")
    )
    with pytest.raises(InputError, match=r"the run is whole: hf upload me/own .*own/adapter uploads it"):
        trainer.finetune()
    assert main(["finetune", file, "output.dir=two"]) == 2
    told = capsys.readouterr().err
    assert (
        "Storage limit reached" in told
        and "the run is whole: pet export" in told
        and "--hub me/mine uploads it" in told
    )
    assert (tmp_path / "two" / "summary.json").is_file()


def test_what_cannot_be_uploaded_is_said_before_the_first_step(hub, tmp_path, monkeypatch, capsys):
    assert main(["finetune", job(tmp_path, push_to_hub=True, hub_model_id="you/it")]) == 2
    assert "hub 'you/it': cannot be made: 403" in capsys.readouterr().err
    assert not (tmp_path / "out" / "adapter").exists()
    monkeypatch.setenv("HF_TOKEN", "another")
    base = ["export", "llama_tiny", "--format", "gguf", "--output", "m.gguf"]
    assert main([*base, "--hub", "me/it"]) == 2 and main([*base, "--private"]) == 2
    assert not (tmp_path / "m.gguf").exists()
    assert "--private: has no effect without --hub" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"'me/it/more': is no name of a repository"):
        Hub("me/it/more")
    with pytest.raises(InputError, match=r"modelscope upload OWNER/NAME DIR"):
        Hub("modelscope:me/it")
    assert not hub.repositories


def test_a_trainer_over_batches_has_nothing_to_upload(hub):
    with pytest.raises(InputError, match="writes no adapter or model to upload"):
        Hub("me/it").start(SimpleNamespace(finish=None))
    assert not hub.repositories
