"""What scripts of MindFormers ask of a tokenizer beside `model_zoo.tokenizers.Tokenizer`'s own methods."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from model_zoo.errors import InputError
from model_zoo.tokenizers import Tokenizer
from model_zoo.tokenizers.prompts import STYLES, check_messages

Texts = Sequence[str]


class Spoken(Tokenizer if TYPE_CHECKING else object):
    """Before a tokenizer's class: pieces and their ids, several rows at once, and prompts."""

    def decode(self, ids, *arguments, **settings) -> str | list[str]:
        """The text of ids; of several rows a list."""
        rows = ids.asnumpy() if hasattr(ids, "asnumpy") else ids
        if not isinstance(rows, int) and len(rows) and np.ndim(rows[0]) == 1:
            return [super(Spoken, self).decode(row, *arguments, **settings) for row in rows]
        return super().decode(ids, *arguments, **settings)

    def batch_decode(self, rows: Iterable, *arguments, **settings) -> list[str]:
        """The text of each row of ids."""
        return [self.decode(row, *arguments, **settings) for row in rows]

    def encode_plus(self, text: str, **settings) -> dict[str, Any]:
        """The tokenizer called."""
        return self(text, **settings)

    def batch_encode_plus(self, texts: Texts, **settings) -> dict[str, Any]:
        """The tokenizer called."""
        return self(list(texts), **settings)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        pieces = ((self.piece(number), number) for number in reversed(range(self.vocab_size)))
        return {**{piece: number for piece, number in pieces if piece is not None}, **self.special_tokens}

    def get_vocab(self) -> dict[str, int]:
        """{token: id}."""
        return dict(self._ids)

    @property
    def unk_token(self) -> str | None:
        """What stands for a piece that there is not."""
        return None if self.unk_token_id is None else self.piece(self.unk_token_id)

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text."""
        return self.convert_ids_to_tokens(self.encode(text, add_special_tokens=add_special_tokens))

    def convert_tokens_to_ids(self, tokens: str | Texts) -> int | list[int | None] | None:
        """The id of a token, or of each; that of ``unk_token`` for what there is not."""
        if isinstance(tokens, str):
            return self._ids.get(tokens, self.unk_token_id)
        return [self._ids.get(token, self.unk_token_id) for token in tokens]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str | None] | None:
        """The token of an id, or of each."""
        return self.piece(ids) if isinstance(ids, int) else [self.piece(int(number)) for number in ids]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: list | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_tensors: str | None = None,
    ) -> Any:
        """A conversation in the family's prompt.

        Args:
            conversation: its messages.
            tools: see `Tokenizer.prompt`.
            add_generation_prompt: True for one that the model is to answer.
            tokenize: False gives the text.
            return_tensors: ``np`` or ``ms`` for an array ``(1, S)``.

        Raises:
            InputError: a question at the end without ``add_generation_prompt``.
        """
        if add_generation_prompt:
            ids = self.prompt(conversation, tools=tools)
        elif conversation and conversation[-1].get("role") == "assistant":
            ids = self.example(conversation, tools=tools)[0]
        else:
            raise InputError("apply_chat_template: the last message is no answer; give add_generation_prompt=True")
        return _as(return_tensors, [ids]) if return_tensors else ids if tokenize else self.decode(ids, False)

    def build_prompt(self, query: str, history: Sequence[tuple[str, str]] | None = None) -> str:
        """A question in the text that ChatGLM2's prompt is, for a call of the tokenizer.

        Args:
            query: the question.
            history: the questions and answers before it.

        Raises:
            InputError: the family's prompt is more than a text.
        """
        if self.prompt_style not in ("chatglm", "chatglm2"):
            raise InputError(
                f"build_prompt: is ChatGLM2's; of the prompt style {self.prompt_style!r} use build_chat_input or "
                "apply_chat_template"
            )
        parts = STYLES[self.prompt_style].render(check_messages(_messages(query, _turns(history)), answered=False))
        return "".join(part.text for part in parts if part.kind == "text")

    def build_chat_input(
        self, query: str, history: Sequence[Mapping[str, Any]] | None = None, role: str = "user", return_tensors="np"
    ) -> dict[str, Any]:
        """A question in the family's prompt: ``input_ids``, ``attention_mask`` and ``position_ids``, each ``(1, S)``.

        Args:
            query: the question.
            history: the messages before it.
            role: whose the question is.
            return_tensors: ``np`` or ``ms``.
        """
        ids = self.prompt(_messages(query, list(history or ()), role))
        rows = {"input_ids": ids, "attention_mask": [1] * len(ids), "position_ids": range(len(ids))}
        return {name: _as(return_tensors, [list(row)]) for name, row in rows.items()}


def _turns(history: Iterable[tuple[str, str]] | None) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": role, "content": said} for turn in history or () for role, said in zip(roles, turn, strict=True)]


def _messages(query: str, history: list, role: str = "user") -> list:
    return [*history, {"role": role, "content": query}]


def _as(kind: str, rows: list[list[int]]) -> Any:
    if kind not in ("np", "ms"):
        raise InputError(f"return_tensors: unknown value {kind!r} (there is: 'np', 'ms')")
    array = np.asarray(rows, np.int32)
    if kind == "np":
        return array
    from mindspore import Tensor

    return Tensor(array)


@functools.cache
def _class_of(own: type[Tokenizer]) -> type[Tokenizer]:
    names = {"__qualname__": own.__qualname__, "__doc__": own.__doc__, "__reduce__": _reduced}
    return type(own.__name__, (Spoken, own), names)


def _reduced(tokenizer: Tokenizer) -> tuple:
    """For copies and other processes, which do not find the class by its name."""
    plain = object.__new__(type(tokenizer).__mro__[2])
    vars(plain).update(vars(tokenizer))
    return spoken, (plain,)


def spoken(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer that scripts of MindFormers can use."""
    if not isinstance(tokenizer, Spoken):
        tokenizer.__class__ = _class_of(type(tokenizer))
    return tokenizer
