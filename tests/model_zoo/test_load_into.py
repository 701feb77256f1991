"""Loading into models: bit-identical, all or nothing, and in little more memory than the model itself."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import mindspore as ms
import numpy as np
import pytest

from model_zoo.auto import model_class
from model_zoo.checkpoint.dtypes import convert
from model_zoo.checkpoint.reading import load_into, read_config
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.counting import config_of
from model_zoo.errors import InputError

FIXTURES = ("chatglm1", "chatglm2", "glm", "glm4_0414", "gpt2", "llama_gqa", "llama_mha")


def bare_model(fixtures, name, dtype=ms.float32):
    config = config_of(read_config(fixtures / name))
    return model_class(type(config))(config, dtype=dtype)


def stored(fixtures, name):
    return read_file(fixtures / name / "model.safetensors")


def as_directory(path, tensors):
    write_file(path / "model.safetensors", tensors, {"format": "pt"})
    return path


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
@pytest.mark.parametrize("name", FIXTURES)
def test_every_parameter_is_the_stored_tensor(name, dtype, fixtures):
    model = bare_model(fixtures, name)
    load_into(model, fixtures / name, dtype)
    tensors = stored(fixtures, name)
    for key, parameter in model.parameters_dict().items():
        expected = tensors[key]
        value = parameter.asnumpy()
        if dtype == "bfloat16":
            value, expected = value.view(np.uint16), convert(expected, "float32", dtype)
        elif dtype == "float16":
            expected = expected.astype(np.float16)
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


def test_a_parameter_that_is_a_view_is_loaded(fixtures):
    """NumPy has a copy of it, where what was written was lost."""
    model = bare_model(fixtures, "llama_mha")
    for parameter in model.get_parameters():
        parameter.set_data(ms.Tensor(parameter.asnumpy().T.copy()).T)
    assert not model.lm_head.weight.is_contiguous()
    load_into(model, fixtures / "llama_mha")
    for key, value in stored(fixtures, "llama_mha").items():
        np.testing.assert_array_equal(model.parameters_dict()[key].asnumpy(), value)


def test_operators_and_compiled_graphs_see_what_is_loaded_later(fixtures):
    model = bare_model(fixtures, "llama_mha")
    reference = np.load(fixtures / "llama_mha" / "ref.npz")
    ids = ms.Tensor(reference["input_ids"].astype(np.int32))

    @ms.jit
    def compiled(ids):
        return model.construct(ids)

    assert np.abs(compiled(ids).asnumpy()).max() == 0 and np.abs(model(ids).asnumpy()).max() == 0
    load_into(model, fixtures / "llama_mha")
    assert np.abs(compiled(ids).asnumpy() - reference["logits"]).max() < 1e-4
    assert np.abs(model(ids).asnumpy() - reference["logits"]).max() < 1e-4


def test_gpt2_as_published_without_prefix_and_with_mask_buffers(fixtures, tmp_path):
    tensors = read_file(fixtures / "gpt2" / "model.hub_layout.safetensors")
    assert not any(name.startswith("transformer.") for name in tensors)
    assert any(name.endswith(".attn.bias") for name in tensors)
    model = bare_model(fixtures, "gpt2")
    load_into(model, as_directory(tmp_path, tensors))
    for name, value in stored(fixtures, "gpt2").items():
        np.testing.assert_array_equal(model.parameters_dict()[name].asnumpy(), value)


def test_head_without_embedding_serves_for_both(fixtures, tmp_path):
    tensors = stored(fixtures, "chatglm1")
    del tensors["transformer.word_embeddings.weight"]
    model = bare_model(fixtures, "chatglm1")
    load_into(model, as_directory(tmp_path, tensors))
    embedding = model.parameters_dict()["transformer.word_embeddings.weight"].asnumpy()
    np.testing.assert_array_equal(embedding, tensors["lm_head.weight"])


def refused(model, directory):
    before = {name: value.asnumpy().copy() for name, value in model.parameters_dict().items()}
    with pytest.raises(InputError) as caught:
        load_into(model, directory)
    for name, value in model.parameters_dict().items():
        np.testing.assert_array_equal(value.asnumpy(), before[name], err_msg=f"{name} was loaded all the same")
    return str(caught.value)


def test_missing_extra_and_misshapen_are_all_listed_and_nothing_is_loaded(fixtures, tmp_path):
    tensors = stored(fixtures, "llama_gqa")
    del tensors["model.layers.1.mlp.up_proj.weight"], tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(64, np.float32)
    tensors["something.else"] = np.zeros(3, np.float32)
    tensors["lm_head.weight"] = np.zeros((5, 64), np.float32)
    tensors["model.layers.0.mlp.down_proj.weight"] = np.zeros((3, 3), np.int32)
    message = refused(bare_model(fixtures, "llama_gqa"), as_directory(tmp_path, tensors))
    assert message.startswith("7 problems")
    for part in (
        "model.layers.1.mlp.up_proj.weight (",
        "model.norm.weight (64,) is missing",
        "model.layers.0.self_attn.q_proj.bias (64,) is no parameter of the model",
        "something.else (3,) is no parameter of the model",
        "lm_head.weight has shape (5, 64), the model needs (",
        "model.layers.0.mlp.down_proj.weight has shape (3, 3)",
        "model.layers.0.mlp.down_proj.weight is of type int32; supported are float16, bfloat16",
    ):
        assert part in message, message


def test_checkpoint_of_another_family(fixtures):
    assert "transformer.h.0.attn.c_attn.weight" in refused(bare_model(fixtures, "llama_mha"), fixtures / "gpt2")


def test_two_heads_where_the_model_has_one(fixtures, tmp_path):
    tensors = stored(fixtures, "chatglm1")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].copy()
    tensors["lm_head.weight"][3, 5] += 1
    message = refused(bare_model(fixtures, "chatglm1"), as_directory(tmp_path, tensors))
    assert "lm_head.weight differs from transformer.word_embeddings.weight" in message


def test_truncated_file_loads_nothing(fixtures, tmp_path):
    as_directory(tmp_path, stored(fixtures, "gpt2"))
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:-64])
    assert "(64 are missing)" in refused(bare_model(fixtures, "gpt2"), tmp_path)


def test_unknown_dtype(fixtures):
    with pytest.raises(InputError, match="'int8' is not a supported"):
        load_into(bare_model(fixtures, "gpt2"), fixtures / "gpt2", "int8")


# Memory ---------------------------------------------------------------------------------------------------------------

LARGE = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "intermediate_size": 5504,
    "vocab_size": 8000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}

MEASURE = textwrap.dedent("""
    from pet.cli.imports import import_quickly
    import_quickly()
    import json, sys
    from model_zoo.auto import AutoModel
    def peak():  # of this process image; ru_maxrss would count the parent before exec
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
    tiny, directory, dtype = sys.argv[1:]
    AutoModel.from_pretrained(tiny)  # whatever MindSpore takes for itself
    before = peak()
    model = AutoModel.from_pretrained(directory, dtype=dtype)
    size = sum(p.size * p.itemsize for p in model.get_parameters()) / 2**20
    last = float(model.parameters_dict()["model.norm.weight"].asnumpy().astype("float32")[-1])
    print(json.dumps({"size": size, "peak": peak() - before, "last": last}))
""")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept, dtype, layers",
    [
        pytest.param("float32", "float32", 2, marks=pytest.mark.full),
        pytest.param("bfloat16", "float32", 2, marks=pytest.mark.full),
        ("float32", "bfloat16", 5),
    ],
)
def test_peak_memory_of_loading(kept, dtype, layers, fixtures, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("peak memory is read from /proc")
    from model_zoo.checkpoint.safetensors_io import write_stream
    from model_zoo.counting import parameter_shapes

    config = LARGE | {"num_hidden_layers": layers}
    described = {name: (kept, shape) for name, shape in parameter_shapes(config).items()}
    with open(tmp_path / "model.safetensors", "wb") as file:
        write_stream(file, described, lambda name: np.full(described[name][1], 0.5, np.float32), {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-c", MEASURE, fixtures / "llama_mha", tmp_path, dtype]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["last"] == 0.5
    assert measured["size"] >= 500  # MB: so much that nothing else counts
    assert measured["peak"] <= 1.2 * measured["size"], measured
    assert measured["peak"] >= 0.9 * measured["size"], "the weights were not in memory: nothing was measured"


@pytest.mark.parametrize("target", ["CPU", "Ascend"])
def test_reading_a_parameter_leaves_nothing_on_the_host_of_a_device(target, monkeypatch):
    """On a CPU the array is the parameter's memory; on a device it belongs to a copy, and goes away with it."""
    from model_zoo.checkpoint.parameters import read_parameter

    parameter = ms.Parameter(ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), name="weight")
    monkeypatch.setattr(ms, "get_context", lambda name: target)
    found = read_parameter(parameter)
    assert found.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert np.shares_memory(found, parameter.asnumpy()) == (target == "CPU")
