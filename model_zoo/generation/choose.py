"""From logits to the next token: what is done to them, and the draw."""

from __future__ import annotations

import numpy as np

from model_zoo.arguments import is_several
from model_zoo.errors import InputError
from model_zoo.generation.processors import PROCESSORS, Step, softmax
from model_zoo.generation_settings import DRAWN, TOKENS, Choosing, is_asked


def listed(value):
    """A setting in which all that is several is a list, and NumPy's numbers are Python's."""
    value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    return [listed(one) for one in value] if is_several(value) else value


class Choice:
    """How a token is chosen.

    Args:
        vocabulary: how many ids there are.
        settings: of `Choosing`.

    Raises:
        InputError: a setting that is out of its bounds, or that holds what is no id.
    """

    def __init__(self, vocabulary: int, **settings):
        self.settings = Choosing(**{name: listed(value) for name, value in settings.items()})
        InputError.raise_any(self.settings.problems())
        for name in TOKENS:
            value = self.settings[name] or 0
            for token in np.concatenate([np.ravel(one) for one in value]) if isinstance(value, list) else [value]:
                if not 0 <= token < vocabulary:
                    raise InputError(f"{name} holds {token}, which is no id of the vocabulary (0 … {vocabulary - 1})")
        known = [name for name in PROCESSORS if self.settings.do_sample or name not in DRAWN]
        self.steps = [name for name in known if is_asked(name, getattr(self.settings, name))]
        if self.settings.min_new_tokens is not None and "min_length" in self.steps:
            self.steps.remove("min_length")  # of the two it counts, as in transformers

    def scores(self, logits: np.ndarray, step: Step) -> np.ndarray:
        """Logits ``(B, V)`` as the settings have them: -inf for tokens that are left out. In float64 where a draw goes
        by them.

        Raises:
            FloatingPointError: a row's largest logit is infinite or not a number: no token is the most probable.
        """
        if not np.isfinite(logits.max(-1)).all():  # the maximum of numbers with a NaN among them is NaN
            raise FloatingPointError
        scores = logits.astype(np.float32, copy=bool(self.steps))
        for name in self.steps:
            if name in DRAWN and scores.dtype != np.float64:
                scores = scores.astype(np.float64)
            scores = PROCESSORS[name](scores, getattr(self.settings, name), step)
        return scores

    def tokens(self, scores: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """One token per row of scores ``(B, V)``."""
        if not self.settings.do_sample:
            return scores.argmax(-1)
        draws = generator.random(len(scores))
        cumulative = softmax(scores).cumsum(-1)
        return np.array(
            [
                min(int(np.searchsorted(row, draw * row[-1], side="right")), len(row) - 1)
                for row, draw in zip(cumulative, draws, strict=True)
            ]
        )


def check_left(scores: np.ndarray, rows: np.ndarray) -> None:
    """InputError where one of these rows has no token left."""
    if np.isneginf(scores.max(-1)[rows]).any():
        raise InputError(
            "no token is left to choose: no_repeat_ngram_size, bad_words_ids, suppress_tokens or min_length forbid all"
        )
