"""Answers whose prompt ends otherwise than the finished conversation has it: with a thought, opened or left empty.

DeepSeek-R1's prompts end with ``<think>``, which its finished conversations leave out, with the thought itself. Such an
answer is learnt as it follows its prompt: by the thought that the data has, or else by the end of an empty one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

THOUGHTS = {
    "<think>": ("</think>", "\n"),
    "<|START_THINKING|>": ("<|END_THINKING|>", ""),
    "<|channel>thought": ("<channel|>", ""),
}
"""{how a thought begins: (how it ends, what stands around its text)}."""
SHOWN = 60
"""Characters of a prompt's end in messages."""

CHANGED = (
    "message {number} is written otherwise once the conversation goes on (thinking that is left out of earlier turns "
    "does this, or a system text that moves to the last question); use train_on: last"
)
NOT_KEPT = (
    "the prompt of message {number} ends with {opening!r}, which the finished conversation does not have there; "
    "use train_on: last"
)
NO_PREFIX = (
    "the prompt of message {number} ends with {opening!r}, which neither the finished conversation has there nor the "
    "answer in the data; put it into the data, or mark the answers in a template of your own with "
    "{{% generation %}} (data.template: FILE.jinja)"
)
HAS_THOUGHT = (
    "the prompt of message {number} ends with the empty thought {opening!r}, but the answer in the data has a thought; "
    "turn thinking on (data.enable_thinking: true, where the template has this switch), or leave thoughts out of the "
    "data"
)


def alike(text: str, other: str) -> int:
    """How many characters two texts begin with together."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((number for number, (one, two) in pairs if one != two), min(len(text), len(other)))


def turn_begins(text: str, before: str, control: re.Pattern[str]) -> int:
    """Where the turn of an answer begins that a finished conversation and its prompt write differently.

    Behind a control token or a line's end: first characters of the two may be the same by chance.
    """
    common = alike(text, before)
    behind = max((end for name, end in _controls(control, before, common) if name not in THOUGHTS), default=0)
    thoughts = [place for name in THOUGHTS if (place := before.find(name, behind)) >= 0]
    return max(behind, before.rfind("\n", 0, min([common, *thoughts])) + 1)


def _controls(control: re.Pattern[str], text: str, end: int | None = None) -> list[tuple[str, int]]:
    """Control tokens and the places behind them."""
    return [(found[0], found.end()) for found in control.finditer(text, 0, len(text) if end is None else end)]


def continued(
    text: str, before: str, message: Mapping[str, Any], control: re.Pattern[str], stops: Sequence[str]
) -> str | None:
    """A conversation whose last answer goes on from its prompt; None where it does not follow from the two.

    Args:
        text: the finished conversation as the template writes it.
        before: the prompt, with which it does not begin.
        message: the answer.
        control: finds control tokens.
        stops: those that end an answer.
    """
    begins = turn_begins(text, before, control)
    opening, own = before[begins:].strip(), text[begins:]
    said = (message.get("content") or "").strip()
    if not opening:
        return None
    if said.startswith(opening) and not message.get("tool_calls"):  # the data's answer has it
        ends = [found[0] for found in control.finditer(own) if found[0] in stops]
        return before + said.removeprefix(opening).lstrip("\n") + "".join(ends[:1])
    return _behind_thought(before, opening, own, message, control) or _behind_header(text, before, said, control)


def _behind_thought(
    before: str, opening: str, own: str, message: Mapping[str, Any], control: re.Pattern[str]
) -> str | None:
    """Where the prompt begins a thought, or has an empty one, and the template writes the answer without it."""
    said, thought = ((message.get(key) or "").strip() for key in ("content", "reasoning_content"))
    first = next((name for name in THOUGHTS if opening.startswith(name)), None)
    if first is None or first in said:
        return None
    last, around = THOUGHTS[first]
    inside = opening.removeprefix(first)
    closed = inside.endswith(last)
    if inside.removesuffix(last).strip() or (thought and (closed or thought in own)):
        return None
    empty = re.match(rf"\s*(?:{re.escape(first)})?(\s*{re.escape(last)}\s*)", own)  # the template's own one
    rest = own[empty.end() :] if empty else own
    place = rest.find(said)
    if place < 0 or control.sub("", rest[:place]).strip():
        return None
    if closed:
        return before + rest
    if empty and not thought:
        return before + empty[1] + rest
    return before + ("" if before.endswith("\n") else around) + thought + around + last + 2 * around + rest


def _behind_header(text: str, before: str, said: str, control: re.Pattern[str]) -> str | None:
    """Where earlier messages are written otherwise (Mistral's moves a system text to a question without an answer), but
    the answer comes behind the same control token as in the prompt."""
    place = text.rfind(said) if said else -1
    heads = [part[ends[-1][1] :] for part in (before, text[: max(place, 0)]) if (ends := _controls(control, part))]
    names = [ends[-1][0] for part in (before, text[: max(place, 0)]) if (ends := _controls(control, part))]
    if len(heads) < 2 or heads[0].strip() != heads[1].strip() or names[0] != names[1]:
        return None
    return before + text[place:]


def lacks_thought(before: str, message: Mapping[str, Any]) -> bool:
    """Whether a prompt opens a thought and the answer in the data has none, so that it goes behind an empty one."""
    return before.rstrip().endswith(tuple(THOUGHTS)) and not _thinks(message)


def _thinks(message: Mapping[str, Any]) -> bool:
    """Whether the data has a thought with this answer."""
    return bool(message.get("reasoning_content")) or any(one in (message.get("content") or "") for one in THOUGHTS)


def why_not(
    number: int,
    is_last: bool,
    text: str,
    before: str,
    after: str,
    message: Mapping[str, Any],
    control: re.Pattern[str],
) -> str:
    """Why an answer is not found, and what to do.

    Args:
        number: of the message, from 1.
        is_last: nothing follows it.
        text, before: as for `continued`.
        after: the conversation up to this answer.
        message, control: as for `continued`.
    """
    opening = before[turn_begins(text, before, control) :]
    shown = opening if len(opening) <= SHOWN else f"…{opening[-SHOWN:]}"
    if not is_last:
        changed = text.startswith(before) or not text.startswith(after.rstrip())
        return (CHANGED if changed else NOT_KEPT).format(number=number, opening=shown)
    empty = any(opening.strip().startswith(one) and opening.strip().endswith(THOUGHTS[one][0]) for one in THOUGHTS)
    return (HAS_THOUGHT if empty and _thinks(message) else NO_PREFIX).format(number=number, opening=shown)
