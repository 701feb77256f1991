"""MindSpore datasets and indexable datasets of dicts as data."""

import numpy as np
import pytest

from model_zoo.errors import InputError
from pet.data import (
    CollateLoader,
    DataSettings,
    Loader,
    TokenDataset,
    describe,
    from_mindspore,
    load_dataset,
    make_loader,
    mix_dataset,
    split_dataset,
)


def generator_dataset(columns, rows):
    from mindspore.dataset import GeneratorDataset

    return GeneratorDataset(rows, column_names=columns, shuffle=False)


def test_a_mindspore_dataset_of_tokens():
    rows = [(np.arange(9, dtype=np.int32) + n,) for n in range(10)]
    data = generator_dataset(["input_ids"], rows).batch(4)
    loader = make_loader(data, 4, DataSettings(max_length=9, packing="none", shuffle=False))
    assert isinstance(loader, Loader)
    batches = list(loader.batches(0))
    assert [batch["input_ids"].shape for batch in batches] == [(4, 9)] * 3
    found = np.concatenate([batch["input_ids"] for batch in batches])[:10]
    assert np.array_equal(found, np.concatenate([row for (row,) in rows]).reshape(10, 9))
    assert np.array_equal(batches[0]["labels"][:, 1:], found[:4, 1:])
    # rows of seq_len + 1 for a model that holds seq_len
    assert from_mindspore(data, max_length=8).lengths.tolist() == [8] * 10
    # longer ones are divided, not cut
    assert from_mindspore(data, max_length=5).lengths.tolist() == [5, 4] * 10


def test_a_mindspore_dataset_with_labels_and_mask():
    ids, labels, mask = np.array([5, 6, 7, 0]), np.array([-100, 6, 7, -100]), np.array([1, 1, 1, 0])
    for names in (["labels", "attention_mask"], ["label_ids", "input_mask"]):
        data = generator_dataset(["input_ids", *names], [(ids, labels, mask)])
        tokens, trained = from_mindspore(data)[0]
        assert tokens.tolist() == [5, 6, 7] and trained.tolist() == [False, True, True]
    with pytest.raises(InputError, match=r"no column 'input_ids'.*'input_id'"):
        from_mindspore(generator_dataset(["input_id"], [(ids,)]))


class Sentences:
    """Samples of different lengths, as FlagAI's examples have them."""

    def __init__(self, count=11):
        self.rows = [{"input_ids": list(range(10, 12 + n % 4)), "weight": n} for n in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def pad_right(samples):
    ids = [sample["input_ids"] + [0] * (6 - len(sample["input_ids"])) for sample in samples]
    mask = [[1] * len(sample["input_ids"]) + [0] * (6 - len(sample["input_ids"])) for sample in samples]
    return {"input_ids": ids, "attention_mask": mask, "weight": [sample["weight"] for sample in samples]}


def collated(batch_size=2, seed=0, dataset=None, collate_fn=pad_right, **options):
    return make_loader(dataset or Sentences(), batch_size, DataSettings(seed=seed), collate_fn=collate_fn, **options)


def test_collate_fn_gives_batches_of_the_usual_form():
    loader = collated()
    assert isinstance(loader, CollateLoader) and len(loader) == 6
    batches = list(loader.batches(0))
    assert sorted(i for batch in batches for row in batch["sample_ids"] for i in row) == list(range(11))
    for batch in batches:
        for row, members in enumerate(batch["sample_ids"]):
            if not members:
                assert (batch["labels"][row] == -100).all()
                continue
            ids = Sentences()[members[0]]["input_ids"]
            rest = 6 - len(ids)
            assert batch["labels"][row].tolist() == [-100, *ids[1:]] + [-100] * rest
            assert batch["position_ids"][row].tolist() == [*range(len(ids)), *[0] * rest]
            assert batch["start"][row].tolist() == [0] * len(ids) + list(range(len(ids), 6))
            assert batch["end"][row].tolist() == list(range(1, 7))
            assert batch["weight"][row] == members[0]


def test_the_last_batch_has_the_rows_that_are_left():
    """A loss or measure of the user's own reads other columns than labels, so that a copy would count."""
    batches = list(collated(4).batches(0))
    assert [len(batch["input_ids"]) for batch in batches] == [4, 4, 3]
    assert sorted(weight for batch in batches for weight in batch["weight"]) == list(range(11))
    batch = list(collated(4, pieces=2).batches(0))[-1]  # what has to be cut into equal pieces has a copy, not learnt
    assert len(batch["input_ids"]) == 4 and (batch["labels"][3] == -100).all() and batch["sample_ids"][3] == []
    batch = list(collated(3, rank=3, world_size=4).batches(0))[-1]  # a rank with fewer rows than the others
    assert len(batch["input_ids"]) == 2
    batch = list(collated(2, rank=5, world_size=6).batches(0))[-1]  # and one with a copy of its only row
    assert len(batch["input_ids"]) == 1
    (batch,) = collated(4, rank=3, world_size=4).batches(0)  # one without any goes on with the others
    assert (batch["sample_ids"], len(batch["input_ids"])) == ([[]], 1) and (batch["labels"] == -100).all()
    full = make_loader(Sentences(), 4, DataSettings(drop_last=True), collate_fn=pad_right)
    assert [len(batch["input_ids"]) for batch in full.batches(0)] == [4, 4] and len(full) == 2


def test_one_process_may_read_all_rows():
    """For a measure that is no sum; also where a plan of this process's share has been made before."""
    tokens = TokenDataset.from_samples([(np.arange(10, 14), np.ones(4, bool))] * 5)
    for share in (collated(2, rank=1, world_size=2), Loader(tokens, 1, DataSettings(), rank=1, world_size=2)):
        own, every = (
            [i for batch in one.batches() for row in batch["sample_ids"] for i in row] for one in (share, share.alone())
        )
        assert sorted(every) == list(range(len(share.dataset))) and len(own) < len(every)


def test_left_padding_and_given_labels():
    def pad_left(samples):
        return {
            "input_ids": np.array([[0, 0, 5, 6, 7]]),
            "attention_mask": np.array([[0, 0, 1, 1, 1]]),
            **({"labels": np.array([[-100, -100, -100, -100, 7]])} if samples[0]["weight"] else {}),
        }

    class One(Sentences):
        def __init__(self, weight):
            self.rows = [{"weight": weight}]

    (batch,) = collated(1, dataset=One(0), collate_fn=pad_left).batches(0)
    assert batch["labels"].tolist() == [[-100, -100, -100, 6, 7]]
    assert batch["position_ids"].tolist() == [[0, 0, 0, 1, 2]]
    assert batch["start"].tolist() == [[0, 1, 2, 2, 2]] and batch["end"].tolist() == [[1, 2, 3, 4, 5]]
    (batch,) = collated(1, dataset=One(1), collate_fn=pad_left).batches(0)
    assert batch["labels"].tolist() == [[-100, -100, -100, -100, 7]]


def test_order_resuming_ranks_and_accumulation():
    whole = list(collated(2, accumulation=2).batches(1))
    assert len(whole) == 6
    for start in range(7):
        rest = list(collated(2, accumulation=2).batches(1, start=start))
        assert [batch.index for batch in rest] == list(range(start, 6))
        for left, right in zip(rest, whole[start:], strict=True):
            assert left["sample_ids"] == right["sample_ids"]
            assert np.array_equal(left["labels"], right["labels"])
    ranks = [list(collated(1, accumulation=2, rank=rank, world_size=2).batches(1)) for rank in range(2)]
    for batch, left, right in zip(whole, *ranks, strict=True):
        assert [row for row in left["sample_ids"] + right["sample_ids"] if row] == batch["sample_ids"]
    other = [batch["sample_ids"] for batch in collated(2, accumulation=2).batches(0)]
    assert other != [batch["sample_ids"] for batch in whole]


def test_what_cannot_be_loaded_is_refused():
    with pytest.raises(InputError, match="give a collate_fn that pads"):
        list(collated(collate_fn=None).batches(0))
    with pytest.raises(InputError, match=r"no 'input_ids' .did you mean 'input_id'"):
        list(collated(collate_fn=lambda samples: {"input_id": [[1]]}).batches(0))
    with pytest.raises(InputError, match=r"must be \(2, S\), found \(1, 2\)"):
        list(collated(collate_fn=lambda samples: {"input_ids": [[1, 2]]}).batches(0))
    with pytest.raises(InputError, match="expected files, a MindSpore Dataset or an indexable dataset"):
        make_loader(iter([1]), 2)
    samples = TokenDataset.from_samples([(np.arange(4), np.ones(4, bool))])
    with pytest.raises(InputError, match="collate_fn: this data is batched by its settings"):
        make_loader(samples, 1, collate_fn=lambda rows: rows)
    with pytest.raises(InputError, match="dataset: no rows"):
        make_loader([], 2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_ids": [1.0, 2.0]}, "input_ids must be whole numbers, found float64"),
        ({"input_ids": [1, 2], "labels": [1]}, "columns must have one shape"),
        ({"input_ids": [1, 2], "labels": [-100, -100]}, "no row with anything to learn"),
        ({"input_ids": [1, 2], "labels": [1, -100]}, "no row with anything to learn"),  # nothing predicts the first
    ],
)
def test_tokens_that_cannot_be_learnt_are_refused(row, message):
    with pytest.raises(InputError, match=message):
        from_mindspore(generator_dataset(list(row), [tuple(map(np.array, row.values()))]))


def test_two_sets_out_of_one(tmp_path):
    """As a script writes training and evaluation data: both are batches of one data set."""
    from mindspore.dataset import GeneratorDataset

    rows = [(np.arange(5, 15, dtype=np.int32) + row,) for row in range(8)]
    whole = GeneratorDataset(rows, column_names=["input_ids"], shuffle=False)
    train, evaluation = whole.batch(4), whole.batch(2)
    for data, size in ((train, 4), (evaluation, 2), (train, 4)):
        assert len(from_mindspore(data)) == 8
        assert data.get_batch_size() == size


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": None}, "batch_size is None; a whole number was expected"),
        ({"batch_size": 2.5}, "batch_size is 2.5; a whole number"),
        ({"accumulation": "2"}, "accumulation is '2'; a whole number"),
        ({"pad_token_id": "</s>"}, "pad_token_id is '</s>'; a whole number"),
        ({"layout": 3}, "layout is 3; a function"),
        ({"pieces": 0}, "pieces is 0; a whole number of at least 1"),
        ({"collate_fn": 3}, "collate_fn is 3; a function"),
        ({"collate_fn": lambda rows: None}, "collate_fn gave None; a dictionary with input_ids"),
        ({"settings": 5}, "data settings are 5; a recipe's data section or a mapping"),
        ({"settings": {"columns": "prompt"}}, r"data\.columns: expected a mapping .*'prompt'"),
        ({"settings": {"buckets": 8}}, r"data\.buckets: expected a list; got 8"),
        ({"data": {"input_ids": [[5, 6]]}}, "an indexable dataset of dicts, found dict"),
    ],
)
def test_arguments_of_a_loader_are_held_to_what_they_say(given, message):
    with pytest.raises(InputError, match=message):
        list(make_loader(**{"data": [{"input_ids": [5, 6]}], "batch_size": 1, **given}).batches())


@pytest.mark.parametrize(
    ("paths", "tokenizer", "message"),
    [
        (None, None, "data is None; a text or a path or a dictionary"),
        ([3], None, "data is 3; a text or a path or a dictionary"),
        ("rows.jsonl", "llama_tiny", "tokenizer is 'llama_tiny'; one of pet.AutoTokenizer"),
        ("rows.jsonl", None, "rows.jsonl:1: a text needs a tokenizer"),
    ],
)
def test_arguments_of_a_dataset_are_held_to_what_they_say(paths, tokenizer, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"text": "a word"}\n')
    with pytest.raises(InputError, match=message):
        load_dataset(paths, tokenizer, settings={"cache_dir": str(tmp_path)})


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (split_dataset, {"fraction": "a"}, "fraction is 'a'; a number was expected"),
        (split_dataset, {"fraction": 0.5, "seed": "x"}, "seed is 'x'; a whole number"),
        (mix_dataset, {"paths": "rows.jsonl", "weights": None}, "weights is None; a list of numbers"),
        (mix_dataset, {"paths": "rows.jsonl", "weights": ["2"]}, r"weights is \['2'\]; a list of numbers"),
        (describe, {"tokenizer": None, "samples": "3"}, "samples is '3'; a whole number"),
    ],
)
def test_arguments_of_what_is_made_of_a_dataset_are_held_to_what_they_say(function, given, message):
    with pytest.raises(InputError, match=message):
        function(TokenDataset.from_samples([([5, 6], [1, 1])] * 3), **given)
