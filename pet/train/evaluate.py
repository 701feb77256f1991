"""Measuring a model: loss, perplexity and accuracy on given answers; ROUGE, BLEU and exact match on written ones."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from model_zoo.errors import InputError
from model_zoo.generation_settings import own_limit
from model_zoo.graph import evaluating, holds
from model_zoo.turns import in_turn
from pet.recipe.training import METRICS
from pet.text_generation import before, ends_of, stops_of, until, warn_of_full_context
from pet.train.compiled import Compiled
from pet.train.distributed import DistributedContext
from pet.train.feed import checked
from pet.train.metrics import score
from pet.train.objectives.base import Objective, check_head
from pet.train.step import in_whole, tensors
from pet.train.stop import check_signals

log = logging.getLogger("pet")

# Prompts are padded to multiples of this, so that few shapes are compiled.
PROMPT_MULTIPLE = 32


class LossEvaluation:
    """What an objective measures over a feed, in one more compiled graph.

    Args:
        model: measured as it is at each call; dropout is off meanwhile.
        feed: its ``batches(0)`` are measured, all of them.
        objective: what is measured.
        distributed: sums over processes.
        compiled: False runs operator by operator.

    Attributes:
        measure: the graph; its ``seconds`` say how long its first forwards took.
    """

    def __init__(
        self, model, feed, objective: Objective, distributed: DistributedContext | None = None, compiled: bool = True
    ):
        self.model, self.feed = model, feed
        self.distributed = distributed or DistributedContext()
        self.objective, self.compiled = objective, compiled and getattr(model, "compiles", True)
        self.compile_anew()

    def compile_anew(self) -> None:
        """A graph of the model as it is now: which adapters take part is fixed in it."""
        self.state, self.parameters = getattr(self.model, "adapter_state", None), list(self.model.get_parameters())
        around = functools.partial(in_whole, self.model)
        function = self.objective.measured(self.model, self.compiled)
        measure = Compiled(function, self.compiled, around, self.parameters)
        self.measure = self.distributed.wrap_measure(measure, self.model, self.objective.sums)

    @in_turn
    def __call__(self) -> dict[str, float]:
        """What the objective's `metrics` makes of the sums over all batches."""
        check_head(self.objective, self.model)
        if getattr(self.model, "adapter_state", None) != self.state or not holds(self.model, self.parameters):
            self.compile_anew()
        self.objective.begin(self.model, self.feed, False, self.distributed, self.compiled)
        totals = np.zeros(self.objective.sums + 1, np.float64)  # the last is the count
        with evaluating(self.model):
            for batch in checked(self.feed, self.feed.batches(0, 0), self.model):
                check_signals()
                batch = self.objective.prepare(batch, training=False)
                sums = self.measure(*tensors(batch, self.objective.arrays))
                numbers = np.concatenate([np.ravel(value.asnumpy()) for value in sums])
                totals += [*numbers.astype(np.float64), self.objective.count(batch)]
        *sums, count = self.distributed.sum_numbers(totals.tolist())
        return self.objective.metrics(sums, int(count))


def context_of(model) -> int:
    """Tokens that a question and its answer may have together; a prefix takes its own away."""
    return getattr(model, "room", None) or model.config.dims.context


@dataclasses.dataclass
class Answer:
    """A question, what the model wrote, and what the data says."""

    prompt: str
    answer: str
    reference: str
    where: str = ""


class Answers:
    """Lets the model answer questions, in batches of like length.

    Args:
        model: has ``generate``.
        tokenizer: of the model.
        questions: objects with ``prompt_ids``, ``prompt``, ``reference`` and ``where`` (`pet.data.load.Question`).
        generation: a recipe's ``generation`` section.
        batch_size: batch size (default 16).
        seed: of sampling, where the section gives none.

    Without ``generation.max_new_tokens`` an answer is at most as long as generation_config.json says, or else goes on
    to its end token or the end of the context. With it, it is shorter where the model's context is full before; a
    warning says so once.
    """

    def __init__(self, model, tokenizer, questions: Sequence[Any], generation, batch_size: int = 16, seed: int = 0):
        self.model, self.tokenizer, self.generation = model, tokenizer, generation
        self.questions, self.batch_size = list(questions), batch_size
        self.seed = seed if generation.seed is None else generation.seed
        self.ends = ends_of(model, tokenizer)
        self.own = getattr(model, "generation_config", {})
        self.stops = stops_of(generation.stop or None, self.own)
        self.told = False

    def __call__(self, limit: int | None = None) -> list[Answer]:
        """The answers to the first ``limit`` questions, in their order."""
        return list(self.by_blocks(limit=limit))

    def by_blocks(self, batches: int | None = None, limit: int | None = None) -> Iterator[Answer]:
        """The same one by one, those to so many batches of questions as soon as these are answered; None: to all.

        Raises:
            InputError: before anything is written, what keeps a question from being answered.
        """
        questions = self.questions[:limit]
        self.check(questions)
        size = batches * self.batch_size if batches else len(questions) or 1
        for first in range(0, len(questions), size):
            yield from self.block(questions[first : first + size], first)

    def check(self, questions: Sequence[Any]) -> None:
        """Raises InputError where a question leaves no room for an answer."""
        context, lengths = context_of(self.model), [len(question.prompt_ids) for question in questions]
        InputError.raise_any(
            f"{question.where}: a question of {length} tokens leaves no room for an answer in the model's context of "
            f"{context}"
            for question, length in zip(questions, lengths, strict=True)
            if length >= context
        )
        if lengths and not self.generation.max_new_tokens:
            own_limit(self.own, max(lengths), context)

    def block(self, questions: Sequence[Any], before: int) -> list[Answer]:
        """The answers to questions that stand behind so many others."""
        order = sorted(range(len(questions)), key=lambda index: len(questions[index].prompt_ids))
        found: dict[int, Answer] = {}
        with evaluating(self.model):
            for first in range(0, len(order), self.batch_size):
                check_signals()
                members = order[first : first + self.batch_size]
                texts = self.write([questions[index].prompt_ids for index in members], self.seed + before + first)
                for index, text in zip(members, texts, strict=True):
                    question = questions[index]
                    found[index] = Answer(question.prompt, text, question.reference, question.where)
        return [found[index] for index in range(len(questions))]

    def write(self, prompts: Sequence[Sequence[int]], seed: int = 0) -> list[str]:
        """The texts that continue some prompts. Each batch has a seed of its own, so that a question that is asked in
        two of them is not answered alike."""
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        longest = max(len(prompt) for prompt in prompts)
        limits = [self.new_tokens(len(prompt)) for prompt in prompts]
        new_tokens = min(max(limits), context_of(self.model) - longest)
        room = context_of(self.model) - new_tokens
        length = max(longest, min(-(-longest // PROMPT_MULTIPLE) * PROMPT_MULTIPLE, room))
        # the last batch is filled up, so that it needs no compilation of its own
        rows = [*prompts, *[prompts[-1]] * (min(self.batch_size, len(self.questions)) - len(prompts))]
        ids = np.full((len(rows), length), pad, np.int32)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(rows):
            ids[row, length - len(prompt) :] = prompt
            mask[row, length - len(prompt) :] = 1
        how = {"attention_mask": mask, "max_new_tokens": new_tokens, "eos_token_id": self.ends, "seed": seed}
        written = self.model.generate(ids, tokenizer=self.tokenizer, **how, **self.generation.choosing())
        answers = np.asarray(written)[: len(prompts), length:].tolist()
        if longest == room and self.generation.max_new_tokens is None and self.ends and not self.stops:
            warn_of_full_context(answers, self.ends, context_of(self.model))
        return [self.text(*row) for row in zip(prompts, answers, limits, strict=True)]

    def new_tokens(self, asked: int) -> int:
        """How many tokens an answer may have after a question of so many, whatever else is in its batch."""
        context = context_of(self.model)
        room = context - asked
        wanted = self.generation.max_new_tokens or own_limit(self.own, asked, room) or room
        if asked + wanted > context and not self.told:
            self.told = True
            said = f"the model's context of {context} tokens has room for {room} after a question of {asked}"
            log.warning("%s: answers end there, before generation.max_new_tokens (%d)", said, wanted)
        return min(wanted, room)

    def text(self, prompt: Sequence[int], ids: list[int], limit: int) -> str:
        """What was written of so many ids at most, up to the first end token or stop text."""
        written = until(prompt, ids[:limit], self.ends, self.stops, self.tokenizer)
        if not self.stops:
            return self.tokenizer.decode(written).strip()
        asked, whole = self.tokenizer.decode(prompt), self.tokenizer.decode([*prompt, *written])
        return before(whole[len(asked) :], self.stops, asked).strip()


class Evaluation:
    """All that a recipe's ``eval`` section asks for.

    Args:
        losses: `LossEvaluation`.
        answers: `Answers`, or None where there are no questions; then only the metrics of the loss are measured.
        settings: the ``eval`` section.
        measures: gives further numbers.

    Attributes:
        samples: the first answers of the last evaluation.
    """

    def __init__(self, losses: LossEvaluation, answers: Answers | None, settings, measures: Callable | None = None):
        self.losses, self.answers, self.settings, self.measures = losses, answers, settings, measures
        self.samples: list[Answer] = []

    def __call__(self) -> dict[str, float]:
        """The metrics by name, loss and perplexity always among them."""
        written = self.settings.written
        found = {**self.from_logits(), **(self.measures() if self.measures else {})}
        if self.answers is not None and self.settings.asked != 0:
            answers = self.answers(self.settings.asked)
            self.samples = answers[: self.settings.shown_samples]
            if written:
                texts, references = [a.answer for a in answers], [a.reference for a in answers]
                found.update(score(written, texts, references))
        return found

    def from_logits(self) -> dict[str, float]:
        """Those of the metrics for which nothing has to be written; of texts that are judged all of them."""
        unwanted = set(METRICS) - {"loss", "perplexity", *self.settings.metrics}
        if getattr(self.losses.objective, "judges", False):
            return self.losses()
        return {name: value for name, value in self.losses().items() if name not in unwanted}
