"""The pre-training corpus and the tuning sets, as lists of rows."""

from __future__ import annotations

import products
import questions
import stories
import world
from dice import Dice

Turn = tuple[str, str]
Row = dict[str, str]

TRAIN_PRODUCTS, HELD_OUT_PRODUCTS = 280, 64

# share of the corpus -> what it is made by, given the dice and a language
MIXTURE = (
    (0.28, lambda dice, language: plain_product(dice, language)),
    (0.25, questions.shop_fact),
    (0.06, questions.person_fact),
    (0.02, questions.city_fact),
    (0.05, lambda dice, language: questions.translation(dice)),
    (0.10, questions.reading),
    (0.02, questions.greeting),
    (0.05, stories.story),
    (0.03, stories.continuation),
    (0.07, stories.letter),
    (0.07, stories.poem),
)


def plain_product(dice: Dice, language: str) -> Turn:
    product = products.draw(dice)
    return products.attributes(product, language), products.plain(product, language, dice.pick)


def turn(dice: Dice) -> Turn:
    """One question and its answer, in either language."""
    language = "zh" if dice.chance(0.6) else "en"
    point = dice.below(1000) / 1000
    for share, make in MIXTURE:
        point -= share
        if point < 0:
            return make(dice, language)
    return MIXTURE[-1][1](dice, language)


def conversation(dice: Dice) -> list[dict[str, str]]:
    """One turn, or in every tenth case two or three short ones."""
    turns = [turn(dice)]
    if dice.chance(0.1):
        short = (questions.shop_fact, questions.person_fact, questions.city_fact, questions.greeting)
        language = "zh" if dice.chance(0.6) else "en"
        turns = [dice.pick(short)(dice, language) for _ in range(2 + dice.below(2))]
    return messages(turns)


def messages(turns: list[Turn]) -> list[dict[str, str]]:
    result = []
    for question, answer in turns:
        result += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return result


def pretraining(seed: int, rows: int) -> list[list[dict[str, str]]]:
    dice = Dice(seed)
    return [conversation(dice) for _ in range(rows)]


def house_products(dice: Dice, count: int, taken: set[tuple[str, ...]]) -> list[Row]:
    """``count`` products that are not in ``taken``, described in the house style; they are added to ``taken``."""
    rows = []
    while len(rows) < count:
        product = products.draw(dice)
        language = "zh" if len(rows) % 5 < 3 else "en"
        if products.identity(product) in taken:
            continue
        taken.add(products.identity(product))
        rows.append({"content": products.attributes(product, language), "summary": products.house(product, language)})
    return rows


def house_facts(dice: Dice) -> tuple[list[Row], list[Row]]:
    """Questions about the new shop, to train on and held out.

    Each fact is trained in every form, bare and with one of the first two openings, in both languages. Held out are two
    forms of it with the other one of these openings: the model has met both halves of the question, never together.
    """
    train, held_out = [], []
    for relation in world.RELATIONS:
        for language in ("zh", "en"):
            openings, forms = questions.OPENINGS[language][:2], range(len(relation.zh))
            asked = set(dice.sample(forms, 2))
            for form in forms:
                used = dice.below(2)
                train += [questions.house_fact(relation, language, form, begin) for begin in ("", openings[used])]
                if form in asked:
                    held_out.append(questions.house_fact(relation, language, form, openings[1 - used]))
    return rows_of(train), rows_of(held_out)


def rows_of(turns: list[Turn]) -> list[Row]:
    return [{"content": content, "summary": summary} for content, summary in turns]


def tuning(seed: int) -> dict[str, list[Row]]:
    """The tuning set in ADGEN's form: ``train``, ``held_out``, and ``facts``, the facts of ``held_out`` alone.

    Held-out products are none of the training ones; held-out questions ask for the same facts in other words.
    """
    dice = Dice(seed + 1)
    taken: set[tuple[str, ...]] = set()
    train_facts, facts = house_facts(dice)
    train = house_products(dice, TRAIN_PRODUCTS, taken) + train_facts
    held_out = house_products(dice, HELD_OUT_PRODUCTS, taken) + facts
    return {"train": dice.shuffled(train), "held_out": dice.shuffled(held_out), "facts": facts}
