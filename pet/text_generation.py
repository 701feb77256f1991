"""Text in, text out, in one line."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from adapters.stored import check_loadable
from model_zoo.arguments import check_argument, checked, is_several
from model_zoo.errors import InputError
from model_zoo.generation.choose import listed
from model_zoo.generation_settings import DRAWN, FIELDS, LIMITS, Choosing, completes_stop, says_limit
from model_zoo.settings import require
from model_zoo.turns import telling
from pet.names import own_tokenizer

log = logging.getLogger("pet")


class TextGeneration:
    """Continues texts, or answers them where the tokenizer's family has a prompt for questions.

    Args:
        model: a model, a checkpoint directory, or a bundled base's name.
        tokenizer: its tokenizer; default the one beside the adapter, if there is one, or beside the checkpoint.
        adapter: an adapter directory in PEFT's format to put on the model.
        chat: True puts the text into the family's prompt, False continues it as it stands. Default: True where the
            family has a prompt of its own, False for GPT-2 and base LLaMA, whose prompt is the bare text.
        batch_size: texts generated together.
        defaults: settings of `generate` for every call (``max_length``, ``top_k`` …).
    """

    @checked
    def __init__(self, model, tokenizer=None, adapter=None, chat: bool | None = None, batch_size: int = 8, **defaults):
        require("pipeline", "batch_size", batch_size, int, ge=1)
        model, tokenizer = opened(model, tokenizer, adapter)
        self.model, self.tokenizer, self.batch_size, self.defaults = model, tokenizer, batch_size, readable(defaults)
        self.chat = tokenizer.chats if chat is None else chat

    @telling
    def __call__(self, text: str | Sequence[str], **settings) -> list[dict[str, list[str]]]:
        """The texts with their continuations, or for a chat prompt the answers alone.

        Args:
            text: one text or several.
            settings: of `generate`. ``top_k`` above 1, ``top_p``, ``temperature`` and the like sample, unless
                ``do_sample`` says otherwise; with none of them decoding is greedy. Without ``max_new_tokens`` and
                ``max_length``, in generation_config.json too, an answer goes on to its end-of-sequence token, or until
                the context is full.

        Returns:
            ``[{"text_generation_text": [text]}, …]``, one entry per text, with ``num_return_sequences`` answers.
        """
        texts = list(text) if is_several(text) else [text]
        if not texts or not all(isinstance(one, str) for one in texts):
            raise InputError(f"pipeline: a text or a list of texts was expected, got {text!r}")
        options = {**self.defaults, **readable(settings)}
        drawn = ((name, options[name]) for name in DRAWN if options.get(name) is not None)
        draws = any(one not in (("top_k", 0), ("top_k", 1)) for one in drawn)
        if defaults := getattr(self.model, "generation_defaults", None):  # the model's own, where it was given some
            options = completed(defaults, options, self.model.room)
        options.setdefault("do_sample", draws)
        options.setdefault("eos_token_id", ends_of(self.model, self.tokenizer))
        if "max_length" not in options and not says_limit(getattr(self.model, "generation_config", {})):
            options.setdefault("max_new_tokens", None)  # 16 tokens would end most answers within a sentence
        prompts = [self.prompt(one) for one in texts]
        answers: list[list[int]] = []
        for first in range(0, len(prompts), self.batch_size):
            answers += self.continued(prompts[first : first + self.batch_size], dict(options))
            if isinstance(seed := options.get("seed"), (int, np.integer)):
                options["seed"] = seed + self.batch_size  # each batch has its own
        count = options.get("num_return_sequences", 1)
        asked = [pair for pair in zip(texts, prompts, strict=True) for _ in range(count)]
        whole = [self.written(*pair, answer) for pair, answer in zip(asked, answers, strict=True)]
        return [{"text_generation_text": whole[first : first + count]} for first in range(0, len(whole), count)]

    def prompt(self, text: str) -> list[int]:
        """The ids that are continued."""
        if self.chat:
            return self.tokenizer.prompt([{"role": "user", "content": text}])
        ids = self.tokenizer.encode(text)  # with what the family puts around a bare text
        while ids and ids[-1] in (self.tokenizer.eos_token_ids or ()):
            ids.pop()
        if not ids:
            raise InputError("pipeline: an empty text cannot be continued")
        return ids

    def written(self, text: str, prompt: list[int], answer: list[int]) -> str:
        """What is given for a text with its prompt: the answer, behind the text where this was no question. It is read
        behind the prompt then, since by itself it would lose the space that it begins with (sentencepiece)."""
        text, prompt = ("", []) if self.chat else (text, prompt)
        return text + self.tokenizer.decode([*prompt, *answer])[len(self.tokenizer.decode(prompt)) :]

    def continued(self, prompts: list[list[int]], options: dict[str, Any]) -> list[list[int]]:
        """The answers to one batch of prompts."""
        length = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id or 0
        ids = [[pad] * (length - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        options.setdefault("tokenizer", self.tokenizer)
        ends = np.atleast_1d([] if options["eos_token_id"] is None else options["eos_token_id"]).tolist()
        written = self.model.generate(ids, mask, **options)
        answers = written[:, length:].tolist()
        limited = any(options.get(name) is not None for name in LIMITS)
        stops = stops_of(options.get("stop_strings"), getattr(self.model, "generation_config", {}))
        if not limited and written.shape[1] == self.model.room and ends and not stops:
            warn_of_full_context(answers, ends, self.model.room)
        asked = [prompt for prompt in prompts for _ in range(len(answers) // len(prompts))]
        return [until(*pair, ends, stops, self.tokenizer) for pair in zip(asked, answers, strict=True)]


def readable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that each batch can read: what gives its values but once is a list. A streamer gives the answer's.

    Raises:
        InputError: one that says how tokens are chosen is out of its bounds.
    """
    once = (name for name, value in settings.items() if hasattr(value, "__next__") and name != "streamer")
    settings = {**settings, **{name: list(settings[name]) for name in once}}
    chosen = {name: listed(value) for name, value in settings.items() if name in FIELDS}
    InputError.raise_any(f"pipeline: {problem}" for problem in Choosing(**chosen).problems())
    return settings


def opened(model, tokenizer=None, adapter=None) -> tuple[Any, Any]:
    """A model with an adapter, and its tokenizer, of names, directories or objects.

    Raises:
        InputError: one of them cannot be opened.
    """
    from pet.auto import AutoModel, AutoTokenizer

    check_argument("pipeline: model", "str | os.PathLike | Model", model)
    check_argument("pipeline: adapter", "str | os.PathLike | None", adapter)
    if adapter is not None:
        check_loadable(adapter)
    if isinstance(model, (str, os.PathLike)):
        model = AutoModel.from_pretrained(model)
    if tokenizer is None:
        tokenizer = own_tokenizer(adapter) or getattr(model, "loaded_from", None)
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    if tokenizer is None:
        raise InputError("pipeline: a model without a directory needs tokenizer=")
    if not hasattr(tokenizer, "chats"):
        wanted = "a path or one of pet.AutoTokenizer"
        raise InputError(f"pipeline: tokenizer is of the type {type(tokenizer).__name__}; {wanted} was expected")
    if adapter is not None:
        from adapters.saving import load_adapter

        load_adapter(model, adapter)
    return model, tokenizer


def completed(defaults: Mapping[str, Any], settings: Mapping[str, Any], room: int) -> dict[str, Any]:
    """A call's settings with the defaults for what it leaves out.

    Args:
        defaults: of `generate`.
        settings: of the call.
        room: tokens that the model's context holds; a longer ``max_length`` among the defaults is cut to it.
    """
    left = dict(defaults)
    if any(name in settings for name in LIMITS):
        for name in LIMITS:
            left.pop(name, None)
    if "max_length" in left:
        left["max_length"] = min(left["max_length"], room)
    return {**left, **settings}


def ends_of(model, tokenizer) -> list[int]:
    """The ids that end an answer: the tokenizer's and the model's own."""
    return list(dict.fromkeys([*tokenizer.eos_token_ids, *model.eos_token_ids]))


def warn_of_full_context(answers: Sequence[Sequence[int]], ends: Collection[int], context: int) -> None:
    """Says how many answers have no end token, where only the context limited them."""
    cut = sum(not set(ends) & set(answer) for answer in answers)
    if cut:
        log.warning("%d of %d answers end where the model's context of %d tokens is full", cut, len(answers), context)


def until(
    prompt: Sequence[int], ids: Sequence[int], ends: Collection[int], stops: Sequence[str] = (), tokenizer=None
) -> list[int]:
    """The ids of an answer before the first end, or up to that which completes a stop text: what follows only fills the
    row up."""
    found: list[int] = []
    for token in itertools.takewhile(lambda token: token not in ends, ids):
        found.append(token)
        if completes_stop(tokenizer, [*prompt, *found], stops):
            break
    return found


def stops_of(asked: str | Sequence[str] | None, own: Mapping[str, Any]) -> list[str]:
    """The texts that end an answer: those that are asked for, or where this is None generation_config.json's."""
    stops = own.get("stop_strings") or [] if asked is None else asked
    return [stops] if isinstance(stops, str) else list(stops)


def before(text: str, stops: Iterable[str], prompt: str = "") -> str:
    """The text in front of the first of these that ends in it; it may begin in the prompt in front."""
    whole, start = prompt + text, len(prompt)
    found = (whole.find(stop, max(start - len(stop) + 1, 0)) for stop in stops)
    return whole[start : min((place for place in found if place >= 0), default=None)]
