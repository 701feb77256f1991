"""Short stories, letters and poems about the people and things of the closed world.

The letters and poems hold the words that the house style is made of, in other places and about other things.
"""

from __future__ import annotations

from dice import Dice
from world import TEXTS, WORDS, Word

Turn = tuple[str, str]

NOTES = {
    "person": (Word("人物", "person"), WORDS["people"]),
    "place": (Word("地点", "place"), WORDS["places"]),
    "animal": (Word("动物", "animal"), WORDS["animals"]),
    "season": (Word("季节", "season"), WORDS["seasons"]),
    "drink": (Word("饮料", "drink"), WORDS["drinks"]),
    "day": (Word("日子", "day"), WORDS["weekdays"]),
}
"""What a letter or a poem can be about: the name of the note and the words that it can hold."""


def story(dice: Dice, language: str) -> Turn:
    forms = TEXTS["story"][language]
    chosen = dict(zip("pf", dice.sample(WORDS["people"], 2), strict=True))
    for mark, name in (("l", "places"), ("a", "animals"), ("d", "foods"), ("w", "weather"), ("c", "colors")):
        chosen[mark] = dice.pick(WORDS[name])
    ask, *parts = (dice.pick(forms[part]) for part in ("ask", "begin", "middle", "then", "end"))
    values = {mark: getattr(word, language) for mark, word in chosen.items()}
    return ask.format(**values), "".join(parts).format(**values)


def from_notes(dice: Dice, language: str, kind: str) -> Turn:
    """A text made of some lines in random order, asked for by notes: what it is to be about, as ``name#word``."""
    text = TEXTS[kind][language]
    frame = dice.pick(text["begins"]) + "".join(dice.sample(text["lines"], 2 + dice.below(2))) + dice.pick(text["ends"])
    needed = [key for key in NOTES if "{" + key + "}" in frame]
    chosen = {key: getattr(dice.pick(NOTES[key][1]), language) for key in dice.shuffled(needed)}
    notes = "*".join(f"{getattr(NOTES[key][0], language)}#{value}" for key, value in chosen.items())
    return text["ask"] + notes, frame.format(**chosen)


def letter(dice: Dice, language: str) -> Turn:
    return from_notes(dice, language, "letter")


def poem(dice: Dice, language: str) -> Turn:
    return from_notes(dice, language, "poem")


def continuation(dice: Dice, language: str) -> Turn:
    """A story cut at the end of a sentence: go on from there."""
    _, text = story(dice, language)
    mark = "。" if language == "zh" else ". "
    cut = text.index(mark) + len(mark)
    return text[:cut].rstrip(), text[cut:]
