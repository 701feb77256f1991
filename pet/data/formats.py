"""Records to rows, by the columns of `pet.data.columns.COLUMNS` or by a function of an objective's.

A plain text file holds texts separated by blank lines, or, where it has no blank line, a text on each line.
``history`` is a list of pairs [question, answer]. A prompt or a completion may be a list of messages; answers within
the prompt are context only. Every row becomes either messages (an optional system message, then user and assistant in
turn, with calls of tools and their results between, or in the order that a chat template takes:
:mod:`pet.data.messages`), a text, or tokens. Of a column ``chat_template_kwargs`` enable_thinking is read.
In CSV and MindRecord a list is written as JSON in a string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError, nearest

from .classified import label_in_table
from .columns import BESIDE, COLUMNS, KNOWN, OBJECTIVES, SAYING_THE_SAME, Columns, Role, compared
from .finding import kind_of
from .messages import (
    KWARGS,
    ROLE_COLUMNS,
    Words,
    Wrong,
    check_turns,
    given,
    last_question,
    listed,
    messages_of,
    messages_of_history,
    open_with,
    segments_of,
    thinking_of,
    tools_of,
    usual,
)
from .parts import part_of, with_parts
from .readers import read_records
from .records import BEGINNING, Place, Problems
from .row import Row
from .token_rows import tokens_of, without_own


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
    columns: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
    system: str | None = None,
    place: Place = BEGINNING,
    **how: Any,
) -> Iterator[Row]:
    """The rows of one file from ``place`` on; what is wrong goes to ``problems``.

    Args:
        columns: role → name of the file's column.
        roles: the file's words for who says a message → the usual ones.
        system: a system message for conversations that bring none.
        how: format, answers, any_order, conversations, documents, train_on, of_ids; see `Rows`.
    """
    named = {role: name for role, name in (columns or {}).items() if role in ROLE_COLUMNS}
    columns = {role: name for role, name in (columns or {}).items() if role not in ROLE_COLUMNS}
    words = Words(roles)
    known = KNOWN.difference(*({role, *_names_of(role)} for role, name in columns.items() if not name))
    rows = Rows(columns, **how)
    if rows.format == "mindrecord" and kind_of(path) not in (None, rows.format):
        raise InputError(f"{path}: data.format is mindrecord, and by its name this is {kind_of(path)}")
    if place != BEGINNING and not rows.conversations:
        # the first row of the file decides, not the first one that is wanted
        rows.decide(Columns(level(next(read_records(path, Problems())).columns)))
    for record in read_records(path, problems, place):
        row = Row(path, record.line, place=record.place, row=record.row)
        try:
            found = Columns(level(record.columns))
            row.met = [role for role, name in columns.items() if name in found]
            if named or roles:
                found = Columns({name: usual(value, named, words) for name, value in found.items()})
                row.met += words.met
            rows.fill(row, found)
            unread, row.beside = found.unread(known)
            row.unread += unread
            for messages in (row.messages, *row.others) if row.messages is not None else ():
                open_with(messages, system)
        except Wrong as error:
            problems.add(path, record.line, str(error))
            if not rows.conversations and not rows.roles:  # the format is unknown: every row would say so again
                return
            continue
        yield row


def level(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """Columns with those that stand within ``input``: ``messages`` and ``tools``, as in OpenAI's preference data."""
    within = columns.get("input")
    if not isinstance(within, dict) or "messages" not in within:
        return columns
    return {**{name: value for name, value in columns.items() if name != "input"}, **within}


def recognise(names: Iterable[str], answers: bool = True) -> str | None:
    """The format of rows with columns of these names, or None."""
    names = set(names)
    for format, roles in COLUMNS.items():
        if all(
            names.intersection(one.names)
            for role, one in roles.items()
            if one.required and (answers or role != "answer")
        ):
            return format
    return None


def _names_of(role: str) -> set[str]:
    """The names of a role's column in any format."""
    return {name for roles in COLUMNS.values() if role in roles for name in roles[role].names}


@dataclass
class Rows:
    """How the rows of a file are read.

    Attributes:
        columns: see `read_file`.
        format: one of `pet.data.columns.COLUMNS`; ``auto`` decides by the first row. ``mindrecord`` is ``auto``.
        answers: the last message must be an answer. Without (for prediction) it may be missing.
        any_order: whether the order of roles is a chat template's matter.
        conversations, documents: of an objective that reads rows itself; ``format`` is not used then.
        train_on: with ``all`` the answers within a prompt of messages are learnt as well.
        of_ids: see `pet.data.token_rows.taught`.
        roles, reader: which columns are read, and what needs them; the first row decides.
    """

    columns: Mapping[str, str]
    format: str = "auto"
    answers: bool = True
    any_order: bool = False
    conversations: Callable[[dict[str, Any]], Any] | None = None
    documents: int = 1
    train_on: str = "answers"
    of_ids: tuple[Any, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    reader: str = "data.columns"

    def fill(self, row: Row, columns: Columns) -> None:
        """A row's contents out of its columns. Raises `Wrong`."""
        if self.conversations is not None:
            found = self.judged(row, columns, self.conversations)
        else:
            if not self.roles:
                self.decide(columns)
            found = Columns(columns, self.roles, self.reader)
            if "text" in found.roles:
                # an input is read where data.columns names it
                row.text = "\n".join(filter(None, (found.text("text", required=True), found.text("input"))))
            elif "input_ids" in found.roles:
                tokens = without_own({role: found.value(role, role == "input_ids") for role in found.roles})
                row.tokens = tokens_of(tokens, *self.of_ids)
            elif "segments" in found.roles:
                row.segments = segments_of(listed(found.value("segments", required=True), "segments"))
            else:
                row.messages = self.messages(row, found)
        if row.messages is None:
            return
        if (system := found.text("system")) and not open_with(row.messages, system):
            row.unread.append(found.name("system"))
        asked = self.conversations is None and row.messages[-1:] and row.messages[-1]["role"] == "user"
        for messages in (row.messages, *row.others):
            check_turns(messages, self.answers, self.any_order, compared(columns) if asked else "")
        row.tools, row.thinking = tools_of(found.value("tools")), thinking_of(found.value(KWARGS))
        row.prompt = row.prompt or last_question(row.messages)

    def messages(self, row: Row, found: Columns) -> list[dict[str, Any]]:
        """The conversation of a row by its roles."""
        if "messages" in found.roles:
            return messages_of(listed(found.value("messages", required=True), found.roles["messages"].names[0]))
        messages = messages_of_history(found.value("history"))
        if isinstance(asked := given(found.value("prompt", required=True)), list) and asked:
            unlearnt = {} if self.train_on == "all" else {"weight": 0}
            messages += [{**one, **unlearnt} if one["role"] == "assistant" else one for one in messages_of(asked)]
        else:
            row.prompt, row.input = found.text("prompt", required=True) or "", found.text("input") or ""
            messages.append({"role": "user", "content": "\n".join(filter(None, (row.prompt, row.input)))})
        if isinstance(replies := given(found.value("answer", required=self.answers)), list) and replies:
            messages += messages_of(replies)
        elif (reply := found.text("answer")) or self.answers:
            messages.append({"role": "assistant", "content": reply or ""})
        return messages

    def judged(self, row: Row, columns: Columns, conversations: Callable[[dict[str, Any]], Any]) -> Columns:
        """The conversations of a row by a function of the objective's, which sees the roles of ``data.columns`` as
        columns, and nothing that says the same by another name."""
        ours = conversations.__module__.startswith(__package__)
        if ours and self.columns:
            _check_has(self.columns, OBJECTIVES[conversations.__name__], "the objective")
        columns.check(self.columns, self.answers)
        own = Columns(columns, BESIDE if ours else {role: BESIDE[role] for role in BESIDE if role != "system"})
        if self.columns:
            named = {role for role, name in self.columns.items() if name}  # without a name a column is left out
            same = (name for names in SAYING_THE_SAME if set(names) & named for name in names)
            for name in {*self.columns, *self.columns.values(), *same} & own.keys():
                del own[name]
            own.update((role, columns[name]) for role, name in self.columns.items() if name in columns)
        try:
            found = conversations(own)
        except (KeyError, TypeError, ValueError) as error:
            missing = f"no column {error}, found {', '.join(map(repr, columns))}"
            raise Wrong(missing if type(error) is KeyError else str(error)) from error
        if not ours:  # a function of the user's may read columns in any way
            columns.asked |= own.keys()
        columns.asked |= {name for role, name in self.columns.items() if name and role in columns.asked}
        if isinstance(found, Mapping):  # no conversations
            for name, value in found.items():
                setattr(row, name, tokens_of(value, *self.of_ids) if name == "tokens" else value)
            if kind_of(row.path) == "csv":
                row.label = label_in_table(row.label)
            return own
        if len(found) != self.documents:
            raise Wrong(f"{len(found)} documents; the objective compares {self.documents}")
        row.messages, *row.others = (messages_of(messages) for messages in found)
        row.input = next((one["_input"] for one in reversed(found[0]) if "_input" in one), "")
        row.prompt = last_question(row.messages).removesuffix(f"\n{row.input}" if row.input else "")
        row.label = found[0][-1].get("desirable", found[0][-1].get("margin"))
        return own

    def decide(self, names: Columns) -> None:
        """Once for a file: which column has which role. Raises `Wrong`."""
        format, left_out = self.format, {role for role, name in self.columns.items() if not name}
        named = {role: name for role, name in self.columns.items() if name}
        names.check(named, self.answers)
        given = {role: Role((name,)) for role, name in named.items()}
        if format in ("auto", "mindrecord"):
            if named:
                _check_roles(named, self.answers)
                self.roles = {**given, KWARGS: BESIDE[KWARGS]}
                return
            format = recognise(set(names).difference(*map(_names_of, left_out)), self.answers) or ""
            if not format:
                every = (
                    f"{name} ({', '.join('/'.join(one.names) for one in roles.values() if one.required)})"
                    for name, roles in COLUMNS.items()
                )
                raise Wrong(
                    f"the format is not known by these columns: {', '.join(map(repr, names)) or 'none'}; expected "
                    f"those of {'; '.join(every)}, or data.columns to name them{compared(names)}{_within(names)}"
                )
        if format not in COLUMNS:
            raise InputError(f"data.format: {format!r} is not known{nearest(format, ['auto', *COLUMNS])}")
        own = COLUMNS[format]
        _check_has(named, own, f"the {format} format")
        for role in left_out.intersection(own):
            if own[role].required and (self.answers or role != "answer"):
                raise InputError(f"data.columns: the {format} format needs the {role}; expected the name of its column")
        taken = set(named.values())
        free = {role: one for role, one in own.items() if role not in left_out}
        free = {role: one for role, one in free.items() if one.required or not taken & set(one.names)}
        self.roles, self.reader = {**free, **given}, f"the {format} format"


def _within(columns: Mapping[str, Any]) -> str:
    """What is said where a column of the only row holds all of them (LMFlow's ``instances``, ``data`` of many)."""
    lists = (
        name for name, value in columns.items() if isinstance(value, list) and value and isinstance(value[0], dict)
    )
    name = next(lists, None)
    return "" if name is None else f"; where {name!r} holds the rows, save that list alone"


def _check_has(columns: Mapping[str, str], roles: Mapping[str, Role], what: str) -> None:
    for role, name in columns.items():
        if name and role not in roles:
            raise InputError(f"data.columns: {what} has no {role}{nearest(role, roles)}")


def _check_roles(roles: Mapping[str, Any], answers: bool) -> None:
    contents = [role for role in ("prompt", "messages", "text") if role in roles]
    if len(contents) != 1:
        found = ", ".join(contents) or "none"
        own = "; a path may have columns of its own" if contents else ""
        raise InputError(f"data.columns: expected exactly one of prompt, messages and text, found {found}{own}")
    if contents == ["prompt"] and answers and "answer" not in roles:
        raise InputError("data.columns: prompt is given without answer")
