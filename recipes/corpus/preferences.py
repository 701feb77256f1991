"""Pairs of descriptions of one product. Both are true and known to the bases, which use either wording as often; the
first of the two wordings of every attribute is to be preferred to the second."""

from __future__ import annotations

from operator import itemgetter

import products
from dice import Dice


def pairs(seed: int, train: int = 240, held_out: int = 64) -> dict[str, list[dict[str, str]]]:
    """``train`` and ``held_out``; no product is in both, or twice in one."""
    dice, taken, rows = Dice(seed + 3), set(), []
    while len(rows) < train + held_out:
        language, product = "zh" if len(rows) % 5 < 3 else "en", products.draw(dice)
        if products.identity(product) in taken:
            continue
        taken.add(products.identity(product))
        preferred, other = (products.plain(product, language, itemgetter(number)) for number in (0, 1))
        rows.append({"prompt": products.attributes(product, language), "chosen": preferred, "rejected": other})
    return {"train": rows[:train], "held_out": rows[train:]}


def labelled(rows: list[dict[str, str]]) -> list[dict[str, str | bool]]:
    """One answer of each pair, the preferred one of every other pair, with a label."""
    names = ("chosen", "rejected")
    return [
        {"prompt": row["prompt"], "completion": row[names[number % 2]], "label": number % 2 == 0}
        for number, row in enumerate(rows)
    ]
