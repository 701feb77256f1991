"""Which added tokens a tokenizer has, and which of them are control tokens: one table, whatever files say it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from model_zoo.arguments import check_argument
from model_zoo.errors import InputError, shown
from model_zoo.tokenizers.settable import Attribute

LISTED = "added_tokens_decoder"
TOKEN_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""The tokens that a chat template may name."""
LISTS = ("additional_special_tokens", "extra_special_tokens")
FLAGS = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)


class TokenText(Attribute):
    """The text of an added token, beside its id: ``tokenizer.pad_token = tokenizer.eos_token``."""

    def value(self, tokenizer: Any) -> str | None:
        number = getattr(tokenizer, f"{self.name}_id")
        return next((one["content"] for one in tokenizer.added if one["id"] == number), None)

    def __set__(self, tokenizer: Any, text: str | None) -> None:
        if self.name != "pad_token":
            raise InputError(f"{self.name}: the tokenizer keeps its own; pad_token alone may be set")
        tokenizer.pad_token_id = None if text is None else tokenizer.token_to_id(text)


def named_token(settings: Mapping, key: str) -> str | None:
    """The text of ``bos_token``, ``eos_token`` … in tokenizer_config.json, where it is a string or an object."""
    return _text_of(settings.get(key))


def _text_of(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


def is_name(key: str) -> bool:
    """Whether a setting names special tokens: ``eos_token``, ``mask_token``, ``additional_special_tokens`` …"""
    return key.endswith("_token") or key in LISTS


def for_any_version(settings: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json as transformers 4 opens it, too: version 5's class and its list of further special tokens
    are errors there, and without tokenizer.json a null for ``add_prefix_space`` is no space there. Version 5 reads the
    older names as the same, and the null as if it were not said."""
    changed = {key: value for key, value in settings.items() if value is not None or key != "add_prefix_space"}
    if changed.get("tokenizer_class") == "TokenizersBackend":
        changed["tokenizer_class"] = "PreTrainedTokenizerFast"
    older, newer = LISTS
    if isinstance(changed.get(newer), list):
        known = changed.get(older) or []
        changed[older] = [*known, *(one for one in changed.pop(newer) if one not in known)]
    return changed


def as_saved(value: Any) -> Any:
    """A token, or a list of them, as tokenizer_config.json has it: special_tokens_map.json's lack the type."""
    if isinstance(value, list):
        return [as_saved(one) for one in value]
    return {"__type": "AddedToken", **value} if isinstance(value, dict) and "content" in value else value


def named_tokens(settings: Mapping) -> set[str]:
    """The texts of all tokens that settings name as special ones.

    transformers 5, which writes a ``backend``, lists line breaks and other texts too (of Gemma's model by itself): its
    tokenizer.json says which are special.
    """
    found = [one for key, one in settings.items() if is_name(key)]
    lists = [
        settings[key] for key in LISTS if isinstance(settings.get(key), (list, dict)) and "backend" not in settings
    ]
    found += [one for several in lists for one in (several.values() if isinstance(several, dict) else several)]
    return {text for one in found if isinstance(text := _text_of(one), str)}


def added_tokens(
    own: Iterable[Mapping], settings: Mapping, source: Any, pieces: Callable[[str], int | None] = lambda name: None
) -> list[dict]:
    """All added tokens that have a text, each as tokenizer.json has it.

    Args:
        own: those of the vocabulary's own file.
        settings: tokenizer_config.json; what it lists counts besides, and before what the file says of the same token.
            A token that either calls special is a control token, and so is one that is named, whatever they say.
        source: the vocabulary's file, for messages.
        pieces: the id of one of the vocabulary's pieces: a named token may be among them, and on no list.

    Raises:
        InputError: a list that is none, or that has another id for one of the file's tokens.
    """
    found, named = {one["content"]: {**FLAGS, "special": False, **one} for one in own}, named_tokens(settings)
    for name in sorted(named - found.keys()):
        if (number := pieces(name)) is not None:
            found[name] = {"content": name, **FLAGS, "id": number, "special": True}
    for number, entry in (settings.get(LISTED) or {}).items():
        if not (number.isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str)):
            raise InputError(
                f"tokenizer_config.json: {LISTED}: {shown(number)} is {shown(entry)}; "
                "an id with an object that has a content was expected"
            )
        name, said = entry["content"], {key: entry[key] for key in FLAGS if key in entry}
        known = found.get(name, {"content": name, **FLAGS, "id": int(number), "special": False})
        if known["id"] != int(number):
            raise InputError(
                f"{source}: {name!r} is id {known['id']} here, but tokenizer_config.json says {number}; "
                "the two files are of different models"
            )
        found[name] = {**known, **said, "special": known["special"] or bool(entry.get("special"))}
    return [{**one, "special": bool(one["special"]) or name in named} for name, one in found.items() if name]


def special_ids(tokens: Iterable[Mapping], special: bool = True) -> dict[str, int]:
    """{text: id} of the control tokens, or of those that are text."""
    return {one["content"]: one["id"] for one in tokens if bool(one["special"]) == special}


def listed_controls(settings: Mapping) -> dict[str, int]:
    """{text: id} of the control tokens that settings list."""
    return special_ids(added_tokens((), settings, LISTED))


def controls(ids: Mapping[str, int]) -> list[dict]:
    """The entries of control tokens that a vocabulary has by itself."""
    return [{"id": number, "content": name, **FLAGS, "special": True} for name, number in ids.items()]


class Places:
    """Where these tokens are in a text: of two that begin alike the longer one, and no ``single_word`` within a word.

    Attributes:
        tokens: {text: its entry}.
        pattern: finds them.
    """

    def __init__(self, tokens: Iterable[Mapping]) -> None:
        self.tokens = {one["content"]: one for one in tokens if one["content"]}
        words = {name: r"(?<!\w)%s(?!\w)" if one["single_word"] else "%s" for name, one in self.tokens.items()}
        ordered = sorted(words, key=len, reverse=True)
        self.pattern = re.compile("|".join(words[name] % re.escape(name) for name in ordered) or "(?!)")

    def split(self, text: str) -> Iterator[tuple[int, int, re.Match[str] | None]]:
        """The texts between them, without the blanks that they take: (start, stop, the token behind it or None)."""
        place = 0
        for found in [*self.pattern.finditer(text), None]:
            stop = len(text) if found is None else found.start()
            if found is not None and self.tokens[found[0]]["lstrip"]:
                stop = place + len(text[place:stop].rstrip())
            yield place, stop, found
            if found is not None:
                place = found.end()
                if self.tokens[found[0]]["rstrip"]:
                    place += len(text[place:]) - len(text[place:].lstrip())


NEEDS = re.compile(r"\{#-?\s*needs (.*?)\s*-?#\}")


def check_needed(template: str, source: str, known: Callable[[str], bool]) -> None:
    """Raises InputError where a chat template is no text, or the tokenizer lacks a token that it says it needs: ``{#
    needs <|end|> #}``. As text it would be several tokens, none of which ends an answer."""
    check_argument(str(source), "str", template)
    missing = [name for names in NEEDS.findall(template) for name in names.split() if not known(name)]
    if missing:
        raise InputError(
            f"{source}: the chat template needs the tokens {', '.join(missing)}, which the tokenizer does not have; "
            "name a prompt that the base knows, or give a base whose tokenizer has them: pet add-tokens writes one"
        )
