"""MindFormers' documents: the Python blocks that import it, and its scripts that they call.

Each is run in a process of its own, with `pet.compat.mindformers` in the place of ``mindformers`` and on tiny models:
names (``llama2_7b``) and configurations stand for models of one layer, and paths for files of theirs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import Case, attempt
from .runs import Unfinished, name_of, note, read

Git = Callable[..., str]
SECONDS = 120
MODULES = [f"pet.compat.mindformers.{name}" for name in ("classes", "high_level", "asking", "script")]
"""What most texts import, once for all."""
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
FAMILIES = {
    "chatglm4_tiny": r"glm4|glm_4|GLM4",
    "glm_tiny": r"glm_6b|\bGLMConfig|GLMForPreTraining|/glm/|ChatGLMTokenizer",
    "chatglm3_tiny": r"glm3|glm32k",
    "glm2_tiny": r"glm|codegeex",
    "gpt_tiny": r"gpt",
    "llama_tiny": "",
}
"""The base in the place of a text's models: the first whose words it has."""
JOBS = {
    "glm_tiny": r"configs/glm/\w+\.yaml",
    "chatglm3_tiny": r"configs/glm3/(predict|run)_\w+\.yaml",
    "glm2_tiny": r"configs/glm2/(predict|run)_\w+\.yaml",
    "chatglm4_tiny": r"configs/glm4/(predict|run)_\w+\.yaml",
    "gpt_tiny": r"configs/gpt2/(predict|run)_\w+\.yaml",
    "llama_tiny": r"configs/llama2?/(predict|run)_\w+\.yaml",
}
"""The job file in the place of one that a text does not name."""
NAMES = {
    "glm_tiny": "glm_6b glm_6b_chat glm_6b_lora_chat",
    "chatglm3_tiny": "glm3_6b glm3_6b_32k glm32k",
    "glm2_tiny": "glm2_6b codegeex2_6b",
    "chatglm4_tiny": "glm4_9b",
    "gpt_tiny": "gpt2 gpt2_xl gpt2_13b gpt2_52b gpt2_xlarge",
    "llama_tiny": "llama_7b llama_13b llama_65b llama2_7b llama2_13b llama2_70b llama3_8b llama3_70b codellama_34b",
}
"""Whose published weights they stand for."""
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


def count(
    clone: Path, work: Path, releases: dict[str, str], git: Git, data: dict[str, Path], seconds: float | None = None
) -> list[Case]:
    """What becomes of each block and script."""
    for base in FAMILIES:
        write_files(base, work / "models" / base, data)
    jobs = runs_of(clone, work, releases, git)
    kept, begin = work / "documents.jsonl", time.monotonic()
    for same, (_, job) in jobs.items():
        if same not in read(kept):
            if seconds is not None and time.monotonic() - begin > seconds:
                raise Unfinished(f"{len(jobs.keys() - read(kept).keys())} of {len(jobs)} runs are left")
            forked(kept, same, job)
    found = read(kept)
    return [
        Case(name, *(found[same] or ("runs",)), part="scripts" if name.endswith(".py") else "blocks of documents")
        for same, (name, _) in jobs.items()
    ]


def forked(kept: Path, same: str, job: dict[str, Any]) -> None:
    """Runs one in a copy of this process, which has imported MindSpore but computed nothing, and notes what became
    of it."""
    for module in ("mindspore.dataset", "mindspore.mindrecord", "pet.train.run", "pet.compat.objects", *MODULES):
        importlib.import_module(module)
    begin, child = time.monotonic(), os.fork()
    if not child:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        note(kept, same, attempt(run, job)[1])
        os._exit(0)
    ended = 0
    while not ended:
        time.sleep(0.05)
        ended, status = os.waitpid(child, os.WNOHANG)
        if time.monotonic() - begin > SECONDS and not ended:
            os.kill(child, signal.SIGKILL)
    if same not in read(kept):
        note(kept, same, ("fails", f"its process ended with {os.waitstatus_to_exitcode(status)}"))


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
    """Puts `pet.compat.mindformers` in the place of ``mindformers``, and tiny models in that of names and sizes."""
    from pet.names import bundled_models

    for name, module in [item for item in sys.modules.items() if item[0].startswith("pet.compat.mindformers")]:
        sys.modules[name.replace("pet.compat.mindformers", "mindformers")] = module
    for tiny, names in NAMES.items():
        bundled_models().update(dict.fromkeys((*names.split(), tiny), work / "models" / tiny))
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


def given(word: str, place: Path) -> str:
    """A word, or the file that it stands for."""
    if word == ".":
        return str(place)
    if word in ("TOKENIZER", "ROWS"):
        names = ("tokenizer.model", "ice_text.model") if word == "TOKENIZER" else ("rows.mindrecord", "rows.jsonl")
        return str(next((place / name for name in names if (place / name).is_file()), place))
    return str(place / word) if re.search(r"^(?!out/).*\.\w{2,}$", word) else word


def shrink(work: Path) -> None:
    """Makes every configuration the tiny one of its family."""
    from model_zoo.families import chatglm, chatglm2, gpt2, llama

    for own, base in {
        gpt2.GPT2Config: "gpt_tiny",
        llama.LlamaConfig: "llama_tiny",
        chatglm.GLMConfig: "glm_tiny",
        chatglm2.ChatGLM2Config: "glm2_tiny",
    }.items():
        tiny = json.loads((work / "models" / base / "config.json").read_text())
        width = "n_embd" if "n_embd" in tiny else "hidden_size"

        def small(values, made=own.from_dict, tiny=tiny, width=width):
            free = dict.fromkeys(("n_inner", "bos_token_id", "eos_token_id", "pad_token_id"))
            return made(values if values.get(width) == tiny[width] else {**values, **free, **tiny})

        own.from_dict = staticmethod(small)


def write_files(base: str, directory: Path, data: dict[str, Path]) -> None:
    """A base with the files that documents speak of."""
    import shutil

    import mindspore as ms

    import pet
    from pet.compat.ckpt.doors import to_file
    from pet.compat.ckpt.lora import to_lora_file
    from pet.names import bundled_models

    if (directory / "lora.ckpt").is_file():
        return
    same = {"glm2_tiny": "llama_tiny", "chatglm3_tiny": "llama_tiny", "chatglm4_tiny": "glm4_tiny"}
    source = bundled_models()[same.get(base, base)]
    shutil.copytree(source, directory, dirs_exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    if base == "chatglm3_tiny":
        (directory / "tokenizer_config.json").write_text(json.dumps({"prompt_style": "chatglm3"}))
    if base in same:
        config = dict(CHATGLM2)
    config |= dict.fromkeys({*LAYERS} & {*config}, 1) | dict.fromkeys({*CONTEXTS} & {*config}, 4096)
    model = pet.AutoModel.from_config(config)
    pet.save_pretrained(model, directory)
    to_file(directory, directory / "model.ckpt")
    adapter = directory.parents[1] / "adapters" / base  # not in the directory, which would be a run's
    pet.save_adapter(pet.apply_lora(model, rank=8, alpha=16), adapter)
    rows = data["content,summary" if "glm" in base else "MindDataset"]
    for file in rows.parent.glob(f"{rows.name}*"):
        shutil.copy(file, directory / file.name.replace(rows.name, f"rows{rows.suffix}"))
    asked = {"question": "what?", "answers": [{"text": "grey", "answer_start": 0}], "id": "0"}
    named = {"type": TYPES[base], "checkpoint_name_or_path": str(directory)}
    texts = {
        "squad.json": {"data": [{"paragraphs": [{"context": "grey", "qas": [asked]}]}]},
        "conversation.json": [
            {"id": "1", "conversations": [{"from": "human", "value": "what?"}, {"from": "gpt", "value": "grey"}]}
        ],
        "job.yaml": {**JOB, "model": {"model_config": named}},
    }
    for name, values in texts.items():
        (directory / name).write_text(json.dumps(values) + "\n")
    sold = [{"content": "a red shirt", "summary": "grey", "text": "a red shirt"}] * 6
    (directory / "advertise.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sold))
    for name in ("lines.txt", "wiki.txt"):
        lines = [" = A title = ", *["a red cotton shirt , and a grey scarf . " * 20] * 8]
        (directory / name).write_text("\n\n".join(lines))
    to_lora_file(adapter, directory / "lora.ckpt", directory)
    both = [ms.load_checkpoint(str(directory / f"{name}.ckpt")) for name in ("model", "lora")]
    values = [{"name": name, "data": value} for one in both for name, value in one.items()]
    ms.save_checkpoint(values, str(directory / "both.ckpt"))


LAYERS = ("n_layer", "num_layers", "num_hidden_layers")
CONTEXTS = ("n_positions", "n_ctx", "max_position_embeddings", "max_sequence_length", "seq_length")
CHATGLM2 = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "padded_vocab_size": 1344,
    "hidden_size": 64,
    "num_layers": 1,
    "num_attention_heads": 4,
    "multi_query_group_num": 2,
    "kv_channels": 16,
    "ffn_hidden_size": 96,
    "seq_length": 4096,
}
TYPES = {
    "glm_tiny": "GLMConfig",
    "chatglm3_tiny": "ChatGLM2Config",
    "glm2_tiny": "ChatGLM2Config",
    "chatglm4_tiny": "ChatGLM2Config",
    "gpt_tiny": "GPT2Config",
    "llama_tiny": "LlamaConfig",
}
JOB = {
    "run_mode": "predict",
    "use_parallel": False,
    "context": {"device_target": "CPU"},
    "parallel": {},
    "parallel_config": {"data_parallel": 1, "model_parallel": 1},
    "trainer": {"type": "CausalLanguageModelingTrainer"},
}
