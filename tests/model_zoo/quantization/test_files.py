"""Packed checkpoints: those of transformers with bitsandbytes in tests/fixtures, GPTQ's and AWQ's by their layout."""

from __future__ import annotations

import json

import mindspore as ms
import numpy as np
import pytest
from packed_files import KINDS, changed

from model_zoo.auto import AutoConfig, AutoModel
from model_zoo.checkpoint.fingerprint import fingerprint
from model_zoo.checkpoint.reading import Checkpoint, load_into, read_config
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization
from model_zoo.quantization.cells import quantized_cells

STATE = "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4"


@pytest.fixture(autouse=True)
def eager():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)


def test_a_packed_checkpoint_opens_and_computes_what_its_dequantised_weights_do(directory):
    model, reference = AutoModel.from_pretrained(directory), np.load(directory / "reference.npz")
    assert len(quantized_cells(model)) == 14
    np.testing.assert_allclose(model(reference["ids"]).asnumpy(), reference["logits"], atol=1e-4)


def test_its_numbers_are_the_reference_s(directory, name):
    reference = np.load(directory / "reference.npz")
    with Checkpoint(directory) as checkpoint:
        assert set(checkpoint.names) == set(AutoConfig.from_pretrained(directory).shapes())
        for stored in checkpoint.packed:
            if f"w.{stored}" in reference:
                right = reference[f"w.{stored}"]
                mine = checkpoint.read(stored)
                if name == "int8":  # the reference divides by 127 where bitsandbytes multiplies by 1/127
                    np.testing.assert_allclose(mine, right, rtol=2.5e-7)
                    right = mine
                assert np.array_equal(mine, right)
                some = (slice(3, 9), slice(2, 40))
                assert np.array_equal(checkpoint.read(stored, some), right[some])
                assert b"".join(bytes(block) for block in checkpoint.blocks(stored)) == right.tobytes()
                assert checkpoint.info(stored)[:2] == ("float32", right.shape)


def test_the_base_packed_while_loading_is_the_packed_checkpoint(fixtures, directory, name):
    kind, double = KINDS[name]
    there = AutoModel.from_pretrained(directory)
    asked = Quantization(kind, double=double)
    here = AutoModel.from_pretrained(fixtures / "bitsandbytes/base", quantization=asked)
    expected = {parameter.name: parameter.asnumpy() for parameter in there.get_parameters()}
    found = {parameter.name: parameter.asnumpy() for parameter in here.get_parameters()}
    assert set(found) == set(expected)
    assert all(np.array_equal(found[key], expected[key]) for key in found)


def test_a_packed_checkpoint_fills_a_plain_model_with_its_numbers(directory):
    config = AutoConfig.from_pretrained(directory)
    plain = AutoModel.from_config(config)
    load_into(plain, directory)
    packed = AutoModel.from_pretrained(directory)
    values = {parameter.name: parameter.asnumpy() for parameter in plain.get_parameters()}
    for path, cell in quantized_cells(packed).items():
        assert np.array_equal(values[path], cell.dequantized())


def test_a_fingerprint_is_that_of_the_files(fixtures, directory, name):
    base = fixtures / "bitsandbytes/base"
    with Checkpoint(base) as checkpoint:
        of_base = fingerprint(read_config(base), checkpoint)
    with Checkpoint(directory) as checkpoint:
        of_packed = fingerprint(read_config(directory), checkpoint)
    assert of_base != of_packed
    model = AutoModel.from_pretrained(directory)
    assert fingerprint(model.config.to_dict(), model) == of_packed
    kind, double = KINDS[name]
    model = AutoModel.from_pretrained(base, quantization=Quantization(kind, double=double))
    assert fingerprint(model.config.to_dict(), model) == of_base
    cell = next(iter(quantized_cells(model).values()))
    cell.weight.asnumpy()[0] ^= 0x11
    assert fingerprint(model.config.to_dict(), model) != of_base


def state(**changes):
    def change(array):
        return np.frombuffer(json.dumps({**json.loads(array.tobytes()), **changes}).encode(), np.uint8)

    return change


def lacking(key):
    def change(array):
        values = json.loads(array.tobytes())
        del values[key]
        return np.frombuffer(json.dumps(values).encode(), np.uint8)

    return change


def nan(array):
    array = array.copy()
    array[3] = np.nan
    return array


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({STATE: lambda array: array[:-7]}, "no quant_state of bitsandbytes"),
        ({STATE: None}, r"up_proj\.weight is packed \(uint8\), but its quant_state is missing"),
        ({STATE: state(quant_type="nf5")}, "quant_type is 'nf5'"),
        ({STATE: state(quant_type="fp4")}, "quant_type is 'fp4'"),
        ({STATE: state(blocksize=128)}, r"absmax is float32 \(384,\); float32 \(192,\) was expected"),
        ({STATE: state(blocksize=63)}, "block 63"),
        ({STATE: state(shape=[192, 129])}, "absmax is"),
        ({STATE: state(shape=[24576])}, r"shape is \[24576\]"),
        ({STATE: lacking("shape")}, "lacks 'shape'"),
        ({"model.layers.0.mlp.up_proj.weight": lambda array: array[:-1]}, "12287 bytes; 12288 bytes were expected"),
        ({"model.layers.0.mlp.up_proj.weight.absmax": None}, "up_proj.weight.absmax is missing"),
        ({"model.layers.0.mlp.up_proj.weight.quant_map": lambda array: array[:8]}, "quant_map is float32"),
        ({"model.layers.0.mlp.up_proj.weight.absmax": nan}, "up_proj.weight.absmax holds NaN"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # a function's address is not the same in two processes
)
def test_a_damaged_matrix_is_one_clear_line(fixtures, tmp_path, tensors, words):
    directory = changed(fixtures, tmp_path, **tensors)
    with pytest.raises(InputError, match=words) as error:
        AutoModel.from_pretrained(directory)
    assert "\n" not in str(error.value) and str(directory) in str(error.value)


@pytest.mark.parametrize("offset", [10**400, float("inf"), "x", None], ids=["huge", "infinite", "text", "none"])
def test_an_offset_of_factors_that_is_no_number_is_refused(fixtures, tmp_path, offset):
    with pytest.raises(InputError, match="no quant_state of bitsandbytes"):
        Checkpoint(changed(fixtures, tmp_path, "nf4_double", **{STATE: state(nested_offset=offset)}))


def test_factors_of_factors_in_other_blocks_are_refused(fixtures, tmp_path):
    with pytest.raises(InputError, match="nested_blocksize is 128, nested_offset"):
        Checkpoint(changed(fixtures, tmp_path, "nf4_double", **{STATE: state(nested_blocksize=128)}))


@pytest.mark.parametrize(
    "text", ["x", "[1]", "{}", "[" * 100_000, '{"type": "nf5", "block": 64, "double": false, "skip": []}']
)
def test_what_an_adapter_says_of_its_base_is_understood_or_refused(text):
    asked = Quantization("nf4", 64, True, ("lm_head",))
    values = {"type": asked.type, "block": asked.block, "double": asked.double, "skip": asked.skip}
    read = Quantization.read(json.dumps(values))
    assert (read.type, read.block, read.double, read.skip) == (asked.type, asked.block, asked.double, asked.skip)
    with pytest.raises(InputError, match=r"base_quantization .* is not understood: "):
        Quantization.read(text)


def test_int8_without_its_factors_is_refused(fixtures, tmp_path):
    with pytest.raises(InputError, match="its SCB or weight_scale is missing"):
        Checkpoint(changed(fixtures, tmp_path, "int8", **{"model.layers.1.mlp.up_proj.SCB": None}))


def test_int8_in_the_order_of_a_gpu_is_refused(fixtures, tmp_path):
    """bitsandbytes before 0.45 wrote such files after a forward pass; today's refuses them, too."""
    key = "model.layers.1.mlp.up_proj.weight_format"
    with pytest.raises(InputError, match=f"{key} is 3: not row by row"):
        Checkpoint(changed(fixtures, tmp_path, "int8", **{key: np.array(3, np.uint8)}))


def test_unknown_methods_and_contradictions_are_refused(fixtures, tmp_path):
    with pytest.raises(InputError, match="quant_method 'eetq' is not supported"):
        Checkpoint(changed(fixtures, tmp_path, "base", config={"quant_method": "eetq"}))
    for number, (section, words) in enumerate([("nf4", "is 'nf4'"), ({"quant_method": 4}, "quant_method is 4")]):
        with pytest.raises(InputError, match=f"config.json: quantization_config.*{words}; .* was expected"):
            Checkpoint(changed(fixtures, tmp_path / str(number), "base", config=section))
    with pytest.raises(InputError, match="nf4, blocks of 64 already, int8 was asked for"):
        AutoModel.from_pretrained(fixtures / "bitsandbytes/nf4", quantization=Quantization("int8"))
    assert AutoModel.from_pretrained(fixtures / "bitsandbytes/nf4", quantization=Quantization("nf4"))
    with pytest.raises(InputError, match=r"skip: 'up_prj' names no projection.*up_proj"):
        AutoModel.from_pretrained(fixtures / "bitsandbytes/base", quantization=Quantization("nf4", skip=("up_prj",)))
    with pytest.raises(InputError, match="192 inputs are no multiple of the block of 128; list it in skip"):
        AutoModel.from_pretrained(fixtures / "bitsandbytes/base", quantization=Quantization("int4", 128))
    with pytest.raises(InputError, match="block 48: nf4 has blocks of 32, 64"):
        Quantization("nf4", 48)


def test_what_is_skipped_stays_as_it_is(fixtures):
    base = fixtures / "bitsandbytes/base"
    some = AutoModel.from_pretrained(base, quantization=Quantization("nf4", skip=("lm_head", "layers.0.mlp")))
    assert len(quantized_cells(some)) == 14 - 3
    every = AutoModel.from_pretrained(base, quantization=Quantization("nf4", skip=()))
    assert len(quantized_cells(every)) == 15 and "lm_head.weight" in quantized_cells(every)
