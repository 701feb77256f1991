"""Writing a model as a Hugging Face checkpoint directory."""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from model_zoo.arguments import checked
from model_zoo.atomic import read_json, staged, write_json
from model_zoo.checkpoint.directory import INDEX, SINGLE
from model_zoo.checkpoint.dtypes import float_name
from model_zoo.checkpoint.parameters import published_name, read_parameter, whole_base
from model_zoo.checkpoint.safetensors_io import nbytes, write_stream
from model_zoo.errors import InputError, located, shown
from model_zoo.labels import SCORE
from model_zoo.quantization import files
from model_zoo.tokenizers.special import for_any_version

if TYPE_CHECKING:
    from mindspore import nn

log = logging.getLogger("pet")

Described = Mapping[str, tuple[str, tuple[int, ...]]]  # {name: (type, shape)}
METADATA = {"format": "pt"}  # transformers refuses files without it
MAX_SHARD_SIZE = "5GB"

# What lies beside the weights of a published model and belongs to it: tokenizer, generation defaults, the remote code
# that `auto_map` names, the licence.
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "ice_text.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
BESIDE = (
    "generation_config.json",
    "*processor_config.json",
    "*.py",
    "*LICENSE*",
    "NOTICE*",
)
COMPANIONS = (*TOKENIZER, *BESIDE)
WEIGHTS = ("*.safetensors", INDEX)  # whatever of these is left from an earlier checkpoint would be read as well


@checked
def save_pretrained(
    model: nn.Cell,
    directory: str | Path,
    max_shard_size: int | str = MAX_SHARD_SIZE,
    dtype: object = None,
) -> None:
    """Writes config.json and model.safetensors, or shards and their index, as Hugging Face transformers reads them.

    Args:
        model: a `CausalLM`. What adapters added is not written, which is said where any is active: merge them first, or
            save them apart.
        directory: destination. The files take their places together, at the end; weights of an earlier checkpoint
            are removed.
        max_shard_size: bytes per weight file, as a number or as ``"5GB"``, ``"500MiB"``. A single tensor may exceed it.
        dtype: floating-point type of the file; ``None`` keeps each parameter's own, and packed weights packed, as
            bitsandbytes has them. A type dequantises these.

    Of a multimodal model the text model is written, as one by itself (`Config.alone`), which is said.
    A head tied to the embedding is written only where the family's published files hold it, too. Tokenizer and
    generation files of the directory that the model was loaded from are copied along.

    Raises:
        InputError: a network of no known family, or one whose parameters an adapter replaces.
    """
    if getattr(model, "family", None) is None:
        raise InputError(
            f"{directory}: a {type(model).__name__} is of no known family, which config.json would name; "
            "mindspore.save_checkpoint writes its weights"
        )
    config = model.config
    head = f"{SCORE}.weight"
    if model.scoring and published_name(head, model.score.weight) == head:  # the base's, into which one may be merged
        config = config.as_classifier(model.labels)
    own = config.alone
    names = dict(zip(config.shapes(), own.shapes(), strict=True))
    with located(directory):
        parameters = {names[name]: parameter for name, parameter in whole_base(model, config).items()}
    for saved in model.family.saved_tied:
        if saved not in parameters and own.labels is None:
            parameters[saved] = parameters[model.family.tied[saved]]
    target = float_name(dtype) if dtype is not None else None
    packed = {name: parameter.packed_in for name, parameter in parameters.items() if hasattr(parameter, "packed_in")}
    described = {
        name: (target or float_name(parameter.dtype), tuple(parameter.shape))
        for name, parameter in parameters.items()
        if name not in packed
    }
    types = {word for word, _ in described.values()}
    values = own.for_file(own.to_dict(), types.pop() if len(types) == 1 else None)
    values.pop("quantization_config", None)
    arrays = {}
    for name, cell in packed.items():
        if target is not None:
            described[name] = (target, own.shapes()[name])
            continue
        path = name.removesuffix(".weight")
        described.update(files.described(path, cell.storage, cell.shape))
        arrays.update(files.written(path, cell.storage, cell.shape, cell.arrays()))
        values["quantization_config"] = files.config_section(cell.storage, files.projections(own, packed))

    def data(name: str) -> np.ndarray:
        if name in arrays:
            return arrays[name]
        return packed[name].published() if name in packed else read_parameter(parameters[name])

    limit = parse_size(max_shard_size)
    if own is not config:
        log.warning("%s: written as a model of type %s; pet merge keeps the rest", directory, own.model_type)
    if active := [name for name, _ in (model.adapter_state or ((),))[0]]:
        log.warning(
            "%s: written without what the active adapters add (%s); pet.save_adapter writes these, and after pet.merge "
            "or pet.merge_and_unload they are part of the weights",
            directory,
            ", ".join(active),
        )
    with staged(directory, replaces=WEIGHTS) as stage:
        write_weights(stage, described, data, limit)
        write_json(stage / "config.json", values)
        source = getattr(model, "loaded_from", None)
        if source:
            copy_companions(source, stage, directory)


def write_weights(
    stage: Path, tensors: Described, data: Callable[[str], np.ndarray | Iterable[memoryview]], limit: int
) -> None:
    """Writes tensors into one file, or into shards of at most `limit` bytes with their index, one at a time.

    Args:
        tensors: {name: (type, shape)}.
        data: gives a tensor by its name, as `safetensors_io.write_stream` takes it.
    """
    shards, sizes = plan_shards(tensors, limit)
    if len(shards) == 1:
        with open(stage / SINGLE, "wb") as file:
            write_stream(file, tensors, data, METADATA)
        return
    placed = {}
    for number, names in enumerate(shards, 1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with open(stage / file_name, "wb") as file:
            write_stream(file, {name: tensors[name] for name in names}, data, METADATA)
        placed.update(dict.fromkeys(names, file_name))
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(placed.items()))}
    write_json(stage / INDEX, index)


def plan_shards(tensors: Described, limit: int) -> tuple[list[list[str]], dict[str, int]]:
    """The names in each shard, filled in the given order, and the bytes of each tensor."""
    sizes = {name: nbytes(word, shape) for name, (word, shape) in tensors.items()}
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards, sizes


def parse_size(size: int | str) -> int:
    """Bytes of ``"5GB"`` (powers of ten), ``"500MiB"`` (powers of two) or of a plain number."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(i?)B)?\s*", str(size), re.IGNORECASE)
    if match is None:
        raise InputError(f"max_shard_size {size!r} is not a size; expected something like 5GB, 500MiB or 1000000")
    number, unit, binary = match.groups()
    power = " KMGT".index((unit or " ").upper())
    value = float(number) * (1024 if binary else 1000) ** power
    if not 1 <= value < math.inf:
        raise InputError(f"max_shard_size {shown(size)} must be at least a byte, and finite")
    return int(value)


def copy_companions(
    source: str | Path, stage: Path, directory: str | Path, patterns: Iterable[str] = COMPANIONS
) -> None:
    """Copies tokenizer, generation, remote-code and licence files, where there are any that `stage` lacks."""
    source = Path(source)
    if not source.is_dir() or source.resolve() == Path(directory).resolve():
        return
    for pattern in patterns:
        for file in source.glob(pattern):
            copied = stage / file.relative_to(source)
            if file.is_file() and not copied.exists():
                copied.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, copied)
                if pattern == "tokenizer_config.json":
                    settings = read_json(file)
                    if (changed := for_any_version(settings)) != settings:  # else the base's own bytes
                        write_json(copied, changed)
