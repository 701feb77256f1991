"""A text's labels with their scores, by a model whose head judges texts; and the numbers themselves."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from model_zoo.arguments import asked_as_elsewhere
from model_zoo.errors import InputError
from model_zoo.graph import evaluating
from model_zoo.inputs import as_array, as_mask
from model_zoo.labels import MULTI, SINGLE
from model_zoo.settings import require
from model_zoo.turns import turn
from pet.data.classified import whole_text
from pet.text_generation import opened

log = logging.getLogger("pet")


class TextClassification:
    """Gives texts their labels.

    Args:
        model: a classifier, or with `adapter` a base: a model, a checkpoint directory, or a bundled base's name.
        tokenizer: its tokenizer; default the one beside the adapter, if there is one, or beside the checkpoint.
        adapter: a classifier's adapter directory in PEFT's format to put on the model.
        batch_size: texts judged together.
        top_k: so many labels of each text; None: all.

    Raises:
        InputError: nothing of this can be opened, or no head judges texts.
    """

    def __init__(self, model, tokenizer=None, adapter=None, batch_size: int = 8, top_k: int | None = None):
        require("pipeline", "batch_size", batch_size, int, ge=1)
        require("pipeline", "top_k", top_k, int | None, ge=1)
        self.model, self.tokenizer = opened(model, tokenizer, adapter)
        self.batch_size, self.top_k = batch_size, top_k
        if not getattr(self.model, "scoring", False):
            raise InputError("pipeline: the model has no head that judges texts; give a classifier, or its adapter=")

    @asked_as_elsewhere
    def __call__(self, text: Any, top_k: int | None = None) -> list[list[dict[str, Any]]]:
        """The labels of each text, ``[[{"label": name, "score": number}, …], …]``, the likeliest first.

        A score is a probability: of one label among all, or of each by itself where several may be right. Of values it
        is the value.

        Args:
            text: one text or several; two that are judged together are a tuple, or ``{"text": …, "text_pair": …}``.
            top_k: in place of the pipeline's.
        """
        require("pipeline", "top_k", top_k, int | None, ge=1)
        several = isinstance(text, Collection) and not isinstance(text, (str, dict, tuple))
        pairs = [two_texts(one) for one in (text if several else [text])]
        if not pairs:
            raise InputError("pipeline: a text or a list of texts was expected, got none")
        ids = self.tokens(pairs)
        if not all(ids):
            raise InputError("pipeline: an empty text cannot be judged")
        limit, found = self.top_k if top_k is None else top_k, []
        for first in range(0, len(ids), self.batch_size):
            found += [row[:limit] for row in self.judged(ids[first : first + self.batch_size])]
        return found

    def tokens(self, pairs: Sequence[tuple[str, str | None]]) -> list[list[int]]:
        """The ids of texts, each with the one that is judged with it or None. Says how many are cut to the context."""
        room, found = self.model.room, [whole_text(self.tokenizer, *pair) for pair in pairs]
        if cut := sum(len(ids) > room for ids in found):
            log.warning("%d of %d texts are cut: the model's context holds %d tokens", cut, len(pairs), room)
        return [
            ids if len(ids) <= room else whole_text(self.tokenizer, *pair, room)
            for ids, pair in zip(found, pairs, strict=True)
        ]

    def judged(self, texts: Sequence[list[int]]) -> list[list[dict[str, Any]]]:
        """The same of one batch of token ids."""
        length, labels = max(map(len, texts)), self.model.labels
        pad = self.tokenizer.pad_token_id or 0
        mask = [[1] * len(ids) + [0] * (length - len(ids)) for ids in texts]
        numbers = scores(self.model, [ids + [pad] * (length - len(ids)) for ids in texts], mask)
        numbers = numbers.reshape(len(texts), -1).astype(np.float64)
        if labels.kind == SINGLE:
            powers = np.exp(numbers - numbers.max(-1, keepdims=True))
            numbers = powers / powers.sum(-1, keepdims=True)
        elif labels.kind == MULTI:
            numbers = 1 / (1 + np.exp(-numbers))
        rows = [dict(zip(labels.names, row, strict=True)) for row in numbers.tolist()]
        return [
            [{"label": name, "score": row[name]} for name in sorted(row, key=row.get, reverse=True)] for row in rows
        ]

    def chosen(self, labels: Sequence[dict[str, Any]]) -> Any:
        """A text's label; several where each may be right; of values the value, or all in the order of their names."""
        if self.model.labels.kind == SINGLE:
            return labels[0]["label"]
        if self.model.labels.kind == MULTI:
            return [one["label"] for one in labels if one["score"] > 0.5]
        found = {one["label"]: one["score"] for one in labels}
        return labels[0]["score"] if len(labels) == 1 else [found[name] for name in self.model.labels.names]


def two_texts(given: Any) -> tuple[str, str | None]:
    """A text and the one that is judged with it, if any."""
    given = (given.get("text"), given.get("text_pair")) if isinstance(given, dict) else given
    text, pair = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not isinstance(text, str) or not isinstance(pair, (str, type(None))):
        raise InputError(f"pipeline: a text, or two in a tuple, was expected, got {given!r}")
    return text, pair


def scores(model, input_ids, attention_mask=None) -> np.ndarray:
    """The numbers of a head that judges texts, at the last token of each: ``(B,)`` of a reward model, else ``(B,
    labels)``.

    Args:
        model: a classifier, or with the adapter of one, or of a reward model (``train.objective: classification`` or
            ``reward``, or PEFT's ``SEQ_CLS``).
        input_ids: ``(B, S)`` integers.
        attention_mask: ``(B, S)``, 1 for real tokens; default all real.

    Raises:
        InputError: there is no such head, or arrays of a wrong form.
    """
    if not getattr(model, "scoring", False):
        raise InputError("scores: the model has no head that judges texts, nor has an active adapter")
    ids = as_array("input_ids", input_ids)
    with turn, evaluating(model):
        found = model.all_logits(*model.prepared(ids, attention_mask)).asnumpy()
    real = np.ones(ids.shape) if attention_mask is None else as_mask(attention_mask, ids.shape)
    if not np.any(real, axis=1).all():
        raise InputError("scores: attention_mask has a row without a token")
    found = found[np.arange(len(ids)), [np.flatnonzero(row)[-1] for row in real]]
    return found[:, 0] if found.shape[1] == 1 else found
