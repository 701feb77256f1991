"""Merging adapters into a checkpoint, from disk to disk, one tensor at a time and without MindSpore.

Each weight is read from the base, changed in blocks of a few rows in float64, rounded once, and written into its
shard: memory holds one tensor and a block, however large the model is. The result is bit for bit what merging the
loaded model and saving it gives, since both use the formulas of `adapters.deltas`.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from adapters.deltas import blocks, wide
from adapters.matching import saved_in_full
from adapters.peft_config import ALL_THE_SAME, another_base, lacks_tokens, without_effect
from adapters.stored import Change, Delta, StoredAdapter, check_together, in_order
from model_zoo.arguments import checked
from model_zoo.atomic import staged, write_json
from model_zoo.checkpoint.dtypes import STORAGE, convert, float_name
from model_zoo.checkpoint.fingerprint import fingerprint, same_base, same_numbers
from model_zoo.checkpoint.grown import grown, vocabulary_of, with_vocabulary
from model_zoo.checkpoint.made import MadeTensor
from model_zoo.checkpoint.reading import Checkpoint, assignment, read_config
from model_zoo.checkpoint.safetensors_io import TensorInfo, nbytes, storage
from model_zoo.checkpoint.saving import (
    BESIDE,
    MAX_SHARD_SIZE,
    WEIGHTS,
    copy_companions,
    parse_size,
    plan_shards,
    write_weights as write_shards,
)
from model_zoo.counting import config_of
from model_zoo.errors import InputError
from model_zoo.labels import SCORE, as_classifier
from model_zoo.quantization import Quantization
from model_zoo.quantization.dequantized import Requantized, dequantized
from model_zoo.quantization.files import SECTION
from model_zoo.resources import available_cores
from model_zoo.settings import require
from model_zoo.unwritable import explained
from pet.companions import copy_tokenizer
from pet.meta_model import MetaModel
from pet.names import bundled_models

log = logging.getLogger("pet")


@dataclasses.dataclass
class ExportReport:
    """What a merge on disk did; prints as one line.

    Attributes:
        changed: how many tensors got new values.
        error: the largest difference between a merged value and its rounding to the type it is stored in.
        untied: the head that was tied to the embedding and has a weight of its own now.
        not_finite: tensors that hold NaN or Inf now.
    """

    directory: Path
    changed: int = 0
    error: float = 0.0
    untied: str | None = None
    not_finite: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.directory}: {self.changed} tensors merged, rounding error at most {self.error:.2e}"
        if self.untied:
            text += f"; {self.untied} is no longer tied to the embedding"
        if self.not_finite:
            text += f"; NaN or Inf in {', '.join(self.not_finite)}"
        return text


@checked
def merge_checkpoint(
    base: str | Path,
    adapter: str | Path | Sequence[str | Path],
    output: str | Path,
    dtype: object = None,
    safe: bool = False,
    weights: Sequence[float] | None = None,
    strict: bool = True,
    max_shard_size: int | str = MAX_SHARD_SIZE,
    dequantize: bool = False,
    template: str | None = None,
) -> ExportReport:
    """Merges adapters into a base checkpoint and writes the result as a checkpoint of its own.

    Args:
        base: Hugging Face checkpoint directory, or a bundled base's name.
        adapter: one adapter directory in PEFT's format, or several, whose ΔW are taken against the base and added.
        output: directory to write. Its files appear together at the end, or not at all.
        dtype: floating-point type of the result; ``None`` keeps each tensor's own.
        safe: refuse, and write nothing, when a merged value is NaN or infinite.
        weights: a factor for each adapter's ΔW; all 1 by default.
        strict: refuse an adapter that was made on another base (by its fingerprint, where it has one).
        max_shard_size: bytes per weight file, as a number or as ``"5GB"``.
        dequantize: merge into the numbers that the adapter was trained on, where these were packed in 8 or 4 bits,
            instead of the unquantised base's. They are written in float32 unless `dtype` says otherwise.
        template: a chat template, or the file of one, for a result whose base and adapters have none.

    Raises:
        InputError: no such directory, files that are corrupt, an adapter of another shape or base, a method that
            cannot be merged (with the reason), no room on the disk. `output` is unchanged then.
    """
    base = bundled_models().get(str(base), base)
    directories = [adapter] if isinstance(adapter, (str, Path)) else list(adapter)
    factors = _factors(weights, directories)
    target = float_name(dtype) if dtype is not None else None
    limit = parse_size(max_shard_size)
    for given in (base, *directories):
        if Path(given).resolve() == Path(output).resolve():
            raise InputError(f"{output}: is an input of the merge; give another directory for the result")
    with ExitStack() as stack:
        config = published = read_config(base)
        checkpoint = opened = stack.enter_context(Checkpoint(base))
        adapters = []
        for directory in directories:
            adapters.append(StoredAdapter(directory))
            stack.callback(adapters[-1].close)
        checkpoint, config, grown_by = _grown(checkpoint, config, adapters)
        if dequantize:
            target = target or "float32"
            checkpoint = dequantized(checkpoint, config_of(config), _trained_on(adapters, checkpoint))
        elif checkpoint.packed:
            raise InputError(
                f"{base}: is in 8 or 4 bits; give the unquantised base, or merge into the dequantised numbers with "
                "dequantize (--dequantize)"
            )
        elif corrects := [one for one in adapters if one.needs_packed]:
            raise InputError(
                f"{corrects[0].directory}: was started by LoftQ from what packing left out of the base, so that the "
                "unquantised base would get that twice; merge with dequantize (--dequantize)"
            )
        checkpoint, config = _judging(checkpoint, config, adapters)
        merge = _Merge({key: value for key, value in config.items() if key != SECTION}, checkpoint, target, safe)
        if strict:
            _check_bases(published, opened, adapters)
        for one, factor in zip(adapters, factors, strict=True):
            merge.add(one, factor)
        beside = functools.partial(copy_tokenizer, [one.directory for one in adapters], grown_by, template)
        return merge.write(Path(output), limit, beside)


def _grown(checkpoint: Checkpoint, values: dict, adapters: Iterable[StoredAdapter]) -> tuple[Any, dict, Path | None]:
    """The base with the rows that an adapter brings for tokens which were added (`resize_token_embeddings`), and its
    config.json's dictionary, and that adapter's directory; the first two as they are, and None, where none does."""
    config = config_of(values)
    embedding, head = vocabulary_of(config)
    size = config.dims.vocab
    for one in adapters:
        whole = one.whole((embedding, head))
        counts = {one.file.info(key).shape[0] for key in whole.values()}
        # a tied head is the embedding as it was before it was trained
        enough = head in whole or (config.tied_head() is not None and ".base_layer." in whole.get(embedding, ""))
        if max(counts, default=0) <= size:
            continue
        if embedding not in whole or not enough or len(counts) > 1:
            way = "it has no rows for them in both embedding and head; PEFT saves them with save_embedding_layers=True"
            raise InputError(lacks_tokens(f"{one.directory}", max(counts), size, way))
        one.given = {key for key in whole.values() if ".base_layer." in key}
        rows = {name: one.file.read(key, (slice(size, None),), "float64") for name, key in whole.items()}
        return grown(checkpoint, config, rows), with_vocabulary(values, max(counts)), one.directory
    return checkpoint, values, None


def _judging(checkpoint: Checkpoint, values: dict, adapters: Iterable[StoredAdapter]) -> tuple[Checkpoint, dict]:
    """The base with a classifier's head, zero, in the place of the language model's, and its config.json's dictionary,
    where an adapter brings such a head."""
    labels = next(filter(None, (one.labels for one in adapters)), None)
    config = config_of(values)
    if labels is None or config.labels is not None:
        return checkpoint, values
    values = as_classifier(values, labels, config.architectures[config.model_type])
    name, shape, kind = (
        f"{SCORE}.weight",
        (len(labels.names), config.dims.hidden),
        checkpoint.dtype(checkpoint.names[0]),
    )
    zeros = MadeTensor(
        TensorInfo(kind, shape, 0, nbytes(kind, shape)), lambda slices: np.zeros(shape, storage(kind))[slices]
    )
    heads = {f"{config.family.head}.weight", *config.family.saved_tied}
    return checkpoint.without(heads.__contains__).with_tensors({name: zeros}), values


def _factors(weights: Sequence[float] | None, directories: Sequence[str | Path]) -> list[float]:
    if not directories:
        raise InputError("merge: no adapter directory was given")
    places = [Path(directory).resolve() for directory in directories]
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise InputError(f"merge: {twice} is given twice; one weight says how much of it is added")
    if weights is None:
        return [1.0] * len(directories)
    factors = list(weights)
    if len(factors) != len(directories):
        raise InputError(f"weights: {len(factors)} given for {len(directories)} adapters; one each was expected")
    for factor in factors:
        require("merge", "weights", factor, float)
    return [float(factor) for factor in factors]


def _trained_on(adapters: Sequence[StoredAdapter], checkpoint: Checkpoint) -> Quantization | None:
    """The form that adapters were trained on; None where the checkpoint is packed itself."""
    if checkpoint.packed:
        return None
    forms = {one.quantization for one in adapters}
    if len(forms) > 1 or None in forms:
        names = ", ".join(str(one.directory) for one in adapters)
        raise InputError(f"dequantize: {names} {'were' if len(adapters) > 1 else 'was'} not trained on one packed base")
    return forms.pop()


def _check_bases(config: dict, checkpoint: Checkpoint, adapters: Iterable[StoredAdapter]) -> None:
    marked = [one for one in adapters if one.fingerprint is not None]
    found = fingerprint(config, checkpoint) if marked else None
    problems = [
        another_base(one.directory, one.fingerprint, checkpoint.directory, found) + f";\n  {ALL_THE_SAME}"
        for one in marked
        if not same_base(one.fingerprint, found)
    ]
    InputError.raise_any(problems)


class _Merge:
    """One merge: which tensor is made of what, and how it is written."""

    def __init__(self, config: dict, checkpoint: Checkpoint, target: str | None, safe: bool):
        self.config, self.checkpoint, self.target, self.safe = config, checkpoint, target, safe
        self.base = config_of(config)
        self.meta_model = MetaModel(self.base)
        self.shapes, self.turned, self.tied = self.base.shapes(), self.base.turned(), self.base.tied_head()
        self.sources, self.copies = assignment(
            checkpoint, self.shapes, dict([self.tied]) if self.tied else None, ignored=(".",)
        )
        self.changes: dict[str, list[tuple[StoredAdapter, Change, float]]] = {}
        self.whole: dict[str, tuple[StoredAdapter, str]] = {}

    def add(self, adapter: StoredAdapter, factor: float) -> None:
        """Takes an adapter's changes in; InputError when two adapters replace the same tensor."""
        adapter.given.update(without_effect(adapter.file, self.base.family, self.base.left_out), self.copied(adapter))
        for change in adapter.changes(self.meta_model):
            replaced = (change.name, *((self.tied or ())[:1] if change.shared else ()))
            for name in replaced if change.kind in ("whole", "rows") else ():
                other, kind = self.whole.setdefault(name, (adapter, change.kind))
                if other is not adapter and "whole" in (kind, change.kind):  # rows of several are added up
                    raise InputError(f"{other.directory} and {adapter.directory} both replace {name}")
            self.changes.setdefault(change.name, []).append((adapter, change, factor))
            check_together(change.name, self.changes[change.name])
            weight = self.checkpoint.source(self.sources[change.name]) if change.name in self.sources else None
            if isinstance(weight, Requantized) and (taken := adapter.taken_off(change)) is not None:
                weight.take_off(taken)

    def copied(self, adapter: StoredAdapter) -> Iterator[str]:
        """Tensors of an adapter that are the base's own: PEFT writes embedding and head with save_embedding_layers."""
        for name, key in adapter.whole(vocabulary_of(self.base)).items():
            stored = self.sources.get(dict([self.tied or (name, name)]).get(name, name))
            if stored is None or saved_in_full(adapter.config, name.removesuffix(".weight")):
                continue
            if same_numbers(self.checkpoint.raw(stored, "float32"), adapter.file.read(key, dtype="float32")):
                yield key

    def untied(self) -> str | None:
        """The head that needs a weight of its own because only it, or only the embedding, changes.

        What both share does not untie: PEFT gives new rows for some tokens to a tied head as well.
        """
        if self.tied is None:
            return None
        head, embedding = self.tied
        shared = [entry for entry in self.changes.get(embedding, []) if entry[1].shared]
        if head not in self.changes and len(shared) == len(self.changes.get(embedding, [])):
            return None
        if not hasattr(self.base, "tie_word_embeddings"):
            raise InputError(
                f"{self.checkpoint.directory}: the adapter changes {' or '.join(self.tied)}, which are one tensor: "
                "its layout has no place for a head of its own"
            )
        if shared:
            self.changes.setdefault(head, []).extend(shared)
        return head

    def write(self, output: Path, limit: int, copy_tokenizer: Callable[[Path, Path, Path], None]) -> ExportReport:
        head = self.untied()
        config = dict(self.config)
        # {tensor to write: parameter}; a tied copy in the file follows what it is a copy of
        made_of = {**self.copies, **{stored: name for name, stored in self.sources.items()}}
        if head is not None:
            made_of[head] = head
            config["tie_word_embeddings"] = False
        described = {}
        for name in self._in_file_order(head):
            source = made_of.get(name, name)
            stored = self.checkpoint.info(self.sources.get(source, self._origin(name, head)))
            change = self.target is not None and stored.dtype in STORAGE and (name in made_of or name in self.copies)
            described[name] = (self.target if change else stored.dtype, stored.shape)
        types = {word for name, (word, _) in described.items() if name in made_of}
        report = ExportReport(output)

        def data(name: str):
            parameter = made_of.get(name)
            if parameter in self.changes:
                return self._merged(parameter, described[name][0], report)
            stored = self._origin(name, head)
            if self.checkpoint.dtype(stored) == described[name][0]:
                return self.checkpoint.blocks(stored)
            return self.checkpoint.raw(stored, described[name][0])

        _, sizes = plan_shards(described, limit)
        check_room(output, sum(sizes.values()))
        with staged(output, WEIGHTS, sum(sizes.values())) as stage:
            write_shards(stage, described, data, limit)
            stored = types.pop() if len(types) == 1 else None
            write_json(stage / "config.json", self.base.for_file(config, stored))
            copy_tokenizer(self.checkpoint.directory, stage, output)
            copy_companions(self.checkpoint.directory, stage, output, BESIDE)
        report.untied = head
        return report

    def _origin(self, name: str, head: str | None) -> str:
        """The stored tensor that a written one comes from: itself, and for a new head the embedding."""
        return self.sources[self.tied[1]] if name == head else name

    def _in_file_order(self, head: str | None) -> list[str]:
        """The stored names as they lie in the files, which reads them in one sweep; a new head at the end."""
        names = []
        for file in self.checkpoint.files.values():
            names += sorted(
                (name for name in file.tensors if name in self.checkpoint), key=lambda n: file.info(n).start
            )
        names += [name for name in self.checkpoint if name not in names]  # packed ones, and a new classifier's head
        return names + ([head] if head is not None and head not in names else [])

    def _merged(self, name: str, dtype: str, report: ExportReport) -> np.ndarray:
        """A weight with its changes, in the type to be written (bfloat16 as bits)."""
        stored = self.sources.get(name) or self.sources[self.tied[1]]
        held = self.checkpoint.dtype(stored)
        array = self.checkpoint.raw(stored)
        same = storage(held) == storage(dtype)
        result = array if same else np.empty(array.shape, storage(dtype))
        normed = any(
            change.kind == "embedding" and "lora_magnitude_vector" in change.tensors
            for _, change, _ in self.changes[name]
        )
        transposed = normed or name in self.turned
        deltas = [Delta(*entry[:2], transposed, entry[2]) for entry in in_order(self.changes[name])]
        deltas.sort(key=lambda delta: delta.place)
        base, merged = (array.T, result.T) if transposed else (array, result)

        def merge(rows: slice) -> tuple[float, bool]:
            """Fills these rows; their largest finite error, and whether all are finite."""
            weight = wide(convert(np.ascontiguousarray(base[rows]), held, "float64"))
            exact = weight
            for delta in deltas:
                exact = exact + delta.block(exact if delta.kind == "ia3" else weight, rows)
            rounded = convert(exact, "float64", dtype)
            merged[rows] = rounded
            with np.errstate(invalid="ignore"):
                error = np.abs(convert(rounded, dtype, "float64") - exact)
            known = np.isfinite(error)
            return float(np.max(error, initial=0.0, where=known)), bool(known.all())

        with ThreadPoolExecutor(available_cores()) as pool:  # NumPy computes outside of Python's lock
            errors, all_finite = zip(*pool.map(merge, blocks(len(base))), strict=True)
        report.error = max(report.error, *errors)
        finite = all(all_finite)
        report.changed += 1
        if not finite:
            if self.safe:
                raise InputError(f"{name} would hold NaN or Inf after merging; nothing was written")
            report.not_finite += (name,)
        return result


def check_room(output: Path, needed: int) -> None:
    """CannotWrite when the disk has no room for the result: better now than after an hour."""
    existing = next(parent for parent in (output.absolute(), *output.absolute().parents) if parent.exists())
    if shutil.disk_usage(existing).free < needed:
        with explained(output, needed):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
