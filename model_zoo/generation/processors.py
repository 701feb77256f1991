"""What happens to logits before a token is chosen: a function for each setting (`model_zoo.generation_settings`).

All take scores ``(B, V)``, the setting's value and the `Step`, and return the new scores; some write in place. What a
row has in front of its prompt as padding is none of its tokens, so that a row's answer is the same alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Step(NamedTuple):
    """Where in an answer a token is chosen.

    Attributes:
        ids, mask: the tokens so far, ``(B, S)``, and 0 where these are padding.
        new: how many of them are of the answer.
        left: how many more there will be at most.
        eos: the end tokens.
        keep: how many tokens a filter leaves at least.
    """

    ids: np.ndarray
    mask: np.ndarray
    new: int
    left: int
    eos: list[int]
    keep: int = 1

    def rows(self) -> list[np.ndarray]:
        """The tokens of each row, without padding."""
        return [tokens[real != 0] for tokens, real in zip(self.ids, self.mask, strict=True)]


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """Log-probabilities in float64; -inf all over where a row has no token left."""
    largest = scores.max(-1, keepdims=True).astype(np.float64)
    shifted = scores - np.where(np.isneginf(largest), 0, largest)
    return shifted - np.log(np.maximum(np.exp(shifted).sum(-1, keepdims=True), np.finfo(np.float64).tiny))


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities; zeros where a row has no token left."""
    return np.exp(log_softmax(scores))


def forbid(scores, tokens, rows=slice(None)):
    """Scores without these tokens, in all rows or in some."""
    scores[np.ix_(np.arange(len(scores))[rows], tokens)] = -np.inf
    return scores


def force(scores, tokens):
    """The tokens that alone are left, all alike."""
    scores[:] = -np.inf
    scores[:, np.atleast_1d(tokens)] = 0
    return scores


def least_of_top(scores, count):
    """The least score of each row's `count` best ones, ``(B, 1)``."""
    count = min(count, scores.shape[-1])
    return np.partition(scores, -count, axis=-1)[:, -count, None]


def cut(scores, bound, step):
    """Scores without the tokens whose probability is below a bound, but for each row's best ones."""
    return np.where((softmax(scores) < bound) & (scores < least_of_top(scores, step.keep)), -np.inf, scores)


def ranked_cut(scores, order, beyond, step):
    """Scores without those that are beyond a filter's bound in some order, but for the first ones."""
    removed = np.zeros_like(beyond)
    beyond[:, : step.keep] = False
    np.put_along_axis(removed, order, beyond, -1)
    return np.where(removed, -np.inf, scores)


def entropy(probabilities):
    """Of each row, ``(B, 1)``."""
    return -(probabilities * np.log(np.where(probabilities > 0, probabilities, 1))).sum(-1, keepdims=True)


def repetition_penalty(scores, penalty, step):
    for row, tokens in zip(scores, step.rows(), strict=True):
        seen = np.unique(tokens)
        row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    return scores


def no_repeat_ngram_size(scores, size, step):
    for row, tokens in zip(scores, step.rows(), strict=True):
        if len(tokens) >= size:
            known = np.lib.stride_tricks.sliding_window_view(tokens, size)
            row[known[(known[:, :-1] == tokens[len(tokens) - size + 1 :]).all(1), -1]] = -np.inf
    return scores


def bad_words_ids(scores, words, step):
    words = [word for word in words if len(word) != 1 or word[0] not in step.eos]  # an end token is no bad word
    for row, tokens in zip(scores, step.rows(), strict=True):
        for *before, last in words:
            if tokens[max(len(tokens) - len(before), 0) :].tolist() == before:
                row[last] = -np.inf
    return scores


def exponential_decay(scores, start_and_factor, step):
    start, factor = start_and_factor
    if step.new > start:
        ends = scores[:, step.eos]
        grown = np.abs(ends) * (factor ** (step.new - start) - 1)
        scores[:, step.eos] = ends + np.where(np.isneginf(ends), 0, grown)  # what is left out stays so
    return scores


def top_p(scores, share, step):
    probabilities = softmax(scores)
    order = np.argsort(-probabilities, -1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, -1)
    return ranked_cut(scores, order, ranked.cumsum(-1) - ranked >= share, step)  # the first that reaches it stays


def typical_p(scores, share, step):
    """In the order of how far a token's information is from what is expected."""
    probabilities = softmax(scores)
    distance = np.abs(-log_softmax(scores) - entropy(probabilities))
    order = np.argsort(distance, -1, kind="stable")
    ranked = np.take_along_axis(distance, order, -1)
    last = (np.take_along_axis(probabilities, order, -1).cumsum(-1) < share).sum(-1, keepdims=True)
    bound = np.take_along_axis(ranked, np.minimum(last, scores.shape[-1] - 1), -1)
    return ranked_cut(scores, order, ranked > bound, step)


PROCESSORS: dict[str, Any] = {
    "repetition_penalty": repetition_penalty,
    "no_repeat_ngram_size": no_repeat_ngram_size,
    "bad_words_ids": bad_words_ids,
    "min_length": lambda scores, least, step: forbid(scores, step.eos, step.mask.sum(1) < least),
    "min_new_tokens": lambda scores, least, step: forbid(scores, step.eos) if step.new < least else scores,
    "forced_eos_token_id": lambda scores, token, step: force(scores, token) if step.left == 1 else scores,
    "exponential_decay_length_penalty": exponential_decay,
    "suppress_tokens": lambda scores, tokens, step: forbid(scores, tokens),
    "begin_suppress_tokens": lambda scores, tokens, step: scores if step.new else forbid(scores, tokens),
    "temperature": lambda scores, temperature, step: scores / temperature,
    "top_k": lambda scores, k, step: np.where(scores < least_of_top(scores, max(k, step.keep)), -np.inf, scores),
    "top_p": top_p,
    "min_p": lambda scores, share, step: cut(scores, share * softmax(scores).max(-1, keepdims=True), step),
    "typical_p": typical_p,
    "epsilon_cutoff": cut,
    "eta_cutoff": lambda scores, epsilon, step: cut(
        scores, np.minimum(epsilon, np.sqrt(epsilon) * np.exp(-entropy(softmax(scores)))), step
    ),
    "renormalize_logits": lambda scores, normalise, step: log_softmax(scores) if normalise else scores,
}
"""What a setting does, in the order in which transformers has them."""
