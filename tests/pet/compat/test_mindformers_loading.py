"""MindSpore's own ``load_param_into_net`` with MindFormers' names, as scripts call it."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import load_param_into_net  # before this library is there, as scripts have it

import pet
from model_zoo.errors import InputError
from pet.compat.ckpt.doors import to_file
from pet.compat.ckpt.names import Form
from pet.compat.mindformers import AutoModel, ChatGLM2Config, ChatGLM2ForConditionalGeneration

GLM2 = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "multi_query_group_num": 2}
GLM2 |= {"ffn_hidden_size": 64, "padded_vocab_size": 128, "kv_channels": 8, "seq_length": 32}


def same(model, other) -> bool:
    return all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(model.get_parameters(), other, strict=True))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize(
    ("name", "form"),
    [("gpt_tiny", None), ("llama_tiny", None), ("llama_tiny", Form(qkv_concat=True)), ("glm_tiny", None)],
)
def test_a_file_is_loaded_into_a_model(name, form, dtype, tmp_path):
    file, stored = str(tmp_path / "m.ckpt"), getattr(ms, dtype or "float32")
    to_file(name, file, form, dtype)
    config, held = pet.AutoConfig.from_pretrained(name), ms.load_checkpoint(file)
    expected = [one.astype(stored).astype(ms.float32) for one in pet.AutoModel.from_pretrained(name).get_parameters()]
    model, other = AutoModel.from_config(config), AutoModel.from_config(config)
    for _ in range(2):  # by names that are this library's afterwards
        not_loaded, left = load_param_into_net(model, held)
        assert not not_loaded and {*left} <= {"lm_head.weight"} - model.parameters_dict().keys()
    ms.load_checkpoint(file, other)
    assert same(model, expected) and same(other, expected)


def test_outputs_in_another_order(tmp_path):
    """ChatGLM2 with use_rearrange_rope: the names are nearly the same, the rows are not."""
    model = ChatGLM2ForConditionalGeneration(ChatGLM2Config(**GLM2))
    pet.save_pretrained(model, tmp_path / "hf")
    to_file(tmp_path / "hf", tmp_path / "m.ckpt", Form(use_rearrange_rope=True))
    held = ms.load_checkpoint(str(tmp_path / "m.ckpt"))
    for _ in range(2):
        other = ChatGLM2ForConditionalGeneration(ChatGLM2Config(**GLM2, use_rearrange_rope=True))
        assert load_param_into_net(other, held) == ([], []) and same(other, model.get_parameters())


def test_tensors_of_other_shapes_are_named(tmp_path):
    to_file("llama_tiny", tmp_path / "m.ckpt", Form(qkv_concat=True))
    held = ms.load_checkpoint(str(tmp_path / "m.ckpt"))
    model = AutoModel.from_config(pet.LlamaConfig(num_layers=4, hidden_size=64, num_heads=4, vocab_size=1216))
    with pytest.raises(InputError, match=r"load_param_into_net: model\.tok_embeddings\.embedding_weight has shape"):
        load_param_into_net(model, held)


def test_what_is_not_whole_stays(tmp_path):
    to_file("gpt_tiny", tmp_path / "m.ckpt")
    held = ms.load_checkpoint(str(tmp_path / "m.ckpt"))
    del held["backbone.blocks.1.attention.dense2.weight"]
    held["global_step"] = ms.Parameter(ms.Tensor(3))
    model = AutoModel.from_config(pet.AutoConfig.from_pretrained("gpt_tiny"))
    assert load_param_into_net(model, held) == (
        ["transformer.h.1.attn.c_attn.weight"],
        ["backbone.blocks.1.attention.dense1.weight", "backbone.blocks.1.attention.dense3.weight", "global_step"],
    )
