"""Rows of token ids of which only the id of their padding is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
from mindspore.dataset import GeneratorDataset

from model_zoo.errors import InputError
from pet.data import CollateLoader, DataSettings, Loader, from_mindspore, load_dataset, make_loader
from pet.data.classified import classified
from pet.data.formats import read_rows
from pet.data.token_rows import learnt_beside, without_padding

PLAIN, ENDS = (0, False), (0, True)


@pytest.mark.parametrize(
    ("row", "how", "ids", "marks"),
    [
        ([5, 6, 7], PLAIN, [5, 6, 7], [0, 1, 1]),
        ([5, 6, 7], ENDS, [5, 6, 7], [0, 1, 1]),
        ([5, 6, 0, 0], PLAIN, [5, 6], [0, 1]),
        ([5, 6, 0, 0], ENDS, [5, 6, 0], [0, 1, 1]),
        ([0, 0, 5, 6], PLAIN, [5, 6], [0, 1]),
        ([0, 0, 5, 6], ENDS, [5, 6], [0, 1]),
        ([5, 0, 6, 7, 0], PLAIN, [5, 0, 6, 7], [0, 0, 1, 1]),
        ([5, 0, 6, 7, 0], ENDS, [5, 0, 6, 7, 0], [0, 1, 0, 1, 1]),
        ([0, 0], ENDS, [], []),
    ],
)
def test_padding_is_left_out_and_not_learnt(row, how, ids, marks):
    assert without_padding(row, *how) == (ids, [bool(mark) for mark in marks])


def test_rows_of_a_batch_are_learnt_each_for_itself():
    ids = np.array([[5, 0, 6, 0], [0, 7, 8, 9], [0, 0, 0, 0]])
    assert learnt_beside(ids, *PLAIN).astype(int).tolist() == [[0, 0, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]]
    assert learnt_beside(ids, *ENDS).astype(int).tolist() == [[0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]]


def test_only_rows_that_say_nothing_of_it_are_read_so(letters, tmp_path):
    rows = ['{"input_ids": [5, 6, 0, 0]}', '{"input_ids": [5, 6, 0], "labels": [-100, 6, 0]}', '{"input_ids": [0, 0]}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    for padding, wanted in (
        ({}, [[5, 6, 0, 0], [5, 6, 0], [0, 0]]),
        ({"padding": 0}, [[5, 6], [5, 6, 0]]),
        ({"padding": 0, "padding_ends": True}, [[5, 6, 0], [5, 6, 0]]),
    ):
        settings = DataSettings(cache_dir=str(tmp_path / "cache"), **padding)
        found = load_dataset(tmp_path / "rows.jsonl", letters, settings=settings)
        assert [found[number][0].tolist() for number in range(len(found))] == wanted


def test_a_text_of_padding_alone_is_left_out(letters, tmp_path):
    rows = [json.dumps({"input_ids": ids, "label": 1}) for ids in ([5, 6, 0], [7, 0], [0])]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    settings = DataSettings(cache_dir=str(tmp_path / "cache"), padding=0, conversations=classified)
    found = load_dataset(tmp_path / "rows.jsonl", letters, settings=settings)
    assert [found[number][0].tolist() for number in range(len(found))] == [[5, 6], [7]]
    assert found.counts.dropped_unlabelled == 1 and found.label_counts.tolist() == [1, 0]


def test_a_mindspore_dataset_and_batches_of_a_function_of_the_users():
    from mindspore.dataset import GeneratorDataset

    rows = np.array([[5, 6, 7, 0, 0], [5, 6, 0, 0, 0], [0, 0, 0, 0, 0], [5, 6, 7, 8, 9]], np.int32)
    data = GeneratorDataset([(row,) for row in rows], column_names=["input_ids"], shuffle=False).batch(2)
    found = from_mindspore(data, None, 0, True)
    assert [ids.tolist() for ids, _ in map(found.__getitem__, range(3))] == [[5, 6, 7, 0], [5, 6, 0], [5, 6, 7, 8, 9]]
    settings = DataSettings(shuffle=False, padding=0)
    (batch,) = CollateLoader([{"input_ids": row} for row in rows], 4, settings).batches()
    assert batch["labels"].tolist() == [
        [-100, 6, 7, -100, -100],
        [-100, 6, -100, -100, -100],
        [-100] * 5,
        [-100, 6, 7, 8, 9],
    ]
    (batch,) = CollateLoader([{"input_ids": row, "labels": row} for row in rows], 4, settings).batches()
    assert batch["labels"].tolist() == rows.tolist()


def test_what_ends_needs_padding(tmp_path):
    from pet.recipe.loading import from_dict

    with pytest.raises(InputError, match=r"data.padding_ends: has no effect without data.padding"):
        from_dict(
            {}, {"model.path": "gpt_tiny", "data.train": "rows.jsonl", "data.padding_ends": True}, check_files=False
        )


def test_labels_one_place_ahead(tmp_path):
    """As causal models of other systems take them whose loss shifts nothing: files and MindSpore datasets."""
    rows = [{"input_ids": [5, 6, 7, 9], "labels": [-100, 7, 9, 4]}, {"input_ids": [5, 6, 0], "labels": [6, -100, -100]}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = [([5, 6, 7, 9, 4], [False, False, True, True, True]), ([5, 6, 0], [False, True, False])]
    assert [row.tokens for row in read_rows(path, of_ids=(None, False, True))] == expected
    given = GeneratorDataset(
        [tuple(map(np.int32, row.values())) for row in rows], ["input_ids", "labels"], shuffle=False
    )
    found = from_mindspore(given, labels_ahead=True)
    assert [(ids.tolist(), marks.tolist()) for ids, marks in (found[index][:2] for index in range(2))] == expected
    with pytest.raises(InputError, match=r"labels: 9 at place 2, where input_ids has 7; .*labels are one place ahead"):
        wrong = [(np.int32([5, 6, 7]), np.int32([6, 9, -100]))]
        from_mindspore(GeneratorDataset(wrong, ["input_ids", "labels"]), labels_ahead=True)


def test_labels_of_any_kind(tmp_path, letters):
    """With data.other_labels a label may be another id than its token's, as in a batch that a user's collate_fn makes:
    what each position is to predict reaches the loss, one place ahead or not, from a file and from a MindSpore dataset.
    """
    rows = [{"input_ids": [5, 6, 7, 9], "labels": [-100, 3, 7, 0]}, {"input_ids": [4, 8], "labels": [2, 11]}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"labels: 3 at place 1, where input_ids has 6; .*data.other_labels: true"):
        list(read_rows(path))
    settings = DataSettings(max_length=8, packing="longest", shuffle=False, other_labels=True, cache_dir=str(tmp_path))
    found = load_dataset(path, letters, settings=settings)
    assert [found.labels(index).tolist() for index in range(2)] == [row["labels"] for row in rows]
    (batch,) = Loader(found, 2, settings).batches()
    assert batch["input_ids"][:, :4].tolist() == [[5, 6, 7, 9], [4, 8, 0, 0]]
    assert batch["labels"][:, 1:4].tolist() == [[3, 7, 0], [11, -100, -100]]
    given = GeneratorDataset(
        [tuple(map(np.int32, row.values())) for row in rows], ["input_ids", "labels"], shuffle=False
    )
    padded = [
        {"input_ids": [5, 6, 0, 0], "labels": [5, 6, 0, 0]},
        {"input_ids": [5, 6, 0, 0], "labels": [5, 6, -100, -100]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in padded))
    assert [row.tokens[1] for row in read_rows(path, of_ids=(0,))] == [[1, 1, 1, 0], [1, 1, 0, 0]]
    of_ids = DataSettings(max_length=8, packing="longest", shuffle=False, other_labels=True, labels_ahead=True)
    (ahead,) = make_loader(given, 2, of_ids).batches()
    assert ahead["labels"][:, 1:5].tolist() == [[-100, 3, 7, 0], [2, 11, -100, -100]]
    wrong = GeneratorDataset([(np.int32([5, 6]), np.int32([-1, 6]))], ["input_ids", "labels"])
    with pytest.raises(InputError, match=r"labels: -1 at place 0, where input_ids has 5; expected a token id, or -100"):
        from_mindspore(wrong, other_labels=True)
