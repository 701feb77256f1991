"""Optimizers over segments: a formula each, compiled once per segment, or a C function that does what it says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mindspore import Parameter

from pet.recipe.training_rules import USERS
from pet.train.distributed import DistributedContext
from pet.train.optimizers.adafactor import Adafactor
from pet.train.optimizers.base import Optimizer
from pet.train.optimizers.formulas import SGD, Adam, AdamW, Lamb, Lion, Momentum
from pet.train.segments import Segment, make_segments

OPTIMIZERS = {
    "adamw": AdamW,
    "adam": Adam,
    "lamb": Lamb,
    "lion": Lion,
    "sgd": SGD,
    "momentum": Momentum,
    "adafactor": Adafactor,
}


def segments_of(train, parameters: Sequence[Parameter], distributed: DistributedContext) -> list[Segment]:
    """The parameters in segments as that section groups them, and as suits its optimizer; see `make_segments`.

    Args:
        distributed: all of whose processes call this. Gradients that others sum with these are in few segments: a
            message each would cost more than the copies.
    """
    names = ("learning_rate", "weight_decay", "decay_vectors", "groups", "lora_plus_ratio")
    settings = {name: getattr(train, name) for name in names}
    alone = distributed.size == 1
    everybody = distributed.objects([parameter.name for parameter in parameters])
    settings["everywhere"] = list(itertools.chain.from_iterable(everybody))
    return make_segments(parameters, **settings, apart=alone and OPTIMIZERS[train.optimizer].moves_in_place())


def make_optimizer(train, segments: Sequence[Segment], compiled: bool = True) -> Optimizer:
    """The optimizer that a recipe's ``train`` section names."""
    chosen = OPTIMIZERS[train.optimizer]
    own = (name for name in ("betas", "eps", "momentum", "bias_correction") if train.optimizer in USERS[name][0])
    return chosen(segments, **{name: getattr(train, name) for name in own}, compiled=compiled)
