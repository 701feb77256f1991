"""Keyword arguments by name, for editors. Written by tests/typing/write_keywords.py."""

from typing import TypedDict

class Bottleneck(TypedDict, total=False):
    targets: list[str] | str | None
    exclude: list[str] | str | None
    layers: list[int | str] | int | str | None
    modules_to_save: list[str] | None
    non_linearity: str
    layer_norm: bool
    scaling: float
    dropout: float
    seed: int

class BitFit(TypedDict, total=False):
    exclude: list[str] | str | None
    layers: list[int | str] | int | str | None
    modules_to_save: list[str] | None

class IA3(TypedDict, total=False):
    exclude: list[str] | str | None
    layers: list[int | str] | int | str | None
    modules_to_save: list[str] | None

class LoRA(TypedDict, total=False):
    modules_to_save: list[str] | None
    rank_pattern: dict[str, int] | None
    alpha_pattern: dict[str, float] | None
    use_rslora: bool
    use_dora: bool
    init: str
    bias: str
    trainable_tokens: list[int] | dict[str, list[int]] | None
    learning_rate_ratio: float
    seed: int

class LowRankAdapter(TypedDict, total=False):
    targets: list[str] | str | None
    exclude: list[str] | str | None
    layers: list[int | str] | int | str | None
    modules_to_save: list[str] | None
    non_linearity: str
    seed: int

class PTuning(TypedDict, total=False):
    targets: list[str] | str | None
    exclude: list[str] | str | None
    layers: list[int | str] | int | str | None
    modules_to_save: list[str] | None
    init_text: str | None
    init_ids: list[int] | None
    seed: int
    folded: bool

class Prefix(TypedDict, total=False):
    targets: list[str] | str | None
    exclude: list[str] | str | None
    layers: list[int | str] | int | str | None
    modules_to_save: list[str] | None
    projection_hidden: int | None
    init_ids: list[int] | None
    seed: int

class Prompt(TypedDict, total=False):
    targets: list[str] | str | None
    exclude: list[str] | str | None
    layers: list[int | str] | int | str | None
    modules_to_save: list[str] | None
    init_ids: list[int] | None
    seed: int

class PTuning2(TypedDict, total=False):
    targets: list[str] | str | None
    exclude: list[str] | str | None
    layers: list[int | str] | int | str | None
    modules_to_save: list[str] | None
    projection_hidden: int | None
    init_ids: list[int] | None
    seed: int
    embedding_size: int | None
