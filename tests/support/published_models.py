"""Random models of published families."""

from __future__ import annotations

import json

import numpy as np

LIMIT = 1e-4
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "use_cache": True,
    "attention_dropout": 0.0,
    "torch_dtype": "float32",
}
QWEN3_MOE = {
    **SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "head_dim": 12,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 20,
    "norm_topk_prob": True,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "output_router_logits": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "tie_word_embeddings": False,
}


def random_model(values: dict, directory):
    """A model of transformers with weights that let every part count, saved beside the config.json as published."""
    import torch
    import transformers

    (directory / "config.json").write_text(json.dumps(values))
    config = transformers.AutoConfig.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            centre = float(parameter.mean().round()) if "norm" in name else 0.0
            narrow = 0.3 if parameter.dim() == 1 or "embed" in name else 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_(centre + noise * narrow)
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig()
    model.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps(values))
    return model


def positions(mask):
    return np.maximum(mask.cumsum(1) - 1, 0)


def logits_of(peer, ids, mask) -> np.ndarray:
    import torch

    given = {"attention_mask": torch.tensor(mask), "position_ids": torch.tensor(positions(mask))}
    with torch.no_grad():
        return peer(torch.tensor(ids), **given).logits.float().numpy()
