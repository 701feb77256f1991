"""Pages of the site that are made from the program: a recipe's keys, the commands, the public names, measured methods.

They have no source file, so that none can be out of date.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args
from unittest import mock

from pydantic import BaseModel

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]


def cell(text: object) -> str:
    """Text for a cell of a table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def table(head: list[str], rows: list[list[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines) + "\n"


def sections(kind: type[BaseModel], at: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """A section and those within it, each with its dotted name."""
    yield at, kind
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from sections(field.annotation, f"{at}.{name}" if at else name)


def recipe_page() -> str:
    """Every key of a recipe with its type, default and meaning."""
    from pet.recipe.adapter import Adapter
    from pet.recipe.schema import Recipe
    from pet.recipe.show import _scalar

    def rows(kind: type[BaseModel]) -> list[list[object]]:
        found = []
        for name, field in kind.model_fields.items():
            value = None if field.is_required() else field.get_default(call_default_factory=True)
            if not isinstance(value, BaseModel):  # it has a table of its own
                default = "required" if field.is_required() else f"`{_scalar(value)}`"
                found.append([f"`{name}`", default, field.description or ""])
        return found

    text = "# Recipe reference\n\nA recipe is one YAML file. An unknown key is an error. `pet recipes show NAME` prints"
    text += " a\nrecipe with every default; `pet recipes schema` writes the JSON schema for editors.\n"
    head = ["key", "default", "meaning"]
    for name, kind in sections(Recipe, ""):
        text += f"\n## {name or 'At the top'}\n\n{table(head, rows(kind))}"
    for kind in get_args(get_args(Adapter)[0]):
        methods = ", ".join(get_args(kind.model_fields["method"].annotation))
        text += f"\n## adapter, method: {methods}\n\n{table(head, rows(kind))}"
    return text


def commands_page() -> str:
    """What each command's ``--help`` prints."""
    from pet.cli.commands import COMMANDS
    from pet.cli.main import main

    text = "# Command reference\n"
    for name, (_, meaning) in COMMANDS.items():
        printed = io.StringIO()
        columns = mock.patch.dict(os.environ, COLUMNS="100")
        with columns, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([name, "--help"])
        text += (
            f"\n## pet {name}\n\n{meaning[0].upper()}{meaning[1:]}.\n\n```text\n{printed.getvalue().rstrip()}\n```\n"
        )
    return text


def python_page() -> str:
    """The public names with their docstrings."""
    import pet
    from pet.lazy import stub_table

    text = "# Python reference\n\n`from pet import …`\n"
    for module, names in stub_table(pet.__file__).items():
        text += "".join(f"\n::: {module}.{name}\n" for name in names if name in pet.__all__)
    return text


def methods_page() -> str:
    """Losses, sizes and times of every method on every bundled base, from recipes/measured.json."""
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    measured = (ROOT / "recipes" / "README.md").read_text("utf-8")
    found = re.findall(r"^\|.*\|$", measured, flags=re.M)
    return text.replace("<!-- measured -->", re.sub(r"\[(`\w+`)\]\([^)]*\)", r"\1", "\n".join(found)))


def generation_page() -> str:
    """Every setting of how tokens are chosen."""
    from model_zoo.generation_settings import FIELDS

    rows = [[f"`{name}`", field.metadata["description"]] for name, field in FIELDS.items()]
    text = (ROOT / "docs" / "generation.md").read_text("utf-8")
    return text.replace("<!-- settings -->", table(["setting", "meaning"], rows))


def seven_billion_page(name: str) -> str:
    """A page on models of published size with what was measured of them; their sections are those of a file that
    `benchmarks/real_size.py` writes."""
    text = (ROOT / "docs" / name).read_text("utf-8")
    measured = ROOT / "benchmarks" / "REAL_SIZE.md"
    _, *sections = re.split(r"(?m)^(?=## )", measured.read_text("utf-8")) if measured.is_file() else [""]
    return text.replace("<!-- real size -->", "".join(f"#{section}" for section in sections))


def project_page(name: str) -> str:
    """A document of the repository; its links to files of the repository become plain text."""
    text = (ROOT / name).read_text("utf-8")
    return re.sub(r"\[([^\]]*)\]\((?!http)[^)]*\)", r"\1", text)


PAGES = {
    "reference/recipes.md": recipe_page,
    "reference/commands.md": commands_page,
    "reference/python.md": python_page,
    "methods.md": methods_page,
    "generation.md": generation_page,
    **{name: functools.partial(seven_billion_page, name) for name in ("seven-billion.md", "seven-billion.zh-CN.md")},
    "project/architecture.md": lambda: project_page("ARCHITECTURE.md"),
    "project/decisions.md": lambda: project_page("DECISIONS.md"),
    "project/changes.md": lambda: project_page("CHANGELOG.md"),
}


def on_files(files: Files, config) -> Files:
    """Called by MkDocs when it knows the pages that lie in docs/."""
    from mkdocs.structure.files import File

    for path, make in PAGES.items():
        if (there := files.get_file_from_path(path)) is not None:
            files.remove(there)
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Links to files of the repository that are no pages become plain text."""
    directory = Path(config.docs_dir, page.file.src_uri).parent

    def text_or_link(found: re.Match) -> str:
        inside = (directory / found[2]).resolve().is_relative_to(config.docs_dir)
        return found[0] if inside else found[1]

    return re.sub(r"\[([^\]]*)\]\((?!https?:|#)([^)#]+)[^)]*\)", text_or_link, markdown)
