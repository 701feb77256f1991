"""What `pet data` prints says what the model will see."""

import io

import numpy as np
import pytest

from pet.data import DataSettings, TokenDataset, describe, load_dataset, show
from pet.data.show import histogram
from pet.recipe.classes import rows_of


@pytest.fixture
def dataset(write, letters, tmp_path):
    rows = [{"prompt": "ask\x1b[31m", "completion": "an\nswer"}, {"prompt": "b" * 30, "completion": "c"}]
    settings = DataSettings(max_length=20, cache_dir=str(tmp_path / "cache"))
    return load_dataset(write("rows.jsonl", rows), letters, settings=settings), settings


def test_tokens_are_marked_by_whether_they_are_learnt(dataset, letters):
    data, settings = dataset
    text = describe(data, letters, settings=settings)
    assert "<s>ask\\x1b[31m<a>[[an↵\nswer</s>]]" in text and "\x1b" not in text
    assert "rows.jsonl:1 · 18 tokens, 8 learnt" in text
    assert "1 samples from 2 rows; 1 cut, 0 dropped as too long, 1 without an answer to learn from" in text
    coloured = describe(data, letters, settings=settings, colour=True)
    assert "\x1b[32man↵\nswer</s>\x1b[0m" in coloured and "\x1b[31m" not in coloured and "[[" not in coloured


def test_columns_that_nobody_reads_are_listed(write, letters, tmp_path):
    rows = [{"prompt": "a", "completion": "b", "A": "c\x1b", **{f"n{number}": 1 for number in range(20)}}] * 3
    settings = DataSettings(cache_dir=str(tmp_path / "cache"))
    for _ in range(2):  # in the cache as well
        data = load_dataset(write("rows.jsonl", rows), letters, settings=settings)
        text = describe(data.select([0, 2]), letters, settings=settings)
        assert f"  columns not read: A, {', '.join(f'n{number}' for number in range(11))} and 9 more\n" in text


def test_padding_of_each_way(dataset, letters):
    data, settings = dataset
    text = describe(data, letters, settings=settings, batch_size=2)
    lines = {line.split()[0]: line for line in text.splitlines() if " shape" in line}
    assert set(lines) == {"pack", "buckets", "longest", "none"}
    assert "55.0% in 1 step, 1 shape  ← chosen" in lines["pack"]  # 18 of 2 · 20


def test_histogram_counts_every_sample():
    lengths = np.random.default_rng(0).integers(1, 300, 500)
    lines = histogram(lengths).splitlines()
    assert sum(int(line.split()[3]) for line in lines) == 500
    first = lines[0].split()
    assert int(first[3]) == ((lengths >= int(first[0])) & (lengths <= int(first[2]))).sum()
    assert histogram(np.array([1])).split()[:4] == ["1", "…", "1", "1"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colour_only_where_it_is_wanted(dataset, letters, monkeypatch):
    data, settings = dataset

    def printed(stream):
        show(data, letters, settings=settings, stream=stream)
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[32m" in printed(Terminal())
    assert "\x1b" not in printed(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(Terminal())


def test_nothing_and_streams(write, letters, tmp_path):
    assert describe(TokenDataset.from_samples([]), letters).startswith("no sample")
    settings = DataSettings(streaming=True, stream_window=3, cache_dir=str(tmp_path / "cache"))
    data = load_dataset(write("rows.jsonl", [{"text": "abc"}] * 7), letters, settings=settings)
    text = describe(data, letters)
    assert text.startswith("7 rows in 3 windows; of the first window:") and "<s>[[abc</s>]]" in text


@pytest.fixture
def pairs(write, letters, tmp_path):
    rows = [
        {"prompt": "ask", "chosen": "a red cup", "rejected": "a blue cup"},
        {"prompt": "q", "chosen": "x", "rejected": "y"},
    ]
    settings = DataSettings(max_length=40, cache_dir=str(tmp_path / "cache"), **rows_of("dpo"))
    return load_dataset(write("pairs.jsonl", rows), letters, settings=settings), settings


def test_a_pair_is_shown_once_with_what_differs(pairs, letters):
    data, settings = pairs
    text = describe(data, letters, settings=settings, samples=1)
    assert "pairs.jsonl:1 · " in text and "pairs.jsonl:2" not in text
    assert "\n<s>ask<a>\n+ a red cup</s>\n- a blue cup</s>\n" in text and "\x1b" not in text
    coloured = describe(data, letters, settings=settings, colour=True)
    assert "+ a \x1b[32mred\x1b[0m cup</s>\n- a \x1b[31mblue\x1b[0m cup</s>\n" in coloured
    assert "\x1b[2m<s>ask<a>\x1b[0m\n" in coloured


def test_undesirable_answers_are_called_so(write, letters, tmp_path):
    rows = [{"prompt": "ask", "completion": text, "label": label} for text, label in (("yes", True), ("no", False))]
    settings = DataSettings(max_length=40, cache_dir=str(tmp_path / "cache"), **rows_of("kto"))
    text = describe(load_dataset(write("labelled.jsonl", rows), letters, settings=settings), letters, settings=settings)
    first, second = (line for line in text.splitlines() if "labelled.jsonl:" in line)
    assert first.endswith("learnt") and second.endswith("learnt, undesirable")


def test_pairs_that_are_the_same_once_cut_are_left_out(write, letters, tmp_path):
    rows = [{"prompt": "ask", "chosen": "a" * 30 + end, "rejected": "a" * 30 + "no"} for end in ("yes", "b")]
    rows += [{"prompt": "ask", "chosen": "", "rejected": "b"}, *[{"prompt": "ask", "chosen": "c", "rejected": "b"}] * 3]
    settings = DataSettings(max_length=20, cache_dir=str(tmp_path / "cache"), **rows_of("dpo"))
    data = load_dataset(write("long.jsonl", rows), letters, settings=settings)
    assert len(data) == 6 and "2 whose answers are the same once cut" in str(data.counts)
    said = "\n".join(data.counts.findings(20))
    assert "2 of 6 rows are left out: cut at data.max_length=20 their answers are the same" in said
    assert "1 of 6 rows are left out: their answer or text is empty" in said
