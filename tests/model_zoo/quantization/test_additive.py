"""Published AQLM checkpoints: sums of vectors out of codebooks, which are float32 once they are read."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pet
from model_zoo.auto import AutoModel
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from pet.info import stored_type

DRAW = np.random.default_rng(0)
FORMS = {  # codebooks, bits, rows and columns of a vector, type of the codes
    "1x16": (1, 16, 1, 8, np.int16),
    "2x8": (2, 8, 1, 8, np.int8),
    "rows": (3, 5, 2, 4, np.int8),
}


def quantised(fixtures, directory, form, others=(), **told):
    """The tiny LLaMA with its projections so, and their numbers.

    Args:
        others: {stored name: array or None} in place of what is there.
        told: settings in place of the right ones.
    """
    count, bits, rows, columns, kind = FORMS[form]
    tensors, right = {}, {}
    for name, array in read_file(fixtures / "llama_gqa" / "model.safetensors").items():
        tensors[name], right[name] = array, array
        if not name.endswith("_proj.weight"):
            continue
        path, (out, into) = name.removesuffix("weight"), array.shape
        codes = DRAW.integers(0, 1 << bits, (out // rows, into // columns, count))
        books = DRAW.standard_normal((count, 1 << bits, rows, columns)).astype(np.float16)
        scales = DRAW.random((out // rows, 1, 1, 1)).astype(np.float16)
        signed = np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes).astype(kind)
        assert (signed < 0).any()
        del tensors[name]
        tensors |= {path + "codes": signed, path + "codebooks": books, path + "scales": scales}
        right[name] = np.empty(array.shape, np.float32)
        for row in range(out):
            for column in range(into):
                each = codes[row // rows, column // columns]
                sum_ = np.float32(0)
                for number in range(count):
                    sum_ += np.float32(books[number, each[number], row % rows, column % columns])
                right[name][row, column] = sum_ * np.float32(scales[row // rows, 0, 0, 0])
    tensors = {name: array for name, array in {**tensors, **dict(others)}.items() if array is not None}
    settings = {"num_codebooks": count, "nbits_per_codebook": bits, "out_group_size": rows, "in_group_size": columns}
    left = [name for name in right if not name.endswith("_proj.weight")]
    section = {"quant_method": "aqlm", "linear_weights_not_to_quantize": left, **settings, **told}
    values = read_config(fixtures / "llama_gqa") | {"quantization_config": section}
    (directory / "config.json").write_text(json.dumps(values))
    write_file(directory / "model.safetensors", tensors)
    return right


@pytest.mark.parametrize("form", FORMS)
def test_sums_of_vectors_times_factors(fixtures, tmp_path, form):
    right = quantised(fixtures, tmp_path, form)
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.names == sorted(right) and not checkpoint.packed
        for name, array in right.items():
            assert (checkpoint.dtype(name), checkpoint.shape(name)) == ("float32", array.shape)
            np.testing.assert_array_equal(checkpoint.read(name), array)
            for some in (slice(7, 61), (slice(3, 33), slice(5, 51)), (slice(None), slice(50, 64)), slice(4, 4)):
                if array.ndim == 2:
                    np.testing.assert_array_equal(checkpoint.read(name, some), array[some])


def test_adapters_are_trained_on_them_and_merged(fixtures, tmp_path):
    base, tuned, merged = (tmp_path / name for name in ("base", "tuned", "merged"))
    base.mkdir()
    right = quantised(fixtures, base, "1x16")
    model = AutoModel.from_pretrained(base, dtype="auto")
    assert all(np.array_equal(model.parameters_dict()[name].asnumpy(), array) for name, array in right.items())
    assert stored_type(read_config(base)) == "float32"
    pet.apply_lora(model, rank=2)
    pet.save_adapter(model, tuned)
    pet.merge_checkpoint(base, tuned, merged)
    assert "quantization_config" not in read_config(merged)
    stored = read_file(merged / "model.safetensors")
    assert stored.keys() == right.keys() and all(np.array_equal(stored[name], right[name]) for name in right)


PATH = "model.layers.0.mlp.up_proj."


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({PATH + "scales": None}, r"up_proj\.scales is missing; an AQLM matrix is codes, codebooks, scales"),
        ({PATH + "codes": None}, r"up_proj\.codes is missing"),
        ({PATH + "weight": np.ones((112, 64), np.float32)}, r"up_proj\.weight lies beside .*up_proj\.codes"),
        ({PATH + "codes": np.zeros((112, 8, 2), np.int16)}, r"codes is int16 \(112, 8, 2\); int8 \(rows, columns, 2"),
        ({PATH + "codes": np.zeros((112, 8, 1), np.int8)}, r"codes is int8 \(112, 8, 1\)"),
        ({PATH + "codebooks": np.zeros((2, 255, 1, 8), np.float16)}, r"codebooks float16 \(2, 255, 1, 8\): \(numb"),
        ({PATH + "scales": np.ones((112, 8, 1, 1), np.float16)}, r"scales is float16 \(112, 8, 1, 1\); \(112, 1, 1"),
        ({PATH + "codes": np.zeros((112, 9, 2), np.int8)}, r"up_proj\.weight has shape \(112, 72\), the model needs"),
    ],
)
def test_parts_that_do_not_fit_are_one_line(fixtures, tmp_path, others, words):
    quantised(fixtures, tmp_path, "2x8", others)
    with pytest.raises(InputError, match=words) as error:
        AutoModel.from_pretrained(tmp_path)
    assert "\n" not in str(error.value)


def test_settings_that_contradict_the_codebooks_are_refused(fixtures, tmp_path):
    quantised(fixtures, tmp_path, "2x8", nbits_per_codebook=16)
    with pytest.raises(InputError, match=r"codebooks \(2, 256, 1, 8\): config.json says nbits_per_codebook 16"):
        Checkpoint(tmp_path)
