"""What tests do to PEFT's models before they compare with them."""

from __future__ import annotations


def random_second_factors(model, scale: float) -> None:
    """Gives LoRA's second factors, which start at 0, random values, so that the adapter does something."""
    import torch

    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
