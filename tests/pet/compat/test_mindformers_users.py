"""What stands in scripts and job files that users of MindFormers have published, at tiny sizes."""

from __future__ import annotations

import json
import logging
import subprocess
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
import yaml
from mindspore.mindrecord import FileWriter
from pet.compat.mindformers.core.callback.callback import _get_loss_output
from recipe_jobs import changed

import pet
from model_zoo.errors import InputError
from pet.compat import mindformers
from pet.compat.mindformers import (
    AutoModel,
    AutoTokenizer,
    LoraConfig,
    MindFormerConfig,
    TextGenerationPipeline,
    get_pet_model,
)
from pet.compat.mindformers.training_arguments import translate_arguments
from pet.compat.yaml_files import load_any

SIZES = {
    **{"hidden_size": 128, "num_layers": 4, "num_heads": 4, "n_kv_heads": 2, "vocab_size": 1216},
    **{"intermediate_size": 304, "seq_length": 32, "rms_norm_eps": 1e-5, "pad_token_id": 0},
}
LLAMA = {
    "run_mode": "finetune",
    "load_checkpoint": "llama_tiny",
    "use_parallel": False,
    "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "llama3_8b"},
    "runner_config": {"epochs": 1, "batch_size": 4},
    "optimizer": {"type": "FP32StateAdamWeightDecay"},
    "lr_schedule": {"type": "CosineWithWarmUpLR", "learning_rate": 1e-5, "warmup_ratio": 0.0},
    "train_dataset": {"data_loader": {"type": "MindDataset", "dataset_dir": "rows.mindrecord", "shuffle": False}},
    "model": {"model_config": {"type": "LlamaConfig", **SIZES}, "arch": {"type": "LlamaForCausalLM"}},
}
GPT2 = {
    "run_mode": "train",
    "aicc_config": {"obs_path": "Please input obs url on AICC platform.", "upload_frequence": 1, "keep_last": False},
    "resume_or_finetune_checkpoint": "",
    "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "gpt2"},
    "runner_config": {"epochs": 3, "batch_size": 8, "sink_mode": False, "per_epoch_size": -1, "initial_epoch": 0}
    | {"has_trained_epoches": 0, "has_trained_steps": 0},
    "optimizer": {"type": "FusedAdamWeightDecay", "learning_rate": 1e-4},
    "train_dataset": {"data_loader": {"type": "MindDataset", "dataset_dir": "rows.mindrecord"}},
    "model": {
        "model_config": {
            "type": "GPT2Config", "seq_length": 32, "vocab_size": 300, "embedding_size": 64, "num_layers": 2,
            "num_heads": 4, "dropout_prob": 0.0, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3,
            "eos_token": 299,
        },
        "arch": {"type": "GPT2LMHeadModel"},
    },
}  # fmt: skip
"""Of release 0.3."""


def written(values, place, **changes) -> str:
    """A file with values `changed`."""
    file = place / "job.yaml"
    file.write_text(yaml.safe_dump(changed(json.loads(json.dumps(values)), changes)))
    return str(file)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Four rows of ids with padding behind them, labels of their second half, and a mask of their first 20 places."""
    monkeypatch.chdir(tmp_path)
    return written_rows(tmp_path, ("input_ids", "labels", "attention_mask"))


def written_rows(place, names):
    writer = FileWriter("rows.mindrecord", overwrite=True)
    writer.add_schema({name: {"type": "int32", "shape": [-1]} for name in names}, "rows")
    ids = np.random.default_rng(0).integers(20, 300, (4, 32)).astype(np.int32)
    ids[:, 28:] = 0
    labels = np.where((np.arange(32) > 15) & (ids > 0), ids, -100).astype(np.int32)
    mask = np.tile((np.arange(32) < 20).astype(np.int32), (4, 1))
    writer.write_raw_data([dict(zip(names, row, strict=True)) for row in zip(ids, labels, mask, strict=True)])
    writer.commit()
    return place


@pytest.mark.parametrize(
    ("columns", "learnt"),
    [
        (["input_ids", "labels"], 4 * 12),
        (["input_ids"], 4 * 28),  # all but the first token, and one of the padding as the end
        (["input_ids", "labels", "attention_mask"], 4 * 4),
        (["input_ids", "label_ids", "input_mask"], 4 * 4),  # of release 0.6
    ],
)
def test_input_columns_say_which_columns_of_rows_are_read(rows, columns, learnt):
    if "label_ids" in columns:
        written_rows(rows, columns)
    file = written(LLAMA, rows, train_dataset__input_columns=columns, output_dir=str(rows / "run"))
    pet.Trainer(recipe=file).finetune()
    line = json.loads((rows / "run/metrics.jsonl").read_text().splitlines()[0])
    assert line["label_tokens"] == learnt


def test_rows_to_measure_are_read_by_columns_of_their_own(rows):
    eval_dataset = {"data_loader": LLAMA["train_dataset"]["data_loader"], "input_columns": ["input_ids"]}
    both = {"train_dataset__input_columns": ["input_ids", "labels"], "eval_dataset": eval_dataset}
    data, bare = load_any(written(LLAMA, rows, **both)).data, {"labels": "", "attention_mask": ""}
    assert data.columns == {"attention_mask": ""} and data.eval_columns == bare
    both["train_dataset__input_columns"] = ["input_ids"]
    data = load_any(written(LLAMA, rows, **both)).data
    assert data.columns == bare and data.eval_columns is None
    # a cell of GPT-2 takes a mask, and reads no labels
    said = {"train_dataset__input_columns": ["input_ids", "attention_mask", "labels"]}
    assert load_any(written(GPT2, rows, **said)).data.columns == {"labels": ""}


def test_a_file_of_release_0_3(rows):
    recipe = load_any(written(GPT2, rows))
    assert recipe.train.base_dropout == {"hidden": 0.2, "attention": 0.3}
    assert (recipe.model.config["eos_token_id"], recipe.data.padding) == (299, 299)
    unsaid = written(GPT2, rows, model__model_config__eos_token=None, model__model_config__hidden_dropout_prob=None)
    assert load_any(unsaid).data.padding == 50256
    for key in ("runner_config__initial_epoch", "runner_config__has_trained_steps"):
        with pytest.raises(InputError, match="a resumed run goes on where it was"):
            load_any(written(GPT2, rows, **{key: 2}))
    with pytest.raises(InputError, match=r"resume_or_finetune_checkpoint: 'x\.ckpt': give it as load_checkpoint"):
        load_any(written(GPT2, rows, resume_or_finetune_checkpoint="x.ckpt"))
    with pytest.raises(InputError, match="remote_save_url: 'http://somewhere'"):
        load_any(written(GPT2, rows, aicc_config__obs_path="http://somewhere"))


def test_another_model_of_the_same_sizes_is_none_of_these(rows):
    """Baichuan's have LlamaConfig, and another head or other positions."""
    how = {"model__arch__type": "Baichuan7BV2ForCausalLM", "run_mode": "train", "load_checkpoint": ""}
    with pytest.raises(InputError, match=r"model\.arch\.type: 'Baichuan7BV2ForCausalLM' is not supported"):
        load_any(written(LLAMA, rows, **how))
    with pytest.raises(InputError, match="Baichuan7BV2ForCausalLM"):
        mindformers.AutoConfig.from_pretrained(written(LLAMA, rows, **how))


def test_an_expression_in_brackets_names_matrices():
    model = AutoModel.from_pretrained("llama_tiny")
    get_pet_model(model, LoraConfig(lora_rank=2, lora_alpha=4, target_modules=".*(q_proj|v_proj)"))
    named = {parameter.name.split(".")[4] for parameter in model.trainable_params()}
    assert named == {"q_proj", "v_proj"}
    with pytest.raises(InputError, match=r"targets: 're:.\*\.\(wq\|wk\)' matches no cell"):  # nor does it there
        get_pet_model(AutoModel.from_pretrained("llama_tiny"), LoraConfig(lora_rank=2, target_modules=".*.(wq|wk)"))


def test_a_model_of_a_file_that_was_read(rows):
    config = MindFormerConfig(written(LLAMA, rows, model__model_config__checkpoint_name_or_path="llama_tiny"))
    model, plain = AutoModel.from_config(config), pet.AutoModel.from_pretrained("llama_tiny")
    assert all(
        np.array_equal(one.asnumpy(), other.asnumpy())
        for one, other in zip(model.get_parameters(), plain.get_parameters(), strict=True)
    )
    assert model.config.max_position_embeddings == 32
    with pytest.raises(InputError, match="LlamaConfig: settings are given by name"):
        mindformers.LlamaConfig(config.model.model_config)


def test_a_pipeline_takes_the_settings_of_its_calls():
    model, tokenizer = AutoModel.from_pretrained("llama_tiny"), AutoTokenizer.from_pretrained("llama_tiny")
    text, plain = "Who made this lamp?", TextGenerationPipeline(model, tokenizer)
    asked = TextGenerationPipeline(model, tokenizer, add_special_tokens=False, max_length=40, do_sample=False)
    expected = plain(text, add_special_tokens=False, max_length=40)
    assert asked(text) == expected != plain(text, max_length=40)
    assert asked(text, add_special_tokens=True) == plain(text, max_length=40)
    keys = {"src_language": "question"}
    by_name = TextGenerationPipeline(model, tokenizer, keys=keys, max_length=40)
    assert (
        by_name({"question": text}) == plain({"question": text}, keys=keys, max_length=40) == plain(text, max_length=40)
    )


def test_a_warm_up_that_is_said_twice(caplog):
    translation = translate_arguments({"warmup_steps": 3, "warmup_ratio": 0.5, "learning_rate": 1e-4})
    assert translation.settings["train.warmup"] == 3
    assert "its schedules take the ratio; give one of them" in translation.ignored["warmup_ratio"]
    assert "warmup_ratio" not in translate_arguments({"warmup_ratio": 0.5}).ignored


@pytest.mark.parametrize("name", ["BaseStreamer", "CheckpointMointor", "PetAdapter", "build_parallel_config"])
def test_names_that_scripts_import_from_the_package(name):
    assert getattr(mindformers, name) is not None


def test_columns_that_a_cell_does_not_read_in_training(caplog):
    """Rows of three columns are usual for GPT-2: ids, mask and labels, of which its cell takes the third as embeddings
    that it never reads."""
    caplog.set_level(logging.WARNING, "pet")
    for base in ("gpt_tiny", "llama_tiny"):
        model = AutoModel.from_pretrained(base)
        model.set_train(True)
        ids = np.random.default_rng(0).integers(20, 300, (2, 9)).astype(np.int32)
        given = [ids, np.ones_like(ids) if base == "gpt_tiny" else ids]
        assert float(model(*given, ids)) == float(model(*given))
        model.set_train(False)
        with pytest.raises(InputError, match="is not supported: a model is called with whole rows"):
            model(*given, ids)
    assert "input_embeds has no effect in training" in caplog.text


def test_a_prefix_takes_no_place_of_a_ckpt_files_context(tmp_path, monkeypatch):
    """As MindFormers' finetune_llama2_7b_prefixtuning.yaml is called by its document, over a .ckpt file."""
    from pet.compat.ckpt.doors import to_file
    from pet.names import bundled_models, model_config

    monkeypatch.chdir(tmp_path)
    to_file(bundled_models()["llama_tiny"], "base.ckpt")
    written_rows(tmp_path, ("input_ids", "labels", "attention_mask"))
    prefix = {"pet_type": "prefixtuning", "prefix_token_num": 16, "mid_dim": 8}
    given = {"load_checkpoint": "base.ckpt"}
    recipe = load_any(written(LLAMA, tmp_path, **given, model__model_config__pet_config=prefix))
    assert (recipe.data.max_length, recipe.adapter.length) == (33, 16)
    assert model_config(recipe.model.path)["max_position_embeddings"] == 48
    assert model_config(load_any(written(LLAMA, tmp_path, **given)).model.path)["max_position_embeddings"] == 32


def test_run_check_trains_and_asks(monkeypatch, capsys):
    """What MindFormers' pages have a newcomer run first; `pet doctor` has tests of its own."""
    codes = iter([0, 1])
    monkeypatch.setattr(subprocess, "run", lambda *_, **settings: SimpleNamespace(returncode=next(codes)))
    mindformers.run_check()
    said = capsys.readouterr()
    assert "step 1/1" in said.err and "All checks passed" in said.out
    with pytest.raises(InputError, match="see BAD above"):
        mindformers.run_check()


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, (1.5, False, False, None, None)),
        (1, (1.5, False, False, None, None)),
        (2, (1.5, False, False, None, None)),
        (3, (1.5, True, 1024.0, None, None)),
        (4, (1.5, True, 1024.0, 0.5, None)),
        (5, (1.5, True, 1024.0, 0.5, 2.5)),
        (6, (1.5, False, False, None, None)),
        (7, (1.5, True, 1024.0, 0.5, 2.5)),
    ],
)
def test_a_callbacks_outputs_are_read_as_mindformers_reads_them(count, expected):
    """Numbers are those of MindFormers 1.7's own function."""
    loss = ms.Tensor(np.array([1.0, 2.0], np.float32))
    outputs = (loss, *map(ms.Tensor, (True, 1024.0, 0.5, 2.5, 3.5, 4.5)))[:count] if count else loss
    assert _get_loss_output(outputs) == expected
