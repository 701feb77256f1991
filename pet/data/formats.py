"""Records to rows: alpaca, ADGEN, prompt/completion, chat, ShareGPT, raw text and tokenised rows.

===================  =====================================================================================
format               columns (those in brackets may be missing)
===================  =====================================================================================
alpaca               instruction [input] output [history] [system] [tools]
adgen                content [input] summary [history] [system] [tools]
prompt_completion    prompt (question, query) [input] completion (response, answer) [history] [system] [tools]
chat                 messages: a list of {role, content}; [system] [tools]
sharegpt             conversations: a list of {from, value}; [system] [tools]
text                 text
tokens               input_ids [labels] [attention_mask] [completion_mask] [assistant_masks] [loss_mask]
===================  =====================================================================================

A plain text file holds texts separated by blank lines, or, where it has no blank line, a text on each line.
``history`` is a list of pairs [question, answer]. A prompt or a completion may be a list of messages; answers within
the prompt are context only. Every row becomes either messages (an optional system message, then user and assistant in
turn, with calls of tools and their results between, or in the order that a chat template takes:
:mod:`pet.data.messages`), a text, or tokens. Of a column ``chat_template_kwargs`` enable_thinking is read.
In CSV and MindRecord a list is written as JSON in a string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError, nearest

from .messages import (
    KWARGS,
    ROLE_COLUMNS,
    Wrong,
    check_turns,
    checked_text,
    conversation,
    last_question,
    listed,
    messages_of,
    messages_of_history,
    thinking_of,
    tools_of,
    usual,
)
from .parts import part_of, with_parts
from .preferences import SAYING_THE_SAME
from .readers import read_records
from .records import BEGINNING, Place, Problems, Record, type_name
from .row import Row
from .token_rows import TOKEN_COLUMNS, is_bare, tokens_of
from .unread import Columns

# format -> role -> the names its column may have; required roles first
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "chat": {"messages": ("messages",), "system": ("system",), "tools": ("tools",)},
    "sharegpt": {"messages": ("conversations", "conversation"), "system": ("system",), "tools": ("tools",)},
    "alpaca": {"prompt": ("instruction",), "answer": ("output",)},
    "adgen": {"prompt": ("content",), "answer": ("summary",)},
    "prompt_completion": {
        "prompt": ("prompt", "question", "query"),
        "answer": ("completion", "response", "answer"),
    },
    "tokens": {name: (name,) for name in TOKEN_COLUMNS},
    "text": {"text": ("text",)},
}
for _format in ("alpaca", "adgen", "prompt_completion"):
    COLUMNS[_format] |= {name: (name,) for name in ("input", "history", "system", "tools")}
KNOWN = {name for roles in COLUMNS.values() for names in roles.values() for name in names} | {
    *("chosen", "rejected", "margin", "functions", "images", "image", "videos", "audios")
}
"""Names of columns that mean something to this or another loader."""
REQUIRED = ("prompt", "answer", "messages", "text", "input_ids")
LISTS = ("messages", "input_ids")
"""Roles whose columns hold lists."""
NEEDED = ("prompt", "messages", "answer", "chosen", "rejected", "text", "text_pair", "label")
"""Roles that no row may lack whose column ``data.columns`` names, where an objective reads rows itself."""


def read_rows(
    paths: str | Path | Iterable[str | Path],
    *,
    limit: int | None = None,
    parts: Sequence[str] | None = None,
    own: Callable[[Path], Mapping[str, Any]] = lambda path: {},
    **options: Any,
) -> Iterator[Row]:
    """The rows of files or directories, one at a time.

    Args:
        paths: a file, a directory, or several.
        limit: stop after so many rows.
        parts: which rows of each path, see :mod:`pet.data.parts`.
        own: options of one file.
        options: of :func:`read_file`.

    Raises:
        InputError: at the end, with all problems of all files (up to ``limit``), after the rows that could be read.
    """
    problems = Problems()
    left = limit
    for files, part in with_parts(paths, parts):
        rows = chain.from_iterable(read_file(path, problems, **options, **own(path)) for path in files)
        for row in islice(part_of(part, rows, files), left):
            yield row
            left = None if left is None else left - 1
    problems.raise_if_any()


def read_file(
    path: Path,
    problems: Problems,
    *,
    format: str = "auto",
    columns: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
    system: str | None = None,
    answers: bool = True,
    any_order: bool = False,
    place: Place = BEGINNING,
    conversations: Callable[[dict[str, Any]], list] | None = None,
    documents: int = 1,
    train_on: str = "answers",
) -> Iterator[Row]:
    """The rows of one file from ``place`` on; what is wrong goes to ``problems``.

    Args:
        format: one of the table above; ``auto`` decides by the first row. ``mindrecord`` is ``auto``.
        columns: role → name of the file's column.
        roles: the file's words for who says a message → the usual ones.
        system: a system message for conversations that bring none.
        answers: the last message must be an answer. Without (for prediction) it may be missing.
        any_order: whether the order of roles is a chat template's matter.
        conversations, documents: of an objective that reads rows itself; ``format`` is not used then.
        train_on: with ``all`` the answers within a prompt of messages are learnt as well.
    """
    convert: Callable[[Record], Row] | None = None
    known = KNOWN.difference(*({role, *_names_of(role)} for role, name in (columns or {}).items() if not name))
    named = {role: name for role, name in (columns or {}).items() if role in ROLE_COLUMNS}
    columns = {role: name for role, name in (columns or {}).items() if role not in ROLE_COLUMNS}
    if conversations is not None:
        convert = _documents_of(path, conversations, documents, answers, columns, any_order)
    elif place != BEGINNING:  # the first row of the file decides, not the first one that is wanted
        first = next(read_records(path, Problems()))
        convert = _converter(path, list(first.columns), format, columns, answers, any_order, train_on)
    for record in read_records(path, problems, place):
        try:
            given = Columns(record.columns)
            if named or roles:
                given = Columns({name: usual(value, named, roles or {}) for name, value in record.columns.items()})
            record = replace(record, columns=given)
            if convert is None:
                convert = _converter(path, list(record.columns), format, columns, answers, any_order, train_on)
            row = convert(record)
            row.unread += given.unread(known)
            if system is not None and row.messages is not None:
                for messages in (row.messages, *row.others):
                    _open(messages, system)
        except Wrong as error:
            problems.add(path, record.line, str(error))
            if convert is None:  # the format is unknown: every row would say so again
                return
            continue
        yield row


def _open(messages: list[dict[str, Any]], system: str) -> bool:
    """Puts a system text before messages that have none of their own; whether they say it now."""
    if not messages or messages[0]["role"] not in ("system", "developer"):
        messages.insert(0, {"role": "system", "content": system})
    return messages[0]["content"] == system


def _documents_of(
    path: Path, conversations: Callable, documents: int, answers: bool, columns: Mapping[str, str], any_order: bool
) -> Callable[[Record], Row]:
    """Rows by a function of the objective's, which sees the roles of ``columns`` as columns, and nothing that says the
    same by another name."""
    given = {role for role, name in columns.items() if name}  # without a name a column is left out
    same = (name for names in SAYING_THE_SAME if set(names) & given for name in names)
    hidden = {*columns, *columns.values(), *same}

    def convert(record: Record) -> Row:
        for role, name in columns.items():
            if name and role in NEEDED and name not in record.columns:
                raise Wrong(f"no column {name!r}, which is to be the {role}{nearest(name, record.columns)}")
        try:
            renamed = {role: record.columns[name] for role, name in columns.items() if name in record.columns}
            own = Columns({name: value for name, value in record.columns.items() if name not in hidden} | renamed)
            found = conversations(own)
            # a user's own function may read columns in any way
            record.columns.asked |= own.asked if conversations.__module__.startswith(__package__) else own.keys()
        except (KeyError, TypeError, ValueError) as error:
            names = ", ".join(map(repr, record.columns))
            text = f"no column {error}, found {names}" if isinstance(error, KeyError) else str(error)
            raise Wrong(text) from error
        if isinstance(found, Mapping):  # no conversations
            return Row(path, record.line, place=record.place, row=record.row, **found)
        if len(found) != documents:
            raise Wrong(f"{len(found)} documents; the objective compares {documents}")
        every = [messages_of(messages) for messages in found]
        for messages in every:
            check_turns(messages, answers, any_order)
        row = Row(path, record.line, every[0], others=every[1:], place=record.place, row=record.row)
        row.input = next((one["_input"] for one in reversed(found[0]) if "_input" in one), "")
        row.prompt = last_question(every[0]).removesuffix(f"\n{row.input}" if row.input else "")
        row.label = found[0][-1].get("desirable", found[0][-1].get("margin"))
        row.tools, row.thinking = tools_of(own.get("tools")), thinking_of(own.get(KWARGS))
        return row

    return convert


def _compared(names: Iterable[str]) -> str:
    """Which objective reads rows with these columns, where answers are compared in them."""
    if {"chosen", "rejected"} <= set(names):
        return "; chosen and rejected are learnt by train.objective: dpo, for one"
    return "; answers with a label are learnt by train.objective: kto" if {"label", "kto_tag"} & set(names) else ""


def recognise(names: Iterable[str], answers: bool = True) -> str | None:
    """The format of rows with columns of these names, or None."""
    names = set(names)
    for format, roles in COLUMNS.items():
        if all(names.intersection(roles[role]) for role in REQUIRED if role in roles and (answers or role != "answer")):
            return format
    return None


def _converter(
    path: Path,
    names: list[str],
    format: str,
    columns: Mapping[str, str],
    answers: bool,
    any_order: bool,
    train_on: str,
) -> Callable[[Record], Row]:
    """Decide once for a file which column plays which role."""
    left_out = {role for role, name in columns.items() if not name}
    columns = {role: name for role, name in columns.items() if name}
    needed = [role for role in REQUIRED if role != "answer" or answers]
    for role, name in columns.items():
        if name not in names and role in needed:
            raise Wrong(f"no column {name!r}, which is to be the {role}{nearest(name, names)}")
    if format in ("auto", "mindrecord"):
        if columns:
            roles = {role: (name,) for role, name in columns.items()}
            _check_roles(roles, answers)
            return _build(path, roles, None, answers, any_order, train_on)
        there = set(names).difference(*map(_names_of, left_out))
        found = recognise(there, answers)
        if found is None:
            known = "; ".join(
                f"{name} ({', '.join('/'.join(options) for role, options in roles.items() if role in REQUIRED)})"
                for name, roles in COLUMNS.items()
            )
            raise Wrong(
                f"the format is not known by these columns: {', '.join(map(repr, names)) or 'none'}; expected those of "
                f"{known}, or data.columns to name them{_compared(names)}"
            )
        format = found
    if format not in COLUMNS:
        raise InputError(f"data.format: {format!r} is not known{nearest(format, ['auto', *COLUMNS])}")
    for role in columns:
        if role not in COLUMNS[format]:
            raise InputError(f"data.columns: the {format} format has no {role}{nearest(role, COLUMNS[format])}")
    for role in left_out.intersection(needed, COLUMNS[format]):
        raise InputError(f"data.columns: the {format} format needs the {role}; expected the name of its column")
    given, taken = {role: (name,) for role, name in columns.items()}, set(columns.values())
    own = {role: options for role, options in COLUMNS[format].items() if role not in left_out}
    free = {role: options for role, options in own.items() if role in REQUIRED or not taken & set(options)}
    return _build(path, {**free, **given}, format, answers, any_order, train_on)


def _names_of(role: str) -> set[str]:
    """The names of a role's column in any format."""
    return {name for roles in COLUMNS.values() for name in roles.get(role, ())}


def _check_roles(roles: Mapping[str, Any], answers: bool) -> None:
    contents = [role for role in ("prompt", "messages", "text") if role in roles]
    if len(contents) != 1:
        found = ", ".join(contents) or "none"
        own = "; a path may have columns of its own" if contents else ""
        raise InputError(f"data.columns: expected exactly one of prompt, messages and text, found {found}{own}")
    if contents == ["prompt"] and answers and "answer" not in roles:
        raise InputError("data.columns: prompt is given without answer")


def _build(
    path: Path,
    roles: Mapping[str, tuple[str, ...]],
    format: str | None,
    answers: bool,
    any_order: bool,
    train_on: str,
) -> Callable[[Record], Row]:
    expected = f"the {format} format" if format else "data.columns"

    def value(record: Record, role: str, required: bool) -> Any:
        options = roles.get(role, ())
        for name in options:
            if record.columns.get(name) is not None:
                return record.columns[name]
        if not required:
            return None
        there = next((name for name in options if name in record.columns), None)
        if there is not None:
            raise Wrong(f"column {there!r}: expected {'a list' if role in LISTS else 'a string'}, found null")
        names = " or ".join(map(repr, options))
        raise Wrong(f"no column {names}, which {expected} needs{nearest(options[0], record.columns)}")

    def text(record: Record, role: str, required: bool = True) -> str:
        found = value(record, role, required)
        if found is None:
            return ""
        if not isinstance(found, str):
            name = next(name for name in roles[role] if record.columns.get(name) is found)
            raise Wrong(f"column {name!r}: expected a string, found {type_name(found)}")
        return checked_text(found)

    def convert(record: Record) -> Row:
        row = Row(path, record.line, place=record.place, row=record.row)
        if "text" in roles:
            row.text = text(record, "text")
        elif "input_ids" in roles:
            given = {role: value(record, role, role == "input_ids") for role in roles}
            row.tokens, row.bare = tokens_of(given), is_bare(given)
        else:
            if "messages" in roles:
                messages = messages_of(listed(value(record, "messages", True), roles["messages"][0]))
            else:
                messages = messages_of_history(value(record, "history", False))
                if asked := conversation(value(record, "prompt", True)):
                    unlearnt = {} if train_on == "all" else {"weight": 0}
                    messages += [{**one, **unlearnt} if one["role"] == "assistant" else one for one in asked]
                else:
                    row.prompt, row.input = text(record, "prompt"), text(record, "input", required=False)
                    messages.append({"role": "user", "content": "\n".join(filter(None, (row.prompt, row.input)))})
                if replies := conversation(value(record, "answer", answers)):
                    messages += replies
                elif (reply := text(record, "answer", required=answers)) or answers:
                    messages.append({"role": "assistant", "content": reply})
            if (system := text(record, "system", required=False)) and not _open(messages, system):
                row.unread.append("system")
            check_turns(messages, answers, any_order)
            row.messages, row.tools = messages, tools_of(value(record, "tools", False))
            row.thinking = thinking_of(record.columns.get(KWARGS))
            row.prompt = row.prompt or last_question(messages)
        return row

    return convert
