"""MindFormers' optimizers as scripts make them for ``Trainer(optimizers=…)``, which runs its own by their settings."""

from __future__ import annotations

from mindspore import nn

from model_zoo.errors import InputError
from pet.compat.mindformers.script_config import read_number


class AdamW(nn.Optimizer):
    """AdamW over parameters, or groups of them; the rate is a number or a schedule of MindSpore's kind."""

    def __init__(self, params, learning_rate=1e-3, betas=(0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0):
        super().__init__(read_number(learning_rate), params, float(weight_decay))
        self.betas, self.eps = tuple(map(float, betas)), float(eps)

    def construct(self, gradients):
        raise InputError("AdamW: runs within a Trainer; for a step of your own take one of MindSpore's optimizers")


class FusedAdamWeightDecay(nn.AdamWeightDecay):
    """MindSpore's, which does not correct the moments."""


FP32StateAdamWeightDecay = FusedAdamWeightDecay


def get_optimizer_grouped_parameters(model: nn.Cell, weight_decay: float = 0.0) -> list[dict]:
    """Groups for an optimizer: matrices, which decay, and vectors, which do not."""
    groups: dict[float, list] = {}
    for one in model.trainable_params():
        groups.setdefault(0.0 if one.ndim == 1 or one.name.endswith(".bias") else weight_decay, []).append(one)
    return [{"params": found, "weight_decay": decay} for decay, found in groups.items()]
