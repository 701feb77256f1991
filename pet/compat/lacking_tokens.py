"""Tokens that a job file asks for and the base's tokenizer does not have: which, and what adds them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from pet.compat.job_files import listed, tokenizer_of
from pet.recipe.translation import Rule, Translation

HAS_THEM = "the tokenizer has them"


def lacking(t: Translation, words: Sequence[str]) -> list[str]:
    """Of these the ones that the base's tokenizer does not have; all of them where the base does not lie here."""
    own = tokenizer_of(t)
    return [word for word in words if own is None or word not in {**own.special_tokens, **own.plain}]


def refuse_lacking(
    t: Translation, name: str, words: Sequence[str], roles: Mapping[str, str] | None = None, plain: bool = False
) -> None:
    """Refuses a setting by the command that writes a base with its tokens.

    Args:
        words: the tokens that are lacking.
        roles: {``bos`` or ``eos``: the token that is to have this role}.
        plain: whether the tokens are text, and no control tokens.
    """
    roles = roles or {}
    asked = ", ".join(map(repr, dict.fromkeys([*words, *roles.values()])))
    options = [word for role, text in roles.items() for word in (f"--{role}", text)] + ["--plain"] * plain
    command = shlex.join(["pet", "add-tokens", str(t.get("model.path", "BASE")), *words, *options])
    t.refuse(name, f"{asked}: not so in the base's tokenizer; {command} --output DIR writes a base with them")


def new_tokens(plain: bool) -> Rule:
    """A rule for a setting with further tokens, as a list or with commas between them."""

    def rule(t: Translation, name: str, value: object) -> None:
        if new := lacking(t, listed(value)):
            refuse_lacking(t, name, new, plain=plain)
        else:
            t.ignore(name, HAS_THEM)

    return rule
