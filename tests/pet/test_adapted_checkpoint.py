"""Checkpoints and adapters together: a base loads before or after wrapping, and is saved without what was added."""

from __future__ import annotations

import json

import numpy as np
import pytest
from mindspore import Tensor
from tiny_tokenizers import write_byte_level

from adapters.apply import apply, delete_adapter, disable_adapters, set_adapter, trainable_parameters
from adapters.bitfit import BitFitConfig
from adapters.lora import LoRAConfig
from adapters.merge import merge, unmerge
from adapters.prefix import PrefixConfig
from adapters.prompt import PromptConfig
from adapters.saving import load_adapter
from model_zoo.auto import AutoModel
from model_zoo.checkpoint.fingerprint import fingerprint
from model_zoo.checkpoint.reading import Checkpoint, load_into, read_config
from model_zoo.checkpoint.saving import save_pretrained
from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.companions import copy_tokenizer
from pet.parallel.build import starts_from_base

FIXTURES = ("chatglm1", "chatglm2", "glm", "glm4_0414", "gpt2", "llama_gqa", "llama_mha")


@pytest.mark.parametrize("name", FIXTURES)
def test_base_loads_before_or_after_wrapping(name, fixtures):
    ids = np.load(fixtures / name / "ref.npz")["input_ids"]
    first = AutoModel.from_pretrained(fixtures / name)
    load_adapter(first, fixtures / name / "lora")
    second = AutoModel.from_config(read_config(fixtures / name), seed=5)
    load_adapter(second, fixtures / name / "lora")
    assert np.abs(first(ids).asnumpy() - second(ids).asnumpy()).max() > 0.1
    load_into(second, fixtures / name)
    np.testing.assert_array_equal(first(ids).asnumpy(), second(ids).asnumpy())


STARTING_FROM_THE_BASE = {
    "dora": LoRAConfig(rank=2, use_dora=True, targets=["c_attn", "wte"]),
    "pissa": LoRAConfig(rank=2, init="pissa", bias="all"),
    "tokens": LoRAConfig(rank=2, trainable_tokens=[3, 9]),
    "whole": LoRAConfig(rank=2, modules_to_save=["lm_head"], dropout=0.1),
    "prompt": PromptConfig(length=3),
    "prefix": PrefixConfig(length=3, init_ids=[5, 6, 7]),
    "bitfit": BitFitConfig(),
}


@pytest.mark.parametrize("method", STARTING_FROM_THE_BASE)
def test_what_starts_from_the_base_starts_from_the_one_that_is_loaded(method, fixtures):
    """Applied and then loaded is loaded and then applied, but for what was trained in between."""

    def arrays(model):
        return {parameter.name: parameter.asnumpy().copy() for parameter in model.get_parameters()}

    base, ids = fixtures / "gpt2", np.load(fixtures / "gpt2" / "ref.npz")["input_ids"]
    expected = apply(AutoModel.from_pretrained(base), STARTING_FROM_THE_BASE[method])
    model = apply(AutoModel.from_config(read_config(base), seed=5), STARTING_FROM_THE_BASE[method])
    # a process that holds a part of the model cannot take these out of its part, and loads the whole first
    assert starts_from_base(model) == (method in ("dora", "pissa", "tokens", "prompt"))
    load_into(model, base)
    found, wanted = arrays(model), arrays(expected)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], array) for name, array in wanted.items())
    np.testing.assert_array_equal(model(ids).asnumpy(), expected(ids).asnumpy())
    # what has been trained stays; what only goes with the weights follows them
    trained = apply(AutoModel.from_config(read_config(base), seed=5), STARTING_FROM_THE_BASE[method])
    for parameter in trainable_parameters(trained):
        parameter.set_data(Tensor(parameter.asnumpy() + 0.25))
    before = arrays(trained)
    load_into(trained, base)
    after, weights = arrays(trained), {parameter.name for parameter in trainable_parameters(trained)}
    for name, array in after.items():
        if name in weights or ".initial_" in name:
            assert np.array_equal(array, before[name]), name
        else:
            assert np.array_equal(array, wanted[name]), name


@pytest.mark.parametrize("name", FIXTURES)
def test_the_base_is_saved_without_its_adapter_and_with_it_when_merged(name, fixtures, tmp_path):
    model = AutoModel.from_pretrained(fixtures / name)
    load_adapter(model, fixtures / name / "lora")
    save_pretrained(model, tmp_path / "plain")
    merge(model)
    save_pretrained(model, tmp_path / "merged")
    unmerge(model)
    save_pretrained(model, tmp_path / "again")

    def content(directory):
        return (directory / "model.safetensors").read_bytes()

    assert content(tmp_path / "plain") == content(tmp_path / "again") != content(tmp_path / "merged")
    with Checkpoint(tmp_path / "plain") as plain, Checkpoint(fixtures / name) as base:
        assert not any("lora" in tensor for tensor in plain)
        for tensor in plain:
            np.testing.assert_array_equal(plain.read(tensor), base.read(tensor))


def test_an_adapter_that_is_not_written_is_named(fixtures, tmp_path, caplog):
    model = AutoModel.from_pretrained(fixtures / "gpt2")
    for name in ("first", "second", "idle"):
        apply(model, LoRAConfig(rank=2), name=name)
    set_adapter(model, ["first", "second"])

    def said():
        caplog.clear()
        model.save_pretrained(tmp_path / "out")
        return [record.message for record in caplog.records if record.levelname == "WARNING"]

    (line,) = said()
    assert "without what the active adapters add (first, second)" in line
    assert "pet.save_adapter" in line and "pet.merge" in line
    with disable_adapters(model):
        assert said() == []
    merge(model)
    assert said() == []
    unmerge(model)
    assert len(said()) == 1
    for name in ("first", "second"):
        delete_adapter(model, name)
    assert said() == []


def test_fingerprint_sees_the_base_alone(fixtures):
    model = AutoModel.from_pretrained(fixtures / "glm")
    config = model.config.to_dict()
    bare = fingerprint(config, model)
    load_adapter(model, fixtures / "glm" / "lora")
    assert fingerprint(config, model) == bare
    merge(model)
    assert fingerprint(config, model) != bare
    unmerge(model)
    assert fingerprint(config, model) == bare


def test_a_replaced_parameter_is_said_to_be_in_the_way(fixtures, tmp_path):
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    apply(model, LoRAConfig(modules_to_save=["norm"]))
    with pytest.raises(InputError, match=r"model\.norm\.weight.*disable or merge it first"):
        save_pretrained(model, tmp_path / "out")
    with pytest.raises(InputError, match=r"the model lacks model\.norm\.weight"):
        fingerprint(model.config.to_dict(), model)
    with disable_adapters(model):
        save_pretrained(model, tmp_path / "out")
    with Checkpoint(tmp_path / "out") as checkpoint:
        assert "model.norm.weight" in checkpoint


def test_a_template_of_an_adapter_is_in_both_places_that_versions_of_transformers_read(tmp_path):
    """Where the base has one in tokenizer_config.json, which some read alone."""
    old, new = ("{{ messages[0]['content'] }}" + mark for mark in "?!")
    for name in ("base", "merged"):
        (tmp_path / name).mkdir()
    write_byte_level(tmp_path / "base", ["<|end|>"])
    settings = {"eos_token": "<|end|>", "chat_template": old}
    (tmp_path / "base" / "tokenizer_config.json").write_text(json.dumps(settings))
    AutoTokenizer.from_pretrained(tmp_path / "base").with_chat_template(new, "here").save_pretrained(tmp_path / "mine")
    copy_tokenizer([tmp_path / "mine"], None, None, tmp_path / "base", tmp_path / "merged", tmp_path / "merged")
    assert (tmp_path / "merged" / "chat_template.jinja").read_text() == new
    written = json.loads((tmp_path / "merged" / "tokenizer_config.json").read_text())
    assert written == {**settings, "chat_template": new}
