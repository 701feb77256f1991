"""MindFormers' job files: `run_mindformer.py --config FILE --load_checkpoint BASE --train_dataset_dir DATA`.

Counted are the files below ``configs/`` of every release from 0.6 on, equal contents once, whose model is one of this
library's and whose run_mode is train, finetune, eval or predict. All are translated; files that come to the same recipe
but for names and paths, and of answers to the same model_config, are run once, on a bundled tiny base with one layer,
on one process (``--use_parallel False``). `mindformers_documents` counts blocks of documents and scripts,
`mindformers_lines` their shell lines, and `mindformers_tests` MindFormers' own tests.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import Case, attempt, mindformers_documents, mindformers_lines, mindformers_tests, write_base
from .runs import name_of, problems

BASES = {"GPT2Config": "gpt_tiny", "LlamaConfig": "llama_tiny", "GLMConfig": "glm_tiny", "ChatGLM2Config": "glm4_tiny"}
"""The bundled base in the place of each of MindFormers' architectures."""
FIRST = (0, 6)
WHAT = (
    "files of GPT-2, LLaMA and GLM below configs/, Python blocks of documents about them that import mindformers, "
    "scripts that do (examples of generation, preparation of data, conversion of weights), and the shell lines of the "
    "documents that call these scripts or run_mindformer.py, by the launchers of their release or without. A line's "
    "paths, names and numbers are those of a tiny base, rows and two processes on a CPU; not counted are lines about "
    "other models, Lite, evaluation harnesses, web pages, Ascend's own tools, and scripts that import no mindformers; "
    "and its own tests of models, tokenizers, configurations, trainers, data, learning rates and metrics (which are "
    "left out, and why: OTHERS in door_counts/mindformers_tests.py)"
)
CALLS = {"train": "train", "finetune": "finetune", "eval": "evaluate", "predict": "predict"}
"""run_mode -> the trainer's method."""
PARTS = {"train": "training files", "finetune": "training files", "eval": "eval files", "predict": "predict files"}
SIZES = {"model.model_config.seq_length": 64}
"""``--options``, for what the tiny bases have no room for."""
IDS = {f"model.model_config.{name}_token_id": None for name in ("bos", "eos", "pad")}
"""The published tokenizers' have no place in the bases'."""
ROWS, TOKENS = 6, 33
TEXTS = [f"a {colour} cotton {thing}" for colour in ("red", "grey") for thing in ("shirt", "scarf", "skirt")]


def count(clone: Path, work: Path, seconds: float | None = None) -> list[Case]:
    """What becomes of each file."""
    logging.getLogger("pet").setLevel(logging.ERROR)
    cases, jobs, groups = [], {}, {}
    data = write_data(work / "data")
    for base in BASES.values():
        write_base(base, work / base)
    for name, values in files(clone, work):
        mode = values["run_mode"]
        section = values.get("eval_dataset" if mode == "eval" else "train_dataset") or {}
        loader = section.get("data_loader") or {"type": "MindDataset"}
        judges = values["trainer"]["type"] == "TextClassificationTrainer"
        rows = data["labels" if judges else ",".join(loader.get("origin_columns") or [loader["type"]])]
        trainer = request(values, work / name, rows, work)
        recipe, problem = attempt(trainer.recipe, CALLS[mode], trainer.load_checkpoint)
        if problem:
            cases.append(Case(name, *problem, part=PARTS[mode]))
            continue
        facts = {"model_config": values["model"]["model_config"]} if mode == "predict" else {}
        same = name_of({**comparable({**recipe.model_dump(mode="json"), **facts}), "run_mode": mode})
        jobs.setdefault(same, {"file": str(work / name), "rows": str(rows), "work": str(work)})
        groups.setdefault(same, []).append((name, PARTS[mode]))
    for same, problem in problems(__name__, jobs, work, seconds).items():
        cases += [Case(name, *(problem or ("runs",)), part=part) for name, part in groups[same]]
    for kind in (mindformers_documents, mindformers_lines, mindformers_tests):
        cases += kind.count(clone, work, releases(clone, (0, 2)), git, data, seconds)
    return cases


def run(arguments: dict[str, Any]) -> None:
    """`run_mindformer.py --config FILE …`"""
    import yaml

    file, work = Path(arguments["file"]), Path(arguments["work"])
    values = yaml.safe_load(file.read_text("utf-8"))
    trainer = request(values, file, Path(arguments["rows"]), work)
    if values["run_mode"] == "predict":
        trainer.predict(TEXTS[0])
    elif values["run_mode"] == "eval":
        trainer.evaluate()
    else:
        getattr(trainer, values["run_mode"])()


def files(clone: Path, work: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """``release/path`` and content of each file; it is written below ``work``."""
    import yaml

    seen = set()
    for release, commit in releases(clone).items():
        for line in git(clone, "ls-tree", "-r", commit, "configs/").splitlines():
            blob, path = re.match(r"\S+ blob (\S+)\t(.*)", line).groups()
            if blob in seen or not path.endswith((".yaml", ".yml")):
                continue
            seen.add(blob)
            text = git(clone, "cat-file", "blob", blob)
            values = yaml.safe_load(text)
            config = ((values or {}).get("model") or {}).get("model_config") or {}
            if config.get("type") in BASES and values.get("run_mode") in CALLS:
                name = f"{release}/{path.removeprefix('configs/')}"
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                (work / name).write_text(text, "utf-8")
                yield name, values


def releases(clone: Path, first: tuple[int, int] = FIRST) -> dict[str, str]:
    """The last tag of each release, or its branch where there is none; of a clone without them what is checked out."""
    refs = git(clone, "for-each-ref", "--format=%(refname)", "refs/tags", "refs/heads", "refs/remotes").split()
    found: dict[tuple[int, ...], list[tuple]] = {}
    for ref in refs:
        if parts := re.fullmatch(r"refs/(tags/v|(?:heads|remotes/origin)/r)(\d+)\.(\d+)(?:\.(\d+))?(-beta\d+)?", ref):
            kind, major, minor, patch, beta = parts.groups()
            order = (kind == "tags/v", beta is None, int(patch or 0), beta or "")
            found.setdefault((int(major), int(minor)), []).append((order, ref))
    chosen = {version: max(entries)[1] for version, entries in sorted(found.items()) if version >= first}
    return {".".join(map(str, version)): ref for version, ref in chosen.items()} or {"HEAD": "HEAD"}


def version_of(clone: Path) -> str:
    """The releases that were counted, each in its last state."""
    found = list(releases(clone, (0, 2)))
    return f"releases {found[0]} to {found[-1]}, each in its last state; equal files once"


def git(clone: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", clone, *arguments], capture_output=True, text=True, check=True).stdout


def request(values: dict[str, Any], file: Path, rows: Path, work: Path):
    """The trainer that `run_mindformer.py` makes."""
    from pet.compat.mindformers import Trainer

    arguments = {"use_parallel": False, "output_dir": str(work / "run")}
    base = str(work / BASES[values["model"]["model_config"]["type"]])
    asks = values["run_mode"] == "predict"
    options = {**SIZES, **(IDS if asks else {})}
    data = {"train_dataset": str(rows), **({"eval_dataset": str(rows)} if values["run_mode"] == "eval" else {})}
    return Trainer(recipe=file, args=arguments, load_checkpoint=base, options=options, **data)


def write_data(directory: Path) -> dict[str, Path]:
    """A few rows in the form of each of MindFormers' loaders, by its columns or its name."""
    import numpy as np
    from mindspore.mindrecord import FileWriter

    directory.mkdir(parents=True, exist_ok=True)
    found = {}
    for first, second in (("content", "summary"), ("PROMPT", "ANSWER")):
        found[f"{first},{second}"] = directory / f"{first}.jsonl"
        found[f"{first},{second}"].write_text("".join(json.dumps({first: t, second: t}) + "\n" for t in TEXTS))
    found["ADGenDataLoader"] = found["content,summary"]
    found["ToolAlpacaDataLoader"] = directory / "conversations.jsonl"
    turns = ({"role": "user", "content": "which colour?"}, {"role": "assistant", "content": "grey"})
    found["ToolAlpacaDataLoader"].write_text("".join(json.dumps({"conversations": turns}) + "\n" for _ in TEXTS))
    found["MindDataset"] = directory / "rows.mindrecord"
    writer = FileWriter(str(found["MindDataset"]), overwrite=True)
    writer.add_schema({"input_ids": {"type": "int32", "shape": [-1]}}, "rows")
    ids = np.random.default_rng(0).integers(5, 1000, (ROWS, TOKENS), dtype=np.int32)
    writer.write_raw_data([{"input_ids": row} for row in ids])
    writer.commit()
    found["labels"] = directory / "labels.mindrecord"
    writer = FileWriter(str(found["labels"]), overwrite=True)
    names = ("input_ids", "attention_mask", "labels")
    writer.add_schema({name: {"type": "int64", "shape": [-1]} for name in names}, "rows")
    mask = np.ones_like(ids)
    writer.write_raw_data(
        [dict(zip(names, map(np.int64, (row, mask[0], [number % 2])), strict=True)) for number, row in enumerate(ids)]
    )
    writer.commit()
    return found


def comparable(values: Any) -> Any:
    """A recipe without what only names a file."""
    if isinstance(values, dict):
        return {key: comparable(value) for key, value in values.items() if key not in ("name", "description")}
    return "PATH" if isinstance(values, str) and "/" in values else values
