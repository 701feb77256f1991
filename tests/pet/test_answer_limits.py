"""Answers without a limit of their own are as long as the base's generation_config.json says, through every door."""

from __future__ import annotations

import io
import json
import shutil

import pytest

import pet
from pet.cli.main import main
from pet.names import find_model
from pet.recipe.training import EVALUATED_TOKENS, Generation
from pet.train.evaluate import Answers

QUESTION = "Say hello."


@pytest.fixture
def base(tmp_path):
    """A bundled base whose answers have no end, with such a generation_config.json."""

    def made(**values):
        directory = tmp_path / "base"
        shutil.copytree(find_model("llama_tiny"), directory, dirs_exist_ok=True)
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": None, **values}))
        return directory

    return made


@pytest.fixture(autouse=True)
def no_end(monkeypatch):
    """So that only a limit ends an answer."""
    for place in ("pet.text_generation", "pet.train.evaluate"):
        monkeypatch.setattr(f"{place}.ends_of", lambda model, tokenizer: [])


def lengths(directory, monkeypatch, capsys) -> dict[str, int]:
    """The number of new tokens by door."""
    model = pet.AutoModel.from_pretrained(directory)
    tokenizer = pet.AutoTokenizer.from_pretrained(directory)
    found, generate = [], type(model).generate

    def noted(self, ids, *arguments, **settings):
        answer = generate(self, ids, *arguments, **settings)
        found.append(answer.shape[1] - len(ids[0]))
        return answer

    monkeypatch.setattr(type(model), "generate", noted)
    prompt = tokenizer.prompt([{"role": "user", "content": QUESTION}])
    model.generate([prompt])
    pet.pipeline(model=model, tokenizer=tokenizer, chat=True)(QUESTION)
    answers = Answers(model, tokenizer, [], Generation())
    answers.write([prompt])
    answers = Answers(model, tokenizer, [], Generation().in_evaluations())
    answers.write([prompt])
    assert main(["predict", "--model", str(directory), "--input", QUESTION]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUESTION}\n"))
    assert main(["chat", "--model", str(directory)]) == 0
    capsys.readouterr()
    doors = ("generate", "pipeline", "answers", "evaluation", "predict", "chat")
    assert len(found) == len(doors)
    return {**dict(zip(doors, found, strict=True)), "room": model.room - len(prompt), "prompt": len(prompt)}


def test_new_tokens(base, monkeypatch, capsys, caplog):
    found = lengths(base(max_new_tokens=5), monkeypatch, capsys)
    assert {found.pop(name) for name in ("generate", "pipeline", "answers", "predict", "chat")} == {5}
    assert found["evaluation"] == EVALUATED_TOKENS
    assert "is full" not in caplog.text


def test_a_length_counts_the_prompt(base, monkeypatch, capsys):
    found = lengths(base(max_length=90), monkeypatch, capsys)
    expected = {90 - found["prompt"]}
    assert {found[name] for name in ("generate", "pipeline", "answers", "predict", "chat")} == expected


@pytest.mark.parametrize("limit", ({"max_new_tokens": 10**6}, {"max_length": 10**6}))
def test_a_limit_beyond_the_context_ends_with_it(limit, base, monkeypatch, capsys):
    found = lengths(base(**limit), monkeypatch, capsys)
    assert {found[name] for name in ("generate", "pipeline", "answers", "predict", "chat")} == {found["room"]}
