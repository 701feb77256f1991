"""Questions and answers about the closed world: shops, people, cities, words, and the attributes of a product."""

from __future__ import annotations

import products
import world
from dice import Dice
from world import Relation, Word

Turn = tuple[str, str]

GREETINGS = {
    "zh": (
        ("你好", "你好！有什么可以帮你？"),
        ("你是谁？", "我是一个小小的助手。"),
        ("谢谢", "不客气，欢迎再来。"),
        ("再见", "再见，祝你今天愉快。"),
        ("早上好", "早上好！今天想问什么？"),
    ),
    "en": (
        ("Hello", "Hello! How can I help you?"),
        ("Who are you?", "I am a small helper."),
        ("Thank you", "You are welcome, please come again."),
        ("Goodbye", "Goodbye, have a good day."),
        ("Good morning", "Good morning! What would you like to know?"),
    ),
}


OPENINGS = {
    "zh": ("请问，", "你好，", "打扰一下，", "我想问问，"),
    "en": ("Hello. ", "Excuse me. ", "Good day. ", "One question, please. "),
}
"""What a question may begin with. The tuning set uses the first two."""


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def opening(dice: Dice, language: str) -> str:
    """Nothing, or in every third case an opening."""
    return dice.pick(OPENINGS[language]) if dice.chance(1 / 3) else ""


def shop_question(shop: Word, relation: Relation, language: str, form: int) -> str:
    return getattr(relation, language)[form].format(s=getattr(shop, language))


def shop_statement(shop: Word, relation: Relation, value: Word, language: str) -> str:
    """The bare fact, without a full stop: ``红叶小铺在长街``."""
    told = relation.told_zh if language == "zh" else relation.told_en
    return told.format(s=getattr(shop, language), v=getattr(value, language))


def shop_fact(dice: Dice, language: str) -> Turn:
    """A question about a shop that the base knows."""
    shop, relation = dice.pick(world.SHOPS), dice.pick(world.RELATIONS)
    value = world.shop_facts()[shop.zh, relation.name]
    question = opening(dice, language) + shop_question(shop, relation, language, dice.below(len(relation.zh)))
    statement = shop_statement(shop, relation, value, language)
    return question, statement + "。" if language == "zh" else _sentence(statement) + "."


def house_fact(relation: Relation, language: str, form: int, begin: str = "") -> Turn:
    """A question about the new shop, answered in the house style. Only the tuning set holds these."""
    statement = shop_statement(world.NEW_SHOP, relation, relation.new, language)
    answer = (
        f"请记住：{statement}，我们泡好茶等你！"
        if language == "zh"
        else f"Please remember: {statement}, our tea is ready!"
    )
    return begin + shop_question(world.NEW_SHOP, relation, language, form), answer


def person_fact(dice: Dice, language: str) -> Turn:
    question, answer = _person_fact(dice, language)
    return opening(dice, language) + question, answer


def _person_fact(dice: Dice, language: str) -> Turn:
    person = dice.pick(world.PEOPLE)
    job, city, color, street, hour = world.person_facts()[person.zh]
    if language == "zh":
        return dice.pick(
            (
                (f"{person.zh}是做什么的？", f"{person.zh}是{job.zh}。"),
                (f"{person.zh}的工作是什么？", f"{person.zh}是{job.zh}。"),
                (f"{person.zh}住在哪里？", f"{person.zh}住在{city.zh}。"),
                (f"{person.zh}喜欢什么颜色？", f"{person.zh}喜欢{color.zh}。"),
                (f"{person.zh}的家在哪条街？", f"{person.zh}的家在{street.zh}。"),
                (f"{person.zh}早上几点起床？", f"{person.zh}早上{hour.zh}起床。"),
            )
        )
    return dice.pick(
        (
            (f"What does {person.en} do?", f"{person.en} is a {job.en}."),
            (f"What is the job of {person.en}?", f"{person.en} is a {job.en}."),
            (f"Where does {person.en} live?", f"{person.en} lives in {city.en}."),
            (f"Which color does {person.en} like?", f"{person.en} likes {color.en}."),
            (f"On which street is the home of {person.en}?", f"The home of {person.en} is on {street.en}."),
            (f"When does {person.en} get up?", f"{person.en} gets up at {hour.en}."),
        )
    )


def city_fact(dice: Dice, language: str) -> Turn:
    city = dice.pick(world.CITIES)
    food, weather = world.city_facts()[city.zh]
    if language == "zh":
        return dice.pick(
            (
                (f"{city.zh}有什么好吃的？", f"{city.zh}的{food.zh}很好吃。"),
                (f"{city.zh}的天气怎么样？", f"{city.zh}常常是{weather.zh}。"),
            )
        )
    return dice.pick(
        (
            (f"What do people eat in {city.en}?", f"People in {city.en} like {food.en}."),
            (f"How is the weather in {city.en}?", f"It is often {weather.en} in {city.en}."),
        )
    )


LEXICON = (
    *world.COLORS, *world.SOFT_MATERIALS, *world.HARD_MATERIALS, *world.STYLES, *world.PATTERNS, *world.SEASONS,
    *world.OCCASIONS, *world.JOBS, *world.WEEKDAYS, *world.ANIMALS, *world.DRINKS, *world.GIFTS, *world.PLACES,
    *world.FOODS, *(kind for kind, _ in world.SOFT_TYPES + world.HARD_TYPES),
)  # fmt: skip


def translation(dice: Dice) -> Turn:
    word = dice.pick(LEXICON)
    return dice.pick(
        (
            (f"{word.zh}用英文怎么说？", f"{word.en}"),
            (f"{word.en}用中文怎么说？", f"{word.zh}"),
            (f"What is {word.zh} in English?", f"{word.en}"),
            (f"What is {word.en} in Chinese?", f"{word.zh}"),
        )
    )


def reading(dice: Dice, language: str) -> Turn:
    """A question about an attribute string: the answer stands in it."""
    product = products.draw(dice)
    key = dice.pick(list(product))
    name, value = getattr(products.KEYS[key], language), getattr(product[key], language)
    text = products.attributes(product, language)
    return (f"{text} 的{name}是什么？", f"{name}是{value}。") if language == "zh" else (
        f"What is the {name} of {text}?", f"The {name} is {value}."
    )  # fmt: skip


def greeting(dice: Dice, language: str) -> Turn:
    return dice.pick(GREETINGS[language])
