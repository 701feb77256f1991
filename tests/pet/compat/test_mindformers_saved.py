"""What MindFormers' ``save_pretrained`` writes: a ``.ckpt``, and the configuration by its own names; vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import pet
from model_zoo.errors import InputError
from pet.compat.ckpt.doors import config_for, to_file
from pet.compat.mindformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    ChatGLM2Config,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    get_pet_model,
    watching,
)
from pet.names import bundled_models

# of release 1.3.2, but for what is empty there
BOTH = {
    "mindformers_version": "1.3.2",
    "batch_size": 2,
    "use_past": False,
    "compute_dtype": "float32",
    "do_sample": False,
}
WRITTEN = {
    "llama_tiny": BOTH
    | {"type": "LlamaConfig", "model_type": "llama", "hidden_size": 128, "num_layers": 4, "num_heads": 4}
    | {"n_kv_heads": 2, "intermediate_size": 304, "vocab_size": 1216, "seq_length": 256, "max_position_embedding": 256}
    | {"theta": 10000.0, "rms_norm_eps": 1e-5, "fused_rms_norm": True, "extend_method": "None", "scaling_factor": 1.0},
    "gpt_tiny": BOTH
    | {"type": "GPT2Config", "model_type": "gpt2", "expand_ratio": 4, "num_labels": 2, "unk_token_id": 50256}
    | {"hidden_act": "gelu", "post_layernorm_residual": False},
    "chatglm2": BOTH
    | {"type": "ChatGLM2Config", "model_type": "glm2", "num_layers": 2, "num_heads": 4, "num_attention_heads": 4}
    | {"padded_vocab_size": 128, "vocab_size": 128, "hidden_size": 64, "ffn_hidden_size": 96, "kv_channels": 16}
    | {"multi_query_attention": True, "multi_query_group_num": 2, "n_kv_heads": 2, "seq_length": 128, "rope_ratio": 1},
}
KINDS = {"llama_tiny": LlamaConfig, "gpt_tiny": GPT2Config, "chatglm2": ChatGLM2Config}


@pytest.fixture(params=[(name, form) for name in WRITTEN for form in ("yaml", "json")], ids="-".join)
def saved(request, tmp_path, fixtures):
    """(directory, what it was made of, its name)."""
    name, form = request.param
    base = fixtures / name if (fixtures / name).is_dir() else pet.names.bundled_models()[name]
    to_file(base, tmp_path / "mindspore_model.ckpt")
    section = dict(WRITTEN[name])
    if name == "gpt_tiny":
        own = json.loads((base / "config.json").read_text())
        section |= {"hidden_size": own["n_embd"], "num_layers": own["n_layer"], "num_heads": own["n_head"]}
        section |= {"vocab_size": own["vocab_size"], "seq_length": own["n_positions"]}
    if form == "yaml":
        text = yaml.safe_dump({"model": {"arch": {"type": "LlamaForCausalLM"}, "model_config": section}})
        (tmp_path / "mindspore_model.yaml").write_text(text.replace("LlamaForCausalLM", section["type"][:-6] + "Model"))
    else:
        del section["type"]
        (tmp_path / "config.json").write_text(json.dumps(section))
    return tmp_path, base, name


def test_a_saved_directory_opens(saved):
    directory, base, name = saved
    ids = np.arange(20, 29)[None]
    expected = pet.AutoModel.from_pretrained(base)(ids).asnumpy()
    config = KINDS[name].from_pretrained(directory)
    for model in (AutoModel.from_pretrained(directory), AutoModel.from_config(config)):
        assert np.allclose(model(ids)[0].asnumpy(), expected, atol=1e-5)
    assert AutoConfig.from_pretrained(str(directory)).num_layers == model.config.num_layers
    assert config_for(directory / "mindspore_model.ckpt", *directory.glob("*.yaml")) == config.to_dict()
    shorter = AutoModel.from_pretrained(directory, num_layers=1)
    assert shorter.config.num_layers == 1


def test_a_saved_configuration_of_another_model_is_named(tmp_path):
    (tmp_path / "x.ckpt").write_bytes(b"")
    (tmp_path / "config.json").write_text('{"mindformers_version": "1.0", "model_type": "bloom"}')
    with pytest.raises(InputError, match=r"config\.json: model_type: unknown value 'bloom'"):
        AutoModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("beside", ["model: {arch: {type: LlamaForCausalLM}}", "context: {mode: 0}"])
def test_a_directory_with_its_own_configuration_is_that_whatever_lies_beside(tmp_path, beside):
    """A .ckpt file and a YAML file of its name, which says nothing of a model's sizes."""
    pet.AutoModel.from_pretrained("llama_tiny").save_pretrained(tmp_path)
    (tmp_path / "x.ckpt").write_bytes(b"")
    (tmp_path / "x.yaml").write_text(beside)
    assert AutoConfig.from_pretrained(str(tmp_path)).to_dict() == pet.AutoConfig.from_pretrained(tmp_path).to_dict()


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("llama_tiny", ["tokenizer.model"]),
        ("gpt_tiny", ["vocab.json", "merges.txt"]),
        ("glm_tiny", ["ice_text.model"]),
        ("glm4_tiny", ["tokenizer.model"]),
    ],
)
def test_the_vocabulary_is_saved_alone(name, files, tmp_path, monkeypatch, caplog):
    """MindFormers' own writes nothing, with a line in the log, where there is no directory; GLM-4's takes a file."""
    monkeypatch.chdir(tmp_path)
    tokenizer, base = AutoTokenizer.from_pretrained(name), Path(bundled_models()[name])
    assert tokenizer.save_vocabulary(tmp_path) == tuple(str(tmp_path / file) for file in files)
    assert [Path(file).read_bytes() for file in files] == [(base / file).read_bytes() for file in files]
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(files)
    if name == "glm4_tiny":
        assert tokenizer.save_vocabulary("alone", "mine") == ("alone",)
        assert Path("alone").read_bytes() == (base / files[0]).read_bytes()
        assert tokenizer.save_vocabulary(str(tmp_path), "mine") == (str(tmp_path / files[0]),)
        return
    assert tokenizer.save_vocabulary("not_there") is tokenizer.save_vocabulary("") is None
    assert caplog.text.count("is no directory; nothing is written") == 2 and not Path("not_there").exists()
    assert tokenizer.save_vocabulary(str(tmp_path), "mine") == tuple(str(tmp_path / f"mine-{file}") for file in files)


def test_a_trainer_saves_its_model(tmp_path, monkeypatch):
    """The weights and the tokenizer, for ``from_pretrained``; of a model with an adapter the adapter alone."""
    monkeypatch.chdir(tmp_path)
    own = LlamaForCausalLM(LlamaConfig(num_layers=1, hidden_size=32, num_heads=2, vocab_size=20, seq_length=8))
    trainer = Trainer(model=own)
    trainer.save_model("whole")
    found = AutoModel.from_pretrained("whole").parameters_dict()
    assert {name: one.asnumpy().tobytes() for name, one in found.items()} == {
        name: one.asnumpy().tobytes() for name, one in own.parameters_dict().items()
    }
    get_pet_model(own, {"pet_type": "lora", "lora_rank": 2, "lora_alpha": 4})
    trainer.save_model("adapted")
    assert sorted(file.name for file in Path("adapted").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    pet.add_adapter(own, pet.LoRAConfig(rank=3), "other")
    trainer.save_model("both")
    ranks = [json.loads((Path("both") / place / "adapter_config.json").read_text())["r"] for place in ("", "other")]
    assert ranks == [2, 3]
    trainer = Trainer(model="llama_tiny")
    monkeypatch.setattr(watching, "read_job", lambda: SimpleNamespace(rank=1))
    trainer.save_model("others")
    assert not Path("others").exists()
    monkeypatch.setattr(watching, "read_job", lambda: SimpleNamespace(rank=0))
    trainer.save_model()
    saved, ours = AutoTokenizer.from_pretrained("checkpoint_save"), trainer.model_and_tokenizer()[1]
    assert saved.encode("a red") == ours.encode("a red")
    assert (Path("checkpoint_save") / "model.safetensors").is_file()
