"""What an editor knows of the public names; `.ci/run` has pyright read this file, nothing runs it."""

from __future__ import annotations

from typing_extensions import assert_type

import pet
from pet import LoRAConfig, Trainer, TrainingArguments, apply_lora, load_adapter, merge, pipeline

model = pet.AutoModel.from_pretrained("glm_tiny")
apply_lora(model, rank=8, targets="query_key_value")
apply_lora(model, rank="8")  # pyright: ignore[reportArgumentType]
assert_type(LoRAConfig(rank=4).rank, int)

trainer = Trainer(model, "rows.jsonl", epochs=3, learning_rate=1e-3)
trainer.train()
Trainer(model, "rows.jsonl", epoch=3)  # pyright: ignore[reportCallIssue]
TrainingArguments(num_train_epochs=3, output_dir="output")
TrainingArguments(num_epochs=3)  # pyright: ignore[reportCallIssue]

assert_type(pipeline("text_generation", model)("A question?"), list[dict[str, list[str]]])
merge(model)
load_adapter(model, "adapter")
