"""YAML with the line of every key, so that a problem can be pointed at.

The scalars follow YAML 1.2's core schema, not PyYAML's YAML 1.1: ``3e-4`` is a number without a dot, ``no`` and ``on``
are words, ``1:30`` is no number. Of YAML 1.1 there are merge keys (``<<: *name``). A key that stands twice in a mapping
is a problem; of other systems' files the last one counts, as PyYAML has it, which is said.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from model_zoo.atomic import open_file
from model_zoo.errors import InputError, first_line, warn_once

KeyPath = tuple[str | int, ...]

# Far above any recipe, far below what aliases of aliases can blow up to.
MAX_VALUES = 100_000
MAX_DEPTH = 100
MAX_BYTES = 4 << 20
# A command looks into its file twice: whose it is, and what it says.
KEPT, KEPT_LENGTH = 8, 1 << 16

_WORDS = {"": None, "~": None, **dict.fromkeys(("null", "Null", "NULL"))}
_WORDS |= {**dict.fromkeys(("true", "True", "TRUE"), True), **dict.fromkeys(("false", "False", "FALSE"), False)}
_INT = re.compile(r"[-+]?[0-9]{1,400}|0o[0-7]{1,400}|0x[0-9a-fA-F]{1,400}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_PLAIN = "plain"  # the tag that our loader gives to unquoted scalars
_KNOWN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq")} | {_PLAIN}


def plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar by YAML 1.2's core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text, 0) if text.startswith("0x") or text.startswith("0o") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _SPECIAL.get(text.lower(), text)


_OLD_INT = re.compile(r"[-+]?[1-9][0-9_]*")
_OLD_WORDS = {"yes": True, "on": True, "no": False, "off": False}


def old_scalar(text: str) -> Any:
    """The same by YAML 1.1, as PyYAML has it, and with it other systems: ``no`` and ``off`` are false there, and
    ``1_000`` is a number."""
    if text.lower() in _OLD_WORDS:
        return _OLD_WORDS[text.lower()]
    return int(text.replace("_", "")) if _OLD_INT.fullmatch(text) else plain_scalar(text)


class _Loader(yaml.SafeLoader):
    """PyYAML's parser without its YAML 1.1 guesses: unquoted, untagged scalars are marked and read by ourselves.

    It also stops where the text is nested too deep, since the time it takes grows with the square of the depth.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        if self.depth > MAX_DEPTH:
            raise RecursionError
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def resolve(self, kind: type, value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode and implicit[0]:
            return _PLAIN
        return super().resolve(kind, value, implicit)


@dataclass
class Source:
    """The content of one YAML text, and where in it each key stands.

    Attributes:
        name: what problems call the text; a file name.
        value: the content, made of dict, list, str, int, float, bool and None.
        lines: the line (from 1) of each key and list entry, by its path.
        problems: what is wrong with the text itself.
        overrides: for each key path that the command line set, the text that set it.
    """

    name: str
    value: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    overrides: dict[KeyPath, str] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int | None:
        """The line of ``path``, or of the nearest thing around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def overriding(self, path: KeyPath) -> str | None:
        """The text on the command line that set ``path``, or something around it; or that brought its section."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.overrides:
                return self.overrides[path[:length]]
            if path[:length] in self.lines:
                return None
        inside = (text for other, text in self.overrides.items() if other[: len(path)] == path)
        return next(inside, None)

    def where(self, path: KeyPath) -> str:
        """``file:line`` of ``path``, or the override that set it."""
        text = self.overriding(path)
        if text is not None:
            return text
        line = self.line(path)
        return f"{self.name}:{line}" if line else self.name


class _Builder:
    """Turns PyYAML's nodes into values, noting lines on the way."""

    def __init__(self, source: Source, scalar: Callable[[str], Any]):
        self.source, self.scalar = source, scalar
        self.count = 0
        self.active: set[int] = set()

    def fail(self, node: yaml.Node, message: str) -> None:
        self.source.problems.append(f"{self.source.name}:{node.start_mark.line + 1}: {message}")

    def enter(self, node: yaml.Node, depth: int) -> None:
        """Counts what is looked at, since aliases of aliases have no end."""
        self.count += 1
        if self.count > MAX_VALUES or depth > MAX_DEPTH or id(node) in self.active:
            raise InputError(
                f"{self.source.name}:{node.start_mark.line + 1}: "
                "nested too deep or too large for a recipe; is an alias (*name) inside its own anchor?"
            )

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.enter(node, len(path))
        if node.tag not in _KNOWN_TAGS:
            self.fail(node, f"the tag {node.tag!r} has no meaning in a recipe; write plain values")
            return None
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.tag == "tag:yaml.org,2002:str" else self.scalar(node.value)
        self.active.add(id(node))
        try:
            return self.sequence(node, path) if isinstance(node, yaml.SequenceNode) else self.mapping(node, path)
        finally:
            self.active.discard(id(node))

    def sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        values = []
        for index, entry in enumerate(node.value):
            self.source.lines[(*path, index)] = entry.start_mark.line + 1
            values.append(self.build(entry, (*path, index)))
        return values

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node, merged in self.entries(node, len(path)):
            if not isinstance(key_node, yaml.ScalarNode):
                self.fail(key_node, "a key must be a single word")
                continue
            key = key_node.value
            if key in values and merged:
                continue
            if key in values:
                first = self.source.lines[(*path, key)]
                twice = f"{dotted((*path, key))}: the key stands twice, first in line {first}"
                if self.scalar is not old_scalar:
                    self.fail(key_node, f"{twice}; keep one of them")
                    continue
                here = f"{self.source.name}:{key_node.start_mark.line + 1}: {twice}"
                warn_once(f"{here}; the last one counts, as in PyYAML", here)
            self.source.lines[(*path, key)] = key_node.start_mark.line + 1
            values[key] = self.build(value_node, (*path, key))
        return values

    def entries(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[yaml.Node, yaml.Node, bool]]:
        """A mapping's keys and values, and behind them, marked, those that it merges: ``<<: *name``, or a list of
        those, of which the first ones count."""
        merges = [pair for pair in node.value if pair[0].tag == _PLAIN and pair[0].value == "<<"]
        yield from ((*pair, False) for pair in node.value if pair not in merges)
        for _, value in merges:
            for other in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                self.enter(other, depth)
                if not isinstance(other, yaml.MappingNode):
                    self.fail(other, "<<: expected an alias of a mapping (*name), or a list of those")
                    continue
                yield from ((key, found, True) for key, found, _ in self.entries(other, depth + 1))


def _syntax_problem(name: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"{name}:{mark.line + 1}" if mark else name
    parts = [part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part]
    if not parts:
        reason = getattr(error, "reason", None)
        parts = [str(reason)] if reason else [first_line(error)]
    hint = ""
    if any("\\t" in part for part in parts):
        hint = "; indent with spaces, not tabs"
    return f"{where}: this is no YAML: {', '.join(parts)}{hint}"


def _node(text: str) -> yaml.Node | None:
    """What PyYAML makes of a text, which takes longer than all that is done with it; nothing changes it."""
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


_kept_node = functools.lru_cache(KEPT)(_node)


def parse(text: str, name: str, scalar: Callable[[str], Any] = plain_scalar) -> Source:
    """Read YAML from ``text``.

    Args:
        name: what problems call it.
        scalar: what unquoted words stand for; `old_scalar` in files of other systems.

    Returns:
        The source; what is wrong with it stands in ``problems``, and the rest of it can still be looked at.
    """
    source = Source(name)
    try:
        node = (_node if len(text) > KEPT_LENGTH else _kept_node)(text)
    except yaml.YAMLError as error:
        source.problems.append(_syntax_problem(name, error))
        return source
    except (ValueError, OverflowError):  # PyYAML asks Python for the character of any number
        source.problems.append(f"{name}: this is no YAML: an escape \\U is beyond the last character, \\U0010ffff")
        return source
    except RecursionError:
        source.problems.append(f"{name}: nested too deep for a recipe")
        return source
    if node is None:
        return source
    source.lines[()] = node.start_mark.line + 1
    try:
        source.value = _Builder(source, scalar).build(node, ())
    except InputError as error:
        source.problems.append(str(error))
    return source


def read(path: Path, name: str | None = None, scalar: Callable[[str], Any] = plain_scalar) -> Source:
    """Read the YAML file ``path``, see `parse`; an unreadable file is a problem like any other."""
    name = name or str(path)
    try:
        with open_file(path) as file:
            content = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        return Source(name, problems=[f"{name}: is a directory, expected a recipe file (.yaml)"])
    except FileNotFoundError:
        return Source(name, problems=[f"{name}: no such file"])
    except OSError as error:
        return Source(name, problems=[f"{name}: cannot be read ({error.strerror})"])
    except InputError as error:
        return Source(name, problems=[str(error)])
    if len(content) > MAX_BYTES:
        return Source(name, problems=[f"{name}: more than {MAX_BYTES} bytes are too many for a recipe"])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return Source(name, problems=[f"{name}:{line}: not UTF-8 text"])
    return parse(text, name, scalar)


def dotted(path: Iterable[str | int]) -> str:
    """``("train", "betas", 0)`` as ``train.betas[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text
