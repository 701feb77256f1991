"""Files of tensors that MindSpore wrote, in either of its formats: ``.ckpt``, and safetensors that say so."""

from __future__ import annotations

import contextlib
from pathlib import Path

from model_zoo.checkpoint.ckpt_io import CkptFile
from model_zoo.checkpoint.safetensors_io import SafetensorsFile
from model_zoo.errors import InputError


def opened(path: str | Path) -> CkptFile | SafetensorsFile:
    """A file of MindSpore's in either of its formats."""
    return (SafetensorsFile if Path(path).suffix == ".safetensors" else CkptFile)(path)


def is_mindspores(path: Path) -> bool:
    """Whether MindSpore wrote a file: those of safetensors say so, which others have, too."""
    if path.suffix != ".safetensors" or not path.is_file():
        return path.suffix == ".ckpt"
    with contextlib.suppress(InputError), SafetensorsFile(path) as file:
        return file.metadata.get("format") == "ms"
    return False


def written(place: Path) -> list[Path]:
    """The files of a directory that MindSpore wrote, from the oldest on; none of a file, as a rank table is."""
    return sorted(filter(is_mindspores, place.glob("*")), key=lambda file: (file.stat().st_mtime, file.name))
