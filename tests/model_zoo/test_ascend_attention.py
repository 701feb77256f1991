"""Ascend's fused attention behind `AttentionCore`, against its plain path: a NumPy model of the operator's documented
semantics stands in for it, and refuses what its documentation refuses."""

import inspect

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from model_zoo import ascend_attention
from model_zoo.layers import AttentionCore, visible

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
    """``ops.flash_attention_score`` by its documentation, for the layout BNSD and a whole mask."""
    assert query.dtype in (ms.float16, ms.bfloat16) and query.dtype == key.dtype == value.dtype
    assert input_layout == "BNSD" and sparse_mode in (0, 1) and keep_prob == 1.0
    assert (real_shift, drop_mask, padding_mask, prefix, actual_seq_qlen, actual_seq_kvlen) == (None,) * 6
    batch, heads, rows, width = query.shape
    assert key.shape == value.shape and (key.shape[0], key.shape[3]) == (batch, width)
    assert heads == head_num <= 256 and heads % key.shape[1] == 0
    assert width % 16 == 0 and width <= 512
    columns = key.shape[2]
    assert attn_mask.dtype in (ms.bool_, ms.uint8)
    assert attn_mask.shape in ((batch, heads, rows, columns), (batch, 1, rows, columns), (rows, columns))
    q, k, v = (each.astype(ms.float32).asnumpy() for each in (query, key, value))
    k, v = (np.repeat(each, heads // key.shape[1], 1) for each in (k, v))
    scores = scalar_value * (q @ k.swapaxes(2, 3))
    scores = np.where(attn_mask.asnumpy() != 0, -np.inf, scores)  # 1 is discarded
    weights = np.exp(scores - scores.max(-1, keepdims=True))  # NaN where all are: that is not to be asked
    return Tensor((weights / weights.sum(-1, keepdims=True) @ v).astype(np.float32)).astype(query.dtype)


@pytest.fixture
def calls(monkeypatch) -> list:
    """The operator's stand-in, on what says it is Ascend; every call is noted."""
    found = []

    def stand_in(*arguments, **settings):
        found.append(settings)
        return operator(*arguments, **settings)

    monkeypatch.setattr(ascend_attention, "has_fused_attention", lambda width: True)
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
    cell.drop = lambda weights: weights
    cell.set_train(True)
    run(np.float16)  # dropout of the weights, whose mask is ours
    assert not calls
    run(np.float16, AttentionCore(2, 2, D, cap=5.0))  # scores that are capped before the softmax
    assert not calls
    cell.drop = None
    run(np.float16)
    assert len(calls) == 1


@pytest.mark.parametrize(("target", "width", "has"), [("Ascend", 64, True), ("Ascend", 40, False), ("CPU", 64, False)])
def test_the_device_and_the_width_decide(monkeypatch, target, width, has):
    monkeypatch.setattr(ms, "get_context", lambda name: target)
    assert ascend_attention.has_fused_attention(width) == has
