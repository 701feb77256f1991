"""LoRA (Hu et al. 2021): ``y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ`` with A ``(r, in)``, B ``(out, r)`` and W frozen.

The scale is ``alpha / r``, or ``alpha / √r`` for rsLoRA (Kalajdzievski 2023). B starts at zero, so a fresh adapter
changes nothing; A starts Kaiming-uniform with a = √5, as PEFT does.
"""

from __future__ import annotations

import math
from typing import ClassVar

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from adapters import lora_peft, tokens
from adapters.deltas import dora_delta, low_rank_product, wide
from adapters.dora import Magnitude, norms_at, rescaled
from adapters.dropout import Dropout
from adapters.factors import Factor, first_a, generator_for
from adapters.initial import START, loftq, starting_weight
from adapters.method import AdapterModule, MethodConfig
from adapters.peft_config import from_file
from adapters.settings import LoRA
from model_zoo.checkpoint.parameters import write_parameter
from model_zoo.engine import uses_kernel
from model_zoo.errors import InputError
from model_zoo.quantization.loading import take_off
from model_zoo.quantization.storage import is_quantized


class LoRAConfig(LoRA, MethodConfig):
    """LoRA and its variants (Hu et al. 2021), as `apply_lora` and recipes set them."""

    first: ClassVar[dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    """{cell: B₀, A₀} where the first factors of PiSSA and OLoRA are known out of a file; emptied by `build`."""

    def parameters_at(self, site) -> int:
        out = site.out_features
        return self.rank_at(site.path) * (math.prod(site.shape) // out + out) + (out if self.use_dora else 0)

    def build(self, site) -> AdapterModule:
        from adapters.conv_lora import DoRAConv, LoRAConv
        from adapters.embedding_lora import DoRAEmbedding, LoRAEmbedding

        made = {"linear": (LoRALinear, DoRALinear), "embedding": (LoRAEmbedding, DoRAEmbedding)}
        return made.get(site.kind, (LoRAConv, DoRAConv))[self.use_dora](self, site)

    def companions(self, model, chosen):
        return tokens.companions(model, self, chosen)

    # its form in files
    pack = staticmethod(lora_peft.pack)
    restarted, check_tensors, to_peft = lora_peft.restarted, lora_peft.check_ranks, lora_peft.to_peft

    def unpack(self, arrays, model):
        return tokens.without_copies(lora_peft.unpack(arrays, model, self.init), model)

    from_peft = classmethod(from_file)


class LoRALinear(AdapterModule):
    """LoRA on one linear cell: Dense, Linear, or GPT-2's transposed Conv1D.

    Attributes:
        fast: whether the sum goes by ``kernel``, as in the cells of `model_zoo.layers`.
        taken: whether its packed cell has not its first factors, but adds what they give.
        cancelled: whether the cell would add just what this subtracts, so that neither does.
        narrow: the narrow type of its products, which ``kernel`` cannot have (`pet.train.precision`), or None.
    """

    saved = ("lora_A.weight", "lora_B.weight")

    def __init__(self, config: LoRAConfig, site):
        super().__init__()
        rank = config.rank_at(site.path)
        self.scale = config.scale_at(site.path)
        self.transposed = site.transposed
        self.starts_from_base = config.init in START
        if self.starts_from_base:
            b, a = config.first.pop(site.path, None) or START[config.init](starting_weight(site), rank, self.scale)
            self.initial_A, self.initial_B = Factor(a), Factor(b)
        elif config.init == "loftq":
            b, a = loftq(site, rank, self.scale)
        else:
            a = first_a(config, generator_for(config.seed, site.path), rank, site.in_features)
            b = np.zeros((site.out_features, rank), np.float32)
        self.lora_A, self.lora_B = Factor(a), Factor(b)
        self.lora_B.weight.learning_rate_ratio = config.learning_rate_ratio
        self.dropout = Dropout(config.dropout, site.path) if config.dropout else None
        self.product = ops.MatMul(transpose_b=True)
        self.narrow = None
        self.taken = self.cancelled = False
        uses_kernel(self, "low_rank", scale=self.scale)

    def follow_base(self, before, after) -> None:
        if self.starts_from_base and not all(
            np.array_equal(mine.weight.asnumpy(), first.weight.asnumpy())
            for mine, first in ((self.lora_A, self.initial_A), (self.lora_B, self.initial_B))
        ):
            return  # what was learnt is the difference from the first factors: they stay together
        super().follow_base(before, after)

    def attached(self, site) -> bool:
        if not self.starts_from_base or not is_quantized(site.cell):
            return False
        if site.cell.taken not in (None, self):
            raise InputError(
                f"lora: {site.path} is packed without the first factors of another adapter; delete that one first"
            )
        self.pack_anew(site, self)
        return True

    def detached(self, site) -> bool:
        taken = getattr(site.cell, "taken", None) is self
        if taken:
            self.pack_anew(site, None)
        return taken

    def pack_anew(self, site, taken) -> None:
        """`take_off`, and the norms of the weight that this leaves, for DoRA of any adapter on the cell."""
        take_off(site.cell, taken)
        if dora := [one for one in site.cell._cells.values() if isinstance(one, DoRALinear)]:
            norms = norms_at(site)
            for one in dora:
                one.on_norms(norms)

    def noticed(self, cell) -> None:
        others = [one for one in cell.active if one is not self]
        alone = not any(one.changes_input or one.needs_base or one.reads_output for one in others)
        self.taken = getattr(cell, "taken", None) is self
        self.cancelled = alone and self.dropout is None and self.rows is None and self.taken and self in cell.active

    # what a packed cell does with what was taken off it: `QuantizedLinear.taken`

    def put_back(self, x, y):
        """``y + s·B₀·A₀·x``."""
        if self.cancelled:
            return y
        flat = x.reshape(-1, x.shape[-1]).astype(ms.float32)
        change = self.product(self.product(flat, self.initial_A.weight) * self.scale, self.initial_B.weight)
        return y + change.reshape(y.shape).astype(y.dtype)

    def trace_put_back(self, tracer, x, y):
        if self.narrow is not None:
            tracer.refuse(type(self))
        if self.cancelled:
            return y
        return tracer.low_rank(y, x, self.initial_A.weight, self.initial_B.weight, self.scale)

    def first_matrix(self):
        """``s·B₀·A₀`` by operators."""
        return ops.matmul(self.initial_B.weight * self.scale, self.initial_A.weight)

    def first_rows(self):
        """Some rows of it in float64; what this gives keeps the numbers of now."""
        b, a = wide(self.initial_B.weight.asnumpy()), wide(self.initial_A.weight.asnumpy())
        return lambda rows: low_rank_product(b[rows], a, self.scale)

    def oriented(self, weight):
        """A matrix in the weight's own layout as ``(out, in)``, and back."""
        return weight.T if self.transposed else weight

    def flat(self, x):
        """The adapter's input as ``(N, in)`` in float32, after dropout."""
        flat = x.reshape(-1, x.shape[-1]).astype(ms.float32)
        return flat if self.dropout is None else self.dropout(flat)

    def change(self, x, scale):
        """``scale·(B·A − B₀·A₀)·x`` as ``(N, out)`` in float32."""
        flat = self.flat(x)
        inner = self.product(flat, self.lora_A.weight) * scale  # (N, r)
        change = self.product(inner, self.lora_B.weight)  # (N, out)
        if self.starts_from_base and not self.cancelled:
            inner = self.product(flat, self.initial_A.weight) * scale
            change = change - self.product(inner, self.initial_B.weight)
        return change

    def construct(self, x, y):
        if self.fast and y.dtype == ms.float32 and not self.starts_from_base and self.narrow is None:
            wide = y.reshape(-1, y.shape[-1])
            summed = self.kernel(wide, self.flat(x), self.lora_A.weight, self.lora_B.weight)
            return summed.reshape(y.shape)
        return y + self.change(x, self.scale).reshape(y.shape).astype(y.dtype)

    def trace(self, tracer, x, y):
        if self.narrow is not None:
            tracer.refuse(type(self))
        if self.dropout is not None:
            x = self.dropout(x)
        signed = [(self.lora_A, self.lora_B, self.scale)]
        if self.starts_from_base and not self.cancelled:
            signed.append((self.initial_A, self.initial_B, -self.scale))
        for a, b, scale in signed:
            y = tracer.low_rank(y, x, a.weight, b.weight, scale)
        return y

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """B ``(out, k)`` and A ``(k, in)`` in float64 with ΔW = B·A: the scale is in B."""
        b, a = wide(self.lora_B.weight.asnumpy()), wide(self.lora_A.weight.asnumpy())
        if self.starts_from_base:
            b = np.concatenate([b, -wide(self.initial_B.weight.asnumpy())], 1)
            a = np.concatenate([a, wide(self.initial_A.weight.asnumpy())], 0)
        return b * self.scale, a

    def delta(self, weight: np.ndarray) -> np.ndarray:
        change = low_rank_product(self.lora_B.weight.asnumpy(), self.lora_A.weight.asnumpy(), self.scale)
        if self.starts_from_base:
            change -= low_rank_product(self.initial_B.weight.asnumpy(), self.initial_A.weight.asnumpy(), self.scale)
        return self.oriented(change)


class DoRALinear(LoRALinear):
    """DoRA on one linear cell; see `adapters.dora`. Dropout acts on the input of A alone."""

    saved = (*LoRALinear.saved, "lora_magnitude_vector")
    needs_base = True

    def __init__(self, config: LoRAConfig, site):
        super().__init__(config, site)
        norms = norms_at(site)
        start = norms
        if config.init == "loftq":  # its first product is no zero
            b, a = self.factors()
            start = norms_at(site, lambda rows: b[rows] @ a)
        self.lora_magnitude_vector = Parameter(Tensor(start), name="lora_magnitude_vector")
        self.magnitude = Magnitude(norms, self.scale)
        self.weight_product = ops.MatMul(transpose_a=site.transposed, transpose_b=True)

    def follow_base(self, before, after) -> None:
        super().follow_base(before, after)
        self.on_norms(after.magnitude.norm.asnumpy())

    def on_norms(self, norms: np.ndarray) -> None:
        """Takes over the norms of another weight beneath, and the magnitude where nobody has trained it."""
        norm, magnitude = self.magnitude.norm, self.lora_magnitude_vector
        for parameter in (magnitude, norm) if np.array_equal(magnitude.asnumpy(), norm.asnumpy()) else (norm,):
            write_parameter(parameter, norms)

    def change_factors(self):
        """A and B of ``B·A − B₀·A₀``, as ``[B − B₀, B₀]·[A; A − A₀]``: no more than zeros at the start, to the bit."""
        a, b = ops.stop_gradient(self.lora_A.weight), ops.stop_gradient(self.lora_B.weight)
        if not self.starts_from_base:
            return a, b
        first_a, first_b = self.initial_A.weight, self.initial_B.weight
        return ops.concat((a, a - first_a), 0), ops.concat((b - first_b, first_b), 1)

    def on_base(self, x, y, base, weight, bias):
        a, b = self.change_factors()
        wa = self.weight_product(weight.astype(ms.float32), a)  # (out, r)
        factor = self.magnitude(self.lora_magnitude_vector, wa, a, b)
        change = self.change(x, self.scale).reshape(y.shape)
        return rescaled(y, base, bias, change, factor, (-1,))

    def trace(self, tracer, x, y, weight, bias):
        y = super().trace(tracer, x, y)
        given = [weight, self.lora_A.weight, self.lora_B.weight, self.magnitude.norm, self.lora_magnitude_vector]
        given += [self.initial_A.weight, self.initial_B.weight] if self.starts_from_base else []
        numbers = {"scale": self.scale, "transposed": self.transposed, "taken": self.taken}
        biases = [] if bias is None else [bias]
        factor = tracer.once("dora_factor", *given, **numbers)
        if factor is not None:
            return tracer.emit("dora_rescaled", y, factor, *biases)
        return tracer.emit("dora", y, *given, *biases, **numbers)

    def delta(self, weight: np.ndarray) -> np.ndarray:
        change = self.oriented(super().delta(weight))
        return self.oriented(dora_delta(self.oriented(weight), change, self.lora_magnitude_vector.asnumpy()))
