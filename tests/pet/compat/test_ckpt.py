"""MindFormers' ``.ckpt`` files: names and shapes as in its conversion tables, every way there and back bit for bit."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from ckpt_tables import bits, dimensions, weights

from model_zoo.checkpoint import ckpt_io as ckpt_file
from model_zoo.checkpoint.ckpt_io import CkptFile, write_ckpt
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, read_file, write_file
from model_zoo.errors import InputError
from model_zoo.families import PRESETS
from pet.compat.ckpt.doors import config_for, to_directory, to_file
from pet.compat.ckpt.lora import to_adapter
from pet.compat.ckpt.names import Form

# The names that MindFormers' scripts write for a layer, with their shapes in terms of the dimensions.
GPT2 = {
    "layernorm1.gamma": "h",
    "layernorm1.beta": "h",
    "layernorm2.gamma": "h",
    "layernorm2.beta": "h",
    "attention.projection.weight": "h h",
    "attention.projection.bias": "h",
    "attention.dense1.weight": "h h",
    "attention.dense1.bias": "h",
    "attention.dense2.weight": "h h",
    "attention.dense2.bias": "h",
    "attention.dense3.weight": "h h",
    "attention.dense3.bias": "h",
    "output.mapping.weight": "h f",  # (in, out), as in GPT-2's own files
    "output.mapping.bias": "f",
    "output.projection.weight": "f h",
    "output.projection.bias": "h",
}
LLAMA = {
    "attention_norm.weight": "h",
    "ffn_norm.weight": "h",
    "attention.wq.weight": "q h",
    "attention.wk.weight": "k h",
    "attention.wv.weight": "k h",
    "attention.wo.weight": "h q",
    "feed_forward.w1.weight": "f h",
    "feed_forward.w2.weight": "h f",
    "feed_forward.w3.weight": "f h",
}
GLM = {
    "input_layernorm.gamma": "h",
    "input_layernorm.beta": "h",
    "post_attention_layernorm.gamma": "h",
    "post_attention_layernorm.beta": "h",
    "attention.query_key_value.weight": "3h h",
    "attention.query_key_value.bias": "3h",
    "attention.dense.weight": "h h",
    "attention.dense.bias": "h",
    "mlp.dense_h_to_4h.weight": "f h",
    "mlp.dense_h_to_4h.bias": "f",
    "mlp.dense_4h_to_h.weight": "h f",
    "mlp.dense_4h_to_h.bias": "h",
}
GLM2 = {
    "input_layernorm.weight": "h",
    "post_attention_layernorm.weight": "h",
    "self_attention.query_key_value.weight": "q+2k h",
    "self_attention.query_key_value.bias": "q+2k",
    "self_attention.dense.weight": "h q",
    "mlp.dense_h_to_4h.weight": "2f h",
    "mlp.dense_4h_to_h.weight": "h f",
}
FAMILIES = {
    "gpt2": (
        "backbone.blocks.{}.",
        GPT2,
        {
            "backbone.embedding.word_embedding.embedding_table": "v h",
            "backbone.embedding.position_embedding.embedding_table": "c h",
            "backbone.layernorm.gamma": "h",
            "backbone.layernorm.beta": "h",
        },
    ),
    "llama_gqa": (
        "model.layers.{}.",
        LLAMA,
        {"model.tok_embeddings.embedding_weight": "v h", "model.norm_out.weight": "h", "lm_head.weight": "v h"},
    ),
    "chatglm1": (
        "transformer.layers.{}.",
        GLM,
        {
            "transformer.word_embeddings.embedding_table": "v h",
            "transformer.final_layernorm.gamma": "h",
            "transformer.final_layernorm.beta": "h",
            "lm_head.weight": "v h",
        },
    ),
    "chatglm2": (
        "transformer.encoder.layers.{}.",
        GLM2,
        {
            "transformer.embedding.embedding_weight": "v h",
            "transformer.encoder.final_layernorm.weight": "h",
            "transformer.output_layer.weight": "v h",
        },
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_shapes_are_those_of_the_conversion_tables(fixtures, tmp_path, family):
    directory, file = fixtures / family, tmp_path / "model.ckpt"
    to_file(directory, file)
    found = {name: tuple(value.shape) for name, value in ms.load_checkpoint(str(file)).items()}
    layer, inside, outside = FAMILIES[family]
    n, size = dimensions(directory)
    expected = {layer.format(i) + name: shape for i in range(n.layers) for name, shape in inside.items()} | outside
    expected = {name: tuple(size[word] for word in shape.split()) for name, shape in expected.items()}
    assert found == expected


def test_matrices_are_divided_as_there(fixtures, tmp_path):
    to_file(fixtures / "gpt2", tmp_path / "gpt2.ckpt")
    found, ours = ms.load_checkpoint(str(tmp_path / "gpt2.ckpt")), weights(fixtures / "gpt2")
    fused = ours["transformer.h.1.attn.c_attn.weight"]
    width = len(fused)
    for number in range(3):
        columns = slice(number * width, (number + 1) * width)
        dense = f"backbone.blocks.1.attention.dense{number + 1}"
        assert np.array_equal(found[f"{dense}.weight"].asnumpy(), fused[:, columns].T)
        assert np.array_equal(found[f"{dense}.bias"].asnumpy(), ours["transformer.h.1.attn.c_attn.bias"][columns])
    mapping = found["backbone.blocks.0.output.mapping.weight"].asnumpy()
    assert np.array_equal(mapping, ours["transformer.h.0.mlp.c_fc.weight"])

    n, size = dimensions(fixtures / "chatglm2")
    fused = weights(fixtures / "chatglm2")["transformer.encoder.layers.0.self_attention.query_key_value.weight"]
    to_file(fixtures / "chatglm2", tmp_path / "glm2.ckpt", Form(qkv_concat=False, use_rearrange_rope=True))
    found = ms.load_checkpoint(str(tmp_path / "glm2.ckpt"))
    attention = "transformer.encoder.layers.0.self_attention"
    head = fused[n.head_dim : 2 * n.head_dim]  # the second query head: even outputs first, then odd ones
    there = found[f"{attention}.wq.weight"].asnumpy()[n.head_dim : 2 * n.head_dim]
    assert np.array_equal(there, np.concatenate([head[0::2], head[1::2]]))
    assert np.array_equal(found[f"{attention}.wv.weight"].asnumpy(), fused[-size["k"] :])


def test_llamas_joined_matrices_take_turns(fixtures, tmp_path):
    """Since MindFormers 1.4: for each key head its queries, itself and its values; for each row of gate one of up."""
    n, _ = dimensions(fixtures / "llama_gqa")
    ours, layer = weights(fixtures / "llama_gqa"), "model.layers.1"
    query, key, value = (ours[f"{layer}.self_attn.{part}_proj.weight"] for part in "qkv")
    each = n.heads // n.kv_heads * n.head_dim
    groups = [
        np.concatenate([part[head * rows : (head + 1) * rows] for part, rows in turns])
        for head in range(n.kv_heads)
        for turns in [((query, each), (key, n.head_dim), (value, n.head_dim))]
    ]
    rows = zip(ours[f"{layer}.mlp.gate_proj.weight"], ours[f"{layer}.mlp.up_proj.weight"], strict=True)
    wanted = {
        Form(qkv_concat=True): (np.concatenate(groups), np.array([row for pair in rows for row in pair])),
        Form(qkv_concat=True, plain_concat=True): (
            np.concatenate([query, key, value]),
            np.concatenate([ours[f"{layer}.mlp.{part}_proj.weight"] for part in ("gate", "up")]),
        ),
    }
    assert n.kv_heads > 1
    for form, (qkv, up) in wanted.items():
        to_file(fixtures / "llama_gqa", tmp_path / "a.ckpt", form)
        there = ms.load_checkpoint(str(tmp_path / "a.ckpt"))
        assert np.array_equal(there[f"{layer}.attention.w_qkv.weight"].asnumpy(), qkv)
        assert np.array_equal(there[f"{layer}.feed_forward.w_gate_hidden.weight"].asnumpy(), up)
    # LoRA on the joined matrix is the same change of its parts
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, n.hidden)), random.normal(size=(len(qkv), 2))
    parts = {f"{layer}.attention.w_qkv.mindpet_delta_lora_{name}": one for name, one in (("a", a), ("b", b))}
    described = {name: ("float32", one.shape) for name, one in parts.items()}
    write_ckpt(tmp_path / "lora.ckpt", described, lambda name: parts[name].astype(np.float32))
    to_adapter(tmp_path / "lora.ckpt", tmp_path / "adapter", 2, fixtures / "llama_gqa")
    found = read_file(tmp_path / "adapter/adapter_model.safetensors")
    delta, rows = (b @ a).reshape(n.kv_heads, -1, n.hidden), np.cumsum([0, each, n.head_dim, n.head_dim])
    for number, part in enumerate("qkv"):
        stem = f"base_model.model.{layer}.self_attn.{part}_proj.lora_"
        expected = delta[:, rows[number] : rows[number + 1]].reshape(-1, n.hidden)
        assert found[f"{stem}B.weight"] @ found[f"{stem}A.weight"] == pytest.approx(expected, abs=1e-5)
    # and where the file has one joined matrix, or one part, alone
    for base, name, height in (
        ("llama_gqa", "model.layers.0.feed_forward.w_gate_hidden", 2 * n.ffn),
        ("chatglm2", "transformer.encoder.layers.0.mlp.dense_right", dimensions(fixtures / "chatglm2")[0].ffn),
    ):
        width = dimensions(fixtures / base)[0].hidden
        parts = {f"{name}.mindpet_delta_lora_a": (2, width), f"{name}.mindpet_delta_lora_b": (height, 2)}
        described = {one: ("float32", shape) for one, shape in parts.items()}
        write_ckpt(tmp_path / "lora.ckpt", described, lambda one, parts=parts: np.ones(parts[one], np.float32))
        assert to_adapter(tmp_path / "lora.ckpt", tmp_path / base, 2, fixtures / base).tensors in (2, 4)


def test_llamas_heads_of_release_0_6(fixtures, tmp_path):
    """That release's own conversion: of each head of query and key the two halves take turns."""
    source, heads = fixtures / "llama_mha", dimensions(fixtures / "llama_mha")[0].heads
    form, ours = Form(use_rearrange_rope=True), weights(source)
    to_file(source, tmp_path / "a.ckpt", form)
    there = ms.load_checkpoint(str(tmp_path / "a.ckpt"))
    for name, moves in (("q", True), ("k", True), ("v", False)):
        value = ours[f"model.layers.0.self_attn.{name}_proj.weight"]
        halves = value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        assert np.array_equal(there[f"model.layers.0.attention.w{name}.weight"].asnumpy(), halves if moves else value)
    to_directory(tmp_path / "a.ckpt", tmp_path / "back", source, form)
    back = weights(tmp_path / "back")
    assert all(np.array_equal(back[name], value) for name, value in ours.items())


FORMS = [
    ("gpt2", Form()),
    ("llama_gqa", Form()),
    ("llama_gqa", Form(qkv_concat=True)),
    ("llama_gqa", Form(qkv_concat=True, plain_concat=True)),
    ("chatglm1", Form()),
    ("chatglm2", Form()),
    ("chatglm2", Form(qkv_concat=False, mlp_concat=False)),
    ("chatglm2", Form(mlp_concat=False, old_names=True)),
    ("chatglm2", Form(use_rearrange_rope=True)),
    ("chatglm2", Form(qkv_concat=False, mlp_concat=False, use_rearrange_rope=True)),
]


@pytest.mark.parametrize(("family", "form"), FORMS)
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_there_and_back_is_bit_exact(fixtures, tmp_path, family, form, dtype):
    source = fixtures / family
    to_file(source, tmp_path / "one.ckpt", form, dtype)
    report = to_directory(tmp_path / "one.ckpt", tmp_path / "back", source, form)
    assert report.left_out == ()
    to_file(tmp_path / "back", tmp_path / "two.ckpt", form)
    assert bits(tmp_path / "one.ckpt") == bits(tmp_path / "two.ckpt")
    original, back = weights(source), weights(tmp_path / "back")
    assert sorted(back) == sorted(original)
    for name, value in original.items():
        expected = value if dtype is None else ms.Tensor(value).astype(ms.bfloat16).astype(ms.float32).asnumpy()
        assert np.array_equal(back[name], expected), name
    with SafetensorsFile(tmp_path / "back/model.safetensors") as file:
        assert {info.dtype for info in file.tensors.values()} == {dtype or "float32"}


def test_mindspores_own_files(fixtures, tmp_path, monkeypatch):
    """What `save_checkpoint` writes of a training run: cut tensors, a checksum, an optimizer's state, remarks."""
    to_file(fixtures / "gpt2", tmp_path / "plain.ckpt")
    tensors = ms.load_checkpoint(str(tmp_path / "plain.ckpt"))
    kinds = ("adam_m.", "exp_avg.", "exp_avg_sq_row_")  # of AdamW, of FusedAdamW and of Came
    state = {f"{kind}{name}": value for kind in kinds for name, value in tensors.items()}
    saved = [{"name": name, "data": value} for name, value in {**tensors, **state}.items()]
    saved.append({"name": "global_step", "data": ms.Tensor([7], ms.int32)})
    saved.append({"name": "backbone.blocks.0.key_past", "data": ms.Tensor(np.zeros((1, 2)), ms.float16)})
    serialization = __import__("mindspore.train.serialization", fromlist=["SLICE_SIZE"])
    monkeypatch.setattr(serialization, "SLICE_SIZE", 1)  # in KB: every matrix is cut
    remarks = {"epoch_num": 3, "loss_scale": 2.0, "global_batch_size": 8, "note": "x"}
    ms.save_checkpoint(saved, str(tmp_path / "run.ckpt"), append_dict=remarks, crc_check=True)
    report = to_directory(tmp_path / "run.ckpt", tmp_path / "back", fixtures / "gpt2")
    assert len(report.left_out) == 3 * len(tensors) + 5
    assert "adam_m" in str(report)
    to_directory(tmp_path / "plain.ckpt", tmp_path / "same", fixtures / "gpt2")
    first, second = (tmp_path / place / "model.safetensors" for place in ("back", "same"))
    assert first.read_bytes() == second.read_bytes()
    # cut tensors of our own are read by MindSpore
    monkeypatch.setattr(ckpt_file, "SLICE", 100)
    with CkptFile(tmp_path / "plain.ckpt") as file:
        write_ckpt(tmp_path / "cut.ckpt", file.tensors, file.read)
    again = ms.load_checkpoint(str(tmp_path / "cut.ckpt"))
    assert all(np.array_equal(again[name].asnumpy(), value.asnumpy()) for name, value in tensors.items())


def test_scripts_that_lie_beside_a_file_or_its_yaml_are_no_part_of_the_model(fixtures, tmp_path):
    """Of a model's own directory they are: it has a config.json."""
    place = tmp_path / "place"
    place.mkdir()
    to_file(fixtures / "gpt2", place / "model.ckpt")
    for name in ("mine.py", "vocab.json"):
        (place / name).write_text("{}")
    shutil.copy(fixtures / "gpt2" / "config.json", place / "other.json")
    to_directory(place / "model.ckpt", tmp_path / "out", place / "other.json")
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert "vocab.json" in there and "mine.py" not in there
    shutil.copy(fixtures / "gpt2" / "config.json", place)
    to_directory(place / "model.ckpt", tmp_path / "whole")
    assert (tmp_path / "whole" / "mine.py").is_file()


def test_the_configuration_is_found(tmp_path, monkeypatch):
    small = {**PRESETS["gpt2"], "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 4}
    monkeypatch.setitem(PRESETS, "gpt2_mini", small)
    from model_zoo.counting import parameter_shapes

    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text(json.dumps(small))
    zeros = {name: np.zeros(shape, np.float32) for name, shape in parameter_shapes(small).items()}
    write_file(tmp_path / "hf/model.safetensors", zeros, {"format": "pt"})
    (tmp_path / "place").mkdir()
    file = tmp_path / "place/mini.ckpt"
    to_file(tmp_path / "hf", file)
    assert config_for(file) == small
    monkeypatch.setitem(PRESETS, "gpt2_other", {**small, "n_head": 4})
    with pytest.raises(InputError, match="gpt2_mini, gpt2_other have tensors of these shapes"):
        config_for(file)
    shutil.copy(tmp_path / "hf/config.json", file.parent / "config.json")
    assert config_for(file)["n_head"] == 2


def test_weights_are_converted_as_by_mindformers_script(tmp_path, monkeypatch):
    """`convert_weight.py` calls these; a file of the directory stands for it, and a file's name for a directory."""
    import mindspore as ms
    from pet.compat.mindformers.models.llama.convert_reversed import convert_ms_to_pt
    from pet.compat.mindformers.models.llama.convert_weight import convert_pt_to_ms

    from pet.names import bundled_models

    base = bundled_models()["llama_tiny"]
    more = {"n_head": 32, "hidden_size": 4096, "layers": 12, "is_pretrain": False, "telechat_type": "telechat_12b"}
    convert_pt_to_ms(base / "model.safetensors", tmp_path / "a" / "m", ms.float16, **more)
    stored = ms.load_checkpoint(str(tmp_path / "a/m.ckpt"))
    assert stored["model.layers.0.attention.wq.weight"].dtype == ms.float16
    shutil.copy(base / "config.json", tmp_path / "a")
    convert_ms_to_pt(input_path=tmp_path / "a/m.ckpt", output_path=tmp_path / "b" / "pytorch_model.bin", dtype="fp32")
    newer = SimpleNamespace(model="llama", input_path=str(base), output_path=tmp_path / "q.ckpt", qkv_concat=True)
    convert_pt_to_ms(newer)
    assert "model.layers.0.attention.w_qkv.weight" in ms.load_checkpoint(str(tmp_path / "q.ckpt"))
    found = weights(tmp_path / "b" / "pytorch_model")
    for name, value in weights(base).items():
        assert found[name].dtype == np.float32 and np.array_equal(found[name], value.astype(np.float16)), name
