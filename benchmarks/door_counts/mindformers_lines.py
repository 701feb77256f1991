"""MindFormers' documents: the shell lines that call it, or one of its scripts that imports it.

Each line is run by bash in the files of its release, where imports have the prefix ``pet.compat``. What a reader fills
in (paths, names, numbers) is a tiny base, rows and two processes of one machine; ``python`` and ``msrun`` note what
they are called with. That is then run, equal calls once: one process, or two that start at once and meet on a CPU.
A job file's sizes, batches, epochs and parallel layout are those of the tiny base and of two processes.
"""

from __future__ import annotations

import json
import re
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import Case
from .mindformers_calls import called, ran
from .mindformers_documents import BLOCK, DOCUMENTS, IMPORTS, OTHERS, answered, at_fault, plain, with_paths
from .mindformers_words import family, filled, meant
from .runs import name_of, note, read, waiting

Git = Callable[..., str]
PART = "lines of documents"
FENCE = re.compile(
    r"^[ \t>]*```[ \t]*(?!py)[^\n`]*\n(.*?)^[ \t>]*```|^[ \t>]*```.*?^[ \t>]*```", re.DOTALL | re.MULTILINE
)
COMMAND = re.compile(r"(?:python3?|bash|sh) +[^\s\"']+\.(?:py|sh)\b|(?:bash) run_distribute_\{")
FILES = re.compile(
    r"(run_mindformer|convert_weight)\.py|(configs|scripts|research)/.*\.(py|sh|ya?ml)"
    r"|mindformers/(tools|models)/.*\.(py|sh)"
)
APART = re.compile(
    r"run_infer|_lite|run_chat|eval_(start|end|with)|evaluate_|Step\d|pretrain_tool|hccl\w*\.py|build\.sh|run_mindformers\.py"
    r"|txtcls_dataset|openmind|--model_dir| world_size |preprocess\.py --data_path path|infer_generate|tools/export\.py"
)
"""Lines about something else: Lite, programs that judge, web pages, what Ascend's driver or a download gives."""
NUMBERS = {"130001": "gmask_token_id", "130004": "bos_token_id"}
"""Ids of ChatGLM-6B's vocabulary that scripts have in them."""


def count(
    clone: Path, work: Path, releases: dict[str, str], git: Git, data: dict[str, Path], seconds: float | None = None
) -> list[Case]:
    """What becomes of each line."""
    found: dict[str, Any] = {}
    kept, stored = work / "lines.jsonl", work / "calls.json"
    if stored.is_file():
        found = json.loads(stored.read_text())
    else:
        for name, line, before in lines(clone, releases, git):
            release, base = name.partition("/")[0], family(name + line)
            tree = files(clone, work / "trees" / release, releases[release], git)
            if (calls := noted(line, before, tree, base, work)) is not None:
                found[name] = calls
        stored.write_text(json.dumps(found))
    jobs = {name_of(call): call for calls in found.values() if isinstance(calls, list) for call in calls}
    for same in waiting(jobs, kept, seconds):
        note(kept, same, ran(jobs[same], work, data))
    results, cases, places = read(kept), [], "|".join(re.escape(str(path)) for path in (work, work.resolve()))
    for name, calls in found.items():
        if isinstance(calls, str):
            calls, wrong = [], ("fails", calls)
        else:
            wrong = next(filter(None, (results[name_of(call)] for call in calls)), None)
        wrong = at_fault(name, wrong) or ("runs", "")
        reason = re.sub(rf"({places})/(\S*/)?|[0-9a-f]{{64}}(\.yaml)?(: )?", "", wrong[1])
        cases.append(Case(name, wrong[0], reason, part=PART))
    return cases


# Reading ------------------------------------------------------------------------------------------------------------


def lines(clone: Path, releases: dict[str, str], git: Git) -> Iterator[tuple[str, str, str]]:
    """``release/path:line``, the line, and the document before it; equal ones, but for a machine's number, once."""
    blobs, seen = set(), set()
    for release, commit in releases.items():
        for entry in git(clone, "ls-tree", "-r", commit).splitlines():
            blob, path = re.match(r"\S+ \w+ (\S+)\t(.*)", entry).groups()
            if blob in blobs or not DOCUMENTS.fullmatch(path):
                continue
            blobs.add(blob)
            text = git(clone, "cat-file", "blob", blob)
            for fence in FENCE.finditer(text):
                if re.match(r"\s*#!", fence[1] or "") or re.search(r"(?m)^ *(for|if)\b", fence[1] or ""):
                    continue  # a whole script, which lines call
                for start, line in commands(fence[1] or ""):
                    line = filled(line)
                    same = re.sub(r"(8118) \d", r"\1 0", re.sub(r"\[(8|16|24),\d+[)\]]", "[0,8]", line))
                    if same in seen or APART.search(line) or OTHERS.search(line):
                        continue
                    seen.add(same)
                    number = text[: fence.start(1) + start].count("\n") + 1
                    yield f"{release}/{path}:{number}", line, text[: fence.start()]


def commands(block: str) -> Iterator[tuple[int, str]]:
    """Place and text of each command of a block; one goes on behind a backslash and within quotes."""
    at, parts = 0, block.splitlines(keepends=True)
    while parts:
        start, line = at, ""
        while parts:
            part = parts.pop(0)
            at += len(part)
            line += re.sub(r"\\[ \t]*(#.*)?$", "\\\\", part.strip(" \t>$\n") if not line else part.strip())
            if line.endswith("\\") and parts:
                line = line[:-1].rstrip() + " "
            elif COMMAND.match(line) and parts and (line.count('"') % 2 or parts[0].lstrip().startswith("--")):
                line += " "
            else:
                break
        if COMMAND.match(line):
            yield start, re.sub(r"\s+", " ", line.strip())


def files(clone: Path, tree: Path, commit: str, git: Git) -> Path:
    """A release's own files, with the prefix before their imports."""
    if not tree.is_dir():
        paths = [
            path for path in git(clone, "ls-tree", "-r", "--name-only", commit).splitlines() if FILES.fullmatch(path)
        ]
        with tempfile.NamedTemporaryFile(suffix=".tar") as packed:
            git(clone, "archive", "-o", packed.name, commit, *paths)
            with tarfile.open(packed.name) as archive:
                archive.extractall(tree, filter="data")
        glm = json.loads((tree.parents[1] / "models" / "glm_tiny" / "config.json").read_text())
        for script in tree.rglob("*.py"):
            text = script.read_text("utf-8")
            text = answered(re.sub(r"(['\"])Ascend\1", r"\1CPU\1", text))
            for number, name in NUMBERS.items():
                text = text.replace(number, str(glm[name]))
            script.write_text(
                re.sub(r"(?<![\w./-])mindformers(?=\.[a-z]| import)", "pet.compat.mindformers", text), "utf-8"
            )
    return tree


# Calling ------------------------------------------------------------------------------------------------------------


def noted(line: str, before: str, tree: Path, base: str, work: Path) -> list[dict[str, Any]] | str | None:
    """What a line calls, as the arguments of `ran`; or what is wrong. None where it calls nothing of MindFormers."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        return f"bash: {error}"
    scripts = [word for part in words[1:] for word in part.split() if word.endswith((".py", ".sh"))]
    if not scripts:
        return None
    options = re.findall(r"--\w+", line)
    place = where(scripts, tree, options)
    if place is None:
        place, scripts = own(scripts, options, before, tree, work / "models" / base)
    if place is None:
        return None
    told = "\n".join(
        (place / script).read_text("utf-8")
        for script in scripts
        if (place / script).is_file() and script.endswith(".py")
    )
    if told and not IMPORTS.search(told.replace("pet.compat.", "")):
        return None
    if "use_parallel.lower()" in told and words[0].startswith("python") and "--use_parallel" not in options:
        words += ["--use_parallel", "False"]  # the default has no lower()
    words = meant(words, tree, base, work / "models" / base, line)
    if words is None:
        return None
    made, said = called(words, place, base, work)
    return made or f"{scripts[0]}: {said}"


def where(scripts: list[str], tree: Path, options: list[str]) -> Path | None:
    """The directory in which all of these are; or, of a script alone, the first that has one of this name. One whose
    script takes the line's options is preferred."""
    top = [
        tree,
        tree / "scripts",
        tree / "research",
        *sorted(path for path in tree.glob("research/*") if path.is_dir()),
    ]
    places = [place for place in top if all((place / script).is_file() for script in scripts)][:1]
    if len(scripts) == 1 and "/" not in scripts[0]:
        named = r"/(llama\w*|gpt2|glm\w*|yi|skywork|scripts|tools)/[^/]*$"
        places += [path.parent for path in sorted(tree.rglob(scripts[0])) if re.search(named, str(path))]
    texts = {place: (place / scripts[0]).read_text("utf-8") for place in places}
    takes = [place for place in places if all(option in texts[place] for option in options)]
    return next(iter(takes or places), None)


def own(scripts: list[str], options: list[str], before: str, tree: Path, base: Path) -> tuple[Path | None, list[str]]:
    """Where scripts lie that the document itself has shown before, or that this library has beside its examples."""
    place = tree / "own" / name_of({"scripts": scripts, "options": options, "before": before})
    place.mkdir(parents=True, exist_ok=True)
    examples = Path(__file__).parents[2] / "examples"
    python = [plain(found[2]) for found in BLOCK.finditer(before)]
    shell = [found[1] for found in FENCE.finditer(before) if (found[1] or "").lstrip().startswith("#!/bin/bash")]
    for script in scripts:
        if script.endswith(".sh") and (examples / script).is_file():
            text = (examples / script).read_text("utf-8")
        elif script.endswith(".py"):
            own_ones = [one for one in reversed(python) if "argparse" in one or "__main__" in one]
            takes = [one for one in own_ones if all(re.search(rf"['\"]{option}['\"]", one) for option in options)]
            text = next(iter(takes or own_ones), "")
            text = with_paths(text, base, "")
        else:
            text = shell[-1] if shell else ""
        if (
            not text
            and "/" not in script
            and (found := [*tree.glob(f"scripts/{script}"), *tree.glob(f"research/{script}")])
        ):
            text = found[0].read_text("utf-8")
        if not text:
            return None, scripts
        (place / script).parent.mkdir(parents=True, exist_ok=True)
        (place / script).write_text(text, "utf-8")
    return place, scripts
