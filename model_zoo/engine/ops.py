"""The table of operations: everything that is known of a kernel beside its C function of the same name.

A row's signature gives shapes, inputs → outputs, as in ``N K; M K -> N M``: a letter is a size, ``h*d`` and ``a+b`` are
computed from several, ``*`` is all axes in front, ``:int`` marks int32, ``:stored`` a weight that may be stored in
fewer bits than float32, ``:low`` what may lie in bfloat16 between products of such factors, ``?`` what may be left out,
and ``{eps}`` a number that is the same in every run. N is tokens
(or rows of them), B and S are the batch and the sequence, h and g query and key heads.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np

from model_zoo.engine import plain, plain_attention, plain_products, plain_rows, vjp

STORED = (ms.bfloat16, ms.float16)
"""What a frozen weight may be stored in beside float32."""


@dataclasses.dataclass(frozen=True)
class Field:
    """An input or output in a signature.

    Attributes:
        axes: of each, its factors or terms; empty for a constant.
        constant: the name of a number, or "".
        dtype: float32 or int32.
        stored: whether it is a weight that may be in one of `STORED` too.
        low: whether it may lie in bfloat16.
    """

    axes: tuple[str, ...]
    constant: str
    dtype: type
    optional: bool
    stored: bool = False
    low: bool = False

    @classmethod
    def parse(cls, text: str) -> Field:
        text, optional = text.strip().removesuffix("?"), text.strip().endswith("?")
        bare = text.strip("{}")
        dtype = np.int32 if bare.endswith(":int") else np.float32
        stored, low = bare.endswith(":stored"), bare.endswith(":low")
        bare = bare.partition(":")[0]
        constant = bare if text.startswith("{") else ""
        return cls(() if constant else tuple(bare.split()), constant, dtype, optional, stored, low)

    @property
    def floats(self) -> bool:
        """Whether it is a float32 tensor."""
        return not self.constant and self.dtype is np.float32

    def bind(self, shape: Sequence[int] | None, sizes: dict) -> None:
        """Adds the sizes that a tensor's shape gives to those that are known."""
        if shape is None or self.constant:
            return
        axes, shape = self.axes, tuple(shape)
        if axes[0] == "*":
            own = len(axes) - 1
            sizes.setdefault("*", shape[: len(shape) - own])
            axes, shape = axes[1:], shape[len(shape) - own :]
        if len(axes) != len(shape):
            return
        for axis, size in zip(axes, shape, strict=True):
            factors = axis.split("*")
            unknown = [name for name in factors if not name.isdigit() and name not in sizes]
            if len(unknown) == 1:
                rest = math.prod(int(name) if name.isdigit() else sizes[name] for name in factors if name != unknown[0])
                sizes[unknown[0]] = size // max(rest, 1)

    def shape(self, sizes: dict) -> tuple[int, ...]:
        """The shape for these sizes. Raises KeyError where one is unknown."""
        found: tuple[int, ...] = ()
        for axis in self.axes:
            if axis == "*":
                found += sizes["*"]
            elif "+" in axis:
                found += (sum(sizes[name] for name in axis.split("+")),)
            else:
                found += (math.prod(int(name) if name.isdigit() else sizes[name] for name in axis.split("*")),)
        return found


@dataclasses.dataclass(frozen=True)
class Op:
    """A row of the table.

    Attributes:
        name: of the C function.
        signature: its inputs and outputs, see above.
        vjp: its gradient rule (`model_zoo.engine.vjp`), where it has one.
        aliases: inputs in whose buffer its first output may lie, the best first.
        product: whether it is a matrix product that may run at once with others: ``sets`` or ``adds`` to its output.
        plain: numbers by name → a function of the tensors in MindSpore's operators that gives the first output: what is
            computed without a compiler, and what tests hold kernel and rule to.
    """

    name: str
    signature: str
    vjp: Callable | None = None
    aliases: tuple[int, ...] = ()
    product: str = ""
    plain: Callable | None = None

    @functools.cached_property
    def inputs(self) -> tuple[Field, ...]:
        return tuple(Field.parse(text) for text in self.signature.split("->")[0].split(";"))

    @functools.cached_property
    def outputs(self) -> tuple[Field, ...]:
        return tuple(Field.parse(text) for text in self.signature.split("->")[1].split(";"))

    def fields(self, count: int) -> tuple[Field, ...]:
        """Those of its inputs and outputs, where it has so many inputs."""
        optional = [field for field in self.inputs if field.optional]
        out = optional[len(optional) + count - len(self.inputs) :]  # which ones are left out makes no difference
        return (*(field for field in self.inputs if not any(field is one for one in out)), *self.outputs)

    def shapes(self, inputs: Sequence[Sequence[int] | None], **sizes: int) -> list[tuple[int, ...]]:
        """The shapes of the outputs, given those of the inputs (None where unknown) and other sizes."""
        for _ in range(2):  # what a product of sizes leaves open, a later input may tell
            for field, shape in zip(self.inputs, inputs, strict=False):
                field.bind(shape, sizes)
        return [field.shape(sizes) for field in self.outputs]


ROTATED = "B h S d:low"
SCORES, PINNED = "{scale}; {window:int}; {cap}", "{pinned:int}"
KEPT = f"L d; L d; B 1:int; B C:int; {SCORES}; {PINNED}"
ATTENTION = f"B h S d; B g T d; B g T d; B S:int; B S:int; B T:int; {SCORES}"
LOW_ATTENTION = ATTENTION.replace(" d;", " d:low;")
PREFIXED = f"B h S d; B g S d; B g S d; B S:int; B S:int; B S:int; {SCORES}; T 2*g*d"
FACTOR = "O I:stored; R K; M R; M; M; {scale}; {transposed:int}; {taken:int}; R K?; M R?"
DORA = f"N M:low; {FACTOR}; M?"
CHOICE, ROWS_OF = "{chosen:int}; {normed:int}", "N chosen:int; N chosen:int; N chosen:int"
SUMMED = "N*k H:low; N E; N k:int; N k:int"
HEADS, TABLES = "B*S h*d", "b 1 S w; b 1 S w"

ROWS = (
    Op("rms_norm", "N H; H; {eps}; {offset} -> N H:low; N 1", vjp.rms_norm, plain=plain.rms_norm),
    Op("rms_norm_gradient", "N H; H; {offset}; N 1; N H:low -> N H"),
    Op("rms_norm_gradient_added", "N H; H; {offset}; N 1; N H:low; N H -> N H", aliases=(5,)),
    Op("rms_norm_weight_gradient", "N H; N 1; N H:low -> H"),
    Op("layer_norm", "N H; H; H; {eps} -> N H:low; N 1; N 1", vjp.layer_norm, plain=plain.layer_norm),
    Op("layer_norm_gradient", "N H; H; N 1; N 1; N H:low -> N H"),
    Op("layer_norm_gradient_added", "N H; H; N 1; N 1; N H:low; N H -> N H", aliases=(5,)),
    Op("layer_norm_weight_gradient", "N H; N 1; N 1; N H:low -> H"),
    Op(
        "product_of_rows",
        "N K:low; M K:stored -> N M",
        vjp.matrix_product,
        product="sets",
        plain=plain.product_of_rows,
    ),
    Op("product_of_rows_added", "N K:low; M K:stored -> N M:low", product="adds"),
    Op("product_of_rows_onto", "N K:low; M K:stored; N M:low -> N M:low", aliases=(2,), product="adds"),
    Op("plain_product", "N K:low; K M:stored -> N M", vjp.matrix_product, product="sets", plain=plain.plain_product),
    Op("plain_product_added", "N K:low; K M:stored -> N M:low", product="adds"),
    Op("product_of_columns", "N K:low; N M:low -> K M"),
    Op(
        "product_of_rows_bf16",
        "N K:low; M K:stored -> N M:low",
        vjp.matrix_product,
        product="sets",
        plain=functools.partial(plain_products.rounded, plain.product_of_rows),
    ),
    Op("product_of_rows_bf16_added", "N K:low; M K:stored -> N M:low", product="adds"),
    Op(
        "plain_product_bf16",
        "N K:low; K M:stored -> N M:low",
        vjp.matrix_product,
        product="sets",
        plain=functools.partial(plain_products.rounded, plain.plain_product),
    ),
    Op("plain_product_bf16_added", "N K:low; K M:stored -> N M:low", product="adds"),
    Op("product_of_columns_bf16", "N K:low; N M:low -> K M"),
    Op("rotary_table", "b S:int; w; {scale} -> b 1 S w; b 1 S w", plain=plain.rotary_table),
    Op("rows_of", "V H:stored; *:int; {padding:int} -> * H", vjp.rows_of, plain=plain_rows.rows_of),
    Op("rows_of_gradient", "V H:stored; *:int; {padding:int}; * H -> V H"),
    Op("low_rank", "N M; N K; R K; M R; {scale} -> N M; N R", vjp.low_rank, plain=plain.low_rank),
    Op("low_rank_inner", "N K:low; R K; {scale} -> N R"),
    Op("low_rank_factors", "M R; {scale}; N K:low; N R; N M:low -> N R; R K; M R"),
    Op("dora", f"{DORA} -> N M:low", vjp.dora, plain=plain.dora),
    Op("dora_gradient", f"{DORA}; N M:low -> N M:low; M"),
    Op("dora_factor", f"{FACTOR} -> M"),
    Op("dora_rescaled", "N M:low; M; M? -> N M:low", aliases=(0,)),
    Op("split_heads", f"{HEADS}:low; B S:int -> B h S d:low", vjp.split_heads, plain=plain.split_heads),
    Op("join_heads", f"B h S d:low; B S:int -> {HEADS}:low"),
    Op("rotary_half", f"{ROTATED}; {TABLES} -> {ROTATED}", vjp.rotary, plain=functools.partial(plain.rotary, True)),
    Op("rotary_half_back", f"{ROTATED}; {TABLES} -> {ROTATED}"),
    Op(
        "rotary_interleaved",
        f"{ROTATED}; {TABLES} -> {ROTATED}",
        vjp.rotary,
        plain=functools.partial(plain.rotary, False),
    ),
    Op("rotary_interleaved_back", f"{ROTATED}; {TABLES} -> {ROTATED}"),
    Op(
        "split_rotary_half",
        f"{HEADS}:low; {TABLES}; B S:int -> {ROTATED}",
        vjp.rotary,
        plain=functools.partial(plain.split_rotary, True),
    ),
    Op("split_rotary_half_back", f"{ROTATED}; {TABLES}; B S:int -> {HEADS}:low"),
    Op(
        "split_rotary_interleaved",
        f"{HEADS}:low; {TABLES}; B S:int -> {ROTATED}",
        vjp.rotary,
        plain=functools.partial(plain.split_rotary, False),
    ),
    Op("split_rotary_interleaved_back", f"{ROTATED}; {TABLES}; B S:int -> {HEADS}:low"),
    Op("attention", f"{ATTENTION} -> {HEADS}; B h S 2", vjp.attention, plain=plain_attention.joined),
    Op("attention_gradient", f"{ATTENTION}; {HEADS}; B h S 2; {HEADS} -> B h S d; B g T d; B g T d"),
    Op(
        "attention_prefixed",
        f"{PREFIXED} -> {HEADS}; B h S 2",
        vjp.attention_prefixed,
        plain=plain_attention.joined_prefixed,
    ),
    Op("attention_prefixed_gradient", f"{PREFIXED}; {HEADS}; B h S 2; {HEADS} -> B h S d; B g S d; B g S d; T 2*g*d"),
    Op("attention_bf16", f"{LOW_ATTENTION} -> {HEADS}:low; B h S 2", vjp.attention),
    Op(
        "attention_bf16_gradient",
        f"{LOW_ATTENTION}; {HEADS}:low; B h S 2; {HEADS}:low -> B h S d; B g T d; B g T d",
    ),
    Op("keep_columns", f"B g S d; {PINNED} -> L d"),
    Op("token_attention", f"B h 1 d; B g T d; B g T d; {KEPT} -> B h*d"),
    Op("token_attention_prefixed", f"B h 1 d; B g 1 d; B g 1 d; {KEPT}; T 2*g*d -> B h*d"),
    Op("swiglu", "*:low; *:low -> *:low", vjp.elementwise, plain=plain.swiglu),
    Op("swiglu_gradient", "*:low; *:low; *:low -> *:low; *:low", aliases=(2,)),
    Op("geglu", "*:low; *:low -> *:low", vjp.elementwise, plain=plain.geglu),
    Op("geglu_gradient", "*:low; *:low; *:low -> *:low; *:low", aliases=(2,)),
    Op("gelu_tanh", "*:low -> *:low", vjp.elementwise, plain=plain.gelu_tanh),
    Op("gelu_tanh_gradient", "*:low; *:low -> *:low", aliases=(1,)),
    Op("gelu", "*:low -> *:low", vjp.elementwise, plain=plain.gelu),
    Op("gelu_gradient", "*:low; *:low -> *:low", aliases=(1,)),
    Op("relu", "*:low -> *:low", vjp.elementwise, plain=plain.relu),
    Op("relu_gradient", "*:low; *:low -> *:low", aliases=(1,)),
    Op("silu", "*:low -> *:low", vjp.elementwise, plain=plain.silu),
    Op("silu_gradient", "*:low; *:low -> *:low", aliases=(1,)),
    Op("hyperbolic_tangent", "*:low -> *:low", vjp.elementwise, plain=plain.hyperbolic_tangent),
    Op("hyperbolic_tangent_gradient", "*:low; *:low -> *:low", aliases=(1,)),
    Op("add", "*:low; *:low; {factor} -> *", vjp.add, aliases=(1, 0), plain=plain.add),
    Op("scale", "*:low; {factor} -> *:low", vjp.scale, aliases=(0,), plain=plain.scale),
    Op("scale_columns", "N H:low; H -> N H:low", vjp.scale_columns, aliases=(0,), plain=plain.scale_columns),
    Op("scale_columns_gradient", "N H:low; N H:low -> H"),
    Op("scale_rows", "N H:low; N 1 -> N H:low", vjp.scale_rows, aliases=(0,), plain=plain.scale_columns),
    Op("scale_rows_gradient", "N H:low; N H:low -> N 1"),
    Op("chosen_shares", f"N E; {CHOICE} -> N E; {ROWS_OF}", vjp.chosen_shares, plain=plain.chosen_shares),
    Op("chosen_shares_gradient", f"N E; {CHOICE}; N E; N E -> N E", aliases=(4,)),
    Op("rows_to_experts", "N H:low; N k:int; N k:int -> N*k H:low", vjp.rows_to_experts, plain=plain.rows_to_experts),
    Op("rows_from_experts", "N*k H:low; N k:int -> N H:low"),
    Op("sum_by_share", f"{SUMMED} -> N H:low", vjp.sum_by_share, plain=plain.sum_by_share),
    Op("sum_by_share_gradient", f"{SUMMED}; N H:low -> N*k H:low; N E", aliases=(0,)),
    Op("rows_of_some", "N k:int; N k:int; E:int -> N k:int"),
    Op(
        "dropout",
        "*:low; 2:int; {site:int}; {threshold:int}; {factor}; {members:int}; {place:int}; R 1:int?; T W? -> *:low",
        vjp.dropout,
        aliases=(0,),
    ),
    Op("add_bias", "N H:low; H -> N H:low", vjp.add_bias, aliases=(0,), plain=plain.add_bias),
    Op("column_sum", "N H:low -> H"),
    Op("take_columns", "* H:low; {first:int} -> * w:low", vjp.take_columns, plain=plain.take_columns),
    Op("put_columns", "* w:low; {first:int} -> * H:low"),
    Op("join_columns", "* a:low; * b:low -> * a+b:low", vjp.join_columns, plain=plain.join_columns),
)

COLLECTIVES = (
    Op("copy_to_group", "*:low -> *:low", vjp.copy_to_group),
    Op("sum_over_group", "* -> *", vjp.sum_over_group),
)
"""What a group of processes does together: no kernels, but where `model_zoo.engine.lowering.Pieces` cuts a program."""

OPS = {op.name: op for op in (*ROWS, *COLLECTIVES)}
"""Every operation of a program, by name."""
