"""The commands and programs of the README and of the pages run as they are pasted, in their order; runs are cut short.

A fenced block of ``sh`` is commands, of ``python`` a program, of ``yaml`` a part of a recipe; ``json`` lines stand for
the file that the page names before them. Commands that need weights or other machines stand in a block of ``text``
whose first line says so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sets import some

from adapters.settings import SETTINGS
from model_zoo.engine import available
from pet.cli.commands import COMMANDS
from pet.cli.main import main
from pet.recipe.loading import from_dict
from pet.train.report import TITLES

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
CHINESE = sorted(path.relative_to(ROOT).as_posix() for path in DOCUMENTS if "zh-CN" in path.name)
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in DOCUMENTS
    if "zh-CN" not in path.name
    and path.name != "CONTRIBUTING.md"
    and re.search(r"^```(sh|python)$", path.read_text("utf-8"), flags=re.M)
)
LONG = ("docs/merging.md", "docs/devices.md")
"""Two pages whose programs take half of the time of all."""
SHORT = shlex.split(
    "train.steps=2 train.warmup=0 eval.before=false eval.metrics=[loss] eval.shown_samples=0 data.workers=0"
)


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of a page's blocks."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)


def installed(program: str) -> bool:
    """Whether the packages that a program imports are here: the other library of a comparison may not be."""
    names = re.findall(r"^(?:from|import) (\w+)", program, flags=re.M)
    return all(importlib.util.find_spec(name) for name in names)


def run_program(text: str, whole: bool) -> None:
    """In the current directory: the whole of it in a process of its own, or cut short in this one."""
    if not whole:
        Path("program.py").write_text(re.sub(r"\bsteps=\d+", "steps=2", text), "utf-8")
        runpy.run_path("program.py", run_name="__main__")
        return
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Ada made it, by hand, in our workshop." in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", some(PAGES, [page for page in PAGES if page not in LONG]))
def test_page(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("/quit\n"))
    rows = [text for language, text in blocks(page) if language == "json"] or [
        json.dumps({"prompt": "Who made this lamp?", "completion": "Ada made it."}) + "\n"
    ]
    (tmp_path / "answers.jsonl").write_text("".join(rows) * 12, "utf-8")
    for language, text in blocks(page):
        if language == "python" and installed(text):
            run_program(text, page == "README.md")
        for line in text.splitlines() if language == "sh" else []:
            words = shlex.split(line, comments=True)
            assert words[0] == "pet", line
            code = main(words[1:] + (SHORT if words[1] == "finetune" else []))
            assert code == 0, (line, capsys.readouterr().err)


def test_a_reader_of_several_pages_finds_no_place_taken():
    """Commands write where no other page does: what is there is not overwritten."""
    places: dict[str, str] = {}
    for page in PAGES:
        for _, text in filter(lambda block: block[0] in ("sh", "text"), blocks(page)):
            for place in re.findall(r"(?:--output |output\.dir=|recipes copy \S+ )(\S+)", text):
                assert places.setdefault(place, page) == page, place


def test_what_does_not_run_here_is_marked():
    """CONTRIBUTING.md, ARCHITECTURE.md and DECISIONS.md are for those who work on this library."""
    for path in DOCUMENTS:
        if path.name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "DECISIONS.md"):
            continue
        page = path.relative_to(ROOT).as_posix()
        fences = re.findall(r"^```(\w*)$", path.read_text("utf-8"), flags=re.M)
        assert all(fences[::2]) and not any(fences[1::2]), f"{page}: a block without a language"
        for language, text in blocks(page):
            if language not in ("sh", "python", "json", "yaml") and re.search(r"^(pet|python) (?!-m venv)", text, re.M):
                assert text.startswith("# needs "), (page, text)


@pytest.mark.parametrize("page", [path.relative_to(ROOT).as_posix() for path in DOCUMENTS])
def test_settings_in_pages_are_a_recipes(page):
    for language, text in blocks(page):
        if language == "yaml":
            from_dict({"model": {"path": "llama_tiny"}, **yaml.safe_load(text)}, check_files=False)


@pytest.mark.parametrize("chinese", CHINESE)
def test_chinese_pages_have_the_commands_of_the_english_ones(chinese):
    def commands(page: str) -> list[list[str]]:
        lines = [line for kind, text in blocks(page) if kind in ("sh", "python") for line in text.splitlines()]
        return [shlex.split(re.sub(r'"[^"]*"', "text", line), comments=True) for line in lines]

    theirs, ours = commands(chinese), commands(chinese.replace(".zh-CN", ""))
    assert theirs == ours[: len(theirs)]  # a last section may be in English alone


@pytest.mark.parametrize("chinese", CHINESE)
def test_chinese_pages_say_what_the_english_ones_do(chinese):
    """As far as names within sentences, headings, rows of tables and items of lists tell it."""

    def told(page: str) -> tuple[set[str], list[int]]:
        text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
        names = {re.sub(r"\s+", " ", name) for name in re.findall(r"`([^`]+)`", text)}
        return names, [len(re.findall(start, text, flags=re.M)) for start in (r"^#+ ", r"^ *\|", r"^ *- ")]

    (theirs, shape), (ours, other) = told(chinese), told(chinese.replace(".zh-CN", ""))
    assert ours - theirs == set()
    assert shape == other


def test_chinese_readme_has_the_measured_numbers_of_the_english_one():
    english, chinese = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))
    ranges = re.findall(r"[\d.]+ to [\d.]+", english.partition("## Speed")[2])
    assert ranges and re.findall(r"[\d.]+ ~ [\d.]+", chinese) == [text.replace("to", "~") for text in ranges]


def test_commands_within_sentences_exist(capsys):
    """With the options that they are given, in pages and in recipes' comments."""

    @functools.cache
    def options(command: str) -> set[str]:
        with contextlib.suppress(SystemExit):
            main([command, "--help"])
        return set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))

    for path in [*DOCUMENTS, *(ROOT / "recipes").glob("*.yaml"), *(ROOT / "examples").glob("*.md")]:
        text = re.sub(r"\n#? ?", " ", path.read_text("utf-8"))
        for words in re.findall(r"`pet ([a-z][^`]*)`", text):
            command, *rest = words.partition(" -- ")[0].split()
            assert command in COMMANDS, f"{path.name}: pet {words}"
            unknown = {word for word in rest if word.startswith("--")} - options(command)
            assert not unknown, f"{path.name}: pet {words}"


@pytest.mark.skipif(not available(), reason="no C compiler: operators keep more or less than kernels")
def test_the_memory_that_a_page_states_is_what_the_command_prints(capsys):
    for page in ("docs/seven-billion.md", "docs/seven-billion.zh-CN.md"):
        found = []
        for line in next(text for language, text in blocks(page) if language == "sh").splitlines():
            assert main([*shlex.split(line)[1:], "--json"]) == 0
            found.append(f"{json.loads(capsys.readouterr().out)['memory_bytes']['total'] / 1e9:.1f}")
        assert re.findall(r"([\d.]+)(?: GB|\.\s)", (ROOT / page).read_text("utf-8"))[:2] == found, page


def test_pictures_of_terminals_are_those_of_the_script():
    """Each is on a page."""
    made = runpy.run_path(str(ROOT / "docs" / "screens.py"))["SCREENS"]
    assert {path.stem for path in (ROOT / "docs" / "screens").iterdir()} == made.keys()
    shown = {name for path in DOCUMENTS for name in re.findall(r"\(screens/(\w+)\.svg\)", path.read_text("utf-8"))}
    assert shown == made.keys()
    table = (ROOT / "docs" / "screens" / "finetune.svg").read_text("utf-8").replace("&#160;", " ")
    assert all(f">{TITLES[measure]} " in table for measure in ("loss", "perplexity", "accuracy", "rouge_l"))


def test_the_recipe_reference_has_every_method_with_its_settings():
    page = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["recipe_page"]()
    found = ", ".join(re.findall(r"^## adapter, method: (.*)$", page, flags=re.M)).split(", ")
    assert sorted(found) == sorted(["none", *(name for settings in SETTINGS for name in settings.names())])
    assert "| `trained` |" in page


def test_links_lead_somewhere():
    """Of the README and the pages, to files of this repository."""
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text("utf-8")):
            there = (path.parent / target).resolve()
            made = there.parent == ROOT / "docs" / "reference"  # by docs/hooks.py
            assert made or there.exists(), f"{path.name}: {target}"
