"""A frozen projection whose weight is stored in 8 or 4 bits.

The plain path, which is the reference and what runs on a device: the matrix is unpacked by MindSpore's operators for
each product and not kept; the backward pass, which has a gradient of the input alone, unpacks it again. Kernels in C
(`model_zoo.engine`) read the packed weight itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from model_zoo.ascend.product import HALVES, QuantizedProduct, has_quantized_product
from model_zoo.checkpoint.parameters import read_parameter
from model_zoo.engine import packed_product, packed_words, precision_suffix, unpacking
from model_zoo.errors import InputError
from model_zoo.layers import Conv1D, Linear, is_product, new_parameter, traced_linear
from model_zoo.quantization import codec
from model_zoo.quantization.storage import NESTED_BLOCK, Storage, is_quantized, part_name

late = ops.Depend()
"""`late(x, dout)` is x, but not before dout is there: otherwise the compiler would keep the unpacked matrix of the
forward pass for the backward one."""


class Unpack(nn.Cell):
    """The parts of a matrix → ``(out, in)`` in float32, by table look-up.

    Factors are tiled, not broadcast: on a CPU a broadcast operator keeps 16 bytes per element for as long as its graph
    lives.

    Args:
        storage: its form.
        shape: ``(out, in)``.
    """

    def __init__(self, storage: Storage, shape: tuple[int, int]):
        super().__init__()
        self.kind, self.double, self.zeros = storage.kind, storage.double, storage.zeros
        self.shape, self.count, self.block = tuple(shape), math.prod(shape), storage.block
        self.blocks = storage.blocks(shape)
        bytes_ = np.arange(256)
        self.high, self.low = Tensor(bytes_ >> 4, ms.int32), Tensor(bytes_ & 15, ms.int32)
        self.fast, self.kernel = False, None
        settings = np.array([storage.block, storage.double, storage.zeros], np.int32)
        self.settings = () if storage.kind == "int8" else (Tensor(settings),)
        self.gather, self.cast, self.join, self.tile = ops.Gather(), ops.Cast(), ops.Concat(0), ops.Tile()

    def choose_kernel(self, native: bool) -> None:
        """Lets compiled graphs unpack by one operator in C, or by MindSpore's again."""
        self.fast = native
        if native and self.kernel is None:
            self.kernel = unpacking("unpack_rows" if self.kind == "int8" else "unpack_codes", self.shape)

    def __call__(self, parts):
        return self.by_operators(parts)  # outside of graphs, as `model_zoo.engine.cells.Kernel`

    def construct(self, parts):
        return self.kernel(parts[0], *self.settings, *parts[1:]) if self.fast else self.by_operators(parts)

    def by_operators(self, parts):
        """Without the kernel."""
        if self.kind == "int8":
            wide = self.tile(parts[1].reshape(-1, 1), (1, self.shape[1]))
            return self.cast(parts[0], ms.float32) * wide * float(codec.INT8_STEP)
        pairs = ops.stack((self.gather(parts[2], self.high, 0), self.gather(parts[2], self.low, 0)), -1)  # (256, 2)
        values = self.gather(pairs, self.cast(parts[0].reshape(-1), ms.int32), 0).reshape(-1)
        factors = parts[1]
        if self.double:
            factors = self.gather(parts[4], self.cast(factors, ms.int32), 0)
            nested = self.tile(parts[3].reshape(-1, 1), (1, NESTED_BLOCK)).reshape(-1)
            factors = factors * self.first(nested, self.blocks) + parts[5]
        missing = self.blocks * self.block - values.shape[0]  # of the last block
        if missing > 0:
            values = self.join((values, ops.zeros((missing,), ms.float32)))
        values = self.first(values, self.blocks * self.block)  # the last byte may be half full
        values = values.reshape(self.blocks, self.block)
        if self.zeros:
            values = values + self.tile((8.0 - self.cast(parts[3], ms.float32)).reshape(-1, 1), (1, self.block))
        values = (values * self.tile(factors.reshape(-1, 1), (1, self.block))).reshape(-1)
        return self.first(values, self.count).reshape(self.shape)

    def first(self, values, count):
        """The first elements of a vector; of as many no slice, which would take longer than all the rest."""
        return values if values.shape[0] == count else values[:count]


class PackedProduct(nn.Cell):
    """``x·Wᵀ`` for x ``(N, in)`` and the parts of W, which a kernel reads as they are, or in half precision an operator
    of the device; without these W is unpacked here and, for the gradient of x, again.

    There is no gradient of W.
    """

    def __init__(self, storage: Storage, shape: tuple[int, int]):
        super().__init__()
        self.unpack, self.form = Unpack(storage, shape), storage
        self.product, self.product_back = ops.MatMul(transpose_b=True), ops.MatMul()
        self.fast, self.kernels, self.words = False, (), ()
        self.device = QuantizedProduct(storage, shape) if has_quantized_product(storage, shape) else None
        self.narrow = None  # as `LoRALinear` has it

    def choose_kernel(self, native: bool) -> None:
        """As `Unpack.choose_kernel`."""
        self.fast = native and is_product(self.product)
        if self.fast:
            (out, into), form = self.unpack.shape, self.form
            told = form.kind, form.block, (out, into), list(form.parts((out, into)))
            bf16 = precision_suffix(self.product) != ""
            self.kernels = packed_product(out), packed_product(into)
            self.words = packed_words(*told, True, bf16), packed_words(*told, False, bf16)

    def construct(self, x, parts):
        if self.fast and x.dtype == ms.float32:
            return self.kernels[0](x, self.words[0], *parts)
        narrow = x.dtype if self.narrow is None else self.narrow
        if self.device is not None and narrow in HALVES:
            return self.device(x.astype(narrow), parts).astype(x.dtype)
        return self.product(x, self.unpack(parts).astype(x.dtype))

    def bprop(self, x, parts, out, dout):
        if self.fast and dout.dtype == ms.float32:
            return self.kernels[1](dout, self.words[1], *parts), parts
        again = (late(parts[0], dout), *parts[1:])
        return self.product_back(dout, self.unpack(again).astype(dout.dtype)), parts


class QuantizedLinear(Linear):
    """A `Linear` with its weight in the form that ``storage`` says: ``y = x·Wᵀ + b``.

    The parameters of W are named as in bitsandbytes' files (`model_zoo.quantization.storage.part_name`). Cells become
    ones of this class by `quantize_cell`.

    Attributes:
        storage: the form of W.
        in_features, out_features: its shape.
        published_transposed: whether checkpoints have W as ``(in, out)``, as GPT-2's do.
        loaded: `codec.glance` at what was loaded.
        source: what opens the checkpoint that W was packed from, and the tensor there; None where it was packed there.
        whole: form and shape of the matrix that this is a part of, axis and ranges; None for all of it.
        taken: what was taken off W before it was packed, and is added in float32 (`loading.take_off`), or None. A cell
            with ``put_back(x, y)``, ``trace_put_back(tracer, x, y)``, ``first_matrix()`` by operators, and
            ``first_rows()``, which gives a function from rows to their numbers in float64.
        taken_of_whole: ``first_rows()`` of the matrix that this is a part of, until that is loaded.
    """

    loaded: int | None = None
    published_transposed = False
    whole: tuple | None = None
    source: tuple | None = None
    taken: nn.Cell | None = None
    taken_of_whole: Callable[[slice], np.ndarray] | None = None

    @property
    def unchanged(self) -> bool:
        """Whether W is what was loaded."""
        return self.loaded is not None and self.loaded == codec.glance(self.arrays())

    def construct(self, x):
        y = self.multiply(x)
        if self.bias is not None:
            y = self.add_bias(y, self.bias)
        return y

    def trace(self, tracer, x, with_bias=True):
        packed = tracer.packed(self.storage.kind, self.storage.block, self.shape, self.part_parameters())
        y = traced_linear(tracer, "product_of_rows", self, x, packed, with_bias)
        return y if self.taken is None else self.taken.trace_put_back(tracer, x, y)

    def traced_matrix(self, tracer, module):
        """W as kernels read it for an adapter, without what was taken off for this one."""
        if self.taken not in (None, module):
            tracer.refuse(type(self))
        return tracer.packed(self.storage.kind, self.storage.block, self.shape, self.part_parameters())

    def parts(self):
        """The parameters of W, in the order of `Storage.parts`."""
        if self.storage.kind == "int8":
            return self.weight, self.SCB
        found = (self.weight, self.absmax, self.quant_map)
        if self.storage.double:
            found = (*found, self.nested_absmax, self.nested_quant_map, self.nested_offset)
        if self.storage.zeros:
            found = (*found, self.zeros)
        return found

    def matrix(self):
        """W ``(out, in)`` in float32, by operators."""
        unpacked = self.packed_product.unpack(self.parts())
        return unpacked if self.taken is None else unpacked + self.taken.first_matrix()

    @property
    def shape(self) -> tuple[int, int]:
        """Of W."""
        return self.out_features, self.in_features

    def part_parameters(self) -> dict[str, Parameter]:
        """{part: its parameter}."""
        return dict(zip(self.storage.parts(self.shape), self.parts(), strict=True))

    def arrays(self) -> codec.Arrays:
        """{part: its array}: on a CPU the parameters' own memory."""
        return {part: read_parameter(parameter) for part, parameter in self.part_parameters().items()}

    def published(self) -> np.ndarray:
        """W in float32 as unpacked checkpoints have it."""
        matrix = self.dequantized()
        return np.ascontiguousarray(matrix.T) if self.published_transposed else matrix

    @contextmanager
    def origin(self) -> Iterator[tuple[Any, str]]:
        """The open checkpoint that W was packed from, and the tensor there.

        Raises:
            InputError: it is packed there, too.
        """
        if self.source is None:
            raise InputError(
                f"{self.weight.name}: the unquantised weight is not in the files that it was loaded from; expected an "
                "unquantised base, packed while loading (model.quantization)"
            )
        open_again, stored = self.source
        with open_again() as checkpoint:
            yield checkpoint, stored

    def original(self) -> np.ndarray:
        """W in float32 before it was packed, out of its file; raises as `origin`."""
        with self.origin() as (checkpoint, stored):
            matrix = checkpoint.read(stored, dtype="float32")
        return np.ascontiguousarray(matrix.T) if self.published_transposed else matrix

    def multiply(self, x):
        """``x·Wᵀ``."""
        y = self.packed_product(x, self.parts())
        return y if self.taken is None else self.taken.put_back(x, y)

    def keep_part(self, path: str, axis: int, ranges: Sequence[slice], loaded: bool) -> None:
        """Leaves some rows (axis 0) or columns of W, with their numbers to the bit.

        Args:
            loaded: whether W is there; if not, `model_zoo.quantization.loading.fill` puts the part of the file there.

        Raises:
            InputError: blocks would be cut into pieces that are too small.
        """
        self.whole = self.storage, self.shape, axis, tuple(ranges)
        form = codec.part_storage(*self.whole)
        arrays = codec.take(self.storage, self.arrays(), self.shape, axis, ranges)[1] if loaded else None
        if self.taken is not None and not loaded:
            self.taken_of_whole = self.taken.first_rows()
        extent = sum(len(range(*some.indices(self.shape[axis]))) for some in ranges)
        shape = (extent, self.in_features) if axis == 0 else (self.out_features, extent)
        for part in self.storage.parts(self.shape):
            del self._params[part]
            self.__dict__.pop(part, None)
        self.out_features, self.in_features = shape
        hold_parts(self, path, form)
        if arrays is not None:
            self.put(arrays)

    def put(self, arrays: codec.Arrays) -> None:
        """Writes the parts; compiled graphs see the new values."""
        for part, parameter in self.part_parameters().items():
            if ms.get_context("device_target") == "CPU":
                parameter.asnumpy()[...] = arrays[part]
            else:
                parameter.set_data(Tensor(arrays[part]))
        if self.packed_product.device is not None:
            self.packed_product.device.take(arrays)

    def requantized(self, matrix: np.ndarray) -> codec.Arrays:
        """The parts of another matrix ``(out, in)`` in float32, in the same form.

        Raises:
            InputError: zero points of a file, for which there is no rule here.
        """
        if self.storage.zeros:
            raise InputError(f"{self.weight.name} has zero points out of its file and cannot be quantised again")
        try:
            return codec.quantize(self.storage, self.shape, lambda rows: matrix[rows])
        except InputError as error:
            raise InputError(f"{self.weight.name} {error}") from None

    def dequantized(self, rows: slice = slice(None)) -> np.ndarray:
        """Rows of W in float32."""
        values = codec.dequantize(self.storage, self.arrays(), self.shape, rows)
        return values if self.taken is None else codec.with_taken(values, self.taken.first_rows()(rows))


def quantize_cell(cell: nn.Cell, path: str, storage: Storage) -> None:
    """Turns a `Linear` or GPT-2's `Conv1D` into a `QuantizedLinear` in place, with parts that hold nothing yet.

    Args:
        cell: which no adapter is on. A `Conv1D`'s matrix lies as ``(out, in)`` from then on.
        path: its name in the model.
        storage: the form.

    Raises:
        InputError: the matrix has no such blocks.
    """
    reason = storage.why_not((cell.out_features, cell.in_features))
    if reason is not None:
        raise InputError(f"{path} cannot be stored as {storage}: {reason}")
    cell.published_transposed = isinstance(cell, Conv1D)
    del cell._params["weight"]
    object.__setattr__(cell, "__class__", QuantizedLinear)
    hold_parts(cell, path, storage)


def hold_parts(cell: QuantizedLinear, path: str, storage: Storage) -> None:
    """Gives a cell the parameters of a form, which hold nothing yet, and the product over them."""
    shape = cell.shape
    for part, (dtype, extent) in storage.parts(shape).items():
        value = new_parameter(extent, getattr(ms, dtype), name=part_name(path, part))
        value.requires_grad, value.weights, value.form = False, 0, storage
        cell.insert_param_to_cell(part, value)
        value.name = part_name(path, part)
    cell.storage = storage
    cell.weight.packed_in, cell.weight.weights = cell, math.prod(shape)
    cell.packed_product = PackedProduct(storage, shape)


def quantized_cells(model: nn.Cell) -> dict[str, QuantizedLinear]:
    """{name of the weight: cell} of all cells of a model whose weight is packed."""
    return {f"{path}.weight": cell for path, cell in model.cells_and_names() if is_quantized(cell)}
