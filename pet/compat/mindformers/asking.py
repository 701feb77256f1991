"""MindFormers' ``pipeline``: a text is continued as the tokenizer encodes it, and comes back with what follows it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from model_zoo.errors import InputError
from pet.compat.mindformers.classes import AutoModel, AutoTokenizer
from pet.compat.mindformers.presets import TRUST, Listed, take_said
from pet.compat.translation import refused, same
from pet.pipelines import check_task
from pet.recipe.translation import Ignored, Refused
from pet.text_classification import TextClassification
from pet.text_generation import TextGeneration

NAME = "text_generation_text"
BUILT = {
    **same(Ignored("keys and values are kept in any case, and rows are as long as their texts"), "use_past seq_length"),
    "backend": Refused("only 'ms' is supported", harmless=("ms",)),
    "task": Ignored("the class says it"),
    **same(refused("only text generation is supported"), "image_processor audio_processor"),
    **TRUST,
}
"""Arguments by which MindFormers makes its model, and what else its pipelines take."""
OF_LABELS = {
    **BUILT,
    "max_length": Ignored("a text is cut where the model's context ends"),
    "padding": Ignored("rows are as long as their texts"),
    "dataset": Ignored("labels have the names that the head's configuration gives them"),
}
"""The same of the pipeline for labels, and what else it takes."""


class TextGenerationPipeline(Listed, TextGeneration):
    """``pipeline("text_generation", model="llama_tiny")("I love Beijing, because")``.

    Args:
        model: a model, or what `AutoModel` takes.
        tokenizer: its tokenizer; default the one of the model's name, or beside its weights.
        adapter: an adapter directory in PEFT's format to put on the model.
        chat: True puts a text into the family's prompt and gives the answer alone, as `pet.pipeline` does.
        batch_size: texts that are continued together, and whose results stand together.
        model_name: of ``glm32k``: texts are put into the family's prompt, and come back with it.
        keys, add_special_tokens: for every call.
        defaults: settings of ``generate`` for every call.
    """

    def __init__(
        self,
        model,
        tokenizer=None,
        adapter=None,
        chat: bool | None = None,
        batch_size: int | None = None,
        model_name: str | None = None,
        keys: Mapping[str, str] | None = None,
        add_special_tokens: bool = True,
        **defaults,
    ):
        super().__init__(*named(model, tokenizer, adapter, defaults, BUILT), adapter, bool(chat), **defaults)
        self.keys, self.marks = keys, add_special_tokens
        self.together, self.templated = batch_size, str(model_name).startswith("glm32k")
        self.alone, self.bare = self.batch_size, False

    def __call__(
        self,
        text: str | Sequence[str] | Mapping[str, str],
        batch_size: int | None = None,
        keys: Mapping[str, str] | None = None,
        add_special_tokens: bool | None = None,
        **settings,
    ) -> list[dict[str, list[str]]]:
        """The texts with their continuations.

        Args:
            text: one text or several; or a dictionary with the text as ``text``.
            batch_size: instead of the pipeline's.
            keys: ``{"src_language": name}``: of the dictionary's entry.
            add_special_tokens: whether the tokenizer's control tokens are put around a text.
            settings: of ``generate``.

        Returns:
            ``[{"text_generation_text": [text]}, …]``; an entry for each batch, which holds its texts.
        """
        take_said("pipeline", settings, BUILT)
        if isinstance(text, Mapping):
            text = text[(keys or self.keys or {}).get("src_language", "text")]
        given = self.together if batch_size is None else batch_size
        if given is not None and (type(given) is not int or given < 1):
            raise InputError(f"pipeline: batch_size is {given!r}; a whole number from 1 on was expected")
        self.batch_size = given or self.alone
        self.bare = not (self.marks if add_special_tokens is None else add_special_tokens)
        try:
            found = iter(super().__call__(text, **settings))
        finally:
            self.batch_size, self.bare = self.alone, False
        batches = iter(lambda: list(itertools.islice(found, given or 1)), [])
        return [{NAME: [one for entry in batch for one in entry[NAME]]} for batch in batches]

    def prompt(self, text: str) -> list[int]:
        """The ids that are continued."""
        if self.templated:
            return self.tokenizer.prompt([{"role": "user", "content": text}])
        return self.tokenizer.encode(text, add_special_tokens=False) if self.bare else super().prompt(text)

    def continued(self, prompts: list[list[int]], options: dict[str, Any]) -> list[list[int]]:
        """The answers to one batch of prompts. ``max_length`` counts each prompt's own tokens, not the padding."""
        lengths = {*map(len, prompts)}
        if options.get("max_length") is None or len(lengths) == 1:
            return super().continued(prompts, options)
        alike = {length: [prompt for prompt in prompts if len(prompt) == length] for length in lengths}
        continued = super().continued
        found = {length: iter(continued(some, dict(options))) for length, some in alike.items()}
        return [next(found[len(one)]) for one in prompts for _ in range(options.get("num_return_sequences", 1))]

    def written(self, text: str, prompt: list[int], answer: list[int]) -> str:
        """Prompt and answer, decoded together."""
        return super().written(text, prompt, answer) if self.chat else self.tokenizer.decode([*prompt, *answer], True)


class TextClassificationPipeline(Listed, TextClassification):
    """``pipeline("text_classification", model=DIR)("I love Beijing")``; see `pet.text_classification`."""

    def __init__(self, model, tokenizer=None, adapter=None, **defaults):
        super().__init__(*named(model, tokenizer, adapter, defaults, OF_LABELS), adapter, **defaults)


def named(model, tokenizer, adapter, defaults: dict[str, Any], theirs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Model and tokenizer by MindFormers' names; what is said in `theirs` is taken out of the settings."""
    if isinstance(model, (str, os.PathLike)):
        tokenizer = AutoTokenizer.from_pretrained(model) if tokenizer is None and adapter is None else tokenizer
        model = AutoModel.from_pretrained(model)
    take_said("pipeline", defaults, theirs)
    return model, tokenizer


def pipeline(
    task: str = "text_generation", model=None, tokenizer=None, **settings: Any
) -> TextGenerationPipeline | TextClassificationPipeline:
    """A callable for a task.

    Args:
        task: ``text_generation`` or ``text_classification`` (also written ``text-generation``).
        model, tokenizer, settings: see `TextGenerationPipeline` and `TextClassificationPipeline`.

    Raises:
        InputError: an unknown task, no model, or one that cannot be loaded.
    """
    if check_task(task, model) == "text_classification":
        return TextClassificationPipeline(model, tokenizer, **settings)
    return TextGenerationPipeline(model, tokenizer, **settings)
