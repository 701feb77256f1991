"""Streaming gives every row once, resumes at any batch, and divides over ranks as the Loader does."""

import gc
import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from model_zoo.errors import InputError
from pet.data import (
    DataSettings,
    Loader,
    StreamDataset,
    StreamLoader,
    load_dataset,
    make_loader,
    split_dataset,
    streaming,
)
from pet.data.preferences import pairs
from pet.data.streaming import StreamDataset as Streaming


@pytest.fixture
def stream(write, letters, tmp_path):
    """A stream over two files of 37 and 9 rows, in windows of 10."""
    random = np.random.default_rng(0)
    lines = [
        {"prompt": chr(97 + n % 26) * int(random.integers(1, 9)), "completion": "x" * (1 + n % 5)} for n in range(46)
    ]
    write("set/a.jsonl", lines[:37])
    write("set/b.json", json.dumps(lines[37:], indent=1))

    def opened(cache="cache", **changes):
        chosen = {"streaming": True, "stream_window": 10, "max_length": 20, "cache_dir": str(tmp_path / cache)}
        settings = DataSettings(**{**chosen, **changes})
        return load_dataset(tmp_path / "set", letters, settings=settings)

    return opened


def loader(stream, batch_size=2, **options):
    return make_loader(stream, batch_size, stream.settings, **options)


def same(left, right):
    return left["sample_ids"] == right["sample_ids"] and all(
        np.array_equal(left[name], right[name]) for name in arrays(right)
    )


def arrays(batch):
    return [name for name, value in batch.items() if isinstance(value, np.ndarray)]


def samples(batches):
    return [sample for batch in batches for row in batch["sample_ids"] for sample in row]


@pytest.mark.parametrize("packing", ["pack", "none", "longest", "buckets"])
def test_each_row_once(stream, tmp_path, packing):
    dataset = stream(packing=packing, buckets=[10, 20] if packing == "buckets" else None)
    assert isinstance(dataset, StreamDataset) and dataset.rows == 46 and len(dataset.windows) == 5
    made = loader(dataset)
    assert isinstance(made, StreamLoader)
    wanted = [f"{tmp_path}/set/a.jsonl:{n}" for n in range(1, 38)]
    for epoch in (0, 1):
        batches = list(made.batches(epoch))
        found = samples(batches)
        assert len(set(found)) == len(found) == 46 and set(wanted) < set(found)
        assert {batch["input_ids"].shape for batch in batches} <= set(made.shapes())
        assert [batch.index for batch in batches] == list(range(len(batches)))
        assert made.where(batches[0]) == samples(batches[:1])
    assert samples(made.batches(0)) != found == samples(made.batches(1))


@pytest.mark.parametrize(
    "packing, lengths", [("pack", [150]), ("none", [150]), ("longest", [64, 128, 150]), ("buckets", [90, 150])]
)
def test_shapes_that_may_come(stream, packing, lengths):
    made = loader(stream(packing=packing, max_length=150, buckets=lengths if packing == "buckets" else None))
    assert made.shapes() == [(2, length) for length in lengths]


def test_the_samples_are_those_of_the_whole_dataset(stream, letters, tmp_path):
    dataset = stream()
    whole = load_dataset(tmp_path / "set", letters, settings={"max_length": 20, "cache_dir": str(tmp_path / "c")})
    windows = [dataset.window(number) for number in range(len(dataset.windows))]
    assert np.array_equal(np.concatenate([window.tokens for window in windows]), whole.tokens)
    assert np.array_equal(np.concatenate([window.trained for window in windows]), whole.trained)


def test_a_loader_is_made_with_the_settings_of_its_data(stream):
    data = stream(packing="none", max_length=19)
    made = StreamLoader(data, 2)
    assert made.settings is data.settings and made.shapes() == [(2, 19)]


def test_what_fills_no_step_cannot_be_left_out(stream):
    with pytest.raises(InputError, match=r"data\.drop_last: each window of what streams has a step of its own"):
        loader(stream(drop_last=True))


def test_pairs_share_the_questions_of_their_own_window(write, letters, tmp_path):
    rows = [{"prompt": "q" * (1 + 3 * n % 7), "chosen": "yes", "rejected": "n" * (1 + n % 4)} for n in range(12)]
    own = {"conversations": pairs, "documents": 2, "compares": True, "train_on": "last", "share_question": True}
    how = {"stream_window": 4, "max_length": 20, "packing": "none", "shuffle": False, "cache_dir": str(tmp_path)}
    dataset = load_dataset(write("pairs.jsonl", rows), letters, settings=DataSettings(streaming=True, **own, **how))
    expected = [batch for n in range(3) for batch in Loader(dataset.window(n), 2, dataset.settings).batches()]
    found = list(loader(dataset).batches())
    assert len(found) == len(expected) == 6
    assert all(
        np.array_equal(one[name], other[name])
        for one, other in zip(found, expected, strict=True)
        for name in arrays(one)
    )


@pytest.mark.parametrize("accumulation", [1, 2])
def test_resuming_at_any_batch(stream, accumulation):
    whole = list(loader(stream(cache="one"), accumulation=accumulation).batches(1))
    for start in range(len(whole) + 1):
        # with the steps of earlier windows noted, and in a cache that knows nothing
        for cache in ("one", f"fresh-{start}"):
            rest = list(loader(stream(cache=cache), accumulation=accumulation).batches(1, start=start))
            assert [batch.index for batch in rest] == list(range(start, len(whole)))
            assert all(same(left, right) for left, right in zip(rest, whole[start:], strict=True))


def test_texts_of_many_pieces_fill_as_many_rows_in_every_epoch(write, letters, tmp_path, monkeypatch):
    """Or resuming by the steps of an earlier epoch would begin at another batch."""
    monkeypatch.setattr("pet.data.plan.PACKED_TOGETHER", 8)
    random = np.random.default_rng(0)
    write("set/a.jsonl", [{"text": "x" * int(random.integers(1, 60))} for _ in range(40)])
    how = {"streaming": True, "stream_window": 20, "max_length": 12, "cache_dir": str(tmp_path / "cache")}
    made = make_loader(load_dataset(tmp_path / "set", letters, settings=how), 1, how)
    epochs = [list(made.batches(epoch)) for epoch in range(6)]
    assert {len(epoch) for epoch in epochs} == {made.steps_per_epoch()}
    for number, whole in enumerate(epochs):
        again = made.batches(number, start=len(whole) - 1)
        assert same(next(again), whole[-1]) and next(again, None) is None


def test_every_epoch_has_the_same_processes(stream, monkeypatch):
    """They would have to be started again and again, maybe of another version that was installed meanwhile."""
    monkeypatch.setattr(streaming, "CHUNK", 1)
    # last: a worker imports the tokenizer's module from it, and no package that is installed
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[3])])
    data = stream(workers=2)
    made = loader(data)
    first = samples(made.batches(0))
    processes = data.pool._processes
    assert sorted(samples(made.batches(1))) == sorted(first) == sorted(samples(loader(stream()).batches(0)))
    assert len(processes) == 2 and data.pool._processes is processes
    assert [process.poll() for process in processes] == [None, None]
    del made, data
    gc.collect()
    assert all(process.poll() is not None for process in processes)


def test_resuming_does_not_tokenise_the_windows_before(stream, monkeypatch):
    whole = list(loader(stream()).batches(0))
    taken = []
    original = Streaming.window
    monkeypatch.setattr(Streaming, "window", lambda self, number: taken.append(number) or original(self, number))
    last = next(loader(stream()).batches(0, start=len(whole) - 1))
    assert same(last, whole[-1]) and len(taken) == 1


def test_steps_are_known_after_an_epoch_and_in_the_next_run(stream):
    made = loader(stream())
    assert made.steps_per_epoch() is None and made.batches_per_epoch() is None
    with pytest.raises(TypeError, match="no length"):
        len(made)
    count = sum(1 for _ in made.batches(0))
    assert made.steps_per_epoch() == count == len(made) == len(loader(stream()))
    assert loader(stream(), batch_size=3).steps_per_epoch() is None


def test_a_first_run_counts_epochs_as_later_ones_do(stream):
    """By rows, whose number is known before any window has been counted."""
    first = loader(stream())
    parts = [first.part_of_epoch(0, steps) for steps, _ in enumerate(first.batches(0), 1)]
    assert parts[0] > 0 and parts == sorted(set(parts)) and parts[-1] == 1.0
    later = loader(stream())
    assert parts == [later.part_of_epoch(0, steps) for steps in range(1, len(parts) + 1)]


def test_ranks_share_the_rows_of_one_process(stream):
    alone = list(loader(stream(), batch_size=4).batches(0))
    ranks = [list(loader(stream(), batch_size=2, rank=rank, world_size=2).batches(0)) for rank in range(2)]
    for batch, left, right in zip(alone, *ranks, strict=True):
        for name in arrays(batch):
            assert np.array_equal(np.concatenate([left[name], right[name]]), batch[name])


def test_one_process_may_read_the_rows_of_all(stream):
    share = loader(stream(), batch_size=2, rank=1, world_size=2)
    alone, expected = list(share.alone().batches(0)), list(loader(stream(), batch_size=2).batches(0))
    assert len(alone) == len(expected) and all(map(same, alone, expected))
    assert share.steps_per_epoch() is None  # what was counted are not its own steps


def test_without_shuffling_the_order_is_that_of_the_files(stream, tmp_path):
    found = samples(loader(stream(packing="none", shuffle=False)).batches(0))
    assert found[:37] == [f"{tmp_path}/set/a.jsonl:{n}" for n in range(1, 38)]


def test_what_is_wrong_is_said_before_the_first_batch(stream, write):
    write("set/c.jsonl", '{"text": "a"}\n[]\n')
    with pytest.raises(InputError, match=r"c\.jsonl:2: expected a JSON object"):
        stream()


def test_a_changed_file_is_indexed_again(stream, write):
    assert stream().rows == 46
    write("set/a.jsonl", [{"text": "a"}] * 3)
    assert stream().rows == 12


@pytest.mark.parametrize("damage", ["number", "kind", "cut", "deep"])
def test_a_damaged_index_is_made_again_with_one_warning(stream, tmp_path, caplog, damage):
    first = samples(loader(stream()).batches())
    (notes,) = (tmp_path / "cache").glob("stream-*.json")
    content = json.loads(notes.read_text())
    content["windows"][1][0][2] = 3 if damage == "number" else "3"
    text = {"cut": notes.read_text()[:-9], "deep": "[" * 100_000}.get(damage, json.dumps(content))
    notes.write_text(text)
    assert samples(loader(stream()).batches()) == first
    assert caplog.text.count("damaged index") == 1 and str(notes) in caplog.text
    assert samples(loader(stream()).batches()) == first and caplog.text.count("damaged index") == 1


def test_settings_that_do_not_go_with_streaming(stream):
    with pytest.raises(InputError, match="streaming cannot choose the lengths"):
        stream(packing="buckets")
    with pytest.raises(InputError, match="streaming data cannot be divided"):
        split_dataset(stream(), 0.5)
    with pytest.raises(InputError, match="not known before"):
        loader(stream()).padding()


def test_only_the_first_rows(stream):
    assert stream(max_samples=40).rows == 40 and stream(max_samples=5).rows == 5


def test_a_window_goes_on_in_the_next_file(write, letters, tmp_path):
    """Thousands of small files would each end with a step of padding."""
    for number in range(12):
        write(f"many/{number:02}.jsonl", [{"text": f"{number}-{row}"} for row in range(3)])
    settings = DataSettings(streaming=True, stream_window=10, max_length=20, cache_dir=str(tmp_path / "cache"))
    for _ in range(2):  # the second time by the notes of the first
        dataset = load_dataset(tmp_path / "many", letters, settings=settings)
        assert [sum(rows for *_, rows in spans) for spans in dataset.windows] == [10, 10, 10, 6] and dataset.rows == 36
    found = samples(loader(dataset).batches(0))
    wanted = [f"{tmp_path}/many/{number:02}.jsonl:{row}" for number in range(12) for row in (1, 2, 3)]
    assert sorted(found) == wanted


def test_a_window_of_long_rows_ends_early(stream, monkeypatch):
    monkeypatch.setattr(streaming, "WINDOW_SIZE", 20)
    dataset = stream()
    assert dataset.rows == 46 and len(dataset.windows) > 9
    assert len(samples(loader(dataset).batches(0))) == 46


@pytest.mark.parametrize("change", ["rewritten", "cut off", "empty", "gone"])
def test_a_file_that_changes_while_it_streams_is_an_error(stream, tmp_path, change):
    dataset, path = stream(shuffle=False), tmp_path / "set/a.jsonl"
    batches = loader(dataset).batches(0)
    next(batches)
    if change == "gone":
        path.unlink()
    else:
        text = path.read_text()
        path.write_text({"rewritten": "\n" + text, "cut off": text[:300], "empty": ""}[change])
    with pytest.raises(InputError, match=r"a\.jsonl: (was written to while it was read|is gone since it was read)"):
        list(batches)


def test_a_compressed_file_of_many_windows_is_worth_a_warning(write, letters, tmp_path, caplog):
    path = write("rows.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 40))
    settings = DataSettings(streaming=True, stream_window=1, max_length=20, cache_dir=str(tmp_path / "cache"))
    load_dataset(path, letters, settings=settings)
    assert "rows.jsonl.gz: is unpacked from its beginning for each of its 40 windows" in caplog.text


def test_mindrecord_that_is_read_again_for_many_windows_is_told(tmp_path, letters, caplog):
    """Nothing but its beginning is a place to read from."""
    from mindspore.mindrecord import FileWriter

    path = tmp_path / "rows.mindrecord"
    writer = FileWriter(str(path), 1)
    writer.add_schema({"text": {"type": "string"}}, "rows")
    writer.write_raw_data([{"text": "a"}] * 40)
    writer.commit()
    load_dataset(path, letters, settings={"streaming": True, "stream_window": 1, "cache_dir": str(tmp_path / "cache")})
    assert "rows.mindrecord: is read from its beginning for each of its 40 windows; save it as Parquet" in caplog.text
