"""``model.generate``: checks its arguments, runs the decoder, stops where asked."""

from __future__ import annotations

import numpy as np

from model_zoo.arguments import checked
from model_zoo.checkpoint.parameters import read_parameter
from model_zoo.errors import InputError
from model_zoo.generation.beams import beam_search
from model_zoo.generation.choose import Choice
from model_zoo.generation.decoders import decoder_for
from model_zoo.generation.defaults import say_unheeded, say_window
from model_zoo.graph import evaluating
from model_zoo.inputs import as_array, as_int_tensor


class Default:
    """The value of an argument that was not given, where None has a meaning of its own."""

    def __init__(self, meaning: str):
        self.meaning = meaning

    def __repr__(self) -> str:
        return f"<{self.meaning}>"


SHORT_ANSWER = 16
SHORT = Default(f"{SHORT_ANSWER}, or up to max_length")
OWN_ENDS = Default("the model's own")


@checked
def generate(
    model,
    input_ids,
    attention_mask=None,
    max_new_tokens: int | None = SHORT,
    do_sample: bool = False,
    eos_token_id: int | list[int] | None = OWN_ENDS,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    use_cache: bool = True,
    streamer=None,
    *,
    max_length: int | None = None,
    min_new_tokens: int = 0,
    num_beams: int = 1,
    length_penalty: float = 1.0,
    pad_token_id: int | None = None,
    stop_strings: str | list[str] | None = None,
    tokenizer=None,
) -> np.ndarray:
    """Continues every row of a batch.

    Args:
        input_ids: ``(B, S)``, or one row ``(S,)``; left-padded where rows differ in length.
        attention_mask: 1 for real tokens; default all real.
        max_new_tokens: how many tokens at most; 16 when `max_length` is not given either. None goes on until every row
            has ended or the context is full.
        do_sample: sample; otherwise decoding is greedy.
        eos_token_id: one or several ids that end a row; default the model's own, by generation_config.json or
            config.json. None never stops early.
        temperature, top_k, top_p, repetition_penalty, min_new_tokens: see `Choice`.
        seed: of the draw; None takes a fresh one.
        use_cache: keep keys and values in a compiled cache (one compilation per length bucket). False runs the whole
            sequence again for every token; the ids are the same.
        streamer: gets the prompt and then every token (`put`), and `end`; for a single row without beams.
        max_length: length of prompt and answer together, instead of `max_new_tokens`.
        num_beams: above 1, beam search with this many.
        length_penalty: exponent of the length that a beam's score is divided by.
        pad_token_id: what follows a finished row; default the first end id, or 0.
        stop_strings: texts that end a row once they appear in its answer; they need `tokenizer`.

    Returns:
        Integers ``(B, S + new)``: prompt and answer. Rows that ended early are padded at the end.

    Raises:
        InputError: arguments out of range or at odds, ids outside the vocabulary, an answer beyond the context.
    """
    if model.scoring:
        raise InputError("the active adapter is a reward model's: it scores answers and writes none (pet.scores)")
    ids = as_array("input_ids", input_ids)
    ids = as_int_tensor("input_ids", ids[None] if ids.ndim == 1 else ids, 2).asnumpy().astype(np.int64)
    if attention_mask is None:
        mask = np.ones_like(ids)
    else:
        mask = as_array("attention_mask", attention_mask)
        mask = mask[None] if mask.ndim == 1 else mask
        if mask.shape != ids.shape:
            raise InputError(f"attention_mask has shape {mask.shape}, input_ids {ids.shape}")
        if not np.isin(mask, (0, 1)).all():
            wrong = mask[~np.isin(mask, (0, 1))][0]
            raise InputError(f"attention_mask holds {wrong}; 1 for real tokens and 0 for padding expected")
        mask = mask.astype(np.int64)
        if not mask[:, -1].all():
            raise InputError("attention_mask: the last column must be real; pad on the left to generate")
    model.check_ids(as_int_tensor("input_ids", ids, 2))
    longest, context = int(mask.sum(1).max()), model.room
    new_tokens = answer_length(ids.shape[1], context - longest, max_new_tokens, max_length)
    if longest + new_tokens > context:
        raise InputError(
            f"{longest} tokens and {new_tokens} new ones are beyond the context of {context}; lower max_new_tokens"
        )
    eos = end_ids(model.eos_token_ids if eos_token_id is OWN_ENDS else eos_token_id, model.config.dims.vocab)
    check_whole("num_beams", num_beams, 1)
    if num_beams > model.config.dims.vocab:
        raise InputError(f"num_beams is {num_beams}; at most the vocabulary's {model.config.dims.vocab} was expected")
    check_whole("seed", seed if seed is not None else 0, 0)
    missing = [name for name in ("put", "end") if streamer is not None and not hasattr(streamer, name)]
    if missing:
        raise InputError(f"streamer: {type(streamer).__name__} has no {missing[0]}; put(ids) and end() are called")
    check_whole("min_new_tokens", min_new_tokens, 0)
    given = {
        "repetition_penalty": repetition_penalty != 1,
        "num_beams": num_beams > 1,
        "min_new_tokens": min_new_tokens,
        "stop_strings": stop_strings,
    }
    source = getattr(model, "loaded_from", "the model")
    if use_cache:
        say_window(source, model.config.cached_window, longest + new_tokens)
    say_unheeded(source, model.generation_config, [name for name, value in given.items() if value])
    if pad_token_id is not None:
        end_ids([pad_token_id], model.config.dims.vocab, "pad_token_id")
    pad = pad_token_id if pad_token_id is not None else (eos[0] if eos else 0)
    choice = Choice(do_sample, temperature, top_k, top_p, repetition_penalty, min_new_tokens)
    stops = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings or [])
    if stops and tokenizer is None:
        raise InputError("stop_strings need the tokenizer that the answer is read with")
    if num_beams > 1 and (do_sample or streamer is not None or stops):
        raise InputError("num_beams above 1 cannot go with do_sample, streamer or stop_strings")
    if num_beams > 1 and not isinstance(model.position_offset, int):
        raise InputError("num_beams above 1 cannot go with rows that each have a prefix or prompt of their own")
    if streamer is not None and len(ids) > 1:
        raise InputError(f"streamer: one row at a time; the batch has {len(ids)}")
    try:
        with evaluating(model):
            decoder = decoder_for(model, len(ids) * num_beams, ids.shape[1], new_tokens, use_cache)
            if num_beams == 1:
                return continued(decoder, ids, mask, choice, new_tokens, eos, pad, seed, streamer, stops, tokenizer)
            search = {"beams": num_beams, "new_tokens": new_tokens, "eos": eos, "pad": pad}
            answer = beam_search(decoder, ids, mask, choice, length_penalty=length_penalty, **search)
            return np.concatenate([ids, answer], 1)
    except FloatingPointError:
        raise InputError(f"the model's logits are not finite numbers{broken_weight(model)}") from None


def continued(decoder, ids, mask, choice, new_tokens, eos, pad, seed, streamer, stops, tokenizer) -> np.ndarray:
    """Greedy or sampled continuation, one token for every row at a time."""
    prompt = ids.shape[1]
    generator = np.random.default_rng(seed)
    running, ends = np.ones(len(ids), bool), np.array(eos, np.int64)
    if streamer is not None:
        streamer.put(ids[0])
    logits = decoder.start(ids, mask)
    for new in range(new_tokens):
        tokens = choice.tokens(choice.scores(logits, ids, mask, new, eos), generator)
        tokens = np.where(running, tokens, pad)
        ids = np.concatenate([ids, tokens[:, None]], 1)
        mask = np.concatenate([mask, np.ones((len(ids), 1), mask.dtype)], 1)
        if streamer is not None and running[0]:
            streamer.put(tokens[:1])
        running &= (tokens[:, None] != ends).all(-1)
        for row in np.flatnonzero(running) if stops else ():
            text = tokenizer.decode(ids[row, prompt:].tolist())
            running[row] = not any(stop in text for stop in stops)
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


def answer_length(prompt: int, room: int, max_new_tokens: int | Default | None, max_length: int | None) -> int:
    """How many new tokens at most, after a prompt of so many columns that leaves this room in the context."""
    if max_length is not None:
        if max_new_tokens is not SHORT and max_new_tokens is not None:
            raise InputError("max_new_tokens and max_length: give one of them")
        name, new = "max_length", max_length - prompt
    else:
        name, new = "max_new_tokens", SHORT_ANSWER if max_new_tokens is SHORT else max_new_tokens
        if new is None:
            name, new = "the context", room
    if not isinstance(new, (int, np.integer)) or new < 1:
        raise InputError(f"{name} leaves {new!r} new tokens; at least 1 was expected (the prompt has {prompt})")
    return int(new)


def check_whole(name: str, value, least: int) -> None:
    """InputError for what is not a whole number of at least this."""
    if not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} is {value!r}; a whole number of at least {least} was expected")


def end_ids(eos, vocabulary: int, name: str = "eos_token_id") -> tuple[int, ...]:
    """The end ids as a tuple; InputError when one is no id."""
    ids = () if eos is None else tuple(eos) if isinstance(eos, (list, tuple, np.ndarray)) else (eos,)
    for token in ids:
        if not isinstance(token, (int, np.integer)) or not 0 <= token < vocabulary:
            raise InputError(f"{name} {token!r} is not an id of the vocabulary (0 … {vocabulary - 1})")
    return tuple(int(token) for token in ids)
