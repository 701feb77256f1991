"""What the padding's token learns, where it occurs as one of the text: the same as in transformers with PEFT."""

from __future__ import annotations

import os

import numpy as np
import pytest
from peers import imported

import pet

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = peft = transformers = None
peers = imported(globals(), "torch", "peft", "transformers")
IDS = np.random.default_rng(0).integers(0, 60, (3, 20))
PAD = int(IDS[0, 6])
STEPS, RATE = 4, 1e-2

SIZES = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
GPT2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
GPT2 |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
MODELS = {
    "llama": SIZES,
    "qwen3": {**SIZES, "tie_word_embeddings": True},
    "gemma2": {**SIZES, "sliding_window": 8},
    "glm4": SIZES,
    "gpt2": GPT2,
}
LORA = {
    "all weights": None,
    "whole embedding": {"modules_to_save": ["{}"]},
    "lora": {"target_modules": ["{}"]},
    "dora": {"target_modules": ["{}"], "use_dora": True},
    "tokens": {"trainable_token_indices": {"{}": [PAD, 3]}},
}
CASES = [("llama", name) for name in LORA]
CASES += [(name, what) for name in ("qwen3", "gemma2", "gpt2") for what in ("all weights", "lora", "tokens")]
CASES += [("glm4", "all weights")]


def base(kind: str, directory):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **MODELS[kind], pad_token_id=PAD)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # far enough from nothing that rows of the embedding count
        for value in model.parameters():
            value += torch.randn(value.shape, generator=generator) * 0.1
    model.save_pretrained(directory)
    return directory


def adapter(kind: str, settings: dict, path, directory):
    """An adapter of PEFT's whose weights are no longer those that it began with."""
    name = "wte" if kind == "gpt2" else "embed_tokens"
    settings = {
        key: {name: value["{}"]} if isinstance(value, dict) else [name] if isinstance(value, list) else value
        for key, value in settings.items()
    }
    settings.setdefault("target_modules", ["c_attn"] if kind == "gpt2" else ["q_proj"])
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, **settings)
    made = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(path), config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    made.save_pretrained(directory)
    return directory


def their_losses(model) -> list[float]:
    model.eval()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, ids, found = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0), torch.tensor(IDS), []
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.cover
@pytest.mark.parametrize("compiled", (True, False))
@pytest.mark.parametrize(("kind", "what"), CASES, ids=lambda value: value.replace(" ", "_"))
@pytest.mark.filterwarnings("ignore")
def test_losses_of_steps(kind, what, compiled, tmp_path):
    path = base(kind, tmp_path / "base")
    theirs, ours = transformers.AutoModelForCausalLM.from_pretrained(path), pet.AutoModel.from_pretrained(path)
    if LORA[what] is not None:
        made = adapter(kind, LORA[what], path, tmp_path / "adapter")
        theirs = peft.PeftModel.from_pretrained(theirs, made, is_trainable=True)
        pet.load_adapter(ours, made)
    settings = {"schedule": "constant", "warmup": 0, "weight_decay": 0.0, "clip_norm": None, "log_every": 1}
    rows = [{"input_ids": IDS, "labels": IDS}]
    trainer = pet.Trainer(ours, rows, steps=STEPS, learning_rate=RATE, compiled=compiled, **settings)
    trainer.train()
    found = [step["loss"] for step in trainer.history]
    assert found == pytest.approx(their_losses(theirs), abs=2e-5)
