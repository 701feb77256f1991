"""Which files of a directory hold a checkpoint's weights."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from model_zoo.atomic import no_directory, open_file, read_json
from model_zoo.checkpoint.pickled import LONGEST, form_of
from model_zoo.errors import InputError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
FORMS = ((SINGLE, INDEX, "*.safetensors"), (PICKLED, f"{PICKLED}.index.json", "pytorch_model*.bin"))
"""(one file, the index of several, what these are called): the first form that is there counts."""
ADAPTED = "adapter_model"
STATES = (".bin", ".pt", ".pth", ".ckpt")
"""How training states are called whose model opens: Lightning's, DeepSpeed's, those of a user's own ``torch.save``."""
NO_MODEL = re.compile(
    rf"({ADAPTED}|training_args|optimizer|scheduler|scaler|rng_state|random_states|zero_pp_rank|consolidated)|.*optim_states"
)
"""How what lies beside them is called, and what is a part of a model."""
_WRITE = "write it once with transformers: AutoModelForCausalLM.from_pretrained(directory{}).save_pretrained(output)"
FOREIGN = {
    "adapter_config.json": "an adapter's: open its base, then pet.load_adapter(model, directory); or join the two by "
    "pet merge",
    "zero_pp_rank_*_model_states.pt": "in parts by ZeRO 3; join them with DeepSpeed's zero_to_fp32.py from beside them",
    "consolidated.*.pth": f"in Meta's own format; get {SINGLE} of this model, which Meta publishes as well",
    "*.gguf": "in llama.cpp's own format; " + _WRITE.format(', gguf_file="NAME"'),
    "*.distcp": "in parts by torch.distributed; join them with accelerate merge-weights",
}
OTHERS = dict.fromkeys(
    [f"*{suffix}" for suffix in (*STATES, ".pkl", ".pickle", ".msgpack", ".h5")],
    f"in a framework's own format; get {SINGLE} or {PICKLED} of this model, or {_WRITE.format('')}",
)
"""{what files are called that do not open: why, and what to do}; those above are no others' names."""


def holds_weights(directory: Path) -> bool:
    """Whether there are files of weights in a directory, or an index that names some."""
    named = any(any(directory.glob(pattern)) or (directory / index).is_file() for _, index, pattern in FORMS)
    return named or (directory.is_dir() and len(training_states(directory)) == 1)


def training_states(directory: Path) -> list[Path]:
    """The files of tensors with names of training states in a directory, which may hold a model."""

    def opens(path: Path) -> bool:
        try:
            with open_file(path) as file:
                return bool(form_of(file.read(LONGEST)))
        except OSError:  # opening it says why
            return True

    found = (path for path in directory.iterdir() if path.suffix in STATES and not NO_MODEL.match(path.name))
    return sorted(path for path in found if path.is_file() and opens(path))


def foreign(names: Iterable[str], formats: Mapping[str, str] = FOREIGN) -> str:
    """Of files called so: which of them are in another format, and what to do; empty where none is."""
    found = ((sorted(fnmatch.filter(names, pattern))[:3], reason) for pattern, reason in formats.items())
    return next((f"{', '.join(some)} {'are' if some[1:] else 'is'} {reason}" for some, reason in found if some), "")


def find_weights(directory: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The weight files of a directory, and where the index places each tensor (None without an index)."""
    if not directory.is_dir():
        raise InputError(f"{directory}: {no_directory(directory)}; a Hugging Face checkpoint directory was expected")
    for single, index, _ in FORMS:
        if (directory / single).is_file():
            return [directory / single], None
        if (directory / index).is_file():
            return _indexed(directory / index)
    for single, index, pattern in FORMS:
        if found := sorted(path for path in directory.glob(pattern) if not path.name.startswith(ADAPTED)):
            return _numbered(directory, found, single, index), None
    if (directory / "adapter_config.json").is_file():
        raise InputError(
            f"{directory}: holds an adapter, not a model; give its base model's directory, and the adapter separately"
        )
    if states := training_states(directory):
        return _numbered(directory, states, SINGLE, INDEX), None
    if why := foreign(os.listdir(directory), FOREIGN | OTHERS):
        raise InputError(f"{directory}: {why}")
    raise InputError(f"{directory}: holds no weights; expected {SINGLE}, or shards with {INDEX}")


def _numbered(directory: Path, found: list[Path], single: str, index: str) -> list[Path]:
    """Files without an index: one alone, or all of those whose names count them."""
    numbered = [re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.\w+", path.name) for path in found]
    if len(found) == 1 and numbered[0] is None:
        return found
    if all(numbered) and len({(match[1], match[3]) for match in numbered}) == 1:
        missing = set(range(1, int(numbered[0][3]) + 1)) - {int(match[2]) for match in numbered}
        if not missing:
            return found
        raise InputError(f"{directory}: shards {sorted(missing)} of {int(numbered[0][3])} are missing, and {index} too")
    names = ", ".join(path.name for path in found)
    raise InputError(f"{directory}: which of {names} belong together is unknown; expected {single} or {index}")


def _indexed(index: Path) -> tuple[list[Path], dict[str, str]]:
    placed = read_json(index, "an index of weight files").get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(value, str) for value in placed.values()):
        raise InputError(f"{index}: has no weight_map from tensor names to file names")
    directory, kind = index.parent, Path(index.name.removesuffix(".index.json")).suffix
    problems, paths = [], []
    for file_name in sorted(set(placed.values())):
        if Path(file_name).name != file_name or not file_name.endswith(kind):
            problems.append(f"{index}: names {file_name!r}, which is not a {kind} file of this directory")
        elif not (directory / file_name).is_file():
            problems.append(f"{index}: names the shard {file_name}, which is missing; download it")
        paths.append(directory / file_name)
    InputError.raise_any(problems)
    return paths, placed
