"""Models as MindFormers' cells: they take the columns of its data sets, and give its loss in training.

The class of a model is swapped where the door hands it out. What this library runs itself (training, generation,
measuring) goes by `CausalLM.hidden_states` and `CausalLM.head`, and is the same for both classes.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model_zoo.causal_lm import CausalLM
from model_zoo.errors import InputError, warn_once
from model_zoo.inputs import as_int_tensor, as_mask
from model_zoo.labels import SINGLE
from model_zoo.layers import int_range
from model_zoo.turns import in_turn
from pet.compat.mindformers.padding import AHEAD, EARLIER, row_pad
from pet.compat.mindformers.saving import place_of
from pet.data.dataset import IGNORED

UNUSED = ("input_embeds", "input_position")


def _tensor(name: str, value: Any) -> Any:
    return value if isinstance(value, Tensor) or value is None else as_int_tensor(name, value, None)


class FamilyCell(CausalLM if TYPE_CHECKING else object):
    """Over a family's class. Outside of training it gives a tuple with the logits first, as releases 1.1 to 1.8 do.

    Attributes:
        shifts: whether rows hold one token more in training, which is only predicted.
        sliced: whether labels stand where they are predicted all the same (``input_sliced_sig`` of LLaMA's).
    """

    shifts = sliced = False

    @in_turn
    def __call__(self, input_ids, *columns, **named):
        """The loss ``(1,)`` in training, otherwise MindFormers' outputs; see `construct` of the family's class.

        Raises:
            InputError: an id outside the vocabulary, a row beyond the context, columns of other shapes, or which are
                missing or not used here.
        """
        named = {EARLIER.get(name, name): value for name, value in named.items()}
        names = [*inspect.signature(self.construct).parameters]
        said = {**dict(zip(names[1:], columns, strict=False)), **named}
        ids = as_int_tensor("input_ids", input_ids, 2)
        self.check_ids(ids, int(self.training and self.shifts))
        for name in UNUSED:
            if said.get(name) is None:
                continue
            if not self.training:
                raise InputError(f"{name} is not supported: a model is called with whole rows of ids")
            warn_once(f"{name} has no effect in training, in MindFormers either", name)
        if len(columns) >= len(names):
            raise InputError(f"{len(columns) + 1} columns; this family's cell takes {', '.join(names)}")
        if said.get("attention_mask") is not None:
            as_mask(said["attention_mask"], tuple(ids.shape))
        if said.get("labels") is not None and not self.scoring and np.shape(said["labels"]) != tuple(ids.shape):
            raise InputError(f"labels have shape {np.shape(said['labels'])}, input_ids {tuple(ids.shape)}")
        if self.training and not self.shifts and said.get("labels") is None:
            raise InputError("labels are missing: the loss of this family's cell is of labels")
        if self.training and self.scoring and not (self.labels.kind == SINGLE and isinstance(self, ScoreCell)):
            raise InputError("a head that is no classifier of one label is trained by Trainer or a recipe alone")
        # tensors as they came: MindSpore knows by them whose gradient it is asked for
        given = [_tensor(name, value) for name, value in zip(names, (input_ids, *columns), strict=False)]
        return nn.Cell.__call__(self, *given, **{name: _tensor(name, value) for name, value in named.items()})

    def save_pretrained(
        self, save_directory: str | os.PathLike | None = None, save_name: str | None = None, **settings: Any
    ) -> None:
        """See `CausalLM.save_pretrained`."""
        CausalLM.save_pretrained(self, place_of(save_directory, save_name), **settings)

    def chat(self, tokenizer, query: str, history: list | None = None, *, instruction: str = "", **settings: Any):
        """The answer to a question, and the messages of both, which go on a ``history``: ``(text, messages)``. Settings
        are those of ``generate`` and ``user_role_name`` …; left out, an answer is drawn, and ends at 512 tokens."""
        roles = {who: settings.pop(f"{who}_role_name", who) for who in ("system", "user", "assistant")}
        if history is None:
            history = [{"role": roles["system"], "content": instruction}] if instruction else []
        history.append({"role": roles["user"], "content": query})
        ids = tokenizer.apply_chat_template(history, add_generation_prompt=True)
        drawn = {"do_sample": True, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0}
        limits = {} if settings.get("max_new_tokens") else {"max_length": min(512, self.room)}
        answer = self.generate(ids, **{**limits, **drawn, **settings})[0][len(ids) :]
        history.append({"role": roles["assistant"], "content": tokenizer.decode(answer, True)})
        return history[-1]["content"], history

    def prepare_inputs_for_predict_layout(self, *inputs, **_) -> tuple:
        """What MindFormers' compilation asks for."""
        return inputs

    @property
    def padding(self) -> int:
        """The id that rows are padded with, or -1."""
        found = row_pad(self.config.to_dict(), getattr(self, "loaded_from", None))
        return -1 if found is None else found

    def cut(self, column, shifts):
        """A column of the data: without what is only predicted."""
        return column[:, :-1] if shifts and column is not None else column

    def of_tokens(self, tokens, keep, position_ids=None):
        """Logits ``(B·S, V)``; positions are counted from the first column, padding or not."""
        position_ids, start, end, _ = self.layout(tokens, None, position_ids)
        keep = None if keep is None else keep.astype(ms.int32)
        return self.head(self.hidden_states(tokens, position_ids, start, end, keep))

    def loss_of(self, logits, labels, mask):
        """The mean cross-entropy where the mask is 1, ``(1,)``; an id beyond the vocabulary has a loss of 0 there."""
        labels, mask = labels.reshape(-1, 1).astype(ms.int32), mask.reshape(-1).astype(ms.float32)
        known = ops.logical_and(labels >= 0, labels < logits.shape[1])
        picked = ops.gather_elements(ops.log_softmax(logits, -1), 1, ops.select(known, labels, ops.zeros_like(labels)))
        losses = (picked * known.astype(ms.float32)).reshape(-1) * mask
        return 0.0 - (losses.sum() / (mask.sum() + 1e-8)).reshape(1)


class GPT2Cell(FamilyCell):
    """GPT-2's: its end token pads, and is not learnt."""

    shifts = True

    def construct(
        self, input_ids, attention_mask=None, input_embeds=None, labels=None, input_position=None, position_ids=None
    ):
        """Rows with one token more in training; outside of it logits, ids and mask + 1. Labels are not read there."""
        input_ids = input_ids.astype(ms.int32)
        mask = (input_ids != self.padding if attention_mask is None else attention_mask).astype(ms.float32)
        tokens = self.cut(input_ids, self.training)
        logits = self.of_tokens(tokens, self.cut(mask, self.training), self.cut(position_ids, self.training))
        if self.training:
            return self.loss_of(logits, input_ids[:, 1:], mask[:, 1:])
        return logits.reshape(tokens.shape[0], tokens.shape[1], -1), tokens, mask + 1


class LlamaCell(FamilyCell):
    """LLaMA's: what follows a token of padding is not learnt."""

    shifts = True

    def construct(self, input_ids, labels=None, input_position=None, position_ids=None, attention_mask=None):
        """Rows with one token more in training, of labels too; outside of it logits, ids and mask."""
        input_ids = input_ids.astype(ms.int32)
        shifts = self.training and (labels is None or not self.sliced)
        tokens, learnt = self.cut(input_ids, shifts), input_ids if labels is None else labels.astype(ms.int32)
        if shifts:
            learnt = learnt[:, 1:]
        real = (tokens != self.padding).astype(ms.float32)
        mask = real if labels is None else real * (learnt != IGNORED).astype(ms.float32)
        keep = real if attention_mask is None else self.cut(attention_mask, shifts)
        logits = self.of_tokens(tokens, keep, self.cut(position_ids, shifts))
        if self.training:
            return self.loss_of(logits, learnt, mask)
        return logits.reshape(tokens.shape[0], tokens.shape[1], -1), tokens, mask


class GLMCell(FamilyCell):
    """ChatGLM-6B's: a label stands where it is predicted."""

    def construct(self, input_ids, labels=None, position_ids=None, attention_mask=None):
        """Outside of training the logits alone, ``(B·S, V)``."""
        logits = self.of_tokens(input_ids.astype(ms.int32), attention_mask, position_ids)
        if self.training:
            return self.loss_of(logits, labels, labels != IGNORED)
        return (logits,)


class GLM2Cell(FamilyCell):
    """ChatGLM2's, ChatGLM3's and GLM-4's: a label stands where it is predicted."""

    def construct(self, input_ids, labels=None, input_position=None, position_ids=None, attention_mask=None):
        """Outside of training the logits alone, ``(B, S, V)``; with labels these three, labels and mask one column
        later, where the ids that they are of would stand."""
        batch, length = input_ids.shape
        logits = self.of_tokens(input_ids.astype(ms.int32), attention_mask, position_ids)
        if self.training:
            return self.loss_of(logits, labels, labels != IGNORED)
        logits = logits.reshape(batch, length, -1)
        if labels is None:
            return (logits,)
        mask = (labels != IGNORED).astype(ms.float32)
        return _later(logits, 0), _later(labels, 1), _later(mask, 1)


def _later(rows, place: int):
    """Rows with a column of zeros in front, or at their end."""
    zeros = ops.zeros_like(rows[:, :1])
    return ops.concat((zeros, rows) if place else (rows, zeros), 1)


class ScoreCell(FamilyCell):
    """That of a model which judges texts, of GPT2ForSequenceClassification there: at the mask's last token."""

    def construct(self, input_ids, attention_mask, labels=None):
        """Outside of training the logits, ``(B, labels)``, or these and the labels."""
        logits = self.of_tokens(input_ids.astype(ms.int32), attention_mask)
        last = attention_mask.astype(ms.float32).sum(1).astype(ms.int32) - 1
        logits = ops.gather(logits, last + int_range(last.shape[0]) * input_ids.shape[1], 0)
        if self.training:
            return self.loss_of(logits, labels, ops.ones_like(last))
        return logits if labels is None else (logits, labels.reshape(-1))


CELLS = {**dict.fromkeys(AHEAD, GLM2Cell), "chatglm": GLMCell, "gpt2": GPT2Cell}
"""By a family's layout; others are called like LLaMA's."""


@functools.cache
def _class_of(own: type, cell: type) -> type:
    return type(own.__name__, (cell, own), {"__doc__": own.__doc__, "__module__": own.__module__})


def give_cell(model: CausalLM) -> None:
    """Makes a model one that scripts call as MindFormers' cell."""
    if not isinstance(model, FamilyCell):
        cell = ScoreCell if model.scoring else CELLS.get(model.config.family.layout, LlamaCell)
        model.__class__ = _class_of(type(model), cell)
    model.sliced = bool(getattr(model.config, "input_sliced_sig", False))


class LogitsCell(FamilyCell):
    """Called, it gives logits in every mode, as all of `pet`'s models do."""

    __call__ = CausalLM.__call__
    construct = CausalLM.construct


def give_logits(model: CausalLM) -> CausalLM:
    """Makes a model of `give_cell`'s one that scripts call as any other of this library; others are that."""
    if isinstance(model, FamilyCell):
        model.__class__ = _class_of(type(model).__bases__[1], LogitsCell)
    return model
