"""MindFormers' own ``run_mindformer.py``: what it does with a file before it calls the trainer, and what it gets."""

from __future__ import annotations

import argparse
import ast
import copy
import json
import logging

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError
from pet.compat.mindformers import Trainer, logs
from pet.compat.mindformers.generation_defaults import without_padding
from pet.compat.mindformers.script import (
    build_context,
    build_trainer,
    get_output_root_path,
    set_output_path,
    set_remote_save_url,
)
from pet.compat.mindformers.script_config import ActionDict, MindFormerConfig, parse_value
from pet.compat.yaml_files import load_any

FILE = """
run_mode: {mode}
output_dir: ./output
load_checkpoint: {base}
context: {{mode: 0, device_target: Ascend, device_id: 0}}
trainer: {{type: CausalLanguageModelingTrainer}}
runner_config: {{epochs: 1, batch_size: 2, sink_mode: True}}
optimizer: {{type: FP32StateAdamWeightDecay, learning_rate: 1.e-2}}
model:
  model_config:
    {{type: GPT2Config, num_layers: 12, seq_length: 32, max_decode_length: 12, checkpoint_name_or_path: gpt2,
      do_sample: False, pet_config: {{pet_type: lora, lora_rank: 2}}}}
train_dataset: {{data_loader: {{dataset_dir: ""}}}}
"""


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [{"prompt": f"What is {one}?", "completion": f"{one}."} for one in range(4)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture
def config(tmp_path, rows):
    """A file as a script has read and changed it."""

    def made(mode="finetune", base="", **changes) -> MindFormerConfig:
        file = tmp_path / "run.yaml"
        file.write_text(FILE.format(mode=mode, base=base))
        found = MindFormerConfig(str(file))
        found.train_dataset.data_loader.dataset_dir = str(rows)
        found.update(changes)
        return found

    return made


def test_keys_are_attributes_and_changes_are_known(config):
    one = config(base="gpt_tiny")
    assert (one.model.model_config.pet_config.lora_rank, one.nothing) == (2, None)
    one.merge_from_dict({"model.model_config.seq_length": 16, "new.section.key": [1]})
    assert (one.model.model_config.seq_length, one.new.section.key) == (16, [1])
    assert sorted(one.changes()) == ["model", "new", "train_dataset"]
    other = copy.deepcopy(one)
    other.model.model_config.seq_length = 8
    assert one.model.model_config.seq_length == 16 and type(one.to_dict()["model"]) is dict
    assert MindFormerConfig(a={"b": 1}).a.b == 1
    with pytest.raises(InputError, match=r"absent\.yaml: no such file"):
        MindFormerConfig("absent.yaml")


def test_options_are_read_as_mindformers_reads_them():
    parser = argparse.ArgumentParser()
    parser.add_argument("--options", nargs="+", action=ActionDict)
    found = parser.parse_args(["--options", "a.b=1", "c=2,3", "d=(x,y)", "e=1e-5", "f=False", "g=[1, 2]"]).options
    assert found == {"a.b": 1, "c": [2, 3], "d": ["x", "y"], "e": 1e-5, "f": False, "g": [1, 2]}
    assert [parse_value(text) for text in ("3", "1e-4", "True", "[1]", "a")] == [3, 1e-4, True, [1], "a"]


def test_what_the_script_put_there_overrules_the_file(config):
    """A checkpoint that the command names has the sizes that count; one that the file names must have the file's."""
    changed = config(load_checkpoint="gpt_tiny")
    recipe = load_any(changed, changes={"run_mode": "finetune"})
    assert (recipe.adapter.method, recipe.adapter.rank, recipe.train.batch_size) == ("lora", 2, 2)
    with pytest.raises(InputError, match="num_layers: 12, but the model has"):
        load_any(config(base="gpt_tiny"))
    with pytest.raises(InputError, match="learning_rat: is not known"):
        load_any(config(load_checkpoint="gpt_tiny", learning_rat=0.1))


def test_train_tunes_where_the_file_says_so(config, tmp_path, monkeypatch, capsys):
    """From release 1.1 on the script calls ``train`` for both, and predicts and measures by the same configuration."""
    monkeypatch.setenv("LOG_MF_PATH", str(tmp_path / "output/log"))
    given = config(load_checkpoint="gpt_tiny")
    build_context({"use_parallel": False})
    files, profiles = build_context(given)  # scripts until 0.3 ask these
    assert profiles is None and files.get_dataset("a/b") == files.get_checkpoint("a/b") == "a/b"
    assert (given.rank_id, given.device_num) == (0, 1) and "rank_id" not in given.to_dict()
    summary = Trainer(given).train()
    assert summary["method"] == "lora" and summary["steps"] == 2  # a row is one text
    run = tmp_path / "output"
    assert (run / "adapter/adapter_config.json").is_file()
    # a run that starts from another one leaves it as it is
    again = config(load_checkpoint=str(run), output_dir=str(run))
    trainer = Trainer(args=again, train_dataset="", task="text_generation")
    before = (run / "adapter/adapter_model.safetensors").read_bytes()
    trainer.finetune(finetune_checkpoint=str(run), auto_trans_ckpt=True, resume_training=None)
    assert (run / "adapter/adapter_model.safetensors").read_bytes() == before
    assert trainer.result.name == "output_finetune"
    capsys.readouterr()
    asked = config("predict", load_checkpoint="gpt_tiny")
    answers = Trainer(asked).predict(predict_checkpoint="gpt_tiny", input_data="a red", batch_size=None)
    assert ast.literal_eval((tmp_path / "text_generation_result.txt").read_text()) == answers
    assert str(answers) in capsys.readouterr().out
    assert str(answers) in (run / "log/rank_0/info.log").read_text()
    model, tokenizer = pet.AutoModel.from_pretrained("gpt_tiny"), pet.AutoTokenizer.from_pretrained("gpt_tiny")
    expected = pet.pipeline("text_generation", model=model, tokenizer=tokenizer)("a red", max_length=12)
    assert answers == expected


def test_placeholders_of_what_is_not_read(config, rows):
    given = config(load_checkpoint="gpt_tiny", eval_dataset={"data_loader": {"dataset_dir": "/path/to/dev.json"}})
    given.train_dataset.data_loader.dataset_dir = "/path/to/train.json"
    assert Trainer(given).recipe("predict").data.train is None
    measured = Trainer(given, eval_dataset=str(rows)).recipe("evaluate")
    assert measured.data.train is None and len(measured.data.eval) == 1
    with pytest.raises(InputError, match=r"data\.eval: /path/to/dev\.json"):
        Trainer(given).recipe("evaluate")
    with pytest.raises(InputError, match=r"data\.train: /path/to/train\.json"):
        Trainer(given).recipe("finetune")


def test_scripts_until_1_0_make_the_task_trainer(config):
    """They have moved the checkpoint into the model's section by then."""
    given = config("train", load_checkpoint=None)
    given.model.model_config.checkpoint_name_or_path = "gpt_tiny"
    assert build_trainer(given.trainer)._of(given).recipe("train").model.path == "gpt_tiny"
    with pytest.raises(InputError, match="MindIR"):
        build_trainer(given.trainer).export(given)


def test_the_newest_files_name_a_directory_of_hugging_face(config, rows):
    given = config(load_checkpoint="", pretrained_model_dir="gpt_tiny", use_legacy=False)
    handlers = [{"type": "take", "n": 3}, {"type": "AlpacaInstructDataHandler", "seq_length": 24}]
    loader = {"type": "HFDataLoader", "path": "json", "data_files": str(rows), "handler": handlers}
    given.train_dataset.data_loader = loader
    del given.model.model_config["seq_length"]
    recipe = Trainer(given).recipe()
    assert recipe.model.path == "gpt_tiny"
    assert (recipe.data.max_samples, recipe.data.max_length, recipe.data.packing) == (3, 24, "longest")
    handlers.append({"type": "PackingHandler", "seq_length": 24, "pack_strategy": "pack"})
    pet = {"pet_type": "lora", "freeze_include": ["*"], "freeze_exclude": ["*lora*"]}
    pet["target_modules"] = ".*word_embeddings|.*linear_qkv|.*linear_proj"
    given.model.model_config = {"pet_config": pet}
    recipe = Trainer(given).recipe()
    assert (recipe.data.packing, recipe.adapter.targets) == ("pack", ["c_attn", "attn.c_proj"])
    pet["freeze_exclude"] = ["*norm*"]
    handlers[-1]["pack_strategy"] = "truncate"
    with pytest.raises(InputError, match=r"(?s)freeze_exclude.*pack_strategy: truncate"):
        Trainer(given).recipe()


def test_a_script_that_loads_and_generates_by_hand(fixtures):
    """MindFormers' ``run_gpt2_generate.py`` and its kin: the file's sizes, prompts padded behind, generate by hand."""
    from pet.compat.mindformers.models.gpt2 import GPT2Config, GPT2LMHeadModel
    from pet.compat.mindformers.trainer.utils import transform_and_load_checkpoint

    own = pet.AutoConfig.from_pretrained("gpt_tiny")
    sizes = {
        "hidden_size": own.n_embd,
        "num_layers": own.n_layer,
        "num_heads": own.n_head,
        "vocab_size": own.vocab_size,
    }
    given = MindFormerConfig(
        load_checkpoint="gpt_tiny",
        parallel_config={"model_parallel": 1},
        model={"model_config": {"type": "GPT2Config", **sizes, "seq_length": own.n_positions, "eos_token_id": 0}},
    )
    given.model.model_config.update(batch_size=2, do_sample=False, top_k=3, top_p=1, max_decode_length=12)
    config = GPT2Config(**given.model.model_config, parallel_config=given.parallel_config)
    network = GPT2LMHeadModel(config)
    transform_and_load_checkpoint(
        given, None, network, network.prepare_inputs_for_predict_layout(None), do_predict=True
    )
    tokenizer = pet.AutoTokenizer.from_pretrained("gpt_tiny")
    prompts = [[one for one in tokenizer.encode(text) if one != tokenizer.eos_token_id] for text in ("a red", "a")]
    padded = [prompts[0] + [0] * (8 - len(prompts[0])), [0] * (8 - len(prompts[1])) + prompts[1]]
    how = {"max_length": config.max_decode_length, "do_sample": config.do_sample, "eos_token_id": None}
    rows = network.generate(padded, top_k=config.top_k, top_p=config.top_p, **how)
    plain = pet.AutoModel.from_pretrained("gpt_tiny")
    mask = [[0] * (max(map(len, prompts)) - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    left = [[0] * (len(row) - len(prompt)) + prompt for row, prompt in zip(mask, prompts, strict=True)]
    longest = how["max_length"] + len(left[0]) - min(map(len, prompts))  # so that each row has its own whole length
    expected = plain.generate(left, mask, top_k=3, top_p=1, **{**how, "max_length": longest})
    found = [row[np.count_nonzero(np.array(each) == 0) :].tolist() for row, each in zip(expected, mask, strict=True)]
    found = [row[: how["max_length"]] for row in found]
    assert [row.tolist() for row in rows] == found
    assert [row[: len(prompt)] for row, prompt in zip(found, prompts, strict=True)] == prompts


def test_padding_around_a_prompt():
    assert without_padding([[0, 5, 6, 0], [7, 8, 9, 1]], 0) == [[5, 6], [7, 8, 9, 1]]
    assert without_padding(np.array([[0, 5, 6, 0]]), 0, bos=0) == [[0, 5, 6]]
    nothing = [([[5, 6]], 0), ([[5, 0]], None), ([[0, 0]], 0), (None, 0), ([[1], [1, 0]], 0)]
    assert [without_padding(*one) for one in nothing] == [None] * 5


def test_what_ends_a_script_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_MF_PATH", str(tmp_path / "log"))
    logs.keep()
    logs.note(InputError, InputError("model.path: no"), None)
    logs.note(ValueError, ValueError("by itself"), None)
    kept = (tmp_path / "log/rank_0/error.log").read_text()
    assert "ERROR - model.path: no" in kept and "ValueError: by itself" in kept


def test_logs_that_cannot_be_kept_end_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOG_MF_PATH", str(tmp_path / "file"))
    logs.keep()
    assert "file/rank_0: Not a directory; no log is kept there" in capsys.readouterr().out


@pytest.fixture(autouse=True)
def no_handlers_left():
    known = {name: [*logging.getLogger(name).handlers] for name in ("mindformers", "pet")}
    yield
    for name, handlers in known.items():
        logging.getLogger(name).handlers[:] = handlers


def test_a_value_is_not_overwritten_by_a_section():
    config = MindFormerConfig({"model": {"type": "x"}})
    config.merge_from_dict({"model.config.layers": 2})
    config.set_value("context.mode", 0)
    config.set_value(["context", "device_id"], 3)
    assert (config.get_value("context.mode"), config.get_value(["context", "device_id"])) == (0, 3)
    assert config.get_value("context.mode.none", "other") == "other" and config.get_value("none") is None
    assert config.model.config.layers == 2
    with pytest.raises(InputError, match=r"model\.type\.name: model\.type is no section"):
        config.merge_from_dict({"model.type.name": "y"})


def test_what_a_function_says_that_the_trainer_does_not_read_is_said(capsys):
    set_output_path("elsewhere")
    set_remote_save_url("file:///there")
    said = capsys.readouterr().out
    assert "elsewhere: the trainer goes by output_dir of its configuration" in said
    assert "file:///there: the trainer goes by remote_save_url" in said
    assert get_output_root_path().endswith("/elsewhere")
    set_output_path(None)
