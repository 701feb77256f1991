"""What MindFormers' ``convert_weight.py`` calls: between Hugging Face directories and ``.ckpt`` files.

And what models' own scripts of that name import: tensors of torch and of MindSpore, and how parts are joined in a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

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


def pt2ms(value: Any, dtype: Any = None) -> Any:
    """A torch tensor as MindSpore's, of the same type or of `dtype`, which is MindSpore's."""
    import mindspore as ms

    wide = str(value.dtype) == "torch.bfloat16"  # which NumPy has not
    array = (value.detach().float() if wide else value.detach()).cpu().numpy()
    return ms.Tensor(array, dtype or (ms.bfloat16 if wide else None))


def ms2pt(value: Any, dtype: Any = None) -> Any:
    """A MindSpore tensor as torch's, of the same type or of `dtype`, which is torch's. Needs torch."""
    import mindspore as ms
    import torch

    wide = value.dtype == ms.bfloat16
    found = torch.from_numpy((value.astype(ms.float32) if wide else value).asnumpy())
    return found.to(dtype or (torch.bfloat16 if wide else found.dtype))


def is_lora_param(key: str) -> bool:
    """Whether a tensor is LoRA's, by its name."""
    return "lora" in key.lower()


def qkv_concat_hf2mg(qkv_weights: np.ndarray, num_heads: int, n_kv_heads: int, hidden_size: int) -> np.ndarray:
    """Queries, keys and values one after the other, (Hq + 2 Hkv, In) or a bias (Hq + 2 Hkv,), as Megatron has them: by
    groups, each with the queries that share a head's keys, these keys and its values. Of the same shape.

    Raises:
        InputError: another shape.
    """
    into = hidden_size // (num_heads // n_kv_heads)
    if qkv_weights.ndim > 2 or len(qkv_weights) != hidden_size + 2 * into:
        expected = f"{hidden_size} + 2 · {into} rows were expected"
        raise InputError(f"qkv_weights shape is not supported. It is {qkv_weights.shape}; {expected}")
    parts = np.split(qkv_weights, (hidden_size, hidden_size + into))
    groups = [part.reshape(n_kv_heads, -1, *qkv_weights.shape[1:]) for part in parts]
    return np.concatenate(groups, axis=1).reshape(qkv_weights.shape)


def ffn_concat_hf2mg(ffn_weights: np.ndarray, ffn_hidden_size: int) -> np.ndarray:
    """Gate and up projection one after the other, (2 F, In), as Megatron has them: their rows in turn."""
    return np.stack(np.split(ffn_weights, (ffn_hidden_size,)), axis=1).reshape(ffn_weights.shape)
