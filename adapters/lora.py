"""LoRA (Hu et al. 2021): ``y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ`` with A ``(r, in)``, B ``(out, r)`` and W frozen.

The scale is ``alpha / r``, or ``alpha / √r`` for rsLoRA (Kalajdzievski 2023). B starts at zero, so a fresh adapter
changes nothing; A starts Kaiming-uniform with a = √5, as PEFT does.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from adapters import lora_peft
from adapters.deltas import low_rank_product
from adapters.dropout import Dropout
from adapters.matching import pattern_value
from adapters.method import AdapterModule, MethodConfig, positive_int, share
from model_zoo.errors import InputError

INITS = ("default", "gaussian", "pissa", "olora")


@dataclasses.dataclass(kw_only=True)
class LoRAConfig(MethodConfig):
    """LoRA and its variants.

    Args:
        rank: r, the inner width.
        alpha: numerator of the scale. 16 with rank 8: updates twice as large as the plain product.
        dropout: share of the input zeroed on the adapter's path while training.
        rank_pattern, alpha_pattern: {regular expression: value} for cells that differ.
        use_rslora: scale by √r instead of r.
        use_dora: train a magnitude per output besides (DoRA; `adapters.dora`).
        init: ``default``; ``gaussian`` for A; ``pissa`` or ``olora``, which start from the weight's own directions
            (`adapters.initial`).
        bias: ``none``, ``lora_only`` (biases of the adapted cells are trained) or ``all``.
        trainable_tokens: {embedding name: [ids]} or a list of ids of the token embedding whose rows are trained.
        learning_rate_ratio: LoRA+ (Hayou et al. 2024): B learns this many times faster than A.
        seed: of A.
    """

    rank: int = 8
    alpha: float = 16
    dropout: float = 0.0
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    use_rslora: bool = False
    use_dora: bool = False
    init: str = "default"
    bias: str = "none"
    trainable_tokens: list[int] | dict[str, list[int]] | None = None
    learning_rate_ratio: float = 1.0
    seed: int = 0

    method: ClassVar[str] = "lora"
    peft_type: ClassVar[str] = "LORA"
    kinds: ClassVar[tuple[str, ...]] = ("linear", "embedding", "conv")
    peft_keys: ClassVar[tuple[str, ...]] = lora_peft.KEYS

    def validate(self) -> None:
        positive_int("lora", "rank", self.rank)
        for key, value in (self.rank_pattern or {}).items():
            positive_int("lora", f"rank_pattern[{key!r}]", value)
        for key, value in {"alpha": self.alpha, **(self.alpha_pattern or {})}.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise InputError(f"lora: {key} is {value!r}; a number above 0 was expected")
        share("lora", "dropout", self.dropout)
        if self.init not in INITS:
            raise InputError(f"lora: init is {self.init!r}; supported: {', '.join(INITS)}")
        if self.bias not in ("none", "lora_only", "all"):
            raise InputError(f"lora: bias is {self.bias!r}; supported: none, lora_only, all")

    def rank_at(self, path: str) -> int:
        """r of this cell."""
        return pattern_value(self.rank_pattern, path, self.rank)

    def scale_at(self, path: str) -> float:
        """The factor in front of B·A at this cell."""
        alpha, rank = pattern_value(self.alpha_pattern, path, self.alpha), self.rank_at(path)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def parameters_at(self, site) -> int:
        rank = self.rank_at(site.path)
        if site.kind == "conv":
            out, into, *kernel = site.shape
            return rank * (into * math.prod(kernel) + out)
        return rank * (site.in_features + site.out_features) + (site.out_features if self.use_dora else 0)

    def build(self, site) -> AdapterModule:
        return LoRALinear(self, site)

    def check_tensors(self, model, tensors, where) -> None:
        lora_peft.check_ranks(self, tensors, where)

    def to_peft(self, model, adapter):
        return lora_peft.to_peft(self, adapter)

    @classmethod
    def from_peft(cls, values):
        return cls(**lora_peft.from_peft(values))


class Factor(nn.Cell):
    """A trained matrix under the name ``weight``, as PEFT's files call it."""

    def __init__(self, values: np.ndarray, dtype=ms.float32):
        super().__init__()
        self.weight = Parameter(Tensor(np.ascontiguousarray(values)).astype(dtype), name="weight")

    def construct(self):
        return self.weight


def generator_for(seed: int, path: str) -> np.random.Generator:
    """A random stream of this cell's own: values depend on its name, not on the order of building."""
    return np.random.Generator(np.random.Philox([seed, *path.encode()]))


def kaiming_uniform(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Kaiming-uniform with a = √5: uniform in ±1/√columns (He et al. 2015)."""
    bound = 1 / math.sqrt(columns)
    return generator.uniform(-bound, bound, (rows, columns)).astype(np.float32)


class LoRALinear(AdapterModule):
    """LoRA on one linear cell: Dense, Linear, or GPT-2's transposed Conv1D."""

    def __init__(self, config: LoRAConfig, site):
        super().__init__()
        rank = config.rank_at(site.path)
        generator = generator_for(config.seed, site.path)
        first = kaiming_uniform(generator, rank, site.in_features)
        if config.init == "gaussian":
            first = (generator.standard_normal(first.shape) / rank).astype(np.float32)
        self.scale = config.scale_at(site.path)
        self.transposed = site.transposed
        self.lora_A = Factor(first)
        self.lora_B = Factor(np.zeros((site.out_features, rank), np.float32))
        self.dropout = Dropout(config.dropout, site.path) if config.dropout else None
        self.product = ops.MatMul(transpose_b=True)

    def tensors(self) -> dict[str, Parameter]:
        return {"lora_A.weight": self.lora_A.weight, "lora_B.weight": self.lora_B.weight}

    def construct(self, x, y):
        flat = x.reshape(-1, x.shape[-1]).astype(ms.float32)  # (N, in)
        if self.dropout is not None:
            flat = self.dropout(flat)
        inner = self.product(flat, self.lora_A.weight) * self.scale  # (N, r)
        change = self.product(inner, self.lora_B.weight)  # (N, out)
        return y + change.reshape(y.shape).astype(y.dtype)

    def delta(self, weight: np.ndarray) -> np.ndarray:
        change = low_rank_product(self.lora_B.weight.asnumpy(), self.lora_A.weight.asnumpy(), self.scale)
        return change.T if self.transposed else change
