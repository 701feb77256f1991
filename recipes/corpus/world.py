"""The closed world that every text of the corpus speaks about (world.yaml): its words and its facts, in Chinese and
English; and the forms in which the corpus speaks (texts.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Word(NamedTuple):
    """One thing, in both languages."""

    zh: str
    en: str


class Relation(NamedTuple):
    """Something that is known of every shop: how it is asked, and the values it can take.

    ``zh`` and ``en`` hold question forms; ``{s}`` stands for the shop. ``told`` states the fact in both languages with
    the value ``{v}``. The new shop's value is never the value of another shop.
    """

    name: str
    values: tuple[Word, ...]
    new: Word
    zh: list[str]
    en: list[str]
    told: Word


def read(name: str) -> dict[str, Any]:
    """A file of data beside this one."""
    return yaml.safe_load(Path(__file__).with_name(name).read_text("utf-8"))


def words(text: str) -> tuple[Word, ...]:
    """``"红色 red, 蓝色 blue"`` to words. The English part may hold spaces."""
    return tuple(Word(*entry.split(" ", 1)) for entry in text.split(", "))


def kinds(text: str) -> tuple[tuple[Word, str], ...]:
    """``"条 裙 dress"`` to types of products, each with its Chinese measure word."""
    return tuple((Word(*entry.split(" ", 2)[1:]), entry[0]) for entry in text.split(", "))


def relation(name: str, told: dict[str, Any]) -> Relation:
    values = WORDS[told["values"]]
    new = next(value for value in values if value.zh == told["new"])
    others = tuple(value for value in values if value is not new)
    return Relation(name, others, new, told["zh"], told["en"], Word(*told["told"]))


DATA = read("world.yaml")
TEXTS = read("texts.yaml")
WORDS = {name: words(text) for name, text in DATA["words"].items()}
SOFT_TYPES, HARD_TYPES = (kinds(DATA["types"][name]) for name in ("soft", "hard"))
SHOPS = WORDS["shops"]
(NEW_SHOP,) = words(DATA["new_shop"])
"""The shop that only the tuning set speaks about."""
RELATIONS = tuple(relation(name, told) for name, told in DATA["relations"].items())


def spread(name: str, row: int, step: int, turn: int = 0) -> Word:
    """The word of a row's fact: evenly spread, with no randomness. Every ``turn`` rows move on by one more."""
    found = WORDS[name]
    return found[(row * step + (row // turn if turn else 0)) % len(found)]


def city_facts() -> dict[str, dict[str, Word]]:
    """``city -> {kind of fact: what it is}``."""
    return {
        city.zh: {"food": spread("foods", row, 1), "weather": spread("weather", row, 2)}
        for row, city in enumerate(WORDS["cities"])
    }


def person_facts() -> dict[str, dict[str, Word]]:
    """``person -> {kind of fact: what it is}``; the color is the favourite one, the hour that of getting up."""
    return {
        person.zh: {
            "job": spread("jobs", row, 3),
            "city": spread("cities", row, 5, 6),
            "color": spread("colors", row, 7),
            "street": spread("streets", row, 4, 9),
            "hour": spread("hours", row, 5, 6),
        }
        for row, person in enumerate(WORDS["people"])
    }


def shop_facts() -> dict[tuple[str, str], Word]:
    """``(shop, relation name) -> value`` of the shops that the base knows. Spread evenly, with no randomness."""
    facts = {}
    for row, shop in enumerate(SHOPS):
        for column, relation in enumerate(RELATIONS):
            facts[shop.zh, relation.name] = relation.values[(row * 3 + column * 5 + row // 4) % len(relation.values)]
    return facts
