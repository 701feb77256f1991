"""The ``adapter`` section: one class per method, told apart by ``method``, made from the methods' own settings.

A setting's name, default, bounds and meaning stand in `adapters.settings`; the names are PEFT's where it has them, and
the same as the arguments of ``pet.apply_lora`` and its siblings.
"""

from __future__ import annotations

import functools
import operator
from typing import Annotated, Literal

from pydantic import Field, create_model

from adapters.schema import Settings
from adapters.settings import SETTINGS
from pet.recipe.fields import RecipePath, Section, setting_field

MANAGEMENT = {"name", "load", "trained"}
"""Keys of the section that are no settings of the method."""


class AdapterSection(Section):
    """Settings that every method has."""

    name: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="What the adapter is called on the model, where several can live side by side.",
    )
    load: RecipePath | None = Field(
        None,
        description="A saved adapter directory to go on training from. Settings that are given here must be its own.",
    )


class Full(Section):
    """No adapter: every weight is trained, or those that are named."""

    method: Literal["none"] = Field(description="No adapter: every weight of the model is trained.")
    trained: list[str] | None = Field(
        None,
        min_length=1,
        description="The weights that are trained, the others stay as they are: names of tensors, globs "
        "(`model.layers.31.*`) or regular expressions (`re:…`). Unset: all.",
    )


def section(cls: type[Settings]) -> type[AdapterSection]:
    """The section of a recipe for a method."""
    hints, fields = cls.hints(), cls.recipe_fields()
    common = [field for field in fields if field.name in Settings.__dataclass_fields__]
    own = [field for field in fields if field not in common]
    declared = {field.name: setting_field(hints[field.name], field) for field in common}
    declared["method"] = (Literal[cls.names()], Field(description=cls.summary))
    declared.update({field.name: setting_field(hints[field.name], field) for field in own})
    return create_model(cls.__name__, __base__=AdapterSection, __doc__=cls.__doc__, **declared)


SECTIONS = tuple(section(cls) for cls in SETTINGS)
Adapter = Annotated[functools.reduce(operator.or_, (*SECTIONS, Full)), Field(discriminator="method")]


def recipe_method(section, seed: int, tokenizer=None):
    """The method's configuration for a recipe's adapter section; None for full fine-tuning.

    Args:
        seed: of what starts random.
        tokenizer: reads the section's ``init_text``; without one it is left out, as it changes no shape.
    """
    from adapters.apply import text_settings
    from adapters.methods import method_config

    values = section.model_dump(exclude=MANAGEMENT)
    text = values.pop("init_text", None)
    return method_config({**values, **(text_settings(text, tokenizer) if tokenizer is not None else {})}, seed)
