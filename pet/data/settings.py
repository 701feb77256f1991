"""How data becomes batches: the settings of a recipe's ``data:`` section that concern rows, samples and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from model_zoo.errors import InputError, nearest

FORMATS = ("auto", "alpaca", "adgen", "prompt_completion", "chat", "sharegpt", "text", "tokens", "mindrecord")
ROLES = ("prompt", "input", "answer", "system", "history", "messages", "tools", "text", "chosen", "rejected", "label")
CHOICES = {
    "format": FORMATS,
    "train_on": ("answers", "last", "all"),
    "too_long": ("cut", "drop"),
    "packing": ("pack", "buckets", "longest", "none"),
}


@dataclass(frozen=True)
class DataSettings:
    """How rows of files become samples, and samples become batches.

    Attributes:
        format: what a row looks like (:mod:`pet.data.formats`); ``auto`` recognises it by the columns of a file's first
            row.
        columns: our name → the file's, for files that call their columns differently:
            ``{"prompt": "question", "answer": "reply"}``. With ``format="auto"`` only these columns are read.
        template: a prompt of the user's own in place of the model family's, ``"Question: {prompt}\\nAnswer: "``
            (:mod:`pet.data.template`). It ends where the answer begins. Or the path of a Jinja chat template, a name
            that ends in ``.jinja``, in place of the model's own.
        enable_thinking: of chat templates with such a switch (Qwen3); None leaves it as the template has it.
        system: a system message for conversations that bring none.
        train_on: the ``answers`` of every turn, only the ``last`` answer, or ``all`` tokens.
        max_length: tokens in a sample, and in a row of a batch. Attention and memory grow with it.
        too_long: ``cut`` a longer conversation at its end (a raw text: into several samples), or ``drop`` it.
        packing: ``pack`` several samples in a row (hardly any padding, one shape); ``buckets`` of like length (a shape
            each); pad to the ``longest`` of a step, rounded up to 64; ``none``: pad to ``max_length``.
        buckets: row lengths for ``buckets``. Left out, the (at most) four that waste the least on this data: each is
            compiled once, in 6 to 20 seconds on a CPU.
        max_samples: use only the first so many samples.
        deduplicate: leave out samples whose tokens and labels are those of an earlier one.
        shuffle: a new order each epoch.
        seed: of that order; None is 0.
        workers: processes that tokenise; 0: this one. Left out: the cores, where there is enough to do.
        streaming: tokenise while training instead of beforehand; for data that should not be stored a second time.
        stream_window: rows that are shuffled and packed together when streaming.
        cache_dir: where tokenised data is kept for the next run; by default ``mindspore-pet`` in the user's cache
            directory (``$XDG_CACHE_HOME`` or ``~/.cache``).
        conversations, documents: of the objective, see `pet.train.objectives.base.Objective`; no settings of a recipe.
    """

    format: str = "auto"
    columns: Mapping[str, str] | None = None
    template: str | None = None
    enable_thinking: bool | None = None
    system: str | None = None
    train_on: str = "answers"
    max_length: int = 512
    too_long: str = "cut"
    packing: str = "pack"
    buckets: Sequence[int] | None = None
    max_samples: int | None = None
    deduplicate: bool = False
    shuffle: bool = True
    seed: int | None = None
    workers: int | None = None
    streaming: bool = False
    stream_window: int = 8192
    cache_dir: str | None = None
    conversations: Callable[[dict[str, Any]], list[list[dict[str, str]]]] | None = None
    documents: int = 1

    def __post_init__(self) -> None:
        problems = []
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                problems.append(f"data.{name}: {value!r} is not known{nearest(value, choices)}")
        least = {"max_length": 2, "stream_window": 1, "max_samples": 1, "seed": 0, "workers": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is None and name in ("max_samples", "seed", "workers"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
                problems.append(f"data.{name}: expected a whole number of at least {smallest}, found {value!r}")
        for role in self.columns or {}:
            if role not in ROLES:
                problems.append(f"data.columns: {role!r} is no role of a column{nearest(role, ROLES)}")
        if self.buckets is not None:
            sizes = list(self.buckets)
            if not sizes or any(not isinstance(size, int) or isinstance(size, bool) or size < 2 for size in sizes):
                problems.append(f"data.buckets: expected row lengths of at least 2, found {self.buckets!r}")
            elif self.packing == "buckets" and max(sizes) < self.max_length:
                problems.append(
                    f"data.buckets: the longest is {max(sizes)}, but a sample may have max_length = {self.max_length}"
                )
        if problems:
            raise InputError.collect(problems)

    @property
    def reading(self) -> dict[str, Any]:
        """What :func:`pet.data.formats.read_file` takes of these."""
        return {name: getattr(self, name) for name in ("format", "columns", "system", "conversations", "documents")}

    @classmethod
    def of(cls, settings: Any = None, **changes: Any) -> DataSettings:
        """From another object with these names (a recipe's section, a mapping, or None), with ``changes``.

        A recipe's section also holds what is not settled here, such as its paths; that is passed over.

        Raises:
            InputError: a name in ``changes`` does not exist, or a value cannot be used.
        """
        names = {field.name for field in fields(cls)}
        if settings is None:
            found: dict[str, Any] = {}
        elif isinstance(settings, Mapping):
            found = {name: settings[name] for name in names & settings.keys()}
        else:
            found = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        unknown = changes.keys() - names
        if unknown:
            raise InputError.collect(f"data.{name}: no such setting{nearest(name, names)}" for name in sorted(unknown))
        return cls(**{**found, **changes})
