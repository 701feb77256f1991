"""MindFormers' concrete names, the start of its scripts, ranges of its shell wrappers; converted files."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError
from pet.compat import mindformers
from pet.compat.rank_table import devices, place


def test_every_name_can_be_imported():
    for name in mindformers.__all__:
        assert getattr(mindformers, name).__doc__


def test_configurations_and_models(base):
    config = pet.GPT2Config(hidden_size=32, num_layers=2, num_heads=4, seq_length=64, vocab_size=60, use_past=True)
    assert (config.n_embd, config.n_layer, config.n_head, config.n_positions) == (32, 2, 4, 64)
    model = pet.GPT2LMHeadModel(config)
    ids = model.generate([[5, 6, 7]], max_length=8, top_k=1)
    assert ids.shape == (1, 8)
    assert pet.GPT2Config(hidden_size=768, num_layers=12).dims.layers == 12
    assert pet.LlamaConfig(hidden_size=4096, num_layers=1).intermediate_size == 11008
    assert pet.GLMConfig(num_layers=2, hidden_size=64, num_heads=4).dims.heads == 4
    loaded = pet.GPT2LMHeadModel(pet.GPT2Config(checkpoint_name_or_path=str(base)))
    assert loaded.config.n_embd == 32
    with pytest.raises(InputError, match=r"num_layer'.*did you mean 'num_layers'"):
        pet.GPT2Config(num_layer=2)


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


def test_convert_on_the_command_line(base, tmp_path, capsys):
    from pet.cli.main import main

    (tmp_path / "run.yaml").write_text(f"base_model: {base}\nadapter: lora\nlora_r: 4\nflash_attention: true\n")
    assert main(["recipes", "convert", "run.yaml"]) == 0
    text = capsys.readouterr().out
    assert "# ignored: flash_attention: " in text
    assert "rank: 4" in text
