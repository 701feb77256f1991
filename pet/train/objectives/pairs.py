"""Losses over pairs of answers; `Preference` says what ``better`` and ``worse`` are."""

from __future__ import annotations

from mindspore import ops

from model_zoo.errors import InputError
from pet.recipe.rules import LESS_THAN_HALF
from pet.train.objectives.base import log_sigmoid
from pet.train.objectives.preference import Preference


class DPO(Preference):
    """Direct preference optimization (Rafailov et al. 2023): ``−log σ(β·Δ)``.

    Args:
        label_smoothing: ε, the share of pairs whose order is taken to be wrong (conservative DPO).
    """

    def __init__(self, *common, label_smoothing: float = 0.0, **named):
        super().__init__(*common, **named)
        self.label_smoothing = label_smoothing

    def losses(self, better, worse):
        margin, share = self.beta * (better - worse), self.label_smoothing
        return -(1.0 - share) * log_sigmoid(margin) - share * log_sigmoid(-margin)


class Robust(DPO):
    """DPO whose gradient is unbiased where a share ε of the pairs is in the wrong order (Chowdhury et al. 2024).

    Raises:
        InputError: ε of half of the pairs or more, beyond which the loss would prefer the other answers.
    """

    def __init__(self, *common, **named):
        super().__init__(*common, **named)
        if self.label_smoothing >= 0.5:
            raise InputError(f"train.label_smoothing: {LESS_THAN_HALF}")

    def losses(self, better, worse):
        margin, share = self.beta * (better - worse), self.label_smoothing
        return (-(1.0 - share) * log_sigmoid(margin) + share * log_sigmoid(-margin)) / (1.0 - 2.0 * share)


class Hinge(Preference):
    """``max(0, 1 − β·Δ)`` (SLiC, Zhao et al. 2023, over a reference)."""

    def losses(self, better, worse):
        return ops.relu(1.0 - self.beta * (better - worse))


class IPO(Preference):
    """``(Δ − 1/(2β))²``, with means over tokens (Azar et al. 2023)."""

    per_token = True

    def losses(self, better, worse):
        return (better - worse - 1.0 / (2.0 * self.beta)) ** 2


class SimPO(Preference):
    """``−log σ(β·(p_c − p_r) − γ)``, with means over tokens and no reference (Meng et al. 2024).

    Args:
        gamma: γ, the margin that the preferred answer is to have.
    """

    per_token, uses_reference, default_beta = True, False, 2.0

    def __init__(self, *common, gamma: float = 0.5, **named):
        super().__init__(*common, **named)
        self.gamma = gamma

    def losses(self, better, worse):
        return -log_sigmoid(self.beta * (better - worse) - self.gamma)


class ORPO(Preference):
    """``−p_c − β·log σ(log odds(p_c) − log odds(p_r))``, with means over tokens and no reference (Hong et al. 2024)."""

    per_token, uses_reference = True, False

    def losses(self, better, worse):
        odds = better - worse - (log_of_rest(better) - log_of_rest(worse))
        return -better - self.beta * log_sigmoid(odds)


def log_of_rest(p):
    """``log(1 − exp(p))`` of log-probabilities."""
    return ops.log(-ops.expm1(ops.minimum(p, -1e-6)))
