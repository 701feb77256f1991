"""What the counts of LLaMA-Factory's and axolotl's example files have in common.

Counted are the examples of every release about text, for a family that is here, equal contents once. Each is run as a
user would: `pet finetune FILE model.path=BASE` and sizes for a minute's work, on its own data where the clone has them,
else on a few rows in their form (`data.train=ROWS`); one that does not train by the command for what it does, with an
adapter of that base. Files that come to the same recipe, but for names, paths and rates, are run once. Bases have one
layer, and the tokens that the models of the files have.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pet.compat.prompts import LLAMA_FACTORY

from . import Case, attempt, write_base
from .runs import name_of, problems

WHAT = (
    "examples of all releases, for the families that are here; equal files once. A tiny LLaMA, or GLM-4, stands for "
    "each model"
)
LORA, FULL = "files that train adapters", "files that train every weight"
FREEZES, BENCHMARK = "files that freeze layers", "files with a benchmark"
MERGES, ASKS, MEASURES = "files that merge", "files for inference", "files that predict"
SIZES = {
    "adapter.rank": 4,
    "adapter.alpha": 8.0,
    "data.max_length": 256,
    "data.max_samples": 8,
    "data.min_length": None,
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
TOKENS = sorted({token for prompt in LLAMA_FACTORY.values() for token in prompt.needs.split()})
"""What prompts need of a base's tokenizer."""
NAMES = {
    **{kind: {"prompt": "instruction", "answer": "output"} for kind in ("alpaca", "auto")},
    "sharegpt": {"messages": "conversations"},
}
"""What columns are called where a file does not say it."""
TEXT = "{} is written here, and then a little more of it, so that there is something to learn."


def files(clone: Path) -> Iterator[tuple[str, bytes]]:
    """Examples of all releases, as (path @ release, content); equal contents of one path once."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", "-C", clone, *arguments], capture_output=True, check=True).stdout

    seen = set()
    for release in ["HEAD", *git("tag", "--list", "--sort=-creatordate", "v*").decode().split()]:
        for line in git("ls-tree", "-r", "-z", release, "examples").decode().split("\0"):
            about, _, path = line.partition("\t")
            if path.endswith((".yaml", ".yml")) and (key := (about.split()[2], path)) not in seen:
                seen.add(key)
                yield f"{path.removeprefix('examples/')} @ {release}", git("cat-file", "blob", key[0])


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
            "tokens": {"input_ids": list(range(5, 15)), "labels": [-100] * 5 + list(range(10, 15))},
            "labelled": {"prompt": question, "answer": answer, "label": number % 2 == 0},
        }[kind]
        if "messages" in columns and kind in ("pairs", "labelled"):  # the question stands in a conversation
            turns = [("human", row.pop("prompt"))] + ([("gpt", row.pop("answer"))] if kind == "labelled" else [])
            row["messages"] = [{"from": role, "value": text} for role, text in turns]
        own = NAMES.get(kind, {})
        lines.append({columns.get(role, own.get(role, role)): value for role, value in row.items()})
    path = directory / f"{kind}{'_'.join(['', *sorted(columns.values())])}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def settings(values: dict[str, Any], translate: Callable, path: Path, base: Path) -> dict[str, Any]:
    """What the command says beside a job file: tiny sizes, a base and data of this machine."""
    t = translate(values, path)
    said = t.settings
    kinds = {None: said.get("data.format", "auto"), "kto": "labelled"}
    kind = kinds.get(said.get("train.objective"), "pairs")
    work = base.parent
    given = {**SIZES, "model.path": str(base), "output.dir": str(work / "run"), "output.force": True}
    too_long = kind == "labelled"  # LLaMA-Factory's dialogues, whose answers are beyond what a tiny base sees
    if too_long or any(key.startswith("data.") for key, _ in t.missing) or "data.train" not in said:
        data = str(rows(kind, said.get("data.columns", {}), work))
        given |= {"data.train": data} | ({"data.eval": data} if "data.eval" in said else {})
        given |= dict.fromkeys({"data.rows", "data.eval_rows"} & set(said))  # these rows are few enough
    given |= {"freeze_trainable_layers": 1} if values.get("freeze_trainable_layers") else {}  # of the tiny base's one
    given |= dict.fromkeys({"eval.every_steps", "eval.every_epochs"} & set(said), 2)
    if values.get("special_tokens") and re.search("Yi-34B|Llama-3", str(values.get("base_model"))):
        given["special_tokens"] = None  # which these models have, and the tiny one has not
    if said.get("adapter.method") == "none":
        given = {key: value for key, value in given.items() if not key.startswith("adapter.")}
    return given


def commands(part: str, path: Path, base: Path) -> dict[str, Any]:
    """The command for a file that does not train, and its words."""
    if part == MERGES:
        words = [str(path), str(adapter(base)), "--base", str(base), "--output", f"{base}_merged", "--force"]
        return {"command": "merge", "words": words}
    words = ["--model", str(base), "--adapter", str(adapter(base)), "--input", "Hello", "--max-new-tokens", "4"]
    return {"command": "predict", "words": [str(path), *words]}


def adapter(base: Path) -> Path:
    """An adapter on a base, made on first use."""
    place = base.with_name(f"{base.name}_adapter")
    if not place.is_dir():
        import pet

        pet.save_adapter(pet.apply_lora(pet.AutoModel.from_pretrained(base), rank=2), place)
    return place


def run(arguments: dict[str, Any]) -> None:
    """`pet finetune|train FILE KEY=VALUE…`, or the command for a file that does not train."""
    from pet.compat.yaml_files import load_any
    from pet.train.run import finetune, train

    if "command" in arguments:
        importlib.import_module(f"pet.cli.{arguments['command']}").main(arguments["words"])
    else:
        recipe = load_any(Path(arguments["file"]), arguments["settings"])
        (train if recipe.model.from_scratch else finetune)(recipe)


def count(
    clone: Path,
    work: Path,
    seconds: float | None,
    translate: Callable,
    about: Callable[[dict[str, Any]], tuple[str, str] | None],
) -> list[Case]:
    """What becomes of each file.

    Args:
        clone, work, seconds: see `doors.main`.
        translate: the system's door.
        about: from a file's contents to the bundled base in place of its own, with how that is packed if it is
            (``llama_tiny gptq``), and what the file is for; None where it is not counted.
    """
    import yaml

    from pet.compat.yaml_files import load_any

    logging.getLogger("pet").setLevel(logging.ERROR)
    os.chdir(clone)  # data sets are declared in files beside the examples
    cases, jobs, groups = [], {}, {}
    for name, content in files(clone):
        values = yaml.safe_load(content)
        found = about(values) if isinstance(values, dict) else None
        if found is None:
            continue
        base, part = found
        if not (work / base).is_dir():
            bundled, *packed = base.split()
            write_base(bundled, work / base, *(packed or [""]), tokens=TOKENS if bundled == "llama_tiny" else ())
        path = work / f"{hashlib.sha256(content).hexdigest()}.yaml"
        path.write_bytes(content)
        if part in (MERGES, ASKS):
            same = f"{part} {path.stem}"
            jobs[same] = commands(part, path, work / base)
            groups.setdefault(same, []).append((name, part))
            continue
        given, problem = attempt(settings, values, translate, path, work / base)
        if part == MEASURES and not problem:
            given |= {"adapter.load": None} if values.get("adapter_name_or_path") else {}
        recipe, problem = (None, problem) if problem else attempt(load_any, path, given)
        if problem:
            cases.append(Case(name, problem[0], problem[1].replace(f"{path.stem}: ", "").replace(f"{work}/", ""), part))
            continue
        same = name_of(recipe.model_dump(mode="json", exclude={"name", "description"}, exclude_defaults=True))
        job: dict[str, Any] = {"file": str(path), "settings": given}
        if part == MEASURES:
            told = [f"{key}={json.dumps(value)}" for key, value in given.items()]
            which = ["--adapter", str(adapter(work / base))] if values.get("adapter_name_or_path") else ["--base"]
            job = {"command": "evaluate", "words": [str(path), *which, *told]}
        jobs.setdefault(same, job)
        groups.setdefault(same, []).append((name, part))
    for same, problem in problems(__name__, jobs, work, seconds).items():
        cases += [Case(name, *(problem or ("runs",)), part=part) for name, part in groups[same]]
    return cases
