"""FlagAI: the calls of its trainer in its documents and examples, with the settings that they state.

The models of these scripts are FlagAI's and torch's, which are not here; what is counted is whether this library's
trainer takes each call's settings. Several processes are not started.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
from pathlib import Path

from door_counts import Case, outcome_of

WHAT = (
    "calls of its trainer in documents and examples, by their settings alone; the models of these scripts are not here"
)


def count(clone: Path, work: Path, seconds: float | None = None) -> list[Case]:
    """Each call ``…Trainer(…)`` is a case, and each keyword set of ``trainer.train(…)``."""
    from pet.compat import flagai

    flagai.start_again = lambda *_: 0
    os.chdir(work)
    (work / "deepspeed.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    cases = []
    for path in sorted([*clone.glob("docs/*.md"), *clone.glob("examples/**/*.py")]):
        for number, source in enumerate(sources(path)):
            for call in calls(source):
                name = f"{path.relative_to(clone)}{f'#{number}' if path.suffix == '.md' else ''}:{call.lineno}"
                cases.append(outcome_of(name, lambda call=call, path=path: take(call, path, flagai)))
    return cases


def sources(path: Path) -> list[str]:
    """The Python in a file: a script, or a document's blocks without their prompts."""
    text = path.read_text("utf-8", "replace")
    if path.suffix == ".py":
        return [text]
    blocks = re.findall(r"```[pP]ython\n(.*?)```", text, re.DOTALL)
    return [re.sub(r"^\s*>>> ?", "", block, flags=re.MULTILINE) for block in blocks]


def calls(source: str) -> list[ast.Call]:
    """Calls of trainers; none where the text is no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a document's block that leaves something out: only the calls in it
        found = []
        for text in re.findall(r"\w*Trainer\([^()]*\)", source):
            try:
                found += [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
            except SyntaxError:
                continue
        return found
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Trainer") and node.keywords
    ]


def take(call: ast.Call, path: Path, flagai) -> None:
    """Gives the settings that stand in the call to the trainer; what the script computes is left out."""
    settings = {}
    for keyword in call.keywords:
        try:
            settings[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            continue
    file = settings.get("deepspeed_config")
    if file and (path.parent / file).is_file():
        settings["deepspeed_config"] = str(path.parent / file)
    elif file:
        settings["deepspeed_config"] = "deepspeed.json"
    settings.pop("hostfile", None)
    with contextlib.suppress(SystemExit):
        flagai.Trainer(**settings)
