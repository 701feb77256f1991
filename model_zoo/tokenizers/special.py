"""Which control tokens the files of a tokenizer declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from model_zoo.ends import listed_ends
from model_zoo.errors import InputError, shown
from model_zoo.tokenizers.files import TokenizerFiles

LISTED = "added_tokens_decoder"
TOKEN_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""The tokens that a chat template may name."""


class TokenText:
    """The text of a control token, beside its id: ``tokenizer.pad_token = tokenizer.eos_token``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, tokenizer: Any, owner: type | None = None) -> Any:
        return self if tokenizer is None else tokenizer.control_text(getattr(tokenizer, f"{self.name}_id"))

    def __set__(self, tokenizer: Any, text: str | None) -> None:
        if self.name != "pad_token":
            raise InputError(f"{self.name}: the tokenizer keeps its own; pad_token alone may be set")
        tokenizer.pad_token_id = None if text is None else tokenizer.token_to_id(text)


def named_token(settings: dict, key: str) -> str | None:
    """The text of ``bos_token``, ``eos_token`` … in tokenizer_config.json, where it is a string or an object."""
    value = settings.get(key)
    return value.get("content") if isinstance(value, dict) else value


def extra_tokens(settings: dict) -> dict[str, int]:
    """Control tokens that ``added_tokens_decoder`` in tokenizer_config.json declares."""
    found = {}
    for number, entry in (settings.get("added_tokens_decoder") or {}).items():
        if not (number.isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str)):
            raise InputError(
                f"tokenizer_config.json: added_tokens_decoder: {shown(number)} is {shown(entry)}; "
                "an id with an object that has a content was expected"
            )
        if entry.get("special", False):
            found[entry["content"]] = int(number)
    return found


def json_alone(files: TokenizerFiles, count: int) -> bool:
    """Whether tokenizer.json has more than the older files beside it: what transformers 5 changes in a tokenizer (its
    tokens, what stands around a text) it writes there and nowhere else, and leaves those files as they are.

    Args:
        count: pieces of the older files' vocabulary. Control tokens beyond it that tokenizer_config.json lists, as
            transformers 4 writes them, or before that added_tokens.json, are known without tokenizer.json; others are
            not.
    """
    if not files.has("tokenizer.json"):
        return False
    if "backend" in files.settings:
        return True
    known, listed = {*extra_tokens(files.settings).values(), *files.added.values()}, files.settings.get(LISTED)
    if listed is None:
        added = files.json("tokenizer.json").get("added_tokens") or []
        listed = [token["id"] for token in added if isinstance(token, dict) and isinstance(token.get("id"), int)]
    return not {number for number in map(int, listed) if number >= count} <= known


NEEDS = re.compile(r"\{#-?\s*needs (.*?)\s*-?#\}")


def check_needed(template: str, source: str, known: Callable[[str], bool]) -> None:
    """Raises InputError where the tokenizer lacks a token that a chat template says it needs: ``{# needs <|end|> #}``.
    As text it would be several tokens, none of which ends an answer."""
    missing = [name for names in NEEDS.findall(template) for name in names.split() if not known(name)]
    if missing:
        raise InputError(
            f"{source}: the chat template needs the tokens {', '.join(missing)}, which the tokenizer does not have; "
            "name a prompt that the base knows, or give a base whose tokenizer has them"
        )


def stripping(added: Iterable[dict], settings: dict) -> tuple[frozenset[str], frozenset[str]]:
    """The added tokens that take the blanks to their left, and those that take the blanks to their right.

    Args:
        added: what tokenizer.json says of them.
        settings: tokenizer_config.json.
    """
    entries = [*added, *(settings.get("added_tokens_decoder") or {}).values()]
    left, right = (frozenset(one.get("content") for one in entries if one.get(key)) for key in ("lstrip", "rstrip"))
    return left, right


def stop_ids(files: TokenizerFiles, special_tokens: dict[str, int]) -> list[int]:
    """End tokens that generation_config.json, or else config.json, lists, as far as they are control tokens here."""
    known = set(special_tokens.values())
    return [number for number in listed_ends(files.config, files.generation_config) if number in known]
