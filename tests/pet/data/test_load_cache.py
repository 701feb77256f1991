"""The cache of tokenised samples: when it is used, made again, shared or done without."""

import errno
import gzip
import importlib
import importlib.util
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from letter_samples import CHAT, some_rows, spelled
from waiting import HANGING

from model_zoo import atomic
from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.data import (
    cache as cache_module,
    encode,
    load_dataset,
)
from pet.names import bundled_models


@pytest.fixture
def tokenised(monkeypatch):
    """How often rows were tokenised, rather than taken from the cache."""
    calls = []
    original = cache_module.write_cache
    monkeypatch.setattr(cache_module, "write_cache", lambda *given: calls.append(given) or original(*given))
    return calls


def test_the_cache_is_used_for_the_same_content_tokenizer_and_settings(
    write, new_letters, settings, tokenised, tmp_path
):
    path = write("rows.jsonl", CHAT * 3)
    first = load_dataset(path, new_letters(), settings=settings())
    assert isinstance(first.tokens, np.memmap)

    def made_again(path=path, tokenizer=None, **changes):
        before = len(tokenised)
        dataset = load_dataset(path, tokenizer or new_letters(), settings=settings(**changes))
        assert dataset.where(0) == f"{path}:1"
        return len(tokenised) - before

    assert made_again() == 0
    assert made_again(packing="none", shuffle=False, workers=0, seed=9) == 0
    assert made_again(path=write("elsewhere/rows.jsonl", CHAT * 3)) == 0
    assert made_again(train_on="last") == 1
    assert made_again(max_length=11) == 1
    assert made_again(system="x") == 1
    assert made_again(tokenizer=new_letters("2")) == 1
    assert made_again(path=write("rows.jsonl", CHAT * 4)) == 1
    again = load_dataset(write("rows.jsonl", CHAT * 3), new_letters(), settings=settings())
    assert spelled(again) == spelled(first) and again.counts == first.counts and len(tokenised) == 6

    def one(columns):
        return [[columns]]

    def other(columns):
        return []

    digests = {cache_module.settings_digest(new_letters(), settings(conversations=each)) for each in (None, one, other)}
    assert len(digests) == 3


def test_parts_of_other_paths_and_files_of_another_kind_are_other_samples(write, letters, settings):
    for name in "ab":
        path = write(f"set/{name}.jsonl", [{"text": name * 3}] * 4)
    assert len(load_dataset(path.parent, letters, settings=settings(rows=[":3"]))) == 3
    files = sorted(path.parent.iterdir())
    assert len(load_dataset(files, letters, settings=settings(rows=[":3"]))) == 6, "of each"
    content = gzip.compress(b'{"text": "abc"}')
    read = [load_dataset(write(f"rows.{kind}.gz", content), letters, settings=settings()) for kind in ("txt", "jsonl")]
    assert [spelled(one)[0][0] for one in read] == ['<{"text": "abc"}>', "<abc>"]


def test_an_objective_is_known_by_its_module(tmp_path, monkeypatch):
    """What reads the rows may call what stands beside it."""
    found = set()
    for change in ("strip", "lower"):
        text = f"def clean(text):\n    return text.{change}()\n\n\ndef read(columns):\n    return clean(columns)\n"
        (tmp_path / "reading_rows.py").write_text(text)
        spec = importlib.util.spec_from_file_location("reading_rows", tmp_path / "reading_rows.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "reading_rows", module)
        spec.loader.exec_module(module)
        found.add(cache_module.source_of(module.read))
    assert len(found) == 2


@pytest.mark.parametrize("damage", ["flip", "shorten", "remove", "meta", "field", "deep", "count", "said"])
def test_a_damaged_cache_is_made_again_with_one_warning(write, letters, settings, tokenised, tmp_path, caplog, damage):
    path = write("rows.jsonl", CHAT * 3)
    first = spelled(load_dataset(path, letters, settings=settings()))
    (directory,) = [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]
    tokens, meta = directory / "tokens.bin", directory / "meta.json"
    if damage == "flip":
        content = bytearray(tokens.read_bytes())
        content[len(content) // 2] ^= 1
        tokens.write_bytes(content)
    elif damage == "shorten":
        tokens.write_bytes(tokens.read_bytes()[:-4])
    elif damage == "remove":
        tokens.unlink()
    elif damage == "meta":
        meta.write_text(meta.read_text()[:20])
    elif damage == "deep":
        meta.write_text("[" * 100_000)
    elif damage in ("count", "said"):
        content = json.loads(meta.read_text())
        content["counts"]["samples"] = ""
        meta.write_text(json.dumps({**content, "said": []} if damage == "said" else content))
    else:
        meta.write_text(json.dumps({"parts": {}}))
    with caplog.at_level(logging.WARNING):
        assert spelled(load_dataset(path, letters, settings=settings())) == first
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert "damaged cache" in caplog.text and len(tokenised) == 2
    caplog.clear()
    assert spelled(load_dataset(path, letters, settings=settings())) == first
    assert len(tokenised) == 2 and not caplog.records


def test_workers_end_before_an_error_of_writing_is_told(write, letters, settings, monkeypatch):
    """Whatever still held their generator ended it later, in one of the threads that it waits for."""
    ended = []

    def endless(rows, encoder, progress):
        try:
            yield from iter(list, 0)
        finally:
            ended.append(True)

    def disk_full(directory, chunks, files):
        next(chunks)
        raise OSError("full")

    monkeypatch.setattr(encode, "encode_rows", endless)
    monkeypatch.setattr(cache_module, "write_cache", disk_full)
    with pytest.raises(OSError, match="full") as caught:
        load_dataset(write("rows.jsonl", CHAT), letters, settings=settings())
    assert ended and caught.tb is not None, "which holds the generator"


@pytest.mark.parametrize(
    ("streaming", "said"),
    [
        (False, ["tokenising: 512 rows so far", "tokenising: 600 rows so far"]),
        (True, ["reading rows.jsonl: 1 rows so far"]),
    ],
)
def test_without_a_terminal_lines_say_how_far_it_is(write, letters, settings, monkeypatch, capsys, streaming, said):
    monkeypatch.setattr("pet.data.encode.LINE_EVERY", 0)
    path = write("rows.jsonl", [{"prompt": "a", "completion": "b"}] * 600)
    load_dataset(path, letters, settings=settings(streaming=streaming))
    assert capsys.readouterr().err.splitlines()[: len(said)] == said


def test_a_file_that_grows_while_it_is_read_is_an_error(write, letters, settings, monkeypatch):
    """Its rows would be kept under the digest of a part of them."""
    path = write("rows.jsonl", CHAT)
    digest = cache_module.content_digest

    def and_then_written(files):
        try:
            return digest(files)
        finally:
            write("rows.jsonl", CHAT * 2)

    monkeypatch.setattr(cache_module, "content_digest", and_then_written)
    with pytest.raises(InputError, match=r"rows\.jsonl: was written to while it was read; start again"):
        load_dataset(path, letters, settings=settings())
    monkeypatch.undo()
    write("rows.jsonl", CHAT)
    assert len(load_dataset(path, letters, settings=settings())) == 1


def test_a_cache_directory_that_cannot_be_written(write, letters, caplog, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        dataset = load_dataset(write("rows.jsonl", CHAT), letters, settings={"cache_dir": str(tmp_path / "file/cache")})
    assert len(dataset) == 1 and "cannot be written" in caplog.text


class Full(io.BytesIO):
    """A file on a disk that takes no more."""

    def write(self, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_full_cache_directory_is_as_one_that_cannot_be_written(
    write, letters, settings, tmp_path, monkeypatch, caplog, meanwhile, streaming
):
    place, temporary = tmp_path / "cache", tempfile.TemporaryFile

    def opened(path, mode="r", *buffering, **options):
        full = Path(path).is_relative_to(place) and mode == "wb"
        return Full() if full else open(path, mode, *buffering, **options)

    if meanwhile:
        for module in (cache_module, atomic):
            monkeypatch.setattr(module, "open", opened, raising=False)
    else:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Full() if dir == place else temporary(dir=dir))
    path = write("rows.jsonl", CHAT * 3)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = load_dataset(path, letters, settings=settings(streaming=streaming))
            assert (found.rows if streaming else len(found)) == 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{place}: cannot be written (the disk is full); tokenised data goes to ")
    assert not [one for one in place.iterdir() if one.suffix != ".lock"]


def test_the_users_cache_directory_is_private(tmp_path, monkeypatch):
    """Whatever the umask says; else kernels are not kept there, as others of the group could put some there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0o002)
    try:
        directory = cache_module.writable_directory(None)
    finally:
        os.umask(before)
    assert directory.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "~")  # what becomes of the home of a user whom the system does not know
    assert cache_module.writable_directory(None).name.startswith("mindspore-pet-")


def test_a_directory_instead_of_the_cache_is_gone_with_its_process(write, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "temporary").mkdir()
    arguments = [write("rows.jsonl", CHAT), tmp_path / "file/cache", bundled_models()["llama_tiny"]]
    command = [sys.executable, "-c", ELSEWHERE, *arguments]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert str(tmp_path / "temporary" / "mindspore-pet-") in ended.stderr
    assert not list((tmp_path / "temporary").glob("mindspore-pet-*"))


@pytest.mark.parametrize("template", [None, "{prompt}:"])
def test_a_row_of_answers_of_weight_0_alone_is_left_out(write, settings, template):
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    rows = [{"messages": [question, answer]}] * 2 + [{"messages": [question, {**answer, "weight": 0}]}]
    dataset = load_dataset(write("rows.jsonl", rows), tokenizer, settings=settings(template=template))
    assert len(dataset) == 2 and dataset.counts.dropped_unlabelled == 1


ELSEWHERE = """
import sys
import tracemalloc
from model_zoo.tokenizers import AutoTokenizer
from pet.data import load_dataset

path, cache, tokenizer = sys.argv[1:]
dataset = load_dataset(path, AutoTokenizer.from_pretrained(tokenizer), settings={"cache_dir": cache})
print(len(dataset), dataset.tokens.sum())
"""


def test_processes_that_start_together_share_one_cache(write, fixtures, tmp_path):
    command = [sys.executable, "-c", ELSEWHERE, write("rows.jsonl", CHAT * 200), tmp_path / "cache"]
    processes = [
        subprocess.Popen([*map(str, command), str(fixtures / "tok_chatglm1")], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    found = {process.communicate(timeout=HANGING)[0] for process in processes}
    assert len(found) == 1 and found.pop().startswith("200 ")
    assert len([entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]) == 1


def test_a_row_is_tokenised_once_and_never_again(write, fixtures, settings, monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_chatglm1")
    path = write("rows.jsonl", some_rows(300))
    seen, example = [], tokenizer.example
    monkeypatch.setattr(tokenizer, "example", lambda *given, **more: seen.append(given) or example(*given, **more))
    dataset = load_dataset(path, tokenizer, settings=settings(workers=0))
    first = len(seen)
    assert load_dataset(path, tokenizer, settings=settings(workers=0)).counts == dataset.counts
    second = len(seen) - first  # whatever tells the tokenizer from another one
    assert dataset.counts.rows == first - second == 300 and second <= 1


def test_a_changed_part_of_a_mindrecord_set_is_noticed(letters, settings, tmp_path):
    from mindspore.mindrecord import FileWriter

    def store(last):
        writer = FileWriter(str(tmp_path / "set.mindrecord"), shard_num=2, overwrite=True)
        writer.add_schema({"text": {"type": "string"}}, "rows")
        writer.write_raw_data([{"text": "aaaa"}, {"text": "bbbb"}, {"text": "cccc"}, {"text": last}])
        writer.commit()
        dataset = load_dataset(tmp_path / "set.mindrecord0", letters, settings=settings())
        return sorted(text for _, text in spelled(dataset))

    assert store("dddd") == ["aaaa>", "bbbb>", "cccc>", "dddd>"]
    assert store("eeee") == ["aaaa>", "bbbb>", "cccc>", "eeee>"]


def test_a_killed_write_leaves_nothing_behind(write, letters, settings, tmp_path, monkeypatch):
    path = write("rows.jsonl", CHAT)
    load_dataset(path, letters, settings=settings())
    (directory,) = [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]
    half = directory.with_name(f".{directory.name}.unfinished-x")
    directory.rename(half)
    assert len(load_dataset(path, letters, settings=settings())) == 1
    assert directory.is_dir() and not half.exists()
