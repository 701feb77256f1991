"""Writes the base checkpoint and the adapter that both sides start from; run by `compare.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from cases import CASES, MODELS
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM


def main(name: str, directory: str) -> None:
    """Random weights in Hugging Face's layout under ``base``, and a fresh LoRA (B = 0) under ``adapter``; the
    same weights rounded under ``base-bf16``."""
    case, root = CASES[name], Path(directory)
    torch.manual_seed(0)
    settings = dict(MODELS[case.model])
    if settings["model_type"] != "gpt2":
        settings.update(max_position_embeddings=2048, tie_word_embeddings=False, pad_token_id=0)
    else:
        settings.update(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(root / "base")
    if case.targets:
        lora = LoraConfig(
            r=8,
            lora_alpha=16,
            target_modules=list(case.targets),
            task_type="CAUSAL_LM",
            fan_in_fan_out=config.model_type == "gpt2",
            use_dora=case.dora,
        )
        tuned = get_peft_model(model, lora)
        tuned.save_pretrained(root / "adapter")
        model = tuned.unload()
    model.to(torch.bfloat16).save_pretrained(root / "base-bf16")


if __name__ == "__main__":
    main(*sys.argv[1:3])
