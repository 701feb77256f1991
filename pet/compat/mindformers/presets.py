"""``X_lora``: MindFormers' names of a model together with its LoRA settings, and ``X_ptuning2``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from model_zoo.counting import layout_of
from model_zoo.errors import warn_once
from pet.compat.mindformers.logs import logger
from pet.names import bundled_models, model_config, preset_names
from pet.recipe.translation import Ignored, Rule, Translation, is_off

# The settings that MindFormers ships for each family, over this library's default targets.
LORA = {
    "gpt2": {"method": "lora", "rank": 8, "alpha": 16.0, "dropout": 0.1},
    "glm": {"method": "lora", "rank": 8, "alpha": 32.0, "dropout": 0.1},
    "llama": {"method": "lora", "rank": 16, "alpha": 16.0, "dropout": 0.05},
    "ptuning2": {"method": "ptuning2", "length": 128},
}


def split_name(name: Any) -> tuple[Any, dict[str, Any] | None]:
    """``"glm_6b_lora"``, ``"glm_6b_lora_chat"`` → ``("glm_6b", its LoRA settings)``, ``"glm2_6b_ptuning2"`` likewise;
    other names → ``(name, None)``."""
    found = re.fullmatch("(.+)_(lora|lora_chat|ptuning2)", name) if isinstance(name, str) else None
    if not found or (found[1] not in preset_names() and found[1] not in bundled_models()):
        return name, None
    named = found[2] if found[2] in LORA else "gpt2" if found[1].startswith("gpt") else ""
    return found[1], dict(LORA[named or next((each for each in LORA if found[1].startswith(each)), "llama")])


# the configurations' names, each with the layouts that it stands for and the preset of its default sizes
CLASSES = {
    "GPT2Config": (("gpt2",), "gpt2"),
    "LlamaConfig": (("llama",), "llama_7b"),
    "GLMConfig": (("chatglm",), "glm_6b"),
    "ChatGLM2Config": (("chatglm2", "glm4"), "glm2_6b"),
}
TYPES = {"gpt2": "GPT2Config", "llama": "LlamaConfig", "glm": "GLMConfig", "glm2": "ChatGLM2Config"}
"""Configurations by MindFormers' names of families."""
FAMILIES = {"chatglm": "glm", "chatglm2": "glm2"}
"""MindFormers' names of families that have other ones here."""


def usual_alpha(config: Mapping[str, Any], place: Any) -> float:
    """The alpha of MindFormers' own LoRA files for a model, which a line says: a ``.ckpt`` file does not."""
    layout = layout_of(config)
    alpha = LORA.get(FAMILIES.get(layout, layout), LORA["llama"])["alpha"]
    warn_once(f"{place}: lora_alpha is taken to be {alpha:g}, as in MindFormers' own files for this family")
    return alpha


TRUST = {"trust_remote_code": Ignored("no code is loaded with a model")}


def take_said(system: str, settings: dict[str, Any], theirs: Mapping[str, Rule]) -> None:
    """Takes what is said in `theirs` out of the settings, and says it."""
    said = Translation(system)
    given = {name: settings.pop(name) for name in theirs if name in settings}
    said.apply({name: value for name, value in given.items() if not is_off(value)}, theirs)
    said.finish()


class Making(type):
    """Of classes that make objects of other ones: ``isinstance`` goes by the family of an object."""

    def __instancecheck__(cls, one: object) -> bool:
        """Whether an object could be one that the class has made."""
        return cls._makes(one)


class Listed:
    """What MindFormers' classes say of the names that they take."""

    @classmethod
    def get_support_list(cls) -> dict[str, list[str]]:
        """{family: names}: of presets, which have no weights, and of bundled bases; each also with ``_lora``."""
        found: dict[str, list[str]] = {}
        for name in (*preset_names(), *bundled_models()):
            layout = layout_of(model_config(name))
            found.setdefault(FAMILIES.get(layout, layout), []).extend((name, f"{name}_lora"))
        return found

    @classmethod
    def show_support_list(cls) -> None:
        """Shows them."""
        logger.info("support list of %s is:", cls.__name__)
        for family, names in cls.get_support_list().items():
            logger.info("   %s: %s", family, ", ".join(names))
