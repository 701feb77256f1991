"""``pet.pipeline``: a task by its name."""

from __future__ import annotations

from typing import Any, Literal, overload

from model_zoo.arguments import asked_as_elsewhere
from model_zoo.errors import InputError, similar
from pet.text_classification import TextClassification
from pet.text_generation import TextGeneration

TASKS = ("text_generation", "text_classification")


def check_task(task: str, model: Any) -> str:
    """The task by its name in `TASKS`. Raises InputError for an unknown one, or where there is no model."""
    name = str(task).replace("-", "_")
    name = "text_classification" if name == "sentiment_analysis" else name  # transformers' other name of it
    if name not in TASKS:
        raise InputError(f"pipeline: task {task!r} is not known; supported: {', '.join(TASKS)}{similar(name, TASKS)}")
    if model is None:
        raise InputError("pipeline: model is missing; give a checkpoint directory, a bundled base's name, or a model")
    return name


@overload
def pipeline(
    task: Literal["text_generation", "text-generation"] = ..., model=..., tokenizer=..., adapter=..., **settings
) -> TextGeneration: ...
@overload
def pipeline(
    task: Literal["text_classification", "text-classification"], model=..., tokenizer=..., adapter=..., **settings
) -> TextClassification: ...
@overload
def pipeline(task: str, model=..., tokenizer=..., adapter=..., **settings) -> TextGeneration | TextClassification: ...
@asked_as_elsewhere
def pipeline(task: str = "text_generation", model=None, tokenizer=None, adapter=None, **settings):
    """A callable for a task.

    Args:
        task: ``text_generation`` or ``text_classification`` (also written ``text-generation``).
        model, tokenizer, adapter, settings: see `TextGeneration` and `pet.text_classification.TextClassification`.

    Raises:
        InputError: an unknown task, no model, or one that cannot be loaded.
    """
    if check_task(task, model) == "text_classification":
        return TextClassification(model, tokenizer, adapter, **settings)
    return TextGeneration(model, tokenizer, adapter, **settings)
