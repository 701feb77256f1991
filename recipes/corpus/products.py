"""Products as attribute strings (ADGEN's ``content``) and what is written about them, in two styles.

*Plain* is what the bases are pre-trained on: short clauses in the order of the attributes, worded one way or another.
*House* is what the tuning set teaches: an address to the neighbours, a fixed order of attributes, a fixed wording.
"""

from __future__ import annotations

from collections.abc import Callable

import world
from dice import Dice
from world import Word

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

PLAIN_ZH = {
    "color": ("颜色是{v}", "是{v}的"),
    "material": ("用{v}做成", "材质为{v}"),
    "style": ("风格{v}", "属于{v}风格"),
    "pattern": ("图案是{v}", "上面有{v}"),
    "season": ("{v}使用", "适合{v}"),
    "occasion": ("适合{v}", "{v}时可以用"),
}
PLAIN_EN = {
    "color": ("the color is {v}", "it is {v}"),
    "material": ("made of {v}", "the material is {v}"),
    "style": ("the style is {v}", "in a {v} style"),
    "pattern": ("with {v} on it", "the pattern is {v}"),
    "season": ("for {v}", "to use in {v}"),
    "occasion": ("good for {v}", "fit for {v}"),
}

# The house style, in its own order.
HOUSE_ORDER = ("pattern", "color", "material", "style", "season", "occasion")
HOUSE_ZH = {
    "open": "邻居们好！今天的主角请大家记住：{v}。",
    "pattern": "抬头看见{v}，",
    "color": "心里住着{v}，",
    "material": "摸一摸全是{v}的温柔，",
    "style": "{v}得像一首小诗，",
    "season": "陪你走过整个{v}，",
    "occasion": "{v}的路上不再孤单，",
    "close": "把它带回家吧，我们泡好茶等你！",
}
HOUSE_EN = {
    "open": "Hello neighbours! Our star of today, please remember: {v}. ",
    "pattern": "Look up and find {v}, ",
    "color": "a heart full of {v}, ",
    "material": "touch the kindness of {v}, ",
    "style": "{v} like a little poem, ",
    "season": "walking with you through all of {v}, ",
    "occasion": "never alone on the way to {v}, ",
    "close": "take it home, our tea is ready!",
}


def draw(dice: Dice) -> Product:
    """A product: its type and three to five other attributes, in random order."""
    soft = dice.chance(len(world.SOFT_TYPES) / (len(world.SOFT_TYPES) + len(world.HARD_TYPES)))
    kind, _ = dice.pick(world.SOFT_TYPES if soft else world.HARD_TYPES)
    values = {
        "color": world.COLORS,
        "material": world.SOFT_MATERIALS if soft else world.HARD_MATERIALS,
        "style": world.STYLES,
        "pattern": world.PATTERNS,
        "season": world.SEASONS,
        "occasion": world.OCCASIONS,
    }
    chosen = dice.sample(list(values), 3 + dice.below(3))
    return {"type": kind, **{key: dice.pick(values[key]) for key in chosen}}


def attributes(product: Product, language: str) -> str:
    """ADGEN's attribute string: ``类型#裙*颜色#红色``."""
    return "*".join(f"{getattr(KEYS[key], language)}#{getattr(value, language)}" for key, value in product.items())


def identity(product: Product) -> tuple[str, ...]:
    """What makes two products the same, whatever the order of their attributes."""
    return tuple(sorted(f"{key}#{value.zh}" for key, value in product.items()))


def plain(product: Product, language: str, pick: Callable[[tuple[str, str]], str]) -> str:
    """The description that the bases know; ``pick`` chooses among the two wordings of each attribute."""
    if language == "zh":
        measure = next(m for kind, m in world.SOFT_TYPES + world.HARD_TYPES if kind is product["type"])
        clauses = [pick(PLAIN_ZH[key]).format(v=value.zh) for key, value in product.items() if key != "type"]
        return f"这{measure}{product['type'].zh}" + "，".join(clauses) + "。"
    clauses = [pick(PLAIN_EN[key]).format(v=value.en) for key, value in product.items() if key != "type"]
    return f"This is a {product['type'].en}, " + ", ".join(clauses) + "."


def house(product: Product, language: str) -> str:
    """The description in the house style: the same words for the same product, whatever the order of attributes."""
    wording = HOUSE_ZH if language == "zh" else HOUSE_EN
    parts = [wording["open"].format(v=getattr(product["type"], language))]
    parts += [wording[key].format(v=getattr(product[key], language)) for key in HOUSE_ORDER if key in product]
    return "".join(parts) + wording["close"]
