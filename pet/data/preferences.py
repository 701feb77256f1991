"""Rows that compare answers, by the columns of `pet.data.columns.PAIRS` and `pet.data.columns.LABELLED`.

What reads one raises KeyError where a column is missing, and ValueError where it cannot be used; the message says why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from .columns import LABELLED, PAIRS, QUESTIONS, RANKED, Columns
from .messages import OPENING, ROLE_NAMES, given, listed, messages_of, messages_of_history, open_with, speaker

TURN = re.compile(r"(?:^|\n)\s*(Human|Assistant):[ \n]?")
SPEAKERS = {"Human": "user", "Assistant": "assistant"}
Messages = list[dict[str, Any]]


def pairs(columns: Mapping[str, Any]) -> list[Messages]:
    """The two conversations of a row, the preferred one first."""
    row = Columns(columns, PAIRS, "a pair")
    question, system = _question(row), row.text("system")
    answered = len(question) > 1 and ROLE_NAMES.get(str(speaker(question[-1])).lower()) == "assistant"
    if answered and row.value("chosen") is None:  # the messages end with it, as ms-swift's
        row["chosen"], question = question[-1:], question[:-1]
    answers = [(role, row.value(role, required=True)) for role in ("chosen", "rejected")]
    chosen, rejected = (_conversation(row, role, answer, question) for role, answer in answers)
    for messages in (chosen, rejected) if system else ():
        open_with(messages, system)
    said, other = _said(chosen), _said(rejected)
    if said == other:
        raise ValueError("chosen and rejected are the same")
    if said[:-1] != other[:-1]:
        raise ValueError("chosen and rejected differ before their last answer")
    return [chosen, rejected]


def ranked(columns: Mapping[str, Any]) -> list[Messages]:
    """`pairs` for a reward model; the preferred answer has the row's ``margin``, where there is one."""
    chosen, rejected = pairs(columns)
    margin = Columns(columns, RANKED).value("margin")
    if margin is None or margin == "":
        return [chosen, rejected]
    try:
        value = float(margin)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value) or isinstance(margin, bool):
        raise ValueError(f"margin: a number was expected, found {margin!r}")
    return [[*chosen[:-1], {**chosen[-1], "margin": value}], rejected]


def labelled(columns: Mapping[str, Any]) -> list[Messages]:
    """The one conversation of a row; its last message says whether it is ``desirable``."""
    row = Columns(columns, LABELLED, "an answer with a label")
    label = row.value("label", required=True)
    words = {"true": True, "false": False, "1": True, "0": False}
    if str(label).lower() not in words:
        raise ValueError(f"label: expected true or false, found {label!r}")
    question = _question(row)
    answer = row.value("answer", required=len(question) < 2)
    messages = question if answer is None else _conversation(row, "answer", answer, question)
    open_with(messages, row.text("system") or None)
    return [[*messages[:-1], {**messages[-1], "desirable": words[str(label).lower()]}]]


def _question(row: Columns) -> Messages:
    """What stands before the answers; empty where these bring it along."""
    for role in ("messages", "prompt", "input"):
        if value := given(row.value(role)):
            break
    if isinstance(value, (list, Mapping)):
        found = list(_listed(value, role))
        if not all(isinstance(message, Mapping) for message in found):
            raise ValueError(f"{row.name(role)}: expected messages")
        return found
    if not (text := value if isinstance(value, str) else row.text(role)):
        return []
    if len(turns := _turns(text)) > 1:
        return turns if turns[-1]["content"] else turns[:-1]
    more = (role != "input" and row.text("input")) or ""
    apart = {"_input": more} if more else {}  # for templates that have a place for it
    asked = {"role": "user", "content": f"{text}\n{more}" if more else text, **apart}
    return [*messages_of_history(row.value("history")), asked]


def _conversation(row: Columns, role: str, answer: Any, question: Messages) -> Messages:
    """An answer with all that stands before it."""
    answer = _listed(given(answer), role)
    if isinstance(answer, list):
        if not answer or not all(isinstance(message, Mapping) for message in answer):
            raise ValueError(f"{row.name(role)}: expected messages")
        # messages that begin with a question bring it along
        first = speaker(answer[0])
        before = [one for one in question[:1] if speaker(one) in OPENING] if first in ("user", "human") else question
        found = list(answer) if first in OPENING else before + answer
    elif not isinstance(answer, str):
        raise ValueError(f"{row.name(role)}: expected a text or messages")
    else:
        found = [*question, {"role": "assistant", "content": answer}] if question else _turns(answer)
    if len(found) < 2:
        every = (*QUESTIONS, "input")
        if named := [column for column in every if column in row]:
            raise ValueError(f"{', '.join(named)}: is empty, a question was expected")
        raise ValueError(f"{role}: no question; expected a column {' or '.join(every)}, or Human: and Assistant:")
    return found


def _listed(value: Any, name: str) -> Any:
    """A message as a list of one, and a table of messages as a list; anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    return listed(value, name) if all(isinstance(one, list) for one in value.values()) else [dict(value)]


def _turns(text: str) -> Messages:
    """``Human: … Assistant: …`` as messages; nothing for other texts."""
    parts = TURN.split(text)
    if parts[0].strip():
        return []
    return [
        {"role": SPEAKERS[who], "content": said.strip()} for who, said in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _said(messages: Messages) -> list[dict[str, Any]]:
    """All that messages say: texts, thoughts and calls, whatever their keys are called and calls are numbered."""
    found = []
    for message in messages_of(messages):
        calls = [call["function"] for call in message.get("tool_calls", ())]
        found.append({**{name: message.get(name) for name in ("role", "content", "reasoning_content")}, "calls": calls})
    return found
