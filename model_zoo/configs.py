"""What every family's configuration file says: the base of the configurations in `model_zoo.families`.

A configuration knows the fields of config.json and what may stand there, the sizes, and the shape of every tensor.
Cells are made from these shapes, checkpoints and memory are held to them. Nothing here imports MindSpore: a model's
sizes are counted, and a wrong file refused, before it is needed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from model_zoo.atomic import write_json
from model_zoo.errors import InputError, shown
from model_zoo.field_types import MAY_BE_0, Count, Share, TokenId, check_types, field_kinds
from model_zoo.labels import SCORE, Labels, as_classifier, is_classifier

if TYPE_CHECKING:  # checking a recipe does without it
    import numpy as np

OTHER_FIELDS = {
    "bos_token_id": TokenId | list[TokenId],
    "eos_token_id": TokenId | list[TokenId],
    "pad_token_id": TokenId,
    "original_max_position_embeddings": int,
    "sliding_window": Count,
    "sliding_window_pattern": int,
    "use_sliding_window": bool,
    "max_window_layers": TokenId,
    "layer_types": list,
    "is_causal": bool,
    "per_layer_config": dict,
    "attn_logit_softcapping": float,
    "final_logit_softcapping": float,
    "pre_seq_len": TokenId,
    "partial_rotary_factor": float,
    "initializer_range": Share,
}
"""Fields that are read out of `Config.extra`."""

MOST = {"layers": 1 << 14, "head_dim": 1 << 13}  # more is a damaged file, and takes memory before it is read

Shapes = dict[str, tuple[int, ...]]


class Dims(NamedTuple):
    """A model's sizes under one name each, whatever its family calls them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int


class CellSpec(NamedTuple):
    """A cell with weights.

    Attributes:
        kind: of cell, a key of `model_zoo.factory.KINDS`.
        weight: shape of its weight as it is stored.
        bias: whether there is one.
        eps: of a norm.
        offset: of an RMS norm: what is added to its weight.
        scale: of an embedding: what its rows are multiplied by.
        padding: of an embedding: `Config.padding_row`.
    """

    kind: str
    weight: tuple[int, ...]
    bias: bool = False
    eps: float = 0.0
    offset: float = 0.0
    scale: float = 1.0
    padding: int = -1

    @property
    def transposed(self) -> bool:
        """Whether the weight is stored ``(in, out)``."""
        return self.kind == "conv1d"

    @property
    def shapes(self) -> Shapes:
        """{``weight`` or ``bias``: shape}."""
        out = self.weight[1 if self.transposed else 0]
        return {"weight": self.weight, "bias": (out,)} if self.bias else {"weight": self.weight}


def embedding(rows: int, width: int, scale: float = 1.0, padding: int = -1) -> CellSpec:
    """A table with a row per id."""
    return CellSpec("embedding", (rows, width), scale=scale, padding=padding)


def linear(out: int, width: int, bias: bool = False) -> CellSpec:
    """A projection whose weight is stored ``(out, in)``."""
    return CellSpec("linear", (out, width), bias)


def conv1d(width: int, out: int) -> CellSpec:
    """A projection whose weight is stored ``(in, out)``, with a bias."""
    return CellSpec("conv1d", (width, out), True)


def rms_norm(width: int, eps: float, offset: float = 0.0) -> CellSpec:
    return CellSpec("rms_norm", (width,), False, eps, offset)


def layer_norm(width: int, eps: float) -> CellSpec:
    return CellSpec("layer_norm", (width,), True, eps)


def causal_document(config, ids) -> tuple[np.ndarray, np.ndarray]:
    """Positions 0, 1, 2 … and, for each token, itself and what came before."""
    import numpy as np

    positions = np.arange(len(ids), dtype=np.int32)
    return positions, positions + 1


def next_position(position: np.ndarray) -> np.ndarray:
    """The position after this one."""
    return position + 1


@dataclasses.dataclass(frozen=True)
class Family:
    """Whatever differs from family to family, for those who must know: matching, saving, sharding, prompting.

    Attributes:
        name: what the family is called in recipes and messages.
        layout: name of its tensor names, where one family is published under several.
        layers: path of the decoder layer list.
        attention_core: last name of the attention cells within a layer, relative to the layer.
        embedding: path of the token embedding.
        positions: path of the table of learned positions; empty where positions are rotations.
        head: path of the output projection.
        default_targets: Dense names that LoRA goes to when none are given.
        attention, mlp: names of the Dense in the attention and the feed-forward sublayer; the last one's result is the
            sublayer's output.
        ia3_targets: IA3's default targets.
        tied: tensor names in a file that are another parameter of the model.
        saved_tied: those of `tied` that a published checkpoint holds all the same.
        ignored_tensors: regular expressions of buffers that published files carry and nobody reads.
        gated: whether the feed-forward's activation has two inputs.
        routers: names of the Dense that choose among experts: neither packed nor adapted unless they are named.
        fused: for a Dense that holds several projections, what its output rows are: ``heads`` (per head q|k|v),
            ``qkv`` (blocks q | k | v) or ``gate_up`` (two halves).
        document_layout: ``(config, ids) → (position_ids, end)`` of one unpadded document, on the host.
        advance: position ids ``(…,)`` of a token → those of the next one, on the host.
    """

    name: str
    layout: str
    layers: str
    attention_core: str
    embedding: str
    head: str
    default_targets: tuple[str, ...]
    attention: tuple[str, ...]
    mlp: tuple[str, ...]
    ia3_targets: tuple[str, ...]
    positions: str = ""
    gated: bool = False
    routers: tuple[str, ...] = ()
    fused: dict[str, str] = dataclasses.field(default_factory=dict)
    tied: dict[str, str] = dataclasses.field(default_factory=dict)
    saved_tied: tuple[str, ...] = ()
    ignored_tensors: tuple[str, ...] = ()
    document_layout: Callable[[Any, np.ndarray], tuple[np.ndarray, np.ndarray]] = causal_document
    advance: Callable[[np.ndarray], np.ndarray] = next_position

    @property
    def embeddings(self) -> tuple[str, ...]:
        """The tables in front of the layers: of tokens and, where they are learned, of positions."""
        return (self.embedding, self.positions) if self.positions else (self.embedding,)

    @property
    def row(self) -> tuple[str, str]:
        """The Dense that give the sublayers' outputs: split by input columns in tensor parallelism."""
        return self.attention[-1], self.mlp[-1]

    @property
    def column(self) -> tuple[str, ...]:
        """The Dense before these: split by output rows."""
        return self.attention[:-1] + self.mlp[:-1]


@dataclasses.dataclass
class Config:
    """A config.json: the fields this library reads, and the rest as it was (`extra`), to be written back.

    A family's module gives a sub-class as ``CONFIG``.

    Attributes:
        family: its table.
        model: where its model class is, as ``module:class``; imported when a model is built.
        architectures: {model_type: the class that transformers has for it}.
        marks: where several families have one model_type, the keys of which one must be set.
        sized_by: the keys that a config.json must have for a model to be counted by it.
        feed_forwards: how many of its own width a layer computes.
        logit_cap: logits become ``cap·tanh(logit/cap)``; 0 for as they are.
        bounded_positions: whether the context's positions are all that can be computed.
        left_out: what of the published models is not opened.
        dropouts: {field of config.json: the place of ``train.base_dropout`` that it means, "" for none} of the shares
            that the family's own implementation drops while training.
        assumed_dropout: such a share where config.json leaves it out.
    """

    family: ClassVar[Family]
    model: ClassVar[str]
    architectures: ClassVar[dict[str, str]]
    marks: ClassVar[tuple[str, ...]] = ()
    sized_by: ClassVar[tuple[str, ...]] = ()
    feed_forwards: ClassVar[int] = 1
    logit_cap: ClassVar[float] = 0.0
    bounded_positions: ClassVar[bool] = False
    left_out: ClassVar[str] = ""
    dropouts: ClassVar[Mapping[str, str]] = {}
    assumed_dropout: ClassVar[float] = 0.0
    extra: dict = dataclasses.field(default_factory=dict, kw_only=True)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A family's own fields."""

    @property
    def dims(self) -> Dims:
        """The model's sizes."""
        raise NotImplementedError

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each layer: how many keys a query sees, itself among them; 0 for all."""
        return (0,) * self.dims.layers

    @property
    def padding_row(self) -> int:
        """The row of the embedding that no lookup trains, whatever token it is: of ``pad_token_id`` where the family's
        own implementation gives the table a ``padding_idx``; -1 for none. A tied head trains it."""
        return -1

    @property
    def reads_window(self) -> bool:
        """Whether the layers of transformers' model heed ``sliding_window`` where it counts."""
        return True

    @property
    def cached_window(self) -> int:
        """How many columns an answer over a cache sees, itself among them; 0 for as many as its layers do.

        transformers' cache heeds ``sliding_window`` in every family, also where the layers pass over it.
        """
        kinds = self.extra.get("layer_types")
        listed = kinds is None or {*kinds} == {"sliding_attention"}
        return self.extra.get("sliding_window") or 0 if listed and not self.reads_window else 0

    def tensors(self) -> dict[str, CellSpec]:
        """{path: cell} of all cells with weights of a language model, ``*`` for a layer's number; a tied head is not
        among them."""
        raise NotImplementedError

    @property
    def labels(self) -> Labels | None:
        """What a classifier's numbers mean; None for a language model."""
        return Labels.of(self.extra)

    def as_classifier(self, labels: Labels) -> Config:
        """The same with a classifier's head in the place of the language model's.

        Raises:
            InputError: transformers has no such model.
        """
        other = copy.copy(self)
        other.extra = as_classifier(self.extra, labels, self.architectures[self.model_type])
        return other

    def own_tensors(self) -> dict[str, CellSpec]:
        """`tensors`, with a classifier's own head."""
        tensors, labels = self.tensors(), self.labels
        if labels is None:
            return tensors
        others = {path: cell for path, cell in tensors.items() if path != self.family.head}
        return {**others, SCORE: linear(len(labels.names), self.dims.hidden)}

    def cells(self) -> dict[str, CellSpec]:
        """The same with every layer spelled out."""
        found = {}
        for layered, group in groupby(self.own_tensors().items(), lambda item: "*" in item[0]):
            group = list(group)
            for index in range(self.dims.layers if layered else 1):
                found.update((path.replace("*", str(index)), cell) for path, cell in group)
        return found

    def shapes(self) -> Shapes:
        """{tensor name: shape} of the parameters, under their published names."""
        return {f"{path}.{key}": shape for path, cell in self.cells().items() for key, shape in cell.shapes.items()}

    def turned(self) -> set[str]:
        """The names of the weights that are stored ``(in, out)``."""
        return {f"{path}.weight" for path, cell in self.cells().items() if cell.transposed}

    def tied_head(self) -> tuple[str, str] | None:
        """(name of the head's weight, name of the embedding that it is); None where the head has its own weight."""
        if self.labels is not None:
            return None
        tensors = self.tensors()
        return next((pair for pair in self.family.tied.items() if pair[0].rpartition(".")[0] not in tensors), None)

    @property
    def alone(self) -> Config:
        """The configuration of a checkpoint of what is opened, with the same tensors in the same order."""
        return self

    @classmethod
    def flat(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """A config.json's dictionary with all fields beside one another."""
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]):
        """Reads a config.json's dictionary. Raises InputError for a value that the family does not support."""
        values = cls.flat(values)
        cls.check_types(values)
        names = {field.name for field in dataclasses.fields(cls)} - {"extra"}
        known = {key: value for key, value in values.items() if key in names and value is not None}
        config = cls(**known, extra={key: value for key, value in values.items() if key not in known})
        config.check_common()
        config.check()
        for name, most in MOST.items():
            if (number := getattr(config.dims, name)) > most:
                raise InputError(f"config.json: {name} of {number}; a model has at most {most}")
        return config

    @classmethod
    def published(cls, architecture: str | None = None, **values: Any) -> dict[str, Any]:
        """The config.json of a published model: what is said of it, and the fields' defaults."""
        defaults = {field.name: field.default for field in dataclasses.fields(cls) if field.name != "extra"}
        values = {**{name: value for name, value in defaults.items() if value is not None}, **values}
        return {"architectures": [architecture or cls.architectures[values["model_type"]]], **values}

    @classmethod
    def check_types(cls, values: Mapping[str, Any]) -> None:
        """Raises InputError for every value that is not of its field's type, sizes below 1 among them."""
        check_types("config.json", values, {**OTHER_FIELDS, **field_kinds(cls), **MAY_BE_0})

    def to_dict(self) -> dict[str, Any]:
        """The dictionary that config.json holds."""
        values = dataclasses.asdict(self)
        extra = values.pop("extra", {})
        return {**values, **{key: value for key, value in extra.items() if values.get(key) is None}}

    @classmethod
    def for_file(cls, values: Mapping[str, Any], dtype: str | None = None) -> dict[str, Any]:
        """A dictionary with what transformers looks for: the architecture's name, and the type of the weights."""
        # A null that means none is kept: without it transformers would put in what the published model has.
        said = ("_token_id", "sliding_window", "_softcapping")
        values = {key: value for key, value in values.items() if value is not None or key.endswith(said)}
        values.pop("quantization_bit", None)  # by which ChatGLM's code expects weights that it has packed
        values.setdefault("architectures", [cls.architectures[values["model_type"]]])
        ends = values.get("eos_token_id")
        if is_classifier(values) and values.get("pad_token_id") is None and ends is not None:
            values["pad_token_id"] = ends[0] if isinstance(ends, list) else ends  # it refuses batches without one
        if dtype is not None:
            # `dtype` is read by new versions only, `torch_dtype` by all
            for key in [key for key in ("dtype", "torch_dtype") if key in values] or ["torch_dtype"]:
                values[key] = dtype
        return values

    def save_pretrained(self, directory) -> None:
        """Writes config.json into a directory, which is made if need be."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        write_json(Path(directory) / "config.json", self.for_file(self.to_dict()))

    def check(self) -> None:
        """Raises InputError where a value is one that this family cannot compute."""

    def check_common(self) -> None:
        """Raises InputError where a value is one that transformers heeds in every family, and none here computes: no
        mask, fields of single layers, and a classifier that it does not have."""
        if "is_causal" in self.extra and self.extra["is_causal"] is not True:  # null is false there, too
            raise InputError(f"config.json: is_causal is {shown(self.extra['is_causal'])}; supported: True")
        if self.labels is not None:
            self.as_classifier(self.labels)
        if layers := self.extra.get("per_layer_config"):
            raise InputError(f"config.json: per_layer_config is {shown(layers)}; fields are those of all layers here")

    def require(self, key: str, *supported) -> None:
        """Raises InputError unless ``key`` is absent or has one of the supported values."""
        value = getattr(self, key, None) if key in self.__dict__ else self.extra.get(key)
        if value is not None and value not in supported:
            choices = ", ".join(repr(choice) for choice in supported)
            raise InputError(f"config.json: {key} is {shown(value)}; supported: {choices}")
