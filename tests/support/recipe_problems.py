"""A recipe, and what is said of it."""

import pytest

from model_zoo.errors import InputError
from pet.recipe import load

GOOD = """\
model:
  path: {model}
adapter:
  method: lora
  targets: [q_proj, v_proj]
data:
  train: train.jsonl
  max_length: 128
train:
  steps: 20
  learning_rate: 3e-4
"""


def problems(path, overrides=None, **options) -> list[str]:
    with pytest.raises(InputError) as error:
        load(path, overrides, **options)
    lines = str(error.value).splitlines()
    return [line.removeprefix("  - ") for line in lines[1:]] if len(lines) > 1 else lines
