"""What shell lines call: it is noted, and then run in copies of this process, which has computed nothing."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from . import attempt
from .mindformers_bases import TYPES, given as file_of, load
from .mindformers_documents import left_out, prepare
from .runs import name_of, note, read

SECONDS, CARDS = 150, 2
CLUSTER = {"SERVER_ID": "0", "SERVER_NUM": "1", "PER_DEVICE_NUMS": str(CARDS), "MS_SCHED_HOST": "127.0.0.1"}
"""What a reader exports for ``run_distribute_ps_auto.sh``."""
STUB = """#!/bin/sh
[ "$1" = -c ] && exec {python} "$@"
at=$(mktemp "$CALLS/$(date +%s%N).XXXXXX")
{{ printf '%s\\0' "$PWD" "$(basename "$0")" "$@"; printf '\\0\\n'; env -0; }} > "$at"
"""


def called(words: list[str], place: Path, base: str, work: Path) -> tuple[list[dict[str, Any]], str]:
    """What a line calls, as the arguments of `ran`, and what it says.

    Args:
        words: of the line.
        place: the directory that it is run in.
        base: of this line's models.
        work: everything lies below it.
    """
    with tempfile.TemporaryDirectory(dir=work) as directory:
        stubs, calls = Path(directory, "bin"), Path(directory, "calls")
        for made in (stubs, calls):
            made.mkdir()
        for name in ("python", "python3", "msrun"):
            (stubs / name).write_text(STUB.format(python=sys.executable))
            (stubs / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "CALLS": str(calls), "PYTHONPATH": ""}
        environment |= CLUSTER
        ends, held = os.pipe()  # which everything that the line starts has open, also what a wrapper leaves behind
        try:
            ended = subprocess.run(
                ["bash", "-c", shlex.join(words) + "; code=$?; wait; exit $code"],
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                pass_fds=(held,),
            )
        finally:
            os.close(held)
            select.select([ends], [], [], 60)
            os.close(ends)
        made = [call for file in sorted(calls.iterdir()) if (call := parsed(file.read_bytes()))]
    joined = [
        call for call in made if int(call["environment"].get("RANK_SIZE", 1)) > 1 and "--rank_id" not in str(call)
    ]
    for call in made:
        call.update(base=base, cards=CARDS if call in joined else call["cards"])
        for name in ("RANK_ID", "DEVICE_ID"):
            call["environment"].pop(name, None)
    said = (ended.stdout + ended.stderr).strip().splitlines() or ["nothing was called"]
    return list({name_of(call): call for call in made}.values()), said[0]


def parsed(noted: bytes) -> dict[str, Any] | None:
    """One call, as a stub wrote it down."""
    words, _, environment = noted.partition(b"\0\0\n")
    place, program, *words = words.decode().split("\0")
    values = dict(pair.split("=", 1) for pair in environment.decode().split("\0") if "=" in pair)
    cards = 1
    if program == "msrun":
        options = []
        while words and words[0].startswith("--"):
            options.append(words.pop(0))
        cards = min(CARDS, int(next(option.split("=")[1] for option in options if option.startswith("--worker_num"))))
        words = words[1:] if words and words[0] == "python" else words
    if not words:
        return None
    kept = ("RANK_ID", "RANK_SIZE", "RANK_TABLE_FILE", "PYTHONPATH", "DEVICE_ID")
    place = re.sub(r"/(mf_(parallel|standalone)|worker_)\d*$|/sched$", "/..", place)  # copies of the same files
    if "MS_WORKER_NUM" in values:
        values["RANK_SIZE"] = values["MS_WORKER_NUM"]
    environment = {name: values[name] for name in kept if name in values}
    return {"place": os.path.normpath(place), "words": words, "cards": cards, "environment": environment}


def ran(job: dict[str, Any], work: Path, data: dict[str, Path]) -> Any:
    """What went wrong in a call that is run in copies of this process, which has computed nothing."""
    load()
    place, words, rows = Path(job["place"]), list(job["words"]), ""
    for number, word in enumerate(words):
        if re.search(r"\.ya?ml$", word):
            _, _, path = word.rpartition("=")
            if (place / path).is_file() or Path(path).is_file():
                made, rows = fitted(place / path, job, work, data)
                words[number] = word[: len(word) - len(path)] + str(made)
    shutil.rmtree(work / "results", ignore_errors=True)
    (work / "results").mkdir()
    if rows:
        words = [
            rows if re.search(r"/rows\.(jsonl|mindrecord)$", word) and "results" not in word else word for word in words
        ]
    cards, results = job["cards"], work / f"ranks_{os.getpid()}.jsonl"
    results.unlink(missing_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin, children = time.monotonic(), {}
    for rank in range(cards):
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            log = os.open(work / f"log_{rank}_{os.getppid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            environment = {
                **job["environment"],
                **(
                    {"RANK_ID": str(rank), "DEVICE_ID": str(rank), "RANK_SIZE": str(cards), "MASTER_PORT": str(port)}
                    if cards > 1
                    else {}
                ),
            }
            note(results, str(rank), attempt(run, words, place, environment, work)[1])
            if cards > 1:
                atexit._run_exitfuncs()  # each tells the others that it is well
            os._exit(0)
        children[child] = rank
    failed = 0.0
    while children:
        time.sleep(0.05)
        for child, rank in [*children.items()]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                children.pop(child)
                if str(rank) not in read(results):
                    note(results, str(rank), ("fails", f"its process ended with {os.waitstatus_to_exitcode(status)}"))
                if read(results)[str(rank)] and not failed:
                    failed = time.monotonic()
        if (failed and time.monotonic() - failed > 3) or time.monotonic() - begin > SECONDS:
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
    return next(filter(None, (tuple(value) if value else None for value in read(results).values())), None)


def run(words: list[str], place: Path, environment: dict[str, str], work: Path) -> None:
    """Runs a script as ``python`` would."""
    from model_zoo.errors import InputError

    os.environ.pop("RANK_SIZE", None)
    os.environ.update(environment)
    os.chdir(place)
    prepare(work)
    left_out()
    script = next(path for path in (place / words[0], Path(words[0])) if path.is_file() or path == Path(words[0]))
    sys.path[:0] = [str(script.resolve().parent), *filter(None, environment.get("PYTHONPATH", "").split(":"))]
    sys.argv = [str(script), *words[1:]]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except ImportError as error:
        there = any("/research/" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
        own = there and str(error.name).startswith(("pet.compat", "mindformers"))
        if not own and str(error.name).partition(".")[0] != "research":
            raise
        raise InputError("imports code of research/, which is made of MindFormers' own base classes") from None
    except SystemExit as end:
        if end.code:
            said = [
                line
                for line in Path(work, f"log_0_{os.getppid()}.txt").read_text("utf-8").splitlines()
                if "error:" in line
            ]
            raise RuntimeError(f"ended with {end.code}: {' '.join(said[-1:]).partition('error: ')[2]}") from None


def fitted(file: Path, job: dict[str, Any], work: Path, data: dict[str, Path]) -> tuple[Path, str]:
    """A job file with short rows, this machine's base and data, and as many processes as there are; and its rows."""
    import yaml

    from model_zoo.counting import sizes as sizes_of
    from pet.compat.mindformers.script_config import read_keys
    from pet.compat.mindformers.sizes import NUMBERS as ROUNDING, SIZES as FIELDS

    from .mindformers import IDS, SIZES

    rows, values = "", read_keys(file)
    config = (values.get("model") or {}).get("model_config") or {}
    if config.get("type") not in TYPES.values():
        return file, rows
    base = (
        job["base"]
        if TYPES[job["base"]] == config["type"]
        else next(b for b, t in TYPES.items() if t == config["type"])
    )
    place, cards = work / "models" / base, job["cards"]
    mode = next(
        (
            word.split("=")[-1]
            for word in [*job["words"], ""]
            if re.fullmatch(r"(--run_mode=)?(train|finetune|eval|predict|export)", word)
        ),
        values.get("run_mode"),
    )
    judges = (values.get("trainer") or {}).get("type") == "TextClassificationTrainer"
    place = place / "judge" if judges and mode == "eval" else place
    tiny = json.loads((place / "config.json").read_text())
    there = sizes_of(tiny)
    sizes = {name: getattr(there, size) for name, size in FIELDS.items()}
    sizes |= {"multi_query_group_num": there.kv_heads, "kv_channels": there.head_dim}
    config.update({name: value for name, value in sizes.items() if config.get(name) is not None})
    if config["type"] == "LlamaConfig":
        config |= {"intermediate_size": there.ffn, "n_kv_heads": there.kv_heads}
    for name in (*ROUNDING, "ffn_dim_multiplier", "hidden_act"):
        config.pop(name, None)  # the base's own
    config["seq_length"] = 1024 if mode == "predict" else SIZES["model.model_config.seq_length"]
    if config["type"] == "GPT2Config" and any(word.endswith(".ckpt") for word in job["words"]):
        config["seq_length"] = there.context  # its table of positions is as long
    for name in (key.rpartition(".")[2] for key in IDS):
        if mode in ("predict", "eval") or config["type"] == "GLMConfig":
            config[name] = tiny.get(name)
    if config["type"] == "GLMConfig":
        config |= {name: tiny[name] for name in ("gmask_token_id", "mask_token_id") if name in tiny}
    if "/" in str(config.get("checkpoint_name_or_path") or ""):
        config["checkpoint_name_or_path"] = str(place)
    said = str(values.get("load_checkpoint") or "")
    if "/" in said or not said:
        values["load_checkpoint"] = str(place)
    sharded = mode == "predict" or (values.get("parallel_config") or {}).get("model_parallel", 1) > 1
    values["use_parallel"] = cards > 1
    values["parallel_config"] = {
        **(values.get("parallel_config") or {}),
        "data_parallel": 1 if sharded else cards,
        "model_parallel": cards if sharded else 1,
        "pipeline_stage": 1,
    }
    runner = values.get("runner_config") or {}
    runner.update({"epochs": 1, "batch_size": min(int(runner.get("batch_size") or 1), 2)})
    values["runner_config"] = runner
    for section in ("train_dataset", "eval_dataset"):
        loader = (values.get(section) or {}).get("data_loader")
        if loader:
            key = "labels" if judges else ",".join(loader.get("origin_columns") or [loader["type"]])
            rows = loader["dataset_dir"] = str(data.get(key, data["MindDataset"]))
    tokenizer = ((values.get("processor") or {}).get("tokenizer")) or {}
    if "vocab_file" in tokenizer:
        tokenizer["vocab_file"] = file_of("TOKENIZER", place)
    made = work / "configs" / f"{name_of({'values': values})}.yaml"
    made.parent.mkdir(exist_ok=True)
    made.write_text(yaml.safe_dump(values, allow_unicode=True), "utf-8")
    return made, rows
