"""Models that scripts train by loops of their own: MindFormers' loss in training, and its outputs otherwise."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, Model
from pet.compat.mindformers.core import PerplexityMetric
from sets import some

import pet
from model_zoo.errors import InputError
from model_zoo.labels import Labels
from pet.compat.mindformers import AutoModel, LoraConfig, Trainer, get_pet_model

LENGTH = 9
NAMES = ("llama_tiny", "gpt_tiny", "glm_tiny", "glm4_tiny")
SHIFTS = ("llama_tiny", "gpt_tiny")
PADS = {"llama_tiny": 0, "gpt_tiny": 1215}
"""MindFormers' default, and GPT-2's end token."""


@pytest.fixture(params=[ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=request.param)
    yield request.param
    ms.set_context(mode=before)


def rows(name: str, model) -> list[np.ndarray]:
    """Ids with padding behind the second row and within the first; labels of families whose loss is of these."""
    ids = np.random.default_rng(0).integers(20, 300, (2, LENGTH)).astype(np.int32)
    pad = PADS.get(name, 5)
    ids[1, 6:] = pad
    if name in SHIFTS:
        ids[0, 3] = pad
        return [ids]
    if name == "glm_tiny":
        ids[:, 3:5] = model.config.gmask_token_id, model.config.bos_token_id
    return [ids, np.where((np.arange(LENGTH) > 4) & (ids != pad), ids, -100).astype(np.int32)]


def cross_entropy(logits: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> float:
    """MindFormers' formula: ``Σ mask · loss / (Σ mask + 1e-8)``, in float64."""
    logits = logits.astype(np.float64)
    logs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    logs -= logits.max(-1, keepdims=True)
    losses = -np.take_along_axis(logs, np.maximum(labels, 0)[..., None], -1)[..., 0]
    return float((losses * mask).sum() / (mask.sum() + 1e-8))


def logits_of(name: str, ids: np.ndarray, real: np.ndarray | None) -> np.ndarray:
    """The plain model's, of positions counted from the first column."""
    plain, ids = pet.AutoModel.from_pretrained(name), Tensor(ids)
    where, start, end, _ = plain.layout(ids)
    keep = None if real is None else Tensor(real.astype(np.int32))
    return plain.head(plain.hidden_states(ids, where, start, end, keep)).asnumpy().reshape(*ids.shape, -1)


def stated(name: str, ids: np.ndarray, labels: np.ndarray | None = None) -> float:
    """What MindFormers' cell gives of these rows."""
    if name not in SHIFTS:
        return cross_entropy(logits_of(name, ids, None), labels, labels != -100)
    pad = PADS[name]
    real = ids != pad
    mask = real[:, 1:] if name == "gpt_tiny" else real[:, :-1]  # GPT-2's is of labels, LLaMA's of questions
    if labels is not None:
        mask = mask & (labels[:, 1:] != -100)
    learnt = ids if labels is None else labels
    return cross_entropy(logits_of(name, ids[:, :-1], real[:, :-1]), learnt[:, 1:], mask)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_mindformers_in_training(name):
    model = AutoModel.from_pretrained(name)
    columns = rows(name, model)
    model.set_train(True)
    given = [Tensor(column) for column in columns]
    loss, gradients = ms.value_and_grad(model, None, model.trainable_params())(*given)
    assert loss.shape == (1,)
    assert float(loss) == pytest.approx(stated(name, *columns), rel=1e-6)
    if name == "llama_tiny":  # of labels, too
        labels = np.where(np.arange(LENGTH) > 3, columns[0], -100).astype(np.int32)
        assert float(model(given[0], Tensor(labels))) == pytest.approx(stated(name, *columns, labels), rel=1e-6)
    # its derivative along the gradient
    weight, gradient = max(zip(model.trainable_params(), gradients, strict=True), key=lambda pair: abs(pair[1]).sum())
    before, slope = weight.asnumpy().copy(), gradient.asnumpy()
    step = 1e-3 / np.linalg.norm(slope)
    sides = []
    for sign in (1, -1):
        weight.set_data(Tensor(before + sign * step * slope))
        sides.append(float(model(*given)))
    assert (sides[0] - sides[1]) / (2 * step) == pytest.approx((slope**2).sum(), rel=2e-2)


class Losses(Callback):
    def __init__(self):
        self.seen = []

    def step_end(self, run_context):
        self.seen.append(float(run_context.original_args().net_outputs.asnumpy().reshape(())))


@pytest.mark.parametrize("name", some(["llama_tiny", "gpt_tiny"], ["llama_tiny"]))
def test_mindspores_model_trains_an_adapter(name, mode):
    model = get_pet_model(AutoModel.from_pretrained(name), LoraConfig(lora_rank=4, lora_alpha=8, lora_dropout=0.0))
    (ids,) = rows(name, model)
    expected = stated(name, ids)
    data = NumpySlicesDataset({"input_ids": ids}, shuffle=False).batch(2)
    losses, frozen = Losses(), {one.name: one.asnumpy().copy() for one in model.get_parameters()}
    optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=1e-2)
    trainer = Model(model, optimizer=optimizer, metrics={"perplexity": PerplexityMetric()}, eval_network=model)
    trainer.train(3, data, callbacks=losses, dataset_sink_mode=False)
    assert losses.seen[0] == pytest.approx(expected, rel=1e-5)
    assert losses.seen[2] < losses.seen[1] < losses.seen[0]
    changed = {one.name for one in model.get_parameters() if not np.array_equal(frozen[one.name], one.asnumpy())}
    assert changed == {one.name for one in model.trainable_params()}
    model.set_train(False)
    logits, tokens, mask = (one.asnumpy() for one in model(Tensor(ids)))
    assert np.array_equal(tokens, ids) and {*mask.ravel()} == ({1.0, 2.0} if name == "gpt_tiny" else {0.0, 1.0})
    found = trainer.eval(data, dataset_sink_mode=False)["perplexity"]
    assert found["loss"] == pytest.approx(cross_entropy(logits[:, :-1], ids[:, 1:], mask[:, 1:]), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_outside_of_training_it_gives_what_theirs_gives(name):
    model = AutoModel.from_pretrained(name)
    columns = rows(name, model)
    ids, *labels = columns
    found = [one.asnumpy() for one in model(ids)]
    if name in SHIFTS:
        pad = PADS[name]
        assert np.array_equal(found[1], ids)
        assert np.array_equal(found[2], (ids != pad) + float(name == "gpt_tiny"))  # the latter's has 1 more
        assert np.allclose(found[0], logits_of(name, ids, ids != pad), atol=1e-5)
        return
    plain = logits_of(name, ids, None)
    assert len(found) == 1
    assert found[0].shape == ((2 * LENGTH, plain.shape[-1]) if name == "glm_tiny" else plain.shape)
    assert np.allclose(found[0].reshape(plain.shape), plain, atol=1e-5)
    if name == "glm4_tiny":
        found = [one.asnumpy() for one in model(ids, *labels)]
        assert np.allclose(found[0][:, :-1], plain, atol=1e-5) and not found[0][:, -1].any()
        assert np.array_equal(found[1][:, 1:], *labels) and not found[1][:, 0].any()
        assert np.array_equal(found[2][:, 1:], labels[0] != -100) and not found[2][:, 0].any()


def test_the_same_object_is_trained_asked_measured_and_saved_here(tmp_path):
    model, plain = AutoModel.from_pretrained("llama_tiny"), pet.AutoModel.from_pretrained("llama_tiny")
    pet.apply_lora(model, rank=4, dropout=0.0, seed=0)
    pet.apply_lora(plain, rank=4, dropout=0.0, seed=0)
    (ids,) = rows("llama_tiny", model)
    for one in (model, plain):
        assert pet.Trainer(one, [{"input_ids": ids}] * 3, steps=3, learning_rate=1e-2).train()["steps"] == 3
    weights = [one.asnumpy() for one in model.get_parameters()]
    assert all(
        np.array_equal(*pair) for pair in zip(weights, (one.asnumpy() for one in plain.get_parameters()), strict=True)
    )
    for cache in (True, False):
        asked = [one.generate(ids[:1, :6], max_new_tokens=4, use_cache=cache) for one in (model, plain)]
        assert np.array_equal(*asked)
    how = {"output_dir": str(tmp_path / "run"), "use_parallel": False}
    assert Trainer(model=model, args=how, eval_dataset=[{"input_ids": ids}]).evaluate()["loss"] > 0
    model.set_train(True)
    loss = float(model(ids))
    pet.merge(model)
    assert float(model(ids)) == pytest.approx(loss, rel=1e-5)
    pet.merge_and_unload(model)
    model.save_pretrained(tmp_path / "merged")
    again = AutoModel.from_pretrained(tmp_path / "merged").set_train(True)
    assert float(again(input_ids=ids)) == pytest.approx(loss, rel=1e-5)


def test_a_classifiers_loss_is_of_the_last_token_of_the_mask(tmp_path):
    plain = pet.AutoModel.from_pretrained("gpt_tiny")
    plain.add_score(Labels.plain(3), seed=0)
    plain.become_classifier(Labels.plain(3))
    plain.save_pretrained(tmp_path / "classifier")
    model = AutoModel.from_pretrained(tmp_path / "classifier")
    ids = np.random.default_rng(0).integers(20, 300, (3, LENGTH)).astype(np.int32)
    mask = np.arange(LENGTH) < np.array([[9], [4], [6]])
    labels, last = np.array([2, 0, 1], np.int32), mask.sum(1) - 1
    logits = plain(ids, mask).asnumpy()[np.arange(3), last]
    assert np.allclose(model(ids, mask).asnumpy(), logits, atol=1e-6)
    assert np.allclose(pet.scores(model, ids, mask), logits, atol=1e-6)
    model.set_train(True)
    given = [Tensor(one) for one in (ids, mask.astype(np.int32), labels)]
    loss, _ = ms.value_and_grad(model, None, model.trainable_params())(*given)
    assert float(loss) == pytest.approx(cross_entropy(logits, labels, np.ones(3)), rel=1e-6)


def test_what_it_cannot_be_called_with():
    llama, glm = AutoModel.from_pretrained("llama_tiny"), AutoModel.from_pretrained("glm_tiny")
    room = llama.config.dims.context
    with pytest.raises(InputError, match=f"has {room + 1} tokens, but the context holds {room}"):
        llama(np.full((1, room + 1), 20))
    with pytest.raises(InputError, match="input_position is not supported"):
        llama(np.full((1, 4), 20), input_position=Tensor([1]))
    llama.set_train(True)
    assert llama(np.full((1, room + 1), 20)).shape == (1,)  # the last one is predicted
    with pytest.raises(InputError, match=r"attention_mask has shape \(1, 3\)"):
        llama(np.full((1, 4), 20), attention_mask=np.ones((1, 3)))
    with pytest.raises(InputError, match=r"labels have shape \(1, 1\), input_ids \(1, 4\)"):
        llama(np.full((1, 4), 20), Tensor([[20]]))
    with pytest.raises(InputError, match="5 columns; this family's cell takes input_ids, labels, position_ids, attent"):
        glm(rows("glm_tiny", glm)[0], None, None, None, None)
    glm.set_train(True)
    with pytest.raises(InputError, match="labels are missing"):
        glm(rows("glm_tiny", glm)[0])
    gpt = AutoModel.from_pretrained("gpt_tiny").set_train(True)
    (ids,) = rows("gpt_tiny", gpt)
    mask = ids != gpt.config.eos_token_id
    assert float(gpt(input_ids=ids, input_mask=mask)) == float(gpt(ids))  # by the name of release 0.6


@pytest.mark.parametrize("training", [False, True])
def test_models_by_names_of_pet_give_logits_in_every_mode(training):
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 50}
    ids = np.arange(6)[None]
    for name in ("GPT2", "Llama"):
        config = getattr(pet, f"{name}Config")(**sizes)
        model = getattr(pet, {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM"))(config).set_train(training)
        assert model(ids).shape == (1, 6, 50)
    assert pet.LlamaForCausalLM.from_pretrained("llama_tiny").set_train(training)(ids).shape[:2] == (1, 6)
