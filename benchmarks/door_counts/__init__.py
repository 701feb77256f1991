"""Counts of published scripts and job files that run: one module per system, with ``count(clone, work)``."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Problem = tuple[Literal["refused", "fails"], str]
"""A refusal or a failure, and its reason."""


@dataclass(frozen=True)
class Case:
    """One published script, job file or test, and what became of it.

    Attributes:
        name: what it is called in the clone.
        outcome: ``runs`` to the end; ``refused`` with an error that says what cannot be honoured; ``fails`` otherwise.
        reason: of a refusal or failure, in one line. Equal reasons are counted together.
        part: what kind of thing it is, where a system has several, which are counted by themselves, too.
    """

    name: str
    outcome: Literal["runs", "refused", "fails"]
    reason: str = ""
    part: str = ""


def attempt(action: Callable[..., Any], *arguments: Any) -> tuple[Any, Problem | None]:
    """What an action gives, and what went wrong: an `InputError` is a refusal, any other exception a failure.

    A refusal's reasons stand without the job file's name, which is the case's.
    """
    from model_zoo.errors import InputError

    try:
        return action(*arguments), None
    except InputError as error:
        lines = (error.whole or str(error)).splitlines()
        plain = [re.sub(r"^( *- )?([\w.-]+\.ya?ml: )?", "", line) for line in lines[len(lines) > 1 :]]
        return None, ("refused", "; ".join(" ".join(line.split()) for line in plain))
    except Exception as error:  # the count goes on
        return None, ("fails", f"{type(error).__name__}: {error}".splitlines()[0])


def outcome_of(name: str, action: Callable[[], Any]) -> Case:
    """The case that an action is."""
    return Case(name, *(attempt(action)[1] or ("runs",)))


def write_base(name: str, directory: Path, packed: str = "", tokens: Sequence[str] = ()) -> None:
    """The bundled base with one layer, whose matrices are in ``gptq``, ``awq`` or ``aqlm`` if that is given, and whose
    tokenizer has these control tokens besides."""
    import pet
    from pet.names import bundled_models

    shutil.copytree(bundled_models()[name], directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text())
    layers = next(key for key in ("n_layer", "num_layers", "num_hidden_layers") if key in config)
    first = config["vocab_size"]
    if tokens:
        config["vocab_size"] += len(tokens)
        settings = json.loads((directory / "tokenizer_config.json").read_text())
        added = {str(first + place): {"content": token, "special": True} for place, token in enumerate(tokens)}
        settings["added_tokens_decoder"] = {**settings.get("added_tokens_decoder", {}), **added}
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    pet.save_pretrained(pet.AutoModel.from_config({**config, layers: 1}), directory)
    if packed:
        pack(directory, packed)


def pack(directory: Path, method: str) -> None:
    """Puts random codes in the place of a checkpoint's matrices: of 4 bits with one group each, or of aqlm's 1x16."""
    import numpy as np

    from model_zoo.checkpoint.safetensors_io import read_file, write_file

    arrays, draw = {}, np.random.default_rng(0)
    for name, value in read_file(directory / "model.safetensors").items():
        if value.ndim != 2 or ".layers." not in name:
            arrays[name] = value
            continue
        (out, into), path = value.shape, name.removesuffix("weight")
        if method == "aqlm":
            arrays[path + "codes"] = draw.integers(-(1 << 15), 1 << 15, (out, into // 8, 1), dtype=np.int16)
            arrays[path + "codebooks"] = draw.normal(0, 0.02, (1, 1 << 16, 1, 8)).astype(np.float16)
            arrays[path + "scales"] = np.ones((out, 1, 1, 1), np.float16)
            continue
        eights = (into // 8, out) if method == "gptq" else (into, out // 8)
        for part, shape in (("qweight", eights), ("qzeros", (1, out // 8))):
            arrays[path + part] = draw.integers(-(1 << 31), 1 << 31, shape, dtype=np.int32)
        arrays[path + "scales"] = np.full((1, out), 0.01, np.float16)
    write_file(directory / "model.safetensors", arrays)
    config = json.loads((directory / "config.json").read_text())
    sizes = {"num_codebooks": 1, "nbits_per_codebook": 16, "out_group_size": 1, "in_group_size": 8}
    config["quantization_config"] = {
        "quant_method": method,
        **(sizes if method == "aqlm" else {"bits": 4, "group_size": -1}),
    }
    (directory / "config.json").write_text(json.dumps(config))
