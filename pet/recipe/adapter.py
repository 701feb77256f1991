"""The ``adapter`` section: one class per method, told apart by ``method``, made from the methods' own settings.

A setting's name, default, bounds and meaning stand in `adapters.settings`; the names are PEFT's where it has them, and
the same as the arguments of ``pet.apply_lora`` and its siblings.
"""

from __future__ import annotations

import functools
import operator
import types
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, Field, create_model

from adapters.schema import Settings
from adapters.settings import SETTINGS
from pet.recipe.fields import Layers, Names, RecipePath, Section

MANAGEMENT = {"name", "load"}
"""Keys of the section that are no settings of the method."""
FACTS = ("ge", "gt", "le", "lt", "min_length")
# What may be written shorter, or only in part, in a recipe.
IN_RECIPES = {
    list[str] | str | None: Names | None,
    list[str] | None: Names | None,
    list[int | str] | int | str | None: Layers | None,
    list[int] | dict[str, list[int]] | None: list[int] | None,
}


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
    """No adapter: every weight is trained."""

    method: Literal["none"] = Field(description="No adapter: every weight of the model is trained.")


def _correct(check):
    """A validator of pydantic's out of a method's own check."""

    def validator(value: Any) -> Any:
        if (wrong := check(value)) is not None:
            raise ValueError(wrong)
        return value

    return AfterValidator(validator)


def _field(hint: Any, field) -> tuple[Any, Any]:
    """A setting as pydantic declares it."""
    facts, default = dict(field.metadata), {"default": field.default}
    bounds = {name: facts[name] for name in FACTS if name in facts}
    hint = IN_RECIPES.get(hint, hint)
    kinds = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    mapping = next((kind for kind in kinds if get_origin(kind) is dict), None)
    if mapping is not None:  # nothing said is an empty one
        key, value = get_args(mapping)
        hint, default, bounds = dict[key, Annotated[value, Field(**bounds)]], {"default_factory": dict}, {}
    if "choices" in facts:
        hint = Literal[facts["choices"]]
    if "check" in facts:
        hint = Annotated[hint, _correct(facts["check"])]
    return hint, Field(**default, **bounds, description=facts["description"])


def section(cls: type[Settings]) -> type[AdapterSection]:
    """The section of a recipe for a method."""
    hints, fields = cls.hints(), cls.recipe_fields()
    common = [field for field in fields if field.name in Settings.__dataclass_fields__]
    own = [field for field in fields if field not in common]
    declared = {field.name: _field(hints[field.name], field) for field in common}
    declared["method"] = (Literal[cls.names()], Field(description=cls.summary))
    declared.update({field.name: _field(hints[field.name], field) for field in own})
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
