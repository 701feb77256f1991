"""MindFormers' own tests of what is here, with `pet.compat.mindformers` in the place of ``mindformers``.

Each file of tests runs in a copy of this process; models that it names, and large configurations, are tiny ones. Equal
files of several releases are run once, in the first of these.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from . import Case, Problem
from .mindformers_bases import FAMILIES, load, stand_in, write_files
from .runs import in_copy, note, read, waiting

Git = Callable[..., str]
SECONDS, MEMORY = 150, 8 << 30
TESTS = re.compile(r"tests/(.*/)?test_\w+\.py")
OTHERS = {
    "other models, pictures and sounds": r"bert|(?<![a-z])vit|swin|clip|mae_|_mim|masked_image|whisper|blip|flickr|t5_"
    r"|bloom"
    r"|pangu|(?<![a-z])sam_|segment|baichuan|internlm|qwen|mixtral|deepseek|wizard|telechat|cogvlm|mllama|llava|multi_modal"
    r"|modal_to_text|image|audio|vision|mixup|augment|cifar|filip|_qa_|question|tokcls|token_class|txtcls_model/|squad"
    r"|cluener|wmt16|translation|contrastive|fill_mask|mask_language|llm_boost|gpt_oss|glm4_moe|yi_model|xihe|moe",
    "layers, kernels and compilation of its own": r"distri_core|static_distri|mcore|pynative|parallel_core|test_modules"
    r"|test_infer|ring_attention|sparse_attention|layers_apis|transformer_apis|inference_apis|model_runner|test_jit"
    r"|_modules|_transformer|_layer|_interleave|test_swap|recompute|pipeline_balance|quantiz|cann|experimental"
    r"|parallel_decoding|muon|pma_|came|test_optim/|with_pfa|slora|dynamic_ntk|beam_search|stable_rank|ndtree|rl_dpo",
    "several processes on Ascend": r"multi_cards|_parallel\w*\.py|distributed|optim_zero2|msrun|ttp|grace_exit|health"
    r"|stress|all_reduce|communication|expert|reshard|resume|ckpt_transform|safetensors|checkpoint|monitor|skip_data",
    "what it is built and released with": r"auto_register|test_docs|api_compat|version|test_logs|run_check|test_ut\.py"
    r"|template|bit_array|shm_|import_utils|cloud|profile|tensorboard|parameter_register|blended|megatron|indexed"
    r"|param_init|weight_consistency|configuration_glm4|hf_dataloader|general_dataset|preprocess|postprocess"
    r"|convert_utils"
    r"|callback/|context/|op_group|grouped_parameters|registry|build_models|base_model|mixin|modeling_|jit|test_auto/test_(utils|configuration)",
}
"""Left out."""


def left_out(path: str) -> str | None:
    """Why a file is not counted; None where it is."""
    return next((why for why, words in OTHERS.items() if re.search(words, path.removeprefix("tests/"), re.I)), None)


def files(clone: Path, releases: dict[str, str], git: Git) -> dict[str, str]:
    """Key of each file's content -> ``release/path``, of its first release."""
    found = {}
    for release, commit in releases.items():
        for line in git(clone, "ls-tree", "-r", commit, "tests/").splitlines():
            blob, path = re.match(r"\S+ \w+ (\S+)\t(.*)", line).groups()
            if TESTS.fullmatch(path):
                found.setdefault(blob, f"{release}/{path}")
    return found


def count(
    clone: Path, work: Path, releases: dict[str, str], git: Git, data: dict[str, Path], seconds: float | None = None
) -> list[Case]:
    """What becomes of each test; a file that cannot be imported is as many as it has functions."""
    for base in FAMILIES:
        write_files(base, work / "models" / base, data)
    print(f"files of tests that are left out: {summary(clone, releases, git)}", flush=True)
    counted = {key: name for key, name in files(clone, releases, git).items() if left_out(name) is None}
    kept = work / "tests.jsonl"
    for key in waiting(counted, kept, seconds, "files of tests"):
        name = counted[key]
        release = name.partition("/")[0]
        if not (work / "tests" / release).is_dir():
            (work / "tests" / release).mkdir(parents=True)
            packed = subprocess.run(
                ["git", "-C", clone, "archive", releases[release], "tests", "configs"], capture_output=True
            )
            subprocess.run(["tar", "-x", "-C", work / "tests" / release], input=packed.stdout, check=True)
        forked(work / "tests" / release, name.partition("/")[2], work)
        note(kept, key, results(work / "report.xml", work / "tests" / name))
    found = read(kept)
    return [
        Case(f"{name}::{test}", *(problem or ("runs",)), part="unit tests")
        for key, name in counted.items()
        for test, problem in found[key]
    ]


def summary(clone: Path, releases: dict[str, str], git: Git) -> str:
    """How many files of tests are left out, and why."""
    reasons = [why for name in files(clone, releases, git).values() if (why := left_out(name))]
    return "; ".join(f"{reasons.count(why)} of {why}" for why in OTHERS)


def results(report: Path, file: Path) -> list:
    """[name, problem] of each test by pytest's report; without one its process has ended."""
    parsed = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
    functions = [node.name for node in parsed if node.name.startswith("test_")]
    if not report.is_file():
        return [[name, ("fails", "its process ended")] for name in functions]
    found = []
    for test in ElementTree.parse(report).iter("testcase"):
        broken = next((one for kind in ("failure", "error") if (one := test.find(kind)) is not None), None)
        if broken is None:
            found += [[test.get("name"), None]] * (test.find("skipped") is None)
            continue
        text, names = broken.get("message", ""), [test.get("name")]
        if "collection failure" in text:  # the last line of its picture says why
            lines = [line[2:].strip() for line in (broken.text or "").splitlines() if line.startswith("E  ")]
            text, names = lines[-1] if lines else text, functions
        found += [[name, problem_of(text)] for name in names]
    return found


def problem_of(text: str) -> Problem:
    """A refusal, which names all that is wrong, or the first line of another error; without what differs by the run."""
    refused = "InputError: " in text
    text = text.partition("InputError: ")[2] if refused else text.partition("\n")[0]
    text = re.sub(r"^failed on setup with \"|(?<![\w.])/\S*/(?=[\w.]+)| at 0x\w+|\"$", "", " ".join(text.split()))
    return "refused" if refused else "fails", text[:200]


def forked(root: Path, path: str, work: Path) -> None:
    """Runs a file of tests in a copy of this process."""
    load()
    importlib.import_module("pytest")
    report = work / "report.xml"
    report.unlink(missing_ok=True)

    def action() -> None:
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            run(root, path, work, report)

    in_copy(action, SECONDS, work / "tests.log")


def run(root: Path, path: str, work: Path, report: Path) -> None:
    """pytest on one file, with this library by MindFormers' name."""
    import mindspore
    import pytest

    stand_in(work)
    sys.meta_path.append(Lacking())
    from pet.compat.mindformers import __modules__

    for inner in ("", *__modules__):
        complete(importlib.import_module(f"mindformers.{inner}".rstrip(".")))
    shrink(work)
    set_context = mindspore.set_context
    for place in (mindspore, mindspore.context):
        place.set_context = lambda **given: set_context(**{**given, "device_target": "CPU"})
    os.chdir(root)
    sys.path.insert(0, str(root))
    options = ["-q", "-n0", "-o", "addopts=", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", os.devnull]
    pytest.main([*options, "--tb=short", f"--rootdir={root}", f"--junit-xml={report}", str(root / path)])


class Absent(type):
    """A name of MindFormers that is not here: a test is judged by what it uses, and not by what its file imports."""

    def __new__(cls, name: str, bases: tuple = (), body: dict[str, Any] | None = None):
        return super().__new__(cls, name, (), {})

    def __init__(cls, *_: Any) -> None: ...

    def __call__(cls, *_: Any, **settings: Any) -> Any:
        raise NotImplementedError(f"{cls.__name__} is not here")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(f"{cls.__name__} is not here")


class Lacking(MetaPathFinder, Loader):
    """Modules of MindFormers that are not here, and names that the others lack; and packages that its tests import
    beside it, where they are not installed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        theirs = fullname.partition(".")[0] in ("mindformers", "research", "cv2", "datasets")
        return ModuleSpec(fullname, self, is_package=True) if theirs else None

    def exec_module(self, module: ModuleType) -> None:
        complete(module)


def complete(module: ModuleType) -> None:
    """Gives a module stand-ins for the names that it lacks."""
    own = vars(module).get("__getattr__")

    def find(name: str) -> Any:
        if name.startswith("__"):
            return own(name) if own else getattr(ModuleType, name)
        with contextlib.suppress(AttributeError):
            if own:
                return own(name)
        return Absent(f"{module.__name__}.{name}".replace("pet.compat.mindformers", "mindformers"))

    module.__getattr__ = find
    vars(module).setdefault("__path__", [])


def shrink(work: Path) -> None:
    """Makes the cells of large configurations those of a tiny one: their own sizes are seen, but take minutes."""
    from pet import auto

    made = auto.AutoModel.from_config

    def small(config: Any, **settings: Any):
        config = auto.AutoConfig.from_pretrained(config) if isinstance(config, str) else config
        values = config if isinstance(config, dict) else config.to_dict()
        base = next((base for base, kind in KINDS.items() if kind == values["model_type"]), None)
        if base and max(values.get("hidden_size") or 0, values.get("n_embd") or 0) > WIDEST:
            values = {**values, **json.loads((work / "models" / base / "config.json").read_text())}
            config = values if isinstance(config, dict) else type(config).from_dict(values)
        return made(config, **settings)

    auto.AutoModel.from_config = staticmethod(small)


WIDEST = 1024
KINDS = {"gpt_tiny": "gpt2", "llama_tiny": "llama", "glm_tiny": "chatglm", "glm2_tiny": "chatglm"}
