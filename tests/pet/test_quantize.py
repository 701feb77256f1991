"""``pet quantize`` and saving packed models: transformers with bitsandbytes opens the result to the same numbers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import Tensor

import pet
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization
from model_zoo.quantization.cells import quantized_cells
from pet.cli.main import main
from pet.quantize import quantize_checkpoint
from pet.train.run import save_result

KINDS = {
    "nf4": Quantization("nf4"),
    "nf4_double": Quantization("nf4", double=True),
    "fp4": Quantization("fp4"),
    "int8": Quantization("int8"),
}


def tensors(directory):
    return {key: value for path in directory.glob("*.safetensors") for key, value in read_file(path).items()}


def same_tensors(mine, theirs, float_types=True):
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        if "quant_state" not in name:  # JSON
            assert np.array_equal(value, theirs[name]), name


@pytest.mark.parametrize("name", KINDS)
def test_its_tensors_are_those_of_transformers(fixtures, tmp_path, name):
    base, theirs = fixtures / "bitsandbytes/base", fixtures / "bitsandbytes" / name
    report = quantize_checkpoint(base, tmp_path / "out", KINDS[name], max_shard_size="100KB")
    assert report.packed == 14 and len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    same_tensors(tensors(tmp_path / "out"), tensors(theirs))
    written, recorded = (read_config(one)["quantization_config"] for one in (tmp_path / "out", theirs))
    assert written.pop("llm_int8_skip_modules") == ["lm_head"]  # what it leaves out by itself
    recorded.pop("llm_int8_skip_modules")
    assert written == recorded
    model = pet.AutoModel.from_pretrained(str(tmp_path / "out"))
    again = pet.AutoModel.from_pretrained(str(base), quantization=KINDS[name])
    model.save_pretrained(tmp_path / "saved")
    again.save_pretrained(tmp_path / "again", dtype=None)
    same_tensors(tensors(tmp_path / "saved"), tensors(tmp_path / "out"))
    same_tensors(tensors(tmp_path / "again"), tensors(tmp_path / "out"))
    model.save_pretrained(tmp_path / "wide", dtype="float32")
    assert "quantization_config" not in read_config(tmp_path / "wide")
    with Checkpoint(tmp_path / "wide") as wide, Checkpoint(theirs) as packed:
        assert not wide.packed and all(np.array_equal(wide.read(key), packed.read(key)) for key in wide.names)


@pytest.mark.parametrize("family", ["llama_gqa", "gpt2", "glm4_0414"])
@pytest.mark.parametrize("name", KINDS)
def test_transformers_opens_it_to_the_same_numbers(fixtures, tmp_path, family, name):
    torch = pytest.importorskip("torch", reason="transformers with bitsandbytes opens it where both are installed")
    transformers, bitsandbytes = pytest.importorskip("transformers"), pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    quantize_checkpoint(fixtures / family, tmp_path / "out", KINDS[name])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, device_map="cpu")
    found = dict(theirs.named_parameters())
    with Checkpoint(tmp_path / "out") as checkpoint:
        assert len(checkpoint.packed) > 5
        for key, one in checkpoint.packed.items():
            mine = checkpoint.read(key)
            mine = mine.T if one.transposed else mine
            if name == "int8":
                matrix = bitsandbytes.functional.int8_vectorwise_dequant(found[key].data, found[key].SCB)
            else:
                matrix = plain_dequantized(bitsandbytes, torch, found[key])
            assert np.array_equal(mine, matrix.numpy()), key


def plain_dequantized(bitsandbytes, torch, parameter):
    """By its path without vectors: the one for AVX-512 takes wrong factors where a row is not whole blocks."""
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute as plain

    state = parameter.quant_state
    factors = state.absmax
    if state.nested:
        factors = bitsandbytes.functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
    assert state.dtype == torch.float32
    return plain(parameter.data.reshape(-1), factors, state.code, state.blocksize, state.shape, torch.float32)


def test_rows_that_bitsandbytes_reads_wrongly_are_said(fixtures, tmp_path, caplog):
    """See `plain_dequantized`; there is no other way to learn that transformers' answers are others."""
    base = fixtures / "llama_gqa"
    for number, wanted in enumerate((KINDS["int8"], Quantization("nf4", skip=("lm_head", "down_proj")))):
        quantize_checkpoint(base, tmp_path / str(number), wanted)
    assert not caplog.records
    quantize_checkpoint(base, tmp_path / "uneven", KINDS["nf4"])
    assert [line.getMessage() for line in caplog.records] == [
        f"{tmp_path / 'uneven'}: bitsandbytes (0.50) reads rows of 112 weights, which are no whole blocks of 64, "
        "wrongly on processors with AVX-512; a block that divides them, or --skip, avoids that"
    ]


def test_the_command(fixtures, tmp_path, capsys):
    base = str(fixtures / "bitsandbytes/base")
    assert main(["quantize", base, "--type", "nf4", "--double", "--output", str(tmp_path / "out")]) == 0
    assert "14 matrices packed" in capsys.readouterr().out
    for arguments, words in [
        (["--type", "nf5"], "nf5"),
        (["--type", "int4", "--block", "32"], "int4 has no form in bitsandbytes' files"),
        (["--type", "int8", "--double"], "no double quantisation"),
        (["--skip", "q_prj"], "names no projection"),
    ]:
        assert main(["quantize", base, *arguments, "--output", str(tmp_path / "other")]) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "other").exists()
    with pytest.raises(InputError, match="in 8 or 4 bits already"):
        quantize_checkpoint(tmp_path / "out", tmp_path / "other", KINDS["nf4"])


def test_merging_on_disk_goes_into_either_base(fixtures, tmp_path, monkeypatch):
    base, packed = fixtures / "bitsandbytes/base", fixtures / "bitsandbytes/nf4_double"
    model = pet.AutoModel.from_pretrained(str(base), quantization=KINDS["nf4_double"])
    pet.apply_lora(model, rank=4, targets="all-linear")
    for number, parameter in enumerate(pet.trainable_parameters(model)):
        values = np.random.default_rng(number).standard_normal(parameter.shape).astype(np.float32)
        parameter.set_data(parameter + Tensor(0.02 * values))
    pet.save_adapter(model, tmp_path / "adapter")
    path = "model.layers.1.mlp.up_proj"
    (module,) = [one for one in model.model.layers[1].mlp.up_proj.cells() if hasattr(one, "lora_A")]
    change = module.delta(None)

    def merged(base, **settings):
        assert pet.merge_checkpoint(base, tmp_path / "adapter", tmp_path / "out", **settings).changed == 14
        assert "quantization_config" not in read_config(tmp_path / "out")
        with Checkpoint(tmp_path / "out") as checkpoint:
            return checkpoint.read(f"{path}.weight"), checkpoint.dtype(f"{path}.weight")

    with Checkpoint(base) as wide, Checkpoint(packed) as numbers:
        plain, trained_on = wide.read(f"{path}.weight"), numbers.read(f"{path}.weight")
    found, dtype = merged(base)
    assert dtype == "bfloat16" and np.abs(found - (plain + change)).max() < 2e-3
    found, dtype = merged(base, dequantize=True)
    assert dtype == "float32" and np.array_equal(found, (trained_on + change).astype(np.float32))
    monkeypatch.setattr("pet.model_card.Source.accompany", lambda *arguments: None)  # the base has no tokenizer to copy
    command = ["export", str(tmp_path / "adapter"), "--base", str(base), "--output", str(tmp_path / "exported")]
    assert main([*command, "--dequantize"]) == 2, "an adapter as it is"
    assert main([*command, "--merged", "--dequantize"]) == 0
    with Checkpoint(tmp_path / "exported") as checkpoint:
        assert np.array_equal(checkpoint.read(f"{path}.weight"), found)
    with pytest.raises(InputError, match="made on another base"):  # the packed files' numbers are others
        merged(packed, dequantize=True)
    again, _ = merged(packed, dequantize=True, strict=False)
    assert np.array_equal(again, found)
    with pytest.raises(InputError, match="is in 8 or 4 bits; give the unquantised base"):
        merged(packed)
    plainly = pet.AutoModel.from_pretrained(str(base))
    pet.apply_lora(plainly, rank=4)
    pet.save_adapter(plainly, tmp_path / "plain")
    with pytest.raises(InputError, match="was not trained on one packed base"):
        pet.merge_checkpoint(base, tmp_path / "plain", tmp_path / "other", dequantize=True)


@pytest.mark.parametrize(
    ("base", "kind", "init"), [("base", "nf4", "default"), ("base", "nf4", "loftq"), ("int8", None, "default")]
)
def test_a_runs_merged_model_is_of_the_files_of_its_base(fixtures, tmp_path, base, kind, init):
    """``output.merged`` over a packed base: the unquantised one, as ``pet merge`` has it, but where it is packed itself
    or where the adapter fits the packed numbers alone."""
    directory = fixtures / "bitsandbytes" / base
    model = pet.AutoModel.from_pretrained(str(directory), quantization=Quantization(kind) if kind else None)
    pet.apply_lora(model, rank=4, targets="up_proj", init=init)
    for parameter in pet.trainable_parameters(model):
        parameter.set_data(parameter + 0.02)
    recipe = SimpleNamespace(
        adapter=SimpleNamespace(method="lora", name="default", init=init),
        output=SimpleNamespace(merged=True),
        model=SimpleNamespace(path=str(directory)),
    )
    (tmp_path / "recipe.yaml").touch()
    save_result(recipe, SimpleNamespace(model=model, tokenizer=None), tmp_path, model)
    name = "model.layers.1.mlp.up_proj.weight"
    (module,) = [one for one in model.model.layers[1].mlp.up_proj.cells() if hasattr(one, "lora_A")]
    with Checkpoint(directory) as files, Checkpoint(tmp_path / "merged") as merged:
        plain = files.read(name) if init == "default" else quantized_cells(model)[name].dequantized()
        assert np.abs(merged.read(name) - (plain + module.delta(None))).max() < 4e-3
