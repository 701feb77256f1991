"""Whether all processes of a job do the same thing: each of several machines has its own code, recipe, data and base.

Where things lie on a machine is its own affair; what is there counts. Data and weights are read by one process of each
machine. What only rank 0 has to do with (output, callbacks) may differ.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adapters.peft_config import ADAPTER_WEIGHTS
from model_zoo.atomic import read_bytes
from model_zoo.errors import InputError, shown
from pet.recipe.classes import find_objective
from pet.recipe.keys import path_keys
from pet.train.distributed import DistributedContext
from pet.train.origins import differences, origins_of, sources, versions, weights

ROOT = Path(__file__).parents[2]
CODE = [f"{package}/**/*{kind}" for package in ("pet", "adapters", "model_zoo") for kind in (".py", ".c", ".h")]
OWN = ("name", "description", "output", "callbacks", "data.workers", "data.cache_dir", "train.log_every")
OWN += ("train.keep_last", "train.profile")
SMALL = (".json", ".model", ".txt", ".jinja", ".tiktoken", *ADAPTER_WEIGHTS)
"""Endings of what is compared in a directory; the weights of a base are compared by themselves."""
UNIMPORTANT = ".index.json"
"""Of files that say how weights are divided over others."""
WEIGHTS = "the model's weights (mindspore.set_seed makes random ones alike)"


def check_alike(recipe, distributed: DistributedContext, adapter: str | Path | None = None, model=None) -> None:
    """To be called by all processes before they read data or weights.

    Args:
        recipe: what is to be done.
        distributed: gives everybody's facts.
        adapter: a directory that is read besides.
        model: a script's own, with the weights that it begins with, in the place of the recipe's; then the script
            counts, too.

    Raises:
        InputError: in every process, what another one has differently than rank 0; or what one of them finds wrong with
            the files that the recipe names.
    """
    if distributed.size == 1:
        return
    with raised_everywhere(distributed.objects):
        facts = facts_of(recipe, adapter, model)
        mine = socket.gethostname(), versions(sources(recipe, model is None))
    machines = distributed.objects(mine)
    with raised_everywhere(distributed.objects):
        # with others there, the first process of each machine reads its files
        if len({*machines}) > 1 and machines.index(mine) == distributed.rank:
            facts["files"] = origins_of(recipe, base=model is None)
    compare(facts, distributed)


def compare(facts: dict[str, Any], distributed: DistributedContext) -> None:
    """To be called by all processes.

    Args:
        facts: of this one, sections as `facts_of` has them.
        distributed: gives everybody's.

    Raises:
        InputError: in every process, what another one has differently than rank 0.
    """
    everybody = distributed.objects((socket.gethostname(), facts))
    problems: dict[str, str] = {}
    for rank, (host, other) in enumerate(everybody):
        for text in apart(everybody[0][1], other):
            problems.setdefault(text, f"rank {rank} on {host} differs from rank 0 on {everybody[0][0]}: {text}")
    if problems:
        _part()
    InputError.raise_any(problems.values())


def _part() -> None:
    """All processes end now."""
    job = sys.modules.get("pet.parallel.join")
    if job is not None:
        job.part()


def raise_everywhere(error: InputError | None, objects: Callable[[Any], list]) -> None:
    """Raises what one process found wrong in all of them, so that none waits for it in vain.

    Args:
        error: of this process, or None.
        objects: gives everybody's object, as `DistributedContext.objects`.
    """
    found = objects(error and (str(error), socket.gethostname()))
    texts = {each and each[0] for each in found}
    if any(texts):
        _part()
    if error is not None and len(texts) == 1:
        raise error
    if any(texts):
        first = {each: rank for rank, each in reversed([*enumerate(found)]) if each}
        raise InputError.collect(f"rank {rank} on {host}: {text}" for (text, host), rank in first.items()) from None


@contextlib.contextmanager
def raised_everywhere(objects: Callable[[Any], list]) -> Iterator[None]:
    """A block whose InputError is raised in every process, as by `raise_everywhere`, when all are through with it."""
    problem = None
    try:
        yield
    except InputError as error:
        problem = error
    raise_everywhere(problem, objects)


def facts_of(recipe, adapter: str | Path | None = None, model=None) -> dict[str, Any]:
    """What must be the same in every process, but for the content of large files: sections of {name: value}. The
    arguments are those of `check_alike`.
    """
    settings, contents, paths = {}, {}, path_keys()
    for section, values in recipe.model_dump(mode="json").items():
        for key, value in values.items() if isinstance(values, dict) else [(None, values)]:
            name = f"{section}.{key}" if key else section
            if name in OWN or section in OWN or value is None or _follows(recipe, name, value):
                continue
            if name == "model.path" and model is not None:
                continue
            if (section, key) not in paths:
                settings[name] = value
            elif isinstance(value, str):
                contents[name] = content(value, model=section == "model" and not recipe.model.from_scratch)
    objective = recipe.train.objective
    code = library() | code_of(inspect.getsourcefile(find_objective(objective)) if ":" in objective else None)
    packages = {name: version(name) for name in ("mindspore", "numpy")}
    if adapter is not None:
        contents["adapter"] = content(str(adapter), model=False)
    if model is not None:
        script = code_of(getattr(sys.modules.get("__main__"), "__file__", None))
        contents |= {"the script": script, WEIGHTS: weights(model.get_parameters())}
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


def code_of(file: str | None) -> dict[str, str]:
    """{file: digest} of a user's own code; empty where it is in none."""
    return {Path(file).name: digest(Path(file))} if file and Path(file).is_file() else {}


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
    for key in sorted({*ours.get("settings", ()), *theirs.get("settings", ())}):
        one, other = (facts["settings"].get(key) for facts in (ours, theirs))
        if one != other:
            yield f"{key} is {shown(other)}, not {shown(one)}"
    for key in {**ours.get("contents", {}), **theirs.get("contents", {})}:
        one, other = (facts["contents"].get(key, {}) for facts in (ours, theirs))
        names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
        if names:
            more = f", and so have {len(names) - 1} more" if len(names) > 1 else ""
            yield f"{key}: {names[0] or 'it'} has another content{more}"
    if "files" in theirs:
        yield from differences(ours["files"], theirs["files"])
