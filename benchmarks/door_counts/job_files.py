"""What the counts of LLaMA-Factory's and axolotl's example files have in common.

Counted are the examples of every release that train LoRA on text, for a family that is here, equal contents once. Each
is run as a user would: `pet finetune FILE model.path=BASE data.train=ROWS` and sizes for a minute's work. Files that
come to the same recipe, but for names, paths and rates, are run once.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import Case

SIZES = {
    "adapter.rank": 4,
    "adapter.alpha": 8.0,
    "data.max_length": 128,
    "data.max_samples": 8,
    "data.workers": 0,
    "eval.batch_size": 2,
    "eval.shown_samples": 0,
    "train.batch_size": 2,
    "train.accumulation": 1,
    "train.epochs": None,
    "train.learning_rate": 1e-3,
    "train.log_every": 1,
    "train.save_every": None,
    "train.steps": 2,
    "train.warmup": 1,
}
"""In place of what a file says."""
NAMES = {
    **{kind: {"prompt": "instruction", "answer": "output"} for kind in ("alpaca", "auto")},
    "sharegpt": {"messages": "conversations"},
}
"""What columns are called where a file does not say it."""
TEXT = "{} is written here, and then a little more of it, so that there is something to learn."


def files(clone: Path) -> Iterator[tuple[str, bytes]]:
    """Examples of all releases, as (release: path, content); equal contents of one path once."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", "-C", clone, *arguments], capture_output=True, check=True).stdout

    seen = set()
    for release in ["HEAD", *git("tag", "--list", "--sort=-creatordate", "v*").decode().split()]:
        for line in git("ls-tree", "-r", "-z", release, "examples").decode().split("\0"):
            about, _, path = line.partition("\t")
            if path.endswith((".yaml", ".yml")) and (key := (about.split()[2], path)) not in seen:
                seen.add(key)
                yield f"{release}:{path}", git("cat-file", "blob", key[0])


def rows(kind: str, columns: dict[str, str], directory: Path) -> Path:
    """A file of this format and with these columns' names."""
    lines = []
    for number in range(12):
        question, answer = (TEXT.format(f"{word} {number}") for word in ("A question", "An answer"))
        row = {
            "alpaca": {"prompt": question, "answer": answer},
            "auto": {"prompt": question, "answer": answer},
            "text": {"text": answer},
            "chat": {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]},
            "sharegpt": {"messages": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]},
            "pairs": {"prompt": question, "chosen": answer, "rejected": "No."},
            "labelled": {"prompt": question, "answer": answer, "label": number % 2 == 0},
        }[kind]
        own = NAMES.get(kind, {})
        lines.append({columns.get(role, own.get(role, role)): value for role, value in row.items()})
    path = directory / f"{kind}{'_'.join(['', *sorted(columns.values())])}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def attempt(act: Callable[[], Any]) -> tuple[Any, tuple[str, str] | None]:
    """What it gives, and what went wrong: a refusal, or a failure."""
    from model_zoo.errors import InputError

    try:
        return act(), None
    except InputError as error:
        lines = (getattr(error, "whole", None) or str(error)).splitlines()
        plain = [re.sub(r"^ *- *", "", line) for line in lines[len(lines) > 1 :]]
        return None, ("refused", "; ".join(re.sub(r"^\S+\.ya?ml: ", "", line) for line in plain))
    except Exception as error:  # the count goes on
        return None, ("fails", f"{type(error).__name__}: {error}".splitlines()[0])


def recipe_of(values: dict[str, Any], translate: Callable, path: Path, base: str, work: Path) -> Any:
    """The recipe of a job file at tiny sizes, with a base and data of this machine."""
    from pet.compat.yaml_files import load_any

    said = translate(values, path).settings
    kinds = {None: said.get("data.format", "auto"), "kto": "labelled"}
    kind = kinds.get(said.get("train.objective"), "pairs")
    data = rows(kind, said.get("data.columns", {}), work)
    given = {
        **SIZES,
        "model.path": base,
        "data.train": str(data),
        "output.dir": str(work / "run"),
        "output.force": True,
    }
    given |= {"data.eval": str(data)} if "data.eval" in said else {}
    given |= dict.fromkeys({"eval.every_steps", "eval.every_epochs"} & set(said), 2)
    if said.get("adapter.method") == "none":
        given = {key: value for key, value in given.items() if not key.startswith("adapter.")}
    return load_any(path, given)


def count(
    clone: Path, work: Path, translate: Callable, about: Callable[[dict[str, Any]], tuple[str, str] | None]
) -> list[Case]:
    """What becomes of each file.

    Args:
        clone, work: of the repository; for files of this count.
        translate: the system's door.
        about: from a file's contents to the bundled base in place of its own, and what keeps it from being used here if
            anything does; None where it is not counted.
    """
    import yaml

    from pet.train.run import finetune

    logging.getLogger("pet").setLevel(logging.ERROR)
    os.chdir(clone)  # data sets are declared in files beside the examples
    cases, groups = [], {}
    for name, content in files(clone):
        values = yaml.safe_load(content)
        found = about(values) if isinstance(values, dict) else None
        if found is None:
            continue
        base, hindrance = found
        path = work / "job.yaml"
        path.write_bytes(content)
        recipe, problem = attempt(lambda args=(values, translate, path, base, work): recipe_of(*args))
        problem = ("refused", hindrance) if hindrance else problem
        if problem:
            cases.append(Case(name, *problem))
            continue
        same = recipe.model_dump(mode="json", exclude={"name", "description"})
        groups.setdefault(json.dumps(same, sort_keys=True), []).append((name, recipe))
    for number, group in enumerate(groups.values(), start=1):
        print(f"{number} of {len(groups)}: {group[0][0]}", flush=True)
        _, problem = attempt(lambda recipe=group[0][1]: finetune(recipe))
        cases += [Case(name, *(problem or ("runs",))) for name, _ in group]
    return cases
