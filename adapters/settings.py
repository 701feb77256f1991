"""What the methods can be told: the one place where a setting, its bounds, its default and its meaning stand.

A class here is the data of a method; its configuration (`adapters.lora.LoRAConfig` is a `LoRA`) adds what it does. The
recipe's ``adapter`` section and its JSON schema, the checks, the keys of adapter files and the docstrings follow from
the fields, and rules ask the class attributes what a method can do. Without MindSpore, as `adapters.schema`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from adapters.patterns import pattern_value
from adapters.schema import LARGEST, Settings, token_ids
from model_zoo.errors import InputError, nearest
from model_zoo.settings import setting

SEED = "Of what starts random."
IN_FRONT = "it puts keys and values in front of the attention's own, which no weight can do"
NO_HEAD = "has no modules_to_save in PEFT's format, where a head that judges texts is kept"
NO_BIAS = "the base has no bias at this cell to add it to; BitFit with add_missing=False merges"
NO_MATRIX = "there is a non-linear function between its projections, so it is no matrix"
FROM_WEIGHTS = ("pissa", "olora", "loftq")
"""Starts of LoRA that are computed out of the weights (`adapters.initial`)."""
NON_LINEARITIES = ("gelu", "relu", "silu", "tanh")


@dataclasses.dataclass(kw_only=True)
class LoRA(Settings):
    """LoRA (Hu et al. 2021), and DoRA (Liu et al. 2024), which also learns the norm of each output row."""

    rank: int = setting(8, "Rank of the update. 8 suffices for most tuning sets.", ge=1, le=LARGEST, peft="r")
    alpha: float = setting(
        16.0, "The update is scaled by alpha / rank. Twice the rank is the usual choice.", gt=0, peft="lora_alpha"
    )
    dropout: float = setting(
        0.0, "Share of the input of A that is dropped while training.", ge=0, lt=1, peft="lora_dropout"
    )
    rank_pattern: dict[str, int] | None = setting(
        None,
        "A rank of its own for cells whose name matches: {regular expression: rank}.",
        ge=1,
        le=LARGEST,
        peft="rank_pattern",
    )
    alpha_pattern: dict[str, float] | None = setting(
        None, "An alpha of its own for cells whose name matches.", gt=0, peft="alpha_pattern"
    )
    use_rslora: bool = setting(
        False,
        "Scale by alpha / sqrt(rank) (Kalajdzievski 2023); keeps high ranks from learning too slowly.",
        peft="use_rslora",
    )
    use_dora: bool = setting(
        False, "Train a magnitude per output besides (DoRA); in a recipe, method: dora.", recipe=False, peft="use_dora"
    )
    init: str = setting(
        "default",
        "default: A Kaiming-uniform, B zero. gaussian: A normal with deviation 1/rank, B zero. pissa: from "
        "the largest singular vectors of W. olora: from its QR decomposition. These two are saved as plain "
        "LoRA of twice the rank; of a base packed in 8 or 4 bits what they leave of W is packed; embeddings start by "
        "default. loftq (Li et al. 2023): from what packing in 8 or 4 bits left out of W; merge such "
        "an adapter with --dequantize.",
        choices=("default", "gaussian", *FROM_WEIGHTS),
    )
    bias: str = setting(
        "none",
        "Which biases are trained besides: none, all of the model, or those of adapted cells.",
        choices=("none", "all", "lora_only"),
        peft="bias",
    )
    trainable_tokens: list[int] | dict[str, list[int]] | None = setting(
        None,
        "Ids whose input embedding rows are trained besides, for tokens that are new.",
        check=token_ids,
        peft="trainable_token_indices",
    )
    learning_rate_ratio: float = setting(
        1.0,
        "LoRA+ (Hayou et al. 2024): B learns this many times faster than A; in a recipe, train.lora_plus_ratio.",
        gt=0,
        recipe=False,
    )
    seed: int = setting(0, "Of A.", ge=0, recipe=False)

    method = "lora"
    variants: ClassVar[dict[str, dict[str, Any]]] = {"dora": {"use_dora": True}}
    config = "adapters.lora.LoRAConfig"
    summary = "lora: W + alpha/rank · B·A. dora: the same direction with a magnitude per output of its own."
    peft_type = "LORA"
    kinds = ("linear", "embedding", "conv")
    marks = ("lora_A.weight", "lora_embedding_A")

    def rank_at(self, path: str) -> int:
        """r of this cell."""
        return pattern_value(self.rank_pattern, path, self.rank)

    def scale_at(self, path: str) -> float:
        """The factor in front of B·A at this cell."""
        return self.scale_of(pattern_value(self.alpha_pattern, path, self.alpha), self.rank_at(path))

    def scale_of(self, alpha: float, rank: int) -> float:
        """alpha / r, or alpha / √r for rsLoRA."""
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def check_site(self, site) -> None:
        fitting = ("linear",) if self.init == "loftq" else ("linear", "embedding")
        if self.init in FROM_WEIGHTS and site.kind not in fitting:
            raise InputError(f"lora: init {self.init!r} fits linear cells; {site.path} is of kind {site.kind}")


def text_of(settings: Settings) -> str | None:
    """Which setting names a text to start from, if any."""
    return next((name for name in ("init_text", "init_ids") if getattr(settings, name) is not None), None)


HIDDEN = "Width of that network's hidden layer. Left out: the model's hidden size."
VIRTUAL = "Virtual tokens in front of the sequence."


@dataclasses.dataclass(kw_only=True)
class Prefix(Settings):
    """Prefix tuning (Li & Liang 2021): learned keys and values in front of every layer's own."""

    length: int = setting(20, VIRTUAL, ge=1, le=LARGEST)
    projection: bool = setting(
        False, "Train through a two-layer network that is folded away on saving; steadier, and larger."
    )
    projection_hidden: int | None = setting(None, HIDDEN, ge=1, le=LARGEST)
    init_text: str | None = setting(
        None, "Start from the keys and values that this text has in the base model.", min_length=1
    )
    init_ids: list[int] | None = setting(
        None, "The text's token ids, repeated or cut to the length; recipes take them from init_text.", recipe=False
    )
    seed: int = setting(0, SEED, ge=0, recipe=False)

    method = "prefix"
    aliases = ("prefixtuning", "prefix_tuning")
    config = "adapters.prefix.PrefixConfig"
    summary = "Learned keys and values before the first token, in PEFT's format."
    peft_type = "PREFIX_TUNING"
    kinds = ("attention",)
    targeted = False
    unmergeable = IN_FRONT

    @property
    def position_offset(self) -> int:
        """Real tokens start behind the prefix."""
        return self.length

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if (start := text_of(self)) and self.projection:
            yield start, f"{start} gives keys and values, which no projection can be solved for"
        for name in ("projection_hidden", "embedding_size"):
            if getattr(self, name, None) is not None and not self.projection:
                yield name, f"{name} has no effect without projection"


@dataclasses.dataclass(kw_only=True)
class PTuning2(Prefix):
    """P-Tuning v2 (Liu et al. 2021) as ChatGLM ships it: the prefix does not move the positions of real tokens."""

    length: int = setting(
        128, "Virtual tokens; 128 is what ChatGLM's own script uses.", ge=1, le=LARGEST, peft="pre_seq_len"
    )
    projection: bool = setting(
        False, "Train through a two-layer network (prefix_projection).", peft="prefix_projection"
    )
    projection_hidden: int | None = setting(None, HIDDEN, ge=1, le=LARGEST, peft="encoder_hidden_size")
    embedding_size: int | None = setting(
        None,
        "Width of the network's input. Left out: ChatGLM's, which is the hidden size where every head has keys of its "
        "own (ChatGLM-6B), and all layers' keys and values together where they are shared (ChatGLM2-6B).",
        ge=1,
        recipe=False,
        peft="embedding_size",
    )

    method = "ptuning2"
    aliases = ("ptuning_v2", "p-tuning_v2")
    config = "adapters.ptuning.PTuningV2Config"
    summary = "Learned keys and values, in ChatGLM's own file format."
    peft_type = "PTUNING_V2"

    @property
    def position_offset(self) -> int:
        """Real tokens keep their positions."""
        return 0


@dataclasses.dataclass(kw_only=True)
class Prompt(Settings):
    """Prompt tuning (Lester et al. 2021): learned input embeddings before the first token."""

    length: int = setting(20, VIRTUAL, ge=1, le=LARGEST)
    init_text: str | None = setting(None, "Start from the embeddings of this text's tokens.", min_length=1)
    init_ids: list[int] | None = setting(
        None, "The text's token ids, repeated or cut to the length. Left out: drawn from the vocabulary.", recipe=False
    )
    seed: int = setting(0, SEED, ge=0, recipe=False)

    method = "prompt"
    aliases = ("prompt_tuning",)
    config = "adapters.prompt.PromptConfig"
    summary = "Learned embeddings before the first token."
    peft_type = "PROMPT_TUNING"
    kinds = ("embedding", "model")
    targeted = False
    unmergeable = "its embeddings stand in front of the input, which no weight can do"

    @property
    def virtual_tokens(self) -> int:
        return self.length

    @property
    def position_offset(self) -> int:
        return self.length


@dataclasses.dataclass(kw_only=True)
class PTuning(Prompt):
    """P-tuning (Liu et al. 2021): prompt embeddings that come out of a small network while training."""

    init_text: str | None = setting(None, "Not for this method: its embeddings come out of a network.", recipe=False)
    projection_hidden: int | None = setting(
        None, "Width of the network's hidden layers. Left out: the model's hidden size.", ge=1, le=LARGEST
    )
    folded: bool = setting(False, "The embeddings alone, without the network: what a file holds.", recipe=False)

    method = "p_tuning"
    aliases = ()
    config = "adapters.prompt.PTuningConfig"
    summary = "Prompt embeddings that a small network produces while training."
    peft_type = "P_TUNING"

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if start := text_of(self):
            yield start, f"{start} gives embeddings, which no network can be solved for"


@dataclasses.dataclass(kw_only=True)
class Bottleneck(Settings):
    """Bottleneck adapters (Houlsby et al. 2019; Pfeiffer et al. 2020; He et al. 2022 for parallel)."""

    targets: list[str] | str | None = setting(
        None, "Cells whose output is adapted. Left out: the ends of the family's sublayers, by placement."
    )
    size: int = setting(64, "Width of the bottleneck; MindPet's default is 64.", ge=1, le=LARGEST)
    placement: str = setting(
        "houlsby",
        "houlsby: after attention and after the MLP. pfeiffer: after the MLP only. parallel: beside it.",
        choices=("houlsby", "pfeiffer", "parallel"),
    )
    non_linearity: str = setting(
        "gelu", "Between the two projections; gelu is MindPet's default.", choices=NON_LINEARITIES
    )
    layer_norm: bool = setting(False, "Normalise the bottleneck's input first, with weights of its own.")
    scaling: float = setting(1.0, "Factor on the adapter's output; 4 is common for parallel.", gt=0)
    dropout: float = setting(0.0, "Share of the bottleneck's input dropped while training.", ge=0, lt=1)
    seed: int = setting(0, SEED, ge=0, recipe=False)

    method = "adapter"
    config = "adapters.bottleneck.BottleneckConfig"
    summary = "A small two-layer network beside or after each sublayer."
    peft_type = "BOTTLENECK"
    own_format = True
    kinds = ("linear", "sublayer")
    unmergeable = NO_MATRIX

    def family_targets(self, family):
        if family is None:
            return None
        return family.row if self.placement == "houlsby" else family.row[1:]


@dataclasses.dataclass(kw_only=True)
class LowRankAdapter(Settings):
    """MindPet's low-rank adapter: a bottleneck whose two projections are products of low-rank matrices."""

    targets: list[str] | str | None = setting(
        None, "Cells whose output is adapted. Left out: the ends of the family's sublayers."
    )
    reduction_factor: int = setting(4, "The bottleneck's width is the cell's width divided by this (at least 1).", ge=1)
    rank: int = setting(1, "Rank of each projection (low_rank_size).", ge=1, le=LARGEST)
    non_linearity: str = setting("gelu", "Between the projections.", choices=NON_LINEARITIES)
    seed: int = setting(0, SEED, ge=0, recipe=False)

    method = "low_rank_adapter"
    aliases = ("lowrankadapter",)
    config = "adapters.low_rank_adapter.LowRankAdapterConfig"
    summary = "A bottleneck adapter with factorised projections."
    peft_type = "LOW_RANK_ADAPTER"
    own_format = True
    unmergeable = NO_MATRIX

    def family_targets(self, family):
        return family.row if family is not None else None

    def width_at(self, site) -> int:
        """H/k at this cell."""
        return max(1, site.out_features // self.reduction_factor)

    def check_site(self, site) -> None:
        if self.rank > (width := self.width_at(site)):
            raise InputError(f"{self.method}: rank {self.rank} is above the bottleneck's width {width} at {site.path}")


@dataclasses.dataclass(kw_only=True)
class IA3(Settings):
    """IA3 (Liu et al. 2022): one learned factor per key, value and feed-forward channel."""

    feedforward: list[str] | str | None = setting(
        None, "Which targets are scaled at their input instead of their output. Left out: the family's default."
    )

    method = "ia3"
    config = "adapters.ia3.IA3Config"
    summary = "One learned factor per channel of the chosen cells."
    peft_type = "IA3"
    marks = ("ia3_l",)

    def family_targets(self, family):
        return family.ia3_targets if family is not None else None


@dataclasses.dataclass(kw_only=True)
class BitFit(Settings):
    """BitFit (Ben Zaken et al. 2021): only biases are trained."""

    add_missing: bool = setting(
        True, "Give a bias, zero at first, to cells that have none. Such an adapter cannot be merged."
    )

    method = "bitfit"
    config = "adapters.bitfit.BitFitConfig"
    summary = "Train the biases alone."
    peft_type = "BITFIT"
    own_format = True

    @property
    def bias(self) -> str:
        """Which biases are trained: all of the model, or where cells are named, theirs."""
        return "lora_only" if self.targets or self.exclude or self.layers is not None else "all"

    def family_targets(self, family):
        return ("all-linear",)


@dataclasses.dataclass(kw_only=True)
class Tokens(Settings):
    """Trained rows of embeddings alone: PEFT's TRAINABLE_TOKENS. `LoRA.trainable_tokens` trains them beside LoRA."""

    trainable_tokens: list[int] = setting(
        dataclasses.MISSING, "The ids, for every embedding that targets mean.", check=token_ids
    )

    method = "trainable_tokens"
    peft_type = "TRAINABLE_TOKENS"
    kinds = ("embedding", "linear")

    def fixed_sites(self, model) -> list:
        return []


SETTINGS: tuple[type[Settings], ...] = (
    *(LoRA, Prefix, PTuning2, Prompt, PTuning),
    *(Bottleneck, LowRankAdapter, IA3, BitFit),
)
"""The methods, in the order in which they are listed."""


def named(name: Any, aliases: bool = False) -> type[Settings] | None:
    """The method of this name in recipes, or with `aliases` of this name in other systems."""
    return next((cls for cls in SETTINGS if name in (*cls.names(), *(cls.aliases if aliases else ()))), None)


def method_and_settings(values: Mapping[str, Any]) -> tuple[type[Settings] | None, dict[str, Any]]:
    """The method that a mapping such as ``{"method": "dora", "rank": 8}`` names, and its settings; None for none.

    Raises:
        InputError: an unknown method, or settings for none.
    """
    settings = dict(values)
    name = settings.pop("method", None)
    method = named(name)
    if method is not None:
        return method, {**settings, **method.variants.get(name, {})}
    if name != "none":
        known = [name for cls in SETTINGS for name in cls.names()]
        raise InputError(f"adapter: method {name!r} is unknown{nearest(name, known)}")
    InputError.raise_any(f"{key}: has no effect with method none" for key in settings)
    return None, {}
