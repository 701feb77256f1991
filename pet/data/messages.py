"""Messages of a conversation as files have them, in the one form that prompts are made of.

``{"role", "content"}`` or ShareGPT's ``{"from", "value"}``. A call of tools is an assistant's message with
``tool_calls``, or a message from ``function_call`` whose text is the JSON of one call or of several; a tool's answer is
from ``tool`` or ``observation``. Of calls only the function's name and its arguments are kept, the latter as an object,
as chat templates expect them. `FLAGS` of 0 or false say that an answer is read and not learnt; text in parts,
``[{"type": "text", "text"}]`` (or ``value``), is one text, unless a chat template writes each part.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from model_zoo.atomic import json_value
from model_zoo.errors import nearest
from model_zoo.tokenizers.conversations import Joined

from .records import type_name

ROLE_NAMES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "function_call": "function_call",
    "tool_call": "function_call",
    "tool": "tool",
    "tool_response": "tool",
    "observation": "tool",
    "function": "tool",
    "ipython": "tool",
}
# from the kind of a message to the roles that may follow
NEXT = {
    "the beginning": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
    "tool calls": ("tool",),
    "tool": ("assistant", "tool"),
}
OPENING = ("system", "developer")
SAID_BY = (("role", "from"), ("content", "value"))
"""Who says a message, and what, by the names that either has; a field of null is none (tables have all fields in all
rows)."""
KEPT = {
    "name": ("name",),
    "tool_call_id": ("tool_call_id",),
    "reasoning_content": ("reasoning_content", "thinking", "reasoning"),
}
"""What else of a message chat templates read, and the names that it has in data, as in transformers."""
SPOKEN = ({"role", "content"}, {"from", "value"}, {"role", "tool_calls"})
"""What a message in JSON has at least."""
IN_ONE = (("system",), ("human", "input"), ("assistant", "output"))
"""A question and its answer in one object, as Firefly's, XTuner's and Capybara's conversations have them: by these
names what the system, the user and the assistant say."""
FLAGS = ("weight", "loss_weight", "loss", "train", "training")
"""Whether a message is learnt, as OpenAI's, LLaMA-Factory's, ms-swift's, SlimOrca's and axolotl's data say it."""
IN_PART = "train_detail"
"""Which characters of a message are learnt, as axolotl's data say it."""
KWARGS, THINKING = "chat_template_kwargs", "enable_thinking"
"""The column of a row's own settings for the chat template, and the one that is known."""


ROLE_COLUMNS = ("role", "content")
"""Roles of `data.columns` that name the parts of a message, not of a row."""


class Wrong(ValueError):
    """A row that cannot be used; the message says why."""


def messages_of(turns: list[Any]) -> list[dict[str, Any]]:
    """The messages of a list of turns. Raises `Wrong`."""
    return [_message(number, turn) for number, turn in enumerate(chain.from_iterable(map(_apart, turns)), start=1)]


def _apart(turn: Any) -> list[Any]:
    """The messages of an object with a question and its answer (`IN_ONE`), whose other keys are the answer's; anything
    else by itself."""
    if not isinstance(turn, dict) or "role" in turn or "from" in turn:
        return [turn]
    system, question, answer = (next((turn[name] for name in names if name in turn), None) for names in IN_ONE)
    if not isinstance(question, str) or not isinstance(answer, str) or not isinstance(system, (str, type(None))):
        return [turn]
    beside = {name: value for name, value in turn.items() if not any(name in names for names in IN_ONE)}
    opened = [{"role": "system", "content": system}] if system else []
    return [*opened, {"role": "user", "content": question}, {**beside, "role": "assistant", "content": answer}]


class Words(dict):
    """The file's words for roles. ``met``: those that messages had."""

    def __init__(self, words: Mapping[str, str] | None):
        super().__init__(words or {})
        self.met: set[str] = set()

    def of(self, word: str) -> str:
        """What a word means; itself where nothing is said of it."""
        self.met |= {word} & self.keys()
        return self.get(word, word)


def usual(value: Any, names: Mapping[str, str], words: Words) -> Any:
    """Messages by the usual names; anything else as it is.

    Args:
        names: what the file calls ``role`` and ``content``.
        words: the file's words for roles; messages of an empty one are left out.
    """
    if isinstance(value, list) and (names or words):
        every = [usual(one, names, words) for one in value]
        dropped = {"role": "", "from": ""}.items() if "" in words.values() else ()
        return [one for one in every if not (isinstance(one, dict) and any(pair in one.items() for pair in dropped))]
    if not isinstance(value, dict) or not (names or words):
        return value
    hidden = {*names.values(), *(same for pair in SAID_BY if pair[0] in names for same in pair)}
    turn = {key: one for key, one in value.items() if key not in hidden}
    turn |= {ours: value[own] for ours, own in names.items() if own in value}
    key = "role" if turn.get("role") is not None else "from"
    return turn | {key: words.of(turn[key]) for key in (key,) if isinstance(turn.get(key), str)}


def given(value: Any) -> Any:
    """A message or messages out of a string of JSON; anything else as it is, an answer in JSON too."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        found = json_value(value)
    except ValueError:
        return value
    turns = found if isinstance(found, list) and found else [found]
    keys = [set(turn) if isinstance(turn, dict) else set() for turn in turns]
    return found if all(any(pair <= own for pair in SPOKEN) for own in keys) else value


def open_with(messages: list[dict[str, Any]], system: str | None) -> bool:
    """Puts a system text before messages that have none of their own; whether they say it now."""
    if system is None:
        return True
    if not messages or speaker(messages[0]) not in OPENING:
        messages.insert(0, {"role": "system", "content": system})
    return messages[0].get("content", messages[0].get("value")) == system


def speaker(message: Mapping[str, Any]) -> Any:
    """Who says a message, in the file's word."""
    return message.get("role") or message.get("from")


def messages_of_history(history: Any) -> list[dict[str, Any]]:
    """The messages of a ``history`` column: a list of pairs [question, answer], or None. Raises `Wrong`."""
    found: list[dict[str, Any]] = []
    for number, turn in enumerate(listed(history or [], "history"), start=1):
        if not isinstance(turn, list) or len(turn) != 2 or not all(isinstance(part, str) for part in turn):
            raise Wrong(f"column 'history': turn {number}: expected a pair [question, answer] of strings")
        for role, content in zip(("user", "assistant"), turn, strict=True):
            found.append({"role": role, "content": checked_text(content)})
    return found


def _message(number: int, turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise Wrong(f"message {number}: expected an object with role and content, found {type_name(turn)}")
    role, content = (next((turn[name] for name in names if turn.get(name) is not None), None) for names in SAID_BY)
    calls = turn.get("tool_calls") or turn.get("function_call") or None
    if calls is not None and content is None:
        content = ""
    if role is None or content is None:
        names = ", ".join(repr(name) + " of null" * (value is None) for name, value in turn.items()) or "nothing"
        hint = "; data.columns names others: {role: …, content: …}" if len(turn) > 1 else ""
        raise Wrong(f"message {number}: expected role and content (or from and value), found {names}{hint}")
    if isinstance(content, list) and content:
        content = Joined([_part(number, part) for part in content])
    if not isinstance(content, str):
        raise Wrong(f"message {number}: content: expected a string, found {type_name(content)}")
    if not isinstance(role, str) or role.lower() not in ROLE_NAMES:
        hint = f"; data.roles says who that is: {{{role}: assistant}}, for one"
        raise Wrong(f"message {number}: role {role!r} is not known{nearest(role, ROLE_NAMES)}{hint}")
    role = ROLE_NAMES[role.lower()]
    if role == "function_call":
        calls, content, role = parsed(content, f"message {number}: function_call"), "", "assistant"
    message: dict[str, Any] = {"role": role, "content": checked_text(content)}
    for key, names in KEPT.items():
        said = next((turn[name] for name in names if isinstance(turn.get(name), str)), None)
        message |= {} if said is None else {key: checked_text(said)}
    if turn.get("tools"):
        message["tools"] = listed(turn["tools"], "tools")
    if turn.get(IN_PART):
        raise Wrong(f"message {number}: {IN_PART}: parts of an answer cannot be learnt; only whole ones, by weight")
    if not _learnt(number, turn, message["role"]):
        message["weight"] = 0
    if calls is not None:
        if message["role"] != "assistant":
            raise Wrong(f"message {number}: tool_calls are the assistant's, this is from {role!r}")
        message["tool_calls"] = [_call(number, call) for call in (calls if isinstance(calls, list) else [calls])]
    return message


def _part(number: int, part: Any) -> str:
    """The text of one part of a message."""
    kind = (part.get("type") or "text") if isinstance(part, dict) else type_name(part)
    text = part.get("text", part.get("value")) if kind == "text" else ""
    if kind != "text" or not isinstance(text, str):
        found = repr(kind) if kind != "text" else "one without a text"
        raise Wrong(f"message {number}: content: expected a string or parts of the type 'text', found {found}")
    return text


def _learnt(number: int, turn: dict[str, Any], role: str) -> bool:
    """False for an answer that is not to be learnt."""
    given = {name: turn[name] for name in FLAGS if turn.get(name) is not None}
    for name, value in given.items():
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            raise Wrong(f"message {number}: {name}: expected 0 or 1, or true or false, found {value!r}")
        if value and role != "assistant":
            raise Wrong(f"message {number}: {name}: only answers can be learnt, this is from {role!r}")
    if len(set(given.values())) > 1:
        raise Wrong(f"message {number}: {' and '.join(given)} contradict each other")
    return role != "assistant" or all(given.values())


def _call(number: int, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Wrong(f"message {number}: tool_calls: expected objects with a function's name and arguments")
    arguments = function.get("arguments", function.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = parsed(arguments or "{}", f"message {number}: tool_calls: arguments")
    known = {"id": call["id"]} if isinstance(call.get("id"), str) else {}  # Mistral's templates want it
    return {"type": "function", **known, "function": {"name": function["name"], "arguments": arguments}}


def segments_of(value: list[Any]) -> list[tuple[str, bool]]:
    """The texts of a row as they stand, ``{"text", "label"}``, and whether each is learnt. Raises `Wrong`."""
    for number, one in enumerate(value, start=1):
        if not isinstance(one, dict) or not isinstance(one.get("text"), str) or not isinstance(one.get("label"), bool):
            raise Wrong(f"segment {number}: expected an object with a text and a label of true or false")
    return [(checked_text(one["text"]), one["label"]) for one in value]


def tools_of(value: Any) -> list[dict[str, Any]] | None:
    """The ``tools`` of a row: a list of objects, or the JSON of one; None where there are none. Raises `Wrong`."""
    if value is None or value == "":
        return None
    tools = listed(value, "tools")
    for number, tool in enumerate(tools, start=1):
        if not isinstance(tool, dict):
            raise Wrong(f"column 'tools': tool {number}: expected an object, found {type_name(tool)}")
    return [_function(tool) for tool in tools] or None


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """A function by itself in the form that chat templates read; anything else as it is."""
    if "function" in tool or not isinstance(tool.get("name"), str):
        return tool
    return {"type": "function", "function": {key: one for key, one in tool.items() if key != "type"}}


def thinking_of(value: Any) -> bool | None:
    """``enable_thinking`` of a row's ``chat_template_kwargs``, as TRL's data have them, or of the JSON of these; None
    where there is none. Raises `Wrong`."""
    given = parsed(value, f"column {KWARGS!r}") if isinstance(value, str) and value.strip() else value or {}
    if not isinstance(given, dict):
        raise Wrong(f"column {KWARGS!r}: expected an object, found {type_name(given)}")
    others = [key for key, one in given.items() if key != THINKING and one is not None]
    if others:
        raise Wrong(f"column {KWARGS!r}: only {THINKING} is supported, found {', '.join(map(repr, others))}")
    if not isinstance(given.get(THINKING), (bool, type(None))):
        raise Wrong(f"column {KWARGS!r}: {THINKING}: expected true or false, found {given[THINKING]!r}")
    return given.get(THINKING)


def parsed(text: str, what: str) -> Any:
    """The value of a JSON text."""
    try:
        return json_value(text)
    except ValueError as error:
        raise Wrong(f"{what}: expected JSON: {error}") from None


def listed(value: Any, name: str) -> list[Any]:
    """A list, or the JSON of one in a string (CSV and MindRecord have no lists of objects)."""
    if isinstance(value, str):
        if not value.strip():
            return []
        try:
            value = json_value(value)
        except ValueError as error:
            raise Wrong(f"column {name!r}: expected a list in JSON: {error}") from None
    columns = list(value.values()) if isinstance(value, dict) else []
    if all(isinstance(column, list) for column in columns) and len(set(map(len, columns))) == 1:
        # what Hugging Face's datasets make of a list of objects where a feature is called Sequence
        value = [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    if not isinstance(value, list):
        raise Wrong(f"column {name!r}: expected a list, found {type_name(value)}")
    return value


def checked_text(text: str) -> str:
    """JSON can write half of a surrogate pair, which is no text and which no tokenizer takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Wrong(f"the text holds half of a surrogate pair at character {error.start}") from None
    return text


def check_turns(messages: list[dict[str, Any]], answers: bool, any_order: bool = False, hint: str = "") -> None:
    """An optional system message, then user and assistant in turn, the assistant last; tools answer to their calls.

    Args:
        answers: the last message must be an answer.
        any_order: whether all else is the chat template's matter.
        hint: what else learns from a conversation without an answer.
    """
    start = 1 if messages and messages[0]["role"] == "system" else 0
    before = "the beginning"
    for number, message in enumerate(() if any_order else messages[start:], start=start + 1):
        role, wanted = message["role"], NEXT[before]
        if role == "developer":
            raise Wrong(
                f"message {number} is from 'developer', for which the tokenizer's chat template would have to have a "
                "place, and it has none; data.roles: {developer: system} makes system messages of these"
            )
        if role not in wanted:
            shown = before if before == "the beginning" else repr(before)
            expected = " or ".join(map(repr, wanted))
            raise Wrong(f"message {number} is from {role!r} after {shown}; expected {expected}")
        before = "tool calls" if message.get("tool_calls") else role
    if len(messages) == start:
        raise Wrong("the conversation has no messages")
    if answers and messages[-1]["role"] != "assistant":
        last = messages[-1]["role"]
        raise Wrong(f"the conversation ends with a message from {last!r}; expected an answer to learn from{hint}")


def last_question(messages: list[dict[str, Any]]) -> str:
    """What a user said last; empty where no message is a user's."""
    return next((message["content"] for message in reversed(messages) if message["role"] == "user"), "")
