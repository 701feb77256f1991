"""What the example scripts share: words for true and false, and arguments that are accepted without meaning."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from model_zoo.errors import InputError, similar
from pet.compat import end, leave
from pet.compat.mindformers.parallel import TABLE as PARALLEL
from pet.compat.mindformers.training_arguments import ENGINE
from pet.compat.translation import ANY_LAYOUT, picked, same
from pet.installation import tolerate_encodings
from pet.recipe.overrides import parse_override
from pet.recipe.translation import Ignored, Translation

WITHOUT_MEANING = {
    **ENGINE,
    **picked(PARALLEL, "vocab_emb_dp gradient_aggregation_group"),
    "graph_kernel_flags": ENGINE["enable_graph_kernel"],
    "strategy_load_checkpoint": ANY_LAYOUT,
    "num_workers": Ignored("data is read ahead in any case"),
    "predict_batch_size": Ignored("an answer does not depend on the others"),
    "trust_remote_code": Ignored("no code is loaded with a model"),
    "modal_type": Ignored("models here read text only"),
    "register_path": Ignored("the models here need no code of the job's own"),
}
"""Arguments of MindFormers' scripts that choose how its engine works; the results are the same without them."""


def boolean(text: str) -> bool:
    """``True``, ``true``, ``1``, ``yes`` and their opposites."""
    words = same(True, "true 1 yes") | same(False, "false 0 no")
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"expected True or False, not {text!r}")
    return words[text.lower()]


str2bool = boolean
"""As MindFormers calls it."""


def add_switch(parser: argparse.ArgumentParser, name: str, meaning: str, default: bool | None = None) -> None:
    """``--name``, ``--name True`` or ``--name False``."""
    parser.add_argument(f"--{name}", type=boolean, nargs="?", const=True, default=default, help=meaning)


def place_or_switch(text: str) -> bool | str:
    """A word for true or false, or else a path."""
    try:
        return boolean(text)
    except argparse.ArgumentTypeError:
        return text


def settings(words: Sequence[str]) -> dict[str, Any]:
    """``["a.b=1"]`` → ``{"a.b": 1}``, the values read as YAML.

    Raises:
        InputError: a word without ``=``, or a value that is no YAML.
    """
    found = {}
    for path, value, problems in map(parse_override, words):
        if problems:
            raise InputError(f"--options {problems[0]}")
        found[".".join(path)] = value
    return found


def read(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None, dotted: bool = False
) -> argparse.Namespace:
    """The arguments; those that have no effect are named in one warning.

    Args:
        parser: knows the others.
        arguments: default: the command line's.
        dotted: unknown ``--a.b value`` are added to ``options`` as ``a.b=value``.

    Raises:
        InputError: an argument that is not known; it might change the results.
    """
    parser.allow_abbrev = False  # --mode is no short form of --model_type
    known, left = parser.parse_known_args(arguments)
    t = Translation(parser.prog)
    own = [name.lstrip("-") for action in parser._actions for name in action.option_strings]
    while left:
        word = left.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            t.refuse(repr(word), "is not known")
            continue
        if not equals and left and not left[0].startswith("--"):
            value = left.pop(0)
        if dotted and "." in name:
            known.options.append(f"{name}={value}")
        elif name in WITHOUT_MEANING:
            t.ignore(f"--{name}", WITHOUT_MEANING[name].why)
        else:
            t.refuse(f"--{name}", f"is not known{similar(name, own)}")
    t.finish()
    return known


def start_again(workers: int, devices: Sequence[int] | None = None) -> int:
    """Runs this program again in so many processes; their exit code."""
    from pet.launching.launcher import launch

    return launch([sys.executable, *sys.orig_argv[1:]], workers, devices=devices)


def script(main: Callable[[], int | None]) -> None:
    """Runs a script's ``main``: what is wrong with the input is one message and exit code 2."""
    tolerate_encodings()
    try:
        code = main() or 0
    except InputError as error:
        end(error)
    leave(code)
