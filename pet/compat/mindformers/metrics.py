"""MindFormers' metrics as objects: cleared, updated batch by batch, and evaluated. Inputs are Tensors or arrays."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from mindspore.train import metrics

from pet.compat.mindformers.request import in_a_list
from pet.compat.objects import as_records

MARKS = "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"
"""Punctuation that does not count."""
WORDS = re.compile(r"[\u4e00-\u9fa5]|[a-zA-Z0-9]+(?:\.\d+)?%?|.", re.DOTALL)
"""Single Chinese characters, words of letters and digits as jieba cuts them, and whatever else stands alone."""
EPS = 1e-8


def _loss(logits: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> float:
    """The mean cross-entropy of the tokens of mask 1; logits ``(N, V)``. An id beyond the vocabulary counts with
    a loss of 0, as there."""
    logits = logits.astype(np.float64)
    top = logits.max(-1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
    known = (labels >= 0) & (labels < logits.shape[1])
    losses = np.where(known, total - logits[np.arange(len(labels)), np.where(known, labels, 0)], 0.0)
    return float((losses * mask).sum() / (mask.sum() + EPS))


class Metric(metrics.Metric):
    """What a script, or ``mindspore.train.Model``, calls."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.sums: Counter = Counter()


class PerplexityMetric(Metric):
    """``{"loss", "PPL"}``: the mean of the batches' losses, and its exponential."""

    def update(self, logits, labels, input_mask) -> None:
        """Logits ``(B, S, V)`` of the tokens ``labels`` ``(B, S)``, each of which is predicted by those before it."""
        logits, labels, mask = map(np.asarray, (logits, labels, input_mask))
        flat = logits[:, :-1].reshape(-1, logits.shape[-1])
        self.sums["loss"] += _loss(flat, labels[:, 1:].ravel(), mask[:, 1:].ravel())
        self.sums["batches"] += 1

    def eval(self) -> dict[str, float]:
        """The numbers; none of nothing."""
        if not self.sums["batches"]:
            return {}
        loss = self.sums["loss"] / self.sums["batches"]
        return {"loss": loss, "PPL": math.exp(loss)}


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest run of equal words."""
    return difflib.SequenceMatcher(None, one, other, autojunk=False).find_longest_match().size


class EmF1Metric(Metric):
    """``{"F1", "Em"}`` of answers, in 0 … 100: F1 by the longest run of words that answer and label share, and how many
    are equal; without punctuation, in any case."""

    def update(self, answers: Sequence[str], labels: Sequence[str]) -> None:
        """Answers, of which the first line counts, and what was expected."""
        for answer, label in zip(answers, labels, strict=True):
            texts = [text.lower().strip() for text in (answer.strip().split("\n")[0], label)]
            said, wanted = (text.translate(dict.fromkeys(map(ord, MARKS))) for text in texts)
            words = WORDS.findall(said), WORDS.findall(wanted)
            self.sums["f1"] += 2 * _shared(*words) / max(1, sum(map(len, words)))
            self.sums["em"] += said == wanted
            self.sums["all"] += 1

    def eval(self) -> dict[str, float]:
        """The numbers; none of nothing."""
        whole = self.sums["all"]
        return {name: 100.0 * self.sums[name.lower()] / whole for name in ("F1", "Em")} if whole else {}


def answered(trainer, recipe, checkpoint) -> dict[str, float] | None:
    """`EmF1Metric` of a model's answers, where a job file's ``metric`` names it and the rows have a question's ids and
    an answer's, as MindFormers' script writes them of SQuAD; None of any other rows, which have a loss.

    Args:
        trainer, recipe: a trainer and the recipe of its evaluation.
        checkpoint: of the call.
    """
    kind, _, values = trainer.job_file()
    said = in_a_list(values.get("metric")) if kind == "mindformers" else []
    if not any(isinstance(one, Mapping) and one.get("type") == "EmF1Metric" for one in said):
        return None
    data = recipe.data.eval if trainer.eval_dataset is None else trainer.eval_dataset
    rows = as_records(data)
    if rows is None or not {"input_ids", "labels"} <= {*rows.get_col_names()}:
        return None
    batches = [
        [np.atleast_2d(one[name]) for name in ("input_ids", "labels")]
        for one in rows.create_dict_iterator(num_epochs=1, output_numpy=True)
    ]
    if all(ids.shape == labels.shape and ((labels == ids) | (labels < 0)).all() for ids, labels in batches):
        return None  # rows to learn
    model, tokenizer = trainer.model_and_tokenizer(checkpoint)
    pad, metric = tokenizer.pad_token_id, EmF1Metric()
    for questions, labels in batches:
        for question, label in zip(questions.tolist(), labels.tolist(), strict=True):
            while question[-1:] == [pad]:
                question.pop()
            texts = list(model.generate([question])[0])[len(question) :], [one for one in label if one >= 0]
            metric.update(*([tokenizer.decode(ids, skip_special_tokens=True)] for ids in texts))
    return metric.eval()
