"""Head and loss in one, against the logits of all tokens and the loss of them."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple

from adapters.apply import apply_lora
from model_zoo.auto import AutoModel
from model_zoo.engine import available, loss as engine_loss
from model_zoo.graph import Graph
from pet.data.dataset import IGNORED
from pet.train.feed import complete
from pet.train.objectives.causal import DFT, CausalLM, RDrop, plain_head, shift_labels
from pet.train.step import tensors

needs_kernels = pytest.mark.skipif(not available(), reason="there are no kernels in C here")


def batch_for(model, answers: bool = True) -> list:
    """Rows of which a third of the tokens, or none, have labels."""
    random = np.random.default_rng(0)
    ids = random.integers(5, model.config.dims.vocab - 10, (4, 24)).astype(np.int32)
    labels = np.where((random.random(ids.shape) < 0.3) & answers, ids, IGNORED)
    labels[1::2] = labels[::2]  # pairs of R-Drop have the same
    return tensors(complete({"input_ids": ids, "labels": labels}, model), CausalLM.arrays)


@needs_kernels
@pytest.mark.cover(pairs=False)
# a head that is the embedding, and one of its own
@pytest.mark.parametrize("name, answers", [("gpt2", True), ("llama_gqa", True), ("llama_gqa", False)])
@pytest.mark.parametrize("objective", [CausalLM(), CausalLM(0.1), RDrop(1.0, 0.1)], ids=["plain", "smoothed", "pairs"])
def test_all_gradients_are_those_by_logits(shortened, monkeypatch, name, answers, objective):
    monkeypatch.setattr(engine_loss, "CHUNK_ROWS", 1)
    monkeypatch.setattr(engine_loss, "CHUNK_BYTES", 4 * 4000)  # several pieces
    model = AutoModel.from_pretrained(shortened(name))
    weights = ParameterTuple(model.trainable_params())
    batch = batch_for(model, answers)
    assert objective.loss_of_hidden(model) is not None
    fast, slow = (ms.value_and_grad(objective.forward(model, fast), None, weights) for fast in (True, False))
    (mine, mine_of), (plain, plain_of) = Graph(fast)(*batch), slow(*batch)
    assert float(mine.asnumpy()) == pytest.approx(float(plain.asnumpy()), rel=1e-6)
    assert (float(plain.asnumpy()) > 0) == answers
    for weight, one, other in zip(weights, mine_of, plain_of, strict=True):
        one, other = one.asnumpy(), other.asnumpy()
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * max(1, np.abs(other).max()), err_msg=weight.name)


@needs_kernels
@pytest.mark.parametrize("answers", [True, False])
def test_what_is_measured_is_that_by_logits(shortened, answers):
    model = AutoModel.from_pretrained(shortened("chatglm2"))
    assert CausalLM().measure_of_hidden(model) is not None
    batch = batch_for(model, answers)
    if answers:  # some that are ranked first: what the model itself would say
        ids, positions, start, end, labels = batch
        best = model.head(model.hidden_states(ids, positions, start, end, None)).asnumpy().argmax(-1).reshape(ids.shape)
        batch[4] = ms.Tensor(np.where(labels.asnumpy() == IGNORED, IGNORED, np.roll(best, 1, 1)).astype(np.int32))
        batch[4][0] = ids[0]
    mine = [float(x.asnumpy()) for x in Graph(CausalLM().measured(model, fast=True))(*batch)]
    plain = [float(x.asnumpy()) for x in CausalLM().measured(model)(*batch)]
    assert mine == pytest.approx(plain, rel=1e-6)
    assert (mine[1] > 0) == answers and (not answers or mine[1] < (batch[4].asnumpy() != IGNORED).sum())


def test_a_head_that_is_more_than_a_product_goes_by_logits(fixtures):
    model = AutoModel.from_pretrained(fixtures / "llama_gqa")
    assert plain_head(model) is model.lm_head
    apply_lora(model, targets=["lm_head"])
    assert plain_head(model) is None and CausalLM().loss_of_hidden(model) is None


def test_dft_weighs_each_loss_by_its_own_probability():
    """The loss and its gradient by torch: the probability is a number there, and no gradient goes through it."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(5)
    logits, labels = (
        random.standard_normal((2, 5, 7)).astype(np.float32),
        random.integers(0, 7, (2, 5)).astype(np.int32),
    )
    labels[0, 2:4] = IGNORED
    given = torch.tensor(logits, requires_grad=True)
    targets = torch.tensor(np.pad(labels[:, 1:], ((0, 0), (0, 1)), constant_values=IGNORED)).long().reshape(-1)
    losses = torch.nn.functional.cross_entropy(given.reshape(-1, 7), targets, ignore_index=IGNORED, reduction="none")
    (losses * torch.exp(-losses).detach() * (targets != IGNORED)).sum().backward()
    mine, gradient = ms.value_and_grad(DFT().loss)(ms.Tensor(logits), ms.Tensor(labels))
    expected = (losses * torch.exp(-losses) * (targets != IGNORED)).sum().item()
    assert float(mine.asnumpy()) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient.asnumpy(), given.grad.numpy(), rtol=0, atol=1e-6)
    plain = CausalLM().measure(ms.Tensor(logits), ms.Tensor(labels))
    assert all(
        float(a.asnumpy()) == float(b.asnumpy())
        for a, b in zip(plain, DFT().measure(ms.Tensor(logits), ms.Tensor(labels)), strict=True)
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_one_token_have_no_target(compiled):
    targets = Graph(shift_labels) if compiled else shift_labels
    for number in range(2):
        assert targets(ms.Tensor([[number], [5], [9]], ms.int32)).asnumpy().tolist() == [[IGNORED]] * 3
    assert targets(ms.Tensor([[3, 4]], ms.int32)).asnumpy().tolist() == [[4, IGNORED]]
