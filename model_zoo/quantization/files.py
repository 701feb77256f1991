"""Packed matrices in checkpoints: those of transformers with bitsandbytes, and GPTQ's and AWQ's.

A matrix is several stored tensors. What belongs together is found by names, held to its sizes before anything is read,
and then stands in the checkpoint as one tensor under the weight's name.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import numpy as np

from model_zoo.arguments import check_argument
from model_zoo.atomic import json_value
from model_zoo.configs import Config
from model_zoo.errors import InputError, shown
from model_zoo.quantization import codec
from model_zoo.quantization.codes import MAPS
from model_zoo.quantization.integers import FORMS, IntegerTensor, of_type
from model_zoo.quantization.scaled import METHODS
from model_zoo.quantization.storage import NESTED_BLOCK, Storage, part_name

STATE = "weight.quant_state.bitsandbytes__"
FOUR_BITS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")

STATE_WIDTH = 31
"""Characters of ``nested_offset`` in a written quant_state, filled up with spaces: its length is known beforehand."""

SECTION = "quantization_config"
"""Of config.json."""

Read = Callable[[str], np.ndarray]


def section_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """``quantization_config`` of config.json; empty where there is none.

    Raises:
        InputError: it is no dictionary, or its quant_method none that there is here.
    """
    found = config.get(SECTION) or {}
    check_argument(f"config.json: {SECTION}", "dict", found)
    method, supported = found.get("quant_method"), ("bitsandbytes", *dict.fromkeys((*FORMS, *METHODS)))
    check_argument(f"config.json: {SECTION}: quant_method", "str | None", method)
    if method is not None and method not in supported:
        raise InputError(
            f"config.json: quant_method {shown(method)} is not supported; there is: {', '.join(supported)}"
        )
    return found


@dataclasses.dataclass(frozen=True)
class PackedTensor:
    """A matrix of several stored tensors.

    Attributes:
        storage: what it is once it is read.
        shape: ``(out, in)``.
        stored: {part: name of the stored tensor}.
        integers: GPTQ's, AWQ's or compressed-tensors' that it is made of, in the place of bitsandbytes' parts.
        offset: nested_offset of double quantisation.
        transposed: whether the model has it as ``(in, out)``.
    """

    storage: Storage
    shape: tuple[int, int]
    stored: dict[str, str]
    integers: IntegerTensor | None = None
    offset: float = 0.0
    transposed: bool = False

    def parts(self, read: Read) -> codec.Arrays:
        """The arrays, as a cell holds them.

        Args:
            read: gives a stored tensor as it is, bfloat16 as bits.

        Raises:
            InputError: NaN or infinity among the factors.
        """
        if self.integers is None:
            found = {part: read(name) for part, name in self.stored.items()}
            if self.storage.kind != "int8":
                found["weight"] = np.ascontiguousarray(found["weight"]).view(np.uint8).reshape(-1, 1)
            if self.storage.double:
                found["nested_offset"] = np.array([self.offset], np.float32)
        else:
            found = self.integer_parts(read)
        for part in ("SCB", *FOUR_BITS):
            if part in found and not np.isfinite(found[part]).all():
                raise InputError(f"{self.stored.get(part, self.stored['weight'])} holds NaN or infinity")
        return {part: found[part] for part in self.storage.parts(self.shape)}

    def integer_parts(self, read: Read) -> codec.Arrays:
        """Integers as codes, two to a byte, with a factor and a zero per group."""
        codes, source = self.integers.codes(read), self.integers
        found = {"weight": (codes[:, ::2] << 4 | codes[:, 1::2]).reshape(-1, 1), "quant_map": MAPS["int4"]}
        found["absmax"] = np.ascontiguousarray(source.factors(read)).reshape(-1)
        if source.zeros:
            found["zeros"] = np.ascontiguousarray(source.zeros_of(read)).reshape(-1)
        return found


# Finding them ---------------------------------------------------------------------------------------------------------


def find_packed(infos: Mapping[str, Any], read: Read, integers: Mapping[str, IntegerTensor]) -> dict[str, PackedTensor]:
    """{name of the weight: matrix} of the packed matrices among stored tensors.

    Args:
        infos: {stored name: its `TensorInfo`}.
        read: as in `PackedTensor.parts`; quant_states alone are read here.
        integers: those that were found.

    Raises:
        InputError: every matrix that lacks a part, or whose parts contradict one another, by a line each.
    """
    found, problems = {}, []
    for name, one in integers.items():
        if one.fits_cells:
            storage = Storage("int4", one.size, zeros=one.zeros)
            stored = {"weight": one.parts[0], "absmax": one.parts[2]}
            found[name] = PackedTensor(storage, one.shape, stored, integers=one)
    for name in infos:
        try:
            path, _, last = name.rpartition(".")
            if (at := name.find(STATE)) > 0:
                found[name[:at] + "weight"] = four_bits(name[: at - 1], name[at + len(STATE) :], infos, read)
            elif last == "SCB":
                found[f"{path}.weight"] = eight_bits(path, infos, read)
        except InputError as error:
            problems.append(str(error))
    packed = {stored for one in found.values() for stored in one.stored.values()}
    for name, info in infos.items():
        if info.dtype == "uint8" and name.endswith(".weight") and name not in packed and not problems:
            problems.append(f"{name} is packed ({info.dtype}), but its quant_state is missing")
    InputError.raise_any(problems)
    return found


def hidden(packed: Mapping[str, PackedTensor]) -> set[str]:
    """The stored names that are no tensors by themselves."""
    found = set()
    for name, one in packed.items():
        path = name.removesuffix(".weight")
        found.update(one.stored.values())
        found.update((f"{path}.{STATE}nf4", f"{path}.{STATE}fp4", f"{path}.weight_format"))
    return found - set(packed)


def four_bits(path: str, kind: str, infos: Mapping[str, Any], read: Read) -> PackedTensor:
    """A matrix of bitsandbytes in 4 bits, by its quant_state."""
    name = f"{path}.{STATE}{kind}"
    try:
        state = json_value(read(name).tobytes().decode())
        shape, block = tuple(state["shape"]), state["blocksize"]
        if state["quant_type"] != kind or kind not in ("nf4", "fp4"):
            raise ValueError(f"quant_type is {shown(state['quant_type'])}")
        if len(shape) != 2 or not all(type(one) is int and one > 0 for one in (*shape, block)):
            raise ValueError(f"shape is {shown(state['shape'])}, blocksize {shown(block)}")
        double = f"{path}.weight.nested_absmax" in infos
        offset = float(state["nested_offset"]) if double else 0.0
        if double and (state["nested_blocksize"] != NESTED_BLOCK or not math.isfinite(offset)):
            raise ValueError(f"nested_blocksize is {shown(state['nested_blocksize'])}, nested_offset {offset}")
        storage = Storage(kind, block, double)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:  # InputError is a ValueError
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{name}: no quant_state of bitsandbytes: {what}") from None
    parts = storage.parts(shape)
    stored = {part: of_type(infos, part_name(path, part), *parts[part]) for part in FOUR_BITS if part in parts}
    weight = infos.get(f"{path}.weight")
    if weight is None or weight.nbytes != parts["weight"][1][0]:
        there = "missing" if weight is None else f"{weight.nbytes} bytes"
        raise InputError(f"{path}.weight is {there}; {parts['weight'][1][0]} bytes were expected for {shape}")
    return PackedTensor(storage, shape, {"weight": f"{path}.weight", **stored}, offset=offset)


def eight_bits(path: str, infos: Mapping[str, Any], read: Read) -> PackedTensor:
    """A matrix of bitsandbytes in 8 bits."""
    weight = infos.get(f"{path}.weight")
    shape = tuple(weight.shape) if weight is not None else ()
    if len(shape) != 2 or weight.dtype != "int8":
        what = "missing" if weight is None else f"{weight.dtype} {shape}"
        raise InputError(f"{path}.weight is {what}; {path}.SCB stands beside int8 (out, in)")
    if (form := f"{path}.weight_format") in infos and read(form).any():
        raise InputError(f"{form} is {read(form)}: not row by row, but as an older bitsandbytes laid it out for a GPU")
    stored = {"weight": f"{path}.weight", "SCB": of_type(infos, f"{path}.SCB", "float32", shape[:1])}
    return PackedTensor(Storage("int8"), shape, stored)


def quantize_stored(
    checkpoint,
    stored: str,
    storage: Storage,
    shape: tuple[int, int],
    transposed: bool,
    out: codec.Arrays | None = None,
    taken: Callable[[slice], np.ndarray] | None = None,
) -> codec.Arrays:
    """A checkpoint's unpacked matrix in codes and factors, read in pieces.

    Args:
        checkpoint: an open `model_zoo.checkpoint.reading.Checkpoint`.
        stored: the tensor's name in it.
        shape: ``(out, in)``.
        transposed: whether it lies as ``(in, out)``.
        out: as in `codec.quantize`.
        taken: gives what is taken off some rows first, in float64.

    Raises:
        InputError: NaN or infinity in it.
    """

    kind = checkpoint.dtype(stored)
    kind = kind if taken is None and kind in ("bfloat16", "float16") else "float32"

    def rows(some: slice) -> np.ndarray:
        place = (slice(None), some) if transposed else (some,)
        found = checkpoint.read(stored, place, kind)
        found = found.view(np.uint16) if kind == "bfloat16" else found
        found = found.T if transposed else found
        return found if taken is None else (found - taken(some)).astype(np.float32)

    try:
        return codec.quantize(storage, shape, rows, out)
    except InputError as error:
        raise InputError(f"{checkpoint.directory}: {stored} {error}") from None


# Writing them ---------------------------------------------------------------------------------------------------------


def quant_state(storage: Storage, shape: tuple[int, int], offset: float | None) -> np.ndarray:
    """The JSON beside a matrix in 4 bits, as bytes; of equal length whatever the offset. ``dtype`` is what it is
    dequantised to: float32, which is exact."""
    state: dict[str, Any] = {
        "quant_type": storage.kind,
        "blocksize": storage.block,
        "dtype": "float32",
        "shape": list(shape),
    }
    if storage.double:
        state |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": 0.0}
    text = json.dumps(state)
    if storage.double:
        text = text.removesuffix("0.0}") + f"{float(offset or 0.0)!r}".rjust(STATE_WIDTH) + "}"
    return np.frombuffer(text.encode(), np.uint8)


def described(path: str, storage: Storage, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """{name: (type, shape)} of the tensors that a matrix becomes in a file of bitsandbytes'.

    Raises:
        InputError: int4, for which it has no form.
    """
    if storage.kind == "int4":
        raise InputError(
            f"{path}: int4 has no form in bitsandbytes' files; write nf4, fp4 or int8, or the dequantised weights"
        )
    parts = storage.parts(shape)
    parts.pop("nested_offset", None)
    found = {part_name(path, part): one for part, one in parts.items()}
    if storage.kind == "int8":
        return {**found, f"{path}.weight_format": ("uint8", ())}
    return {**found, f"{path}.{STATE}{storage.kind}": ("uint8", quant_state(storage, shape, 0.0).shape)}


def written(path: str, storage: Storage, shape: tuple[int, int], parts: codec.Arrays) -> codec.Arrays:
    """{name: array} of the tensors that `described` announces."""
    found = {part_name(path, part): array for part, array in parts.items() if part != "nested_offset"}
    if storage.kind == "int8":
        return {**found, f"{path}.weight_format": np.array(0, np.uint8)}
    offset = float(parts["nested_offset"][0]) if storage.double else None
    return {**found, f"{path}.{STATE}{storage.kind}": quant_state(storage, shape, offset)}


def projections(config: Config, packed: Container[str]) -> list[str]:
    """Paths of a model's projections whose weights are not among the packed ones; of a tied head, too."""
    found = [path for path, cell in config.cells().items() if cell.kind in ("linear", "conv1d")]
    found += [config.family.head] if config.tied_head() is not None else []
    return [path for path in found if f"{path}.weight" not in packed]


def config_section(storage: Storage, left: Iterable[str]) -> dict[str, Any]:
    """``quantization_config`` of config.json, as transformers writes it.

    Args:
        storage: of the matrices.
        left: paths of the projections that are not packed.
    """
    four = storage.kind != "int8"
    return {
        "_load_in_4bit": four,
        "_load_in_8bit": not four,
        "bnb_4bit_compute_dtype": "float32",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": storage.kind if four else "fp4",
        "bnb_4bit_use_double_quant": storage.double,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": sorted(left),
        "llm_int8_threshold": 6.0,
        "load_in_4bit": four,
        "load_in_8bit": not four,
        "quant_method": "bitsandbytes",
    }
