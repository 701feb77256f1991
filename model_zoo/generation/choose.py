"""From logits to the next token: penalties, filters, and the draw."""

from __future__ import annotations

import dataclasses

import numpy as np

from model_zoo.errors import InputError


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a token is chosen. The order is the usual one: repetition penalty, minimum length, temperature, top-k, top-p.

    Args:
        do_sample: sample; default: greedy decoding.
        temperature: divides the logits before the draw.
        top_k: keep the k most probable tokens.
        top_p: keep the most probable tokens up to this sum of probabilities (Holtzman et al. 2020).
        repetition_penalty: divides positive and multiplies negative logits of tokens seen so far (Keskar et al. 2019).
        min_new_tokens: no end token before this many.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0

    def __post_init__(self):
        if not self.temperature > 0:
            raise InputError(
                f"temperature is {self.temperature!r}; a number above 0 was expected (do_sample=False is greedy)"
            )
        if self.top_k is not None and (not isinstance(self.top_k, (int, np.integer)) or self.top_k < 0):
            raise InputError(f"top_k is {self.top_k!r}; a whole number was expected (0 or None keeps all)")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p!r}; a number above 0 and at most 1 was expected")
        if not self.repetition_penalty > 0:
            raise InputError(f"repetition_penalty is {self.repetition_penalty!r}; a number above 0 was expected")

    def scores(
        self, logits: np.ndarray, ids: np.ndarray, mask: np.ndarray, new: int, eos: tuple[int, ...]
    ) -> np.ndarray:
        """Logits ``(B, V)`` with penalty and minimum length applied; `ids` are the tokens so far.

        Raises:
            FloatingPointError: a row's largest logit is infinite or not a number: no token is the most probable.
        """
        if not np.isfinite(logits.max(-1)).all():  # the maximum of numbers with a NaN among them is NaN
            raise FloatingPointError
        scores = logits.astype(np.float32, copy=True)
        if self.repetition_penalty != 1.0:
            for row, (tokens, real) in enumerate(zip(ids, mask, strict=True)):
                seen = np.unique(tokens[real != 0])
                values = scores[row, seen]
                scores[row, seen] = np.where(
                    values > 0, values / self.repetition_penalty, values * self.repetition_penalty
                )
        if new < self.min_new_tokens and eos:
            scores[:, list(eos)] = -np.inf
        return scores

    def tokens(self, scores: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """One token per row of scores ``(B, V)``."""
        if not self.do_sample:
            return scores.argmax(-1)
        probabilities = self.probabilities(scores)
        draws = generator.random(len(scores))
        cumulative = probabilities.cumsum(-1)
        return np.array(
            [
                min(int(np.searchsorted(row, draw * row[-1], side="right")), len(row) - 1)
                for row, draw in zip(cumulative, draws, strict=True)
            ]
        )

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """What the draw goes by: softmax after temperature, top-k and top-p, in float64."""
        scores = scores.astype(np.float64) / self.temperature
        if self.top_k and self.top_k < scores.shape[-1]:
            least = np.partition(scores, -self.top_k, axis=-1)[:, -self.top_k, None]
            scores = np.where(scores < least, -np.inf, scores)
        probabilities = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities /= probabilities.sum(-1, keepdims=True)
        if self.top_p is not None and self.top_p < 1:
            order = np.argsort(-probabilities, -1, kind="stable")
            ranked = np.take_along_axis(probabilities, order, -1)
            beyond = ranked.cumsum(-1) - ranked >= self.top_p  # the first that reaches the share stays
            np.put_along_axis(probabilities, order, np.where(beyond, 0, ranked), -1)
            probabilities /= probabilities.sum(-1, keepdims=True)
        return probabilities
