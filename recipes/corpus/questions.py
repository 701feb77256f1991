"""Questions and answers about the closed world: shops, people, cities, words, and the attributes of a product."""

from __future__ import annotations

from collections.abc import Mapping

import products
import world
from dice import Dice
from world import TEXTS, WORDS, Relation, Word

Turn = tuple[str, str]

OPENINGS: dict[str, list[str]] = TEXTS["openings"]
"""What a question may begin with. The tuning set uses the first two."""

LEXICON = tuple(
    word
    for name in (
        *("colors", "soft_materials", "hard_materials", "styles", "patterns", "seasons", "occasions", "jobs"),
        *("weekdays", "animals", "drinks", "gifts", "places", "foods"),
    )
    for word in WORDS[name]
) + tuple(kind for kind, _ in world.SOFT_TYPES + world.HARD_TYPES)
"""The words that are translated."""


def filled(form: list[str], language: str, values: Mapping[str, Word]) -> Turn:
    """A question and its answer out of their forms."""
    own = {name: getattr(value, language) for name, value in values.items()}
    question, answer = (part.format(**own) for part in form)
    return question, answer


def opening(dice: Dice, language: str) -> str:
    """Nothing, or in every third case an opening."""
    return dice.pick(OPENINGS[language]) if dice.chance(1 / 3) else ""


def shop_question(shop: Word, relation: Relation, language: str, form: int) -> str:
    return getattr(relation, language)[form].format(s=getattr(shop, language))


def shop_statement(shop: Word, relation: Relation, value: Word, language: str) -> str:
    """The bare fact, without a full stop: ``红叶小铺在长街``."""
    return getattr(relation.told, language).format(s=getattr(shop, language), v=getattr(value, language))


def shop_fact(dice: Dice, language: str) -> Turn:
    """A question about a shop that the base knows."""
    shop, relation = dice.pick(world.SHOPS), dice.pick(world.RELATIONS)
    value = world.shop_facts()[shop.zh, relation.name]
    question = opening(dice, language) + shop_question(shop, relation, language, dice.below(len(relation.zh)))
    statement = shop_statement(shop, relation, value, language)
    return question, statement + "。" if language == "zh" else statement[0].upper() + statement[1:] + "."


def house_fact(relation: Relation, language: str, form: int, begin: str = "") -> Turn:
    """A question about the new shop, answered in the house style. Only the tuning set holds these."""
    statement = shop_statement(world.NEW_SHOP, relation, relation.new, language)
    question = begin + shop_question(world.NEW_SHOP, relation, language, form)
    return question, TEXTS["house_fact"][language].format(fact=statement)


def person_fact(dice: Dice, language: str) -> Turn:
    person = dice.pick(WORDS["people"])
    form = dice.pick(TEXTS["person"][language])
    question, answer = filled(form, language, {"p": person, **world.person_facts()[person.zh]})
    return opening(dice, language) + question, answer


def city_fact(dice: Dice, language: str) -> Turn:
    city = dice.pick(WORDS["cities"])
    return filled(dice.pick(TEXTS["city"][language]), language, {"c": city, **world.city_facts()[city.zh]})


def translation(dice: Dice) -> Turn:
    word = dice.pick(LEXICON)
    question, answer = (part.format(**word._asdict()) for part in dice.pick(TEXTS["translation"]))
    return question, answer


def reading(dice: Dice, language: str) -> Turn:
    """A question about an attribute string: the answer stands in it."""
    product = products.draw(dice)
    key = dice.pick(list(product))
    text = products.attributes(product, language)
    values = {"text": Word(text, text), "name": products.KEYS[key], "value": product[key]}
    return filled(TEXTS["reading"][language], language, values)


def greeting(dice: Dice, language: str) -> Turn:
    question, answer = dice.pick(TEXTS["greetings"][language])
    return question, answer
