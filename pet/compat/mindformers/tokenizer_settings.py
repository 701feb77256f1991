"""Attributes of a tokenizer that scripts of MindFormers set."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from model_zoo.errors import InputError


class Setting:
    """An attribute that tokenizer_config.json gives its first value, and a script another one.

    Args:
        default: where the file says none.
        fits: whether a value can be used.
        expected: what can.
    """

    def __init__(self, default: Any, fits: Callable[[Any], bool], expected: str) -> None:
        self.default, self.fits, self.expected = default, fits, expected

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, tokenizer: Any, owner: type | None = None) -> Any:
        if tokenizer is None:
            return self
        found = tokenizer._settings.get(self.name)
        return vars(tokenizer).get(self.name, self.default if found is None else found)

    def __set__(self, tokenizer: Any, value: Any) -> None:
        if not self.fits(value):
            raise InputError(f"{self.name}: expected {self.expected}, found {value!r}")
        vars(tokenizer)[self.name] = value


class Around:
    """Whether a text has the token that begins, or ends, documents at its side; a script may set it.

    Args:
        token: whose id it is.
        side: where the ids in front of texts are kept, or those behind them.
    """

    def __init__(self, token: str, side: str) -> None:
        self.token, self.side = token, side

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, tokenizer: Any, owner: type | None = None) -> Any:
        if tokenizer is None:
            return self
        self._check(tokenizer, AttributeError)
        return getattr(tokenizer, self.token) in tokenizer.call_tokens()[self.side == "_after"]

    def __set__(self, tokenizer: Any, value: Any) -> None:
        self._check(tokenizer, InputError)
        number, own = getattr(tokenizer, self.token), vars(tokenizer)
        own[self.side] = [number] if value and number is not None else []
        for kept in {"_settings", "_own"} & own.keys():
            own[kept] = {**own[kept], self.name: bool(value)}

    def _check(self, tokenizer: Any, kind: type[Exception]) -> None:
        if not {*chain(*tokenizer.around)} <= {tokenizer.bos_token_id, tokenizer.eos_token_id}:
            raise kind(f"{self.name}: this tokenizer has tokens of its own around a text")
