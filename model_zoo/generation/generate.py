"""``model.generate``: checks its arguments, runs the decoder, stops where asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from model_zoo.arguments import checked
from model_zoo.checkpoint.parameters import read_parameter
from model_zoo.errors import InputError
from model_zoo.generation.beams import beam_search
from model_zoo.generation.choose import Choice, check_left
from model_zoo.generation.decoders import decoder_for
from model_zoo.generation.defaults import own_padding, say_unheeded, say_unused, say_window
from model_zoo.generation.processors import Step
from model_zoo.generation_settings import FIELDS, completes_stop, own_limit, settled
from model_zoo.graph import evaluating
from model_zoo.inputs import as_array, as_int_tensor, as_mask
from model_zoo.settings import require
from model_zoo.turns import changed


class Default:
    """The value of an argument that was not given, where None has a meaning of its own."""

    def __init__(self, meaning: str):
        self.meaning = meaning

    def __repr__(self) -> str:
        return f"<{self.meaning}>"


SHORT_ANSWER = 16
SHORT = Default(f"the model's own, or {SHORT_ANSWER}")
OWN_ENDS = Default("the model's own")


@checked
def generate(
    model,
    input_ids,
    attention_mask=None,
    max_new_tokens: int | None = SHORT,
    do_sample: bool = False,
    eos_token_id: int | list[int] | None = OWN_ENDS,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int | None = None,
    use_cache: bool = True,
    streamer=None,
    *,
    max_length: int | None = None,
    min_length: int | None = None,
    min_new_tokens: int | None = None,
    no_repeat_ngram_size: int | None = None,
    bad_words_ids: list[list[int]] | None = None,
    suppress_tokens: list[int] | None = None,
    begin_suppress_tokens: list[int] | None = None,
    forced_eos_token_id: list[int] | int | None = None,
    exponential_decay_length_penalty: list[float] | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    epsilon_cutoff: float | None = None,
    eta_cutoff: float | None = None,
    renormalize_logits: bool | None = None,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    early_stopping: bool | str | None = None,
    num_return_sequences: int = 1,
    pad_token_id: int | None = None,
    stop_strings: str | list[str] | None = None,
    tokenizer=None,
) -> np.ndarray:
    """Continues every row of a batch.

    What is not said (None) of how tokens are chosen is as generation_config.json beside the weights has it, except that
    only a caller's ``do_sample`` samples.

    Args:
        input_ids: ``(B, S)``, or one row ``(S,)``; left-padded where rows differ in length.
        attention_mask: 1 for real tokens; default all real.
        max_new_tokens: how many tokens at most. Where `max_length` is not given either, one of these by
            generation_config.json, within the context, or else 16. None goes on until every row has ended or the
            context is full.
        do_sample: sample; otherwise decoding is greedy.
        eos_token_id: one or several ids that end a row; default the model's own, by generation_config.json or
            config.json. None never stops early.
        temperature, top_k, top_p, repetition_penalty, min_length … early_stopping: see `Choosing`.
        seed: of the draw; None takes a fresh one.
        use_cache: keep keys and values in a compiled cache (one compilation per length bucket). False runs the whole
            sequence again for every token; the ids are the same. Where only a cache heeds a window of the model's
            (`Config.cached_window`), they are not, and a ``use_cache`` that is false in those files counts, too.
        streamer: gets the prompt and then every token (`put`), and `end`; for a single row without beams.
        max_length: length of prompt and answer together, instead of `max_new_tokens`.
        num_return_sequences: how many answers to each row: draws, or the best of so many beams at least.
        pad_token_id: what follows a finished row; default the model's own, or else the first end id, or 0.
        stop_strings: texts that end a row once its answer completes one, which may begin in the prompt; they need
            `tokenizer`.

    Returns:
        Integers ``(B·num_return_sequences, S + new)``: prompt and answer. Rows that ended early are padded at the end.

    Raises:
        InputError: arguments out of range or at odds, ids outside the vocabulary, an answer beyond the context.
    """
    # a copy: under a debugger Python 3.12 adds the comprehension's own names while it runs
    given = {name: value for name, value in dict(locals()).items() if name in FIELDS}
    if model.scoring:
        raise InputError("the model's head, or its adapter's, judges texts and writes none (pet.scores)")
    ids, mask = as_prompt(input_ids, attention_mask)
    model.check_ids(as_int_tensor("input_ids", ids, 2))
    longest, context, config = int(mask.sum(1).max()), model.room, model.generation_config
    new_tokens = answer_length(ids.shape[1], context - longest, max_new_tokens, max_length, config)
    if longest + new_tokens > context:
        raise InputError(
            f"{longest} tokens and {new_tokens} new ones are beyond the context of {context}; lower max_new_tokens"
        )
    vocabulary = model.config.dims.vocab
    source = getattr(model, "loaded_from", "the model")
    eos = end_ids(model.eos_token_ids if eos_token_id is OWN_ENDS else eos_token_id, vocabulary)
    choice = Choice(vocabulary, **settled(given, config, vocabulary))
    settings = choice.settings
    beams, sampled = settings["num_beams"], settings.do_sample
    for name, most in (("min_new_tokens", new_tokens), ("min_length", longest + new_tokens)):
        if (given[name] or 0) > most:  # what generation_config.json says is for no one answer
            raise InputError(f"{name} is {given[name]}, but there are {most} tokens at most; raise max_new_tokens")
    if beams > vocabulary:
        raise InputError(f"num_beams is {beams}; at most the vocabulary's {vocabulary} was expected")
    require("generate", "num_return_sequences", num_return_sequences, int, ge=1)
    if num_return_sequences > (beams if beams > 1 or not sampled else num_return_sequences):
        raise InputError(f"num_return_sequences is {num_return_sequences}; it takes do_sample, or as many num_beams")
    require("generate", "seed", seed or 0, int, ge=0)
    missing = [name for name in ("put", "end") if streamer is not None and not hasattr(streamer, name)]
    if missing:
        raise InputError(f"streamer: {type(streamer).__name__} has no {missing[0]}; put(ids) and end() are called")
    window = model.config.cached_window
    if window and config.get("use_cache") is False:
        use_cache = False
    if use_cache:
        say_window(source, window, longest + new_tokens)
    if tokenizer is not None and stop_strings is None:
        stop_strings = config.get("stop_strings")
    say_unheeded(source, config, ["stop_strings"] if stop_strings is not None else [])
    say_unused(given, sampled, beams)
    pad = own_padding(model, beams) if pad_token_id is None else end_ids([pad_token_id], vocabulary, "pad_token_id")[0]
    pad = (eos[0] if eos else 0) if pad is None else pad
    stops = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings or [])
    if stops and tokenizer is None:
        raise InputError("stop_strings need the tokenizer that the answer is read with")
    if not all(stops):
        raise InputError("stop_strings: an empty text stands in every answer")
    copies = max(beams, num_return_sequences)
    if copies > 1 and not isinstance(model.position_offset, int):
        raise InputError("rows that each have a prefix or prompt of their own have one answer each, without num_beams")
    if streamer is not None and len(ids) * copies > 1:
        raise InputError(
            f"streamer: one row at a time; the batch has {len(ids)}, and {copies} beams or answers to each"
        )

    def stopped(tokens: np.ndarray) -> bool:
        """Whether a row, without its padding, is at a stop string."""
        return completes_stop(tokenizer, tokens.tolist(), stops)

    def count(change: int) -> None:
        model.answering += change

    common = {"new_tokens": new_tokens, "eos": eos, "pad": pad, "stopped": stopped if stops else None}
    common["generator"] = np.random.default_rng(seed)
    try:
        with evaluating(model):
            decoder = decoder_for(model, len(ids) * copies, ids.shape[1], new_tokens, use_cache)
            with changed(lambda: count(1), lambda: count(-1)):
                if beams > 1:
                    answer = beam_search(decoder, ids, mask, choice, returned=num_return_sequences, **common)
                    return np.concatenate([np.repeat(ids, num_return_sequences, 0), answer], 1)
                rows = np.repeat(ids, copies, 0), np.repeat(mask, copies, 0)
                return continued(decoder, *rows, choice, streamer, **common)
    except FloatingPointError:
        raise InputError(f"the model's logits are not finite numbers{broken_weight(model)}") from None


def as_prompt(input_ids, attention_mask) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask ``(B, S)`` of whole numbers; InputError where they do not fit."""
    ids = as_array("input_ids", input_ids)
    ids = as_int_tensor("input_ids", ids[None] if ids.ndim == 1 else ids, 2).asnumpy().astype(np.int64)
    if attention_mask is None:
        return ids, np.ones_like(ids)
    mask = as_array("attention_mask", attention_mask)
    mask = as_mask(mask[None] if mask.ndim == 1 else mask, ids.shape).astype(np.int64)
    if not mask[:, -1].all():
        raise InputError("attention_mask: the last column must be real; pad on the left to generate")
    return ids, mask


def continued(decoder, ids, mask, choice, streamer, *, new_tokens, eos, pad, generator, stopped) -> np.ndarray:
    """Greedy or sampled continuation, one token for every row at a time."""
    running, ends = np.ones(len(ids), bool), np.array(eos, np.int64)
    if streamer is not None:
        streamer.put(ids[0])
        decoder.check()
    logits = decoder.start(ids, mask)
    for new in range(new_tokens):
        scores = choice.scores(logits, Step(ids, mask, new, new_tokens - new, eos))
        if choice.steps:
            check_left(scores, running)
        tokens = np.where(running, choice.tokens(scores, generator), pad)
        ids = np.concatenate([ids, tokens[:, None]], 1)
        mask = np.concatenate([mask, np.ones((len(ids), 1), mask.dtype)], 1)
        if streamer is not None and running[0]:
            streamer.put(tokens[:1])
            decoder.check()
        running &= (tokens[:, None] != ends).all(-1)
        for row in np.flatnonzero(running) if stopped else ():
            running[row] = not stopped(ids[row, mask[row] != 0])
        if not running.any() or new + 1 == new_tokens:
            break
        logits = decoder.step(tokens)
    if streamer is not None:
        streamer.end()
    return ids


def broken_weight(model) -> str:
    """The first weight that explains logits which are no numbers, for a message."""
    for parameter in model.get_parameters():
        values = read_parameter(parameter)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            source = getattr(model, "loaded_from", None)
            return f": {parameter.name} holds NaN or infinity" + (f" (the model is of {source})" if source else "")
    return ": the weights are finite, so a product overflows; load the model with dtype='float32'"


def answer_length(
    prompt: int,
    room: int,
    max_new_tokens: int | Default | None,
    max_length: int | None,
    config: Mapping[str, Any],
) -> int:
    """How many new tokens at most, after a prompt of so many columns that leaves this room in the context."""
    if max_length is not None:
        if max_new_tokens is not SHORT and max_new_tokens is not None:
            raise InputError("max_new_tokens and max_length: give one of them")
        name, new = "max_length", max_length - prompt
    elif max_new_tokens is None:
        name, new = "the context", room
    elif max_new_tokens is not SHORT:
        name, new = "max_new_tokens", max_new_tokens
    else:
        own = own_limit(config, prompt, room)
        name, new = ("the context", own) if own is not None else ("max_new_tokens", SHORT_ANSWER)
    if not isinstance(new, (int, np.integer)) or new < 1:
        raise InputError(f"{name} leaves {new!r} new tokens; at least 1 was expected (the prompt has {prompt})")
    return int(new)


def end_ids(eos, vocabulary: int, name: str = "eos_token_id") -> list[int]:
    """The end ids as a list; InputError when one is no id."""
    ids = () if eos is None else tuple(eos) if isinstance(eos, (list, tuple, np.ndarray)) else (eos,)
    for token in ids:
        if not isinstance(token, (int, np.integer)) or not 0 <= token < vocabulary:
            raise InputError(f"{name} {token!r} is not an id of the vocabulary (0 … {vocabulary - 1})")
    return [int(token) for token in ids]
