"""A checkpoint in 8 or 4 bits, from disk to disk, one matrix at a time, as transformers with bitsandbytes reads it."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from model_zoo.atomic import staged, write_json
from model_zoo.checkpoint.reading import Checkpoint, assignment, read_config
from model_zoo.checkpoint.safetensors_io import nbytes
from model_zoo.checkpoint.saving import MAX_SHARD_SIZE, WEIGHTS, copy_companions, parse_size, write_weights
from model_zoo.counting import config_of
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization
from model_zoo.quantization.files import config_section, described, projections, quantize_stored, written
from pet.export import check_room

log = logging.getLogger("pet")


@dataclasses.dataclass(frozen=True)
class QuantizeReport:
    """What was written; prints as one line.

    Attributes:
        packed: how many matrices are packed in it.
        nbytes, before: of all tensors, and of those that they were made of.
    """

    directory: Path
    packed: int
    nbytes: int
    before: int

    def __str__(self) -> str:
        sizes = f"{self.nbytes / 1e6:,.1f} MB instead of {self.before / 1e6:,.1f}"
        return f"{self.directory}: {self.packed} matrices packed, {sizes}"


def quantize_checkpoint(
    base: str | Path,
    output: str | Path,
    quantization: Quantization,
    max_shard_size: int | str = MAX_SHARD_SIZE,
) -> QuantizeReport:
    """Writes a checkpoint with its projections in 8 or 4 bits. Everything else stays as it is stored.

    Args:
        base: Hugging Face checkpoint directory that is not packed yet.
        output: directory to write. Its files appear together at the end, or not at all.
        quantization: type, block, and what is left out. int4 has no form in such files.
        max_shard_size: bytes per weight file, as a number or as ``"5GB"``.

    Raises:
        InputError: a base that is packed already, a matrix that has no such blocks or holds NaN, no room on the disk.
    """
    limit, values = parse_size(max_shard_size), read_config(base)
    if Path(base).resolve() == Path(output).resolve():
        raise InputError(f"{output}: is the base itself; give another directory for the result")
    config, storage = config_of(values), quantization.storage
    if config.left_out:
        raise InputError(f"{base}: {config.left_out}; save that by itself first (AutoModel, then save_pretrained)")
    if config.feed_forwards > 1 and any(".experts." in path for path in quantization.places(config)):
        log.warning(
            "%s: experts in %s open here alone: transformers 5 has those of a layer as one tensor; skip lm_head, gate "
            "and experts for a checkpoint that opens there, too",
            output,
            storage,
        )
    with Checkpoint(base) as checkpoint:
        if checkpoint.packed:
            raise InputError(f"{base}: is in 8 or 4 bits already; give the unquantised base")
        places, cells = quantization.places(config), config.cells()
        uneven = sorted({width for _, width in places.values() if storage.bits == 4 and width % storage.block})
        if uneven:
            log.warning(
                "%s: bitsandbytes (0.50) reads rows of %s weights, which are no whole blocks of %d, wrongly on "
                "processors with AVX-512; a block that divides them, or --skip, avoids that",
                output,
                " and ".join(map(str, uneven)),
                storage.block,
            )
        sources, copies = assignment(checkpoint, config.shapes(), config.family.tied, config.family.ignored_tensors)
        tensors, path_of, last = {}, {}, ("", {})
        for name, stored in [*sources.items(), *((stored, stored) for stored in copies)]:
            path, _, attribute = name.rpartition(".")
            if attribute == "weight" and path in places:
                parts = described(path, storage, places[path])
                tensors.update(parts)
                path_of.update(dict.fromkeys(parts, path))
            else:
                tensors[name] = checkpoint.info(stored)[:2]

        def data(name: str):
            nonlocal last
            path = path_of.get(name)
            if path is None:
                return checkpoint.blocks(sources.get(name, name))
            if last[0] != path:  # kept until another matrix is asked for: tensors come in two runs, by type
                last, shape, stored = ("", {}), places[path], sources[f"{path}.weight"]
                parts = quantize_stored(checkpoint, stored, storage, shape, cells[path].transposed)
                last = (path, written(path, storage, shape, parts))
            return last[1][name]

        left = projections(config, {f"{path}.weight" for path in places})
        size = sum(nbytes(dtype, shape) for dtype, shape in tensors.values())
        check_room(Path(output), size)
        with staged(output, WEIGHTS, size) as stage:
            write_weights(stage, tensors, data, limit)
            values["quantization_config"] = config_section(storage, left)
            write_json(stage / "config.json", config.for_file(values))
            copy_companions(checkpoint.directory, stage, output)
        before = sum(checkpoint.info(stored).nbytes for stored in sources.values())
        return QuantizeReport(Path(output), len(places), size, before)
