"""A checkpoint as a GGUF file, one tensor in memory at a time and without MindSpore."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo.checkpoint.reading import Checkpoint, assignment, check_tied, read_config
from model_zoo.configs import Config
from model_zoo.counting import config_of
from model_zoo.errors import InputError, nearest
from model_zoo.generation_settings import FIELDS, is_asked
from model_zoo.rope_config import rotary_scale
from model_zoo.tokenizers import AutoTokenizer
from model_zoo.tokenizers.files import TokenizerFiles
from model_zoo.tokenizers.style_templates import template_of
from pet.files import atomic_file
from pet.gguf.architectures import Names, architecture_of
from pet.gguf.vocabulary import add_vocabulary
from pet.installation import needed

log = logging.getLogger("pet")

# our name → GGUF's
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}
SHORT = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
YARN = {"beta_fast": 32, "beta_slow": 1, "truncate": True}
"""What llama.cpp's programs take, whatever a file says."""


def type_name(dtype: str) -> str:
    """The type of a GGUF file's matrices by its name here or there; InputError for another."""
    name = SHORT.get(str(dtype).lower(), str(dtype).lower())
    if name not in TYPES:
        raise InputError(f"--dtype: {dtype!r} is no type of a GGUF file{nearest(name, TYPES)}")
    return name


def write_model(directory: str | Path, output: str | Path, dtype: str = "float16", name: str | None = None) -> str:
    """Writes a checkpoint as one GGUF file that llama.cpp runs.

    Args:
        directory: Hugging Face checkpoint of a LLaMA, Mistral, Qwen or GLM-4, with its tokenizer.
        dtype: of the matrices: float32, float16, bfloat16 or q8_0 (8 bits with a factor for each 32 weights). Matrices
            whose rows are no multiple of 32 stay in float16 with q8_0. Norms and biases are float32 always.
        name: of the model, inside the file; by default the directory's.

    Raises:
        InputError: a family or a tokenizer that llama.cpp does not have, a directory that is no checkpoint, or the
            package gguf is missing.
    """
    gguf = needed("gguf", "gguf", "a GGUF file")
    kind = gguf.GGMLQuantizationType[TYPES[type_name(dtype)]]
    values = read_config(directory)
    config = config_of(values)
    architecture = architecture_of(config)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    own = TokenizerFiles(directory).generation_config
    asked = [name for name in FIELDS if name != "do_sample" and is_asked(name, own.get(name))]
    if asked := [*asked, *(["stop_strings"] if own.get("stop_strings") else [])]:
        log.warning("%s: has no place for generation_config.json's %s; say them to llama.cpp", output, ", ".join(asked))
    with Checkpoint(directory) as checkpoint:
        family = config.family
        sources, copies = assignment(checkpoint, config.shapes(), family.tied, family.ignored_tensors)
        check_tied(checkpoint, sources, copies)
        count = 0

        def write(path: str) -> None:
            nonlocal count
            writer = gguf.GGUFWriter(path, architecture.name)
            writer.add_name(name or Path(directory).resolve().name)
            writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}" if kind.name != "F32" else "ALL_F32"])
            if kind.name == "Q8_0":
                writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            _add_sizes(writer, config, architecture.rope(config))
            add_vocabulary(writer, tokenizer, config.dims.vocab)
            if template := template_of(tokenizer):
                writer.add_chat_template(template)
            count = _write_tensors(writer, kind, config, lambda name: checkpoint.read(sources[name], dtype="float32"))
            writer.close()

        atomic_file(output, write)
    return (
        f"{output}: {count} tensors of {architecture.name} in {kind.name}, {Path(output).stat().st_size / 1e6:.1f} MB"
    )


def _add_sizes(writer, config: Config, rope: dict[str, Any]) -> None:
    dims = config.dims
    writer.add_block_count(dims.layers)
    # llama.cpp's attention in these architectures is full, which a window's is up to its length
    writer.add_context_length(min([dims.context, *filter(None, config.windows)]))
    writer.add_embedding_length(dims.hidden)
    writer.add_feed_forward_length(dims.ffn)
    writer.add_head_count(dims.heads)
    writer.add_head_count_kv(dims.kv_heads)
    writer.add_key_length(dims.head_dim)
    writer.add_value_length(dims.head_dim)
    writer.add_vocab_size(dims.vocab)
    writer.add_layer_norm_rms_eps(next(cell.eps for cell in config.tensors().values() if cell.eps))
    writer.add_rope_dimension_count(int(dims.head_dim * rope["partial_rotary_factor"]))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType[rope["rope_type"].upper()])
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        if found := [key for key, value in YARN.items() if rope.get(key) not in (None, value)]:
            own = ", ".join(f"{key} {rope[key]} instead of {YARN[key]}" for key in found)
            raise InputError(f"--format gguf: YaRN with {own}: llama.cpp has no place for it")
        own = rotary_scale({"rope_type": "yarn", "factor": rope["factor"]})  # which llama.cpp takes by itself
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(rotary_scale(rope) / own)


def _write_tensors(writer, kind, config: Config, read: Callable[[str], np.ndarray]) -> int:
    """Writes header, tensor table and tensors; returns how many there are."""
    import gguf

    architecture, names = architecture_of(config), Names(config)
    shapes, sizes = config.shapes(), gguf.GGML_QUANT_SIZES
    kinds, extra = {}, {}
    rope = architecture.rope(config)
    if rope["rope_type"] == "llama3":
        extra["rope_freqs.weight"] = _frequency_factors(config, rope)
    for name, values in extra.items():
        writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
    kept = 0
    for name, shape in shapes.items():
        kinds[name] = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else kind
        if shape[-1] % sizes[kinds[name]][0]:
            kinds[name], kept = gguf.GGMLQuantizationType.F16, kept + 1
        block, held = sizes[kinds[name]]
        writer.add_tensor_info(
            names(name), shape, np.dtype(np.float32), math.prod(shape) // block * held, raw_dtype=kinds[name]
        )
    if kept:
        log.warning("%d matrices stay in float16: their rows are no multiple of 32, which q8_0 needs", kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for values in extra.values():
        writer.write_tensor_data(values)
    for name in shapes:
        values = architecture.rows(name, read(name), config)
        writer.write_tensor_data(gguf.quants.quantize(np.ascontiguousarray(values), kinds[name]))
    return len(shapes) + len(extra)


def _frequency_factors(config: Config, rope: dict[str, Any]) -> np.ndarray:
    """By what llama.cpp divides each pair's step per position."""
    from model_zoo.rotary import rotary_frequencies

    width = int(config.dims.head_dim * rope["partial_rotary_factor"])
    plain = rotary_frequencies(width, rope["rope_theta"])
    return (plain / rotary_frequencies(width, rope["rope_theta"], rope)).astype(np.float32)
