"""What a run is made from, as digests: a resumed run is compared with them.

Settings are in recipe.yaml; the content of data files and of the base is not. A checkpoint keeps ``{key: [[name,
digest], …]}`` with the recipe's keys. Of data that streams only the ends count: a change between them is not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

Origins = Mapping[str, list]

# Of data that streams, which may be terabytes, the size and both ends of this many bytes count.
END = 1 << 20


def origins_of(recipe) -> dict[str, list]:
    """The digests of a recipe's data files and of the base beneath its adapter.

    Where every weight is trained the base does not count: a checkpoint holds all weights. It is read from its files, so
    that neither the layout nor what an adapter takes from the weights plays a part.
    """
    from model_zoo.checkpoint.fingerprint import ROUNDINGS, fingerprint
    from model_zoo.checkpoint.reading import Checkpoint
    from pet.data.cache import content_digest
    from pet.data.readers import find_files
    from pet.names import find_model, model_config

    digest = ends_digest if recipe.data.streaming else lambda file: content_digest([file])
    found = {
        f"data.{name}": [[file.name, digest(file)] for file in find_files(paths)]
        for name in ("train", "eval")
        if (paths := getattr(recipe.data, name))
    }
    if recipe.adapter.method != "none":
        directory = find_model(recipe.model.path)
        with Checkpoint(directory) as base:
            found["model.path"] = [[directory.name, fingerprint(model_config(directory), base, ROUNDINGS[:1])]]
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
