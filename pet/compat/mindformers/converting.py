"""What MindFormers' ``convert_weight.py`` calls: between Hugging Face directories and ``.ckpt`` files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.compat.ckpt.doors import Report, to_directory, to_file
from pet.compat.ckpt.names import Form
from pet.compat.mindformers.logs import logger
from pet.recipe.translation import is_off

WITHOUT_MEANING = ("n_head", "hidden_size", "layers", "is_pretrain", "telechat_type", "model", "reversed")
"""The script's options for other models, or for what config.json says; it hands all of them on."""


def convert_pt_to_ms(input_path, output_path: str | os.PathLike | None = None, dtype=None, **more: Any) -> Report:
    """Writes a Hugging Face checkpoint as a ``.ckpt`` file.

    Args:
        input_path: the directory, or one of the files in it; or all arguments as an object with their names.
        output_path: the file; without an ending it gets ``.ckpt``.
        dtype: MindSpore's or torch's type, or its name; None keeps each tensor's own.
        more: ``qkv_concat``; what means something else than `WITHOUT_MEANING` is named.

    Raises:
        InputError: see `to_file`.
    """
    source, output, word, form = _given(input_path, output_path, dtype, more)
    source = source.parent if source.is_file() else source
    return _said(to_file(source, output if output.suffix else output.with_suffix(".ckpt"), form, word))


convert_weight = convert_pt_to_ms


def convert_ms_to_pt(input_path, output_path: str | os.PathLike | None = None, dtype=None, **more: Any) -> Report:
    """Writes a ``.ckpt`` file as a Hugging Face directory.

    Args:
        input_path: the file; the model's config.json beside it says what it is, where no preset has its shapes.
        output_path: the directory. Of a file's name (``x.bin``) it is that without the ending.
        dtype, more: see `convert_pt_to_ms`.

    Raises:
        InputError: see `to_directory`.
    """
    source, output, word, form = _given(input_path, output_path, dtype, more)
    output = output.with_suffix("") if output.suffix in (".bin", ".pt", ".pth", ".safetensors") else output
    return _said(to_directory(source, output, form=form, dtype=word))


def _given(source: Any, output: Any, dtype: Any, more: dict[str, Any]) -> tuple[Path, Path, str | None, Form | None]:
    if not isinstance(source, (str, os.PathLike)):
        more = dict(vars(source))
        source, output, dtype = (more.pop(name, None) for name in ("input_path", "output_path", "dtype"))
    if not source or not output:
        raise InputError("convert_weight: input_path and output_path are needed")
    form = Form(qkv_concat=True) if more.pop("qkv_concat", None) else None
    for name, value in more.items():
        if name not in WITHOUT_MEANING and not is_off(value):
            logger.warning("convert_weight: %s: %s: ignored: config.json says how the model is made", name, value)
    return Path(source).expanduser(), Path(output), dtype and str(dtype).rpartition(".")[2].lower(), form


def _said(report: Report) -> Report:
    logger.info("%s", report)
    return report
