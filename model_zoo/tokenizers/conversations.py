"""What the messages of a conversation may hold, whatever a template or a prompt style makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from model_zoo.errors import InputError

CALL_FORMS = ((None, False), ("", False), (None, True), ("", True))
"""How templates read a call: the content of a message without words, and whether arguments are JSON in a text (R1)."""
USUAL = "system", "user", "assistant", "tool"
"""Roles whose places in a conversation are the template's own matter."""


class Joined(str):
    """The text of a content in parts, ``[{"type": "text", "text": …}, …]``, with these parts for a template that writes
    each of them.

    Args:
        parts: the texts.
    """

    parts: list[str]

    def __new__(cls, parts: Sequence[str]) -> Joined:
        joined = super().__new__(cls, "".join(parts))
        joined.parts = list(parts)
        return joined

    def __getnewargs__(self) -> tuple[list[str]]:
        return (self.parts,)


def with_texts(messages: Any) -> Any:
    """Messages whose contents in parts are `Joined`; others as they are.

    Raises:
        InputError: a part is no text.
    """
    if not isinstance(messages, (list, tuple)):
        return messages
    return [
        {**message, "content": _joined(index, message["content"])} if _in_parts(message) else message
        for index, message in enumerate(messages)
    ]


def _in_parts(message: Any) -> bool:
    return (
        isinstance(message, Mapping) and isinstance(message.get("content"), (list, tuple)) and bool(message["content"])
    )


def _joined(index: int, parts: Sequence[Any]) -> Joined:
    for part in parts:
        kind = (part.get("type") or "text") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise InputError(f"messages[{index}]: 'content' must be text or parts of the type 'text', found {kind!r}")
    return Joined([part["text"] for part in parts])


def in_parts(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages whose texts are parts of the type ``text``: the opposite of `with_texts`."""

    def apart(content: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text} for text in getattr(content, "parts", [content])]

    return [
        {**one, "content": apart(one["content"])} if isinstance(one.get("content"), str) else one for one in messages
    ]


def check_turns(messages: Any, answered: bool) -> Sequence[Mapping[str, Any]]:
    """The messages `with_texts`, without fields of null, which templates take for values (transformers leaves them out,
    too). The order of roles is the template's own matter.

    Raises:
        InputError: what no template could take.
    """
    messages = check_each(messages)
    check_end(messages, answered)
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def check_each(messages: Any) -> Sequence[Mapping[str, Any]]:
    """The messages `with_texts`: each has a role, and a text or calls.

    Raises:
        InputError: there is none, or one is something else.
    """
    messages = with_texts(messages)
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InputError("messages: expected a non-empty list of {'role', 'content'} objects")
    for index, message in enumerate(messages):
        told = isinstance(message, Mapping) and isinstance(message.get("role"), str)
        calls = told and message.get("tool_calls")
        if not told or not ("content" in message or calls):
            raise InputError(f"messages[{index}]: expected an object with 'role' and 'content', found {message!r:.80}")
        if not isinstance(message.get("content"), str) and not calls:
            found = type(message["content"]).__name__
            raise InputError(f"messages[{index}]: 'content' must be text, found {found}")
    return messages


def check_end(messages: Sequence[Mapping[str, Any]], answered: bool) -> None:
    """Raises InputError where an example does not end with an answer, or a prompt does."""
    last = messages[-1]["role"]
    if answered and last != "assistant":
        raise InputError(f"messages: an example must end with the assistant's answer, this one ends with the {last}")
    if not answered and last == "assistant":
        raise InputError("messages: a prompt must end with a user message, this one ends with the assistant")


def check_told(messages: Sequence[Mapping[str, Any]], text: str, source: str) -> None:
    """Raises InputError where a template passes over the messages of a role that is not among the usual ones."""
    for message in messages:
        words = re.findall(r"\w+", message.get("content") or "")
        if message["role"] not in USUAL and words and max(words, key=len) not in text:
            raise InputError(
                f"{source}: the chat template leaves messages from {message['role']!r} out; call their role by one "
                f"that it has a place for (in data: data.roles: {{{message['role']}: system}})"
            )


def as_called(message: Mapping[str, Any], content: str | None, as_text: bool) -> Mapping[str, Any]:
    """A message with its calls in one of `CALL_FORMS`; one without calls is returned as it is."""
    if not message.get("tool_calls"):
        return message

    def written(call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function") or {}
        given = function.get("arguments")
        if not as_text or given is None or isinstance(given, str):
            return call
        return {**call, "function": {**function, "arguments": json.dumps(given, ensure_ascii=False)}}

    return {
        **message,
        "content": message.get("content") or content,
        "tool_calls": [written(call) for call in message["tool_calls"]],
    }
