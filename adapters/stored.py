"""Adapter directories in PEFT's format as changes of named weights, without a model and without MindSpore.

This is how an adapter is merged on disk. `StoredAdapter` reads and checks ``adapter_config.json`` and the header of
``adapter_model.safetensors``; nothing is allocated before every name and shape has been found to fit.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adapters.deltas import dora_delta, ia3_delta, low_rank_product, wide
from adapters.initial import START
from adapters.meant import left_out, missing, with_targets
from adapters.patterns import named, pattern_value
from adapters.peft_config import (
    CONFIG,
    FINGERPRINT,
    IA3_KEYS,
    LABELS,
    LORA_KEYS,
    QUANTIZATION,
    STARTED_BY,
    TOKENS_KEYS,
    ia3_settings,
    known_keys,
    lora_scale,
    lora_settings,
    open_weights,
    read_adapter_config,
    read_settings,
    tokens_settings,
    whole_name,
    with_one_head,
)
from adapters.schema import Settings
from adapters.settings import IA3, SETTINGS, BitFit, LoRA
from model_zoo.checkpoint.dtypes import float_name
from model_zoo.errors import InputError, nearest
from model_zoo.labels import SCORE, Labels
from model_zoo.quantization import Quantization

# why a kind of adapter is no part of any weight
UNMERGEABLE = {cls.peft_type: cls.unmergeable for cls in SETTINGS if cls.unmergeable}
# what is read out of the configuration of each kind that is part of the weights
MERGEABLE = {
    "LORA": (known_keys(LoRA, *LORA_KEYS), lora_settings),
    "IA3": (known_keys(IA3, *IA3_KEYS), ia3_settings),
    "TRAINABLE_TOKENS": (known_keys(Settings, *TOKENS_KEYS), tokens_settings),
    "BITFIT": (known_keys(BitFit), lambda values: {"targets": None}),
}
PARTS = re.compile(
    r"(?P<module>.+?)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_magnitude_vector(\.weight)?|lora_embedding_A|"
    r"lora_embedding_B|lora_A\.bias|lora_B\.bias|ia3_l|(token_adapter\.)?trainable_tokens_delta)"
)


def check_loadable(directory: str | Path) -> None:
    """Refuses an adapter directory that no model can take, before one is loaded.

    Raises:
        InputError: as `read_adapter_config`, `read_settings` and `open_weights`.
    """
    values = read_adapter_config(directory, (*MERGEABLE, *UNMERGEABLE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # loading gives them
        if values["peft_type"] in MERGEABLE:
            read_settings(values, Path(directory) / CONFIG, *MERGEABLE[values["peft_type"]])
    open_weights(directory, values).close()


@dataclasses.dataclass
class Change:
    """What one adapter does to one weight, its arrays still in the file.

    Attributes:
        name: the weight's tensor name in the base.
        kind: ``lora``, ``embedding``, ``ia3``, ``whole`` (a weight of its own) or ``rows`` (new rows for some tokens).
        tensors: {part: tensor name in the adapter's file}.
        scale: factor of B·A.
        shared: a head that is tied to this embedding changes with it.
    """

    name: str
    kind: str
    tensors: dict[str, str]
    scale: float = 1.0
    shared: bool = False


class StoredAdapter:
    """One adapter directory.

    Args:
        directory: holds adapter_config.json and adapter_model.safetensors.

    Attributes:
        given: tensors of the file that are no change to the base at hand: it has them from there, or they do nothing.

    Raises:
        InputError: files missing or corrupt, values that make no sense, a method that cannot be merged.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        values = read_adapter_config(directory, (*MERGEABLE, *UNMERGEABLE))
        kind = values["peft_type"]
        if kind in UNMERGEABLE:
            raise InputError(f"{self.directory}: an adapter of type {kind} cannot be merged: {UNMERGEABLE[kind]}")
        self.settings = read_settings(values, self.directory / CONFIG, *MERGEABLE[kind])
        self.peft_type, self.ties = kind, bool(values.get("ensure_weight_tying"))
        if self.settings.get("init") in START:
            raise InputError(
                f"{self.directory / CONFIG}: init_lora_weights is {values['init_lora_weights']!r}: its start is "
                "computed from the base; merge it in memory (pet.load_adapter, pet.merge, pet.save_pretrained)"
            )
        self.file = open_weights(directory)
        self.given: set[str] = set()
        if self.labels is not None:
            self.settings["modules_to_save"] = with_one_head(self.settings.get("modules_to_save"))

    def close(self) -> None:
        self.file.close()

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the base that this was trained on, where its writer recorded one."""
        return self.file.metadata.get(FINGERPRINT)

    @property
    def labels(self) -> Labels | None:
        """What the numbers of its head mean, where it has one that judges texts."""
        shapes = [self.file.info(key).shape for key in self.whole((f"{SCORE}.weight",)).values()]
        return Labels.read(self.file.metadata.get(LABELS), shapes[0][0]) if shapes else None

    @property
    def needs_packed(self) -> bool:
        """Whether this corrects what packing left out (LoftQ), so that it fits the packed numbers alone."""
        return self.file.metadata.get(STARTED_BY) == "loftq"

    def taken_off(self, change: Change) -> Callable[[slice], np.ndarray] | None:
        """What was taken off a packed weight (PiSSA, OLoRA), by rows ``(out, in)``; None for nothing. Of the written
        rank the second half are the first factors (`adapters.lora_peft.pack`)."""
        if self.file.metadata.get(STARTED_BY) not in START or "lora_A" not in change.tensors:
            return None
        a, b = self.tensor(change.tensors["lora_A"]), self.tensor(change.tensors["lora_B"])
        a, b = wide(a[len(a) // 2 :]), wide(-b[:, len(a) // 2 :])
        return lambda rows: low_rank_product(b[rows], a, change.scale)

    @property
    def quantization(self) -> Quantization | None:
        """In which form this was trained on the base, where that was packed."""
        text = self.file.metadata.get(QUANTIZATION)
        return Quantization.read(text) if text else None

    def whole(self, names: Collection[str]) -> dict[str, str]:
        """{weight of the base: tensor in the file} of those of these weights that the file has in full."""
        return {name: key for key in self.file.tensors if (name := whole_name(key)) in names}

    def changes(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        transposed: Callable[[str], bool],
        head: tuple[str, str] | None = None,
        family: Any = None,
    ) -> list[Change]:
        """The changes to a base of these tensors, checked name by name and shape by shape.

        Args:
            shapes: {tensor name: shape} of the base.
            transposed: whether the weight of a name is stored (in, out). The base knows; ``fan_in_fan_out`` in the
                JSON is not asked, as PEFT corrects it likewise.
            head: (name, embedding) of a tied head: a change to it counts as one to a weight of its own.
            family: the base's table, whose own targets count where the configuration names none.

        Raises:
            InputError: lists everything that does not fit, and what the configuration leaves out.
        """
        if self.labels is not None and f"{SCORE}.weight" not in shapes:
            raise InputError(f"{self.directory}: has a head that judges texts; only pet merge has a place for it")
        shapes = dict(shapes)
        if head is not None:
            shapes[head[0]] = shapes[head[1]]
        grouped: dict[tuple[str, str], dict[str, str]] = {}
        problems = []
        tables = {key[: -len(".lora_embedding_A")] for key in self.file.tensors if key.endswith(".lora_embedding_A")}
        for key in self.file.tensors:  # in their order, in which changes of one weight are added up
            if key in self.given:
                continue
            name = whole_name(key)
            match = PARTS.fullmatch(name)
            if match is None:
                grouped[name, "whole"] = {"value": key}
            else:
                part = match["part"].removesuffix(".weight")
                kind = {"lora_embedding_A": "embedding", "lora_embedding_B": "embedding", "ia3_l": "ia3"}.get(part)
                if part == "lora_magnitude_vector" and key.partition(".lora_magnitude_vector")[0] in tables:
                    kind = "embedding"
                kind = kind or ("rows" if part.endswith("trainable_tokens_delta") else "lora")
                grouped.setdefault((f"{match['module']}.weight", kind), {})[part] = key
        shared = set()
        for kind in ("rows", "whole"):
            copies = [grouped.get((name, kind)) for name in head or ()]
            if not copies or not all(copies):
                continue
            ids = [self.token_rows(name.removesuffix(".weight"), shapes[name][0]) for name in head if kind == "rows"]
            if ids and ids[0] != ids[1]:  # as loading says it
                problems.append(f"trainable_tokens: {head[0]} shares {head[1]}; same ids expected")
            elif self._equal(*(next(iter(parts.values())) for parts in copies)):
                del grouped[head[0], kind]  # PEFT writes what a tied head has from the embedding a second time
                shared.add((head[1], kind))
        found, absent = [], []
        for (name, kind), tensors in grouped.items():
            if name not in shapes:
                absent.append((name, next(iter(tensors.values()))))
                continue
            try:
                change = self._checked(name, kind, tensors, shapes[name], transposed(name))
                change.shared = kind == "rows" or (name, kind) in shared
                found.append(change)
                if kind == "ia3" and self.file.info(tensors["ia3_l"]).shape[1] == 1:
                    bias = f"{name.removesuffix('.weight')}.bias"  # it scales the whole output
                    found += [Change(bias, kind, tensors)] if bias in shapes else []
            except InputError as error:
                problems.append(str(error))
        if len(absent) == len(grouped) > 2:
            name, key = absent[0]
            problems.append(f"{key}: the base has no {name}, and nothing else that this adapter changes: another model")
        else:
            problems += [f"{key}: the base has no {name}{nearest(name, shapes)}" for name, key in absent]
        if not grouped:
            problems.append("holds no tensors")
        settings = with_targets(self.settings, self.peft_type, family)
        there = {pair: tensors for pair, tensors in grouped.items() if pair[0] in shapes}
        extra = left_out(settings, there, family, head if self.ties else None)
        problems += [f"{whole_name(key)} belongs to no cell of this model's adapter" for key in extra]
        problems += [
            f"holds nothing for {name}, which {setting} names" for name, setting in missing(settings, shapes, grouped)
        ]
        InputError.raise_any([f"{self.file.path}: {problem}" for problem in problems])
        return found

    def _checked(
        self, name: str, kind: str, tensors: dict[str, str], shape: tuple[int, ...], transposed: bool
    ) -> Change:
        sizes = {part: self.file.info(key).shape for part, key in tensors.items()}
        for key in tensors.values():
            float_name(self.file.info(key).dtype)
        module = name.removesuffix(".weight")

        def expect(part: str, *wanted: tuple[int, ...]) -> None:
            if part not in sizes:
                raise InputError(f"{module} lacks {part}")
            if sizes[part] not in wanted:
                raise InputError(f"{tensors[part]} has shape {sizes[part]}, expected {' or '.join(map(str, wanted))}")

        if kind == "whole":
            expect("value", shape)
            return Change(name, kind, tensors)
        if len(shape) != 2:
            raise InputError(f"{name} has shape {shape}: only matrices can be merged into")
        if kind == "rows":
            part = next(iter(tensors))
            expect(part, (len(self.token_rows(module, shape[0])), shape[1]))
            return Change(name, kind, tensors)
        out, width = shape[::-1] if transposed else shape
        if kind == "ia3":
            expect("ia3_l", (out, 1), (1, width))
            return Change(name, kind, tensors)
        if any(part.endswith(".bias") for part in tensors):
            raise InputError(f"{module} has a bias inside LoRA (lora_bias), which is not supported")
        settings = self.settings
        rank = pattern_value(settings["rank_pattern"], module, settings["rank"])
        alpha = pattern_value(settings["alpha_pattern"], module, settings["alpha"])
        if kind == "embedding":
            expect("lora_embedding_A", (rank, shape[0]))
            expect("lora_embedding_B", (shape[1], rank))
        else:
            expect("lora_A", (rank, width))
            expect("lora_B", (out, rank))
        if "lora_magnitude_vector" in sizes or settings.get("use_dora"):
            norms = width if kind == "embedding" else out
            expect("lora_magnitude_vector", (norms,), (norms, 1), (1, norms))
        return Change(name, kind, tensors, lora_scale(alpha, rank, settings["use_rslora"]))

    def _equal(self, one: str, other: str) -> bool:
        """Whether two tensors of the file have the same shape and bytes."""
        pairs = zip(self.file.blocks(one), self.file.blocks(other), strict=False)
        return self.file.info(one)[:2] == self.file.info(other)[:2] and all(a == b for a, b in pairs)

    def token_rows(self, module: str, vocabulary: int) -> list[int]:
        """The token ids whose rows the adapter replaces in an embedding."""
        given = self.settings.get("trainable_tokens") or []
        if isinstance(given, dict):
            given = next((ids for name, ids in given.items() if named(module, name)), [])
        if max(given, default=0) >= vocabulary:
            raise InputError(f"{CONFIG}: id {max(given)}, but {module} has ids 0 … {vocabulary - 1}")
        return list(given)

    def tensor(self, key: str) -> np.ndarray:
        """A tensor of the adapter in float64."""
        return wide(self.file.read(key, dtype="float64"))


class Delta:
    """One `Change` applied to blocks of outputs, one after another, so that no product is ever held as a whole.

    Args:
        transposed: whether the outputs are the weight's columns: for GPT-2's Conv1D, and for an embedding table under
            DoRA, which takes its norms over the vocabulary.
        weight: factor of the ΔW.
    """

    def __init__(self, adapter: StoredAdapter, change: Change, transposed: bool, weight: float = 1.0):
        self.kind, self.scale, self.weight = change.kind, change.scale, weight
        arrays = {part: adapter.tensor(key) for part, key in change.tensors.items()}
        self.magnitude, self.transposed = arrays.get("lora_magnitude_vector"), transposed
        if change.kind == "embedding":
            self.b, self.a = arrays["lora_embedding_B"], arrays["lora_embedding_A"]
            if not transposed:  # the table's rows are the outputs
                self.b, self.a = wide(self.a.T), wide(self.b.T)
        elif change.kind == "lora":
            self.b, self.a = arrays["lora_B"], arrays["lora_A"]
        elif change.kind == "ia3":
            self.factor = arrays["ia3_l"]
        elif change.kind == "rows":
            self.values = next(iter(arrays.values()))
            self.ids = np.array(adapter.token_rows(change.name.removesuffix(".weight"), 1 << 62), np.int64)
        else:
            self.values = arrays["value"].T if transposed else arrays["value"]

    def block(self, weight: np.ndarray, rows: slice) -> np.ndarray:
        """ΔW for these outputs of the base, given as ``(rows, in)`` or, for a bias, ``(rows,)`` in float64."""
        change = self._block(weight, rows)
        return change if self.weight == 1.0 else self.weight * change

    def _block(self, weight: np.ndarray, rows: slice) -> np.ndarray:
        if self.kind == "ia3":
            if weight.ndim == 1:
                return ia3_delta(weight, self.factor[rows].reshape(-1))
            return ia3_delta(weight, self.factor[rows] if self.factor.shape[1] == 1 else self.factor)
        if self.kind == "whole":
            return self.values[rows] - weight
        if self.kind == "rows":
            change = np.zeros_like(weight)
            if self.transposed:
                change[:, self.ids] = self.values.T[rows] - weight[:, self.ids]
                return change
            for place, index in enumerate(self.ids):
                if rows.start <= index < rows.stop:
                    change[index - rows.start] = self.values[place] - weight[index - rows.start]
            return change
        change = low_rank_product(self.b[rows], self.a, self.scale)
        if self.magnitude is not None:
            return dora_delta(weight, change, self.magnitude.reshape(-1)[rows])
        return change
