from __future__ import annotations

import types

import numpy as np
import pytest
from mindspore import Tensor

from adapters.apply import disable_adapters
from adapters.saving import load_adapter
from model_zoo.auto import AutoModel
from model_zoo.errors import InputError
from pet.recipe.training import Eval, Generation
from pet.train.evaluate import Answers, Evaluation, LossEvaluation
from pet.train.feed import BatchList
from pet.train.objectives.causal import CausalLM
from pet.train.trainer import Trainer


class Words:
    """A tokenizer whose ids are places in a list of words; 0 is padding, 1 the end."""

    words = ("<pad>", "<end>", "red", "green", "blue", "stop")
    pad_token_id, eos_token_ids = 0, [1]

    def decode(self, ids, skip_special_tokens=True):
        return " ".join(self.words[token] for token in ids if token > 1)


class Echo:
    """Repeats the last token of the prompt as often as the prompt is long, then ends."""

    training = True
    config = types.SimpleNamespace(dims=types.SimpleNamespace(context=64))

    def __init__(self):
        self.calls, self.eos_token_ids = [], [1]

    def set_train(self, training):
        self.training = training

    def cells_and_names(self):
        return [("", self)]

    def generate(self, ids, attention_mask, max_new_tokens, **settings):
        assert not self.training
        self.calls.append((ids.shape, settings))
        new = np.ones((len(ids), max_new_tokens), np.int32)
        for row, length in enumerate(attention_mask.sum(1)):
            assert attention_mask[row, -length:].all() and not ids[row, :-length].any()
            new[row, : min(length, max_new_tokens)] = ids[row, -1]
        return np.concatenate([ids, new], 1)


def test_stop_strings_of_the_base_count_where_the_section_has_none():
    model = Echo()
    model.generation_config = {"stop_strings": "x"}
    assert Answers(model, types.SimpleNamespace(eos_token_ids=[]), [], Generation()).stops == ["x"]
    assert Answers(model, types.SimpleNamespace(eos_token_ids=[]), [], Generation(stop=["y"])).stops == ["y"]


def question(ids, reference=""):
    return types.SimpleNamespace(prompt_ids=ids, prompt=str(ids), reference=reference, where=str(len(ids)))


def test_answers_come_in_order_whatever_their_batches():
    model = Echo()
    asked = [question([2, 3, 4]), question([4]), question([3, 3]), question([2] * 40), question([5, 2])]
    answers = Answers(model, Words(), asked, Generation(max_new_tokens=8), batch_size=2)()
    assert [answer.answer for answer in answers] == [
        "blue blue blue",
        "blue",
        "green green",
        " ".join(["red"] * 8),
        "red red",
    ]
    assert model.training
    # lengths are rounded up and the last batch filled up, so that two shapes serve three batches
    assert [shape for shape, _ in model.calls] == [(2, 32), (2, 32), (2, 56)]


def test_a_full_context_ends_answers_and_a_question_that_fills_it_is_refused(caplog):
    model = Echo()
    asked = [question([2] * 62), question([3] * 60), question([4])]
    answers = Answers(model, Words(), asked, Generation(max_new_tokens=8), batch_size=1)()
    assert [len(answer.answer.split()) for answer in answers] == [2, 4, 1]
    assert [record.message for record in caplog.records if "context of 64 tokens" in record.message] == [
        "the model's context of 64 tokens has room for 4 after a question of 60: answers end there, before "
        "generation.max_new_tokens (8)"
    ], "said once"
    model.calls.clear()
    with pytest.raises(InputError, match=r"^64: a question of 64 tokens leaves no room .* context of 64$"):
        Answers(model, Words(), [question([2]), question([2] * 64)], Generation(), batch_size=1)()
    model.generation_config = {"max_length": 9}
    with pytest.raises(InputError, match="max_length is 9, which a prompt of 12 tokens fills"):
        Answers(model, Words(), [question([2]), question([2] * 12)], Generation(), batch_size=1)()
    assert not model.calls, "what cannot be answered is found before the others are"


def test_without_a_limit_the_end_token_or_the_context_ends_an_answer(caplog):
    asked = [question([2] * 30), question([3] * 40)]
    answers = Answers(Echo(), Words(), asked, Generation(), batch_size=2)()
    assert [len(answer.answer.split()) for answer in answers] == [24, 24]
    assert [record.message for record in caplog.records] == [
        "2 of 2 answers end where the model's context of 64 tokens is full"
    ]
    caplog.clear()
    answers = Answers(Echo(), Words(), [question([2] * 30)], Generation(), batch_size=1)()
    assert [len(answer.answer.split()) for answer in answers] == [30]
    assert not caplog.records
    assert Generation().in_evaluations().max_new_tokens == 64
    assert Generation(max_new_tokens=9).in_evaluations().max_new_tokens == 9


def test_a_length_that_counts_the_question_is_that_of_each_question():
    model = Echo()
    model.generation_config = {"max_length": 12}
    answers = Answers(model, Words(), [question([2] * 5), question([3] * 10)], Generation(), batch_size=2)()
    assert [answer.answer.split() for answer in answers] == [["red"] * 5, ["green"] * 2]


def test_a_question_of_two_batches_has_two_draws_and_blocks_change_no_order():
    asked = [question([2, 3, 4]), question([4]), question([3, 3]), question([5, 2]), question([2])]
    seeds = []
    for batches in (None, 1):
        model = Echo()
        answers = Answers(model, Words(), asked, Generation(max_new_tokens=8, do_sample=True, seed=7), batch_size=2)
        assert [one.prompt for one in answers.by_blocks(batches)] == [one.prompt for one in asked]
        seeds.append([settings["seed"] for _, settings in model.calls])
    assert seeds == [[7, 9, 11]] * 2


def test_stop_texts_and_limit():
    answers = Answers(Echo(), Words(), [question([2, 3])] * 3, Generation(max_new_tokens=8, stop=["een"]))
    assert [answer.answer for answer in answers(2)] == ["gr", "gr"]


def test_evaluation_measures_what_was_asked_for(toy, batch):
    rows = batch(4, seed=1)
    losses = LossEvaluation(toy(), BatchList([rows, batch(4, seed=2)]), CausalLM())
    asked = [question([2], "red"), question([3, 3], "green red")]
    answers = Answers(Echo(), Words(), asked, Generation(max_new_tokens=4))
    settings = Eval(metrics=["loss", "accuracy", "exact_match", "rouge_1"], shown_samples=1)
    evaluation = Evaluation(losses, answers, settings)
    found = evaluation()
    assert list(found) == ["loss", "perplexity", "accuracy", "exact_match", "rouge_1"]
    assert found["exact_match"] == 0.5 and found["rouge_1"] == pytest.approx(0.75)
    assert [sample.answer for sample in evaluation.samples] == ["red"]


def test_accuracy_counts_labels_ranked_first(toy, batch):
    model, rows = toy(), batch(4, seed=1)
    logits = model(Tensor(rows["input_ids"])).asnumpy()
    learnt = rows["labels"][:, 1:] != -100
    first = logits[:, :-1].argmax(-1) == rows["labels"][:, 1:]
    found = LossEvaluation(model, BatchList([rows]), CausalLM())()
    assert found["accuracy"] == pytest.approx((first & learnt).sum() / learnt.sum())
    hits = rows["labels"].copy()
    hits[:, 1:] = logits[:, :-1].argmax(-1)
    assert LossEvaluation(model, BatchList([{**rows, "labels": hits}]), CausalLM())()["accuracy"] == 1.0


def test_the_perplexity_of_a_loss_that_is_no_number_is_none():
    found = [CausalLM().metrics([loss, 0.0], 1)["perplexity"] for loss in (0.0, 701.0, np.inf, np.nan)]
    np.testing.assert_equal(found, [1.0, np.inf, np.inf, np.nan])


def test_what_only_training_does_is_off_while_measuring(toy, batch):
    class Restless(toy):
        def head(self, hidden):
            logits = super().head(hidden)
            return logits * 0.0 if self.training else logits

    rows = batch(2)
    expected = LossEvaluation(toy(), BatchList([rows]), CausalLM())()
    model = Restless()
    model.set_train(True)
    assert LossEvaluation(model, BatchList([rows]), CausalLM())() == expected
    assert model.training


def test_measures_follow_the_adapters_that_take_part(fixtures):
    """The graph is compiled with the adapters in it; disabling them must not measure the old one again."""
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    reference = np.load(fixtures / "llama_mha" / "lora_ref.npz")
    rows = {"input_ids": reference["train_input_ids"][0], "labels": reference["train_labels"][0]}
    plain = LossEvaluation(model, BatchList([rows], model=model), CausalLM())()["loss"]
    load_adapter(model, fixtures / "llama_mha" / "lora")
    trainer = Trainer(model, [rows], [rows], steps=1)
    assert trainer.evaluate()["loss"] == pytest.approx(float(reference["train_losses_from_nonzero"][0]), abs=1e-4)
    with disable_adapters(model):
        assert trainer.evaluate()["loss"] == pytest.approx(plain, abs=1e-5)
    assert abs(trainer.evaluate()["loss"] - plain) > 1e-3
