"""The ``adapter`` section: one class per method, told apart by ``method``.

The names of the settings are PEFT's where it has them, and the same as the arguments of ``pet.apply_lora`` and its
siblings.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pet.recipe.fields import Layers, Names, RecipePath, Section


class AdapterSection(Section):
    """Settings that every method has."""

    name: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="What the adapter is called on the model, where several can live side by side.",
    )
    load: RecipePath | None = Field(
        None,
        description="A saved adapter directory to go on training from. Settings that are given here must be its own.",
    )


class Targeted(AdapterSection):
    """Settings of the methods that wrap chosen cells."""

    targets: Names | None = Field(
        None,
        description="Cells to adapt: exact names or dotted suffixes (q_proj), globs, re:EXPRESSION, attention, mlp, or "
        "all-linear. Left out: the family's default. Every entry must match something.",
    )
    exclude: Names | None = Field(None, description="Cells to leave out although targets names them; the same forms.")
    layers: Layers | None = Field(
        None,
        description="Decoder layers to adapt, counted from 0: indices and ranges such as [0, 4-7, 20-]. Left out: all.",
    )
    modules_to_save: Names | None = Field(
        None, description="Cells that are trained in full and saved with the adapter, for example lm_head."
    )


class LoRA(Targeted):
    """LoRA (Hu et al. 2021), and DoRA (Liu et al. 2024), which learns the norm of each output row besides."""

    method: Literal["lora", "dora"] = Field(
        description="lora: W + alpha/rank · B·A. dora: the same direction with a magnitude per output of its own."
    )
    rank: int = Field(8, ge=1, le=4096, description="Rank of the update. 8 suffices for most tuning sets.")
    alpha: float = Field(
        16.0, gt=0, description="The update is scaled by alpha / rank. Twice the rank is the usual choice."
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Share of the input of A that is dropped while training.")
    rank_pattern: dict[str, int] = Field(
        default_factory=dict, description="A rank of its own for cells whose name matches: {regular expression: rank}."
    )
    alpha_pattern: dict[str, float] = Field(
        default_factory=dict, description="An alpha of its own for cells whose name matches."
    )
    use_rslora: bool = Field(
        False,
        description="Scale by alpha / sqrt(rank) (Kalajdzievski 2023); keeps high ranks from learning too slowly.",
    )
    init: Literal["default", "gaussian", "pissa", "olora"] = Field(
        "default",
        description="default: A Kaiming-uniform, B zero. gaussian: A normal with deviation 1/rank, B zero. pissa: from "
        "the largest singular vectors of W. olora: from its QR decomposition. The last two are saved as plain "
        "LoRA of twice the rank.",
    )
    bias: Literal["none", "all", "lora_only"] = Field(
        "none", description="Which biases are trained besides: none, all of the model, or those of adapted cells."
    )
    trainable_tokens: list[int] | None = Field(
        None, description="Ids whose input embedding rows are trained besides, for tokens that are new."
    )


class Prefix(AdapterSection):
    """Prefix tuning (Li & Liang 2021): learned keys and values in front of every layer's own."""

    method: Literal["prefix"] = Field(description="Learned keys and values before the first token, in PEFT's format.")
    length: int = Field(20, ge=1, le=8192, description="Virtual tokens in front of the sequence.")
    projection: bool = Field(
        False, description="Train through a two-layer network that is folded away on saving; steadier, and larger."
    )
    projection_hidden: int | None = Field(
        None, ge=1, description="Width of that network's hidden layer. Left out: the model's hidden size."
    )
    init_text: str | None = Field(
        None, min_length=1, description="Start from the keys and values that this text has in the base model."
    )


class PTuning2(AdapterSection):
    """P-Tuning v2 (Liu et al. 2021) as ChatGLM ships it: the prefix does not move the positions of real tokens."""

    method: Literal["ptuning2"] = Field(description="Learned keys and values, in ChatGLM's own file format.")
    length: int = Field(128, ge=1, le=8192, description="Virtual tokens; 128 is what ChatGLM's own script uses.")
    projection: bool = Field(False, description="Train through a two-layer network (prefix_projection).")
    projection_hidden: int | None = Field(
        None, ge=1, description="Width of that network's hidden layer. Left out: the model's hidden size."
    )
    init_text: str | None = Field(
        None, min_length=1, description="Start from the keys and values that this text has in the base model."
    )


class Prompt(AdapterSection):
    """Prompt tuning (Lester et al. 2021): learned input embeddings before the first token."""

    method: Literal["prompt"] = Field(description="Learned embeddings before the first token.")
    length: int = Field(20, ge=1, le=8192, description="Virtual tokens in front of the sequence.")
    init_text: str | None = Field(None, min_length=1, description="Start from the embeddings of this text's tokens.")


class PTuning(AdapterSection):
    """P-tuning (Liu et al. 2021): prompt embeddings that come out of a small network while training."""

    method: Literal["p_tuning"] = Field(description="Prompt embeddings that a small network produces while training.")
    length: int = Field(20, ge=1, le=8192, description="Virtual tokens in front of the sequence.")
    projection_hidden: int | None = Field(
        None, ge=1, description="Width of the network's hidden layers. Left out: the model's hidden size."
    )


class Bottleneck(Targeted):
    """Bottleneck adapters (Houlsby et al. 2019; Pfeiffer et al. 2020; He et al. 2022 for parallel)."""

    method: Literal["adapter"] = Field(description="A small two-layer network beside or after each sublayer.")
    size: int = Field(64, ge=1, le=65536, description="Width of the bottleneck; MindPet's default is 64.")
    placement: Literal["houlsby", "pfeiffer", "parallel"] = Field(
        "houlsby",
        description="houlsby: after attention and after the MLP. pfeiffer: after the MLP only. parallel: beside it.",
    )
    non_linearity: Literal["gelu", "relu", "silu", "tanh"] = Field(
        "gelu", description="Between the two projections; gelu is MindPet's default."
    )
    layer_norm: bool = Field(False, description="Normalise the bottleneck's input first, with weights of its own.")
    scaling: float = Field(1.0, gt=0, description="Factor on the adapter's output; 4 is common for parallel.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Share of the bottleneck's input dropped while training.")
    targets: Names | None = Field(
        None, description="Cells whose output is adapted. Left out: the ends of the family's sublayers, by placement."
    )


class LowRankAdapter(Targeted):
    """MindPet's low-rank adapter: a bottleneck whose two projections are products of low-rank matrices."""

    method: Literal["low_rank_adapter"] = Field(description="A bottleneck adapter with factorised projections.")
    reduction_factor: int = Field(
        4, ge=1, description="The bottleneck's width is the cell's width divided by this (at least 1)."
    )
    rank: int = Field(1, ge=1, description="Rank of each projection (low_rank_size).")
    non_linearity: Literal["gelu", "relu", "silu", "tanh"] = Field("gelu", description="Between the projections.")
    targets: Names | None = Field(
        None, description="Cells whose output is adapted. Left out: the ends of the family's sublayers."
    )


class IA3(Targeted):
    """IA3 (Liu et al. 2022): one learned factor per key, value and feed-forward channel."""

    method: Literal["ia3"] = Field(description="One learned factor per channel of the chosen cells.")
    feedforward: Names | None = Field(
        None,
        description="Which targets are scaled at their input instead of their output. Left out: the family's default.",
    )


class BitFit(Targeted):
    """BitFit (Ben Zaken et al. 2021): only biases are trained."""

    method: Literal["bitfit"] = Field(description="Train the biases alone.")
    add_missing: bool = Field(
        True, description="Give a bias, zero at first, to cells that have none. Such an adapter cannot be merged."
    )


class Full(Section):
    """No adapter: every weight is trained."""

    method: Literal["none"] = Field(description="No adapter: every weight of the model is trained.")


Adapter = Annotated[
    LoRA | Prefix | PTuning2 | Prompt | PTuning | Bottleneck | LowRankAdapter | IA3 | BitFit | Full,
    Field(discriminator="method"),
]
