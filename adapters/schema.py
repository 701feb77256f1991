"""The settings of a method (`model_zoo.settings`), and what follows from them.

Without MindSpore, NumPy and pydantic: a recipe is checked in a fraction of a second.
"""

from __future__ import annotations

import dataclasses
import functools
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from model_zoo.arguments import is_several
from model_zoo.errors import InputError, nearest, shown
from model_zoo.settings import faults, setting

LARGEST = 1 << 16
"""Of ranks, widths and lengths. More is a mistake or worse, and is refused before anything is allocated."""
TARGETS = ("targets", "exclude", "layers", "modules_to_save")


def token_ids(tokens: Any) -> str | None:
    """What keeps this from being None, a list of ids, or {embedding name: list of ids}."""
    if tokens is None:
        return None
    groups = list(tokens.values()) if isinstance(tokens, dict) else [tokens]
    if isinstance(tokens, dict) and not all(isinstance(name, str) and name for name in tokens):
        return f"{list(tokens)!r}; names of embeddings were expected"
    for ids in groups:
        whole = isinstance(ids, (list, tuple)) and all(type(index) is int and index >= 0 for index in ids)
        if not whole or not ids:
            return f"{shown(ids)}; a list of token ids was expected"
        if len(set(ids)) < len(ids):
            return f"{sorted({index for index in ids if ids.count(index) > 1})} named twice"
    return None


def plain(value: Any) -> Any:
    """A value as files hold it: NumPy's numbers and arrays as Python's, all that is several as a list of its own."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(entry) for entry in value] if is_several(value) else value


@dataclasses.dataclass(kw_only=True)
class Settings:
    """The settings that all methods share, and what a method says of itself."""

    targets: list[str] | str | None = setting(
        None,
        "Cells to adapt: exact names or dotted suffixes (q_proj), globs, re:EXPRESSION, attention, mlp, or "
        "all-linear. Left out: the family's default. Every entry must match something.",
    )
    exclude: list[str] | str | None = setting(None, "Cells to leave out although targets names them; the same forms.")
    layers: list[int | str] | int | str | None = setting(
        None, "Decoder layers to adapt, counted from 0: indices and ranges such as [0, 4-7, 20-]. Left out: all."
    )
    modules_to_save: list[str] | None = setting(
        None, "Cells that are trained in full and saved with the adapter, for example lm_head."
    )

    method: ClassVar[str] = ""
    variants: ClassVar[dict[str, dict[str, Any]]] = {}
    """Further names of the method in recipes, each with the settings that it stands for."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """What other systems call it, in lower case."""
    config: ClassVar[str] = ""
    """Module and name of the class that does it."""
    summary: ClassVar[str] = ""
    """What choosing it means."""
    peft_type: ClassVar[str | None] = None
    own_format: ClassVar[bool] = False
    """Whether PEFT has no such method: its directory layout, with this library's names of the settings in the JSON, and
    a ``peft_type`` that PEFT does not know, so that it refuses the directory instead of misreading it."""
    kinds: ClassVar[tuple[str, ...]] = ("linear",)
    """Of the cells that it fits."""
    targeted: ClassVar[bool] = True
    """Whether a user chooses the cells; otherwise the method belongs to the whole model."""
    unmergeable: ClassVar[str] = ""
    """Why it can never become part of the weights; empty where it can."""
    marks: ClassVar[tuple[str, ...]] = ()
    """By which tensors a file shows that a cell is adapted."""

    def __new__(cls, **settings):
        """Raises InputError for a setting that the method does not have; `dataclasses` would raise a TypeError."""
        known = [field.name for field in dataclasses.fields(cls)]
        InputError.raise_any(
            f"{cls.method}: there is no setting {key!r}{nearest(key, known)}" for key in settings if key not in known
        )
        return super().__new__(cls)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            setattr(self, field.name, plain(getattr(self, field.name)))

    @property
    def virtual_tokens(self) -> int:
        """How many columns the method puts in front of the input."""
        return 0

    @property
    def position_offset(self) -> int:
        """By how many places it moves the positions of the real tokens."""
        return 0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What the method can be called in a recipe."""
        return (cls.method, *cls.variants)

    @classmethod
    def recipe_fields(cls) -> list[dataclasses.Field]:
        """The fields that a recipe's section has."""
        fields = [field for field in dataclasses.fields(cls) if field.metadata.get("recipe", True)]
        return [field for field in fields if cls.targeted or field.name not in TARGETS]

    @classmethod
    def peft_names(cls) -> dict[str, str]:
        """{setting: its key in adapter_config.json}, of those that stand there as they are."""
        fields = [(field.name, field.metadata.get("peft")) for field in dataclasses.fields(cls)]
        return {name: key or name for name, key in fields if key or cls.own_format}

    @classmethod
    def from_peft(cls, values: dict[str, Any]):
        """The settings that an adapter_config.json describes."""
        return cls(**{name: values[key] for name, key in cls.peft_names().items() if key in values})

    @classmethod
    @functools.cache  # reading the types takes longer than all else that a recipe's adapter is checked for
    def hints(cls) -> dict[str, Any]:
        """{setting: type}."""
        return {name: hint for name, hint in typing.get_type_hints(cls).items() if name in cls.__dataclass_fields__}

    def family_targets(self, family) -> tuple[str, ...] | None:
        """The default targets for a model of this family (a table as in model_zoo); None when it has none."""
        return family.default_targets if family is not None else None

    def fixed_sites(self, model) -> list | None:
        """The cells of a method that goes to the same ones always; None for those that go where `targets` say."""
        return None

    def relocated(self, model, chosen) -> list:
        """Other cells in place of the chosen ones, for a method that works beside what its targets stand for."""
        return chosen

    def check_site(self, site) -> None:
        """Raises InputError for a chosen cell (`adapters.cells.Site`) that these settings do not fit."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """(setting, what is wrong with it)."""
        hints = self.hints()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            yield from ((field.name, fault) for fault in faults(field.name, hints[field.name], field.metadata, value))
            if not self.targeted and field.name in TARGETS and value not in (None, "", [], ()):
                yield field.name, f"{field.name} has no meaning here; the method belongs to the whole model"
        if isinstance(self.targets, (list, tuple)) and not self.targets:
            yield "targets", "targets is an empty list; leave it out for the default cells"

    def validate(self) -> None:
        """Raises InputError for values that make no sense, before any cell is touched."""
        InputError.raise_any(f"{self.method}: {message}" for _, message in self.problems())


def described(cls: type[Settings]) -> str:
    """A docstring's ``Args`` section: every setting with its meaning."""
    lines = [
        textwrap.fill(
            f"{field.name}: {field.metadata.get('description', '')}",
            108,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
        )
        for field in dataclasses.fields(cls)
        if cls.targeted or field.name not in TARGETS
    ]
    return "\n".join(["    Args:", *lines, ""])
