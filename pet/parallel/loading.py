"""Loading a divided model: every process reads its own slices straight out of the Hugging Face files.

Whatever the layout that the files were saved in (one file, shards of any cut), there is no conversion beforehand, and
no process ever holds more than its share of the model and the piece that is just being read.
"""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from adapters.embedding_lora import DoRAEmbedding
from adapters.lora import DoRALinear
from adapters.registry import registry
from model_zoo.checkpoint.dtypes import float_name
from model_zoo.checkpoint.reading import Checkpoint, assign, assignment, check_tied, note_source
from model_zoo.quantization.loading import fill
from model_zoo.quantization.storage import is_quantized
from pet.parallel.collectives import Group, sum_numbers
from pet.parallel.split import division_of, parts_of


def load_parts(model: nn.Cell, directory: str | Path, group: Group) -> None:
    """Fills the parameters that a model has left after sharding and cutting into stages.

    Args:
        model: a sharded `CausalLM`. Of its adapters only what starts from the base's weights is set: copies that are
            trained whole, and DoRA's norms.

    Raises:
        InputError: before anything is assigned; lists every tensor that is missing, extra or misshapen.
    """
    shapes = model.config.shapes()
    cells = {id(cell) for _, cell in model.cells_and_names()}  # absent stages are not among them
    with Checkpoint(directory) as checkpoint:
        sources, copies = assignment(checkpoint, shapes, model.family.tied, model.family.ignored_tensors)
        check_tied(checkpoint, sources, copies)
        replaced = [item for adapter in registry(model).adapters.values() for item in adapter.replaced]
        replaced = [item for item in replaced if id(item.cell) in cells]
        found = {id(parameter): parameter for parameter in model.get_parameters()}
        found.update({id(item.base): item.base for item in replaced})
        for parameter in found.values():
            stored = sources.get(parameter.name)
            if stored is None:
                continue
            parts = parts_of(parameter, group.place)
            if parts is None:
                assign(parameter, checkpoint, stored)
            else:
                _assign_parts(parameter, checkpoint, stored, *parts)
        note_source(model, checkpoint.directory)
    for item in replaced:
        if not registry(model).get(item.adapter).source:
            ops.assign(item.own, item.base.astype(item.own.dtype))
    for adapter in registry(model).adapters.values():
        for path, module in adapter.modules.items():
            cell = adapter.sites[path].cell
            if isinstance(module, (DoRALinear, DoRAEmbedding)) and id(cell) in cells:
                _start_norms(module, cell, not adapter.source, group)


def _start_norms(module: DoRALinear | DoRAEmbedding, cell: nn.Cell, fresh: bool, group: Group) -> None:
    """DoRA's norms of the base's rows, over all members where each has some columns; of a table's columns."""
    division, packed = division_of(cell.weight), is_quantized(cell)
    weight = cell.dequantized() if packed else cell.weight.astype(ms.float32).asnumpy()
    rows = (weight.T if isinstance(module, DoRAEmbedding) else module.oriented(weight)).astype(np.float64)
    squares = (rows * rows).sum(1)
    if division is not None and division.axis == (0 if module.transposed else 1):
        squares = np.asarray(sum_numbers(squares, group))
    norms = Tensor(np.sqrt(squares).astype(np.float32))
    ops.assign(module.magnitude.norm, norms)
    if fresh:
        ops.assign(module.lora_magnitude_vector, norms)


def _assign_parts(parameter, checkpoint: Checkpoint, stored: str, axis: int, slices: list) -> None:
    if (cell := getattr(parameter, "packed_in", None)) is not None:
        return fill(cell, checkpoint, stored)
    if len(slices) == 1:
        assign(parameter, checkpoint, stored, slices=slices[0])
        return None
    on_host = ms.get_context("device_target") == "CPU"  # there a parameter's array is its memory
    out = parameter.asnumpy() if on_host else np.empty(parameter.shape, np.float32)
    offset = 0
    for part in slices:
        width = part[-1].stop - part[-1].start
        inside = (slice(None),) * axis + (slice(offset, offset + width),)
        checkpoint.read_into(stored, out[inside], part)
        offset += width
    if not on_host:
        ops.assign(parameter, Tensor(out, getattr(ms, float_name(parameter.dtype))))
    return None
