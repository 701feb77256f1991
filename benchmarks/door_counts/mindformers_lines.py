"""MindFormers' documents: the shell lines that call it, or one of its scripts that imports it.

Each line is run by bash in the files of its release, where imports have the prefix ``pet.compat``. What a reader fills
in (paths, names, numbers) is a tiny base, rows and two processes of one machine; ``python`` and ``msrun`` note what
they are called with. That is then run, equal calls once: one process, or two that start at once and meet on a CPU.
A job file's sizes, batches, epochs and parallel layout are those of the tiny base and of two processes.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import re
import shlex
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import Case
from .mindformers_calls import CARDS, called, ran
from .mindformers_documents import (
    BLOCK,
    DOCUMENTS,
    FAMILIES,
    IMPORTS,
    JOBS,
    NAMES,
    OTHERS,
    TYPES,
    answered,
    given as file_of,
    plain,
    with_paths,
)
from .runs import Unfinished, name_of, note, read

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
    r"|txtcls_dataset|openmind|--model_dir| world_size |preprocess\.py --data_path path|infer_generate"
)
"""Lines about something else: Lite, programs that judge, web pages, what Ascend's driver or a download gives."""
SLIPS = (
    (r"inpurt_path", "input_path"),
    (r"\.ymal", ".yaml"),
    (r"msrunlauncher", "msrun_launcher"),
    (r"run_stanalone", "run_standalone"),
    (r"ckpt_transorm", "ckpt_transform"),
    (r"yaml--", "yaml --"),
    (r"configs/pangualpha/run_llama", "configs/llama/run_llama"),
    (r"root/mindformers/run_mindformer", "run_mindformer"),
    (r"^bash bash ", "bash "),
    (r"[:：]$", ""),
)
"""Of the documents' spelling."""
PLACES = (
    (r"\{RANK_TABLE_FILE[^}]*\}|\[?\$?\{?\bRANK_TABLE(_FILE|_PATH)?\b\}?\]?", "hccl.json"),
    (r"path/to/rank_table_file", "hccl.json"),
    (r"\{?CONFIG_PATH\}?|\[CONFIG_PATH\]|xxx\.yaml|path/to/config_yaml", "config.yaml"),
    (r"\[?DEVICE_RANGE\]?", "[0,2]"),
    (r"\[?RUN_STATUS\]?|\{RUN_STATUS\}|\[?RUN_MODE\]?|\{train(/finetune\S*)?\}", "MODE"),
    (r"\$?\bdevice_num\b|\bDEVICE_NUM\b|\bRANK_SIZE\b|\bWORKER_NUM\b|\bLOCAL_WORKER\b", "8"),
    (r"\[?DEVICE_ID\]?", "0"),
    (r"\bMASTER_ADDR\b", "127.0.0.1"),
    (r"\bMASTER_PORT\b", "8118"),
    (r"\bNODE_RANK\b", "0"),
    (r"\bLOG_DIR\b", "output/msrun_log"),
    (r"\bJOIN\b", "False"),
    (r"\bCLUSTER_TIME_OUT\b", "300"),
    (r"\bPARALLEL\b", "single"),
    (r"\bPREDICT_MODE\b", "Base"),
    (r"\bCKPT_PATH\b", "path/model.ckpt"),
    (r"\bTOKENIZER(_PATH)?\b", "path/tokenizer.model"),
    (r"\bDTYPE\b", "fp32"),
    (r"--model model_name", "--model MODEL"),
    (r" --otherargs", ""),
    (r"--layers LAYERS", "--layers 1"),
    (r"lora_alpha/lora_rank", "2"),
    (r"run_distribute_\{single/multi\}_node", "run_distribute_single_node"),
    (r"\{(the )?path of [^}]*\}", "path/model.ckpt"),
    (r"\{your_path/([^}]*)\}", r"path/\1"),
    (r"\{(ip_addr|主节点ip)\}", "127.0.0.1"),
    (r"\{node_num\}", "0"),
    (r"\{(path|\w*根目录)\}", "path"),
    (r" \./train --run_mode predict", " --run_mode predict"),
    (r" *\\?(&>|>) *\S+( 2>&1)?( *&)?$", ""),
)
"""What stands for something in a line, and what it becomes; names of files are looked at afterwards."""
WORDS = (
    (r"config|config_path|yaml_file", "YAML"),
    (
        r"load_checkpoint|checkpoint_path|src_checkpoint|src_ckpt_path_or_dir|src_ckpt_dir|ms_not_concat_ckpt_path",
        "BASE",
    ),
    (r"(train|eval)_(dataset(_dir)?|data)|dataset_dir", "ROWS"),
    (r"(vocab|model|tokenizer)_(file|path)|tokenizer", "TOKENIZER"),
    (r"input_glob|input_file|input_file_path|data_path", "TEXTS"),
    (r"input_path|torch_\w*(path|dir)|pt_ckpt_path|pretrained_model_dir|model_dir", "SOURCE"),
    (r"output_\w+|mindspore_\w+|dst_\w*dir|dst_checkpoint|ms_ckpt_path", "RESULT"),
    (r"model_type", "NAME"),
    (r"(src|dst)_(ckpt_)?strategy", "NONE"),
    (r"seq_length|max_length|max_source_length|max_target_length", "64"),
)
"""Options by their names."""
MODELS = {"gpt_tiny": "gpt", "chatglm3_tiny": "glm-n", "glm2_tiny": "glm-n", "glm_tiny": "glm"}
"""What ``convert_weight.py`` calls them."""
PARTS = ("model_parallel", "data_parallel", "pipeline_parallel")
NUMBERS = {"130001": "gmask_token_id", "130004": "bos_token_id"}
"""Ids of ChatGLM-6B's vocabulary that scripts have in them."""


def count(
    clone: Path, work: Path, releases: dict[str, str], git: Git, data: dict[str, Path], seconds: float | None = None
) -> list[Case]:
    """What becomes of each line."""
    begin, found = time.monotonic(), {}
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
    for same, job in jobs.items():
        if same in read(kept):
            continue
        if seconds is not None and time.monotonic() - begin > seconds:
            raise Unfinished(f"{len(jobs.keys() - read(kept).keys())} of {len(jobs)} runs are left")
        note(kept, same, ran(job, work, data))
    results, cases, places = read(kept), [], "|".join(re.escape(str(path)) for path in (work, work.resolve()))
    for name, calls in found.items():
        if isinstance(calls, str):
            calls, wrong = [], ("fails", calls)
        else:
            wrong = next(filter(None, (results[name_of(call)] for call in calls)), ("runs", ""))
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


def filled(line: str) -> str:
    """A line without slips, and with something in the place of what a reader fills in."""
    for words, meant in (*SLIPS, *PLACES):
        line = re.sub(words, meant, line)
    return re.sub(r"\bMODE\b", "train" if "pretrain" in line else "finetune", line).strip()


def family(told: str) -> str:
    """The base in the place of a line's models."""
    told = re.sub(r"/glm\.md", "/glm_6b", told.replace("gpt4", ""))  # of which a set of data has its name
    return next(base for base, words in FAMILIES.items() if re.search(words, told))


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
    place = where(scripts, tree)
    if place is None:
        place, scripts = own(scripts, re.findall(r"--\w+", line), before, tree, work / "models" / base)
    if place is None:
        return None
    told = "\n".join(
        (place / script).read_text("utf-8")
        for script in scripts
        if (place / script).is_file() and script.endswith(".py")
    )
    if told and not IMPORTS.search(told.replace("pet.compat.", "")):
        return None
    words = meant(words, tree, base, work / "models" / base, line)
    if words is None:
        return None
    made, said = called(words, place, base, work)
    return made or f"{scripts[0]}: {said}"


def where(scripts: list[str], tree: Path) -> Path | None:
    """The directory in which all of these are; or, of a script alone, the first that has one of this name."""
    top = [
        tree,
        tree / "scripts",
        tree / "research",
        *sorted(path for path in tree.glob("research/*") if path.is_dir()),
    ]
    for place in top:
        if all((place / script).is_file() for script in scripts):
            return place
    found = sorted(tree.rglob(scripts[0])) if len(scripts) == 1 and "/" not in scripts[0] else []
    found = [path for path in found if re.search(r"/(llama\w*|gpt2|glm\w*|yi|skywork|scripts|tools)/[^/]*$", str(path))]
    return found[0].parent if found else None


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


def meant(words: list[str], tree: Path, base: str, place: Path, line: str) -> list[str] | None:
    """The words with files of this machine, and two processes. None where a configuration is another model's."""
    done, option = [], ""
    wrapper = next((word for word in words if word.endswith(".sh")), "")
    numbers = 0
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        kind = name.lstrip("-") if equals else option
        option = word.lstrip("-") if word.startswith("--") and not equals else ""
        if option:
            done.append(word)
            continue
        if " " in value and ".py" in value:  # what a wrapper starts
            inner = meant(shlex.split(value), tree, base, place, line)
            if inner is None:
                return None
            done.append(" ".join(one if re.fullmatch(r"[\w./*=:,\[\]-]+", one) else shlex.quote(one) for one in inner))
            continue
        sort = next((sort for names, sort in WORDS if re.fullmatch(names, kind)), "")
        if not sort and not kind:
            sort = bare(value, wrapper)
            numbers += value.isdigit()
            if value.isdigit() and wrapper and numbers <= 2 and not value.startswith("8118"):
                value = str(CARDS) if int(value) > 1 else value
            value = re.sub(r"^\[\d+, ?\d+([\])])$", r"[0,2\1", value)
            value = re.sub(r"^\d+(\.\d+){3}$", "127.0.0.1", value)
        if sort == "YAML":
            value = configuration(value, tree, base, line)
            if value is None:
                return None
        elif sort:
            value = stands_for(sort, value, place, line)
        elif kind == "tokenizer_type" or value == "MODEL":
            value = MODELS.get(base, "llama") if value == "MODEL" else value
            value = str(place) if "/" in value else value
        done.append(f"{name}={value}" if equals else value)
    return done if not any(word in ("--data_parallel", "--model_parallel") for word in done) else divided(done)


def divided(words: list[str]) -> list[str]:
    """As many parts of each kind as two processes have."""
    said = {name: words.index(f"--{name}") + 1 for name in PARTS if f"--{name}" in words}
    whole = next((name for name in PARTS if name in said and int(words[said[name]]) > 1), None)
    for name, at in said.items():
        words[at] = str(CARDS if name == whole else 1)
    return words


def bare(word: str, wrapper: str) -> str:
    """What a word without an option is."""
    if not wrapper:
        return ""
    kinds = ((r".*\.ya?ml", "YAML"), (r".*(hccl|rank_table).*\.json", "TABLE"), (r".*tokenizer.*", "TOKENIZER"))
    kinds += (
        ((r".*ckpt.*|.*model_dir.*|.*checkpoint(_dir|\.ckpt)?", "BASE"),) if not word.endswith((".py", ".sh")) else ()
    )
    return next((sort for words, sort in kinds if re.fullmatch(words, word)), "")


def stands_for(sort: str, word: str, place: Path, line: str) -> str:
    """The file in the place of a word; a model's name stays."""
    if sort in ("64", "NONE"):
        return "64" if sort == "64" else "None"  # of whole files
    if sort == "TABLE":
        table = place / "hccl.json"
        devices = [{"device_id": str(one), "device_ip": f"192.1.1.{one}", "rank_id": str(one)} for one in range(CARDS)]
        server = {"server_id": "127.0.0.1", "device": devices}
        table.write_text(json.dumps({"version": "1.0", "server_count": "1", "server_list": [server]}))
        return str(table)
    if sort in ("BASE", "NAME"):
        for tiny, names in NAMES.items():
            if word in names.split():
                return str(place.parent / tiny)
        both = ("lora" in line + word and "eval" in line) or "transform" in line
        alone = word.endswith(".ckpt") and "txtcls" not in line  # GPT-2's file has a row for each of 4096 positions
        return str(place / ("both.ckpt" if both else "model.ckpt" if alone else "."))
    if sort == "SOURCE":
        return str(place / ("model.ckpt" if "--reversed" in line else "."))
    if sort == "RESULT":
        kinds = ((r"\.mindrecord$", "rows.mindrecord"), (r"\.json$", "rows.json"), (r"dir$|output/?$", "."))
        name = next(
            (name for words, name in kinds if re.search(words, word)), "hf" if "--reversed" in line else "model.ckpt"
        )
        return str(place.parents[1] / "results" / name)
    if sort == "TEXTS":
        kinds = (
            (r"squad", "squad.json"),
            (r"qa|conversation|alpaca", "conversation.json"),
            (r"wiki", "wiki.txt"),
            (r"Advertise", "advertise.jsonl"),
        )
        return str(place / next((name for words, name in kinds if re.search(words, line)), "wiki.txt"))
    return file_of(sort, place)


def configuration(word: str, tree: Path, base: str, line: str) -> str | None:
    """The file that a word names, or the first of its family in the line's run_mode. None of another model's."""
    every = [path for top in ("configs", "research") for path in sorted((tree / top).rglob("*.y*ml"))]
    named = [path for path in every if fnmatch.fnmatch(path.name, Path(word).name)]
    named.sort(key=lambda path: path.parent.name != Path(word).parent.name)
    modes = re.findall(r"\b(train|finetune|eval|predict|export)\b", line)
    mode = modes[0] if modes else "predict"

    for path in named[:1]:
        return str(path) if kind(path)[0] in TYPES.values() or kind(path)[0] == "None" else None
    like = [path for path in every if kind(path)[0] == TYPES[base] and family(str(path.relative_to(tree))) == base]
    usual = [path for path in like if re.match(JOBS[base], str(path.relative_to(tree)))]
    section = {"train": "train_dataset:", "finetune": "train_dataset:", "eval": "eval_dataset:"}.get(mode, "")
    fit = [path for path in like if kind(path)[1] == mode and section in path.read_text("utf-8")]
    ranked = ([path for path in usual if path in fit], fit, usual, like)
    return next((str(some[0]) for some in ranked if some), None)


@functools.cache
def kind(file: Path) -> tuple[str, str]:
    """A job file's model and run_mode."""
    text = file.read_text("utf-8")
    model = re.search(r"(?m)^  model_config: *\n(?:    .*\n| *#.*\n)*?    type: *['\"]?(\w+)", text)
    mode = re.search(r"(?m)^run_mode: *['\"]?(\w+)", text)
    return model[1] if model else "None", mode[1] if mode else "None"
