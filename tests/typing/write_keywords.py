"""Writes `pet/keywords.pyi`, the keyword arguments that editors know: ``python tests/typing/write_keywords.py``.

They follow from the recipe's ``train`` section and from the table of MindFormers' arguments; a test holds the file to
them.
"""

from __future__ import annotations

import re
from pathlib import Path

STUB = Path(__file__).parents[2] / "pet" / "keywords.pyi"
HEAD = '''"""Keyword arguments by name, for editors. Written by tests/typing/write_keywords.py."""

from typing import Any, Literal, TypedDict
'''


def source() -> str:
    """The stub's text."""
    from pet.compat.mindformers.training_arguments import TABLE
    from pet.recipe.training import Train

    plain = re.compile(r"[\[\], |]|int|float|str|bool|dict|list|None|Literal\[[^]]*\]")
    fields = {
        name: "Any" if plain.sub("", kind) else kind.replace("'", '"') for name, kind in Train.__annotations__.items()
    }
    arguments = {name: "Any" for name in TABLE if name != "output_dir"}
    return HEAD + "".join(
        f"\nclass {name}(TypedDict, total=False):\n" + "".join(f"    {key}: {kind}\n" for key, kind in of.items())
        for name, of in (("TrainSettings", fields), ("TrainingArgumentSettings", arguments))
    )


if __name__ == "__main__":
    STUB.write_text(source(), "utf-8")
