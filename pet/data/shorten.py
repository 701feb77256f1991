"""Samples that are too long, shortened as LLaMA-Factory does it (``data.too_long: shorten``): of each turn the end of
the question and the end of the answer go, in the proportion of their lengths, unless one of them is short; of several
turns the first keep most, or the last ones where the last answer alone is learnt.

And questions and answers that have limits of their own (``data.max_prompt``, ``data.max_answer``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Turn = tuple[int, int, int]
"""Where a question begins, where its answer begins, and where that ends."""
Sample = tuple[list[int], list[int]]
"""Token ids, and the mark of each (`model_zoo.tokenizers.prompts`)."""


def turns_of(learnt: Sequence[int]) -> list[Turn]:
    """The turns of a conversation by which of its tokens are of answers (1)."""
    turns, start = [], 0
    while start < len(learnt):
        answer = next((place for place in range(start, len(learnt)) if learnt[place] == 1), len(learnt))
        end = next((place for place in range(answer, len(learnt)) if learnt[place] != 1), len(learnt))
        turns.append((start, answer, end))
        start = end
    return turns


def shares(question: int, answer: int, room: int) -> tuple[int, int]:
    """How many tokens of a question and of its answer stay."""
    if 2 * answer < room:
        most = room
    elif 2 * question < room:
        most = room - question
    else:
        most = int(room * (answer / (question + answer)))
    answer = min(most, answer)
    return min(max(room - answer, 0), question), answer


def kept(turns: Sequence[Turn], limit: int, *, last_first: bool, one_end: bool) -> list[int]:
    """The places of the tokens that stay of a conversation.

    Args:
        turns: see `turns_of`.
        limit: tokens that may stay.
        last_first: later turns come before earlier ones.
        one_end: the last token is no part of the last answer, and always stays.
    """
    pieces, total, whole = [], int(one_end), turns[-1][2]
    if one_end:
        turns = [*turns[:-1], (*turns[-1][:2], whole - 1)]
    for start, answer, end in reversed(turns) if last_first else turns:
        if total >= limit:
            break
        asked, said = shares(answer - start, end - answer, limit - total)
        total += asked + said
        pieces.append([*range(start, start + asked), *range(answer, answer + said)])
    found = [place for piece in (reversed(pieces) if last_first else pieces) for place in piece]
    return [*found, whole - 1] if one_end else found


def kept_of_pairs(turns: Sequence[Sequence[Turn]], limit: int) -> list[list[int]]:
    """The places that stay of documents with one question: of each the same of that, and as much of the last answer.
    What a chat template writes behind that, as a turn without an answer, goes."""
    last = [next((turn for turn in reversed(own) if turn[1] < turn[2]), own[-1]) for own in turns]
    asked, said = shares(last[0][1], max(end - answer for _, answer, end in last), limit)
    return [[*range(asked), *range(answer, min(answer + said, end))] for _, answer, end in last]


def places_in(sample: Sample, places: Iterable[int]) -> Sample:
    """What stands at these places of a sample, as far as it has them."""
    ids, trained = sample
    stay = [place for place in places if place < len(ids)]
    return [ids[place] for place in stay], [trained[place] for place in stay]


def within(sample: Sample, tokenizer: Any, limits: Any) -> Sample:
    """A sample whose questions have at most ``limits.max_prompt`` tokens and whose answers ``limits.max_answer``.
    Control tokens, an answer's end among them, stay and are not counted."""
    if limits is None or limits.max_prompt is limits.max_answer is None:
        return sample
    ids, trained = sample
    known, stay, count = {*getattr(tokenizer, "special_tokens", {}).values()}, [], 0
    for place, (number, learnt) in enumerate(zip(ids, trained, strict=True)):
        if place and bool(learnt) != bool(trained[place - 1]):
            count = 0
        most = limits.max_answer if learnt else limits.max_prompt
        control = number in known or learnt < 0
        count += not control
        if control or most is None or count <= most:
            stay.append(place)
    return places_in(sample, stay)
