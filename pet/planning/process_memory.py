"""What a process of a layout has in memory, and the main one besides while a checkpoint is written.

`work` is a `pet.planning.search.Work`: what is to be trained, and how.
"""

from __future__ import annotations

import functools
from collections import Counter

from pet.parallel.shares import STAGES, Layout, cell_of, place_of
from pet.planning.activations import activation_bytes
from pet.planning.traffic import Steps, owner_loads, trained_size
from pet.train.optimizers import OPTIMIZERS

OPTIMIZER_STATES = {name: len(optimizer.slots) for name, optimizer in OPTIMIZERS.items()}
"""float32 values that an optimizer keeps for each trained parameter; adafactor's rows and columns are next to none."""

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers")


def memory(work, divided: Layout, steps: Steps, stage: int) -> dict[str, float]:
    """Bytes of a process of this stage.

    Gradients are float32 vectors: the step's sum and, where a step has several pieces, those of the piece under way.
    Buffers are what messages need besides the tensors that they carry: the one bucket of gradients and its sum, ZeRO's
    vector of new weights, the float32 copy of a narrow activation that is summed, and the activations that a stage has
    sent or received and still keeps; and the whole matrices of one layer, where replicas share them.
    """
    trained = trained_size(divided, stage)
    owned = max(owner_loads(divided, stage, steps.data)) if steps.zero else trained
    weights, gathered = weight_bytes(work, divided, stage)
    block = steps.tokens * work.meta_model.config.dims.hidden
    ahead = min(steps.pipeline - 1 - stage, steps.pieces)
    buffers = 0
    if steps.data > 1:
        buffers += 8 * trained
    if steps.zero:
        buffers += 8 * owned
    buffers += gathered
    if steps.tensor > 1:
        buffers += block * (4 if work.width == 4 else 8)
    kept_inputs = 0
    if steps.pipeline > 1:
        buffers += block * work.width * ((stage < steps.pipeline - 1) * (ahead + 1) + (stage > 0) * 2)
        kept_inputs = ahead * block * work.width if stage > 0 else 0
    return {
        "weights": weights,
        "gradients": 4 * trained * (2 if steps.pieces > 1 else 1),
        "optimizer": 4 * owned * OPTIMIZER_STATES[work.optimizer],
        "activations": kept_inputs + activation_bytes(work, divided, steps, stage),
        "buffers": buffers,
    }


@functools.lru_cache(STAGES)
def weight_bytes(work, divided: Layout, stage: int) -> tuple[int, int]:
    """Bytes of what a process of a stage has of all parameters, and of the layer that has most of what replicas share,
    whole. Matrices that adapters are merged into again and again are there twice, as they were besides."""
    held, layers = divided.of_stage(stage), Counter()
    for share in held:
        if share.replicas > 1:
            layers[place_of(work.meta_model, share.name)] += work.bytes(share) * share.replicas
    adapted = {f"{cell_of(work.meta_model, share.name)}.weight" for share in held if work.restarts and share.adapter}
    return sum(work.bytes(share) * (1 + (share.name in adapted)) for share in held), max(layers.values(), default=0)


def saving_bytes(work, divided: Layout, steps: Steps) -> dict[str, int]:
    """What the main process has on its host while a checkpoint is written: the weights that files hold, each whole.

    Other devices send it their parts one tensor at a time, so that no device needs more room than in a step. The
    optimizer's state goes nowhere: each process writes its own part.

    Returns:
        ``held``: bytes of trained weights, and of what an adapter's files hold besides.
        ``received``: how many of them come from other processes.
    """
    held, received = saved_bytes(work, divided, divided.gathered or steps.tensor * steps.pipeline > 1)
    return {"held": held, "received": received}


@functools.lru_cache(STAGES)
def saved_bytes(work, divided: Layout, cut: bool) -> tuple[int, int]:
    """The numbers of `saving_bytes`. ``cut``: whether processes divide the model."""
    held = received = 0
    for share in divided.shares:
        if share.trained or (share.adapter and cut):
            whole = work.bytes(share) * (1 if share.division is None else share.division.members)
            held += whole
            received += whole - (work.bytes(share) if 0 in share.stages else 0)
    return held, received
