"""Files of GPTQ, AWQ and compressed-tensors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from mindspore.common.np_dtype import bfloat16

from model_zoo.auto import AutoConfig, AutoModel
from model_zoo.checkpoint.reading import Checkpoint, load_into, read_config
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization
from model_zoo.quantization.cells import quantized_cells

# GPTQ and AWQ -------------------------------------------------------------------------------------------------------


def packed_integers(values, axis, order):
    """uint8 codes → int32 of eight of them along an axis, as the two formats describe it."""
    values = np.moveaxis(values, axis, -1).astype(np.uint32)
    eights = values.reshape(*values.shape[:-1], -1, 8)
    found = sum(eights[..., number] << (4 * place) for place, number in enumerate(order))
    return np.ascontiguousarray(np.moveaxis(found, -1, axis)).astype(np.uint32).view(np.int32)


def stream(values, bits):
    """uint8 codes ``(n, out)`` → int32: those of each column one behind the other, the first in the lowest bits."""
    columns = [sum(int(code) << bits * place for place, code in enumerate(column)) for column in values.T]
    words = [np.frombuffer(one.to_bytes(len(values) * bits // 8, "little"), np.int32) for one in columns]
    return np.ascontiguousarray(np.stack(words, 1))


def layers_apart(fixtures):
    """What the fixture's file holds besides the matrices of its layers, and {name: shape} of these."""
    base = read_file(fixtures / "bitsandbytes/base/model.safetensors")
    shapes = {name: value.shape for name, value in base.items() if value.ndim == 2 and "layers" in name}
    return {name: value for name, value in base.items() if name not in shapes}, shapes


def integer_checkpoint(
    fixtures,
    tmp_path,
    method,
    group,
    layout=None,
    bias=None,
    scale="float16",
    bits=4,
    mixed=False,
    own=None,
    **settings,
):
    """A checkpoint in one of the formats, and its matrices in float32.

    Args:
        bias: what a bias that the model has not is filled with.
        scale: type of the factors.
        mixed: whether groups are of inputs that are no neighbours.
        own: {last part of a path: its bits} of those with others.
        settings: others of quantization_config.
    """
    generator, (arrays, shapes), matrices = np.random.default_rng(0), layers_apart(fixtures), {}
    for name, (out, into) in shapes.items():
        path = name.removesuffix(".weight")
        width = (own or {}).get(path.rpartition(".")[2], bits)
        size = into if group == -1 else group
        count = -(-into // size)
        codes = generator.integers(0, 1 << width, (into, out)).astype(np.uint8)
        zeros = generator.integers(0, 1 << width, (count, out)).astype(np.uint8)
        scales = (generator.random((count, out)) * 0.02 + 0.001).astype(scale).astype(np.float32)
        order = (0, 2, 4, 6, 1, 3, 5, 7) if method == "awq" else range(8)
        less = method == "gptq" and "gptq_v2" not in (layout, settings.get("format"))
        stored = zeros - 1 & 7 if less and width == 3 else zeros
        if width == 4:
            arrays[f"{path}.qweight"] = packed_integers(codes, 1 if method == "awq" else 0, order)
            arrays[f"{path}.qzeros"] = packed_integers(stored, 1, order)
        else:
            arrays[f"{path}.qweight"], arrays[f"{path}.qzeros"] = stream(codes, width), stream(stored.T, width).T
        if less and width != 3:  # of whole integers, as GPT-QModel does it: a zero of 0 borrows
            arrays[f"{path}.qzeros"] = arrays[f"{path}.qzeros"] - {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}[width]
        arrays[f"{path}.scales"] = scales.astype(scale)
        if bias is not None:
            arrays[f"{path}.bias"] = np.full(out, bias, np.float16)
        groups = (generator.permutation(into) if mixed else np.arange(into)) // size
        if method == "gptq":
            arrays[f"{path}.g_idx"] = groups.astype(np.int32)
        matrices[name] = ((codes - zeros.astype(np.float64)[groups]) * scales.astype(np.float64)[groups]).T
        matrices[name] = matrices[name].astype(np.float32)
    directory = tmp_path / method
    directory.mkdir()
    write_file(directory / "model.safetensors", arrays)
    values = read_config(fixtures / "bitsandbytes/base")
    values["quantization_config"] = {"quant_method": method, "bits": bits, "group_size": group, **settings}
    if layout:
        values["quantization_config"]["checkpoint_format"] = layout
    (directory / "config.json").write_text(json.dumps(values))
    return directory, matrices


@pytest.mark.parametrize(
    ("method", "group", "layout", "others"),
    [
        ("gptq", 32, None, {}),
        ("gptq", 64, "gptq_v2", {}),
        ("gptq", 64, None, {"format": "gptq_v2"}),
        ("gptq", -1, None, {"bias": 0.0}),  # AutoGPTQ gave every matrix one
        ("awq", 64, None, {"scale": bfloat16}),
        ("awq", 32, None, {"version": None}),
    ],
)
def test_gptq_and_awq_files_open_exactly(fixtures, tmp_path, method, group, layout, others):
    directory, matrices = integer_checkpoint(fixtures, tmp_path, method, group, layout, **others)
    model = AutoModel.from_pretrained(directory)
    cells = quantized_cells(model)
    assert set(cells) == set(matrices)
    for name, matrix in matrices.items():
        assert np.array_equal(cells[name].dequantized(), matrix)
    ids = np.arange(3, 11).reshape(1, -1)
    plain = AutoModel.from_config(AutoConfig.from_pretrained(directory))
    load_into(plain, directory)
    np.testing.assert_allclose(model(ids).asnumpy(), plain(ids).asnumpy(), atol=1e-4)
    with Checkpoint(directory) as checkpoint:  # what plans go by
        assert {*Quantization.of(checkpoint, model.config).places(model.config)} == {name[:-7] for name in matrices}


@pytest.mark.parametrize(
    ("group", "others"),
    [
        (32, {"bits": 8}),
        (64, {"bits": 3, "mixed": True, "bias": 0.0}),
        (-1, {"bits": 2, "layout": "gptq_v2"}),
        (32, {"bits": 8, "own": {"down_proj": 2}, "dynamic": {"+:.*down_proj": {"bits": 2}, "-:.*lm_head": {}}}),
        (32, {"mixed": True, "desc_act": True, "scale": bfloat16}),
        (72, {}),  # the last group has fewer inputs
    ],
    ids=str,
)
def test_other_forms_of_gptq_open_exactly_and_unpacked(fixtures, tmp_path, group, others):
    directory, matrices = integer_checkpoint(fixtures, tmp_path, "gptq", group, **others)
    with Checkpoint(directory) as checkpoint:
        assert not checkpoint.packed and not [
            name for name in checkpoint if name.rpartition(".")[2] in ("qweight", "g_idx")
        ]
        for name, matrix in matrices.items():
            assert np.array_equal(checkpoint.read(name), matrix)
            assert np.array_equal(checkpoint.read(name, (slice(3, 40), slice(5, 61))), matrix[3:40, 5:61])
    parameters = AutoModel.from_pretrained(directory).parameters_dict()
    anew = quantized_cells(AutoModel.from_pretrained(directory, quantization=Quantization("int8")))
    for name, matrix in matrices.items():
        assert np.array_equal(parameters[name].asnumpy(), matrix)
        assert np.abs(anew[name].dequantized() - matrix).max() < np.abs(matrix).max() / 127


@pytest.mark.parametrize(
    ("bits", "zeros", "mixed"), [(4, False, False), (4, True, False), (8, False, True), (3, True, False)]
)
def test_compressed_tensors_open_exactly(fixtures, tmp_path, bits, zeros, mixed):
    """Packed where a cell holds them so: in 4 bits, in groups of neighbours."""
    generator, (arrays, shapes), matrices = np.random.default_rng(0), layers_apart(fixtures), {}
    for name, (out, into) in shapes.items():
        codes = generator.integers(0, 1 << bits, (out, into)).astype(np.uint8)
        zero = generator.integers(0, 1 << bits, (out, into // 32)).astype(np.uint8)
        scales = (generator.random((out, into // 32)) * 0.02 + 0.001).astype(bfloat16)
        groups = (generator.permutation(into) if mixed else np.arange(into)) // 32
        arrays[f"{name}_packed"], arrays[f"{name}_scale"] = stream(codes.T, bits).T, scales
        arrays[f"{name}_shape"] = np.array([out, into])
        if zeros:
            arrays[f"{name}_zero_point"] = stream(zero, bits)
        if mixed:
            arrays[f"{name}_g_idx"] = groups.astype(np.int32)
        less = zero.astype(np.float32)[:, groups] if zeros else np.float32(1 << bits - 1)
        matrices[name] = (codes - less) * scales.astype(np.float32)[:, groups]
    values = read_config(fixtures / "bitsandbytes/base")
    section = values["quantization_config"] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    section["config_groups"] = {"group_0": {"weights": {"num_bits": bits, "symmetric": not zeros}}}
    write_file(tmp_path / "model.safetensors", arrays)
    (tmp_path / "config.json").write_text(json.dumps(values))
    with Checkpoint(tmp_path) as checkpoint:
        assert {*checkpoint.packed} == ({*matrices} if bits == 4 else set())
        for name, matrix in matrices.items():
            assert np.array_equal(checkpoint.read(name), matrix)
    parameters = AutoModel.from_pretrained(tmp_path)
    cells = quantized_cells(parameters)
    for name, matrix in matrices.items():
        found = cells[name].dequantized() if name in cells else parameters.parameters_dict()[name].asnumpy()
        assert np.array_equal(found, matrix)
    if not zeros:
        section["config_groups"]["group_0"]["weights"]["symmetric"] = False
        (tmp_path / "config.json").write_text(json.dumps(values))
        with pytest.raises(InputError, match=r"weight_zero_point is missing"):
            Checkpoint(tmp_path)
    section["config_groups"]["group_0"]["weights"]["num_bits"] = 7
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=rf"weight_packed .*: {bits} bits for \d+ inputs; config.json says 7"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("bits", [4, 8])
def test_factors_that_are_no_numbers_are_refused(fixtures, tmp_path, bits):
    """Whether a cell would hold them (in 4 bits) or not."""
    directory, _ = integer_checkpoint(fixtures, tmp_path, "gptq", 32, bits=bits)
    arrays = read_file(directory / "model.safetensors")
    arrays["model.layers.1.mlp.up_proj.scales"][0, 5] = np.inf
    write_file(directory / "model.safetensors", arrays)
    with pytest.raises(InputError, match=r"gptq: model\.layers\.1\.mlp\.up_proj\.\w+ holds NaN or infinity$"):
        AutoModel.from_pretrained(directory)


def test_a_factor_for_a_whole_packed_matrix_is_refused(fixtures, tmp_path):
    arrays, shapes = layers_apart(fixtures)
    for name, (out, into) in shapes.items():
        arrays[f"{name}_packed"], arrays[f"{name}_shape"] = np.zeros((out, into // 8), np.int32), np.array([out, into])
        arrays[f"{name}_scale"] = np.ones(1, np.float32)
    write_file(tmp_path / "model.safetensors", arrays)
    section = {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}
    (tmp_path / "config.json").write_text(json.dumps(read_config(fixtures / "bitsandbytes/base") | section))
    with pytest.raises(InputError, match=r"up_proj\.weight_packed \(192, 16\): its weight_scale have the shape \(1,\)"):
        Checkpoint(tmp_path)


def test_a_bias_that_the_model_has_not_is_refused(fixtures, tmp_path):
    directory, _ = integer_checkpoint(fixtures, tmp_path, "gptq", 32, bias=0.5)
    with pytest.raises(InputError, match=r"down_proj\.bias \(128,\) is no parameter"):
        AutoModel.from_pretrained(directory)


def test_other_widths_and_groups_that_do_not_fit_are_refused(fixtures, tmp_path):
    directory, _ = integer_checkpoint(fixtures, tmp_path, "gptq", 32)
    values = json.loads((directory / "config.json").read_text())
    for setting, words in [
        ({"bits": 3}, r"up_proj\.qzeros is int32 \(4, 24\); int32 \(4, 18\) was expected"),
        ({"bits": 4.0}, r"gptq of 4\.0 bits \(gptq\); supported: 2, 3, 4, 8 bits"),
        ({"bits": 5}, r"gptq of 5 bits \(gptq\); supported: 2, 3, 4, 8 bits, gptq, gptq_v2"),
        ({"quant_method": None}, "gptq: model[^\n]*qweight: config.json has no quantization_config[^\n]*$"),
        ({"quant_method": "auto-round"}, "gptq: config.json: quant_method 'auto-round' is not supported[^\n]*$"),
        ({"quant_method": "awq", "version": "gemv"}, r"awq of 4 bits \(gemv\)"),
        ({"quant_method": "awq", "format": "gemv"}, r"awq of 4 bits \(gemv\)"),
        ({"checkpoint_format": "marlin"}, r"gptq of 4 bits \(marlin\); supported: 2, 3, 4, 8 bits, gptq"),
    ]:
        changed = {**values, "quantization_config": {**values["quantization_config"], **setting}}
        (directory / "config.json").write_text(json.dumps(changed))
        with pytest.raises(InputError, match=words):
            Checkpoint(directory)


def test_what_is_packed_is_packed_whatever_the_others_are_stored_in(fixtures):
    base = fixtures / "bitsandbytes/base"
    wide = AutoModel.from_pretrained(base, quantization=Quantization("nf4"))
    auto = AutoModel.from_pretrained(base, "auto", Quantization("nf4"))
    for name, cell in quantized_cells(wide).items():
        assert np.array_equal(quantized_cells(auto)[name].dequantized(), cell.dequantized())
