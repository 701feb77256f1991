"""Settings, data and functions that a trainer refuses or warns of."""

from __future__ import annotations

import math
import signal
import types

import numpy as np
import pytest
from toy_trainer import make

import pet
from adapters.apply import add_adapter, apply_lora, delete_adapter, disable_adapters, set_adapter
from adapters.lora import LoRAConfig
from adapters.merge import merge
from model_zoo.auto import AutoModel
from model_zoo.errors import InputError
from pet.data import DataSettings, Loader, TokenDataset
from pet.names import bundled_models
from pet.train.callbacks import Callback
from pet.train.checkpoint import checkpoints
from pet.train.feed import BatchList
from pet.train.objectives.causal import CausalLM
from pet.train.trainer import Trainer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": -1}, r"batch 1: labels holds -1; expected an id of the vocabulary \(0 … 30\), or -100"),
        ({"labels": 31}, "batch 1: labels holds 31"),
        ({"input_ids": -100}, "batch 1: input_ids holds -100; expected an id of the vocabulary"),
        ({"input_ids": 31}, "batch 1: input_ids holds 31"),
        ({"position_ids": 8}, "batch 1: position_ids holds 8; the model's context has positions 0 … 7"),
    ],
)
def test_numbers_that_are_no_ids_are_refused_in_every_feed(toy, batch, change, message):
    model = toy()
    model.config = types.SimpleNamespace(dims=types.SimpleNamespace(vocab=31, context=8))
    good, bad = batch(2, seed=0), batch(2, seed=1)
    for name, value in change.items():
        bad[name] = bad[name].copy()
        bad[name][1, -1] = value
    with pytest.raises(InputError, match=message):
        make(model, [good, bad])

    class Stream:
        """A feed of the user's own."""

        def steps_per_epoch(self, epoch=0):
            return 2

        def batches(self, epoch=0, start=0):
            yield from [good, bad][start:]

    before = model.embed.asnumpy().copy()
    trainer = make(model, Stream(), steps=2)
    with pytest.raises(InputError, match=r"sample 1\.0, sample 1\.1: " + message.removeprefix("batch 1: ")):
        trainer.train()
    assert trainer.position.step == 1 and not np.array_equal(before, model.embed.asnumpy())


def test_a_row_beyond_the_context_is_refused(fixtures):
    model = AutoModel.from_pretrained(fixtures / "gpt2")
    ids = np.ones((1, model.room + 1), np.int32)
    with pytest.raises(
        InputError, match=f"batch 0: a row of {model.room + 1} tokens is longer .* context of {model.room}"
    ):
        make(model, [{"input_ids": ids}])
    mask = np.ones_like(ids)
    mask[0, 0] = 0  # padding is no token
    make(model, [{"input_ids": ids, "attention_mask": mask}])


def test_bad_settings_and_data_are_input_errors(toy, batch):
    frozen = toy()
    for parameter in frozen.get_parameters():
        parameter.requires_grad = False
    cases = [
        (lambda: make(toy(), [batch(4)], learning_rat=1), "did you mean 'learning_rate'"),
        (lambda: make(toy(), [batch(4)], learning_rate=-1.0), "train.learning_rate"),
        (lambda: make(frozen, [batch(4)]), "nothing to train"),
        (lambda: make(toy(), "data.json"), "has no tokenizer; make batches by"),
        (lambda: make(toy(), 3), "a file, a pet.data.Loader or a list of batches, found int"),
        (lambda: make(toy(), [{"labels": [[1]]}]), "batch 0 has no input_ids; it has labels"),
        (lambda: make(toy(), [{"input_ids": [[1.5]]}]), "integers expected"),
        (lambda: make(toy(), [batch(4)], accumulation=3), "1 batches are too few for a step of 3"),
        (lambda: make(toy(), BatchList([batch(4)] * 2, 2)), "loader with accumulation 2, but train.accum"),
        (lambda: make(toy(), [batch(4)]).train(resume=True), "needs a run directory"),
    ]
    for attempt, message in cases:
        with pytest.raises(InputError, match=message):
            attempt()


def test_why_there_is_nothing_to_train(fixtures):
    model = pet.apply_lora(AutoModel.from_pretrained(fixtures / "llama_gqa"), rank=2, name="mine")

    def refused(words):
        with pytest.raises(InputError, match=f"^nothing to train: no parameter of the model is trainable; {words}"):
            make(model, [{"input_ids": np.array([[5, 6, 7]])}])

    pet.freeze_modules(model, include="*")
    refused(r"what mine has is frozen \(pet.set_adapter thaws it\)$")
    pet.set_adapter(model, "mine")
    pet.merge(model)
    refused(r"mine is merged into the weights \(pet.unmerge\)$")
    pet.unmerge(model)
    pet.set_adapter(model, [])
    refused(r"no adapter is active \(pet.set_adapter; there is: mine\)$")
    pet.set_adapter(model, "mine")
    make(model, [{"input_ids": np.array([[5, 6, 7]])}])


def test_rows_without_a_label_are_said_and_batches_of_nothing_else_refused(toy, batch, caplog):
    unlabelled, half, padded = batch(2, seed=0), batch(2, seed=1), batch(2, seed=2)
    unlabelled["labels"] = np.full_like(unlabelled["input_ids"], -100)
    unlabelled["labels"][:, 0] = unlabelled["input_ids"][:, 0]  # which nothing predicts
    half["labels"] = np.where([[True], [False]], half["input_ids"], -100)
    padded = {name: padded[name] for name in ("input_ids", "labels")}
    padded["attention_mask"] = np.ones_like(padded["input_ids"]) * [[1], [0]]
    padded["labels"] = np.where(padded["attention_mask"], padded["labels"], -100)
    for data in ({"train_data": [unlabelled]}, {"train_data": [half], "eval_data": [unlabelled]}):
        with pytest.raises(InputError, match="none of the 2 rows has a label"):
            make(toy(), data.pop("train_data"), **data)
    for data, more, message in (([{"input_ids": [[1]]}], {}, "label_tokens"), ([half], {"objective": "orpo"}, "pairs")):
        with pytest.raises(InputError, match=f"no batch has {message}: there is nothing to learn"):
            make(toy(), data, **more)
    caplog.clear()
    make(toy(), [padded])
    assert not caplog.records, "a row of padding needs none"
    make(toy(), [padded, half, unlabelled])
    assert [line.getMessage() for line in caplog.records] == [
        "3 of 5 rows are not learnt: they lack a label after the first token (-100 everywhere); the first is batch 1, "
        "row 1"
    ]


def test_data_without_a_pair_is_refused(toy, batch):
    """Two documents are one only in the same row; a loss of nothing would be 0, and the best."""
    data = TokenDataset.from_samples([([1, 2, 3 + number], [0, 1, 1]) for number in range(4)])
    loader = Loader(data, 2, DataSettings(packing="none", max_length=4))
    with pytest.raises(InputError, match=r"training data: pairs are of 2 documents, .* documents = 1; set it to 2"):
        make(toy(), loader, objective="orpo")
    data.documents = 2
    with pytest.raises(InputError, match="evaluation data: no batch has pairs: there is nothing to measure"):
        make(toy(), loader, [batch(2)], objective="orpo")
    make(toy(), loader, loader, objective="orpo")


def test_what_is_ignored_stays_so_behind_a_graph(toy, batch, request):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    class Each(Callback):
        def step(self, trainer, record):
            signal.raise_signal(signal.SIGINT)

    trainer = make(toy(), [batch(4, seed=0)], callbacks=[Each()], compiled=True, steps=2)
    assert trainer.train()["steps"] == 2


CHANGES = {
    "switched": lambda model: (add_adapter(model, LoRAConfig(rank=2), "other"), set_adapter(model, "other")),
    "merged": merge,
    "deleted": lambda model: delete_adapter(model, "default"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_trainer_of_adapters_that_are_not_trained_any_more_is_an_error(change, batch):
    model = apply_lora(AutoModel.from_pretrained(bundled_models()["llama_tiny"]), rank=4)
    trainer = make(model, [batch(2, seed=0)])
    CHANGES[change](model)
    with pytest.raises(InputError, match=r"lora_A\.weight and \d+ more: what the model trains has changed"):
        trainer.train()


def test_no_training_where_adapters_are_disabled(batch):
    model = apply_lora(AutoModel.from_pretrained(bundled_models()["llama_tiny"]), rank=4)
    trainer = make(model, [batch(2, seed=0)])
    with disable_adapters(model), pytest.raises(InputError, match="cannot train within a block of disable_adapters"):
        trainer.train()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_data": []}, "training data: .* found an empty list"),
        ({"train_data": ["hi"]}, "training data: .* found a list of str"),
        ({"eval_data": 5}, "evaluation data: .* found int"),
        ({"train_data": types.SimpleNamespace(create_dict_iterator=0, get_batch_size=0)}, "pet.data.make_loader"),
        (
            {"train_data": np.zeros((2, 3))},
            r"found ndarray; pet.data.make_loader\(it, batch_size\) makes a loader of it",
        ),
        ({"train_data": iter([])}, r"found list_iterator; list\(it\) is one if it gives batches and ends"),
        (
            {"packing": "none"},
            r"no setting 'packing' \(pet.data.make_loader\(data, batch_size, settings\) takes",
        ),
        ({"max_length": 9}, r"no setting 'max_length' \(pet.data.make_loader\(data, batch_size, settings\) takes"),
        ({"model": "llama_tiny"}, "model is 'llama_tiny'; an opened model"),
        ({"directory": 5}, "directory is 5; a text or a path was expected"),
        ({"train": 5}, "Trainer: train: expected a recipe's train section, or its fields; found int"),
        ({"eval": {"every": 1}}, r"eval\.every: the section eval has no such key"),
        ({"callbacks": [print]}, r"callbacks: builtin_function_or_method has no start\(\)"),
        ({"callbacks": "plot"}, "callbacks: LossPlot writes a file; give the trainer a directory"),
        ({"callbacks": [Callback]}, r"callbacks: Callback is a class; give an instance, Callback\(\)"),
        ({"callbacks": 3}, r"callbacks: int has no start\(\)"),
        ({"title": 3}, "title is 3; a text"),
        ({"compiled": "no"}, "compiled is 'no'; True or False"),
        ({"objective": 3}, "objective is 3; an objective or a text"),
        ({"distributed": 3}, "distributed is 3; a DistributedContext"),
        ({"evaluation": 3}, "evaluation is 3; a function"),
        ({"rates": 3}, "rates is 3; a function"),
        ({"directory": "a\0b"}, "directory is 'a.x00b': no file can have this name"),
        ({"train_data": "x" * 5000}, "no file can have this name"),
        ({"resume": True}, r"train\.resume: takes no effect here; call train\(resume=True\)"),
        ({"profile": True}, r"train\.profile: takes no effect here; give callbacks="),
        ({"train": {"profile": True}}, r"train\.profile: takes no effect here; give callbacks="),
        ({"steps": None, "epochs": 1e30}, r"train\.epochs: expected at most"),
        ({"eval": {"every_steps": 1}}, r"eval\.every_steps: there is nothing to evaluate on; give eval_data"),
        ({"eval": {"patience": 1}}, r"eval\.patience: needs evaluations along the way"),
        (
            {"eval": {"metrics": ["loss", "rouge_l"]}},
            r"eval\.metrics: is about answers to questions; batches hold none",
        ),
        ({"eval": {"best_metric": "accuracy"}}, r"eval\.best_metric: accuracy is not measured"),
        (
            {"objective": "dpo", "eval": {"metrics": ["loss", "accuracy"]}},
            "with dpo reward_accuracy is always measured",
        ),
        ({"objective": CausalLM(), "eval": {"metrics": ["loss", "f1"]}}, "f1 is measured with train.objective: class"),
        ({"eval": {"batch_size": 2}, "eval_data": [{}]}, r"eval\.batch_size: takes no effect on batches"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(toy, batch, given, message):
    arguments = {"model": toy(), "train_data": [batch(2, seed=0)], **given}
    with pytest.raises(InputError, match=message):
        make(arguments.pop("model"), arguments.pop("train_data"), **arguments)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"momentum": 0.5}, "momentum has no effect with train.optimizer: adamw"),
        ({"loss_scale": {"initial": 8.0}}, "loss_scale has no effect with train.precision: fp32"),
        ({"epochs": 2}, "steps: 6 count, and not epochs: 2"),
    ],
)
def test_settings_that_take_no_effect_are_warned_of(toy, batch, caplog, given, message):
    trainer = make(toy(), [batch(2)], **given)
    assert message in caplog.text and trainer.settings.steps == 6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"evaluation": lambda: 3}, "evaluation gave 3; numbers by their names"),
        ({"evaluation": lambda: {"loss": "x"}}, "evaluation gave {'loss': 'x'}; numbers by their names"),
        ({"rates": lambda step: -1.0}, r"rates\(0\) is -1.0; a number of at least 0"),
        ({"rates": lambda step: math.nan}, r"rates\(0\) is nan; a number of at least 0"),
        ({"forward_step": lambda data, model: None}, "forward_step gave neither a loss nor a dictionary"),
        ({"forward_step": lambda data, model: {"loss": None}}, "a loss or logits that are no Tensor"),
        (
            {"forward_step": lambda data, model: model(data["input_ids"])[:, 0, 0]},
            "a loss of several numbers: their mean",
        ),
        ({"forward_step": lambda data, model: {"logits": model(data["input_ids"])[:, :-1]}}, "are not of all tokens"),
        ({"save_extra": lambda stage: 3}, "what save_extra returns is 3; a text or a path"),
    ],
)
def test_what_a_user_s_functions_give_is_checked(toy, batch, tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        make(toy(), [batch(2, seed=0)], directory=tmp_path, steps=1, **given).train()
    assert not checkpoints(tmp_path / "checkpoints")


def test_arrays_of_a_users_own_are_in_every_batch(toy, batch):
    data = [{**batch(2, seed=0), "weight": np.ones((2, 1), np.float32)}, batch(2, seed=1)]

    class Stream:
        def steps_per_epoch(self, epoch=0):
            return 2

        def batches(self, epoch=0, start=0):
            yield from data

    def forward_step(data, model):
        return {"logits": model(data["input_ids"])}

    with pytest.raises(InputError, match="a batch has no weight, which the first batch has"):
        make(toy(), Stream(), steps=2, forward_step=forward_step).train()


def test_arrays_of_a_users_own_reach_forward_step_out_of_a_list(toy, batch):
    def forward_step(data, model):
        rows = model(data["input_ids"]).mean((1, 2))
        return {"loss": (rows * data["weight"]).sum() + data["weight"].sum()}

    losses = []
    for weight in ([0.0, 0.0], [1.0, 2.0]):
        data = [{**batch(2, seed=0), "weight": weight, "text": ["a", "b"]}]
        trainer = make(toy(), data, steps=1, forward_step=forward_step)
        trainer.train()
        losses.append(trainer.history[0]["loss"])
    assert losses[0] == 0 and 2.5 < losses[1] < 3.5


def test_what_looks_like_a_misspelt_array_is_said(toy, batch, caplog):
    make(toy(), [{"input_ids": batch(2)["input_ids"], "label_ids": batch(2)["labels"], "weight": [1.0, 1.0]}])
    assert caplog.messages == ["batch 0: label_ids is read by a forward_step alone (did you mean 'labels'?)"]


def test_an_evaluation_need_not_have_a_loss_unless_it_is_asked_for(toy, batch):
    def trained(**settings):
        how = {"evaluation": lambda: {"score": 2.0}, "eval": {"every_steps": 1, **settings}}
        return make(toy(), [batch(2)], steps=2, **how).train()

    assert trained()["best"] == {"step": None, "loss": None}
    with pytest.raises(InputError, match=r"eval\.best_metric: loss is not measured here: score"):
        trained(best_metric="loss")


def test_an_evaluation_of_nan_is_never_the_best(toy, batch):
    losses = iter([math.nan, math.nan, 2.0, math.nan, 1.0])
    trainer = make(
        toy(), [batch(2)], evaluation=lambda: {"loss": next(losses)}, eval={"every_steps": 1, "before": False}, steps=5
    )
    assert trainer.train()["best"] == {"step": 5, "loss": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"input_ids": np.full((2, 8), 2**32 + 5)},
            "batch 0: input_ids holds 4294967301, which no token's number can be",
        ),
        ({"labels": np.full((2, 8), 2**32 + 5)}, "batch 0: labels holds 4294967301"),
        ({"input_ids": np.ones((2, 8), bool)}, "batch 0: input_ids holds bool; integers expected"),
        ({"input_ids": [[1, 2], [3]]}, "batch 0: input_ids is no array of integers"),
        ({"input_ids": np.ones((0, 8), int)}, r"batch 0: input_ids has shape \(0, 8\)"),
        ({"input_ids": [1, 2, 3]}, r"has shape \(3,\).*; make_loader of pet.data makes batches of rows"),
        ({"attention_mask": np.full((2, 8), -10000)}, "batch 0: attention_mask holds -10000; 0 or 1 expected"),
        ({"attention_mask": np.full((2, 8), 2)}, "batch 0: attention_mask holds 2; 0 or 1 expected"),
        ({"attention_mask": np.zeros((2, 8), int)}, "batch 0: attention_mask is 0 everywhere"),
        ({"attention_mask": [[1] * 8, [1, 0] * 4]}, "batch 0, row 1: attention_mask has a hole"),
        ({"attention_mask": [[1] * 8, [0] + [1] * 5 + [0, 1]]}, "batch 0, row 1: attention_mask has a hole"),
        ({"start": np.zeros((2, 8), int)}, "batch 0: start takes no effect without position_ids, end"),
        ({"position_ids": np.zeros(8, int)}, r"batch 0: position_ids has shape \(8,\), input_ids \(2, 8\)"),
        ({"labels": np.ones((2, 7), int)}, r"batch 0: labels has shape \(2, 7\), input_ids \(2, 8\)"),
        ({"sample_ids": ["x"]}, r"batch 0: sample_ids is \['x'\]; a list of 2"),
    ],
)
def test_arrays_of_a_batch_that_mean_nothing_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        BatchList([{"input_ids": np.ones((2, 8), int), **change}])
    with pytest.raises(InputError, match="batch 1 is of the type int; a dictionary"):
        BatchList([{"input_ids": np.ones((2, 8), int)}, 3])


def test_sections_may_be_given_by_their_fields(toy, batch):
    data = [batch(2, seed=0)]
    trainer = Trainer(toy(), data, data, train={"steps": 2, "learning_rate": 0.01}, eval={"every_steps": 1})
    assert trainer.train()["steps"] == 2 and all("eval_loss" in line for line in trainer.history)
