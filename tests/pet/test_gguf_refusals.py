"""Models and adapters that are not written as GGUF, each with its reason."""

from __future__ import annotations

import json
import shutil

import pytest
from gguf_models import CONFIGS, LLAMA3_ROPE, SIZES, YARN

from model_zoo.errors import InputError
from model_zoo.families import config_class
from pet.gguf.architectures import architecture_of
from pet.names import bundled_models

gguf = pytest.importorskip("gguf")


def saved(model, directory, config):
    from adapters.saving import save_adapter
    from pet import apply

    apply(model, config)
    save_adapter(model, directory)
    return directory


def adapter_of(kind, base, directory):
    """An adapter of a kind that llama.cpp has no place for."""
    import pet

    settings = {
        "dora": pet.LoRAConfig(rank=2, use_dora=True),
        "whole": pet.LoRAConfig(rank=2, modules_to_save=["norm"]),
        "rows": pet.LoRAConfig(rank=2, trainable_tokens=[3, 4]),
        "embedding": pet.LoRAConfig(rank=2, targets=["embed_tokens"]),
        "head": pet.LoRAConfig(rank=2, targets=["lm_head"]),
        "ia3": pet.IA3Config(),
        "prefix": pet.PrefixConfig(length=2),
    }
    return saved(pet.AutoModel.from_pretrained(base), directory, settings[kind])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("dora", "it has DoRA's magnitudes"),
        ("whole", "it is a weight of its own"),
        ("rows", "it is new rows of an embedding"),
        ("embedding", "one tensor for a tied embedding and head"),
        ("head", "lm_head.weight: llama.cpp has one tensor for a tied"),
        ("ia3", "takes LoRA, this is an adapter of type IA3; merge it"),
        ("prefix", "type PREFIX_TUNING; it cannot be merged either: it"),
    ],
)
def test_what_llama_cpp_cannot_take_is_refused_with_the_reason(bases, tmp_path, kind, words):
    from pet.gguf.adapter import write_adapter

    base = bases("llama3")
    adapter = adapter_of(kind, base, tmp_path / kind)
    with pytest.raises(InputError, match=words):
        write_adapter(adapter, base, tmp_path / "lora.gguf")
    assert not (tmp_path / "lora.gguf").exists()


@pytest.mark.parametrize("name", ["gpt_tiny", "glm_tiny"])
def test_families_without_a_place_are_named(tmp_path, name):
    from pet.gguf.model import write_model

    with pytest.raises(InputError, match="cannot be written; supported: chatglm, glm, glm4, llama"):
        write_model(bundled_models()[name], tmp_path / "base.gguf")
    assert not any(tmp_path.iterdir())


def test_yarns_own_bounds_are_refused(bases, tmp_path):
    from pet.gguf.model import write_model

    directory = shutil.copytree(bases("qwen3"), tmp_path / "base")
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**values, "rope_scaling": {**YARN, "beta_fast": 4.0}}))
    with pytest.raises(InputError, match=r"YaRN with beta_fast 4.0 instead of 32: llama.cpp has no place for it"):
        write_model(directory, tmp_path / "a.gguf")


LOADS_NOT = {
    "heads of qwen2": ("qwen2", {"head_dim": 32}, "qwen2 has no place for num_attention_heads × head_dim"),
    "heads of glm": ("glm", {"head_dim": 8}, "chatglm has no place for num_attention_heads × head_dim"),
    "llama3 in glm4": ("glm4", {"rope_scaling": LLAMA3_ROPE}, "glm4 has no place for rotary settings of rope_type 'll"),
    "biases of qwen3": ("qwen3", {"attention_bias": True}, "qwen3 has no place for attention_bias"),
}


@pytest.mark.parametrize("name", LOADS_NOT)
def test_models_that_llama_cpp_does_not_load_are_refused(name):
    """It ends at such a file with tensors of a wrong shape, or with too many of them."""
    kind, changes, words = LOADS_NOT[name]
    values = {**SIZES, **CONFIGS[kind]}
    assert architecture_of(config_class(values).from_dict(values)).name
    with pytest.raises(InputError, match=f"llama.cpp's {words}"):
        architecture_of(config_class(values).from_dict({**values, **changes}))
