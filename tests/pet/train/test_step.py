from __future__ import annotations

import logging

import numpy as np
import pytest

from pet.train.feed import count_useful
from pet.train.loss_scale import LossScale
from pet.train.objectives.causal import CausalLM, RDrop, count_labels
from pet.train.objectives.custom import CustomForward
from pet.train.optimizers import SGD, AdamW
from pet.train.segments import make_segments
from pet.train.step import TrainStep, mix
from pet.train.stop import HARD


def softmax(logits):
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def log_probabilities(model, batch):
    values = {name: value.asnumpy().astype(np.float64) for name, value in model.parameters_dict().items()}
    hidden = np.tanh(values["embed"][batch["input_ids"]] @ values["mix"] + values["bias"])
    return np.log(softmax(hidden @ values["embed"].T))


def expected_loss(model, batches, smoothing=0.0):
    total = count = 0.0
    for batch in batches:
        logs = log_probabilities(model, batch)[:, :-1]
        targets = batch["labels"][:, 1:]
        learnt = targets != -100
        picked = np.take_along_axis(logs, np.maximum(targets, 0)[..., None], -1)[..., 0]
        losses = -(1 - smoothing) * picked - smoothing * logs.mean(-1)
        total += losses[learnt].sum()
        count += learnt.sum()
    return total / count


def make(model, loss=None, optimizer=AdamW, segments=None, **settings):
    segments = segments or make_segments([p for p in model.get_parameters() if p.requires_grad])
    return TrainStep(model, optimizer(segments), loss or CausalLM(), **settings)


def split(batch, parts):
    size = len(batch["input_ids"]) // parts
    return [{key: value[i * size : (i + 1) * size] for key, value in batch.items()} for i in range(parts)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_the_mean_over_the_label_tokens_of_all_micro_batches(toy, batch, smoothing):
    model, batches = toy(), [batch(2, seed=1), batch(2, seed=2)]
    expected = expected_loss(model, batches, smoothing)
    result = make(model, CausalLM(label_smoothing=smoothing))(batches, 0, 0.01)
    assert result.loss == pytest.approx(expected, abs=1e-5)
    assert result.count == sum(count_labels(b["labels"]) for b in batches)


def test_accumulation_equals_one_batch_with_uneven_rows(toy, batch, weights):
    """8 × 1 = 4 × 2 = 2 × 4, though the micro-batches have different numbers of labels."""
    whole = batch(8, seed=3)
    found = {}
    for parts in (1, 2, 4):
        model = toy()
        step = make(model, clip_norm=0.5)
        losses = [step(split(whole, parts), number, 0.01).loss for number in range(5)]
        found[parts] = (losses, weights(model))
    counts = [count_labels(part["labels"]) for part in split(whole, 4)]
    assert len(set(counts)) > 1
    for parts in (2, 4):
        assert found[parts][0] == pytest.approx(found[1][0], abs=1e-6)
        for name, value in found[1][1].items():
            assert np.abs(found[parts][1][name] - value).max() < 1e-6


def test_clipping_bounds_the_step_and_leaves_small_gradients(toy, batch, weights):
    model = toy()
    before = weights(model)
    step = make(model, optimizer=SGD, clip_norm=1e-3)
    result = step([batch(4)], 0, 1.0)
    moved = np.sqrt(sum(((weights(model)[name] - before[name]) ** 2).sum() for name in before))
    assert result.gradient_norm > 0.01
    assert moved == pytest.approx(1e-3, rel=1e-3)
    free = toy()
    make(free, optimizer=SGD, clip_norm=1e6)([batch(4)], 0, 1.0)
    moved = np.sqrt(sum(((weights(free)[name] - before[name]) ** 2).sum() for name in before))
    assert moved == pytest.approx(result.gradient_norm, rel=1e-4)


def test_frozen_parameters_stay_bit_for_bit(toy, batch, weights):
    model = toy()
    model.embed.requires_grad = False
    before = weights(model)
    step = make(model)
    for number in range(3):
        step([batch(4)], number, 0.1)
    after = weights(model)
    assert np.array_equal(after["embed"], before["embed"])
    assert not np.array_equal(after["mix"], before["mix"])


def test_loss_scale_cancels_and_an_overflow_skips_the_update(toy, batch, weights):
    plain, scaled = toy(), toy()
    make(plain)([batch(4)], 0, 0.01, 1.0)
    step = make(scaled)
    assert step([batch(4)], 0, 0.01, 1024.0).applied
    for name, value in weights(plain).items():
        np.testing.assert_allclose(weights(scaled)[name], value, atol=1e-6)
    before, state = weights(scaled), step.optimizer.state_arrays()
    result = step([batch(4)], 1, 0.01, 3e38)
    assert not result.finite and not result.applied and np.isfinite(result.loss)
    assert all(np.array_equal(weights(scaled)[name], value) for name, value in before.items())
    assert all(np.array_equal(step.optimizer.state_arrays()[name], value) for name, value in state.items())


def test_loss_above_the_limit_is_not_learnt(toy, batch, weights):
    model = toy()
    before = weights(model)
    result = make(model)([batch(4)], 0, 0.1, limit=0.5)
    assert result.finite and not result.applied and result.loss > 0.5
    assert all(np.array_equal(weights(model)[name], value) for name, value in before.items())
    for one, applied in ((0.5 * HARD, True), (1.5 * HARD, False)):  # what a single token may add to the sum
        step = make(toy())
        assert step([batch(4)], 0, 0.1, limit=result.loss - one / result.count).applied is applied


def test_dynamic_scale_falls_on_overflow_and_grows_after_a_quiet_window():
    scale = LossScale(scale=1024.0, factor=4.0, window=2, enabled=True)
    assert scale.overflow() and scale.scale == 256.0 and scale.skipped == 1
    scale.good()
    scale.good()
    assert scale.scale == 1024.0
    scale.good()
    assert scale.overflow() and (scale.scale, scale.quiet) == (256.0, 0), "the quiet time begins anew"
    scale.good()
    assert (scale.scale, scale.quiet) == (256.0, 1)
    again = LossScale(enabled=True, factor=4.0, window=2)
    again.load(scale.state())
    assert again.state() == scale.state()
    assert not LossScale(scale=1.0, enabled=True).overflow()
    constant = LossScale()
    for _ in range(constant.window):
        constant.good()
    assert not constant.overflow() and constant == LossScale()


def test_r_drop_adds_the_divergence_of_twin_rows(toy, batch):
    """Without dropout the twins agree and it adds nothing; with two models' rows it is the formula."""
    model, rows = toy(), batch(2, seed=5)
    plain = make(toy())([rows], 0, 0.0).loss
    assert make(model, RDrop(4.0))([rows], 0, 0.0).loss == pytest.approx(plain, abs=1e-5)
    from mindspore import Tensor

    logits = np.random.default_rng(0).normal(size=(2, 4, 7)).astype(np.float32)
    labels = np.array([[-100, 1, 2, -100]] * 2, np.int32)
    both = RDrop(3.0)(Tensor(logits), Tensor(labels)).asnumpy()
    without = CausalLM()(Tensor(logits), Tensor(labels)).asnumpy()
    p, q = softmax(logits[0].astype(np.float64)), softmax(logits[1].astype(np.float64))
    divergence = (p * np.log(p / q) + q * np.log(q / p)).sum(-1)[:2].sum()
    # two rows, each with α/4 of the pair's divergence at its label tokens
    assert both - without == pytest.approx(3.0 / 4 * 2 * divergence, rel=1e-5)


def test_r_drop_has_twin_rows_in_training_alone(batch):
    rows = batch(2, seed=5)
    trained, measured = (RDrop(4.0).prepare(rows, training) for training in (True, False))
    for name in ("input_ids", "labels", "position_ids", "start", "end"):
        assert trained[name].tolist() == [rows[name][row].tolist() for row in (0, 0, 1, 1)]
        assert measured[name].tolist() == rows[name].tolist()


def test_forward_step_may_give_a_loss_or_logits(toy, batch):
    rows = batch(4)

    def by_logits(data, model):
        return {"logits": model(data["input_ids"])}

    def by_loss(data, model):
        return {"loss": (model.mix * model.mix).sum()}

    expected = make(toy())([rows], 0, 0.01).loss
    assert make(toy(), loss=CustomForward(CausalLM(), by_logits))([rows], 0, 0.01).loss == pytest.approx(
        expected, abs=1e-6
    )
    model = toy()
    square = float((model.mix.asnumpy().astype(np.float64) ** 2).sum())
    assert make(model, loss=CustomForward(CausalLM(), by_loss))([rows], 0, 0.0).loss == pytest.approx(square, rel=1e-5)


def test_a_step_that_cannot_be_compiled_runs_with_one_warning(toy, batch, caplog):
    rows, seen = batch(4), []

    def with_python(data, model):
        seen.append(str(data["input_ids"].asnumpy().sum()))
        with open("/dev/null", "w") as stream:
            print(seen[-1], file=stream)
        return {"logits": model(data["input_ids"])}

    expected = [make(toy())([rows], number, 0.01).loss for number in range(1)]
    step = make(toy(), CustomForward(CausalLM(), with_python))
    with caplog.at_level(logging.WARNING, "pet"):
        found = [step([rows], number, 0.01).loss for number in range(2)]
    assert found[:1] == pytest.approx(expected, abs=1e-6)
    assert found[1] < found[0] and len(seen) >= 2
    assert len([record for record in caplog.records if "operator by operator" in record.message]) == 1


def test_uncompiled_agrees_with_compiled(toy, batch, weights):
    rows, models = batch(4), (toy(), toy())
    for model, compiled in zip(models, (True, False), strict=True):
        step = make(model, compiled=compiled, clip_norm=1.0)
        for number in range(3):
            step([rows, rows], number, 0.01)
    for name, value in weights(models[0]).items():
        np.testing.assert_allclose(weights(models[1])[name], value, atol=1e-6)


def test_a_new_shape_is_compiled_once(toy, batch):
    step = make(toy())
    first = step([batch(4, 8)], 0, 0.01)
    assert first.compile_seconds > 0
    assert step([batch(4, 8, seed=9)], 1, 0.01).compile_seconds == 0
    assert step([batch(4, 12)], 2, 0.01).compile_seconds > 0
    assert step([batch(4, 12, seed=9)], 3, 0.01).compile_seconds == 0


def test_useful_tokens_leave_padding_out():
    """Two documents of 3 and 2 tokens and two of padding; see the drawing in pet.data.packing."""
    start = np.array([[0, 0, 0, 3, 3, 5, 6], [0, 0, 0, 0, 0, 0, 0]])
    end = np.zeros_like(start) + np.arange(1, 8)
    assert count_useful({"start": start, "end": end}) == 5 + 7


def test_keys_differ_in_every_argument():
    keys = {mix(seed, step, micro, 0) for seed in range(4) for step in range(50) for micro in range(4)}
    assert len(keys) == 800
    assert all(0 <= key < 2**31 for key in keys)
    assert mix(1, 2, 3) == mix(1, 2, 3) != mix(3, 2, 1)
    assert mix(0) == 0xE220A8397B1DCDAF & 0x7FFFFFFF  # SplitMix64's first number from the seed 0
