"""Packing a model's projections before it is loaded, and filling them out of a checkpoint, matrix by matrix."""

from __future__ import annotations

import functools

import mindspore as ms
from mindspore import nn

from model_zoo.errors import InputError
from model_zoo.quantization import codec
from model_zoo.quantization.cells import QuantizedLinear, quantize_cell
from model_zoo.quantization.files import quantize_stored
from model_zoo.quantization.plan import Quantization
from model_zoo.quantization.storage import Storage


def storages(config, checkpoint, asked: Quantization | None) -> dict[str, Storage]:
    """{path of a projection: its form} for a model that is loaded from a checkpoint.

    Args:
        checkpoint: an open `model_zoo.checkpoint.reading.Checkpoint`. What is packed there stays as it is.
        asked: what else is to be packed; None for nothing.

    Raises:
        InputError: what is asked for contradicts the checkpoint or the model's shapes.
    """
    there = {name.removesuffix(".weight"): one.storage for name, one in checkpoint.packed.items()}
    form = Quantization.of(checkpoint, config, asked)
    found = there or (dict.fromkeys(form.places(config), form.storage) if form is not None else {})
    cells = config.cells()
    for path in found:
        if path not in cells or cells[path].kind not in ("linear", "conv1d"):
            raise InputError(f"{checkpoint.directory}: {path}.weight is packed, but is no projection of the model")
    return found


def pack_model(model: nn.Cell, forms: dict[str, Storage]) -> None:
    """Turns projections of a model into `QuantizedLinear`, with parts that hold nothing yet."""
    cells = dict(model.cells_and_names()) if forms else {}
    for path, storage in forms.items():
        quantize_cell(cells[path], path, storage)


def fill(cell: QuantizedLinear, checkpoint, stored: str) -> None:
    """Puts a checkpoint's matrix into a packed cell: its parts where it is packed there, else quantised in pieces.

    Raises:
        InputError: it is packed in another form, or although something is to be taken off it; NaN or infinity.
    """
    storage, shape = (cell.storage, cell.shape) if cell.whole is None else cell.whole[:2]
    packed = checkpoint.packed.get(stored)
    if packed is not None and packed.storage != storage:
        raise InputError(f"{stored} is stored as {packed.storage}, the model has it as {storage}")
    if packed is not None and cell.taken is not None:
        raise InputError(
            f"{stored} is packed already, and an adapter's first factors were to be taken off it before; give the "
            "unquantised base"
        )
    in_place = cell.whole is None and ms.get_context("device_target") == "CPU"  # there an array is a parameter's memory
    if packed is None:
        out = cell.arrays() if in_place else None
        cell.source = functools.partial(type(checkpoint), checkpoint.directory), stored
        taken = cell.taken_of_whole or (cell.taken.first_rows() if cell.taken is not None else None)
        arrays = quantize_stored(checkpoint, stored, storage, shape, cell.published_transposed, out, taken)
    else:
        arrays = checkpoint.parts(stored)
    if cell.whole is not None:
        arrays = codec.take(storage, arrays, *cell.whole[1:])[1]
    if packed is not None or not in_place:
        cell.put(arrays)
    cell.loaded, cell.taken_of_whole = codec.glance(arrays), None


def take_off(cell: QuantizedLinear, taken: nn.Cell | None) -> None:
    """Packs a cell's matrix anew out of its file, without what another cell adds back; with None all of it.

    Before the base is loaded this is noted only; `fill` does it then.

    Args:
        taken: see `QuantizedLinear`.

    Raises:
        InputError: the unquantised matrix is not to be had. The cell is as before.
    """
    before = cell.taken
    object.__setattr__(cell, "taken", taken)  # no child: it is part of an adapter
    if cell.loaded is None:
        return
    try:
        with cell.origin() as (checkpoint, stored):
            fill(cell, checkpoint, stored)
    except BaseException:
        object.__setattr__(cell, "taken", before)
        raise
