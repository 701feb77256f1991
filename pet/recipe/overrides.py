"""``train.learning_rate=1e-3`` on the command line: settings that take the place of the file's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pet.recipe.source import KeyPath, Source, dotted, parse, plain_scalar

# Of these pairs a recipe has one. An override with one of them puts the file's other one aside.
PAIRS = (("train", "steps", "epochs"), ("data", "eval", "eval_fraction"), ("eval", "every_steps", "every_epochs"))
RIVALS = {(section, one): (section, other) for section, *pair in PAIRS for one, other in (pair, pair[::-1])}


def parse_override(text: str, text_keys: Collection[KeyPath] = ()) -> tuple[KeyPath, Any, list[str]]:
    """Split ``key.sub=value`` at its first ``=`` and read the value as YAML.

    Returns:
        The key path, the value, and what is wrong with the text (an empty list when nothing is).
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        return (), None, [f"{text!r}: an override looks like train.learning_rate=1e-3; there is no = in this one"]
    if key.startswith("-"):
        return (), None, [f"{text!r}: write overrides without dashes: {text.lstrip('-')}"]
    path = tuple(key.split("."))
    if not all(path):
        return (), None, [f"{text!r}: {key!r} is no key; write section.key=value"]
    source = parse(value, "value")
    if path in text_keys:
        quoted = isinstance(source.value, str) and value[:1] in "'\""
        return path, source.value if quoted or plain_scalar(value.strip()) is None else value, []
    if source.problems:
        problem = source.problems[0].partition(": ")[2]
        return path, None, [f"{text!r}: the value is no YAML ({problem}); put quotes around a text"]
    return path, source.value, []


def apart(
    overrides: Iterable[str] | Mapping[str, Any] | None, names: Collection[str], both: Collection[str] = ()
) -> tuple[dict[str, Any], list[str] | dict[str, Any]]:
    """Overrides whose keys have no dot and are none of these names, with their values; and the others as they are.
    Those of ``both`` are among the first unless their values are sections."""

    def is_own(key: str, value: Any) -> bool:
        return "." not in key and (key not in names or (key in both and not isinstance(value, Mapping)))

    if isinstance(overrides, Mapping):
        own = {key: value for key, value in overrides.items() if is_own(key, value)}
        return own, {key: value for key, value in overrides.items() if key not in own}
    own, others = {}, []
    for text in map(str, overrides or ()):
        path, value, wrong = parse_override(text)
        if not wrong and is_own(dotted(path), value):
            own[path[0]] = value
        else:
            others.append(text)
    return own, others


def apply_overrides(
    source: Source, overrides: Iterable[str] | Mapping[str, Any] | None, text_keys: Collection[KeyPath] = ()
) -> None:
    """Put overrides into ``source.value``; what is wrong with them goes to ``source.problems``.

    ``source.overrides`` keeps for each key path the text that set it, for error messages.

    Args:
        overrides: texts ``key.sub=value``, or a mapping of dotted keys to values (`pet.recipe.translation.Given`).
        text_keys: keys whose value is a text: it is taken as it stands, so that ``output.dir=2024`` and
            ``data.template=Q: {prompt}`` need no quotes within quotes. A quoted one is still unquoted.
    """
    if not overrides or (source.value is None and source.problems):
        return
    if isinstance(overrides, Mapping):
        said = getattr(overrides, "said", {})
        entries = [
            (tuple(str(key).split(".")), plain(value), [], said.get(key) or f"command line: {key}={value}")
            for key, value in overrides.items()
        ]
    else:
        entries = [(*parse_override(str(text), text_keys), f"command line: {text}") for text in overrides]
    origins = source.overrides
    if source.value is None:
        source.value = {}
    if not isinstance(source.value, dict):
        return
    for path, value, problems, text in entries:
        if problems:
            source.problems.extend(f"command line: {problem}" for problem in problems)
            continue
        blocked = put(source.value, path, value)
        if blocked:
            source.problems.append(f"{text}: {dotted(blocked)} is no section, it holds a value")
            continue
        origins[path] = text
        for inside in [place for place in source.lines if place[: len(path)] == path and place != path]:
            del source.lines[inside]  # what stood there in the file is gone
        if value and path in RIVALS and RIVALS[path] not in origins:
            remove(source.value, RIVALS[path])


def put(tree: dict[str, Any], path: KeyPath, value: Any) -> KeyPath | None:
    """Set ``path``, with sections of the tree's own kind; return the part of it that is in the way, if one is."""
    for depth, key in enumerate(path[:-1]):
        inner = tree.get(key)
        if inner is None:
            inner = tree[key] = type(tree)()
        if not isinstance(inner, dict):
            return path[: depth + 1]
        tree = inner
    tree[path[-1]] = value
    return None


def value_at(tree: Any, path: KeyPath) -> Any:
    """What stands at ``path``; None where nothing does."""
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return None
        tree = tree[key]
    return tree


def plain(value: Any) -> Any:
    """The same in dictionaries, with texts as keys, lists, and Python's numbers in place of NumPy's."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """``{"train": {"steps": 5}}`` as ``{"train.steps": 5}``."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def remove(tree: Any, path: KeyPath) -> None:
    """Takes ``path`` out, where it is there."""
    holder = value_at(tree, path[:-1])
    if isinstance(holder, dict):
        holder.pop(path[-1], None)
