"""Names of tensors in adapters' files, as PEFT writes them now; without MindSpore."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from model_zoo.checkpoint.made import MadeTensor
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, TensorInfo
from model_zoo.checkpoint.wrappers import PUBLISHED, WITHIN
from model_zoo.errors import InputError, first_of, warn_once

BASE = "base_model."
"""What the names of the base's own tensors begin with beside a prompt or a prefix, which have none."""
PREFIX = f"{BASE}model."
TWICE = re.compile(r"^(base_model\.model\.){2,}")
"""Of an adapter within another one's model."""
SECOND = re.compile(r"\.(modules_to_save|original_module)\.")
"""In names of a second copy of what is trained whole, and of the base's own, which PEFT writes where a vocabulary was
extended, and passes over."""
NAMED = re.compile(
    r"\.(?:lora_[ABE]|lora_embedding_[AB]|lora_magnitude_vector|ia3_l|trainable_tokens_delta)"
    r"\.(?!(?:weight|bias)$)(?P<adapter>[^.]+)"
)
"""A part as it is called within PEFT's model, where an adapter has a name; files leave that out."""


class AdapterFile(SafetensorsFile):
    """An adapter's tensor file under the names that PEFT gives tensors, and without their `SECOND` copies."""

    def __init__(self, path: str | Path):
        super().__init__(path)
        self.rename(bare_names(self))
        self.rename({key: of_text_model(key) for key in self.tensors})
        for name in [key for key in self.tensors if SECOND.search(key) and SECOND.sub(".", key) in self.tensors]:
            del self.tensors[name]

    def put(self, name: str, array: np.ndarray, dtype: str = "float32") -> None:
        """Has an array of this type under a name, whatever lies in the file."""
        self.tensors[name] = TensorInfo(dtype, array.shape, 0, 0)
        self.made[name] = MadeTensor(self.tensors[name], lambda slices: array[slices or ...].copy())


def bare_names(file: SafetensorsFile) -> dict[str, str]:
    """{stored name: its name without what torch.compile, DistributedDataParallel, FSDP or a second PeftModel puts in
    front, the adapter's name, or PEFT's model behind a magnitude}, where that is PEFT's and no other tensor's.

    Raises:
        InputError: several adapters have names there.
    """
    found = {key: TWICE.sub(PREFIX, WITHIN.sub("", key).removeprefix("module.")) for key in file.tensors}
    names = {match["adapter"] for bare in found.values() if (match := NAMED.search(bare))}
    if len(names) > 1:
        raise InputError(
            f"{file.path}: holds adapters of several names ({', '.join(sorted(names))}); PEFT's save_pretrained writes "
            "each into a directory of its own"
        )
    for name in names:
        found = {key: without_adapter(bare, name) for key, bare in found.items()}
    found = {key: bare.replace("_vector.weight", "_vector") for key, bare in found.items()}
    odd = [name for name, bare in found.items() if name != bare]
    if not odd or len({*found.values()}) < len(found) or not all(found[name].startswith(PREFIX) for name in odd):
        return {}
    warn_once(f"{file.path}: {first_of(odd)}: read as {found[odd[0]]}, without what a wrapper adds")
    return found


def without_adapter(key: str, name: str) -> str:
    """A tensor's name without the adapter's."""
    key = key.replace(f".modules_to_save.{name}.", ".")
    return NAMED.sub(lambda match: match[0].removesuffix(f".{name}"), key)


def of_text_model(key: str) -> str:
    """The name that a text model within a multimodal one has in transformers from 4.52 on; adapters of before have the
    published one."""
    for old, new in PUBLISHED.items():
        if key.startswith(PREFIX + old):
            return PREFIX + new + key[len(PREFIX + old) :]
    return key
