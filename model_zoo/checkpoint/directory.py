"""Which files of a directory hold a checkpoint's weights."""

from __future__ import annotations

import re
from pathlib import Path

from model_zoo.atomic import no_directory, read_json
from model_zoo.errors import InputError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".msgpack", ".h5")


def find_weights(directory: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The weight files of a directory, and where the index places each tensor (None without an index)."""
    if not directory.is_dir():
        raise InputError(f"{directory}: {no_directory(directory)}; a Hugging Face checkpoint directory was expected")
    if (directory / SINGLE).is_file():
        return [directory / SINGLE], None
    if (directory / INDEX).is_file():
        return _indexed(directory)
    found = sorted(path for path in directory.glob("*.safetensors") if not path.name.startswith("adapter_model"))
    numbered = [re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.safetensors", path.name) for path in found]
    if len(found) == 1 and numbered[0] is None:
        return found, None
    if found and all(numbered) and len({(match[1], match[3]) for match in numbered}) == 1:
        missing = set(range(1, int(numbered[0][3]) + 1)) - {int(match[2]) for match in numbered}
        if not missing:
            return found, None
        raise InputError(f"{directory}: shards {sorted(missing)} of {int(numbered[0][3])} are missing, and {INDEX} too")
    if found:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{directory}: which of {names} belong together is unknown; expected {SINGLE} or {INDEX}")
    if (directory / "adapter_config.json").is_file():
        raise InputError(
            f"{directory}: holds an adapter, not a model; give its base model's directory, and the adapter separately"
        )
    pickled = sorted(path.name for path in directory.iterdir() if path.suffix in PICKLED)
    if pickled:
        raise InputError(
            f"{directory}: {', '.join(pickled[:3])} {'are' if len(pickled) > 1 else 'is'} pickled or in a framework's "
            "own format and is not opened, since a pickle runs code; get the safetensors files of this model, or write "
            "them once with transformers: AutoModelForCausalLM.from_pretrained(directory).save_pretrained(directory, "
            "safe_serialization=True)"
        )
    raise InputError(f"{directory}: holds no weights; expected {SINGLE}, or shards with {INDEX}")


def _indexed(directory: Path) -> tuple[list[Path], dict[str, str]]:
    index = directory / INDEX
    placed = read_json(index, "a safetensors index").get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(value, str) for value in placed.values()):
        raise InputError(f"{index}: has no weight_map from tensor names to file names")
    problems, paths = [], []
    for file_name in sorted(set(placed.values())):
        if Path(file_name).name != file_name or not file_name.endswith(".safetensors"):
            problems.append(f"{index}: names {file_name!r}, which is not a safetensors file of this directory")
        elif not (directory / file_name).is_file():
            problems.append(f"{index}: names the shard {file_name}, which is missing; download it")
        paths.append(directory / file_name)
    InputError.raise_any(problems)
    return paths, placed
