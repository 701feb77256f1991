"""argparse with help that shows worked examples, and errors that name what may have been meant."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from model_zoo.atomic import check_name
from model_zoo.errors import SYNONYMS, InputError, nearest
from pet.cli.wrapping import columns, wrapped

PATHS = {"adapter", "base", "file", "model", "output", "run", "DIR", "FILE", "PATH", "PLACE"}
PATHS |= {"ADAPTER", "MODEL", "RECIPE", "RUN", "SOURCE"}
"""Names and placeholders of arguments that are, or may be, a file or a directory."""


ELSEWHERE = {"--lora-model-dir": ("--adapter", "ADAPTER"), "--base-model": ("--model", "--base")}
ELSEWHERE |= {"--adapter-name-or-path": ("--adapter", "ADAPTER"), "--model-name-or-path": ("--model", "--base")}
"""Options of axolotl and LLaMA-Factory, and what they are here, in one command or in another."""
OPTION = re.compile(r"--?[A-Za-z][^\s]*")
"""What argparse takes for an option."""
SHARED: dict[str, dict[str, Any]] = {
    "--no-strict": {"action": "store_true", "help": "allow an adapter that was trained on another base"},
    "--dequantize": {
        "action": "store_true",
        "help": "merge into the numbers that the adapter was trained on in 8 or 4 bits, not into the unquantised base",
    },
    "--output": {"required": True, "metavar": "DIR", "help": "output directory"},
    "--max-shard-size": {"default": "5GB", "metavar": "SIZE", "help": "maximum size of one weight file (default 5GB)"},
    "--force": {"action": "store_true", "help": "write into a directory that is not empty"},
    "--hub": {
        "metavar": "NAME",
        "help": "upload it, too: owner/name on Hugging Face's hub, which is made if need be",
    },
    "--private": {"action": "store_true", "help": "make that repository for its owner alone"},
}
"""Options that several commands have."""
LITERAL = "\ue000"
"""Stands before a word that begins with a dash and is no option: a character that no name has."""


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(one) for one in value]
    return value.removeprefix(LITERAL) if isinstance(value, str) else value


class Formatter(argparse.HelpFormatter):
    """Help by `wrapped`."""

    def __init__(self, prog: str):
        super().__init__(prog, width=columns() - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrapped(text, width)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises :class:`InputError` instead of printing its usage and exiting."""

    def __init__(self, prog: str, description: str, examples: Sequence[tuple[str, str]]):
        """``examples`` are pairs of a command line and what it does."""
        super().__init__(
            prog=prog,
            description=description,
            epilog="examples:\n" + "\n".join(f"  {line}\n      {meaning}" for line, meaning in examples),
            formatter_class=Formatter,
            allow_abbrev=False,
        )
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def add_argument(self, *names, **given):
        """As argparse's; of what may be given any number of times nothing is missing."""
        if given.get("nargs") == "*":
            given.setdefault("default", [])
        return super().add_argument(*names, **given)

    def add_shared(self, *names: str) -> None:
        """Some of `SHARED`."""
        for name in names:
            self.add_argument(name, **SHARED[name])

    def error(self, message: str) -> NoReturn:
        """Called by argparse for every wrong command line."""
        if "required: RECIPE" in message:
            raise InputError(
                f"give a recipe: a file, or a name such as in {self.prog} glm_lora; pet recipes lists them"
            )
        raise InputError(f"{message}; see {self.prog} --help")

    def answer_shell(self) -> None:
        """Where a shell asks what may stand on the line, answers it and ends the process."""
        if "_ARGCOMPLETE" in os.environ:
            from pet.cli.completion import offer

            offer(self)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse ``arguments``, options and positionals in any order; an unknown option is an error.

        What follows a lone ``--`` is taken as it is, also where it begins with a dash.
        """
        self.answer_shell()
        end = arguments.index("--") if "--" in arguments else len(arguments)
        given: list[str] = []
        for word in arguments[:end]:
            option = self._option_string_actions.get(given[-1]) if given else None
            if option and option.nargs is None and word.startswith("-") and not OPTION.fullmatch(word):
                given[-1] += f"={word}"  # -0.5,1: for argparse an option, unless it is a number or has a blank
            else:
                # a value of -- argparse would drop
                given.append(f"{word[:-2]}{LITERAL}--" if word.endswith("=--") else word)
        # argparse itself takes them for options again, once it mixes them with those before
        literal = [LITERAL + word if word.startswith("-") else word for word in arguments[end + 1 :]]
        for word in given:  # before argparse misses what a misspelt option was to give
            if OPTION.fullmatch(word) and not {word.partition("=")[0], word[:2]} & self._option_string_actions.keys():
                self.refuse(word)
        known, rest = self.parse_known_intermixed_args([*given, *literal])
        for name, value in vars(known).items():
            setattr(known, name, _unmarked(value))
        for word in _unmarked(rest):
            self.refuse(word)
        for action in self._actions:
            if {action.dest, action.metavar} & PATHS:
                given = getattr(known, action.dest)
                for name in given if isinstance(given, list) else [given] if isinstance(given, str) else []:
                    check_name(name)
        return known

    def refuse(self, word: str) -> NoReturn:
        """Raises what is wrong with a word that is no option and no argument of this command."""
        word, given, value = word.partition("=")
        options = [name for name in self._option_string_actions if name.startswith("--")]
        if given and "." in word:
            setting = f"{word}={value}"
            if self.takes_settings:
                raise InputError(f"{setting}: write overrides without dashes: {setting.lstrip('-')}")
            option = "--" + word.rpartition(".")[2].replace("_", "-")
            hint = f"; it has {option}" if option in options else ""
            raise InputError(f"{setting}: this command takes no settings of a recipe{hint}")
        if setting := self.setting_like(word):
            whose = "a setting" if "." in setting else "a job file's setting"
            raise InputError(f"there is no option {word!r}; write {whose} without dashes: {setting}=…")
        kind = "option" if word.startswith("-") else "argument"
        places = [action.metavar for action in self._actions if not action.option_strings]
        for ours in ELSEWHERE.get(word.replace("_", "-"), ()):
            if ours in (*options, *places):
                raise InputError(f"there is no {kind} {word!r}; here it is {ours}")
        raise InputError(f"there is no {kind} {word!r}{nearest(word, options)}")

    def idle(self, options: argparse.Namespace, why: str, *names: str) -> None:
        """Raises InputError where one of these was given in vain; ``why``: where it has no effect."""
        for action in self._actions:
            if action.dest in names and getattr(options, action.dest) != action.default:
                shown = action.option_strings[0] if action.option_strings else action.metavar
                raise InputError(f"{shown}: has no effect {why}")

    @property
    def takes_settings(self) -> bool:
        """Whether words of the form ``key.sub=value`` are read."""
        return any(action.dest in ("overrides", "words") for action in self._actions)

    def setting_like(self, word: str) -> str | None:
        """``train.steps`` for ``--steps``, in commands that take a recipe's settings; a job file's own name stays."""
        if not word.startswith("--") or not self.takes_settings:
            return None
        from pet.recipe.keys import known_keys
        from pet.recipe.source import dotted

        wanted = word.lstrip("-").replace("-", "_")
        found = [path for path in known_keys() if path[-1] == SYNONYMS.get(wanted, wanted)]
        if found:
            return dotted(min(found, key=lambda path: (len(path), path[0] != "train", path)))
        from pet.compat import axolotl, llama_factory

        return wanted if wanted in {**axolotl.TABLE, **llama_factory.TABLE} else None


def add_recipe(parser: Parser, several: bool = False) -> None:
    """The positionals of commands that take a recipe: its name or file, then overrides."""
    if several:
        parser.add_argument(
            "words",
            metavar="RECIPE",
            nargs="+",
            help="recipe files or bundled names; key.sub=value overrides a setting in all of them",
        )
    else:
        parser.add_argument("recipe", metavar="RECIPE", help="a recipe file, or a bundled recipe's name")
        parser.add_argument(
            "overrides",
            metavar="key.sub=value",
            nargs="*",
            help="override settings of the recipe, such as train.learning_rate=1e-3",
        )
