"""What a job file says of a merge: ``llamafactory-cli export FILE``, ``axolotl merge-lora FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.compat import axolotl, llama_factory
from pet.compat.earlier_names import todays
from pet.compat.job_files import listed
from pet.compat.lacking_tokens import new_tokens
from pet.compat.results import find_weights, of_job, of_run
from pet.compat.translation import elsewhere
from pet.compat.yaml_files import load_any, values_of
from pet.recipe.translation import Ignored, Refused, Translation

UNPACKED = "the unquantised base gets the adapter; --dequantize merges into the numbers that it was trained on"
NOTHING = "no adapter is named, or every weight was trained, so there is nothing to merge; see pet export"
LLAMA_FACTORY = {
    **dict.fromkeys((*llama_factory.TABLE, *llama_factory.KEYS), elsewhere),  # of training, or of prompts
    "model_name_or_path": lambda t, name, value: t.put("base", llama_factory.named(value)),
    "adapter_name_or_path": "adapters",
    "output_dir": "run",
    "export_dir": "output",
    "export_size": lambda t, name, value: t.put("max_shard_size", f"{value}GB"),
    "infer_dtype": lambda t, name, value: t.put("dtype", None if value == "auto" else value),
    "export_device": Ignored("one tensor is in memory at a time"),
    "export_legacy_format": Ignored("weights are written as safetensors"),
    "export_quantization_bit": Refused("merge first; pet quantize writes 8 and 4 bits"),
    "export_hub_model_id": "hub",
    "quantization_bit": Refused("a base that is packed cannot take it in; leave this out"),
    "resize_vocab": Ignored("the embedding has a row for every token"),
    "add_tokens": new_tokens(plain=True),
    "add_special_tokens": new_tokens(plain=False),
}
AXOLOTL = {
    **dict.fromkeys((*axolotl.TABLE, *axolotl.KEYS), elsewhere),
    "base_model": "base",
    "lora_model_dir": "adapters",
    "output_dir": "run",
    "load_in_4bit": lambda t, name, value: t.ignore(name, UNPACKED) if value else None,
}


def of_file(path: str) -> dict[str, Any]:
    """What a file says of `pet.export.merge_checkpoint`'s arguments, None where nothing; of a recipe's or another
    system's that trains, what its run has written is merged.

    Raises:
        InputError: it asks for something unsupported, or trains every weight.
    """
    kind, file, values = values_of(path)
    if kind not in ("llama_factory", "axolotl"):
        recipe = load_any(path, check_files=False, bring=False)
        adapter, model = of_job(recipe)
        if model:
            raise InputError(f"{file.name}: {NOTHING}")
        written = str(adapter or Path(recipe.output.dir, "adapter"))
        return {"base": recipe.model.path, "adapters": [written], "template": recipe.data.template}
    if kind == "llama_factory":
        values, _ = todays(values)
    t = Translation(file.name)
    t.apply(values, LLAMA_FACTORY if kind == "llama_factory" else AXOLOTL)
    if kind == "axolotl":  # beside what was trained
        t.settings.setdefault("run", "model-out")
        t.put("output", Path(t.get("run"), "merged"))
    t.finish()
    adapters = listed(t.get("adapters") or t.get("run") or [])
    if not adapters or (Path(adapters[0]).is_dir() and find_weights(adapters[0])[0]):
        raise InputError(f"{file.name}: {NOTHING}")
    given = {key: t.get(key) for key in ("output", "dtype", "max_shard_size", "hub")}
    system = llama_factory if kind == "llama_factory" else axolotl
    given["template"] = system.translate(values, file).get("data.template")
    return {"base": of_run(t.get("base"), "model"), "adapters": [of_run(one, "adapter") for one in adapters], **given}
