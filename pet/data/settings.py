"""How data becomes batches: the settings of a recipe's ``data:`` section that concern rows, samples and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict

from model_zoo.errors import InputError, nearest, shown
from pet.recipe.data import Batching, Data, Reading
from pet.recipe.overrides import plain
from pet.recipe.problems import said_of

FULL = "the model's context has room for no more"


class DataSettings(Batching, Reading):
    """How rows of files become samples, and samples become batches: of a recipe's ``data`` section (`pet.recipe.data`)
    what concerns no file, and what is no setting of a recipe.

    Attributes:
        conversations, documents: of the objective, see `pet.train.objectives.base.Objective`.
        compares: whether it reads rows itself.
        share_question: whether two documents of a sample stand in a row with what they begin with together once
            (:mod:`pet.data.packing`).
        longer: what a user is told of rows that are longer than `max_length`.

    Raises:
        InputError: a value that a recipe could not have.
    """

    model_config = ConfigDict(frozen=True)

    conversations: Callable[[dict[str, Any]], list[list[dict[str, str]]]] | None = None
    documents: int = 1
    compares: bool = False
    share_question: bool = False
    longer: str = "raise it"

    if not TYPE_CHECKING:  # the keywords are the fields

        def __init__(self, **given: Any) -> None:
            absent = [name for name in ("columns", "roles") if given.get(name, {}) is None]
            with said_of("data", given):
                super().__init__(**plain({**given, **{name: {} for name in absent}}))
            if self.packing == "buckets" and self.buckets and max(self.buckets) < self.max_length:
                raise InputError(
                    f"data.buckets: the longest is {max(self.buckets)}, but a sample may have max_length = "
                    f"{self.max_length}"
                )

    @property
    def of_ids(self) -> tuple[Any, ...]:
        """What :func:`pet.data.token_rows.taught` takes of these, in its order."""
        return self.padding, self.padding_ends, self.labels_ahead, self.other_labels

    @property
    def reading(self) -> dict[str, Any]:
        """What :func:`pet.data.formats.read_file` takes of these."""
        names = ("format", "columns", "roles", "system", "train_on", "conversations", "documents", "of_ids")
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
        names = cls.model_fields.keys()
        found = settings
        if settings is not None and not isinstance(settings, Mapping) and not hasattr(settings, "max_length"):
            raise InputError(f"data settings are {shown(settings)}; a recipe's data section or a mapping was expected")
        if not isinstance(settings, Mapping):
            found = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        unknown = (changes.keys() - names) | (found.keys() - names - Data.model_fields.keys())
        InputError.raise_any(f"data.{name}: no such setting{nearest(name, names)}" for name in sorted(unknown))
        return cls(**{**{name: found[name] for name in names & found.keys()}, **changes})
