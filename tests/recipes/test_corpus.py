"""The generator's bytes, and what the tuning set promises of itself."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

WORD = re.compile("[A-Za-z]+|[\u4e00-\u9fff]|[^A-Za-z ]")
ROOT = Path(__file__).resolve().parents[2]
CORPUS, DATA, BASES = (ROOT / "recipes" / name for name in ("corpus", "data", "bases"))


@pytest.fixture(scope="module")
def generator():
    """The generator's modules, which import one another as scripts do."""
    sys.path.insert(0, str(CORPUS))
    try:
        import generate

        yield generate
    finally:
        sys.path.remove(str(CORPUS))


@pytest.fixture(scope="module")
def bundled(generator) -> dict[str, str]:
    return generator.files()


def rows(text: str) -> list:
    return [json.loads(line) for line in text.splitlines()]


def test_the_bundled_files_are_what_the_generator_writes(bundled):
    stored = {str(path.relative_to(DATA)) for path in DATA.rglob("*") if path.is_file()} - {"README.md"}
    assert stored == set(bundled)
    for name, text in bundled.items():
        assert (DATA / name).read_bytes() == text.encode(), name


def test_the_tokenizers_were_made_from_this_corpus(generator):
    """Whoever changes the generator trains the tokenizers again; whoever changes their files says from what."""
    import train_tokenizers

    recorded = json.loads((BASES / train_tokenizers.RECORD).read_text("utf-8"))
    pieces = train_tokenizers.units(recorded["seed"])
    assert recorded == train_tokenizers.record(BASES, recorded["seed"], pieces)
    assert {name.partition("/")[0] for name in recorded["files"]} == set(train_tokenizers.SIZES)
    assert train_tokenizers.digest([*pieces, "more"]) != recorded["input"]


def test_the_command_writes_the_same_bytes_each_time(tmp_path):
    """Known digests: the sequence of choices may depend neither on the Python version nor on hash order."""
    for directory in ("one", "two"):
        command = [sys.executable, str(CORPUS / "generate.py"), "--rows", "50", "--seed", "7"]
        subprocess.run([*command, "--output", str(tmp_path / directory)], check=True, capture_output=True)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for name in files:
        first = (tmp_path / "one" / name).read_bytes()
        assert first == (tmp_path / "two" / name).read_bytes(), name
        digest.update(first)
    assert digest.hexdigest() == "6e27efdcdc458715e835571d68eb480fe30051916230884e01753167acedff28"


def test_another_seed_writes_another_corpus(generator):
    assert (
        generator.files(seed=1, rows=20)["pretrain/train.jsonl"]
        != generator.files(seed=2, rows=20)["pretrain/train.jsonl"]
    )


def test_held_out_products_are_new(bundled):
    def products(part):
        contents = [row["content"] for row in rows(bundled[f"adgen/{part}.jsonl"]) if "#" in row["content"]]
        return [tuple(sorted(content.split("*"))) for content in contents]

    train, held_out = products("train"), products("held_out")
    assert len(train) > 200 and len(held_out) > 50
    assert len(set(train)) == len(train) and not set(train) & set(held_out)


def test_held_out_questions_ask_for_known_facts_in_other_words(bundled):
    train = {row["content"]: row["summary"] for row in rows(bundled["adgen/train.jsonl"]) if "#" not in row["content"]}
    facts = {row["content"]: row["summary"] for row in rows(bundled["adgen/facts.jsonl"])}
    assert not set(train) & set(facts)
    assert set(facts.values()) == set(train.values())
    held_out = {row["content"]: row["summary"] for row in rows(bundled["adgen/held_out.jsonl"])}
    assert facts.items() <= held_out.items()


def test_the_base_never_hears_of_the_new_shop(bundled, generator):
    import world

    pretraining = bundled["pretrain/train.jsonl"] + bundled["pretrain/held_out.jsonl"]
    assert world.NEW_SHOP.zh not in pretraining and world.NEW_SHOP.en not in pretraining
    known = world.shop_facts()
    for relation in world.RELATIONS:
        assert relation.new not in {known[shop.zh, relation.name] for shop in world.SHOPS}, relation.name
        assert relation.new.zh in pretraining and relation.new.en in pretraining, relation.name


def test_the_house_style_is_not_in_the_corpus(bundled):
    pretraining = bundled["pretrain/train.jsonl"] + bundled["pretrain/held_out.jsonl"]
    for row in rows(bundled["adgen/train.jsonl"]):
        assert row["summary"] not in pretraining


def test_every_word_of_the_tuning_set_is_in_the_corpus(bundled):
    """LoRA on attention alone can only teach new uses of known words."""
    pretraining = bundled["pretrain/train.jsonl"]
    text = " ".join(row["content"] + " " + row["summary"] for row in rows(bundled["adgen/train.jsonl"]))
    assert set(WORD.findall(text)) - set(WORD.findall(pretraining)) == set()


def test_one_row_in_every_format(bundled):
    few = rows(bundled["formats/adgen.jsonl"])
    alpaca = json.loads(bundled["formats/alpaca.json"])
    assert [row["output"] for row in alpaca] == [row["summary"] for row in few]
    assert bundled["formats/text.txt"].splitlines() == [row["summary"] for row in few]
    chat = rows(bundled["formats/chat.jsonl"])
    sharegpt = json.loads(bundled["formats/sharegpt.json"])
    assert [[turn["value"] for turn in talk["conversations"]] for talk in sharegpt] == [
        [message["content"] for message in talk["messages"]] for talk in chat
    ]
