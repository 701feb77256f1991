"""What type checkers and editors know of the public names; pyright and mypy read this file, nothing runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import assert_type

import pet
from model_zoo.causal_lm import CausalLM
from model_zoo.configs import Config
from model_zoo.tokenizers import Tokenizer
from pet import LoRAConfig, Trainer, TrainingArguments, apply_lora, load_adapter, merge, merge_and_unload, pipeline
from pet.compat import mindformers

model = pet.AutoModel.from_pretrained("glm_tiny")
assert_type(model, CausalLM)
assert_type(pet.AutoConfig.from_pretrained("glm_tiny"), Config)
assert_type(pet.AutoTokenizer.from_pretrained("glm_tiny"), Tokenizer)
model.generate(np.ones((1, 2)), max_new_tokens=3)
model.generate(np.ones((1, 2)), max_new_token=3)  # type: ignore[call-arg]

assert_type(apply_lora(model, rank=8, targets="query_key_value", use_dora=True), CausalLM)
apply_lora(model, rank="8")  # type: ignore[arg-type]
apply_lora(model, use_dorra=True)  # type: ignore[call-arg]
assert_type(LoRAConfig(rank=4).rank, int)
assert_type(merge_and_unload(model), CausalLM)
with pet.disable_adapters(model):
    merge(model)

trainer = Trainer(model, "rows.jsonl", epochs=3, learning_rate=1e-3, betas=[0.9, 0.95])
assert_type(trainer.train(), dict[str, Any])
Trainer(model, "rows.jsonl", epoch=3)  # type: ignore[call-arg]
Trainer(model, "rows.jsonl", epochs="3")  # type: ignore[arg-type]
arguments = TrainingArguments(num_train_epochs=3, output_dir="output")
TrainingArguments(num_epochs=3)  # type: ignore[call-arg]
Trainer(model="glm_tiny", args=arguments, task="text_generation", pet_method="lora", train_dataset="rows.jsonl")

assert_type(pipeline("text_generation", model)("A question?"), list[dict[str, list[str]]])
load_adapter(model, "adapter")

config = mindformers.AutoConfig.from_pretrained("glm_6b")
config.checkpoint_name_or_path = "glm_6b"
assert_type(mindformers.GLMChatModel(config), CausalLM)
mindformers.Trainer(model="glm_tiny", args=arguments).train()
mindformers.Trainer(model="glm_tiny", epoch=3)  # type: ignore[call-arg]


@pet.register_task(name="questions")
class Questions(pet.Task):
    """Stays the class that it is."""


assert_type(Questions(), Questions)
