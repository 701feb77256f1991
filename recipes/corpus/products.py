"""Products as attribute strings (ADGEN's ``content``) and what is written about them, in two styles.

*Plain* is what the bases are pre-trained on: short clauses in the order of the attributes, worded one way or another.
*House* is what the tuning set teaches: an address to the neighbours, a fixed order of attributes, a fixed wording.
"""

from __future__ import annotations

from collections.abc import Callable

import world
from dice import Dice
from world import TEXTS, WORDS, Word

# attribute name in both languages -> key
KEYS = {
    "type": Word("类型", "type"),
    "color": Word("颜色", "color"),
    "material": Word("材质", "material"),
    "style": Word("风格", "style"),
    "pattern": Word("图案", "pattern"),
    "season": Word("季节", "season"),
    "occasion": Word("场合", "occasion"),
}

Product = dict[str, Word]

HOUSE_ORDER = ("pattern", "color", "material", "style", "season", "occasion")


def draw(dice: Dice) -> Product:
    """A product: its type and three to five other attributes, in random order."""
    soft = dice.chance(len(world.SOFT_TYPES) / (len(world.SOFT_TYPES) + len(world.HARD_TYPES)))
    kind, _ = dice.pick(world.SOFT_TYPES if soft else world.HARD_TYPES)
    values = {
        "color": WORDS["colors"],
        "material": WORDS["soft_materials" if soft else "hard_materials"],
        "style": WORDS["styles"],
        "pattern": WORDS["patterns"],
        "season": WORDS["seasons"],
        "occasion": WORDS["occasions"],
    }
    chosen = dice.sample(list(values), 3 + dice.below(3))
    return {"type": kind, **{key: dice.pick(values[key]) for key in chosen}}


def attributes(product: Product, language: str) -> str:
    """ADGEN's attribute string: ``类型#裙*颜色#红色``."""
    return "*".join(f"{getattr(KEYS[key], language)}#{getattr(value, language)}" for key, value in product.items())


def identity(product: Product) -> tuple[str, ...]:
    """What makes two products the same, whatever the order of their attributes."""
    return tuple(sorted(f"{key}#{value.zh}" for key, value in product.items()))


def plain(product: Product, language: str, pick: Callable[[list[str]], str]) -> str:
    """The description that the bases know; ``pick`` chooses among the two wordings of each attribute."""
    wording = TEXTS["plain"][language]
    values = {key: getattr(value, language) for key, value in product.items()}
    measure = next(m for kind, m in world.SOFT_TYPES + world.HARD_TYPES if kind is product["type"])
    clauses = [pick(wording[key]).format(v=value) for key, value in values.items() if key != "type"]
    begin, between, end = wording["frame"]
    return begin.format(m=measure, v=values["type"]) + between.join(clauses) + end


def house(product: Product, language: str) -> str:
    """The description in the house style: the same words for the same product, whatever the order of attributes."""
    wording = TEXTS["house"][language]
    parts = [wording["open"].format(v=getattr(product["type"], language))]
    parts += [wording[key].format(v=getattr(product[key], language)) for key in HOUSE_ORDER if key in product]
    return "".join(parts) + wording["close"]
