"""Whether all processes of a job do the same thing: each of several machines has its own code, recipe, data and base.

Where things lie on a machine is its own affair; what is there counts. Data and weights are read by one process of each
machine. What only rank 0 has to do with (output, callbacks) may differ.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import socket
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_bytes
from model_zoo.errors import InputError, shown
from pet.recipe.classes import find_objective
from pet.recipe.keys import path_keys
from pet.train.distributed import DistributedContext
from pet.train.origins import differences, origins_of, sources, versions

ROOT = Path(__file__).parents[2]
CODE = [f"{package}/**/*{kind}" for package in ("pet", "adapters", "model_zoo") for kind in (".py", ".c", ".h")]
OWN = ("name", "description", "output", "callbacks", "data.workers", "data.cache_dir", "train.log_every")
OWN += ("train.keep_last", "train.profile")
SMALL = (".json", ".model", ".txt", ".jinja", ".tiktoken", "adapter_model.safetensors")
"""Endings of what is compared in a directory; the weights of a base are compared by themselves."""
UNIMPORTANT = ".index.json"
"""Of files that say how weights are divided over others."""


def check_alike(recipe, distributed: DistributedContext) -> None:
    """To be called by all processes before they read data or weights.

    Raises:
        InputError: in every process, what another one has differently than rank 0; or what one of them finds wrong with
            the files that the recipe names.
    """
    if distributed.size == 1:
        return
    facts, problem, mine = {}, None, (socket.gethostname(), ())
    try:
        facts, mine = facts_of(recipe), (mine[0], versions(sources(recipe)))
    except InputError as error:
        problem = error
    raise_everywhere(problem, distributed.objects)
    machines = distributed.objects(mine)
    try:
        # with others there, the first process of each machine reads its files
        if len({*machines}) > 1 and machines.index(mine) == distributed.rank:
            facts["files"] = origins_of(recipe, base=not recipe.model.from_scratch)
    except InputError as error:
        problem = error
    raise_everywhere(problem, distributed.objects)
    everybody = distributed.objects(facts)
    problems: dict[str, str] = {}
    for rank, other in enumerate(everybody):
        for text in apart(everybody[0], other):
            where = f"rank {rank} on {machines[rank][0]} differs from rank 0 on {machines[0][0]}"
            problems.setdefault(text, f"{where}: {text}")
    if problems:
        raise InputError.collect(problems.values())


def raise_everywhere(error: InputError | None, objects: Callable[[Any], list]) -> None:
    """Raises what one process found wrong in all of them, so that none waits for it in vain.

    Args:
        error: of this process, or None.
        objects: gives everybody's object, as `DistributedContext.objects`.
    """
    found = objects(error and (str(error), socket.gethostname()))
    texts = {each and each[0] for each in found}
    if error is not None and len(texts) == 1:
        raise error
    if any(texts):
        first = {each: rank for rank, each in reversed([*enumerate(found)]) if each}
        raise InputError.collect(f"rank {rank} on {host}: {text}" for (text, host), rank in first.items())


def facts_of(recipe) -> dict[str, Any]:
    """What must be the same in every process, but for the content of large files: sections of {name: value}."""
    settings, contents, paths = {}, {}, path_keys()
    for section, values in recipe.model_dump(mode="json").items():
        for key, value in values.items() if isinstance(values, dict) else [(None, values)]:
            name = f"{section}.{key}" if key else section
            if name in OWN or section in OWN or value is None or _follows(recipe, name, value):
                continue
            if (section, key) not in paths:
                settings[name] = value
            elif isinstance(value, str):
                contents[name] = content(value, model=section == "model" and not recipe.model.from_scratch)
    code = {**library(), **objective_code(recipe.train.objective)}
    packages = {name: version(name) for name in ("mindspore", "numpy")}
    return {"settings": {**settings, **packages}, "contents": {"this library": code, **contents}}


def _follows(recipe, name: str, value: Any) -> bool:
    """Whether a setting is what another one makes it where nobody says it, so that it needs no line of its own."""
    leading = {
        "data.seed": recipe.train.seed,
        "generation.seed": recipe.train.seed,
        "model.tokenizer": recipe.model.path,
    }
    return name in leading and value == leading[name]


@functools.cache
def library() -> dict[str, str]:
    """{file of this library: digest}."""
    files = sorted(file for pattern in CODE for file in ROOT.glob(pattern))
    return {file.relative_to(ROOT).as_posix(): digest(file) for file in files}


def objective_code(name: str) -> dict[str, str]:
    """{file: digest} of a user's own objective."""
    file = inspect.getsourcefile(find_objective(name)) if ":" in name else None
    return {Path(file).name: digest(Path(file))} if file else {}


def digest(file: Path) -> str:
    """Of a small file."""
    return hashlib.sha256(read_bytes(file)).hexdigest()[:16]


def content(text: str, model: bool) -> dict[str, str]:
    """{file: digest} of the small files behind a path; what is no path stands for itself.

    Args:
        model: whether a name may be that of a base.
    """
    from pet.names import find_model

    path = Path(text).expanduser() if len(text) < 1000 and "\n" not in text else Path()
    if model and not path.exists():
        path = find_model(text)
    if path.is_file():
        return {"": digest(path)}
    if text and path.is_dir() and path != Path():
        files = sorted(file for file in path.iterdir() if file.name.endswith(SMALL) and file.is_file())
        return {file.name: digest(file) for file in files if not file.name.endswith(UNIMPORTANT)}
    return {"": text}


def apart(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """One phrase per difference."""
    for key in sorted({*ours["settings"], *theirs["settings"]}):
        one, other = (facts["settings"].get(key) for facts in (ours, theirs))
        if one != other:
            yield f"{key} is {shown(other)}, not {shown(one)}"
    for key in {**ours["contents"], **theirs["contents"]}:
        one, other = (facts["contents"].get(key, {}) for facts in (ours, theirs))
        names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
        if names:
            more = f", and so have {len(names) - 1} more files" if len(names) > 1 else ""
            yield f"{key}: {names[0] or 'it'} has another content{more}"
    if "files" in theirs:
        yield from differences(ours["files"], theirs["files"])
