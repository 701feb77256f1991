"""Rows of nothing but token ids: MindFormers' models know padding by its id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from mindspore.mindrecord import FileWriter

import pet
from model_zoo.errors import InputError
from pet.compat.mindformers import AutoConfig, AutoModel, ChatGLM4Tokenizer, GPT2Config, LlamaConfig, Trainer
from pet.compat.mindformers.padding import pad_of
from pet.compat.yaml_files import load_any
from pet.train.prepare import tokenizer_for_data

LENGTHS = (5, 9, 12, 7)


@pytest.fixture
def rows():
    """Of 12 tokens, padded by an id."""

    def make(pad):
        random, found = np.random.default_rng(0), np.full((len(LENGTHS), 12), pad, np.int32)
        for row, length in zip(found, LENGTHS, strict=True):
            row[:length] = random.integers(10, 200, length)
        return found

    return make


def learnt(rows, pad, gpt2):
    """Beside which tokens MindFormers' loss has a 1: LLaMA's by the token before them, GPT-2's by themselves."""
    masks = rows != pad if gpt2 else np.concatenate([rows[:, :1] < 0, rows[:, :-1] != pad], 1)
    return [(row, mask) for row, mask in zip(rows, masks, strict=True)]


def in_memory(rows):
    from mindspore.dataset import GeneratorDataset

    return GeneratorDataset([(row,) for row in rows], column_names=["input_ids"], shuffle=False).batch(2)


def in_a_file(rows):
    from mindspore.mindrecord import FileWriter

    writer = FileWriter("rows.mindrecord", 1)
    writer.add_schema({"input_ids": {"type": "int32", "shape": [-1]}}, "rows")
    writer.write_raw_data([{"input_ids": row} for row in rows])
    writer.commit()
    return "rows.mindrecord"


def as_batches(rows):
    return [{"input_ids": rows[:2]}, {"input_ids": rows[2:]}]


@pytest.mark.parametrize("how", [in_memory, in_a_file])
@pytest.mark.parametrize("config", [LlamaConfig, GPT2Config])
def test_the_last_of_one_token_more_than_the_context_is_predicted(config, how):
    """MindFormers' scripts write such rows, of which its models read all but the last token."""
    model = AutoModel.from_config(config(num_layers=1, hidden_size=32, num_heads=2, vocab_size=300, seq_length=8))
    rows = np.random.default_rng(0).integers(10, 200, (4, 9)).astype(np.int32)
    measured = Trainer(model=model, eval_dataset=how(rows), args={"batch_size": 2}).evaluate()["loss"]
    logits = model(rows[:, :-1])[0].asnumpy().astype(np.float64)
    chosen = np.take_along_axis(logits, rows[:, 1:, None], 2)[..., 0]
    assert measured == pytest.approx(np.mean(np.log(np.exp(logits).sum(2)) - chosen), rel=1e-5)


@pytest.mark.parametrize("how", [in_memory, in_a_file, as_batches])
@pytest.mark.parametrize("name", ["llama_tiny", "gpt_tiny"])
def test_padding_is_masked_as_the_family_does(name, how, rows, numpy_loss):
    model = AutoModel.from_pretrained(name)
    gpt2 = name == "gpt_tiny"
    pad = model.config.eos_token_id if gpt2 else pad_of(model.config.to_dict(), name)
    given = rows(pad)
    trainer = Trainer(model=name if how is in_a_file else model, eval_dataset=how(given), args={"batch_size": 2})
    expected = numpy_loss(model, learnt(given, pad, gpt2))
    assert trainer.evaluate()["loss"] == pytest.approx(expected, rel=1e-4)


def test_records_of_ids_need_no_tokenizer(rows, numpy_loss):
    """They are read beside a model that is an object, whose padding its configuration says."""
    model = AutoModel.from_config(
        LlamaConfig(hidden_size=32, num_layers=1, num_heads=2, vocab_size=2000, pad_token_id=7)
    )
    given = rows(7)
    trainer = Trainer(model=model, eval_dataset=in_a_file(given), args={"batch_size": 2})
    assert trainer.evaluate()["loss"] == pytest.approx(numpy_loss(model, learnt(given, 7, False)), rel=1e-4)
    with pytest.raises(InputError, match="files are tokenised; give tokenizer="):
        Path("rows.txt").write_text("a red shirt")
        Trainer(model=model, eval_dataset="rows.txt", args={"batch_size": 2}).evaluate()


def test_the_configuration_says_what_padding_is(tmp_path):
    def padding(model, **more):
        data = Trainer(model=model, train_dataset="rows.mindrecord", **more).recipe("train").data
        return data.padding, data.padding_ends

    (tmp_path / "rows.mindrecord").write_bytes(b"")
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 300}
    assert padding(AutoModel.from_config(LlamaConfig(**sizes))) == (0, True)  # as in MindFormers' own
    assert padding(AutoModel.from_config(LlamaConfig(**sizes, pad_token_id=7))) == (7, True)
    assert padding("gpt2") == (50256, False)
    assert padding("glm_6b") == (3, True)
    assert pet.AutoModel.from_pretrained("llama_tiny").config.to_dict().get("pad_token_id") is None
    assert padding("llama_tiny") == (pet.AutoTokenizer.from_pretrained("llama_tiny").pad_token_id, True)


def test_neither_ends_of_documents_nor_letters_are_padding(fixtures):
    """Of weights whose configuration and tokenizer name no token for padding alone."""
    config = AutoModel.from_config(LlamaConfig(hidden_size=32, num_layers=1, num_heads=2)).config.to_dict()
    tokenizer = pet.AutoTokenizer.from_pretrained("gpt_tiny")
    assert pad_of(config, "gpt_tiny") == tokenizer.eos_token_id  # prompts are padded with it
    assert pad_of(config, "gpt_tiny", of_rows=True) is None
    assert pad_of(config, fixtures / "tok_llama", of_rows=True) == pad_of(config, None, of_rows=True) == 0


def test_a_file_says_what_padding_is(tmp_path):
    from pet.compat.yaml_files import load_any

    text = """
trainer: {model_name: gpt_tiny}
model: {model_config: {type: GPT2Config, eos_token_id: 9, checkpoint_name_or_path: gpt_tiny}}
train_dataset: {data_loader: {type: LOADER, dataset_dir: rows}}
"""
    for loader, wanted in (("MindDataset", (9, False)), ("ADGenDataLoader", (None, False))):
        (tmp_path / "job.yaml").write_text(text.replace("LOADER", loader))
        data = load_any(tmp_path / "job.yaml", check_files=False).data
        assert (data.padding, data.padding_ends) == wanted


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"input_id": [[10, 11]]}, "batch 1 has no input_ids; it has input_id"),
        ({"input_ids": [[10, 11], [12]]}, "batch 1: input_ids is no array of integers"),
        (None, "batch 1 is of the type NoneType"),
    ],
)
def test_what_is_no_batch_among_batches_is_named(fixtures, wrong, message):
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    batches = [{"input_ids": np.full((2, 6), 10)}, wrong]
    with pytest.raises(InputError, match=message):
        Trainer(model=model, train_dataset=batches, args={"output_dir": "run"}).train()


def test_llamas_labels_stand_where_they_are_predicted_where_its_configuration_says_so(tmp_path):
    """``input_sliced_sig``: the loss of the cell, of an object and of a job file is that of these labels."""
    config = AutoConfig.from_pretrained("llama_tiny")
    config.input_sliced_sig = True
    model = AutoModel.from_config(config).set_train()
    ids = np.random.default_rng(0).integers(20, 300, (2, 10))
    labels = np.where(np.arange(9) > 3, ids[:, 1:], -100)
    logits = pet.AutoModel.from_pretrained("llama_tiny")(ids[:, :-1]).asnumpy().astype(np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
    expected = losses[labels >= 0].mean()
    assert float(model(ids[:, :-1], labels)) == pytest.approx(expected, rel=1e-5)
    assert float(model(ids)) == pytest.approx(losses.mean(), rel=1e-5)  # without labels of one token more all the same
    writer = FileWriter(str(tmp_path / "rows.mindrecord"))
    writer.add_schema({name: {"type": "int32", "shape": [-1]} for name in ("input_ids", "labels")}, "rows")
    pairs = zip(ids[:, :-1], labels, strict=True)
    writer.write_raw_data([{"input_ids": np.int32(row), "labels": np.int32(learnt)} for row, learnt in pairs])
    writer.commit()
    file = tmp_path / "job.yaml"
    section = {"type": "LlamaConfig", "checkpoint_name_or_path": "llama_tiny", "input_sliced_sig": True}
    loader = {"type": "MindDataset", "dataset_dir": str(tmp_path / "rows.mindrecord")}
    values = {"trainer": {"type": "CausalLanguageModelingTrainer"}, "model": {"model_config": section}}
    file.write_text(yaml.safe_dump({"run_mode": "eval", "eval_dataset": {"data_loader": loader}, **values}))
    how = {"args": {"output_dir": str(tmp_path / "run"), "batch_size": 2, "use_parallel": False}}
    of_object = Trainer(model=model, eval_dataset=str(tmp_path / "rows.mindrecord"), **how)
    for trainer in (of_object, Trainer(recipe=file, **how)):
        assert trainer.evaluate()["loss"] == pytest.approx(expected, rel=1e-5)


def test_glms_labels_stand_where_they_are_predicted(tmp_path):
    """As MindFormers' script for GLM-4 writes them: the loss is its cell's, of a name and of an object."""
    tokenizer = ChatGLM4Tokenizer.from_pretrained("glm4_tiny")
    messages = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "a grey shirt"}]
    pieces = [tokenizer.apply_chat_template([one], tokenize=True)[2:-1] for one in messages]
    marks, ends = tokenizer.encode("", True)[:2], tokenizer.special_tokens["<|user|>"]
    ids = [*marks, *pieces[0], *pieces[1], ends]
    assert ids == tokenizer.example(messages)[0]
    asked = len(marks) + len(pieces[0]) + 1
    whole = {"input_ids": ids[:-1], "labels": [-100] * (asked - 1) + ids[asked:]}
    writer = FileWriter(str(tmp_path / "rows.mindrecord"))
    writer.add_schema({name: {"type": "int32", "shape": [-1]} for name in whole}, "rows")
    writer.write_raw_data([{name: np.int32(row) for name, row in whole.items()}])
    writer.commit()
    model = AutoModel.from_pretrained("glm4_tiny").set_train()
    expected = float(model([whole["input_ids"]], [whole["labels"]]))
    for one in ("glm4_tiny", model):
        how = {"args": {"output_dir": str(tmp_path / "run"), "batch_size": 1, "use_parallel": False}}
        found = Trainer(model=one, eval_dataset=str(tmp_path / "rows.mindrecord"), **how).evaluate()
        assert found["loss"] == pytest.approx(expected, rel=1e-5)


def test_the_square_mask_of_chatglm_6b_s_rows_is_the_familys_own(tmp_path, caplog):
    """MindFormers' rows of ChatGLM-6B, padded, with the mask of each: its cell's loss, which makes that itself. A file
    has both kinds of places, too."""
    from mindspore.dataset import GeneratorDataset

    model, tokenizer = AutoModel.from_pretrained("glm_tiny").set_train(), pet.AutoTokenizer.from_pretrained("glm_tiny")
    messages = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "a grey shirt"}]
    ids, learnt = tokenizer.example(messages)
    labels = [one if mark else -100 for one, mark in zip(ids, learnt, strict=True)][1:] + [-100]
    row = [np.int32([*ids, *[tokenizer.pad_token_id] * 3]), np.int32([*labels, *[-100] * 3])]
    masked = np.triu(np.ones((len(row[0]),) * 2, np.int32), 1)
    masked[:, : ids.index(tokenizer.bos_token_id)] = 0
    named = {
        "input_ids": row[0],
        "labels": row[1],
        "attention_mask": masked[None],
        "position_ids": np.stack([row[0]] * 2),
    }
    writer = FileWriter(str(tmp_path / "rows.mindrecord"))
    writer.add_schema(
        {name: {"type": "int32", "shape": [-1]} for name in ("input_ids", "labels")}
        | {name: {"type": "int32", "shape": list(named[name].shape)} for name in ("attention_mask", "position_ids")},
        "rows",
    )
    writer.write_raw_data([named])
    writer.commit()
    data = GeneratorDataset([(*row, masked)], ["input_ids", "labels", "attention_mask"]).batch(1)
    expected = pytest.approx(float(model(*(one[None] for one in row))), rel=1e-5)
    for given in (data, str(tmp_path / "rows.mindrecord")):
        assert Trainer(model=model, eval_dataset=given, args={"batch_size": 1}).evaluate()["loss"] == expected
        assert "attention_mask says who sees whom, which the model's family does" in caplog.text
        caplog.clear()
    masked[6, 2] = 1  # a token that a later one does not see
    data = GeneratorDataset([(*row, masked)], ["input_ids", "labels", "attention_mask"]).batch(1)
    with pytest.raises(InputError, match="attention_mask hides tokens from later ones"):
        Trainer(model=model, eval_dataset=data, args={"batch_size": 1}).evaluate()


def test_pretraining_on_ids_needs_no_tokenizer(tmp_path, rows, caplog):
    """A published file of pre-training names a size, whose vocabulary MindFormers does not read for MindRecord."""
    section = {"type": "LlamaConfig", "hidden_size": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 256}
    loader = {"type": "MindDataset", "dataset_dir": in_a_file(rows(0))}
    data = {"data_loader": loader, "input_columns": ["input_ids"]}
    job = {
        "run_mode": "train",
        "output_dir": str(tmp_path / "run"),
        "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "llama2_7b"},
        "runner_config": {"epochs": 1, "batch_size": 2},
        "optimizer": {"type": "AdamW", "learning_rate": 1e-3},
        "model": {"model_config": {**section, "seq_length": 11}, "arch": {"type": "LlamaForCausalLM"}},
        **dict.fromkeys(("train_dataset", "eval_dataset"), data),
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert Trainer(recipe=tmp_path / "job.yaml").train()["steps"] == 2
    assert "tokenizer 'llama2_7b'" in caplog.text and "the rows are token ids" in caplog.text
    assert (tmp_path / "run/model/model.safetensors").is_file()
    assert Trainer(recipe=tmp_path / "job.yaml").evaluate(str(tmp_path / "run"))["loss"] > 0
    (tmp_path / "rows.txt").write_text("a text")
    with pytest.raises(InputError, match="tokenizer 'llama2_7b'"):
        tokenizer_for_data(load_any(tmp_path / "job.yaml", {"data.train": [str(tmp_path / "rows.txt")]}))
