"""Configurations that scripts change between reading one and making a model of it, as MindFormers' documents do."""

from __future__ import annotations

import numpy as np
import pytest

import pet
from adapters.apply import list_adapters
from model_zoo.errors import InputError
from pet.compat.mindformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    ChatGLM2Config,
    GLMConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForCausalLMWithLora,
    LlamaTokenizer,
)
from pet.compat.mindformers.generation_defaults import still_random
from pet.train.base_dropout import Dropout

LLAMA = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 1216, "seq_length": 64}


def changed(config, **settings):
    for name, value in settings.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize(
    ("preset", "settings", "dims"),
    [
        ("gpt2", {"num_layers": 2, "hidden_size": 64, "num_heads": 4}, (2, 64, 4, 4, 16, 256, 50257, 1024)),
        ("gpt2", {"n_layer": 1, "n_embd": 64, "n_head": 4, "expand_ratio": 2}, (1, 64, 4, 4, 16, 128, 50257, 1024)),
        # without a word about the others they are what MindFormers makes of the changed ones
        ("llama_7b", {"num_layers": 1, "hidden_size": 64, "num_heads": 4}, (1, 64, 4, 4, 16, 256, 32000, 2048)),
        ("llama_7b", {"hidden_size": 64, "num_heads": 4, "multiple_of": 32}, (32, 64, 4, 4, 16, 192, 32000, 2048)),
        ("glm2_6b", {"num_layers": 1, "num_heads": 16, "seq_length": 8}, (1, 4096, 16, 2, 128, 13696, 65024, 8)),
        ("glm_6b", {"num_layers": 1, "seq_length": 8}, (1, 4096, 32, 32, 128, 16384, 130528, 8)),
    ],
)  # fmt: skip
def test_sizes_of_a_preset_can_be_changed_by_either_name(preset, settings, dims):
    config = changed(AutoConfig.from_pretrained(preset), **settings)
    assert tuple(config.dims) == dims == tuple(config.plain().dims)
    assert all(getattr(config, name) == value for name, value in settings.items())


@pytest.mark.parametrize("build", [LlamaForCausalLM, AutoModel.from_config, pet.AutoModel.from_config])
def test_a_model_is_of_the_sizes_that_were_said_last(build):
    config = changed(LlamaConfig(**LLAMA), num_layers=1, num_heads=8, vocab_size=600, seq_length=32)
    assert tuple(build(config).config.dims) == (1, 64, 8, 8, 8, 256, 600, 32)
    config = changed(LlamaConfig(**LLAMA, n_kv_heads=4, intermediate_size=96), num_heads=8, hidden_size=128)
    assert (config.dims.kv_heads, config.dims.ffn) == (4, 96)  # they were said, and stay


def test_a_model_does_not_change_with_its_configuration():
    config = LlamaConfig(**LLAMA, batch_size=4)
    model = AutoModel.from_config(config)
    config.num_layers = 1
    assert (model.config.num_layers, model.config.batch_size) == (2, 4)


def test_settings_are_read_by_mindformers_names():
    config = LlamaConfig(**LLAMA, use_past=True, compute_dtype="float16", top_k=3)
    assert (config.num_layers, config.num_heads, config.seq_length) == (2, 4, 64)
    assert (config.use_past, config.compute_dtype, config.top_k, config.rms_norm_eps) == (True, "float16", 3, 1e-5)
    config = AutoConfig.from_pretrained("gpt_tiny")
    assert (config.num_layers, config.batch_size, config.use_past, config.checkpoint_name_or_path) == (
        *(4, 1, False),
        "gpt_tiny",
    )
    assert config == pet.AutoConfig.from_pretrained("gpt_tiny") != changed(config, num_layers=1)
    with pytest.raises(AttributeError, match="GPT2Config has no 'num_layer'"):
        config.num_layer  # noqa: B018


def test_of_a_checkpoint_fewer_layers_are_read(caplog):
    for name in ("num_layers", "num_hidden_layers"):
        model = AutoModel.from_config(changed(AutoConfig.from_pretrained("llama_tiny"), **{name: 1}))
        assert model.config.dims.layers == 1 and "the first 1 of 4 layers are read" in caplog.text
    whole = pet.AutoModel.from_pretrained("llama_tiny").parameters_dict()
    own = model.parameters_dict()
    assert len(own) < len(whole)
    assert all(np.array_equal(one.asnumpy(), whole[name].asnumpy()) for name, one in own.items())


def test_numbers_and_lengths_of_a_checkpoint_can_be_changed():
    config = changed(AutoConfig.from_pretrained("llama_tiny_lora"), rms_norm_eps=1e-3, theta=5e5, seq_length=32)
    config.pet_config.lora_rank = 2
    model = AutoModel.from_config(config)
    assert (model.config.rms_norm_eps, model.config.rope_theta, model.config.dims.context) == (1e-3, 5e5, 32)
    assert list_adapters(model) == ["default"]
    assert {min(one.shape) for one in pet.trainable_parameters(model)} == {2}


@pytest.mark.parametrize(
    ("base", "settings", "message"),
    [
        ("llama_tiny", {"hidden_size": 64}, "hidden_size: hidden_size is 64, but llama_tiny has 128"),
        ("llama_tiny", {"num_heads": 2}, "num_heads: num_attention_heads is 2, but llama_tiny has 4"),
        ("llama_tiny", {"vocab_size": 600}, "vocab_size: vocab_size is 600, but llama_tiny has 1216"),
        ("glm_tiny", {"num_layers": 9}, "num_layers: num_layers is 9, but glm_tiny has 4"),
        ("gpt_tiny", {"seq_length": 32}, "seq_length: n_positions is 32, but gpt_tiny has 256"),
        ("gpt_tiny", {"checkpoint_name_or_path": "llama_tiny"}, "llama_tiny is a llama"),
    ],
)
def test_sizes_that_are_not_the_checkpoints_are_refused(base, settings, message):
    with pytest.raises(InputError, match=message):
        AutoModel.from_config(changed(AutoConfig.from_pretrained(base), **settings))
    if "checkpoint_name_or_path" not in settings:  # but for random weights
        config = changed(AutoConfig.from_pretrained(base), **settings)
        assert still_random(AutoModel.from_config(config, download_checkpoint=False))


def test_a_value_that_cannot_be_is_refused_where_it_is_set(caplog):
    config = AutoConfig.from_pretrained("llama_tiny")
    for name, value in (("num_layers", "two"), ("quantization_bit", 8), ("hidden_dropout_rate", 0.1)):
        with pytest.raises(InputError):
            setattr(config, name, value)
    config.num_layer = 2
    assert "num_layer: nothing reads it (did you mean 'num_layers'?)" in caplog.text
    with pytest.raises(InputError, match=r"from_config: dtype: set it on the configuration"):
        AutoModel.from_config(config, dtype="float16")


def test_settings_of_generation_and_dropout_count_as_said_last():
    config = changed(GPT2Config(hidden_size=64, num_layers=1, num_heads=2, top_k=3), top_k=5, hidden_dropout_rate=0.5)
    model = AutoModel.from_config(config)
    assert model.generation_defaults["top_k"] == 5
    assert sum(isinstance(cell, Dropout) for _, cell in model.cells_and_names()) == 2  # of attention and feed-forward


def test_models_and_configurations_are_saved_with_mindformers_arguments(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    config = changed(GPT2Config(hidden_size=64, num_layers=1, num_heads=2, vocab_size=300), num_layers=2)
    model = AutoModel.from_config(config)
    model.save_pretrained("here", save_name="gpt2")
    assert "save_pretrained: save_name: ignored" in caplog.text
    assert AutoModel.from_pretrained("here").config.dims == model.config.dims == config.dims
    for one in (AutoModel.from_pretrained("gpt_tiny"), AutoConfig.from_pretrained("gpt_tiny")):
        one.save_pretrained()
        assert AutoConfig.from_pretrained("checkpoint_save") == AutoConfig.from_pretrained("gpt_tiny")
    config.save_pretrained("there", save_name="gpt2")
    assert AutoConfig.from_pretrained("there").num_layers == 2


def test_names_that_are_taken_are_listed(caplog, monkeypatch):
    from pet.compat.mindformers import AutoProcessor, GPT2Tokenizer, TextGenerationPipeline, logger

    monkeypatch.setattr(logger, "propagate", True)
    for cls in (
        AutoConfig,
        AutoModel,
        AutoProcessor,
        LlamaForCausalLM,
        GPT2Tokenizer,
        GPT2Config,
        TextGenerationPipeline,
    ):
        names = cls.get_support_list()
        assert {"gpt2", "gpt2_lora", "gpt_tiny"} <= {*names["gpt2"]} and "glm_6b" in names["glm"]
        assert "glm3_6b" in names["glm2"] and "llama2_7b_lora" in names["llama"]
    with caplog.at_level("INFO"):
        AutoModel.show_support_list()
    assert "support list of AutoModel" in caplog.text and "glm2_6b" in caplog.text


@pytest.mark.parametrize(
    ("name", "own"),
    [("llama_tiny", False), ("gpt_tiny", False), ("glm_tiny", False), ("llama_tiny", True), ("glm4_tiny", True)],
)
def test_of_a_file_with_more_layers_the_first_are_read(name, own, tmp_path, caplog):
    """As MindSpore's load_param_into_net does, by MindFormers' names and by this library's."""
    import mindspore as ms

    from pet.compat.ckpt.doors import to_directory, to_file

    model, file = AutoModel.from_pretrained(name), str(tmp_path / "m.ckpt")
    ms.save_checkpoint(model, file) if own else to_file(name, file)
    config = changed(AutoConfig.from_pretrained(name), checkpoint_name_or_path=file, num_layers=2)
    found = AutoModel.from_config(config)
    assert f"{file}: the first 2 of 4 layers are read" in caplog.text and found.config.dims.layers == 2
    expected = {name: one.asnumpy() for name, one in model.parameters_dict().items()}
    kept = {name: one.asnumpy() for name, one in found.parameters_dict().items()}
    assert kept.keys() < expected.keys() and all(np.array_equal(expected[name], one) for name, one in kept.items())
    caplog.clear()
    to_directory(file, tmp_path / "hf", found.config.plain().to_dict())
    assert "the first 2 of 4 layers are read" in caplog.text
    there = pet.AutoModel.from_pretrained(tmp_path / "hf").parameters_dict()
    assert there.keys() == kept.keys() and all(np.array_equal(there[name].asnumpy(), one) for name, one in kept.items())
    with pytest.raises(InputError, match="is missing"):
        AutoModel.from_config(changed(config, num_layers=5))


@pytest.mark.parametrize("name", ["llama_tiny", "gpt_tiny", "glm_tiny", "glm4_tiny"])
def test_a_file_that_mindspore_saved_of_a_model_is_a_checkpoint_of_it(name, tmp_path):
    import mindspore as ms

    from pet.compat.ckpt.doors import to_directory

    model, file = AutoModel.from_pretrained(name), str(tmp_path / "m.ckpt")
    for parameter in model.get_parameters():
        parameter.set_data(parameter + 1)
    ms.save_checkpoint(model, file)
    expected = {name: one.asnumpy() for name, one in model.parameters_dict().items()}
    config = changed(AutoConfig.from_pretrained(name), checkpoint_name_or_path=file)
    found = AutoModel.from_config(config).parameters_dict()
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name].asnumpy(), one) for name, one in expected.items())
    to_directory(file, tmp_path / "hf", name)
    found = pet.AutoModel.from_pretrained(tmp_path / "hf").parameters_dict()
    assert all(np.array_equal(found[name].asnumpy(), one) for name, one in expected.items())
    if name != "llama_tiny":
        return
    fewer = [{"name": name, "data": one} for name, one in model.parameters_dict().items() if "layers.3.mlp" not in name]
    ms.save_checkpoint([*fewer, {"name": "model.other.weight", "data": ms.Tensor([1.0])}], file)
    with pytest.raises(InputError) as caught:
        AutoModel.from_config(config)
    text = str(caught.value)
    assert "4 problems" in text and "model.layers.3.mlp.up_proj.weight is missing" in text
    assert "model.other.weight is no parameter of this model" in text


def test_an_answer_out_of_random_weights_is_said(tmp_path, caplog):
    """MindSpore's load_checkpoint finds nothing in another model's file, and goes on; once it is said."""
    import mindspore as ms

    from pet.compat.ckpt.doors import to_file

    to_file("gpt_tiny", tmp_path / "other.ckpt")
    to_file("llama_tiny", tmp_path / "m.ckpt")
    config = pet.AutoConfig.from_pretrained("llama_tiny")
    model = AutoModel.from_config(config)
    assert ms.load_param_into_net(model, ms.load_checkpoint(str(tmp_path / "other.ckpt")))[0]
    model.generate([[5, 6]], max_new_tokens=1)
    assert "the model has random weights" in caplog.text and "checkpoint_name_or_path" in caplog.text
    caplog.clear()
    model.generate([[5, 6]], max_new_tokens=1)
    own, theirs = AutoModel.from_config(config), AutoModel.from_config(config)
    ms.save_checkpoint(pet.AutoModel.from_pretrained("llama_tiny"), str(tmp_path / "own.ckpt"))
    ms.load_checkpoint(str(tmp_path / "own.ckpt"), own)
    ms.load_checkpoint(str(tmp_path / "m.ckpt"), theirs)
    for one in (own, theirs, AutoModel.from_pretrained("llama_tiny")):
        one.generate([[5, 6]], max_new_tokens=1)
    assert "random weights" not in caplog.text
    assert still_random(AutoModel.from_pretrained("llama_tiny", download_checkpoint=False))


def test_a_setting_that_the_configuration_does_not_say_is_none_of_the_calls():
    """Scripts hand all of them on."""
    model = AutoModel.from_pretrained("llama_tiny")
    names = ("do_sample", "top_k", "top_p", "temperature", "repetition_penalty")
    found = model.generate([[5, 6]], max_length=4, **dict.fromkeys(names))
    assert np.array_equal(found, model.generate([[5, 6]], max_length=4))


def test_a_lora_model_of_chatglm():
    from pet.compat.mindformers.models.glm import GLMChatModelWithLora

    from adapters.apply import list_adapters
    from pet.compat.mindformers import LoraConfig

    config = AutoConfig.from_pretrained("glm_tiny")
    model = GLMChatModelWithLora(config)
    assert list_adapters(model) == ["default"]
    ranks = {name: one.shape[0] for name, one in model.parameters_dict().items() if name.endswith("lora_A.weight")}
    assert ranks and set(ranks.values()) == {8}
    config.pet_config = LoraConfig(lora_rank=2)
    found = GLMChatModelWithLora(config).parameters_dict()
    assert {one.shape[0] for name, one in found.items() if name.endswith("lora_A.weight")} == {2}


def test_numbers_that_pyyaml_has_left_texts():
    """``1e-5`` without a dot is a word to YAML 1.1; a script hands such a section on as it is."""
    config = GPT2Config(layernorm_epsilon="1e-5", hidden_dropout_rate="1e-1")
    assert (config.layer_norm_epsilon, config.hidden_dropout_rate) == (1e-5, 0.1)
    config.layernorm_epsilon = "1e-3"
    assert config.layer_norm_epsilon == 1e-3 == config.plain().layer_norm_epsilon
    config = LlamaConfig(**{**LLAMA, "num_heads": 2}, rms_norm_eps="1e-6", theta="1e4", ffn_dim_multiplier="1e0")
    assert (config.rms_norm_eps, config.rope_theta, config.intermediate_size) == (1e-6, 1e4, 256)
    assert ChatGLM2Config(layernorm_epsilon="1e-5", pre_seq_len="None").layernorm_epsilon == 1e-5
    with pytest.raises(InputError, match="layernorm_epsilon is 'small'; a number of 0 or more was expected"):
        ChatGLM2Config(layernorm_epsilon="small")


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (ChatGLM2Config, {"position_encoding_2d": True, "inner_hidden_size": 64, "no_recompute_layers": [20]}),
        (ChatGLM2Config, {"residual_dtype": "bfloat16", "mask_type": "float16"}),
        (GPT2Config, {"layernorm_dtype": "float32", "softmax_dtype": "float16", "param_init_type": "float16"}),
        (LlamaConfig, {"pa_block_size": 16, "pa_num_blocks": 512, "use_kbk_infer": True, "pp_interleave_num": 1}),
        (LlamaConfig, {"mlp_has_gate": True, "ffn_concat": False, "embedding_init_type": "float32"}),
    ],
)
def test_what_changes_nothing_of_the_model_may_stand_there(make, settings):
    assert make(**settings) == make()
    for name, value in settings.items():
        assert getattr(make(**settings), name) == value


@pytest.mark.parametrize(
    ("make", "settings", "why"),
    [
        (LlamaConfig, {"mlp_has_gate": False}, "mlp_has_gate: False: only True is supported"),
        (GLMConfig, {"use_final_layernorm": False}, "use_final_layernorm: False: only True is supported"),
        (LlamaConfig, {"quantization_config": {"quant_method": "rtn"}}, "quantization_config: is not known"),
        (LlamaConfig, {"position_encoding_2d": True}, "position_encoding_2d: is not known"),
        (GPT2Config, {"num_label": 2}, "num_label: is not known"),
    ],
)
def test_what_would_change_it_is_refused(make, settings, why):
    with pytest.raises(InputError, match=why):
        make(**settings)


def test_sizes_by_the_names_of_old_releases():
    config = GPT2Config(embedding_size=64, num_hidden_layers=1, num_heads=4, expand_ratio=2)
    assert (config.n_embd, config.n_layer, config.n_inner) == (64, 1, 128)
    assert GPT2Config(embedding_size=32, hidden_size=64, num_heads=4).n_embd == 64
    assert ChatGLM2Config(padded_vocab_size=1344).vocab_size == 1344


def test_an_adapter_in_a_configurations_section():
    model = LlamaForCausalLM(LlamaConfig(**LLAMA, pet_config={"pet_type": "lora", "lora_rank": 4, "lora_alpha": 8}))
    assert list_adapters(model) == ["default"]


def test_objects_are_instances_of_the_classes_by_which_scripts_name_their_family():
    config = LlamaConfig(**LLAMA)
    assert isinstance(config, LlamaConfig) and not isinstance(config, GPT2Config)
    assert isinstance(AutoConfig.from_pretrained("llama2_7b"), LlamaConfig)
    for name in ("glm2_6b", "glm4_tiny"):
        assert isinstance(AutoConfig.from_pretrained(name), ChatGLM2Config)
    for model in (LlamaForCausalLM(config), AutoModel.from_pretrained("llama_tiny")):
        assert isinstance(model, LlamaForCausalLM) and isinstance(model, pet.LlamaForCausalLM)
        assert not isinstance(model, (GPT2LMHeadModel, LlamaForCausalLMWithLora))
    assert isinstance(AutoModel.from_pretrained("llama_tiny_lora"), LlamaForCausalLMWithLora)
    found, own = AutoTokenizer.from_pretrained("gpt_tiny"), type("Own", (GPT2Tokenizer,), {})
    assert isinstance(found, GPT2Tokenizer) and not isinstance(found, (LlamaTokenizer, own))
    assert isinstance(own.from_pretrained("gpt_tiny"), own)


def test_a_configuration_by_the_name_of_its_family():
    config = AutoConfig.for_model("llama", **LLAMA)
    assert config == LlamaConfig(**LLAMA) and config.num_layers == 2
    with pytest.raises(InputError, match="for_model: model_type: unknown value 'lama'"):
        AutoConfig.for_model("lama")


def test_a_configuration_of_a_family_names_its_checkpoint_too():
    """As `AutoConfig` does: a model that is made of it has these weights."""
    config = GPT2Config.from_pretrained("gpt_tiny")
    made, expected = GPT2LMHeadModel(config), pet.AutoModel.from_pretrained("gpt_tiny")
    assert np.array_equal(made([[5, 6]])[0].asnumpy(), expected([[5, 6]]).asnumpy())
    assert not still_random(made)
