"""Rows of KeyWordGenDataset: ids and labels are those that MindFormers 1.0 makes of the same files and vocabularies."""

from __future__ import annotations

import json

import pytest

from model_zoo.errors import InputError
from pet.compat import mindformers
from pet.compat.yaml_files import load_any
from pet.data.encode import Encoder
from pet.data.formats import read_file
from pet.data.settings import DataSettings
from pet.train.prepare import load_tokenizer

LETTERS, NUMBERS = "a b c d e f g h i j k l m n o p", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"
JOB = """
run_mode: finetune
load_checkpoint: {model}
trainer: {{type: CausalLanguageModelingTrainer, model_name: {model}}}
train_dataset:
  max_source_length: {source}
  max_target_length: 14
  data_loader:
    {{type: ADGenDataLoader, dataset_dir: train.json, version: {version}, origin_columns: [content, summary]}}
train_dataset_task: {{type: KeyWordGenDataset}}
"""
SIX = [349, 366, 421, 349, 422, 428, 349, 351, 377, 349, 369, 5, 8]
SIX_SAYS = [349, 365, 382, 349, 470, 349, 363, 349, 437, 349, 483, 349, 9]


@pytest.fixture
def samples(tmp_path, fixtures):
    """Of a job file on a vocabulary: the settings, and the samples of one row."""

    def make(model, version, source, name, vocabulary, **more):
        (tmp_path / "train.json").write_text(json.dumps({"content": LETTERS, "summary": NUMBERS}))
        (tmp_path / "job.yaml").write_text(JOB.format(model=model, version=version, source=source))
        recipe = load_any(tmp_path / "job.yaml", check_files=False)
        tokenizer = getattr(mindformers, name).from_pretrained(fixtures / vocabulary)
        encoder = Encoder(tokenizer, DataSettings.of(recipe.data, **more))
        rows = [*read_file(tmp_path / "train.json", problems=[], **encoder.reading(tmp_path / "train.json"))]
        return recipe.data, encoder(rows), tokenizer

    return make


def test_chatglm_6b_is_cut_in_question_and_answer(samples):
    data, found, _ = samples("glm_6b", 1, 12, "ChatGLMTokenizer", "tok_chatglm1")
    ids, learnt = found.samples[0]
    assert ids.tolist() == SIX + SIX_SAYS
    assert learnt.tolist() == [0] * len(SIX) + [1] * len(SIX_SAYS)
    assert (data.max_prompt, data.max_answer, data.template) == (11, 12, None)
    assert found.counts.limited == 1
    assert found.counts.findings(512) == ["1 of 1 rows are cut at data.max_prompt or data.max_answer"]


def test_the_third_version_asks_without_the_models_prompt(samples):
    data, found, tokenizer = samples("glm3_6b", 3, 10, "ChatGLM3Tokenizer", "tok_chatglm2")
    ids, learnt = found.samples[0]
    asked = tokenizer.encode(LETTERS, max_length=10)
    said = tokenizer.encode(NUMBERS, add_special_tokens=False, max_length=14)
    assert ids.tolist() == [*asked, *said, tokenizer.eos_token_id]
    assert learnt.tolist() == [0] * 10 + [1] * 15
    assert (data.max_prompt, data.max_answer, data.max_length, data.template) == (8, 14, 25, "{prompt}")


def test_the_second_version_cuts_the_models_prompt(samples):
    _, found, tokenizer = samples("glm2_6b", 2, 26, "ChatGLM2Tokenizer", "tok_chatglm2")
    ids, learnt = found.samples[0]
    asked = tokenizer.encode(tokenizer.build_prompt(LETTERS), max_length=26)
    said = tokenizer.encode(NUMBERS, add_special_tokens=False, max_length=14)
    assert ids.tolist() == [*asked, *said, tokenizer.eos_token_id]
    assert learnt.sum() == 15


def test_a_limit_that_reaches_nothing_is_an_error(tmp_path):
    text = "model: {path: glm_tiny}\ndata: {train: train.json, max_answer: 4, train_on: all}\n"
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(InputError, match=r"data.max_answer.*does not go with data.train_on: all"):
        load_any(tmp_path / "job.yaml", check_files=False)


def test_the_vocabulary_that_the_data_name_is_the_models(tmp_path, fixtures):
    """ChatGLM2's tokenizer.model alone in a directory, as MindFormers downloads it, says nothing of its family."""
    (tmp_path / "vocabulary").mkdir()
    file = tmp_path / "vocabulary/tokenizer.model"
    file.write_bytes((fixtures / "tok_chatglm2/tokenizer.model").read_bytes())
    named = f"  tokenizer: {{type: ChatGLM2Tokenizer, vocab_file: {file}}}\n  max_source_length"
    job = JOB.format(model="glm2_6b", version=2, source=26)
    (tmp_path / "job.yaml").write_text(job.replace("  max_source_length", named))
    tokenizer = load_tokenizer(load_any(tmp_path / "job.yaml", check_files=False))
    expected = mindformers.ChatGLM2Tokenizer(str(file))
    asked = expected.encode(expected.build_prompt(LETTERS))
    assert tokenizer.prompt([{"role": "user", "content": LETTERS}]) == asked
