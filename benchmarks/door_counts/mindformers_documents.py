"""MindFormers' documents: the Python blocks that import it, and its scripts that they call.

Each is run in a process of its own, with `pet.compat.mindformers` in the place of ``mindformers`` and on tiny models:
names (``llama2_7b``) and configurations stand for models of one layer, and paths for files of theirs.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import Case, Problem, attempt
from .mindformers_bases import FAMILIES, JOBS, NAMES, given, load, shrink, stand_in, write_files
from .runs import in_copy, name_of, note, read, waiting

Git = Callable[..., str]
SECONDS = 120
DOCUMENTS = re.compile(
    r"(README\w*|docs/(README|FAQ|pet_tuners/.*|aicc_cards/.*|feature_cards/.*|readthedocs/.*"
    r"|task_cards/text_generation\w*|model_cards/(gpt2|llama\w*|codellama|codegeex2|glm\w*))|configs/(README|gpt2/.*|llama\w*/.*|glm4?/.*)"
    r"|research/(glm32k|llama\w*|ziya|yi|skywork|mengzi3|deepseek)/.*)\.md"
)
BLOCK = re.compile(
    r"^([ \t>]*)```[ \t]*(?:python|py)\b[^\n]*\n(.*?)^[ \t>]*```", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
IMPORTS = re.compile(r"^\s*(from|import) mindformers\b|['\"]mindformers\.models", re.MULTILINE)
SCRIPTS = re.compile(
    r"scripts/examples/(gpt2|llama\w*|glm\w*|codellama|yi)/run_\w+_generate\.py|convert_weight\.py"
    r"|mindformers/tools/(dataset_preprocess/(gpt2|llama)/(?!conversation|txtcls|alpaca)\w+|transform_ckpt\w*)\.py"
)
OTHERS = re.compile(
    r"bert|\bvit|swin|clip|mae_|whisper|blip|\bT5|\bt5|pangu|bloom|\bsam_|\bqa_|baichuan|internlm|qwen|mixtral|deepseek"
    r"|wizardcoder|telechat|cogvlm|code_tokenizer|token_classification|image_|visual",
    re.IGNORECASE,
)
"""Models that are not here."""
PARTS = re.compile(
    r"MindFormerRegister|register_cls|@lazy_inline|BaseDataset|build_dataset|InferTask|auto_trans_ckpt=True|moe_config|\.\.\.\s*\)|\{[a-z]+/"
)
"""Blocks that show how MindFormers is built or extended, or leave something out."""
PATHS = (
    (r"lora[^/]*\.ckpt", "lora.ckpt"),
    (r"\.ya?ml", "job.yaml"),
    (r"\.model$|vocab", "TOKENIZER"),
    (r"tokenizer", "TOKENIZER"),
    (r"\.ckpt|checkpoint|ckpt|weight", "model.ckpt"),
    (r"train|eval|data|wiki|alpaca|squad", "ROWS"),
    (r"model", "."),
)
ARGUMENTS = {
    "run_mode": "finetune",
    "task": "text_generation",
    "model_type": ".",
    "checkpoint_path": "model.ckpt",
    "vocab_path": "TOKENIZER",
    "tokenizer_path": "TOKENIZER",
    "train_dataset": "ROWS",
    "eval_dataset": "ROWS",
    "yaml_file": "job.yaml",
    "config_path": "job.yaml",
    "load_checkpoint": ".",
    "load_tokenizer": ".",
    "vocab_file": "TOKENIZER",
}
"""Of a script's options: what stands behind them."""
WRITTEN = "--output_file out/rows.mindrecord"
COMMANDS = {
    "llama_preprocess": f"--input_glob lines.txt --model_file TOKENIZER --seq_length 16 {WRITTEN}",
    "wikitext2_data_process": f"--input_file wiki.txt --max_length 33 {WRITTEN}",
    "squad_data_process": f"--input_file squad.json --mode eval --max_length 64 --tokenizer_type llama2_7b {WRITTEN}",
    "transform_ckpt_lora": "--src_ckpt_path_or_dir both.ckpt --dst_ckpt_dir out --prefix checkpoint_ --lora_scaling 2",
    "convert_weight": "--model llama --input_path . --output_path out/model.ckpt",
}
"""Of scripts that no document calls with all that they need: as the documents do."""
FAULTS = (
    (r"0\.6/docs/README\.md:(538|715) ", "the document's script has no --predict_data"),
    (r"1\.0/docs/model_cards/codegeex2\.md:699 ", "# without quotes begins a comment of the shell"),
    (r"/glm32k\.md:174 |1\.3/docs/model_cards/glm4\.md:177 ", "the tokenizer's file is left out"),
    (r"1\.4/research/yi/README\.md:172 ", "the job file has no train_dataset, into which the script writes"),
    (r"written by 'write_raw_data'", "arrays of another type than the schema's, which MindSpore takes no longer"),
    (r"Transformers does not recognize", "the script loads a model by Python code that lies beside published weights"),
)
"""Causes of what a line or script ends in with MindFormers, too, on this MindSpore and files; by name and reason."""


def count(
    clone: Path, work: Path, releases: dict[str, str], git: Git, data: dict[str, Path], seconds: float | None = None
) -> list[Case]:
    """What becomes of each block and script."""
    for base in FAMILIES:
        write_files(base, work / "models" / base, data)
    jobs = runs_of(clone, work, releases, git)
    kept = work / "documents.jsonl"
    load()
    for same in waiting(jobs, kept, seconds):
        ended = in_copy(lambda same=same: note(kept, same, attempt(run, jobs[same][1])[1]), SECONDS)
        if same not in read(kept):
            note(kept, same, ("fails", f"its process ended with {ended}"))
    found = read(kept)
    return [
        Case(
            name,
            *(at_fault(name, found[same]) or ("runs",)),
            part="scripts" if name.endswith(".py") else "blocks of documents",
        )
        for same, (name, _) in jobs.items()
    ]


def at_fault(name: str, wrong: Problem | None) -> Problem | None:
    """What went wrong; or its cause, where that is one of `FAULTS`."""
    why = next((why for words, why in FAULTS if wrong and re.search(words, f"{name} {wrong[1]}")), None)
    return ("refused", why) if why else wrong


def runs_of(clone: Path, work: Path, releases: dict[str, str], git: Git) -> dict[str, tuple[str, dict[str, Any]]]:
    """Key of each run -> its name, and the arguments of `run`."""
    jobs = {}
    for name, source in texts(clone, releases, git):
        release, _, path = name.partition("/")
        told = name if name.endswith(".py") else name + source
        base = next(base for base, words in FAMILIES.items() if re.search(words, told))
        listed = git(clone, "ls-tree", "-r", "--name-only", releases[release], "configs/").splitlines()
        usual = next((file for file in listed if re.match(JOBS[base], file)), "")
        for near in git(clone, "ls-tree", "--name-only", releases[release], f"{Path(path).parent}/").splitlines():
            if re.match(r"research/.*\.ya?ml", near):  # what a document calls /path/NAME.yaml
                source = re.sub(rf"(['\"])[\w/.]+/{re.escape(Path(near).name)}\1", rf"\1{near}\1", source)
        for file in {usual, *re.findall(r"(?:configs|research)/[\w/.]+\.ya?ml", source)} - {""}:
            with contextlib.suppress(subprocess.CalledProcessError):
                text = git(clone, "show", f"{releases[release]}:{file}")
                text = re.sub(r"(?m)^use_parallel: *True", "use_parallel: False", text)  # one process
                filled = given("TOKENIZER", work / "models" / base)
                text = re.sub(r"(?m)^( +vocab_file:) *(\"\"|''|null)", rf"\1 {filled}", text)
                (work / release / file).parent.mkdir(parents=True, exist_ok=True)
                (work / release / file).write_text(text)
                source = source.replace(file, f"{work}/{release}/{file}")
        if "from conversation" in source:
            beside = git(clone, "show", f"{releases[release]}:{Path(path).parent}/conversation.py")
            (work / "beside").mkdir(exist_ok=True)
            (work / "beside" / "conversation.py").write_text(beside)
        yaml = f"{work}/{release}/{usual}" if usual else ""
        job = {"source": source, "base": base, "name": name, "work": str(work), "yaml": yaml}
        jobs[name_of(job)] = (name, job)
    return jobs


def texts(clone: Path, releases: dict[str, str], git: Git) -> Iterator[tuple[str, str]]:
    """``release/path:line`` and text of each block, and of each script; equal ones once."""
    blobs, seen = set(), set()
    for release, commit in releases.items():
        for line in git(clone, "ls-tree", "-r", commit).splitlines():
            blob, path = re.match(r"\S+ \w+ (\S+)\t(.*)", line).groups()
            if blob in blobs or not (DOCUMENTS.fullmatch(path) or SCRIPTS.fullmatch(path)):
                continue
            blobs.add(blob)
            text = git(clone, "cat-file", "blob", blob)
            if path.endswith(".py"):
                if IMPORTS.search(text):
                    yield f"{release}/{path}", text
                continue
            for found in BLOCK.finditer(text):
                source = plain(found[2])
                same = re.sub(r"\s+", " ", re.sub(r"#.*", "", source))
                other = OTHERS.search(source) or PARTS.search(source) or not parses(source)
                if IMPORTS.search(source) and same not in seen and not other:
                    seen.add(same)
                    yield f"{release}/{path}:{text[: found.start()].count(chr(10)) + 1}", source


def parses(source: str) -> bool:
    """Whether it is Python, and no part of something."""
    try:
        compile(source, "", "exec")
    except SyntaxError:
        return False
    return True


def plain(block: str) -> str:
    """Python without the prompts and answers of an interpreter, and without the document's indentation."""
    import textwrap

    if ">>>" in block:
        lines = [line.lstrip() for line in block.splitlines()]
        block = "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))
    return textwrap.dedent(block)


def run(arguments: dict[str, Any]) -> None:
    """Runs a text as a script of its name."""
    from model_zoo.errors import InputError

    work, base = Path(arguments["work"]), arguments["base"]
    place = work / "models" / base
    own = Path(tempfile.mkdtemp(dir=work))
    os.chdir(own)
    (own / "out").mkdir()
    prepare(work)
    source = with_paths(arguments["source"], place, arguments["yaml"])
    stem = Path(arguments["name"]).stem
    sys.path.insert(0, str(work / "beside"))
    sys.argv = [arguments["name"], *(given(word, place) for word in COMMANDS.get(stem, "").split())]
    if stem not in COMMANDS:
        options = re.findall(r"add_argument\(\s*['\"]--(\w+)['\"]", source)
        for option in options:
            if option in ARGUMENTS:
                word = arguments["yaml"] or ARGUMENTS[option] if option in ("yaml_file", "config_path") else ""
                sys.argv += [f"--{option}", word or given(ARGUMENTS[option], place)]
        if "use_parallel.lower()" in source:
            sys.argv += ["--use_parallel", "False"]
    known = {"__name__": "__main__", "__file__": arguments["name"], **left_out()}
    try:
        exec(compile(source, arguments["name"], "exec"), known)
    except ModuleNotFoundError as error:
        if error.name != "research":
            raise
        raise InputError("imports code of research/, which is made of MindFormers' own base classes") from None
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"ended with {end.code}") from None


def prepare(work: Path) -> None:
    """Puts this library in the place of MindFormers, and tiny models in that of names and sizes."""
    stand_in(work)
    shrink(work)


def left_out() -> dict[str, Any]:
    """What documents leave to the reader; and, in MindSpore and other packages, what later versions lack."""
    from types import ModuleType

    from mindspore.mindrecord import FileWriter

    from pet.compat import mindformers
    from pet.compat.mindformers.preparing import get_default_conv_template

    FileWriter.open_and_set_header = lambda self: None
    module = ModuleType("fastchat.conversation")
    module.get_conv_template = get_default_conv_template
    sys.modules.update({"fastchat": ModuleType("fastchat"), "fastchat.conversation": module})
    return {"context_init": lambda *given, **named: None, "inputs": "a red shirt", "AutoConfig": mindformers.AutoConfig}


def with_paths(source: str, place: Path, yaml: str) -> str:
    """The text with files of the base in the place of the paths in its strings."""

    def put(found: re.Match) -> str:
        mark, word = found[1], found[2].strip()
        if os.path.isfile(word):  # also of a long text
            return found[0]
        for tiny, names in NAMES.items():
            if word in names.split():
                return mark + str(place.parent / tiny) + mark
        if not re.fullmatch(r"(?!--)[\w.{} /*~-]+", word) or not re.search(r"/|path|_dir$|\.\w{2,6}$", word):
            return found[0]
        for words, file in PATHS:
            if re.search(words, word):
                return mark + (yaml if file == "job.yaml" and yaml else given(file, place)) + mark
        return found[0]

    source = re.sub(r"\bmax_length=(10|20)\b", "max_length=60", source.replace("Ascend", "CPU"))
    source = answered(source)
    return re.sub(r"(['\"])([^'\"\n]+)\1", put, source)


def answered(source: str) -> str:
    """The text for random weights, which end no answer, and do not begin one as ChatGLM3's do."""
    asked = r"([\"']?)max_length\1([:=]) ?(?:model_)?config\.seq_length(?=,[\s\"']*(?:do_sample|num_beams))"
    source = re.sub(asked, r"\1max_new_tokens\1\2 32", source)
    if "def process_response" in source:
        source = re.sub(r"= (tokenizer\.decode\(outputs\b.*\))\n", r"= '\\n' + \1\n", source)
    return source
