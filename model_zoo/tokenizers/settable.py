"""Attributes of a tokenizer that scripts set."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from model_zoo.elsewhere import OF_TOKENIZERS
from model_zoo.errors import InputError


class Attribute:
    """An attribute of tokenizers that is found by `value`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, tokenizer: Any, owner: type | None = None) -> Any:
        return self if tokenizer is None else self.value(tokenizer)


class Setting(Attribute):
    """An attribute that tokenizer_config.json gives its first value, or ``default``, and a script another one: whether
    it can be used says ``fits``, and what can be ``expected``."""

    def __init__(self, default: Any, fits: Callable[[Any], bool], expected: str) -> None:
        self.default, self.fits, self.expected = default, fits, expected

    def value(self, tokenizer: Any) -> Any:
        found = tokenizer._settings.get(self.name)
        return vars(tokenizer).get(self.name, self.default if found is None else found)

    def __set__(self, tokenizer: Any, value: Any) -> None:
        if not self.fits(value):
            raise InputError(f"{self.name}: expected {self.expected}, found {value!r}")
        vars(tokenizer)[self.name] = value


class Around(Attribute):
    """Whether a text has the token that begins, or ends, documents at its side: ``token`` is its id's attribute, and
    ``side`` that of the ids in front of texts, or behind them. A script may set it."""

    def __init__(self, token: str, side: str) -> None:
        self.token, self.side = token, side

    def value(self, tokenizer: Any) -> bool:
        self._check(tokenizer, AttributeError)
        return getattr(tokenizer, self.token) in tokenizer.call_tokens()[self.side == "_after"]

    def __set__(self, tokenizer: Any, value: Any) -> None:
        self._check(tokenizer, InputError)
        number, own = getattr(tokenizer, self.token), vars(tokenizer)
        own[self.side] = [number] if value and number is not None else []
        own["_settings"] = {**own["_settings"], self.name: bool(value)}

    def _check(self, tokenizer: Any, kind: type[Exception]) -> None:
        if not {*chain(*tokenizer.around)} <= {tokenizer.bos_token_id, tokenizer.eos_token_id}:
            raise kind(f"{self.name}: this tokenizer has tokens of its own around a text")


class Settable:
    """What scripts set: ``padding_side`` of calls that name none, whether ``add_bos_token`` and ``add_eos_token`` put
    these around texts (but for ChatGLM's and GLM-4's), and ``chat_template``. And what is said of methods elsewhere."""

    padding_side: Any = "left"
    add_bos_token, add_eos_token = Around("bos_token_id", "_before"), Around("eos_token_id", "_after")
    chat_template = property(
        lambda self: self._chat_template,
        lambda self, text: vars(self).update(vars(self.with_chat_template(text or "", "chat_template"))),
    )

    def __getattr__(self, name: str) -> Any:
        told = f": it {OF_TOKENIZERS[name]}" if name in OF_TOKENIZERS else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{told}")
