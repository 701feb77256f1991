"""Recipes: the YAML files that say what a run is. ``load`` reads one, ``Recipe`` is what comes out.

The names are looked up when they are first used, so that importing this package does not import pydantic.
"""

from pet.lazy import names_of

__getattr__, __dir__ = names_of(
    __name__,
    {
        "pet.recipe.loading": ("load",),
        "pet.recipe.schema": ("Recipe",),
        "pet.recipe.show": ("dump", "json_schema"),
    },
)
