"""Quantised products and decoding."""

from __future__ import annotations

import dataclasses
import time

import mindspore as ms
import numpy as np
from mindspore import Tensor

from model_zoo.auto import AutoModel
from model_zoo.layers import Linear, name_parameters
from model_zoo.quantization import KINDS, Storage, codec
from model_zoo.quantization.cells import quantize_cell
from pet.diagnosis.cells import LIMITS, apart, array_of, lacking
from pet.diagnosis.report import NOTE, Section
from pet.diagnosis.training import SPEED, narrow_type

OUT, IN, ROWS = 64, 128, 6
FORMS = {kind: Storage(kind) for kind in KINDS} | {"int4 with zero points": Storage("int4", zeros=True)}
PROMPT, NEW = 16, {True: 16, False: 64}


def products(section: Section, small: bool) -> None:
    """``x·Wᵀ`` and its gradient over packed weights, against NumPy over the same weights unpacked."""
    random = np.random.default_rng(3)
    matrix, x, slope = (random.normal(size=shape).astype(np.float32) for shape in ((OUT, IN), (ROWS, IN), (ROWS, OUT)))
    for form, storage in FORMS.items():
        cell = Linear(IN, OUT, bias=False)
        name_parameters(cell)
        quantize_cell(cell, "cell", storage)
        arrays = codec.quantize(dataclasses.replace(storage, zeros=False), (OUT, IN), lambda rows: matrix[rows])
        if storage.zeros:
            arrays["zeros"] = random.integers(0, 16, storage.blocks((OUT, IN))).astype(np.uint8)
        cell.put(arrays)
        unpacked = cell.dequantized().astype(np.float64)

        def loss(x, cell=cell):
            return (cell(x).astype(ms.float32) * Tensor(slope)).sum()

        for kind, limit in LIMITS.items():
            name = f"{form} {kind}"
            with section.checking(name, lacking(kind, small)):
                given = Tensor(x).astype(getattr(ms, kind))
                found = array_of(cell(given)), array_of(ms.grad(loss)(given))
                fused = cell.packed_product.device is not None and kind != "float32"
                by = ", by the device's operator" if fused else ""
                section.difference(f"{name} product", apart(found[0], array_of(given) @ unpacked.T), limit, by)
                section.difference(f"{name} gradient", apart(found[1], slope @ unpacked), 4 * limit)


def decode(section: Section, small: bool) -> None:
    """Greedy tokens with the cache and without it must be the same ones."""
    model = AutoModel.from_config(SPEED[small], "float32" if small else narrow_type(), seed=1)
    model.set_train(False)
    prompt = np.random.default_rng(1).integers(5, SPEED[small]["vocab_size"] - 5, (2, PROMPT)).astype(np.int32)
    found = {}
    for use_cache in (True, False):
        seconds = []
        for _ in range(2 if use_cache else 1):  # the first call compiles
            begin = time.perf_counter()
            ids = model.generate(prompt, max_new_tokens=NEW[small], eos_token_id=None, use_cache=use_cache)
            seconds.append(time.perf_counter() - begin)
        found[use_cache] = np.asarray(ids)
        if use_cache:
            rate = 2 * NEW[small] / seconds[-1]
            section.add(
                "decoding", NOTE, f"{rate:,.0f} tokens/s, two rows; {seconds[0]:.1f} s the first time", rate=rate
            )
    same = bool(np.array_equal(found[True], found[False]))
    if small:
        section.add("cache", same, "the same tokens as without it" if same else "other tokens than without it")
    else:  # two tokens may be as likely as each other in 16 bits
        share = float((found[True] == found[False]).mean())
        section.add("cache", share > 0.9, f"{100 * share:.0f} % the same tokens as without it", share=share)
