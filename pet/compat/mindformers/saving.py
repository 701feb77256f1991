"""MindFormers' ``save_pretrained``: its arguments, for the files that this library writes."""

from __future__ import annotations

import logging
import os

DIRECTORY = "./checkpoint_save"
"""Where MindFormers saves without a directory."""

log = logging.getLogger("pet")


def place_of(directory: str | os.PathLike | None, save_name: str | None) -> str | os.PathLike:
    """The directory to write to; a name of its files is noted, since they have names of their own."""
    if save_name is not None:
        log.warning("save_pretrained: save_name: ignored: files have Hugging Face's names, and the directory is loaded")
    return DIRECTORY if directory is None else directory
