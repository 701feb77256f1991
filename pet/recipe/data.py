"""The ``data`` section: which files, how their rows become tokens, and how tokens become batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PrivateAttr,
    SerializeAsAny,
    WithJsonSchema,
    WrapValidator,
    model_serializer,
)

from model_zoo.errors import shown
from pet.recipe.fields import (
    WITH_PROMPT,
    HerePath,
    Parts,
    PathKind,
    RecipePath,
    Section,
    StepsOrShare,
    TemplatePath,
    TextsToo,
    alone,
)

Role = Literal[
    "prompt",
    "input",
    "answer",
    "system",
    "history",
    "messages",
    "tools",
    "segments",
    "text",
    "text_pair",
    "chosen",
    "rejected",
    "label",
    "labels",
    "attention_mask",
    "role",
    "content",
]
Speaker = Literal["system", "user", "assistant", "tool", "function_call", ""]

Format = Literal[
    "auto",
    "alpaca",
    "adgen",
    "prompt_completion",
    "dolly",
    "chat",
    "sharegpt",
    "text",
    "segments",
    "tokens",
    "input_target",
    "mindrecord",
]

WITHOUT_QUESTIONS = ("text", "segments", "tokens")
"""Formats whose rows nobody asks and nobody answers: there is no prompt."""


class Reading(Section):
    """How rows become tokens, for all files or for those of a path."""

    format: Format = Field(
        "auto",
        description="Format of the rows. auto detects it from the column names; tokens: already tokenised ids; "
        "segments: texts in full, each with a label that says whether it is learnt.",
    )
    columns: dict[Role, str] = Field(
        default_factory=dict,
        description="Column names in the file where they differ from the format's: {prompt: question, answer: reply}; "
        "role and content name the parts of a message; an empty name: no such column is read.",
    )
    roles: dict[str, Speaker] = Field(
        default_factory=dict,
        description="Who says a message by other words in the files: {patient: user, doctor: assistant}; messages of "
        "an empty role are left out: {system: ''}.",
    )
    template: TemplatePath | None = Field(
        None,
        description="A custom prompt template instead of the model's: text with {prompt}, and {input} or {system} "
        "where the rows have them, which ends where the answer begins; or a Jinja chat template, or its path (.jinja).",
    )
    template_without_input: Annotated[str, WithJsonSchema(WITH_PROMPT)] | None = Field(
        None,
        min_length=1,
        description="In place of template for rows without an input: text with {prompt}. Default: template, in which "
        "{input} is empty then.",
    )
    enable_thinking: bool | None = Field(
        None, description="The switch of that name in chat templates that have it (Qwen3). Default: the template's own."
    )
    system: str | None = Field(None, description="Default system message for rows without one.")
    train_on: Literal["answers", "last", "all"] = Field(
        "answers",
        description="Which tokens are labels: all answers of a conversation, its last answer, or every token.",
    )
    padding: int | None = Field(
        None,
        ge=0,
        description="Id that fills up rows of token ids without a mask. Where these have no labels it is left out "
        "around the tokens and not learnt; with labels nothing behind it is learnt. Default: there is none.",
    )
    padding_ends: bool = Field(
        False,
        description="Learn the padding behind a token, as the end of the text, and nothing else behind padding.",
    )
    labels_ahead: bool = Field(
        False,
        description="Labels of rows of token ids stand where they are predicted, one place before the token that they "
        "are; the last one is a token more.",
    )
    other_labels: bool = Field(
        False,
        description="Labels of rows of token ids may be other tokens than those where they stand: what is to be "
        "written in place of a wrong token, say. Without it that is an error: most such labels are one place off.",
    )
    max_prompt: int | None = Field(
        None,
        ge=1,
        description="Tokens of a question, control tokens aside; the end of a longer one is cut. Default: no limit but "
        "max_length.",
    )
    max_answer: int | None = Field(
        None, ge=1, description="Tokens of an answer, its end token aside; the end of a longer one is cut before that."
    )
    too_long: Literal["cut", "shorten", "drop"] = Field(
        "cut",
        description="A longer sample is truncated at max_length (cut), shortened in its questions and answers in "
        "proportion, as LLaMA-Factory does it (shorten), or skipped (drop). All are counted.",
    )


class DataPath(Reading):
    """A path whose rows are read in a way of their own."""

    path: RecipePath = Field(description="A file, or a directory of files; what is not said of it is as in data.")

    @property
    def own(self) -> dict[str, Any]:
        """What is said of it, and not left to ``data``."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set - {"path"})}

    def __fspath__(self) -> str:
        return self.path

    @model_serializer
    def _written(self) -> dict[str, Any]:
        return {"path": self.path, **self.own}


PATH = "a path, or a mapping as {path: rows.jsonl, format: chat}"


def _path_or_mapping(value: Any, read: Callable[[Any], DataPath]) -> str | DataPath:
    """A path stays a text, also where a mapping says nothing else."""
    if not isinstance(value, (str, dict, DataPath)):
        raise ValueError(f"expected {PATH}; got {shown(value)}")
    found = value if isinstance(value, str) else read(value)
    return found.path if isinstance(found, DataPath) and not found.own else found


DataPaths = Annotated[
    list[SerializeAsAny[Annotated[DataPath, WrapValidator(_path_or_mapping)]]],
    PathKind("recipe"),
    alone(f"{PATH}, or a list of them", str, dict, DataPath),
    TextsToo(),
]


class Files(Section):
    """What is trained on, and what it is measured by."""

    train: DataPaths | None = Field(
        None,
        description="Files, or directories of files, to train on: JSON, JSONL, CSV, plain text, MindRecord, Parquet "
        "or Arrow. A path may be a mapping that says how its rows are read: {path: rows.jsonl, format: chat, columns: "
        "{messages: turns}}, with any key from format to too_long.",
    )
    mix: list[Annotated[float, Field(gt=0, le=1000)]] | None = Field(
        None,
        min_length=1,
        description="A weight for each path of train: how often its samples occur in an epoch. 2: twice; 0.25: a "
        "quarter of them, chosen by the seed.",
    )
    eval: DataPaths | None = Field(None, description="Files to evaluate on during and after training.")
    test: DataPaths | None = Field(
        None, description="Files that pet evaluate uses in preference to eval; never used in training."
    )
    eval_fraction: StepsOrShare = Field(
        0.0,
        description="Fraction of the training rows held out as eval where eval is not given; from 1 on their number.",
    )
    eval_format: Format | None = Field(
        None, description="Format of the rows of eval and test. Default: that of format, with its columns."
    )
    eval_columns: dict[Role, str] | None = Field(
        None, description="Column names in eval and test. Default: those of columns, unless eval_format is given."
    )
    eval_rows: Parts | None = Field(None, description="Part of the rows of each path of eval and test; see rows.")


class Batching(Section):
    """Which rows are taken, and how their tokens become batches."""

    rows: Parts | None = Field(
        None,
        description='Part of the rows of each path of train: ":1000", ":5%", "80%:" or "100:200"; one for all '
        "paths, or one for each. Default: all rows.",
    )
    max_length: int = Field(
        512,
        ge=2,
        le=1 << 20,
        description="Tokens in a row of a batch, prompt and answer together. Where it is left out: at most the model's "
        "context; a row may have one token more, which is only predicted.",
    )
    min_length: int | None = Field(None, ge=1, description="Samples with fewer tokens are left out, and counted.")
    packing: Literal["pack", "buckets", "longest", "none"] = Field(
        "pack",
        description="pack: several samples per row with isolated attention; hardly any padding. buckets: rows of "
        "similar length together. longest: pad to the longest of a step, in multiples of 64. none: pad to max_length.",
    )
    buckets: list[Annotated[int, Field(ge=2)]] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="Row lengths of the buckets, one compilation each. Default: chosen from the data, at most 4.",
    )
    drop_last: bool = Field(
        False, description="Leave out the rows at the end of an epoch that fill no step, unless these are all there is."
    )
    max_samples: int | None = Field(None, ge=1, description="Use only the first N rows to train on.")
    deduplicate: bool = Field(
        False,
        description="Leave out samples whose tokens and labels are those of an earlier one; of eval also those that "
        "train has. Before rows are held out or sets are mixed; test is left as it is.",
    )
    shuffle: bool = Field(True, description="Shuffle every epoch; the order is a function of seed and epoch.")
    seed: int | None = Field(None, ge=0, description="Seed of the shuffling and of eval_fraction. Default: train.seed.")
    workers: int | None = Field(
        None,
        ge=0,
        le=256,
        description="Tokeniser processes; 0: the main process only. Default: one per core for large data.",
    )
    streaming: bool = Field(
        False,
        description="Tokenise on the fly instead of beforehand, for data that should not be stored twice. Needs "
        "train.steps, since the epoch length is unknown.",
    )
    stream_window: int = Field(
        8192,
        ge=1,
        le=16384,
        description="Size of the shuffle and packing window when streaming; larger mixes better.",
    )
    cache_dir: HerePath | None = Field(
        None,
        description="Cache directory of tokenised data. Default: mindspore-pet in the user's cache directory.",
    )


class Data(Batching, Files, Reading):
    """Files, their format, and the way to batches."""

    _room: int | None = PrivateAttr(None)  # tokens that the model has room for, as far as its config.json says it
