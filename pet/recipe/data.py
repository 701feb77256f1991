"""The ``data`` section: which files, how their rows become tokens, and how tokens become batches."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pet.recipe.fields import HerePath, RecipePaths, Section

Role = Literal["prompt", "input", "answer", "system", "history", "messages", "text"]


class Data(Section):
    """Files, their format, and the way to batches."""

    train: RecipePaths | None = Field(
        None, description="Files, or directories of files, to train on: JSON, JSONL, CSV, plain text or MindRecord."
    )
    eval: RecipePaths | None = Field(None, description="Files to evaluate on during and after training.")
    test: RecipePaths | None = Field(
        None, description="Files that pet evaluate prefers to eval; never seen while training."
    )
    eval_fraction: float = Field(
        0.0, ge=0, lt=1, description="Share of the training rows that is held out as eval, when eval is left out."
    )
    format: Literal[
        "auto", "alpaca", "adgen", "prompt_completion", "chat", "sharegpt", "text", "tokens", "mindrecord"
    ] = Field(
        "auto",
        description="What the rows look like. auto recognises it by the names of their keys; tokens: ids already.",
    )
    columns: dict[Role, str] = Field(
        default_factory=dict,
        description="Names of the file's own columns where they are other than the format's: {prompt: question, "
        "answer: reply}.",
    )
    template: str | None = Field(
        None,
        min_length=1,
        description="A prompt of your own instead of the family's: text with {prompt}, and {input} or {system} where "
        "the rows have them. It ends where the answer begins.",
    )
    system: str | None = Field(None, description="A system message for rows that bring none.")
    train_on: Literal["answers", "last", "all"] = Field(
        "answers",
        description="Which tokens are labels: all answers of a conversation, its last answer, or every token.",
    )
    max_length: int = Field(
        512, ge=2, le=1 << 20, description="Tokens in a row of a batch, prompt and answer together."
    )
    too_long: Literal["cut", "drop"] = Field(
        "cut", description="What happens to a longer sample: cut at max_length, or left out. Both are counted."
    )
    packing: Literal["pack", "buckets", "longest", "none"] = Field(
        "pack",
        description="pack: several samples in a row, each seeing itself alone; hardly any padding. buckets: rows of "
        "like length together. longest: padded to the longest of a step, in multiples of 64. none: to max_length.",
    )
    buckets: list[int] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="Row lengths for buckets, one compilation each. Left out: chosen by the data, at most 4.",
    )
    max_samples: int | None = Field(None, ge=1, description="Use only the first so many training samples.")
    shuffle: bool = Field(True, description="A new order each epoch; the order is a function of seed and epoch.")
    seed: int | None = Field(None, ge=0, description="Seed of the order and of eval_fraction. Left out: train.seed.")
    workers: int | None = Field(
        None, ge=0, le=256, description="Processes that tokenise; 0: this one. Left out: the cores, when it pays."
    )
    streaming: bool = Field(
        False,
        description="Tokenise while training instead of beforehand, for data that should not be stored twice. Needs "
        "train.steps, since the length of an epoch is not known.",
    )
    stream_window: int = Field(
        8192,
        ge=1,
        le=16384,
        description="Rows that are shuffled and packed together when streaming; more mixes better.",
    )
    cache_dir: HerePath | None = Field(
        None,
        description="Where tokenised data is kept for the next run. Left out: mindspore-pet in the user's cache "
        "directory.",
    )
