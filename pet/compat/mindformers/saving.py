"""MindFormers' ``save_pretrained`` and ``save_vocabulary``: their arguments, for the files that this library writes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from model_zoo.atomic import atomic_write
from model_zoo.tokenizers import Tokenizer
from model_zoo.tokenizers.files import COMPANIONS

DIRECTORY = "./checkpoint_save"
"""Where MindFormers saves without a directory."""

log = logging.getLogger("pet")


def place_of(directory: str | os.PathLike | None, save_name: str | None) -> str | os.PathLike:
    """The directory to write to; a name of its files is noted, since they have names of their own."""
    if save_name is not None:
        log.warning("save_pretrained: save_name: ignored: files have Hugging Face's names, and the directory is loaded")
    return DIRECTORY if directory is None else directory


def save_vocabulary(
    tokenizer: Tokenizer, directory: str | os.PathLike, prefix: str | None, as_file: bool
) -> tuple[str, ...] | None:
    """Writes the files of a tokenizer's vocabulary into a directory, whose names may have a prefix; gives their paths.

    Args:
        as_file: what is no directory is the file's own path, and there is no prefix. Otherwise nothing is written where
            there is no directory, as there, and None given.
    """
    files = {name: data for name, data in tokenizer._files.items() if name not in COMPANIONS and name[-6:] != ".jinja"}
    place, before, there = Path(directory), f"{prefix}-" if prefix and not as_file else "", os.path.isdir(directory)
    if not there and not as_file:
        log.error("save_vocabulary: %s is no directory; nothing is written", directory)
        return None
    paths = {place / f"{before}{name}" if there else place: data for name, data in files.items()}
    for path, data in paths.items():
        with atomic_write(path, len(data)) as file:
            file.write(data)
    return tuple(map(str, paths))
