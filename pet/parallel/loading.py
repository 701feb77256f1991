"""Loading a divided model: every process reads its own slices straight out of the Hugging Face files.

Whatever the layout that the files were saved in (one file, shards of any cut), there is no conversion beforehand, and
no process ever holds more than its share of the model and the piece that is just being read.
"""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model_zoo.checkpoint import Checkpoint, assign, assignment, check_tied
from model_zoo.counting import parameter_shapes
from model_zoo.floats import float_name
from pet.parallel.split import Division, division_of


def load_parts(model: nn.Cell, directory: str | Path, place: int) -> None:
    """Fills the parameters that a model has left after sharding and cutting into stages.

    Args:
        model: a sharded `CausalLM`; parameters of adapters are left alone.
        directory: of the checkpoint.
        place: of this process in its tensor-parallel group.

    Raises:
        InputError: before anything is assigned; lists every tensor that is missing, extra or misshapen.
    """
    shapes = parameter_shapes(model.config.to_dict())
    with Checkpoint(directory) as checkpoint:
        sources, copies = assignment(checkpoint, shapes, model.family.tied, model.family.ignored_tensors)
        check_tied(checkpoint, sources, copies)
        for parameter in model.get_parameters():
            stored = sources.get(parameter.name)
            if stored is None:
                continue
            division = division_of(parameter)
            if division is None:
                assign(parameter, checkpoint, stored)
            else:
                _assign_part(parameter, checkpoint, stored, division, place)
        model.loaded_from = str(checkpoint.directory)


def _assign_part(parameter, checkpoint: Checkpoint, stored: str, division: Division, place: int) -> None:
    slices = division.slices(place)
    if len(slices) == 1:
        assign(parameter, checkpoint, stored, slices=slices[0])
        return
    on_host = ms.get_context("device_target") == "CPU"  # there a parameter's array is its memory
    out = parameter.asnumpy() if on_host else np.empty(parameter.shape, np.float32)
    offset = 0
    for part in slices:
        width = part[-1].stop - part[-1].start
        inside = (slice(None),) * division.axis + (slice(offset, offset + width),)
        checkpoint.read_into(stored, out[inside], part)
        offset += width
    if not on_host:
        ops.assign(parameter, Tensor(out, getattr(ms, float_name(parameter.dtype))))
