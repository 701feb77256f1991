"""Ascend's fused attention behind `AttentionCore`, against its plain path: a NumPy model of the operator's documented
semantics stands in for it, and refuses what its documentation refuses."""

import inspect
import itertools

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from model_zoo import ascend
from model_zoo.ascend.attention import SLOTS, document_ends
from model_zoo.graph import Graph
from model_zoo.layers import AttentionCore, visible
from pet.train.precision import set_precision

B, S, D = 2, 6, 16


def operator(
    query,
    key,
    value,
    head_num,
    real_shift=None,
    drop_mask=None,
    padding_mask=None,
    attn_mask=None,
    prefix=None,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    keep_prob=1.0,
    scalar_value=1.0,
    pre_tokens=2147483647,
    next_tokens=2147483647,
    inner_precise=0,
    input_layout="BSH",
    sparse_mode=0,
):
    """``ops.flash_attention_score`` by its documentation, for a whole mask, and for documents that lie end to end."""
    assert query.dtype in (ms.float16, ms.bfloat16) and query.dtype == key.dtype == value.dtype
    assert (real_shift, drop_mask, padding_mask, prefix, keep_prob) == (None, None, None, None, 1.0)
    q, k, v = (each.astype(ms.float32).asnumpy() for each in (query, key, value))
    if input_layout == "TND":
        tokens, heads, _ = q.shape
        assert sparse_mode == 3 and next_tokens == 0 and pre_tokens >= tokens
        assert attn_mask.shape == (2048, 2048) and attn_mask.dtype in (ms.bool_, ms.uint8)
        assert np.array_equal(attn_mask.asnumpy() != 0, np.triu(np.ones((2048, 2048), bool), 1))
        ends, others = (each.asnumpy().tolist() for each in (actual_seq_qlen, actual_seq_kvlen))
        assert actual_seq_qlen.dtype == ms.int64 and len(ends) == len(others) <= 1024
        assert ends[-1] == tokens and others[-1] == len(k)
        mixed = np.empty_like(q)
        for rows, columns in zip(itertools.pairwise([0, *ends]), itertools.pairwise([0, *others]), strict=True):
            count = columns[1] - columns[0]
            assert 0 < rows[1] - rows[0] <= count
            hidden = np.triu(np.ones((count, count), bool), 1)[count - (rows[1] - rows[0]) :]
            parts = (x[slice(*at)].swapaxes(0, 1) for x, at in ((q, rows), (k, columns), (v, columns)))
            mixed[slice(*rows)] = attend(*parts, hidden, scalar_value).swapaxes(0, 1)
    else:
        assert input_layout == "BNSD" and sparse_mode in (0, 1)
        assert (actual_seq_qlen, actual_seq_kvlen) == (None, None)
        batch, heads, rows, _ = q.shape
        assert k.shape[0] == batch and attn_mask.dtype in (ms.bool_, ms.uint8)
        columns = k.shape[2]
        assert attn_mask.shape in ((batch, heads, rows, columns), (batch, 1, rows, columns), (rows, columns))
        mixed = attend(q, k, v, attn_mask.asnumpy() != 0, scalar_value)
    assert heads == head_num <= 256
    return Tensor(mixed.astype(np.float32)).astype(query.dtype)


def attend(q, k, v, hidden, scale):
    """``(…, heads, S, d)`` and keys and values of fewer heads; a hidden score is discarded."""
    heads, width = q.shape[-3], q.shape[-1]
    assert k.shape == v.shape and k.shape[-1] == width and heads % k.shape[-3] == 0
    assert width % 16 == 0 and width <= 512
    k, v = (np.repeat(each, heads // k.shape[-3], -3) for each in (k, v))
    scores = np.where(hidden, -np.inf, scale * (q @ k.swapaxes(-2, -1)))
    weights = np.exp(scores - scores.max(-1, keepdims=True))  # NaN where all are: that is not to be asked
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.fixture
def calls(monkeypatch) -> list:
    """The operator's stand-in, on what says it is Ascend; every call is noted."""
    found = []

    def stand_in(*arguments, **settings):
        found.append(settings)
        return operator(*arguments, **settings)

    monkeypatch.setattr("model_zoo.layers.has_fused_attention", lambda width: True)
    monkeypatch.setattr(ops, "flash_attention_score", stand_in)
    return found


def test_the_stand_in_takes_what_mindspore_takes():
    assert list(inspect.signature(operator).parameters) == list(inspect.signature(ops.flash_attention_score).parameters)


def intervals(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """start and end ``(B, S)``."""
    index = np.arange(S)
    start, end = np.zeros((B, S), np.int32), np.tile(index + 1, (B, 1)).astype(np.int32)
    if kind == "packed":
        start[0, 2:], start[1, 4:] = 2, 4
    elif kind == "prefix":  # ChatGLM's: the context looks at all of itself
        end[:, :4] = 4
    elif kind == "padded":  # a token that may look at nothing
        start[1, 4:], end[1, 4:] = 0, 0
    return start, end


class Prefixed(AttentionCore):
    """With keys in front of the real ones."""

    def __init__(self, *arguments, seen=None):
        super().__init__(*arguments)
        random = np.random.default_rng(5)
        shape = (B, self.kv_heads, 3, D)
        self.more = [Tensor(random.normal(size=shape).astype(np.float16)) for _ in range(2)]
        self.seen = None if seen is None else Tensor(np.array(seen, np.int32))

    def extend(self, keys, values):
        return ops.concat((self.more[0], keys), 2), ops.concat((self.more[1], values), 2), self.seen


CASES = [
    pytest.param(AttentionCore, (4, heads), kind, None, id=f"{kind}-{heads}")
    for kind in ("causal", "packed", "prefix", "padded")
    for heads in (4, 2, 1)
]
CASES += [
    pytest.param(lambda *a: AttentionCore(*a, window=2, scale=0.3), (4, 2), "packed", None, id="window"),
    pytest.param(lambda *a: Prefixed(*a), (4, 2), "packed", None, id="extra keys"),
    pytest.param(lambda *a: Prefixed(*a, seen=[[1, 0, 1], [0, 0, 1]]), (4, 2), "causal", None, id="some extra keys"),
    pytest.param(AttentionCore, (4, 4), "packed", [[1, 1, 0, 1, 1, 1], [-1, 1, 1, 1, 1, 0]], id="keep"),
]


@pytest.mark.parametrize(("kind", "heads", "rows", "keep"), CASES)
def test_it_is_the_plain_path(calls, kind, heads, rows, keep):
    random = np.random.default_rng(3)
    query = Tensor(random.normal(size=(B, heads[0], S, D)).astype(np.float16))
    keys, values = (Tensor(random.normal(size=(B, heads[1], S, D)).astype(np.float16)) for _ in range(2))
    start, end = (Tensor(each) for each in intervals(rows))
    keep = None if keep is None else Tensor(np.array(keep, np.int32))
    cell = kind(*heads, D)
    fused = cell(query, keys, values, start, end, keep).asnumpy()
    assert len(calls) == 1
    cell.fused = False
    plain = cell(query, keys, values, start, end, keep).asnumpy()
    assert len(calls) == 1 and fused.shape == plain.shape
    assert np.isfinite(fused).all()
    # who sees nothing gets a mean of all keys by both, but not the same one
    seen = visible(start, end, keep, S).asnumpy().any(-1).reshape(-1)
    assert seen.sum() >= 10
    apart = np.abs(fused.astype(np.float32) - plain.astype(np.float32))
    assert apart[seen].max() < 4e-3


def test_what_the_operator_does_not_take_goes_by_the_plain_path(calls):
    random = np.random.default_rng(3)
    start, end = (Tensor(each) for each in intervals("causal"))
    cell = AttentionCore(2, 2, D)

    def run(dtype, cell=cell):
        cell(*(Tensor(random.normal(size=(B, 2, S, D)).astype(dtype)) for _ in range(3)), start, end, None)

    run(np.float32)  # no 16 bits
    assert not calls
    set_precision(cell, "bf16" if ms.get_context("device_target") == "Ascend" else "fp16")
    run(np.float32)  # but its products are to have 16 bits
    assert [each["input_layout"] for each in calls] == ["BNSD"]
    calls.clear()
    set_precision(cell, "fp32")
    run(np.float32)
    assert not calls
    cell.drop = lambda weights: weights
    cell.set_train(True)
    run(np.float16)  # dropout of the weights, whose mask is ours
    assert not calls
    run(np.float16, AttentionCore(2, 2, D, cap=5.0))  # scores that are capped before the softmax
    assert not calls
    cell.drop = None
    run(np.float16)
    assert len(calls) == 1


# By documents ---------------------------------------------------------------------------------------------------------


def padded(*lengths: int) -> np.ndarray:
    """start of a row of S tokens with documents of these lengths, and padding."""
    start, at = np.arange(S, dtype=np.int32), 0
    for length in lengths:
        start[at : at + length], at = at, at + length
    return start


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        ([[6], [6]], [6, 12]),
        ([[2, 4], [3, 2]], [2, 6, 9, 11, 12]),
        ([[2, 1], [3]], [2, 6, 9, 12]),  # padding of three tokens; a document of one before it is not told apart
        ([[1, 5], []], [1, 6, 12]),
        ([[1, 1, 4], [6]], [2, 6, 12]),  # a document of one token has nothing to learn
    ],
)
def test_a_causal_batch_as_documents(rows, ends):
    start = np.stack([padded(*row) for row in rows])
    found = document_ends(start, np.tile(np.arange(S) + 1, (len(rows), 1)))
    assert found.shape == (SLOTS[0],) and found.dtype == np.int64
    assert found[: len(ends)].tolist() == ends
    assert (np.diff(found) > 0).all() and found[-1] == start.size + len(found)


def test_a_batch_that_is_more_than_causal_is_no_documents():
    start, end = intervals("prefix")
    assert document_ends(start, end) is None
    start, end = intervals("padded")  # on the left, as when texts are written
    assert document_ends(start, end) is None
    start, end = intervals("causal")
    start[0, 3] = 1  # a window
    assert document_ends(start, end) is None


def test_more_documents_are_more_slots_up_to_what_the_operator_takes():
    def of(count: int):
        start = np.arange(2 * count)[None] // 2 * 2
        return document_ends(start, np.arange(2 * count)[None] + 1)

    assert [None if (found := of(count)) is None else len(found) for count in (63, 64, 255, 256, 1023, 1024)] == [
        *(64, 256, 256, 1024, 1024),
        None,
    ]


@pytest.mark.parametrize("heads", [4, 2, 1])
def test_documents_are_what_the_plain_path_gives_for_their_intervals(calls, heads):
    random = np.random.default_rng(3)
    query = Tensor(random.normal(size=(B, 4, S, D)).astype(np.float16))
    keys, values = (Tensor(random.normal(size=(B, heads, S, D)).astype(np.float16)) for _ in range(2))
    start, end = np.stack([padded(2, 4), padded(3, 2)]), intervals("causal")[1]
    cell = AttentionCore(4, heads, D)
    assert cell.takes_documents
    ends = Tensor(document_ends(start, end))
    fused = cell(query, keys, values, Tensor(start), ends, None)
    assert [each["input_layout"] for each in calls] == ["TND"]
    cell.fused = False
    plain = cell(query, keys, values, Tensor(start), Tensor(end), None).asnumpy()
    assert np.abs(fused.asnumpy().astype(np.float32) - plain.astype(np.float32)).max() < 4e-3
    # what does not go by the operator finds its intervals again

    def without_keep(*given):
        return cell(*given, None)

    again = Graph(without_keep)(query, keys, values, Tensor(start), ends)
    assert np.abs(again.asnumpy() - plain).max() < 4e-3
    assert len(calls) == 1


def test_cells_that_see_otherwise_take_no_documents(calls):
    assert not AttentionCore(2, 2, D, causal=False).takes_documents
    assert not AttentionCore(2, 2, D, window=2).takes_documents
    assert not AttentionCore(2, 2, D, cap=5.0).takes_documents
    assert not Prefixed(2, 2, D).takes_documents
    cell = AttentionCore(2, 2, D)
    cell.drop = lambda weights: weights
    assert not cell.takes_documents


# The choice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "width", "switch", "has"),
    [("Ascend", 64, None, True), ("Ascend", 40, None, False), ("CPU", 64, None, False), ("Ascend", 64, "0", False)],
)
def test_device_width_and_switch_decide(monkeypatch, target, width, switch, has):
    monkeypatch.setattr(ms, "get_context", lambda name: target)
    monkeypatch.delenv("PET_NATIVE", raising=False)
    if switch is not None:
        monkeypatch.setenv("PET_NATIVE", switch)
    assert ascend.attention.has_fused_attention(width) == has
    assert ascend.has_operators() == (target == "Ascend" and switch is None)
