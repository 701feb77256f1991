"""Completion in a shell by argcomplete, whose function calls ``pet`` with the line so far in the environment."""

from __future__ import annotations

import argparse
import os
import re
from importlib import import_module

import argcomplete

from pet import names
from pet.cli.commands import COMMANDS
from pet.recipe.keys import known_keys

KNOWN = {
    "RECIPE": names.bundled_recipes,
    "MODEL": lambda: [*names.bundled_models(), *names.preset_names()],
    "key.sub=value": lambda: [f"{'.'.join(path)}=" for path in known_keys()],
}
"""Placeholder of an argument -> what may stand there; where nothing fits, the shell offers files."""


def complete() -> None:
    """Answers the shell: with commands, or by the parser of the one that is there (`offer`)."""
    if (found := re.match(r"\S+\s+(\S+)\s", os.environ["COMP_LINE"])) and found[1] in COMMANDS:
        os.environ["_ARGCOMPLETE"] = "2"  # as if the command were the program
        import_module(COMMANDS[found[1]][0]).main([])
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=COMMANDS)
    argcomplete.autocomplete(parser)


def offer(parser: argparse.ArgumentParser) -> None:
    """Answers the shell by a command's parser, and ends the process."""
    for action in parser._actions:
        place = str(action.metavar)
        if place in KNOWN or " | " in place:
            known = KNOWN[place]() if place in KNOWN else place.split(" | ")
            action.completer = argcomplete.ChoicesCompleter(known)
    argcomplete.autocomplete(parser)
