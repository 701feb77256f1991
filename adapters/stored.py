"""Adapter directories in PEFT's format as changes of named weights, without a model and without MindSpore.

This is how an adapter is merged on disk. `StoredAdapter` reads and checks ``adapter_config.json`` and the header of
``adapter_model.safetensors``; nothing is allocated before every name and shape has been found to fit.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from adapters.deltas import dora_delta, ia3_delta, low_rank_product, wide
from adapters.file_names import PREFIX
from adapters.fitting import add_whole, fit, misfits
from adapters.initial import START
from adapters.matching import chosen_sites, means, sites, token_rows, wanted
from adapters.peft_config import (
    CONFIG,
    FINGERPRINT,
    LABELS,
    QUANTIZATION,
    STARTED_BY,
    from_file,
    known_keys,
    open_weights,
    read_adapter_config,
    read_settings,
    whole_name,
    with_one_head,
)
from adapters.settings import IA3, NO_BIAS, SETTINGS, BitFit, LoRA, Tokens
from model_zoo.checkpoint.dtypes import float_name
from model_zoo.errors import InputError, located, nearest, warn_caller
from model_zoo.labels import SCORE, Labels
from model_zoo.quantization import Quantization

# why a kind of adapter is no part of any weight
UNMERGEABLE = {cls.peft_type: cls.unmergeable for cls in SETTINGS if cls.unmergeable}
# whose settings a kind has that is part of the weights
MERGEABLE = {cls.peft_type: cls for cls in (LoRA, IA3, Tokens, BitFit)}
PARTS = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_[AB]\.weight|lora_embedding_[AB]|lora_magnitude_vector|ia3_l|trainable_tokens_delta)"
)
KINDS = {"ia3_l": "ia3", "trainable_tokens_delta": "rows"}


def read_mergeable(values: dict, where: Path):
    """The settings of an adapter that is part of the weights, out of its adapter_config.json."""
    cls = MERGEABLE[values["peft_type"]]
    return read_settings(values, where, known_keys(cls), functools.partial(from_file, cls))


def check_loadable(directory: str | Path) -> None:
    """Refuses an adapter directory that no model can take, before one is loaded.

    Raises:
        InputError: as `read_adapter_config`, `read_settings` and `open_weights`.
    """
    values = read_adapter_config(directory, (*MERGEABLE, *UNMERGEABLE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # loading gives them
        if values["peft_type"] in MERGEABLE:
            read_mergeable(values, Path(directory) / CONFIG)
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
        ids: of the tokens whose rows change.
    """

    name: str
    kind: str
    tensors: dict[str, str]
    scale: float = 1.0
    shared: bool = False
    ids: Collection[int] = ()


class StoredAdapter:
    """One adapter directory.

    Args:
        directory: holds adapter_config.json and adapter_model.safetensors.

    Attributes:
        config: its settings.
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
        self.config = read_mergeable(values, self.directory / CONFIG)
        self.ties = bool(values.get("ensure_weight_tying"))
        if getattr(self.config, "init", None) in START:
            raise InputError(
                f"{self.directory / CONFIG}: init_lora_weights is {values['init_lora_weights']!r}: its start is "
                "computed from the base; merge it in memory (pet.load_adapter, pet.merge, pet.save_pretrained)"
            )
        self.file = open_weights(directory)
        self.given: set[str] = set()
        if self.labels is not None:
            self.config.modules_to_save = with_one_head(self.config.modules_to_save)

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

    def changes(self, base) -> list[Change]:
        """The changes to a base, checked name by name and shape by shape as loading checks them.

        Args:
            base: a model of shapes (`pet.meta_model.MetaModel`). It knows which weights are stored (in, out);
                ``fan_in_fan_out`` in the JSON is not asked, as PEFT corrects it likewise.

        Raises:
            InputError: lists everything that does not fit, and what the configuration leaves out.
        """
        if self.labels is not None and f"{SCORE}.weight" not in base.shapes:
            raise InputError(f"{self.directory}: has a head that judges texts; only pet merge has a place for it")
        parameters = {f"{path}.{name}" for path, cell in base.cells.items() for name in cell._params}
        # in the file's order, in which changes of one weight are added up
        plain, absent, changed = {}, {}, set()
        for key in [key for key in self.file.tensors if key not in self.given]:
            name = whole_name(key).replace(".token_adapter.", ".")
            weight, _ = place(name)
            with located(f"{self.file.path}: {key}"):
                float_name(self.file.info(key).dtype)
            changed.add(weight)
            if weight in parameters:
                plain[name] = key
            else:
                absent.setdefault(weight, key)
        added = [name for name in absent if name.endswith(".bias") and f"{name[:-5]}.weight" in parameters]
        if isinstance(self.config, BitFit) and added:
            raise InputError(f"{self.directory}: cannot be merged: {added[0]}: {NO_BIAS}")
        if len(absent) == len(changed) > 2:
            name, key = next(iter(absent.items()))
            problems = [f"{key}: the base has no {name}, and nothing else that this adapter changes: another model"]
        else:
            problems = [f"{key}: the base has no {name}{nearest(name, parameters)}" for name, key in absent.items()]
        config, ids = self.config, {}
        if plain:
            with located(self.directory):
                config, expected, ids = self._expected(base, plain)
            sizes = {name: self.file.info(key).shape for name, key in plain.items()}
            flat = {name: (max(size),) for name, size in sizes.items() if name.endswith("_vector") and 1 in size}
            problems += misfits(expected, {**sizes, **flat})
            problems += [f"{key} does not begin with {PREFIX}" for key in plain.values() if not key.startswith(PREFIX)]
        elif not absent:
            problems = ["holds no tensors"]
        InputError.raise_any(f"{self.file.path}: {problem}" for problem in problems)
        return self._changes(base, config, plain, ids)

    def _expected(self, base, plain: dict[str, str]):
        """What the file should hold for a base.

        Args:
            plain: {name in the base's terms: name in the file}.

        Returns:
            The configuration on this base, {name: shape}, and {weight of an embedding: ids of the rows that change}.
        """
        config, head = copy.deepcopy(self.config), base.config.tied_head()
        if dropped := fit(base, config, plain, getattr(self.file, "parameters", ())):
            warn_caller(f"{self.directory / CONFIG}: {'; '.join(dropped)}")
        at = {site.path: site for site in chosen_sites(base, config)}
        pair = [name.removesuffix(".weight") for name in head or ()]
        if self.ties and not at.keys().isdisjoint(pair):  # PEFT writes for both what they share
            both = {module for module in pair if any(name.startswith(f"{module}.lora_") for name in plain)}
            at.update((site.path, site) for site in sites(base) if site.path in both)
        chosen = list(at.values())
        whole = [name for name in plain if place(name)[1] == "value"]
        add_whole(config, base, [name for name in whole if name.rpartition(".")[0] not in at])
        # of an adapted embedding PEFT writes the whole weight besides
        expected = {name: at[path].shape for path in at if (name := f"{path}.weight") in whole}
        for site in chosen:
            parts = parts_at(config, site, base.family)
            expected.update((f"{site.path}.{part}", size) for part, size in parts.items())
        for path, cell, attribute in wanted(base, config, chosen):
            expected[f"{path}.{attribute}"] = tuple(cell._params[attribute].shape)
        ids = {}
        for site, rows, shared in token_rows(base, config, chosen):
            name = f"{site.path}.trainable_tokens_delta"
            ids[f"{site.path}.weight"] = rows
            if shared is None or name in plain:
                expected[name] = len(rows), site.shape[1]
        return config, expected, ids

    def _changes(self, base, config, plain: dict[str, str], ids: dict[str, list[int]]) -> list[Change]:
        """`changes`, of a file that holds what it should; arguments as `_expected` has them."""
        tables = {f"{site.path}.weight" for site in sites(base) if site.kind == "embedding"}
        grouped: dict[tuple[str, str], dict[str, str]] = {}
        for name, key in plain.items():
            weight, part = place(name)
            kind = "whole" if part == "value" else KINDS.get(part, "embedding" if weight in tables else "lora")
            grouped.setdefault((weight, kind), {})[part] = key
        shared, head = set(), base.config.tied_head()
        for kind in ("rows", "whole"):
            copies = [grouped.get((name, kind)) for name in head or ()]
            if copies and all(copies) and self._equal(*(next(iter(parts.values())) for parts in copies)):
                del grouped[head[0], kind]  # PEFT writes what a tied head has from the embedding a second time
                shared.add((head[1], kind))
        found = []
        for (name, kind), tensors in grouped.items():
            scale = config.scale_at(name.removesuffix(".weight")) if kind in ("lora", "embedding") else 1.0
            both = kind == "rows" or (name, kind) in shared
            found.append(Change(name, kind, tensors, scale, both, ids.get(name, ())))
            if kind == "ia3" and self.file.info(tensors["ia3_l"]).shape[1] == 1:
                bias = f"{name.removesuffix('.weight')}.bias"  # it scales the whole output
                found += [Change(bias, kind, tensors)] if bias in base.shapes else []
        return found

    def _equal(self, one: str, other: str) -> bool:
        """Whether two tensors of the file have the same shape and bytes."""
        pairs = zip(self.file.blocks(one), self.file.blocks(other), strict=False)
        return self.file.info(one)[:2] == self.file.info(other)[:2] and all(a == b for a, b in pairs)

    def tensor(self, key: str) -> np.ndarray:
        """A tensor of the adapter in float64."""
        return wide(self.file.read(key, dtype="float64"))


def place(name: str) -> tuple[str, str]:
    """The weight that a tensor of a file changes, and which part of the change it is; ``value`` is all of it."""
    if match := PARTS.fullmatch(name):
        return f"{match['module']}.weight", match["part"].removesuffix(".weight")
    return name, "value"


def parts_at(config, site, family) -> dict[str, tuple[int, ...]]:
    """{part: shape} of what a file holds for an adapted cell."""
    out, width = site.out_features, site.in_features
    if isinstance(config, IA3):
        return {"ia3_l": (1, width) if means(config.feedforward, site, family) else (out, 1)}
    if not isinstance(config, LoRA):
        return {}
    rank = config.rank_at(site.path)
    names = ("lora_embedding_A", "lora_embedding_B") if site.kind == "embedding" else ("lora_A.weight", "lora_B.weight")
    factors = dict(zip(names, ((rank, width), (out, rank)), strict=True))
    return {**factors, "lora_magnitude_vector": (out,)} if config.use_dora else factors


def check_together(name: str, changes: Sequence[tuple[StoredAdapter, Change, float]]) -> None:
    """Raises InputError where one change of a weight is computed from the base's, and another replaces that or scales
    what it reads, as merging in memory does (`adapters.merge_rules.refuse_unknown_base`)."""
    bound = [one for one, change, _ in changes if change.kind == "rows" or "lora_magnitude_vector" in change.tensors]
    for other, change, _ in changes:
        scales = change.kind == "ia3" and other.file.info(change.tensors["ia3_l"]).shape[0] == 1
        mine = next((one for one in bound if one is not other), None)
        if mine is not None and (scales or change.kind == "whole"):
            what = f"whose input {other.directory} scales" if scales else f"which {other.directory} replaces"
            raise InputError(f"{mine.directory} rescales {name}, {what}; these two cannot be merged together")


def in_order(changes: Sequence[tuple[StoredAdapter, Change, float]]) -> list[tuple[StoredAdapter, Change, float]]:
    """Changes of a weight in the order in which they are summed: that of the adapters' names, as in memory, so that any
    order gives the same bits; that in which they are given where one scales what others add."""
    scaled = any(change.kind == "ia3" for _, change, _ in changes)
    return list(changes) if scaled else sorted(changes, key=lambda entry: entry[0].directory.parts[::-1])


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
            self.ids = np.array(change.ids, np.int64)
        else:
            self.values = arrays["value"].T if transposed else arrays["value"]

    @property
    def place(self) -> int:
        """The order in which changes act, as in memory: what replaces, what scales inputs, the others."""
        return 0 if self.kind == "whole" else 1 if self.kind == "ia3" and self.factor.shape[1] > 1 else 2

    def block(self, weight: np.ndarray, rows: slice) -> np.ndarray:
        """ΔW for these outputs of the base, given as ``(rows, in)`` or, for a bias, ``(rows,)`` in float64. IA3 takes
        what the changes before it have made of them."""
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
