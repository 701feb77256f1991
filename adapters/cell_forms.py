"""What an adapter may see in a cell: a matrix, a table of rows, a convolution, an attention core, or nothing.

A cell of MindSpore's or of this library's classes is known by its class. Any other cell that holds a matrix is tried
out once, on two rows of random numbers: it is a linear cell if it gives ``x·Wᵀ + b`` (or ``x·W + b``), and an embedding
if it gives rows of the matrix. So another library's cells need no registration, and one that only looks like a linear
cell (it scales its output, say) is not taken for one, whose merge would be wrong.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import linecache
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from adapters.cells import WEIGHTS, weight_of
from model_zoo.checkpoint.parameters import read_as, write_parameter
from model_zoo.layers import AttentionCore, Conv1D, Embedding, Linear

WEIGHTED = {
    Linear: "linear",
    Conv1D: "linear",
    nn.Dense: "linear",
    mint.nn.Linear: "linear",
    Embedding: "embedding",
    nn.Embedding: "embedding",
    mint.nn.Embedding: "embedding",
    nn.Conv1d: "conv",
    nn.Conv2d: "conv",
}
OURS = (Linear, Conv1D, Embedding)
"""Whose sub-classes (packed, noisy, divided) are this library's own."""
FORMATS = ("NCHW", "NCL")
CLOSE = 0.02
"""Largest difference of a tried cell's output, relative to the largest number: it may compute in float16."""


Argument = tuple[int, str, object, bool]


@dataclasses.dataclass(frozen=True)
class Form:
    """How a cell looks to an adapter.

    Attributes:
        kind: ``linear``, ``embedding``, ``conv``, ``attention``, or ``none`` where no adapter fits.
        transposed: whether the weight is stored ``(in, out)``.
        misfit: why none fits, as the rest of a sentence about the cell.
        arguments: those of its call that make another forward of it: (place behind the first, name, default, whether
            it but adds something).
    """

    kind: str
    transposed: bool = False
    misfit: str = ""
    arguments: tuple[Argument, ...] = ()


def plain_class(cell: nn.Cell) -> type:
    """A cell's class without what adapters made of it."""
    return getattr(type(cell), "plain", type(cell))


def form_of(cell: nn.Cell, tried: bool = True) -> Form | None:
    """How a cell looks to an adapter; None for one without a weight that an adapter could change.

    Args:
        cell: adapted already, or not.
        tried: try out cells of unknown classes. The cells of a known family need none.
    """
    if isinstance(cell, AttentionCore):
        return Form("attention")
    if getattr(cell, "max_norm", None) is not None:
        return Form("none", misfit="is an embedding with max_norm, which scales its rows; one without was expected")
    known = next((cls for cls in WEIGHTED if isinstance(cell, cls)), None)
    if known is not None and WEIGHTED[known] == "conv" and (misfit := conv_misfit(cell)):
        return Form("none", misfit=misfit)
    if known is not None and (not tried or known in OURS or plain_class(cell).construct is known.construct):
        return Form(WEIGHTED[known], transposed=known is Conv1D)
    weight = weight_of(cell)
    if not tried or not isinstance(weight, Parameter) or weight.ndim < 2:
        return None
    if cell not in _found:
        _found[cell] = tried_out(cell, known)
    return _found[cell]


_found: weakref.WeakKeyDictionary[nn.Cell, Form] = weakref.WeakKeyDictionary()


def changing_arguments(cell: nn.Cell) -> tuple[Argument, ...]:
    """`Form.arguments` of a cell that was tried out."""
    return _found[cell].arguments if cell in _found else ()


def conv_misfit(cell: nn.Cell) -> str:
    """Why LoRA does not fit a convolution."""
    if cell.group != 1:
        return f"is a convolution in {cell.group} groups; one group was expected"
    if getattr(cell, "data_format", "NCHW") not in FORMATS:
        return f"is a convolution with data_format {cell.data_format}; NCHW was expected"
    return ""


def uncalled(cell: nn.Cell) -> Iterator[tuple[nn.Cell, str]]:
    """The cells on which an adapter would not act, or not learn, for what a cell does with them, with the reason: it
    reads their weights instead of calling them, or has a gradient of its own."""
    cls = plain_class(cell)
    for name in names_only_read(cls):
        child = getattr(cell, name, None)
        if isinstance(child, nn.Cell):
            yield child, f"is not called by {cls.__name__}, which reads its weight, so an adapter would not act"
    for _, inner in cell.cells_and_names() if hasattr(cls, "bprop") else ():
        yield inner, f"gets its gradient by {cls.__name__}.bprop, which knows of no adapter"
    if "construct" in vars(cell):
        yield cell, "has had its construct replaced, so an adapter would not act; put that into a class"


@functools.cache
def names_only_read(cls: type) -> frozenset[str]:
    """The attributes of a cell of this class that its forward reads numbers of, and that no method uses otherwise.

    Found in the class's source: ``nn.MultiheadAttention`` passes ``self.out_proj.weight`` on, for one. What has no
    source (a class typed into a console), or takes its cells out of a list, is not seen through.
    """
    read = {path for method in forward_of(cls) for path, _ in weights_in(method)}
    return frozenset(read.difference(*map(used_in, methods_of(cls))))


def weights_in(method: ast.FunctionDef) -> Iterator[tuple[str, ast.Attribute]]:
    """Where a method reads a weight or a bias of a cell within its own: that cell's path, and the expression."""
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and node.attr in (*WEIGHTS, "bias"):
            owner, *path = ast.unparse(node.value).split(".")
            if owner == "self" and path and all(map(str.isidentifier, path)):
                yield ".".join(path), node


def used_in(method: ast.FunctionDef) -> set[str]:
    """The attributes of its own that a method uses for anything but reading their weights."""
    read = {id(node.value) for _, node in weights_in(method)}
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "self" and id(node) not in read
    }


@functools.cache
def forward_of(cls: type) -> list[ast.FunctionDef]:
    """A class's construct, what that calls of its methods, and so on."""
    forward, before = {"construct"}, set()
    while forward != before:
        before = set(forward)
        forward.update(*(used_in(method) for method in methods_of(cls) if method.name in before))
    return [method for method in methods_of(cls) if method.name in forward]


@functools.cache
def methods_of(cls: type) -> list[ast.FunctionDef]:
    """What the source of a class of cells, and of its bases, defines, but for its construction and for what is
    defined anew without a call of the former."""
    found, final = [], {"__init__"}
    for base in cls.__mro__[: cls.__mro__.index(nn.Cell)]:
        try:
            definition = definition_of(base)
        except (LookupError, OSError, TypeError, SyntaxError, ValueError):
            continue
        own = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name not in final]
        final.update(one.name for one in own if all(getattr(node, "attr", None) != one.name for node in ast.walk(one)))
        found += own
    return found


def definition_of(cls: type) -> ast.ClassDef:
    """The source of a class. `inspect.getsource` parses its module for each class anew, a twentieth of a short run.

    Raises:
        LookupError, OSError, TypeError, SyntaxError, ValueError: it has none.
    """
    file = inspect.getsourcefile(cls) or ""
    linecache.checkcache(file)
    return definitions("".join(linecache.getlines(file, vars(sys.modules[cls.__module__]))))[cls.__qualname__]


@functools.lru_cache(32)
def definitions(source: str) -> dict[str, ast.ClassDef]:
    """The classes of a module, by their qualified names; of two that are called alike the first."""
    found: dict[str, ast.ClassDef] = {}

    def look(within: ast.AST, path: str) -> None:
        for node in ast.iter_child_nodes(within):
            if isinstance(node, ast.ClassDef):
                found.setdefault(path + node.name, node)
                look(node, f"{path}{node.name}.")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                look(node, f"{path}{node.name}.<locals>.")
            elif not isinstance(node, ast.expr):
                look(node, path)

    look(ast.parse(source), "")
    return found


# Trying out ----------------------------------------------------------------------------------------------------------


def tried_out(cell: nn.Cell, known: type | None) -> Form:
    """The form of a cell that is called; ``known`` is the class of `WEIGHTED` that it is derived from."""
    cls = plain_class(cell)
    name = cls.__name__
    if known is None and name in {one.__name__ for one in WEIGHTED}:  # mint.nn.Conv2d, which is no nn.Conv2d
        name = f"{cls.__module__}.{name}"
    if known is None and weight_of(cell).ndim != 2:
        return Form("none", misfit=f"is a {name}, whose weight has {weight_of(cell).ndim} axes")
    kinds = [WEIGHTED[known]] if known is not None else ["linear", "embedding"]
    trials = [(kind, *trial) for kind in kinds for trial in TRIALS[kind]]
    with trial_values(cell) as (weight, bias):
        for kind, transposed, example, formula in trials:
            x = example(cell, weight, transposed)
            if agrees(output_of(cell, x), formula(cell, x, weight), bias, kind):
                return Form(kind, transposed, arguments=changing(cell, x))
    what = " or ".join(MEANS[kind] for kind in kinds)
    return Form("none", misfit=f"is a {name}, whose output is not {what}")


@contextmanager
def trial_values(cell: nn.Cell) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Weight and bias in float64, of a cell that is not in training and leaves out its own activation, which comes
    behind adapters. Zeros say nothing, so that a weight of zeros is another one within."""
    parameter, bias, training = weight_of(cell), getattr(cell, "bias", None), cell.training
    activated = getattr(cell, "activation_flag", False)
    weight = read_as(parameter, "float64").copy()
    zero = not weight.any()
    if zero:
        write_parameter(parameter, np.random.default_rng(1).standard_normal(weight.shape).astype(np.float32))
    try:
        if training:
            cell.set_train(False)
        if activated:
            object.__setattr__(cell, "activation_flag", False)
        now = read_as(parameter, "float64").copy()
        yield now, None if bias is None else read_as(bias, "float64")
    finally:
        if zero:
            write_parameter(parameter, weight)
        if activated:
            object.__setattr__(cell, "activation_flag", True)
        if training:
            cell.set_train(True)


def rows_of_numbers(cell, weight: np.ndarray, transposed: bool) -> np.ndarray:
    """Two rows as wide as the matrix."""
    return np.random.default_rng(0).standard_normal((2, weight.shape[0 if transposed else 1])).astype(np.float32)


def small_image(cell, weight: np.ndarray, transposed: bool) -> np.ndarray:
    """An input that a convolution can be moved over."""
    sizes = [dilation * size + stride for dilation, size, stride in zip(*window(cell), strict=True)]
    shape = (1, weight.shape[1], *(sizes[1:] if isinstance(cell, nn.Conv1d) else sizes))
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def window(cell: nn.Cell) -> tuple[tuple[int, int], ...]:
    """Dilation, kernel and stride of a convolution, two numbers each."""
    return tuple((one, one) if isinstance(one, int) else one for one in (cell.dilation, cell.kernel_size, cell.stride))


def convolved(cell, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A convolution with a cell's settings."""
    settings = {"stride": cell.stride, "dilation": cell.dilation}
    product = ops.Conv2D(weight.shape[0], cell.kernel_size, 1, cell.pad_mode, cell.padding, **settings)
    x = x[:, :, None] if isinstance(cell, nn.Conv1d) else x
    y = product(Tensor(x), Tensor(weight.astype(np.float32))).asnumpy()
    return y[:, :, 0] if isinstance(cell, nn.Conv1d) else y


Trial = tuple[bool, Callable, Callable]
TRIALS: dict[str, list[Trial]] = {
    "linear": [
        (False, rows_of_numbers, lambda cell, x, weight: x @ weight.T),
        (True, rows_of_numbers, lambda cell, x, weight: x @ weight),
    ],
    "embedding": [(False, lambda cell, weight, _: np.array([[0, len(weight) - 1]], np.int32), lambda cell, x, w: w[x])],
    "conv": [(False, small_image, convolved)],
}
"""{kind: [(whether the weight is transposed, an input, what the cell then gives but for its bias)]}."""
MEANS = {
    "linear": "x·Wᵀ + b",
    "embedding": "rows of its weight",
    "conv": "a convolution with its weight, plus its bias",
}


def changing(cell: nn.Cell, x: np.ndarray) -> tuple[Argument, ...]:
    """The arguments of a call that change what the weight gives, such as a scale, or add to it, such as a residual.
    Each is tried as a number, a flag, and a tensor."""
    _, _, *others = inspect.signature(plain_class(cell).construct).parameters.values()
    y, found = output_of(cell, x), []
    for place, one in enumerate(others):
        values = (0.5, not one.default, Tensor(np.full(y.shape, 0.5, np.float32)))
        named = one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        given = [z for value in values if named and (z := output_of(cell, x, {one.name: value})) is not None]
        added = all(agrees(np.diff(z, axis=-2), np.diff(y, axis=-2), None, "") for z in given)
        if not added or not all(agrees(z, y, None, "") for z in given):
            found.append((place, one.name, one.default, added))
    return tuple(found)


def refuse_changing(cell: nn.Cell, others: tuple, named: dict) -> None:
    """Refuses arguments by which a cell does something else with its weight than its adapters know, or adds what they
    would rescale. Graph code."""
    rescaled = False
    for module in cell.active:
        if module.needs_base or module.rescales:
            rescaled = True
    for place, name, usual, added in cell.changing:
        given = others[place] if len(others) > place else named.get(name, usual)
        same = usual is None if given is None else isinstance(given, (int, float, str)) and given == usual
        if not same and (rescaled or not added):
            raise ValueError(
                f"an adapted cell was called with the argument {name}, which changes what its weight gives (scales it, "
                "say), or adds to what the adapter rescales: merging would be wrong; do that outside of the cell"
            )


def output_of(cell: nn.Cell, x: np.ndarray, arguments: dict | None = None) -> np.ndarray | None:
    """What the cell's own forward gives; None where it takes no such input. Hooks are not called."""
    dtype = weight_of(cell).dtype if x.dtype == np.float32 else ms.int32
    try:
        y = plain_class(cell).construct(cell, Tensor(x).astype(dtype), **(arguments or {}))
        return y.astype(ms.float32).asnumpy()
    except Exception:
        return None


def agrees(found: np.ndarray | None, expected: np.ndarray, bias: np.ndarray | None, kind: str) -> bool:
    """Whether an output is what was expected."""
    if found is None or found.shape != expected.shape:
        return False
    if bias is not None and kind != "embedding":
        expected = expected + bias.reshape(-1, *[1] * (expected.ndim - 2 if kind == "conv" else 0))
    return bool(np.abs(found - expected).max() <= CLOSE * np.abs(expected).max())
