"""Rows that compare answers, in the forms in which such data is published.

=====================  ==========================================================================================
what is compared       columns
=====================  ==========================================================================================
two answers            prompt (or question, instruction [input], input, messages, conversation[s]) [history] [system];
                       chosen, rejected: a text, a message, or messages, with or without the question before them;
                       for a reward model [margin]: by how much the scores are to differ
two dialogues          chosen, rejected: texts of ``Human:`` and ``Assistant:`` turns, or messages; all but the last
                       turn are the same
one answer             a question as above; completion (or response, answer, output), or all in messages; label (or
                       kto_tag): true or false
=====================  ==========================================================================================

``data.columns`` names columns that are called otherwise: ``{prompt: query, chosen: better}``. In CSV and MindRecord
messages are written as JSON in a string.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .messages import messages_of, messages_of_history

QUESTIONS = ("messages", "conversations", "conversation", "prompt", "question", "query", "instruction", "input")
ANSWERS = ("completion", "response", "answer", "output")
LABELS = ("kto_tag", "label")
SAYING_THE_SAME = (tuple(name for name in QUESTIONS if name != "input"), ANSWERS, LABELS)
"""Names of one thing, of which the first in a row counts; ``input`` may also be a further part of a question."""
TURN = re.compile(r"(?:^|\n)\s*(Human|Assistant):[ \n]?")
SPOKEN = ({"role", "content"}, {"from", "value"}, {"role", "tool_calls"})
"""What a message in JSON has at least."""
SPEAKERS = {"Human": "user", "Assistant": "assistant"}
Messages = list[dict[str, Any]]


def pairs(columns: Mapping[str, Any]) -> list[Messages]:
    """The two conversations of a row, the preferred one first.

    Raises:
        KeyError: a column is missing.
        ValueError: the row cannot be used; the message says why.
    """
    if not {"chosen", "rejected"} & set(columns) and {"label", "kto_tag"} & set(columns):
        raise ValueError("no columns 'chosen' and 'rejected'; answers with a label are learnt by train.objective: kto")
    question = _question(columns)
    named = [name for name in QUESTIONS if name in columns]
    chosen, rejected = (_conversation(name, _given(columns[name]), question, named) for name in ("chosen", "rejected"))
    said, other = _said(chosen), _said(rejected)
    if said == other:
        raise ValueError("chosen and rejected are the same")
    if said[:-1] != other[:-1]:
        raise ValueError("chosen and rejected differ before their last answer")
    return [chosen, rejected]


def ranked(columns: Mapping[str, Any]) -> list[Messages]:
    """`pairs` for a reward model; the preferred answer has the row's ``margin``, where there is one.

    Raises:
        KeyError, ValueError: as `pairs`; a margin that is no number.
    """
    chosen, rejected = pairs(columns)
    if (margin := columns.get("margin")) is None or margin == "":
        return [chosen, rejected]
    try:
        value = float(margin)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or isinstance(margin, bool):
        raise ValueError(f"margin: a number was expected, found {margin!r}")
    return [[*chosen[:-1], {**chosen[-1], "margin": value}], rejected]


def labelled(columns: Mapping[str, Any]) -> list[Messages]:
    """The one conversation of a row; its last message says whether it is ``desirable``.

    Raises:
        KeyError: a column is missing.
        ValueError: the row cannot be used; the message says why.
    """
    if not {"label", "kto_tag"} & set(columns) and {"chosen", "rejected"} <= set(columns):
        raise ValueError("no column 'label'; chosen and rejected are learnt by train.objective: dpo, for one")
    label = columns["kto_tag"] if "kto_tag" in columns else columns["label"]
    words = {"true": True, "false": False, "1": True, "0": False}
    if str(label).lower() not in words:
        raise ValueError(f"label: expected true or false, found {label!r}")
    question = _question(columns)
    answer = next((_given(columns[name]) for name in ANSWERS if columns.get(name) is not None), None)
    if answer is not None:
        named = [name for name in QUESTIONS if name in columns]
        question = _conversation("completion", answer, question, named)
    if len(question) < 2:
        raise KeyError("completion")
    return [[*question[:-1], {**question[-1], "desirable": words[str(label).lower()]}]]


def _question(columns: Mapping[str, Any]) -> Messages:
    """What stands before the answers; empty where these bring it along."""
    found: Messages = []
    if columns.get("system"):
        found.append({"role": "system", "content": columns["system"]})
    name = next((name for name in QUESTIONS if columns.get(name)), "input")
    value = _given(columns.get(name)) or None
    if isinstance(value, list):
        return value if _system(value) else found + value
    if isinstance(value, str) and len(turns := _turns(value)) > 1:
        return found + (turns if turns[-1]["content"] else turns[:-1])
    if value is not None:
        found += messages_of_history(columns.get("history"))
        more = (name != "input" and columns.get("input")) or ""
        apart = {"_input": more} if more else {}  # for templates that have a place for it
        found.append({"role": "user", "content": "\n".join(filter(None, (value, more))), **apart})
    return found


def _given(value: Any) -> Any:
    """A message or messages out of a string of JSON; anything else as it is, an answer in JSON too."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        return value
    turns = found if isinstance(found, list) and found else [found]
    keys = [set(turn) if isinstance(turn, dict) else set() for turn in turns]
    return found if all(any(pair <= own for pair in SPOKEN) for own in keys) else value


def _conversation(name: str, answer: Any, question: Messages, named: Sequence[str] = ()) -> Messages:
    """An answer with all that stands before it; `named`: the row's columns for a question."""
    if isinstance(answer, Mapping):
        answer = [dict(answer)]
    if isinstance(answer, list):
        if not answer or not all(isinstance(message, Mapping) for message in answer):
            raise ValueError(f"{name}: expected messages")
        first = _role(answer[0])
        if first == "system":
            return answer
        # messages that begin with a question bring it along
        return (_system(question) if first in ("user", "human") else question) + answer
    if not isinstance(answer, str):
        raise ValueError(f"{name}: expected a text or messages")
    if question:
        return [*question, {"role": "assistant", "content": answer}]
    found = _turns(answer)
    if len(found) < 2 and named:
        raise ValueError(f"{', '.join(named)}: is empty, a question was expected")
    if len(found) < 2:
        raise ValueError(f"{name}: no question; expected a column {' or '.join(QUESTIONS)}, or Human: and Assistant:")
    return found


def _system(question: Messages) -> Messages:
    return [message for message in question[:1] if isinstance(message, Mapping) and _role(message) == "system"]


def _turns(text: str) -> Messages:
    """``Human: … Assistant: …`` as messages; nothing for other texts."""
    parts = TURN.split(text)
    if parts[0].strip():
        return []
    return [
        {"role": SPEAKERS[who], "content": said.strip()} for who, said in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _role(message: Mapping[str, Any]) -> Any:
    return message.get("role", message.get("from"))


def _said(messages: Messages) -> list[dict[str, Any]]:
    """All that messages say: texts, thoughts and calls, whatever their keys are called and calls are numbered."""
    found = []
    for message in messages_of(messages):
        calls = [call["function"] for call in message.get("tool_calls", ())]
        found.append({**{name: message.get(name) for name in ("role", "content", "reasoning_content")}, "calls": calls})
    return found
