"""``pet download``: a model from a hub, safetensors only."""

from __future__ import annotations

from collections.abc import Sequence

from model_zoo.errors import InputError
from pet.cli.parser import Parser

EXAMPLES = [
    ("pet download Qwen/Qwen2.5-0.5B-Instruct", "from Hugging Face; model.path takes the same name"),
    ("pet download modelscope:Qwen/Qwen2.5-0.5B-Instruct", "from ModelScope"),
    ("pet download Qwen/Qwen2.5-0.5B-Instruct@main", "a branch, a tag or a commit"),
]


def main(arguments: Sequence[str]) -> int:
    """Fetch, and say where it is."""
    parser = Parser(
        "pet download", "Download a model from a hub: safetensors, configuration and tokenizer, and no code.", EXAMPLES
    )
    parser.add_argument("name", metavar="NAME", help="owner/name, with modelscope: before and @REVISION behind it")
    options = parser.read(arguments)
    from pet.hub import fetch, hub_name

    name = hub_name(options.name)
    if name is None:
        raise InputError(f"{options.name!r} is no name on a hub; expected owner/name, as in Qwen/Qwen3-0.6B")
    directory, revision = fetch(name, fresh=True)
    print(f"{name.pinned(revision)}\n{directory}")
    return 0
