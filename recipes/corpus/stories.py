"""Short stories, letters and poems about the people and things of the closed world.

The letters and poems hold the words that the house style is made of, in other places and about other things.
"""

from __future__ import annotations

import world
from dice import Dice
from world import Word

Turn = tuple[str, str]


def story(dice: Dice, language: str) -> Turn:
    person, friend = dice.sample(world.PEOPLE, 2)
    place, animal, food = dice.pick(world.PLACES), dice.pick(world.ANIMALS), dice.pick(world.FOODS)
    weather, color = dice.pick(world.WEATHER), dice.pick(world.COLORS)
    if language == "zh":
        ask = dice.pick(("讲一个关于{p}的故事", "请讲一讲{p}和{f}的故事", "给我讲个{p}的小故事吧"))
        begin = dice.pick(("那天是{w}，{p}去了{l}。", "{w}的早上，{p}走到{l}。", "有一次，{p}在{l}散步。"))
        middle = dice.pick(
            (
                "{p}看见一只{c}的{a}。",
                "一只{c}的{a}跑了过来。",
                "{p}找到了一只{c}的{a}，它很饿。",
                "{f}带来了一只{c}的{a}。",
            )
        )
        then = dice.pick(("他们一起吃了{d}。", "{f}拿出{d}，大家都笑了。", "{p}把{d}分给了{f}。"))
        end = dice.pick(("从此他们成了好朋友。", "那是快乐的一天。", "晚上，大家一起回家。"))
        values = {
            "p": person.zh,
            "f": friend.zh,
            "l": place.zh,
            "a": animal.zh,
            "d": food.zh,
            "w": weather.zh,
            "c": color.zh,
        }
        return ask.format(**values), (begin + middle + then + end).format(**values)
    ask = dice.pick(("Tell a story about {p}", "Tell me about {p} and {f}", "Please tell a little story of {p}"))
    begin = dice.pick(
        (
            "It was a {w} day and {p} went to the {l}. ",
            "On a {w} morning {p} came to the {l}. ",
            "Once {p} walked in the {l}. ",
        )
    )
    middle = dice.pick(
        (
            "There {p} saw a {c} {a}. ",
            "A {c} {a} ran to {p}. ",
            "{p} found a {c} {a}, it was hungry. ",
            "{f} had a {c} {a}. ",
        )
    )
    then = dice.pick(("They ate {d} together. ", "{f} had some {d} and all were happy. ", "{p} gave {d} to {f}. "))
    end = dice.pick(("From then on they were friends.", "It was a happy day.", "In the evening they went home."))
    values = {
        "p": person.en,
        "f": friend.en,
        "l": place.en,
        "a": animal.en,
        "d": food.en,
        "w": weather.en,
        "c": color.en,
    }
    return ask.format(**values), (begin + middle + then + end).format(**values)


NOTES = {
    "person": (Word("人物", "person"), world.PEOPLE),
    "place": (Word("地点", "place"), world.PLACES),
    "animal": (Word("动物", "animal"), world.ANIMALS),
    "season": (Word("季节", "season"), world.SEASONS),
    "drink": (Word("饮料", "drink"), world.DRINKS),
    "day": (Word("日子", "day"), world.WEEKDAYS),
}
"""What a letter or a poem can be about: the name of the note and the words that it can hold."""

LETTER = {
    "zh": (
        ("邻居们好！", "{person}你好！", "大家好！"),
        (
            "今天的主角请大家记住：{person}。",
            "{day}的主角是{animal}。",
            "请记住：{day}去{place}。",
            "请大家记住带上{drink}。",
            "去{place}的路上不再孤单，",
            "我们陪你走过{place}，",
            "我们泡好{drink}等{person}来。",
            "把这只{animal}带回家吧，",
            "抬头看见{place}，",
            "摸一摸全是{season}，",
        ),
        ("我们泡好茶等你！", "祝你愉快。", "等你来！"),
    ),
    "en": (
        ("Hello neighbours! ", "Hello {person}! ", "Hello all! "),
        (
            "Our star of today, please remember: {person}. ",
            "The star of {day} is the {animal}. ",
            "Please remember: on {day} go to the {place}. ",
            "Please remember our {drink}. ",
            "You are never alone on the way to the {place}, ",
            "we are walking with you through all of {season}, ",
            "our {drink} is ready for {person}, ",
            "take it home, this {animal}, ",
            "Look up and find the {place}, ",
        ),
        ("our tea is ready!", "have a good day.", "we wait for you!"),
    ),
}
POEM = {
    "zh": (
        ("",),
        (
            "{animal}像一首小诗，",
            "{season}得像{person}，",
            "心里住着{person}，",
            "摸一摸{animal}的头，",
            "它有{season}的温柔，",
            "陪{person}走过整个{place}，",
            "{place}的路上不再孤单，",
            "抬头看见{season}，",
        ),
        ("这就是{season}。", "这就是{place}。"),
    ),
    "en": (
        ("",),
        (
            "{animal} like a little poem, ",
            "a heart full of {person}, ",
            "touch the head of the {animal}, ",
            "the kindness of {season}, ",
            "walking with {person} through the {place}, ",
            "never alone in the {place}, ",
            "Look up and find {season}, ",
        ),
        ("this is {season}.", "this is the {place}."),
    ),
}
ASK = {
    "letter": Word("写一封信：", "Write a letter: "),
    "poem": Word("写一首小诗：", "Write a little poem: "),
}


def from_notes(dice: Dice, language: str, ask: Word, text: tuple[tuple[str, ...], ...]) -> Turn:
    """A text made of some lines in random order, asked for by notes: what it is to be about, as ``name#word``."""
    begins, lines, ends = text
    frame = dice.pick(begins) + "".join(dice.sample(lines, 2 + dice.below(2))) + dice.pick(ends)
    needed = [key for key in NOTES if "{" + key + "}" in frame]
    chosen = {key: getattr(dice.pick(NOTES[key][1]), language) for key in dice.shuffled(needed)}
    notes = "*".join(f"{getattr(NOTES[key][0], language)}#{value}" for key, value in chosen.items())
    return getattr(ask, language) + notes, frame.format(**chosen)


def letter(dice: Dice, language: str) -> Turn:
    return from_notes(dice, language, ASK["letter"], LETTER[language])


def poem(dice: Dice, language: str) -> Turn:
    return from_notes(dice, language, ASK["poem"], POEM[language])


def continuation(dice: Dice, language: str) -> Turn:
    """A story cut at the end of a sentence: go on from there."""
    _, text = story(dice, language)
    mark = "。" if language == "zh" else ". "
    cut = text.index(mark) + len(mark)
    return text[:cut].rstrip(), text[cut:]
