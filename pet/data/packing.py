"""Several documents in one row, none of which sees another.

A compiled step has static shapes. Padding every sample to one length wastes three tokens out of four on instruction
data; packing fills the rows instead. Two documents, ``a b c`` (``a`` the question) and ``d e``, in a row of length 7::

    input_ids      a   b   c   d   e   0   0
    labels      -100   b   c -100  e -100 -100     the first token of a document is never a label:
    positions      0   1   2   0   1   0   0       what stands before it belongs to somebody else
    start          0   0   0   3   3   5   6
    end            1   2   3   4   5   6   7

    key:           a   b   c   d   e   .   .       row i sees key j  where  start[i] <= j < end[i]
    query a        x
          b        x   x
          c        x   x   x
          d                    x                   block-diagonal, causal inside a block
          e                    x   x
          .                            x           padding sees itself alone: no row of the softmax is empty
          .                                x

So a mask of S·S bits is told by two rows of S numbers, and attention never builds it in full. A model that reads its
question in both directions (ChatGLM-6B: everything before ``<sop>`` sees all of it) only has a longer ``end``. With the
question ``a b`` in the document above::

    end            2   2   3   4   5   6   7       a sees b

Its positions have two rows, the place in the text and the place in the answer; the batch is then (B, 2, S).

Two answers to one question may share it: ``a b c d`` and ``a b e f g``, of which ``a b`` is the question. Its last
token predicts the first one of each answer, and so stands in front of each. The first answer lies before the rest of
the question, backwards, so that what its tokens see is an interval as well::

    input_ids      d   c   b   a   b   e   f   g
    labels      -100 -100  d   c -100  e   f   g    still what the token before is to predict: that of b is c, of c is d
    positions      3   2   1   0   1   2   3   4
    start          0   1   2   3   3   3   3   3
    end            4   4   4   4   5   6   7   8
    document       0   0   0   0   1   1   1   1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .dataset import IGNORED

# (ids (S,)) -> (position_ids (S,) or (2, S), end (S,)): one unpadded document, counted from its own first token
LayoutFunction = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
Sample = tuple[np.ndarray, ...]


def causal_layout(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions 0, 1, 2 …, and each token sees itself and what stands before it."""
    positions = np.arange(len(ids), dtype=np.int32)
    return positions, positions + 1


def placed(ids: np.ndarray, real: np.ndarray, layout: LayoutFunction) -> dict[str, np.ndarray]:
    """``position_ids``, ``start`` and ``end`` of rows ``(B, S)`` with one document each, wherever their padding is."""
    count, length = ids.shape
    positions = np.zeros((count, *layout(ids[0])[0].shape[:-1], length), np.int32)
    start = np.tile(np.arange(length, dtype=np.int32), (count, 1))
    end = start + 1
    for row in range(count):
        kept = np.flatnonzero(real[row])
        if len(kept):
            positions[row][..., kept], ends = layout(ids[row, kept])
            start[row, kept], end[row, kept] = kept[0], np.asarray(ends) + kept[0]
    return {"position_ids": positions, "start": start, "end": end}


def shared_tokens(first: Sample, second: Sample, layout: LayoutFunction) -> int:
    """How many tokens at the beginning of two documents (ids, trained) can stand in a row once for both: the same ones,
    at the same positions, none of which is learnt, predicts what is learnt, or sees a token that is not shared."""
    (ids, trained), (others, learnt) = first, second
    most = min(len(ids), len(others))
    ends_at = np.flatnonzero((ids[:most] != others[:most]) | trained[:most] | learnt[:most])
    shared = (int(ends_at[0]) if len(ends_at) else most) - 1
    if shared < 1:
        return 0
    (positions, ends), (beside, until) = layout(ids), layout(others)
    same = np.array_equal(positions[..., :shared], beside[..., :shared])
    same &= np.array_equal(ends[:shared], until[:shared])
    own = all(np.array_equal(each[shared:], np.arange(shared, len(each)) + 1) for each in (ends, until))
    return shared if same and own and ends[:shared].max() <= shared else 0


def first_fit_decreasing(lengths: Sequence[int] | np.ndarray, capacity: int) -> list[np.ndarray]:
    """Put documents into as few rows as can be found quickly.

    Longest document first, each goes to the first row that still has room (Johnson 1973; at most 11/9 of the best
    possible number of rows, plus one). Documents of one length are placed together: the first open row takes as many as
    fit, then the next. That is the same result as one at a time, and costs one pass over the rows for each *distinct*
    length, so a million documents take about a second.

    Args:
        lengths: (documents,) tokens in each, at least 1.
        capacity: tokens in a row.

    Returns:
        For each row the indices of its documents, longest first. Every document stands in exactly one row.

    Raises:
        ValueError: a document is empty or longer than a row.
    """
    order, sizes = packed_order(lengths, capacity)
    return np.split(order, np.cumsum(sizes)[:-1]) if len(order) else []


def packed_order(lengths: Sequence[int] | np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """`first_fit_decreasing` in flat arrays: the indices of the documents, row after row, and the number of documents
    in each row."""
    lengths = np.asarray(lengths, np.int64)
    if lengths.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if lengths.min() < 1 or lengths.max() > capacity:
        raise ValueError(f"document lengths must lie in 1 … {capacity}, found {lengths.min()} … {lengths.max()}")
    order = np.argsort(-lengths, kind="stable")
    distinct, counts = np.unique(lengths, return_counts=True)
    row_of = np.empty(lengths.size, np.int64)  # indexed by place in `order`
    room = np.zeros(lengths.size, np.int64)  # what is left in each row; rows beyond `rows` are not open yet
    rows = placed = 0
    for length, count in zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True):
        fitting = np.cumsum(room[:rows] // length)
        in_open = min(count, int(fitting[-1]) if rows else 0)
        if in_open:
            last = int(np.searchsorted(fitting, in_open))
            taken = np.diff(fitting[: last + 1], prepend=0)
            taken[last] -= fitting[last] - in_open
            row_of[placed : placed + in_open] = np.repeat(np.arange(last + 1), taken)
            room[: last + 1] -= taken * length
        rest = count - in_open
        if rest:
            per_row = capacity // length
            opened = -(-rest // per_row)
            row_of[placed + in_open : placed + count] = rows + np.arange(rest) // per_row
            room[rows : rows + opened] = capacity - per_row * length
            room[rows + opened - 1] = capacity - (rest - per_row * (opened - 1)) * length
            rows += opened
        placed += count
    return order[np.argsort(row_of, kind="stable")], np.bincount(row_of, minlength=rows)


def bucket_edges(lengths: Sequence[int] | np.ndarray, count: int, max_length: int, multiple: int = 16) -> list[int]:
    """The ``count`` (or fewer) padded lengths that waste the fewest tokens on this distribution.

    Found exactly, by dynamic programming over the lengths rounded up to ``multiple``: ``waste[k][j]`` is the least
    number of padded tokens when everything up to length j goes into k buckets, the last of them ending at j.

    Returns:
        Increasing lengths, none above ``max_length``; the last holds the longest sample.
    """
    lengths = np.asarray(lengths, np.int64)
    sizes = np.minimum(-(-lengths // multiple) * multiple, max_length)
    edges, number = np.unique(sizes, return_counts=True)
    if len(edges) <= count:
        return edges.tolist()
    total = np.concatenate([[0], np.cumsum(number)])
    # cost of one bucket over edges[i..j] is (samples in it) * edges[j]; the real tokens are the same for every choice
    waste = total[1:] * edges
    previous = []
    for _ in range(count - 1):
        options = waste[:, None] + (total[1:][None, :] - total[1:][:, None]) * edges[None, :]
        options[np.tril_indices(len(edges))] = 1 << 60  # an edge before itself: impossible, and sums stay in int64
        previous.append(options.argmin(axis=0))
        waste = options.min(axis=0)
    chosen, at = [], len(edges) - 1
    for step in reversed(previous):
        chosen.append(int(edges[at]))
        at = int(step[at])
    chosen.append(int(edges[at]))
    return sorted(set(chosen))


def collate(
    rows: Sequence[Sequence[Sample]],
    length: int,
    *,
    pad_token_id: int = 0,
    layout: LayoutFunction = causal_layout,
    position_rows: int = 1,
    shared: Sequence[Sequence[int]] | None = None,
) -> dict[str, np.ndarray]:
    """Lay documents into rows (the drawings at the head of this module).

    Args:
        rows: for each row its documents (ids, trained), or (ids, trained, labels) where some labels are other tokens;
            an empty row becomes padding from end to end.
        length: S, tokens in a row.
        pad_token_id: what stands where nothing stands.
        layout: gives the positions and the ends of one document; the family's, for a model that is not causal.
        position_rows: 1, or 2 where ``layout`` gives positions (2, S).
        shared: for each row how many tokens each two neighbouring documents share (`shared_tokens`); None: documents
            are no pairs.

    Returns:
        int32 arrays: ``input_ids``, ``labels``, ``start``, ``end`` (B, S); ``position_ids`` (B, S) or (B, 2, S).
        Labels are not shifted: position t of the logits predicts ``labels[:, t + 1]``; -100 is not learnt. Of pairs
        also ``document`` (B, S), the number of each token's document in its row.

    Raises:
        ValueError: the documents of a row do not fit in ``length``.
    """
    batch = len(rows)
    input_ids = np.full((batch, length), pad_token_id, np.int32)
    labels = np.full((batch, length), IGNORED, np.int32)
    positions = np.zeros((batch, length) if position_rows == 1 else (batch, position_rows, length), np.int32)
    own = np.arange(length, dtype=np.int32)
    start = np.tile(own, (batch, 1))
    end = start + 1
    document = np.zeros((batch, length), np.int32)
    for row, documents in enumerate(rows):
        at = 0
        for number, (ids, trained, *given) in enumerate(documents):
            learnt = given[0] if given else np.where(trained, ids, IGNORED)
            common = shared[row][number // 2] if shared is not None else 0
            if common and number % 2 == 0:
                branch = len(ids) - common
                middle = at + branch
                if middle + len(documents[number + 1][0]) > length:
                    raise ValueError(f"the documents of row {row} need more than its {length} tokens")
                places = np.concatenate((middle + np.arange(common), middle - 1 - np.arange(branch)))
                input_ids[row, places] = ids
                positions[row][..., places] = layout(ids)[0]
                end[row, at:middle] = middle + common
                predicted = places[common:-1] + 1
                labels[row, predicted] = learnt[common + 1 :]
                document[row, at : middle + common] = number
                at = middle
                continue
            stop = at + len(ids)
            if stop > length:
                raise ValueError(f"the documents of row {row} need {stop} tokens, the row has {length}")
            input_ids[row, at:stop] = ids
            own_labels = slice(at + common + 1, stop)  # before them are the other answer's, or nothing predicts them
            labels[row, own_labels] = learnt[common + 1 :]
            document[row, at + common :] = number
            positions[row, ..., at:stop], ends = layout(ids)
            start[row, at:stop] = at
            end[row, at:stop] = np.asarray(ends) + at
            at = stop
        document[row, at:] = len(documents)
    found = {"input_ids": input_ids, "labels": labels, "position_ids": positions, "start": start, "end": end}
    return found if shared is None else {**found, "document": document}
