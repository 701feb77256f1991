"""What a run is made from, as digests: a resumed run is compared with them.

Settings are in recipe.yaml; the content of data files and of the base is not. A checkpoint keeps ``{key: [[name,
digest], …]}`` with the recipe's keys. Of data that streams only the ends count: a change between them is not seen.
A script's run has objects in the place of files: of these the weights that stay as they are count, and of data what
tells most others from them (`data_seen`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from model_zoo.checkpoint.dtypes import STORAGE, as_storage, convert
from model_zoo.checkpoint.parameters import read_parameter
from pet.data.dataset import TokenDataset
from pet.data.loader import BatchSource
from pet.data.streaming import StreamDataset

Origins = Mapping[str, list]

# Of data that streams, which may be terabytes, the size and both ends of this many bytes count.
END = 1 << 20

# Samples, or batches, of data in memory whose content counts; of the others the length does.
SPREAD = 64

# Numbers of a parameter in memory that count: what began otherwise differs nearly everywhere.
SAMPLED = 1 << 16


def sources(recipe, base: bool = True) -> dict[str, list[Path]]:
    """The files that hold a recipe's data and, unless `base` is False, its base, by the recipe's keys.

    Raises:
        InputError: there are none.
    """
    from pet.data.finding import find_files
    from pet.names import find_model

    files = {name: getattr(recipe.data, name) for name in ("train", "eval", "test")}
    found = {f"data.{name}": find_files(paths) for name, paths in files.items() if paths}
    if base and not recipe.model.from_scratch:
        found["model.path"] = sorted(file for file in find_model(recipe.model.path).iterdir() if file.is_file())
    return found


def versions(files: Mapping[str, list[Path]]) -> tuple:
    """What tells one machine's files from another's, and from what they were before: place, size and time of each."""
    from pet.data.finding import parts_of

    parts = [(key, part) for key, each in files.items() for file in each for part in parts_of(file)]
    stats = [(key, str(part), part.stat()) for key, part in parts]
    return tuple((key, name, at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns) for key, name, at in stats)


_known: dict[tuple, dict[str, list]] = {}


def trains_every_weight(adapter) -> bool:
    """Whether a recipe's section trains all weights of its base."""
    return adapter.method == "none" and adapter.trained is None


def origins_of(recipe, base: bool | None = None) -> dict[str, list]:
    """The digests of a recipe's data files and of the base beneath its adapter, taken once while the files stay.

    Where every weight is trained the base does not count, of which nothing is left. It is read from its files, so
    that neither the layout nor what an adapter takes from the weights plays a part.

    Args:
        recipe: names them.
        base: whether the base counts; None: where there is an adapter, or weights that stay.
    """
    from model_zoo.checkpoint.fingerprint import ROUNDINGS, fingerprint
    from model_zoo.checkpoint.reading import Checkpoint
    from pet.data.cache import content_digest
    from pet.names import find_model, model_config

    base = not trains_every_weight(recipe.adapter) if base is None else base
    digest = ends_digest if recipe.data.streaming else lambda file: content_digest([file])
    found = {}
    for key, files in sources(recipe, base).items():
        known = (recipe.data.streaming, *versions({key: files}))
        if known not in _known and key != "model.path":
            _known[known] = [[file.name, digest(file)] for file in files]
        elif known not in _known:
            directory = find_model(recipe.model.path)
            with Checkpoint(directory) as weights:
                of_weights = fingerprint(model_config(directory), weights, ROUNDINGS[:1])
            _known[known] = [[directory.name, of_weights]]
        found[key] = _known[known]
    return found


def origins_of_objects(model, divided: bool) -> dict[str, list]:
    """The digest of the weights beneath a script's adapters. Of a divided model there is none: it would depend on the
    layout, and a checkpoint goes on in any."""
    frozen = [one for one in model.get_parameters() if not (one.requires_grad or hasattr(one, "adapter"))]
    found = weights(frozen, "bfloat16")
    digest = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()
    return {"model": [["base", digest]]} if found and not divided else {}


def data_seen(feed, replicas: int) -> str | None:
    """A script's training data in some words; None where nothing can be told.

    Args:
        feed: see `pet.train.feed`. Of a user's own dataset the number of rows counts: what is in them may be drawn.
        replicas: that share the data. A list of batches is one replica's, and depends on the layout.
    """
    data, batches = getattr(feed, "dataset", None), getattr(feed, "list", None)
    if isinstance(data, TokenDataset):
        arrays = (array for index in spread(len(data)) for array in data[index])
        return f"{len(data)} samples ({arrays_digest(data.lengths, *arrays)})"
    if batches and replicas == 1:
        arrays = (batches[index][name] for index in spread(len(batches)) for name in ("input_ids", "labels"))
        return f"{len(batches)} batches ({arrays_digest(*arrays)})"
    if isinstance(feed, BatchSource):
        return f"{data.rows if isinstance(data, StreamDataset) else len(data)} rows"
    return None


def spread(count: int) -> range:
    """Some places of so many, from the first to the last."""
    return range(0, count, -(-count // SPREAD))


def arrays_digest(*arrays) -> str:
    """Of shapes and numbers."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest()[:8]


def weights(parameters: Iterable, rounding: str | None = None) -> dict[str, str]:
    """{parameter: digest of its shape and of `SAMPLED` of its numbers}, but for those that are no weights.

    Args:
        parameters: of MindSpore.
        rounding: a type that floats are rounded to, so that they count alike however they are stored.
    """
    found = {}
    for parameter in parameters:
        if getattr(parameter, "buffer", False):
            continue
        numbers, word = as_storage(read_parameter(parameter).reshape(-1))
        sample = numbers[:: max(1, numbers.size // SAMPLED)]
        if rounding and word in STORAGE:
            sample, word = convert(sample, word, rounding), rounding
        text = f"{parameter.shape} {word}".encode()
        found[parameter.name] = hashlib.sha256(text + sample.tobytes()).hexdigest()[:16]
    return found


def ends_digest(file: Path) -> str:
    """A digest of a file's size, beginning and end."""
    digest, size = hashlib.sha256(), file.stat().st_size
    digest.update(str(size).encode())
    with open(file, "rb") as stream:
        digest.update(stream.read(END))
        stream.seek(max(0, size - END))
        digest.update(stream.read(END))
    return digest.hexdigest()


def differences(before: Origins, now: Origins) -> Iterator[str]:
    """One sentence per change. A key that only one side has is a changed setting, which is reported elsewhere."""
    for key in before.keys() & now.keys():
        old, new = dict(before[key]), dict(now[key])
        changed = [f"{name} has another content" for name in new if name in old and new[name] != old[name]]
        changed += [f"{name} is new" for name in new if name not in old]
        changed += [f"{name} is gone" for name in old if name not in new]
        if [value for _, value in before[key]] != [value for _, value in now[key]]:
            yield f"{key}: {', '.join(changed) or 'the files are in another order'}"
