"""What MindFormers' scripts that prepare data and checkpoints import of its other modules."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path

from model_zoo.errors import InputError
from pet.compat.prompts import LLAMA_FACTORY

PAIRS = ("()", "[]", "{}", '""', "''")
TOGETHER = (("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" \N{DEGREE SIGN} ", "\N{DEGREE SIGN}"))
TOGETHER += ((" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s"))


def wikitext_clean(string: str) -> str:
    """WikiText's text without the spaces that its tokens have around them, to the letter as MindFormers gives it."""
    string = string.replace("s '", "s'")
    string = re.sub("/' [0-9]/", "/'[0-9]/", string)
    for mark in "-,.":
        string = string.replace(f" @{mark}@ ", mark)
    for mark in ":;.!?,":
        string = string.replace(f" {mark} ", f"{mark} ")
    for left, right in PAIRS:
        opens, closes = re.escape(left), re.escape(right)
        string = re.sub(rf"{opens}\s*([^{closes}]*?)\s*{closes}", rf"{left}\1{right}", string)
    for apart, joined in TOGETHER:
        string = string.replace(apart, joined)
    return string


class Conversation:
    """Vicuna's prompt, as scripts fill it.

    Attributes:
        roles: names of who asks and who answers.
        messages: what they say, ``[role, text]`` each.
        sep, sep2: what ends a question, and an answer.
    """

    roles, sep, sep2 = ("USER", "ASSISTANT"), " ", "</s>"

    def __init__(self) -> None:
        self.system, self.messages = LLAMA_FACTORY["vicuna"].default, []

    def append_message(self, role: str, message: str | None) -> None:
        """Adds what one of them says; nothing, where the model is to say it."""
        self.messages.append([role, message])

    def get_prompt(self) -> str:
        """The text."""
        ends = (self.sep, self.sep2)
        said = (
            f"{role}: {said}{ends[at % 2]}" if said else f"{role}:" for at, (role, said) in enumerate(self.messages)
        )
        return self.system + self.sep + "".join(said)

    def copy(self) -> Conversation:
        """Another one that says the same."""
        return copy.deepcopy(self)


def get_default_conv_template(model_name: str) -> Conversation:
    """The prompt of a model's name.

    Raises:
        InputError: another one than Vicuna's.
    """
    if not re.search("vicuna|output", model_name.lower()):
        raise InputError(f"get_default_conv_template: {model_name!r}; only vicuna's prompt is here, see data.template")
    return Conversation()


def get_strategy(path: str | os.PathLike | None, rank_id: int | None = None) -> str | None:
    """A strategy file; of a directory of them, the one that they are merged into there. None of nothing.

    Raises:
        InputError: there is no such file.
    """
    if not path or path == "None":
        return None
    place = Path(path)
    if not place.exists():
        raise InputError(f"{place}: no such strategy file or directory")
    if place.is_file():
        return str(place)
    import mindspore as ms

    merged = place / f"merged_ckpt_strategy{f'_{rank_id}' if rank_id else ''}.ckpt"
    merged.unlink(missing_ok=True)
    ms.merge_pipeline_strategys(str(place), str(merged))
    return str(merged)
