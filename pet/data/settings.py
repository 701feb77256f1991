"""How data becomes batches: the settings of a recipe's ``data:`` section that concern rows, samples and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from model_zoo.errors import InputError, nearest

FULL = "the model's context has room for no more"


@dataclass(frozen=True)
class DataSettings:
    """How rows of files become samples, and samples become batches, by the names, bounds and defaults of a recipe's
    ``data`` section, whose fields say what each means (`pet.recipe.data.Data`).

    Attributes:
        conversations, documents: of the objective, see `pet.train.objectives.base.Objective`; no settings of a recipe.
        compares: whether it reads rows itself; no setting of a recipe either.
        share_question: whether two documents of a sample stand in a row with what they begin with together once
            (:mod:`pet.data.packing`); no setting of a recipe either.
        longer: what a user is told of rows that are longer than `max_length`; no setting of a recipe either.

    Raises:
        InputError: a value that a recipe could not have.
    """

    format: str = "auto"
    columns: Mapping[str, str] | None = None
    roles: Mapping[str, str] | None = None
    template: str | None = None
    template_without_input: str | None = None
    enable_thinking: bool | None = None
    system: str | None = None
    train_on: str = "answers"
    padding: int | None = None
    padding_ends: bool = False
    labels_ahead: bool = False
    other_labels: bool = False
    max_length: int = 512
    min_length: int | None = None
    max_prompt: int | None = None
    max_answer: int | None = None
    too_long: str = "cut"
    packing: str = "pack"
    buckets: Sequence[int] | None = None
    drop_last: bool = False
    max_samples: int | None = None
    rows: Sequence[str] | None = None
    deduplicate: bool = False
    shuffle: bool = True
    seed: int | None = None
    workers: int | None = None
    streaming: bool = False
    stream_window: int = 8192
    cache_dir: str | None = None
    conversations: Callable[[dict[str, Any]], list[list[dict[str, str]]]] | None = None
    documents: int = 1
    compares: bool = False
    share_question: bool = False
    longer: str = "raise it"

    def __post_init__(self) -> None:
        from pet.recipe.data import Data
        from pet.recipe.problems import checked

        given = {name: value for name, value in vars(self).items() if name in Data.model_fields}
        buckets = None if self.buckets is None else list(self.buckets)
        mapped = {name: dict(getattr(self, name) or {}) for name in ("columns", "roles")}
        checked(Data, "data", {**given, **mapped, "buckets": buckets})
        if self.packing == "buckets" and buckets and max(buckets) < self.max_length:
            raise InputError(
                f"data.buckets: the longest is {max(buckets)}, but a sample may have max_length = {self.max_length}"
            )

    @property
    def of_ids(self) -> tuple[Any, ...]:
        """What :func:`pet.data.wrap.from_mindspore` takes of these, in its order."""
        return self.padding, self.padding_ends, self.labels_ahead, self.other_labels

    @property
    def reading(self) -> dict[str, Any]:
        """What :func:`pet.data.formats.read_file` takes of these."""
        names = ("format", "columns", "roles", "system", "train_on", "conversations", "documents")
        names += ("labels_ahead", "other_labels", "padding")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, settings: Any = None, **changes: Any) -> DataSettings:
        """From another object with these names (a recipe's section, a mapping, or None), with ``changes``.

        A recipe's section also holds what is not settled here, such as its paths; that is passed over.

        Raises:
            InputError: a name in ``changes`` or in a mapping does not exist, or a value cannot be used.
        """
        if isinstance(settings, cls) and not changes:
            return settings
        from pet.recipe.data import Data

        names = {field.name for field in fields(cls)}
        found = settings
        if not isinstance(settings, Mapping):
            found = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        unknown = (changes.keys() - names) | (found.keys() - names - Data.model_fields.keys())
        InputError.raise_any(f"data.{name}: no such setting{nearest(name, names)}" for name in sorted(unknown))
        return cls(**{**{name: found[name] for name in names & found.keys()}, **changes})
