"""Models here and in transformers with the same weights, and adapters by PEFT's names."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ops

import pet

IDS = np.random.default_rng(0).integers(3, 120, (2, 9))
LIMIT = 1e-4
# ours, and the same in PEFT's words
CASES = {
    "lora": ({"rank": 4}, {"r": 4, "lora_alpha": 16}),
    "rslora": ({"rank": 4, "use_rslora": True}, {"r": 4, "lora_alpha": 16, "use_rslora": True}),
    "dora": ({"rank": 4, "use_dora": True}, {"r": 4, "lora_alpha": 16, "use_dora": True}),
    "pissa": ({"rank": 4, "init": "pissa"}, {"r": 4, "lora_alpha": 16, "init_lora_weights": "pissa"}),
    "olora": ({"rank": 4, "init": "olora"}, {"r": 4, "lora_alpha": 16, "init_lora_weights": "olora"}),
    "pissa dora": (
        {"rank": 4, "init": "pissa", "use_dora": True},
        {"r": 4, "lora_alpha": 16, "init_lora_weights": "pissa", "use_dora": True},
    ),
    "olora dora": (
        {"rank": 4, "init": "olora", "use_dora": True},
        {"r": 4, "lora_alpha": 16, "init_lora_weights": "OLoRA", "use_dora": True},
    ),
}
LLAMA = {
    "patterns": (
        {
            "targets": ["q_proj", "down_proj"],
            "rank_pattern": {"down_proj": 2, "1.*q_proj": 3},
            "alpha_pattern": {"q_proj": 5},
        },
        {
            "target_modules": ["q_proj", "down_proj"],
            "rank_pattern": {"down_proj": 2, "1.*q_proj": 3},
            "alpha_pattern": {"q_proj": 5},
            "r": 8,
            "lora_alpha": 16,
        },
    ),
    "whole": (
        {"rank": 2, "modules_to_save": ["lm_head", "norm"]},
        {"r": 2, "lora_alpha": 16, "modules_to_save": ["lm_head", "norm"]},
    ),
    "embedding": (
        {"rank": 2, "targets": ["embed_tokens"]},
        {"r": 2, "lora_alpha": 16, "target_modules": ["embed_tokens"]},
    ),
    "embedding dora": (
        {"rank": 2, "targets": ["embed_tokens"], "use_dora": True},
        {"r": 2, "lora_alpha": 16, "target_modules": ["embed_tokens"], "use_dora": True},
    ),
    "pissa beside an embedding": (
        {"rank": 3, "targets": ["q_proj", "embed_tokens"], "init": "pissa", "rank_pattern": {"embed_tokens": 2}},
        {
            "r": 3,
            "lora_alpha": 16,
            "target_modules": ["q_proj", "embed_tokens"],
            "init_lora_weights": "pissa",
            "rank_pattern": {"embed_tokens": 2},
        },
    ),
    "olora dora beside an embedding": (
        {"rank": 2, "targets": ["q_proj", "embed_tokens"], "init": "olora", "use_dora": True, "use_rslora": True},
        {
            "r": 2,
            "lora_alpha": 16,
            "target_modules": ["q_proj", "embed_tokens"],
            "init_lora_weights": "olora",
            "use_dora": True,
            "use_rslora": True,
        },
    ),
    "regex": (
        {"rank": 2, "targets": [r"re:model\.layers\.[12]\.self_attn\.[qo]_proj"]},
        {"r": 2, "lora_alpha": 16, "target_modules": r"model\.layers\.[12]\.self_attn\.[qo]_proj"},
    ),
    "regex that sweeps": (
        {"rank": 2, "targets": [r"re:model\.layers\.[12]\..*"]},
        {"r": 2, "lora_alpha": 16, "target_modules": "all-linear", "exclude_modules": r"model\.layers\.0\..*"},
    ),
    "layers": (
        {"rank": 2, "targets": ["q_proj"], "layers": ["1-2"]},
        {"r": 2, "lora_alpha": 16, "target_modules": ["q_proj"], "layers_to_transform": [1, 2]},
    ),
    "tokens": (
        {"rank": 2, "trainable_tokens": [5, 77]},
        {"r": 2, "lora_alpha": 16, "trainable_token_indices": [5, 77]},
    ),
}
GPT2 = {
    "bias of the targets": ({"rank": 2, "bias": "lora_only"}, {"r": 2, "lora_alpha": 16, "bias": "lora_only"}),
    "all biases": ({"rank": 2, "bias": "all"}, {"r": 2, "lora_alpha": 16, "bias": "all"}),
    "tied tokens": (
        {"rank": 2, "trainable_tokens": {"wte": [5, 77]}},
        {"r": 2, "lora_alpha": 16, "trainable_token_indices": {"wte": [5, 77]}},
    ),
    "tied whole head": (
        {"rank": 2, "modules_to_save": ["lm_head"]},
        {"r": 2, "lora_alpha": 16, "modules_to_save": ["lm_head"]},
    ),
    "tied embedding": ({"rank": 2, "targets": ["wte"]}, {"r": 2, "lora_alpha": 16, "target_modules": ["wte"]}),
    "tied head": ({"rank": 2, "targets": ["lm_head"]}, {"r": 2, "lora_alpha": 16, "target_modules": ["lm_head"]}),
}
DEFAULTS = {"gpt2": ["c_attn"], "llama_gqa": ["q_proj", "v_proj"], "glm": ["q_proj", "v_proj"]}


def settings(family, name):
    ours, theirs = {**CASES, **LLAMA, **GPT2}[name]
    return {"targets": DEFAULTS[family], **ours}, {"target_modules": DEFAULTS[family], **theirs}


class Pair:
    """One base in both libraries."""

    def __init__(self, path):
        import transformers

        self.ours = pet.AutoModel.from_pretrained(path)
        self.theirs = transformers.AutoModelForCausalLM.from_pretrained(path).eval()

    def our_logits(self):
        return self.ours(IDS).asnumpy()


def change_trained(made) -> None:
    """As training would: no weight is what it began as."""
    import torch

    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def their_logits(model, ids=IDS):
    import torch

    with torch.no_grad():
        return model(torch.tensor(ids)).logits.float().numpy()


def randomise(parameters, seed):
    generator = np.random.default_rng(seed)
    for parameter in parameters:
        value = parameter.asnumpy()
        ops.assign(parameter, ms.Tensor((value + 0.05 * generator.standard_normal(value.shape)).astype(np.float32)))
