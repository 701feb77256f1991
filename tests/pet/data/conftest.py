"""A tokenizer of a few lines, so that these tests say exactly which token stands where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pet.data import DataSettings

CONTROL = {0: "<pad>", 1: "<s>", 2: "</s>", 3: "<a>"}


class Decoder:
    def put(self, number: int) -> str:
        return CONTROL.get(number) or chr(number - 10)

    def end(self) -> str:
        return ""


class LetterTokenizer:
    """A token per character (code point + 10); 1 begins, 2 ends, 3 stands before an answer, 0 is padding."""

    pad_token_id, bos_token_id, eos_token_id = 0, 1, 2
    eos_token_ids = (2,)

    def __init__(self, version: str = "1"):
        self.version = version

    def encode(self, text, add_special_tokens=True):
        ids = [ord(character) + 10 for character in text]
        return [1, *ids] if add_special_tokens else ids

    def decode(self, ids, skip_special_tokens=True):
        return "".join(chr(token - 10) for token in ids)

    def stream_decoder(self, skip_special_tokens=True):
        return Decoder()

    def prompt(self, messages):
        return self.example([*messages, {"role": "assistant", "content": ""}])[0][:-1]

    def example(self, messages, train_on="answers"):
        ids, trained = [1], [train_on == "all"]
        last = len(messages) - 1
        for number, message in enumerate(messages):
            answer = message["role"] == "assistant"
            part = self.encode(message["content"], add_special_tokens=False)
            if answer:
                ids.append(3)
                trained.append(train_on == "all")
                part.append(2)
            label = train_on == "all" or (answer and (train_on == "answers" or number == last))
            ids += part
            trained += [label] * len(part)
        return ids, trained

    def save_pretrained(self, directory):
        Path(directory, "letters.json").write_text(json.dumps(self.version))


@pytest.fixture
def letters():
    return LetterTokenizer()


@pytest.fixture
def new_letters():
    """Makes a tokenizer whose files differ with the version given."""
    return LetterTokenizer


@pytest.fixture
def write(tmp_path):
    """Writes a file: text, bytes, or a list of objects as JSON lines; returns its path."""

    def writer(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content), encoding="utf-8")
        return path

    return writer


@pytest.fixture
def settings(tmp_path):
    def make(**changes):
        return DataSettings(cache_dir=str(tmp_path / "cache"), **changes)

    return make
