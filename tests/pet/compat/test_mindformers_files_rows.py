"""Rows, prompts and loaders of MindFormers' job files."""

from __future__ import annotations

import pytest

from pet.compat.mindformers import AutoTokenizer, Trainer, TrainingArguments
from pet.compat.yaml_files import load_any


def test_the_columns_of_the_loader(published):
    loader = {"type": "ADGenDataLoader", "dataset_dir": "x.json", "origin_columns": ["PROMPT", "ANSWER"], "version": 2}
    recipe = load_any(published(train_dataset__data_loader=loader), ["model.path=llama_tiny"], check_files=False)
    assert recipe.data.columns == {"prompt": "PROMPT", "answer": "ANSWER"}
    held_out = {**loader, "dataset_dir": "y.json", "origin_columns": ["ask", "reply"]}
    both = published(train_dataset__data_loader=loader, eval_dataset__data_loader=held_out)
    data = load_any(both, ["model.path=llama_tiny"], check_files=False).data
    assert data.columns == {"prompt": "PROMPT", "answer": "ANSWER"}
    assert data.eval_columns == {"prompt": "ask", "answer": "reply"}


PIPELINE = {"use_parallel": True, "parallel_config": {"data_parallel": 2, "pipeline_stage": 2, "micro_batch_num": 2}}


@pytest.mark.parametrize(
    ("changes", "rows", "accumulation"),
    [
        ({"micro_batch_interleave_num": 2}, 2, 1),  # of one process it does nothing
        ({"micro_batch_interleave_num": 2, "use_parallel": True}, 2 * 8 * 2, 1),
        ({**PIPELINE, "micro_batch_interleave_num": 2, "runner_config__gradient_accumulation_steps": 4}, 16, 1),
        ({"use_parallel": True, "runner_config__gradient_accumulation_steps": 4}, 2 * 8, 4),
    ],
)
def test_the_rows_of_a_step_are_mindformers(published, changes, rows, accumulation):
    """Its trainer's global batch: batch_size × data_parallel × micro_batch_interleave_num, times micro_batch_num in a
    pipeline, which leaves gradient_accumulation_steps out."""
    train = load_any(published(**changes), check_files=False).train
    assert (train.batch_size, train.accumulation) == (rows, accumulation)


def test_rows_of_arguments_are_mindformers(tmp_path):
    arguments = {
        "batch_size": 2,
        "per_device_train_batch_size": 5,
        "use_parallel": True,
        "data_parallel": 4,
        "micro_batch_interleave_num": 2,
    }
    assert Trainer(model="llama_tiny", args=TrainingArguments(**arguments)).recipe("train").train.batch_size == 16
    trainer = Trainer(model="llama_tiny", args=TrainingArguments(batch_size=2, gradient_accumulation_steps=4))
    trainer.set_parallel_config(data_parallel=1, pipeline_stage=2, micro_batch_num=2)
    assert (trainer.recipe("train").train.batch_size, trainer.recipe("train").train.accumulation) == (4, 1)
    own = tmp_path / "own.yaml"  # a recipe accumulates over pipelines, too
    own.write_text("model: {path: llama_tiny}\nparallel: {pipeline: 2, micro_batches: 2}\n")
    args = {"use_parallel": True, "gradient_accumulation_steps": 4}
    assert Trainer(recipe=own, args=args).recipe("train").train.accumulation == 4


VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. USER: Below is an instruction that describes a task. Write a response "
    "that appropriately completes the request.\n\n### Instruction:\nsay a\n\n### Response: ASSISTANT:"
)


def test_the_prompt_of_alpacas_handler(published, tmp_path):
    """The ids and labels are those of release 1.6 for LLaMA: the text as a whole, of which the answer is learnt."""
    from pet.data import DataSettings, load_dataset

    (tmp_path / "rows.json").write_text('[{"instruction": "say a", "input": "", "output": "a red shirt"}]')
    handler = {"type": "AlpacaInstructDataHandler", "seq_length": 60}
    packed = [handler, {"type": "PackingHandler"}]
    for given, packing, base, space in ((handler, "longest", "llama_tiny", ""), (packed, "pack", "gpt_tiny", " ")):
        loader = {"type": "CommonDataLoader", "data_files": str(tmp_path / "rows.json"), "handler": given}
        file = published(train_dataset={"data_loader": loader}, load_checkpoint=base, model={"model_config": {}})
        data = load_any(file, check_files=False).data
        assert (data.template_without_input.format(prompt="say a"), data.packing) == (VICUNA + space, packing)
        assert "provides further context" in data.template and "### Input:\n{input}\n\n### Response:" in data.template
        if not space:
            tokenizer = AutoTokenizer.from_pretrained("llama_tiny")
            ids, learnt = load_dataset(data.train[0], tokenizer, settings=DataSettings.of(data, max_length=400))[0][:2]
            assert list(ids) == tokenizer(f"{VICUNA} a red shirt</s>")["input_ids"]
            assert tokenizer.decode([one for one, label in zip(ids, learnt, strict=True) if label]) == "a red shirt</s>"


def test_loaders_of_texts_name_their_column_and_their_prompt(published, rows):
    """Rows of these loaders have no labels, so all of a text is learnt."""
    base = {"load_checkpoint": "llama_tiny", "model": {"model_config": {}}}

    def data(**loader):
        given = {"data_loader": {"dataset_dir": rows, "column_names": ["input_ids"], "max_length": 99, **loader}}
        return load_any(published(train_dataset=given, **base), check_files=False).data

    text = data(type="TrainingDataLoader", text_col="content")
    assert (text.columns, text.format, text.packing, text.max_length) == ({"text": "content"}, "text", "pack", 99)
    asked = data(type="SFTDataLoader", dataset_name="alpaca")
    assert asked.template_without_input.endswith("### Instruction:\n{prompt}\n\n### Response:\n")
    assert (asked.train_on, asked.packing) == ("all", "longest")


def test_so_many_rows_are_measured(published, rows):
    loader = {"type": "MindDataset", "dataset_dir": rows, "num_samples": 3}
    assert load_any(published(eval_dataset={"data_loader": loader}), check_files=False).data.eval_rows == [":3"]
    assert (
        load_any(published(eval_dataset={"data_loader": loader}, do_eval=False), check_files=False).data.eval_rows
        is None
    )
