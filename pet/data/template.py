"""A prompt of the user's own: a chat template in Jinja, or plain text with three names in braces.

``"Question: {prompt}\\nAnswer: "`` stands for the text before the answer; the answer and the end token follow it and
are what is learnt. ``{prompt}`` is the question, ``{input}`` an alpaca row's further input, ``{system}`` the system
message; a name that a row does not have is empty. ``{{`` and ``}}`` are braces. Control tokens stand by their names
(``<|im_start|>``). Nothing else is interpreted: what the data says stays text.
"""

from __future__ import annotations

import functools
import json
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

from model_zoo.atomic import read_bytes
from model_zoo.errors import InputError, nearest
from pet.recipe.fields import is_jinja, is_template_file

NAMES = ("prompt", "input", "system")


def chat_template(template: str | None) -> tuple[str, str] | None:
    """The Jinja text of a chat template and what errors call it; None for any other template.

    Raises:
        InputError: the file cannot be read.
    """
    if is_template_file(template):
        return read_bytes(template, "a chat template").decode("utf-8-sig", errors="replace"), template
    return (template, "data.template") if is_jinja(template) else None


def parse_template(template: str) -> list[tuple[str, str | None]]:
    """A template as pairs (text, name that follows it or None).

    Raises:
        InputError: unbalanced braces, an unknown name, anything but a name in braces, or no ``{prompt}``.
    """
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"data.template: {error}; write {{{{ and }}}} for braces that are meant as such") from None
    problems = []
    for _, name, form, conversion in parsed:
        if name is None:
            continue
        if name not in NAMES:
            problems.append(f"data.template: {{{name}}} is not known{nearest(name, NAMES)}")
        elif form or conversion:
            problems.append(f"data.template: only the name may stand in braces, as in {{{name}}}")
    if not problems and not any(name == "prompt" for _, name, _, _ in parsed):
        problems.append("data.template: it does not hold {prompt}")
    if problems:
        raise InputError.collect(problems)
    return [(text, name) for text, name, _, _ in parsed]


def filled(template: str, values: Mapping[str, str]) -> list[tuple[str, bool]]:
    """The text before the answer, in pieces, and of each whether it is a row's."""
    parsed = parse_template(template)
    return [piece for text, name in parsed for piece in ((text, False), (values.get(name or "", ""), True)) if piece[0]]


def controls_in(tokenizer: Any, texts: Iterable[str]) -> list[str]:
    """The control tokens that texts name."""
    names = _any_of(tuple(getattr(tokenizer, "special_tokens", ())))
    return sorted({name for text in texts for name in names.findall(text)})


@functools.lru_cache(maxsize=8)
def _any_of(names: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(filter(None, names), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


_CHAT = """\
{%- set own = namespace(system=SYSTEM, prompt='', answer=none) -%}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}{%- set own.system = message['content'] -%}
{%- elif message['role'] == 'user' -%}{%- set own.prompt = message['content'] -%}{%- set own.answer = none -%}
{%- else -%}{%- set own.answer = message['content'] -%}
{%- endif -%}
{%- endfor -%}
{{ PROMPT }}
{%- if own.answer is not none -%}{{ own.answer + eos_token }}{%- endif -%}
"""


def as_chat_template(template: str, opening: str, system: str | None = None) -> str:
    """The Jinja text of a template, for programs that know no other; of a conversation its last question counts.

    Args:
        opening: the control tokens before a text.
        system: the system message where a conversation has none.

    Raises:
        InputError: as `parse_template`.
    """
    pieces = [json.dumps(opening)]
    for text, name in parse_template(template):
        pieces += [json.dumps(text, ensure_ascii=False)] if text else []
        pieces += [f"own.{name}"] if name in ("prompt", "system") else []  # messages have no further input
    text = _CHAT.replace("SYSTEM", json.dumps(system or "", ensure_ascii=False), 1)
    return text.replace("PROMPT", " + ".join(pieces), 1)


OF_A_ROW = dict.fromkeys(("tools", "tools within"), "the list of tools")
OF_A_ROW |= {"system": "the system message", "thought": "the thought", "enable_thinking": "enable_thinking"}
"""What a chat template may leave out, in words."""


def unread(row: Any, tokenizer: Any, settings: Any) -> list[str]:
    """What a row says that is not read: in columns, for lack of a place in a template that is a text, and control
    tokens, which stay text."""
    found = [f"column {name!r}" for name in row.unread]
    messages = [message for one in (row.messages or [], *row.others) for message in one]
    said = [row.text or "", row.text_pair or "", *(message["content"] for message in messages)]
    if named := controls_in(tokenizer, said):
        found.append(f"{', '.join(named)} in what is said, which stays text, as a control token")
    if not messages:
        return found
    system, thought = messages[0]["role"] == "system", any(one.get("reasoning_content") for one in messages)
    if settings.template is not None:
        places = settings.template + (settings.template_without_input or "")
        if system and "{system}" not in places:
            found.append("the system message, for which data.template has no {system},")
        if thought:
            found.append("the thought, for which data.template has no place,")
    else:
        own = getattr(tokenizer, "template", None)
        form, left_out = ("chat template", own.left_out) if own else ("prompt form", ["thought"])
        within = not row.tools and any(one.get("tools") for one in messages)
        said = {"tools": row.tools, "tools within": within, "system": system, "thought": thought}
        said["enable_thinking"] = (row.thinking, settings.enable_thinking) != (None, None)
        lacking = [OF_A_ROW[what] for what, there in said.items() if there and what in left_out]
        found += [f"{what}, for which the {form} has no place," for what in lacking]
    return found
