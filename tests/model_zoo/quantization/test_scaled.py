"""Published FP8 checkpoints: codes of 8 bits with factors beside them, which are float32 once they are read."""

from __future__ import annotations

import json

import numpy as np
import pytest

from model_zoo.auto import AutoModel
from model_zoo.checkpoint.dtypes import FLOAT8
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.checkpoint.safetensors_io import read_file, write_stream
from model_zoo.errors import InputError

DRAW = np.random.default_rng(0)
FINE = {"quant_method": "fp8", "weight_block_size": [48, 48], "activation_scheme": "dynamic"}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
BLOCKS = COMPRESSED | {"config_groups": {"group_0": {"weights": {"block_structure": [48, 48]}}}}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
FORMS = {  # quantization_config, name of the factors, type of the codes, and the factors' shape for a matrix
    "blocks": (FINE, "weight_scale_inv", "float8_e4m3", lambda out, into: (-(-out // 48), -(-into // 48))),
    "blocks that divide": (COMPRESSED, "weight_scale", "float8_e4m3", lambda out, into: (out // 8, into // 16)),
    "blocks told": (BLOCKS, "weight_scale", "float8_e5m2", lambda out, into: (-(-out // 48), -(-into // 48))),
    "outputs": (COMPRESSED, "weight_scale", "float8_e4m3", lambda out, into: (out, 1)),
    "outputs of fbgemm": ({"quant_method": "fbgemm_fp8"}, "weight_scale", "float8_e4m3", lambda out, into: (out,)),
    "matrix": (COMPRESSED, "weight_scale", "float8_e4m3", lambda out, into: ()),
    "int8": (COMPRESSED | {"format": "int-quantized"}, "weight_scale", "int8", lambda out, into: (out, 1)),
    "modelopt": (MODELOPT, "weight_scale", "float8_e4m3", lambda out, into: ()),
    "blocks of modelopt": (
        MODELOPT | {"quant_algo": "fp8_pb_wo"},
        "weight_scale",
        "float8_e4m3",
        lambda out, into: (out // 8, 1, into // 16, 1),
    ),
    "modelopt before": ({}, "weight_scale", "float8_e4m3", lambda out, into: ()),
    "bare": (None, None, "float8_e4m3", None),
}


def scaled(fixtures, tmp_path, form, **others):
    """The tiny LLaMA with its projections so, and their numbers; `others` are further tensors in float32, or None."""
    settings, last, kind, grid = form
    values, tensors, right = read_config(fixtures / "llama_gqa"), {}, {}
    for name, array in read_file(fixtures / "llama_gqa" / "model.safetensors").items():
        tensors[name], right[name] = ("float32", array), array
        if name.endswith("_proj.weight"):
            codes = DRAW.integers(0, 120, array.shape) + DRAW.choice([0, 128], array.shape)
            codes = codes.astype(np.uint8)
            wide = codes.view(np.int8).astype(np.float32) if kind == "int8" else FLOAT8[kind][codes]
            tensors[name] = (kind, codes)
            if last is not None:
                factors = np.asarray(DRAW.random(grid(*array.shape)) / 64, np.float32)
                tensors[name.replace("weight", last)] = ("float32", factors)
                tensors[name.replace("weight", "input_scale")] = ("float32", np.ones(1, np.float32))
                tensors[name.replace("weight", "input_zero_point")] = ("int8", np.ones(1, np.int8))
                rows, columns = (*(factors.squeeze((1, 3)) if factors.ndim == 4 else factors).shape, 1, 1)[:2]
                sizes = [
                    48 if count > 1 and "48" in str(settings) else size // count
                    for size, count in zip(array.shape, (rows, columns), strict=True)
                ]
                places = np.ix_(*(np.arange(size) // block for size, block in zip(array.shape, sizes, strict=True)))
                wide = wide * factors.reshape(rows, columns)[places]
            right[name] = wide
    tensors.update((name, ("float32", array)) for name, array in others.items())
    tensors = {name: one for name, one in tensors.items() if one[1] is not None}
    values |= {"quantization_config": settings} if settings else {}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with open(tmp_path / "model.safetensors", "wb") as file:
        described = {name: (kind, array.shape) for name, (kind, array) in tensors.items()}
        write_stream(file, described, lambda name: [memoryview(tensors[name][1].tobytes())], {"format": "pt"})
    return right


@pytest.mark.parametrize("form", FORMS)
def test_codes_times_factors(fixtures, tmp_path, form):
    right = scaled(fixtures, tmp_path, FORMS[form])
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.names == sorted(right) and not checkpoint.packed
        for name, array in right.items():
            assert (checkpoint.dtype(name), checkpoint.shape(name)) == ("float32", array.shape)
            np.testing.assert_array_equal(checkpoint.read(name), array)
            for some in (slice(7, 60), (slice(3, 33), slice(5, 51)), (slice(None), slice(50, 64))):
                if array.ndim == 2:
                    np.testing.assert_array_equal(checkpoint.read(name, some), array[some])
            assert b"".join(map(bytes, checkpoint.blocks(name))) == array.tobytes()


def test_a_model_of_them_has_those_weights(fixtures, tmp_path):
    right = scaled(fixtures, tmp_path, FORMS["blocks"])
    parameters = AutoModel.from_pretrained(tmp_path, dtype="auto").parameters_dict()
    assert all(np.array_equal(parameters[name].asnumpy(), array) for name, array in right.items())


FIRST = "model.layers.0.mlp.up_proj.weight"


def test_factors_that_are_no_numbers_are_refused(fixtures, tmp_path):
    scaled(fixtures, tmp_path, FORMS["matrix"], **{FIRST + "_scale": np.array(np.nan, np.float32)})
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(InputError, match=r"up_proj\.weight holds NaN or infinity"):
        checkpoint.read(FIRST)


@pytest.mark.parametrize(
    ("form", "others", "words"),
    [
        (
            "blocks",
            {FIRST + "_scale_inv": None},
            r"up_proj\.weight is packed \(float8_e4m3.*, but its weight_sc",
        ),
        ("blocks", {FIRST + "_scale": np.ones(1, np.float32)}, "or there are two"),
        ("blocks", {FIRST + "_scale_inv": np.ones((3, 5), np.float32)}, r"\(3, 5\): no factors of .*up_proj"),
        ("blocks", {FIRST + "_scale_inv": np.ones((1, 2), np.float32)}, r"\(1, 2\): no factors of .*up_proj"),
        ("blocks told", {FIRST + "_scale": np.ones((7, 2), np.float32)}, r"\(7, 2\): no factors of .*up_proj"),
        ("int8", {FIRST + "_scale": np.ones((1, 1, 1), np.float32)}, r"\(1, 1, 1\): no factors of .*up_proj"),
        ("int8", {FIRST + "_zero_point": np.ones((112, 1), np.float32)}, "weight_zero_point: not supported"),
    ],
)
def test_parts_that_do_not_fit_are_one_line(fixtures, tmp_path, form, others, words):
    scaled(fixtures, tmp_path, FORMS[form], **others)
    with pytest.raises(InputError, match=words) as error:
        Checkpoint(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(), (1,), (112, 1)], ids=str)
def test_beside_blocks_there_may_be_matrices_of_one_factor_and_of_one_per_output(fixtures, tmp_path, shape):
    factors = np.asarray(DRAW.random(shape) / 64, np.float32)
    scaled(fixtures, tmp_path, FORMS["blocks told"], **{FIRST + "_scale": factors})
    with Checkpoint(tmp_path) as checkpoint:
        codes = FLOAT8["float8_e5m2"][checkpoint.stored(FIRST)]
        np.testing.assert_array_equal(checkpoint.read(FIRST), codes * factors)


def test_what_modelopt_packs_is_refused(fixtures, tmp_path):
    scaled(fixtures, tmp_path, (MODELOPT | {"quant_algo": "NVFP4"}, *FORMS["modelopt"][1:]))
    with pytest.raises(InputError, match=r"modelopt by quant_algo 'NVFP4'; of these FP8, .* open"):
        Checkpoint(tmp_path)


def test_packed_forms_of_compressed_tensors_are_refused(fixtures, tmp_path):
    form = (COMPRESSED | {"format": "nvfp4-pack-quantized"}, *FORMS["outputs"][1:])
    scaled(fixtures, tmp_path, form)
    with pytest.raises(
        InputError, match="compressed-tensors in format 'nvfp4-pack-quantized'; of these float-quantized"
    ):
        Checkpoint(tmp_path)


def test_the_numbers_of_float8_are_pytorch_s():
    torch = pytest.importorskip("torch")
    for word, kind in (("float8_e4m3", torch.float8_e4m3fn), ("float8_e5m2", torch.float8_e5m2)):
        theirs = torch.arange(256, dtype=torch.uint8).view(kind).float().numpy()
        np.testing.assert_array_equal(FLOAT8[word], theirs)
