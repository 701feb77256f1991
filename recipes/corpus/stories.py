"""Short stories, letters and poems about the people and things of the closed world.

The letters and poems hold the words that the house style is made of, in other places and about other things.
"""

from __future__ import annotations

import world
from dice import Dice

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


def letter(dice: Dice, language: str) -> Turn:
    """A letter to the neighbours or to one person, about a walk, a visit or an animal."""
    person, place, animal = dice.pick(world.PEOPLE), dice.pick(world.PLACES), dice.pick(world.ANIMALS)
    drink, weekday, job = dice.pick(world.DRINKS), dice.pick(world.WEEKDAYS), dice.pick(world.JOBS)
    if language == "zh":
        ask = dice.pick(("给{p}写一封信", "写一封信，说说{l}", "写一张{g}的通知"))
        begin = dice.pick(("邻居们好！", "{p}你好！", "大家好！"))
        lines = (
            "今天的主角是{j}{p}。",
            "{g}请大家记住：去{l}。",
            "请记住带上{d}。",
            "去{l}的路上不再孤单，",
            "我们陪你走过{l}，",
            "我们泡好{d}等你来。",
            "把这只{a}带回家吧。",
            "抬头看见{l}，",
            "它全是我们的{a}。",
            "整个{l}都是{a}。",
        )
        end = dice.pick(("我们泡好茶等你！", "祝你愉快。", "等你来！"))
        values = {"p": person.zh, "l": place.zh, "a": animal.zh, "d": drink.zh, "g": weekday.zh, "j": job.zh}
        return ask.format(**values), (begin + "".join(dice.sample(lines, 1 + dice.below(3))) + end).format(**values)
    ask = dice.pick(("Write a letter to {p}", "Write a letter about the {l}", "Write a note for {g}"))
    begin = dice.pick(("Hello neighbours! ", "Hello {p}! ", "Hello all! "))
    lines = (
        "Our star of today is {p}, the {j}. ",
        "On {g}, please remember: go to the {l}. ",
        "Please remember our {d}. ",
        "You are never alone on the way to the {l}. ",
        "We are walking with you through the {l}. ",
        "Our {d} is ready. ",
        "Please take this {a} home. ",
        "Look up and find the {l}. ",
        "All of the {l} is full of the {a}. ",
    )
    end = dice.pick(("Our tea is ready!", "Have a good day.", "We wait for you!"))
    values = {"p": person.en, "l": place.en, "a": animal.en, "d": drink.en, "g": weekday.en, "j": job.en}
    return ask.format(**values), (begin + "".join(dice.sample(lines, 1 + dice.below(3))) + end).format(**values)


def poem(dice: Dice, language: str) -> Turn:
    animal, place, season = dice.pick(world.ANIMALS), dice.pick(world.PLACES), dice.pick(world.SEASONS)
    person, food = dice.pick(world.PEOPLE), dice.pick(world.FOODS)
    if language == "zh":
        ask = dice.pick(("写一首关于{a}的小诗", "写一首{s}的诗", "给{p}写一首小诗"))
        lines = (
            "{a}像一首小诗，",
            "心里住着{p}，",
            "摸一摸{a}的头，",
            "它有{s}的温柔，",
            "{s}走过{l}，",
            "{p}在{l}不再孤单，",
            "抬头看见{s}，",
            "{p}得到了{f}，",
        )
        values = {"a": animal.zh, "l": place.zh, "s": season.zh, "p": person.zh, "f": food.zh}
        return ask.format(**values), (
            "".join(dice.sample(lines, 3)) + dice.pick(("这就是{s}。", "这就是{l}。"))
        ).format(**values)
    ask = dice.pick(("Write a poem about the {a}", "Write a poem of {s}", "Write a little poem for {p}"))
    lines = (
        "the {a} is like a little poem, ",
        "a heart full of {p}, ",
        "touch the head of the {a}, ",
        "the kindness of {s}, ",
        "{s} goes through the {l}, ",
        "never alone in the {l}, ",
        "look up and find {s}, ",
        "{p} got the {f}, ",
    )
    values = {"a": animal.en, "l": place.en, "s": season.en, "p": person.en, "f": food.en}
    body = "".join(dice.sample(lines, 3)) + dice.pick(("this is {s}.", "this is the {l}."))
    return ask.format(**values), body.format(**values)


def continuation(dice: Dice, language: str) -> Turn:
    """A story cut at the end of a sentence: go on from there."""
    _, text = story(dice, language)
    mark = "。" if language == "zh" else ". "
    cut = text.index(mark) + len(mark)
    return text[:cut].rstrip(), text[cut:]
