"""Packing loses, splits and doubles no document, and tells positions, visibility and labels rightly."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pet.data import bucket_edges, causal_layout, collate, first_fit_decreasing
from pet.data.packing import placed, shared_tokens

lengths_and_capacity = st.integers(1, 64).flatmap(
    lambda capacity: st.tuples(st.lists(st.integers(1, capacity), max_size=80), st.just(capacity))
)


def naive(lengths, capacity):
    """First-fit-decreasing as it is defined, one document at a time."""
    rows, room = [], []
    for document in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        for row, left in enumerate(room):
            if left >= lengths[document]:
                rows[row].append(document)
                room[row] -= lengths[document]
                break
        else:
            rows.append([document])
            room.append(capacity - lengths[document])
    return rows


@given(lengths_and_capacity)
def test_the_rows_are_those_of_first_fit_decreasing(case):
    lengths, capacity = case
    assert [row.tolist() for row in first_fit_decreasing(lengths, capacity)] == naive(lengths, capacity)


@given(lengths_and_capacity)
def test_every_document_stands_in_exactly_one_row_that_holds_it(case):
    lengths, capacity = case
    rows = first_fit_decreasing(lengths, capacity)
    assert sorted(index for row in rows for index in row.tolist()) == list(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in row) <= capacity for row in rows)


@pytest.mark.parametrize("lengths", [[0, 3], [9]])
def test_a_document_that_cannot_be_placed_is_refused(lengths):
    with pytest.raises(ValueError, match="1 … 8"):
        first_fit_decreasing(lengths, 8)


def alpaca_like(count, seed=0):
    """Lengths with mean 248 and a long tail, none above 1024."""
    lengths = np.random.default_rng(seed).lognormal(np.log(248) - 0.2, 0.75, count)
    return np.clip(lengths, 8, 1024).astype(int)


@pytest.mark.parametrize("seed", range(5))
def test_instruction_data_fills_the_rows(seed):
    lengths = alpaca_like(999, seed)
    assert 225 < lengths.mean() < 275
    rows = first_fit_decreasing(lengths, 1024)
    assert lengths.sum() / (len(rows) * 1024) >= 0.98


def test_packing_takes_documents_of_one_length_together():
    """Work in Python is by distinct length: one document at a time would take minutes for a large set."""
    lines = 0

    def count(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code.co_filename == first_fit_decreasing.__code__.co_filename else None

    lengths = alpaca_like(50_000)
    before = sys.gettrace()
    sys.settrace(count)
    try:
        first_fit_decreasing(lengths, 1024)
    finally:
        sys.settrace(before)
    assert 0 < lines < len(lengths)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 3))
@settings(max_examples=60)
def test_bucket_edges_are_the_best_there_are(lengths, count):
    from itertools import combinations

    lengths = np.asarray(lengths)
    edges = bucket_edges(lengths, count, 60, multiple=4)
    assert edges == sorted(set(edges)) and len(edges) <= count and edges[-1] <= 60

    def cost(chosen):
        return sum(min(edge for edge in chosen if edge >= length) for length in lengths)

    sizes = sorted({min(-(-int(length) // 4) * 4, 60) for length in lengths})
    every = [
        (*smaller, sizes[-1])
        for number in range(min(count, len(sizes)))
        for smaller in combinations(sizes[:-1], number)
    ]
    assert cost(edges) == min(cost(chosen) for chosen in every)


def test_the_drawing_in_the_docstring():
    a, b, c, d, e = range(11, 16)
    first = (np.array([a, b, c]), np.array([False, True, True]))
    second = (np.array([d, e]), np.array([True, False]))
    batch = collate([[first, second]], 7, pad_token_id=0)
    assert batch["input_ids"].tolist() == [[a, b, c, d, e, 0, 0]]
    assert batch["labels"].tolist() == [[-100, b, c, -100, -100, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 0]]
    assert batch["start"].tolist() == [[0, 0, 0, 3, 3, 5, 6]]
    assert batch["end"].tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}


def test_the_drawing_of_a_pair_in_the_docstring():
    a, b, c, d, e, f, g = range(11, 18)
    first = (np.array([a, b, c, d]), np.array([False, False, True, True]))
    second = (np.array([a, b, e, f, g]), np.array([False, False, True, True, True]))
    assert shared_tokens(first, second, causal_layout) == 1
    batch = collate([[first, second]], 8, shared=[[1]])
    assert batch["input_ids"].tolist() == [[d, c, b, a, b, e, f, g]]
    assert batch["labels"].tolist() == [[-100, -100, d, c, -100, e, f, g]]
    assert batch["position_ids"].tolist() == [[3, 2, 1, 0, 1, 2, 3, 4]]
    assert batch["start"].tolist() == [[0, 1, 2, 3, 3, 3, 3, 3]]
    assert batch["end"].tolist() == [[4, 4, 4, 4, 5, 6, 7, 8]]
    assert batch["document"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    with pytest.raises(ValueError, match="need more than its 7 tokens"):
        collate([[first, second]], 7, shared=[[1]])


def prefix_layout(ids):
    """The first half sees itself in both directions; positions have two rows."""
    context = len(ids) // 2
    own = np.arange(len(ids))
    return np.stack([np.minimum(own, context), np.maximum(own - context, 0)]), np.maximum(own + 1, context)


@pytest.mark.parametrize("layout", [causal_layout, prefix_layout])
def test_a_document_stands_alone_wherever_its_padding_is(layout):
    ids = np.array([5, 6, 7, 8, 9])
    rows = len(np.atleast_2d(layout(ids)[0]))
    expected = collate([[(ids, ids > 6)]], 5, layout=layout, position_rows=rows)
    for before, behind in ((0, 0), (0, 3), (2, 0), (1, 2)):
        length, inside = before + 5 + behind, slice(before, before + 5)
        real = (np.arange(length) >= before) & (np.arange(length) < before + 5)
        found = placed(np.where(real, np.pad(ids, (before, behind)), 1)[None], real[None], layout)
        for name, shift in (("position_ids", 0), ("start", before), ("end", before)):
            assert found[name][..., inside].tolist() == (expected[name] + shift).tolist()
        outside = np.flatnonzero(~real)
        assert found["start"][0, outside].tolist() == outside.tolist() == (found["end"][0, outside] - 1).tolist()


documents = st.lists(
    st.lists(st.lists(st.tuples(st.integers(1, 99), st.booleans()), min_size=1, max_size=9), max_size=4),
    min_size=1,
    max_size=4,
)


@given(documents, st.booleans())
def test_documents_see_themselves_alone(rows, two_way):
    rows = [
        [(np.array([token for token, _ in document]), np.array([mark for _, mark in document])) for document in row]
        for row in rows
    ]
    length = 40
    layout = {"layout": prefix_layout, "position_rows": 2} if two_way else {}
    batch = collate(rows, length, pad_token_id=7, **layout)
    for row, members in enumerate(rows):
        key = np.arange(length)
        sees = (batch["start"][row][:, None] <= key) & (key < batch["end"][row][:, None])
        assert sees.any(axis=1).all(), "a row of the softmax is empty"
        at = 0
        for ids, marks in members:
            span = slice(at, at + len(ids))
            assert batch["input_ids"][row, span].tolist() == ids.tolist()
            wanted = np.where(marks, ids, -100)
            wanted[0] = -100
            assert batch["labels"][row, span].tolist() == wanted.tolist()
            alone = np.tril(np.ones((len(ids), len(ids)), bool))
            positions = np.arange(len(ids))
            if two_way:
                alone[:, : len(ids) // 2] = True
                positions = prefix_layout(ids)[0]
            assert (sees[span, span] == alone).all()
            assert not sees[span, :at].any() and not sees[span, at + len(ids) :].any()
            assert not sees[:at, span].any() and not sees[at + len(ids) :, span].any()
            assert (batch["position_ids"][row][..., span] == positions).all()
            at += len(ids)
        assert (batch["input_ids"][row, at:] == 7).all() and (batch["labels"][row, at:] == -100).all()


def question_layout(question):
    """The question but its last token sees itself in both directions; positions have two rows."""

    def layout(ids):
        own, context = np.arange(len(ids)), question - 1
        positions = np.stack([np.minimum(own, context), np.maximum(own - context, 0)])
        return positions, np.where(own < context, context, own + 1)

    return layout


answers = st.lists(st.integers(1, 4), min_size=1, max_size=4)
pairs = st.lists(st.tuples(answers, answers), min_size=1, max_size=3)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), pairs, st.booleans())
def test_answers_that_share_a_question_see_what_they_see_alone(question, answers, two_way):
    """Each document, read off its row in the order of its positions, is what it is in a row of its own."""
    layout = question_layout(len(question)) if two_way else causal_layout
    how = {"layout": layout, "position_rows": 2 if two_way else 1}
    members = []
    for pair in answers:
        for answer in pair:
            members.append((np.array(question + answer), np.arange(len(question + answer)) >= len(question)))
    shared = [shared_tokens(*members[at : at + 2], layout) for at in range(0, len(members), 2)]
    assert shared == [len(question) - 1] * len(answers)
    batch = collate([members], 64, shared=[shared], **how)
    sees = (batch["start"][0][:, None] <= np.arange(64)) & (np.arange(64) < batch["end"][0][:, None])
    assert sees.any(axis=1).all(), "a row of the softmax is empty"
    targets = np.append(batch["labels"][0, 1:], -100)
    at = 0
    for pair, common in enumerate(shared):
        first, second = members[2 * pair], members[2 * pair + 1]
        middle = at + len(first[0]) - common
        stop = middle + len(second[0])
        backwards = np.arange(middle - 1, at - 1, -1) if common else np.arange(at, middle)
        both = [np.append(np.arange(middle, middle + common), backwards), np.arange(middle, stop)]
        for number, (places, document) in enumerate(zip(both, (first, second), strict=True)):
            alone = collate([[document]], len(places), **how)
            learnt = np.append(alone["labels"][0, 1:], -100)
            own = slice(common, None)  # the shared tokens predict nothing that is learnt
            assert batch["input_ids"][0, places].tolist() == alone["input_ids"][0].tolist()
            assert (batch["position_ids"][0][..., places] == alone["position_ids"][0]).all()
            assert targets[places][own].tolist() == learnt[own].tolist() and (learnt[:common] == -100).all()
            key = np.arange(len(places))
            expected = (alone["start"][0][:, None] <= key) & (key < alone["end"][0][:, None])
            assert (sees[np.ix_(places, places)] == expected).all()
            others = np.setdiff1d(np.arange(64), places)
            assert not sees[np.ix_(places, others)].any()
            assert (batch["document"][0, places[own]] == 2 * pair + number).all()
        at = stop
    assert (targets[at - 1 :] == -100).all() and (batch["document"][0, at:] == len(members)).all()


def test_what_only_one_of_two_documents_has_is_not_shared():
    ids, trained = np.arange(6), np.arange(6) >= 4
    other = ids.copy()
    other[2] = 9
    assert shared_tokens((ids, trained), (other, trained), causal_layout) == 1  # the second predicts what differs
    assert shared_tokens((ids, ids >= 2), (ids, trained), causal_layout) == 1
    assert shared_tokens((ids, ids >= 1), (ids, trained), causal_layout) == 0
    assert shared_tokens((ids, trained), (ids[:3], ids[:3] > 9), causal_layout) == 2
    for question, common in ((4, 3), (5, 0), (6, 0)):  # all but a question's last token see one another
        assert shared_tokens((ids, trained), (ids, trained), question_layout(question)) == common


def test_documents_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="need 6 tokens, the row has 5"):
        collate([[(np.arange(3), np.ones(3)), (np.arange(3), np.ones(3))]], 5)
