"""MindFormers' concrete names, the start of its scripts, ranges of its shell wrappers; converted files."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError
from pet.compat import mindformers
from pet.compat.rank_table import devices, place


def test_configurations_and_models(base):
    config = pet.GPT2Config(hidden_size=32, num_layers=2, num_heads=4, seq_length=64, vocab_size=60, use_past=True)
    assert (config.n_embd, config.n_layer, config.n_head, config.n_positions) == (32, 2, 4, 64)
    model = pet.GPT2LMHeadModel(config)
    ids = model.generate([[5, 6, 7]], max_length=8, top_k=1)
    assert ids.shape == (1, 8)
    assert pet.GPT2Config(hidden_size=768, num_layers=12).dims.layers == 12
    assert pet.LlamaConfig(hidden_size=4096, num_layers=1).intermediate_size == 11008
    ends = pet.LlamaConfig(hidden_size=64, num_layers=1, num_heads=4, eos_token_id=[7, 8]).to_dict()["eos_token_id"]
    assert ends == [7, 8]
    assert pet.GLMConfig(num_layers=2, hidden_size=64, num_heads=4).dims.heads == 4
    loaded = pet.GPT2LMHeadModel(pet.GPT2Config(checkpoint_name_or_path=str(base)))
    assert loaded.config.n_embd == 32
    with pytest.raises(InputError, match=r"num_layer: is not known .did you mean 'num_layers'"):
        pet.GPT2Config(num_layer=2)


def test_concrete_names_of_the_other_families():
    pairs = (
        (pet.GLMChatModel, pet.GLMConfig, pet.ChatGLMTokenizer, "glm_tiny"),
        (pet.LlamaForCausalLM, pet.LlamaConfig, pet.LlamaTokenizer, "llama_tiny"),
    )
    for model_class, config_class, tokenizer_class, name in pairs:
        model = model_class(config_class(use_past=True, checkpoint_name_or_path=name))
        tokenizer = tokenizer_class.from_pretrained(name)
        ids = tokenizer.prompt([{"role": "user", "content": "hello"}])
        expected = pet.AutoModel.from_pretrained(name)([ids]).asnumpy()
        assert np.array_equal(model([ids]).asnumpy(), expected)
        assert tokenizer.decode(tokenizer("hello!")["input_ids"], skip_special_tokens=True) == "hello!"


def test_tokenizers_and_processors(base):
    tokenizer = pet.GPT2Tokenizer.from_pretrained("gpt_tiny")
    encoded = tokenizer("hello!")
    assert set(encoded) == {"input_ids", "token_type_ids", "attention_mask"}
    end = tokenizer.eos_token_id
    assert encoded["input_ids"][0] == encoded["input_ids"][-1] == end
    assert tokenizer.decode(encoded["input_ids"], skip_special_tokens=True) == "hello!"
    batch = pet.GPT2Processor(tokenizer=tokenizer, max_length=16, return_tensors="ms")("hello!")
    assert batch["input_ids"].shape == (1, 16)
    assert np.array_equal(batch["input_ids"].asnumpy()[0, : len(encoded["input_ids"])], encoded["input_ids"])


def test_init_context_of_a_single_process():
    config = pet.ContextConfig(mode=0, device_target="CPU", device_id=0)
    parallel = pet.ParallelContextConfig(parallel_mode="DATA_PARALLEL", gradients_mean=True, full_batch=True)
    assert pet.init_context(use_parallel=False, context_config=config, parallel_config=parallel) == (0, 1)
    with pytest.raises(InputError, match="pet launch"):
        pet.init_context(use_parallel=True)
    with pytest.raises(InputError, match="context_config is 1; a ContextConfig or a dictionary was expected"):
        pet.init_context(context_config=1)
    with pytest.raises(InputError, match="SEMI_AUTO_PARALEL"):
        pet.ParallelContextConfig(parallel_mode="SEMI_AUTO_PARALEL")


def test_ranges_and_rank_tables(tmp_path, monkeypatch):
    table = tmp_path / "table.json"
    servers = [
        {"server_id": host, "device": [{"device_id": str(7 - n), "rank_id": str(first + n)} for n in range(2)]}
        for host, first in (("10.0.0.1", 0), ("10.0.0.2", 2))
    ]
    table.write_text(json.dumps({"server_list": servers}))
    assert devices("[0,4]") == "0,1,2,3"
    assert devices("[2,4]", str(table)) == "7,6"
    assert place("[2,4]", 4, str(table)) == "-n 2 --devices 7,6 --nnodes 2 --node-rank 1 --master 10.0.0.1:8118"
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(InputError, match="MASTER_ADDR"):
        place("[0,2]", 4)
    for span in ("", "[1,3]"):
        with pytest.raises(InputError, match="of 4: every machine must have the same number of processes, in order"):
            place(span, 4)


def test_convert_on_the_command_line(base, tmp_path, capsys):
    from pet.cli.main import main

    (tmp_path / "run.yaml").write_text(f"base_model: {base}\nadapter: lora\nlora_r: 4\nflash_attention: true\n")
    assert main(["recipes", "convert", "run.yaml"]) == 0
    text = capsys.readouterr().out
    assert "# ignored: flash_attention: " in text
    assert "rank: 4" in text


NAMES = "gpt2 gpt2_small gpt2_13b gpt2_52b glm_6b glm2_6b glm3_6b glm4_9b llama_7b llama_13b llama_65b llama2_7b "
NAMES += "llama2_13b llama2_70b llama3_8b llama3_70b"


def test_every_preset_name_and_its_lora_form():
    from pet.compat.mindformers.presets import split_name

    assert pet.AutoConfig.from_pretrained("gpt2").dims == pet.AutoConfig.from_pretrained("gpt2_small").dims
    for name in NAMES.split():
        assert mindformers.LlamaConfig.from_pretrained(f"{name}_lora") == pet.AutoConfig.from_pretrained(name)
        base, settings = split_name(f"{name}_lora")
        assert (base, settings["method"]) == (name, "lora")
    for load in (pet.AutoModel.from_pretrained, mindformers.GPT2LMHeadModel.from_pretrained):
        with pytest.raises(InputError, match=r"'gpt2': is a known size, but its weights.*from_config"):
            load("gpt2")
    with pytest.raises(InputError, match="tokenizer 'gpt2': is a known size"):
        pet.AutoTokenizer.from_pretrained("gpt2")
    with pytest.raises(InputError, match="'gpt2': is a known size"):
        pet.pipeline(task="text_generation", model="gpt2", max_length=50)


def test_a_file_of_a_checkpoint_stands_for_its_directory(base, tmp_path):
    from pet.names import find_model

    assert [find_model(base / name) for name in ("config.json", "model.safetensors")] == [base, base]
    alone = tmp_path / "model.safetensors"
    alone.write_bytes(b"")
    with pytest.raises(InputError, match="is a file, expected a Hugging Face checkpoint directory"):
        find_model(alone)


def test_what_is_saved_is_opened_again(base, tmp_path):
    model = pet.AutoModel.from_pretrained(str(base))
    model.save_pretrained(tmp_path / "all")
    pet.AutoConfig.from_pretrained(str(base)).save_pretrained(tmp_path / "config")
    assert pet.AutoConfig.from_pretrained(tmp_path / "config") == pet.AutoConfig.from_pretrained(tmp_path / "all")
    again = pet.AutoModel.from_pretrained(tmp_path / "all")
    assert np.array_equal(again([[5, 6]]).asnumpy(), model([[5, 6]]).asnumpy())
    processor = pet.AutoProcessor.from_pretrained(str(base), max_length=8)
    processor.save_pretrained(tmp_path / "processor")
    again = pet.AutoProcessor.from_pretrained(str(tmp_path / "processor"), max_length=8)
    one, other = processor("hello!"), again("hello!")
    assert all(np.array_equal(one[name].asnumpy(), other[name].asnumpy()) for name in one)


def test_a_scripts_own_context_is_left_alone(monkeypatch):
    import mindspore as ms

    calls = []
    monkeypatch.setattr(ms, "set_context", lambda **settings: calls.append(settings))
    monkeypatch.setattr(ms, "set_device", lambda *settings: calls.append(settings))
    mode = ms.get_context("mode")
    pet.init_context(use_parallel=False, context_config=pet.ContextConfig(mode=0, device_target="CPU", device_id=0))
    pet.init_context()
    assert calls == []
    assert ms.get_context("mode") == mode


def test_a_configurations_settings_of_generation_are_those_of_generate():
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "seq_length": 24, "vocab_size": 60}
    config = pet.GPT2Config(**sizes, do_sample=True, top_k=4, temperature=2.0, max_decode_length=2048)
    model, prompt = pet.GPT2LMHeadModel(config), [[5, 6, 7]]
    drawn = [model.generate(prompt, seed=seed, max_length=9, use_cache=False).tolist() for seed in (1, 2, 1)]
    assert drawn[0] != drawn[1]
    assert drawn[0] == drawn[2]
    from model_zoo.generation import generate

    greedy = generate(model, prompt, max_length=9, use_cache=False)
    assert np.array_equal(model.generate(prompt, do_sample=False, max_length=9, use_cache=False), greedy)
    assert np.array_equal(model.generate(prompt, None, 6, False, use_cache=False), greedy)  # by position as well
    assert model.generate(prompt, use_cache=False).shape == (1, 24)  # cut to the context
    tokenizer = pet.AutoTokenizer.from_pretrained("gpt_tiny")
    pipe = pet.pipeline("text_generation", model=model, tokenizer=tokenizer)
    asked = {}
    model.generate = lambda ids, mask, **settings: asked.update(settings) or np.asarray(ids)
    pipe.model.check_ids = lambda ids: None
    pipe("The", max_new_tokens=3)
    assert (asked["do_sample"], asked["top_k"], asked["temperature"], asked["max_new_tokens"]) == (True, 4, 2.0, 3)
    assert "max_length" not in asked
    # a configuration that says nothing changes nothing
    plain = pet.GPT2LMHeadModel(pet.GPT2Config(**sizes))
    assert plain.generation_defaults == {}
    assert plain.generate(prompt, max_new_tokens=2, use_cache=False).shape == (1, 5)


def test_arguments_without_meaning_and_unknown_ones(caplog):
    import argparse

    from pet.compat.command_line import add_switch, read

    parser = argparse.ArgumentParser()
    parser.add_argument("--model_type", default="gpt2")
    add_switch(parser, "use_parallel", "")
    words = ["--mode", "0", "--enable_graph_kernel", "True", "--sink_mode=True", "--use_parallel"]
    options = read(parser, words)
    assert (options.model_type, options.use_parallel) == ("gpt2", True)
    (said,) = [record.message for record in caplog.records if "ignored: " in record.message]
    assert [name for name in ("--mode", "--enable_graph_kernel", "--sink_mode") if name not in said] == []
    with pytest.raises(InputError, match=r"--model_typ: is not known \(did you mean 'model_type'"):
        read(parser, ["--model_typ", "x"])


def test_forwards_of_scripts_wait_their_turn(monkeypatch):
    import threading
    from types import SimpleNamespace

    from model_zoo import generation, turns
    from pet.compat.objects import Objects
    from pet.compat.outputs import Outputs

    waits = []

    def ask():
        free = turns.turn.lock.acquire(blocking=False)
        waits.append(not free)
        if free:
            turns.turn.lock.release()

    def forward(*arguments, **settings):
        other = threading.Thread(target=ask)
        other.start()
        other.join()
        return {}

    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 60, "top_k": 4}
    model = pet.GPT2LMHeadModel(pet.GPT2Config(**sizes))
    monkeypatch.setattr(generation, "generate", forward)
    model.generate([[5, 6]])
    Outputs(forward)(None)
    Objects(metrics=forward).measures(SimpleNamespace(batches=list))()
    assert waits == [True] * 3
