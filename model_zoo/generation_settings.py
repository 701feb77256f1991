"""How tokens are chosen: every setting of `generate` that says so, with transformers' name, in transformers' order.

The recipe's ``generation`` section, the options of ``pet predict`` and ``pet chat``, the checks, and what counts of a
generation_config.json follow from the fields. Without MindSpore and NumPy: recipes are checked by them.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_json
from model_zoo.errors import InputError, shown
from model_zoo.settings import faults, setting

MOST = 1 << 31
"""Of a number of tokens, and of a factor."""


def decay(value: Any) -> str | None:
    """What keeps this from being None, or a start and a factor."""
    if value is None:
        return None
    numbers = isinstance(value, (list, tuple)) and len(value) == 2 and all(type(one) in (int, float) for one in value)
    if not numbers or not all(abs(one) < MOST for one in value) or value[0] != int(value[0]) or value[1] <= 0:
        return f"{value!r}; [a number of tokens, a factor above 0] was expected"
    return None


def words(value: Any) -> str | None:
    """What keeps this from being None, or lists of token ids, of which none is empty."""
    listed = isinstance(value, (list, tuple)) and all(isinstance(one, (list, tuple)) and one for one in value)
    if value is None or (listed and all(type(token) is int for one in value for token in one)):
        return None
    return f"{shown(value)}; lists of token ids, none of them empty, were expected"


def stopping(value: Any) -> str | None:
    """What keeps this from being None, a truth value or never."""
    if value is None or isinstance(value, bool) or value == "never":
        return None
    return f"{value!r}; true, false or never was expected"


drawn = functools.partial(setting, None, drawn=True)
"""A field that counts with do_sample alone."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choosing:
    """How tokens are chosen. None: what the base's generation_config.json says, or else nothing.

    A field's ``off`` is the value that does nothing beside None; ``drawn`` ones count with do_sample alone, ``beams``
    ones with several beams.
    """

    do_sample: bool = setting(False, "Sample; false: greedy decoding, or beam search.")
    repetition_penalty: float | None = setting(
        None, "Above 1 penalises tokens that already occurred (Keskar et al. 2019).", gt=0, off=1
    )
    no_repeat_ngram_size: int | None = setting(None, "No sequence of so many tokens occurs twice.", ge=0, off=0)
    bad_words_ids: list[list[int]] | None = setting(None, "Sequences of token ids that are never written.", check=words)
    min_length: int | None = setting(None, "No end token before prompt and answer have so many tokens.", ge=0, off=0)
    min_new_tokens: int | None = setting(None, "No end token before the answer has so many tokens.", ge=0, off=0)
    forced_eos_token_id: list[int] | int | None = setting(None, "The last token where max_new_tokens is reached.")
    exponential_decay_length_penalty: list[float] | None = setting(
        None, "[start, factor]: after start tokens, end tokens are favoured by factor to the number since.", check=decay
    )
    suppress_tokens: list[int] | None = setting(None, "Token ids that are never written.")
    begin_suppress_tokens: list[int] | None = setting(None, "Token ids that do not begin an answer.")
    temperature: float | None = drawn("Sampling temperature: divides the logits.", gt=0, off=1)
    top_k: int | None = drawn("Sample among the k most likely tokens; 0: all.", ge=0, off=0)
    top_p: float | None = drawn(
        "Nucleus sampling: the most likely tokens up to this total probability.", ge=0, le=1, off=1
    )
    min_p: float | None = drawn("Leave out tokens below this share of the largest probability.", ge=0, le=1, off=0)
    typical_p: float | None = drawn(
        "Typical sampling (Meister et al. 2023) up to this total probability.", gt=0, le=1, off=1
    )
    epsilon_cutoff: float | None = drawn("Leave out tokens below this probability.", ge=0, lt=1, off=0)
    eta_cutoff: float | None = drawn(
        "The same, lower where the entropy is high (Hewitt et al. 2022).", ge=0, lt=1, off=0
    )
    renormalize_logits: bool | None = setting(None, "Normalise the scores at the end; counts for beams.", off=False)
    num_beams: int | None = setting(None, "Number of beams of beam search; 1: none.", ge=1, le=1024, off=1)
    length_penalty: float | None = setting(
        None, "Exponent of the length that a beam's score is divided by.", off=1, beams=True
    )
    early_stopping: bool | str | None = setting(
        None,
        "When beams end: true: once num_beams answers are complete; false: when better ones are unlikely; never: when "
        "none can be better.",
        check=stopping,
        off=False,
        beams=True,
    )

    def problems(self) -> Iterator[str]:
        """What is wrong with the values, each by itself."""
        for name, field in FIELDS.items():
            yield from faults(name, HINTS[name], field.metadata, getattr(self, name))

    def __getitem__(self, name: str) -> Any:
        """A setting; what it does nothing at, where it is None."""
        value = getattr(self, name)
        return FIELDS[name].metadata.get("off") if value is None else value


FIELDS = {field.name: field for field in dataclasses.fields(Choosing)}
HINTS = typing.get_type_hints(Choosing)
DRAWN = tuple(name for name, field in FIELDS.items() if field.metadata.get("drawn"))
"""Those that count with do_sample alone."""
OF_BEAMS = tuple(name for name, field in FIELDS.items() if field.metadata.get("beams"))
"""Those that count with several beams alone."""
TOKENS = ("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id")
"""Those that hold ids of the vocabulary."""
IDLE: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size"), lambda value: value <= 0),
    **dict.fromkeys(("top_p", "typical_p"), lambda value: value >= 1),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), lambda value: not 0 < value < 1),
}
"""Further numbers at which transformers leaves a setting out; of a base's file they say nothing, of a call they are
errors."""
SUPPRESSED = ("suppress_tokens", "begin_suppress_tokens")
"""Of which a base's file may hold ids beyond the vocabulary, [-1] for none: nothing has them."""
LIMITS = ("max_new_tokens", "max_length")
"""How long answers are at most; the first one counts before the second."""
UNHEEDED = {
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale"), (1,)),
    **dict.fromkeys(("num_beam_groups", "num_return_sequences"), (0, 1)),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "penalty_alpha", "diversity_penalty", "token_healing"), (0,)),
    **dict.fromkeys(("stop_strings", "sequence_bias", "forced_bos_token_id", "watermarking_config"), ()),
    **dict.fromkeys(("dola_layers", "constraints", "force_words_ids", "max_time", "top_h"), ()),
}
"""Further settings of generation_config.json, which change answers under transformers and not here -> the values that
say nothing there, beside null and what is empty."""
SAID_BY = "generation_config.json (or config.json)"


def settings_beside(directory: Path) -> dict[str, Any]:
    """What a checkpoint says of its answers: generation_config.json, or where there is none the settings of answers in
    config.json, where older ones have them, as in transformers."""
    if (file := directory / "generation_config.json").is_file():
        return read_json(file)
    older = read_json(file) if (file := directory / "config.json").is_file() else {}
    return {name: older[name] for name in (*FIELDS, *LIMITS, *UNHEEDED, "pad_token_id", "use_cache") if name in older}


def is_asked(name: str, value: Any) -> bool:
    """Whether a setting says something else than nothing."""
    if value is None or (isinstance(value, list) and not value):  # a NumPy number beside [] is an array, and no truth
        return False
    return value != FIELDS[name].metadata.get("off")


def is_missed(name: str, value: Any) -> bool:
    """Whether a setting that does not count would change answers if it did. Drawn among one, the likeliest token is
    what greedy decoding takes."""
    return is_asked(name, value) and (name, value) != ("top_k", 1)


def settled(given: Mapping[str, Any], config: Mapping[str, Any], vocabulary: int | None = None) -> dict[str, Any]:
    """The settings of a call, and of generation_config.json where the call says nothing. Whether to sample is for the
    call alone to say: answers are the same each time unless it does.

    Args:
        given: of the call, by name; None says nothing.
        config: generation_config.json.
        vocabulary: how many ids there are, where tokens are to be chosen.

    Raises:
        InputError: a value in generation_config.json that makes no sense.
    """
    found = {name: value for name, value in given.items() if value is not None}
    left_out = {"do_sample", *found, *(() if found.get("do_sample") else DRAWN)}
    if "min_length" in found:
        left_out.add("min_new_tokens")  # which counts before it, but for a call
    elif config.get("min_new_tokens") is not None:
        left_out.add("min_length")
    own = {name: config[name] for name in FIELDS if name not in left_out and is_asked(name, config.get(name))}
    idle = {name for name in IDLE.keys() & own.keys() if type(own[name]) in (int, float) and IDLE[name](own[name])}
    own = {name: value for name, value in own.items() if name not in idle}
    faulty = (fault for name, value in own.items() for fault in faults(name, HINTS[name], FIELDS[name].metadata, value))
    InputError.raise_any(f"{SAID_BY}: {fault}" for fault in faulty)
    for name in SUPPRESSED if vocabulary is not None else ():
        if name in own:
            own[name] = [token for token in own[name] if 0 <= token < vocabulary]
    return own | found


def completes_stop(tokenizer: Any, ids: list[int], stops: Collection[str]) -> bool:
    """Whether the last of these ids completes one of some texts, which may be a control token's (``<|im_end|>``).

    Args:
        tokenizer: the one that the ids are read with.
        ids: a prompt's and its answer's. A text may begin within the prompt, as in transformers, or with the space of
            the answer's first piece (sentencepiece), which the answer by itself would lose.
        stops: the texts.
    """
    if not stops:
        return False
    # no token is less than a byte; two spaces in front may be the algorithm's own
    ids = ids[-max(len(stop.encode()) for stop in stops) - 2 :]
    text, earlier = (tokenizer.decode(part, skip_special_tokens=False) for part in (ids, ids[:-1]))
    known = len(earlier.rstrip("\ufffd"))  # half a character, which the last id may end
    return any(stop in text[max(known - len(stop) + 1, 0) :] for stop in stops)


def says_limit(config: Mapping[str, Any]) -> bool:
    """Whether a generation_config.json says how long answers are at most."""
    return any(config.get(name) is not None for name in LIMITS)


def own_limit(config: Mapping[str, Any], prompt: int, room: int) -> int | None:
    """How many tokens an answer has at most by generation_config.json: ``max_new_tokens``, or else what ``max_length``
    leaves behind the prompt. None where it says neither.

    Args:
        config: generation_config.json.
        prompt: tokens of the prompt.
        room: those that the context has room for behind it; an answer ends there in any case.

    Raises:
        InputError: a value that makes no sense, or leaves nothing.
    """
    for name, before in zip(LIMITS, (0, prompt), strict=True):
        if (limit := config.get(name)) is None:
            continue
        if type(limit) is not int or limit < 1:
            raise InputError(f"{SAID_BY}: {name} is {shown(limit)}; a whole number above 0 was expected")
        if limit <= before:
            filled = f"{name} is {limit}, which a prompt of {prompt} tokens fills"
            raise InputError(f"{SAID_BY}: {filled}; give max_new_tokens")
        return min(limit - before, room)
    return None
