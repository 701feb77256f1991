"""MindFormers' builders and registry, and its metrics as objects."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
import pytest
import yaml
from mindspore import nn
from mindspore.dataset import MindDataset
from mindspore.mindrecord import FileWriter
from pet.compat.mindformers.core.loss.loss import CrossEntropyLoss

import pet
from adapters.apply import list_adapters
from model_zoo.errors import InputError
from pet.compat import mindformers as theirs
from pet.compat.mindformers import MindFormerConfig, MindFormerModuleType, MindFormerRegister
from pet.compat.mindformers.learning_rates import CosineWithWarmUpLR, LinearWithWarmUpLR

SIZES = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "vocab_size": 100, "seq_length": 16}
SECTION = {"arch": {"type": "LlamaForCausalLM"}, "model_config": {"type": "LlamaConfig", **SIZES}}


def test_what_a_job_files_sections_name_is_built(tmp_path):
    model = theirs.build_model(MindFormerConfig(**SECTION))
    assert model.config.dims.hidden == 32 and model.config.seq_length == 16
    assert theirs.build_model(SECTION, default_args={"num_layers": 2}).config.dims.layers == 2
    pet = {"pet_type": "lora", "lora_rank": 2, "lora_alpha": 4}
    network = theirs.build_network({**SECTION, "model_config": {**SECTION["model_config"], "pet_config": pet}})
    assert list_adapters(network) == ["default"]
    assert theirs.build_model_config({"type": "GPT2Config", "num_layers": 3}).n_layer == 3
    rate = theirs.build_lr({"type": "cosine", "learning_rate": "1e-4", "warmup_steps": 2, "total_steps": 10})
    assert isinstance(rate, CosineWithWarmUpLR) and math.isclose(rate(ms.Tensor(2)).item(), 1e-4, rel_tol=1e-6)
    params = {"params": model.trainable_params()}
    adamw = {"type": "AdamW", "learning_rate": "1e-3", "eps": "1e-6", "betas": ["9e-1", "95e-2"]}
    made = theirs.build_optim(adamw, params)
    assert (made.betas, made.eps) == ((0.9, 0.95), 1e-6) and math.isclose(made.get_lr().item(), 1e-3, rel_tol=1e-6)
    within = {"type": "LinearWithWarmUpLR", "learning_rate": 1e-3, "warmup_steps": 1, "total_steps": 4}
    made = theirs.build_optim({"type": "adamw", "learning_rate": within}, params)
    assert isinstance(made, nn.AdamWeightDecay) and isinstance(made.learning_rate, LinearWithWarmUpLR)
    assert isinstance(theirs.build_optim(class_name="Momentum", learning_rate=0.1, momentum=0.9, **params), nn.Momentum)
    monitors = [{"type": "MFLossMonitor", "per_print_times": 3}, {"type": "CheckpointMonitor"}]
    assert theirs.build_callback(monitors) == monitors
    assert isinstance(theirs.build_loss(class_name="L1Loss"), nn.L1Loss)
    assert theirs.build_lr() is theirs.build_model() is theirs.build_metric(None) is None


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_the_loss_is_mindformers_own(mode):
    """`mindspore.nn` has another class of this name, which takes no mask. Numbers are MindFormers' own of 1.7."""
    made = theirs.build_loss(class_name="CrossEntropyLoss")
    assert type(made) is CrossEntropyLoss is theirs.CrossEntropyLoss
    random = np.random.RandomState(0)
    logits = ms.Tensor(random.randn(6, 11).astype(np.float32) * 4)
    labels = ms.Tensor(random.randint(0, 11, 6).astype(np.int32))
    mask = ms.Tensor(np.array([[1, 0, 1], [1, 1, 0]], np.float32))
    before = ms.get_context("mode")
    ms.set_context(mode=mode)
    try:
        loss = made(logits, labels, mask)
        total, count = theirs.CrossEntropyLoss(calculate_per_token_loss=True)(logits, labels, mask)
        gradient = ms.grad(made)(logits, labels, mask).asnumpy()
        beyond = made(logits, ms.Tensor(np.full(6, -100, np.int32)), mask)
    finally:
        ms.set_context(mode=before)
    assert loss.asnumpy() == pytest.approx([6.9586387], abs=1e-7) and loss.shape == count.shape == (1,)
    assert (float(total), float(count[0])) == pytest.approx((27.8346, 4.0), rel=1e-5)
    assert np.abs(gradient).sum() == pytest.approx(1.6389866, rel=1e-5) and not gradient[[1, 5]].any()
    assert beyond.asnumpy() == [0.0]
    with pytest.raises(InputError, match="monitor_device_local_loss=True: is not supported"):
        theirs.CrossEntropyLoss(monitor_device_local_loss=True)


def test_a_tokenizer_and_a_processor_are_built(base_tokenizer):
    files = {"vocab_file": "vocab.json", "merges_file": "merges.txt"}
    section = {"type": "GPT2Tokenizer", **{name: str(base_tokenizer / file) for name, file in files.items()}}
    assert theirs.build_tokenizer(section).encode("a red shirt")
    processor = theirs.build_processor({"type": "GPT2Processor", "tokenizer": section, "max_length": 8})
    assert processor("a red shirt")["input_ids"].shape == (1, 8)
    fast = theirs.build_tokenizer({**section, "type": "GPT2TokenizerFast"})
    assert fast.encode("a red shirt") == theirs.build_tokenizer(section).encode("a red shirt")


@pytest.fixture
def base_tokenizer(tmp_path):
    theirs.AutoTokenizer.from_pretrained("gpt_tiny").save_pretrained(tmp_path)
    return tmp_path


def test_a_scripts_own_class_is_found_by_its_name(monkeypatch):
    monkeypatch.setattr(MindFormerRegister, "registry", {kind: {} for kind in MindFormerRegister.registry})

    @MindFormerRegister.register(MindFormerModuleType.METRIC)
    class Own:
        def __init__(self, base=1):
            self.base = base

    assert theirs.build_metric({"type": "Own", "base": 2}).base == 2
    assert MindFormerRegister.get_cls("metric", "Own") is Own
    MindFormerRegister.register_cls(Own, MindFormerModuleType.LR, alias="cosine_annealing_of_mine")
    assert isinstance(theirs.build_lr(class_name="cosine_annealing_of_mine"), Own)
    assert MindFormerRegister.is_exist("lr") and not MindFormerRegister.is_exist("models", "Own")
    assert MindFormerRegister.get_instance("metric", Own, base=3).base == 3


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: theirs.build_model({**SECTION, "arch": {"type": "BertModel"}}), "models: 'BertModel' is not here"),
        (lambda: theirs.build_model({"model_config": SECTION["model_config"]}), "a section with type was expected"),
        (lambda: theirs.build_metric({"eval_type": "x"}), "metric: a section with type was expected, found"),
        (lambda: MindFormerRegister.get_cls("metric"), "metric: None is not here"),
        (lambda: theirs.build_dataset({"type": "MIMDataset"}), "dataset: 'MIMDataset' is not here, and nobody has"),
        # a name of the module that is none of its classes
        (lambda: theirs.build_optim({"type": "InputError"}, {}), "optimizer: 'InputError' is not here"),
    ],
)
def test_what_is_not_here_is_said(call, why):
    with pytest.raises(InputError, match=why):
        call()


# Metrics --------------------------------------------------------------------------------------------------------------


def measured(metric, *batches):
    metric.clear()
    for batch in batches:
        metric.update(*batch)
    return metric.eval()


@pytest.mark.parametrize("kind", [theirs.EmF1Metric, theirs.PerplexityMetric])
def test_of_nothing_there_are_no_numbers(kind):
    assert measured(kind()) == {}


def test_answers_by_their_longest_common_run():
    """By hand: "i love beijing" of 15 words and spaces, and of 5; the second pair is equal without punctuation."""
    given = [["I love Beijing, because it's beautiful"], ["I love Beijing."]], [["Hello world。"], ["Hello world"]]
    assert measured(theirs.EmF1Metric(), *given) == {"F1": 75.0, "Em": 50.0}
    assert measured(theirs.EmF1Metric(), [["郑州\nmore"], ["郑州市"]]) == {"F1": 80.0, "Em": 0.0}


def test_a_job_file_measures_answers_to_rows_of_questions(tmp_path, monkeypatch):
    """Rows as MindFormers' script writes them of SQuAD: question and answer, each padded. Two are answered so."""
    model = pet.AutoModel.from_pretrained("llama_tiny")
    tokenizer = pet.AutoTokenizer.from_pretrained("llama_tiny")
    pad = tokenizer.pad_token_id
    questions = [tokenizer.encode(text) for text in ("a red shirt", "a grey scarf is", "what colour?")]
    answers = [model.generate([ids], max_new_tokens=6)[0][len(ids) :].tolist() for ids in questions]
    answers[1] = tokenizer.encode("nothing of that", add_special_tokens=False)
    padded = [{"input_ids": one, "labels": other} for one, other in zip(questions, answers, strict=True)]
    padded = [{name: np.int32(ids + [pad] * (40 - len(ids))) for name, ids in row.items()} for row in padded]
    file, section = (
        tmp_path / "rows.mindrecord",
        {"data_loader": {"type": "MindDataset", "dataset_dir": "rows.mindrecord"}},
    )
    writer = FileWriter(str(file))
    writer.add_schema({name: {"type": "int32", "shape": [-1]} for name in padded[0]}, "rows")
    writer.write_raw_data(padded)
    writer.commit()
    monkeypatch.chdir(tmp_path)
    sizes = {"type": "LlamaConfig", "seq_length": 64, "max_new_tokens": 6}
    job = {"run_mode": "eval", "trainer": {"type": "CausalLanguageModelingTrainer"}, "eval_dataset": section}
    job |= {"model": {"model_config": sizes}, "metric": {"type": "EmF1Metric"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    written = [tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]
    said = tokenizer.decode(model.generate([questions[1]], max_new_tokens=6)[0][len(questions[1]) :], True)
    expected = measured(theirs.EmF1Metric(), [[written[0], said, written[2]], written])
    how = {"args": {"output_dir": str(tmp_path / "run"), "use_parallel": False}, "load_checkpoint": "llama_tiny"}
    trainer = theirs.Trainer(recipe=str(tmp_path / "job.yaml"), **how)
    assert trainer.evaluate() == expected
    assert expected["Em"] == pytest.approx(200 / 3)
    assert trainer.evaluate(MindDataset(str(file), shuffle=False).batch(2)) == expected
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "metric": {"type": "PerplexityMetric"}}))
    found = theirs.Trainer(recipe=str(tmp_path / "job.yaml"), **how).evaluate()
    ids, labels = (np.stack([row[name] for row in padded]) for name in ("input_ids", "labels"))
    logits = model(ms.Tensor(ids)).asnumpy().astype(np.float64)[:, :-1]
    logits -= logits.max(-1, keepdims=True)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[:, 1:, None], -1)[..., 0]
    real = ids[:, :-1] != pad  # what stands behind padding is not learnt, as in MindFormers' LLaMA
    assert math.isclose(found["loss"], losses[real].mean(), rel_tol=1e-5)


def test_perplexity_is_that_of_the_batches_mean():
    logits = np.log(np.array([[[0.5, 0.25, 0.25], [0.125, 0.125, 0.75], [1, 1, 1]]], np.float32))
    labels, mask = np.array([[2, 0, 2]]), np.ones((1, 3), np.float32)
    first = -(math.log(0.5) + math.log(0.75)) / 2
    found = measured(theirs.PerplexityMetric(), [ms.Tensor(logits), ms.Tensor(labels), ms.Tensor(mask)])
    assert math.isclose(found["loss"], first, rel_tol=1e-6) and math.isclose(
        found["PPL"], math.exp(first), rel_tol=1e-6
    )
    mask[0, 2] = 0
    twice = measured(theirs.PerplexityMetric(), [logits, labels, mask], [logits, labels, np.ones((1, 3))])
    assert math.isclose(twice["loss"], (-math.log(0.5) + first) / 2, rel_tol=1e-6)


def test_an_id_beyond_the_vocabulary_counts_with_a_loss_of_0():
    logits, mask = np.zeros((1, 3, 2)), np.ones((1, 3))
    found = measured(theirs.PerplexityMetric(), [logits, np.array([[0, 7, 1]]), mask])
    assert math.isclose(found["loss"], math.log(2) / 2, rel_tol=1e-6)
