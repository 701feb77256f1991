"""Samples of a tokenizer that has a token per character."""

import random


def letters_of(ids):
    return "".join({0: "_", 1: "<", 2: ">", 3: "|"}.get(number) or chr(number - 10) for number in ids)


def spelled(dataset):
    """Each sample as text, and the part of it that is learnt."""
    return [
        (letters_of(ids.tolist()), letters_of(ids[trained].tolist()))
        for ids, trained in map(dataset.__getitem__, range(len(dataset)))
    ]


CHAT = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"},
                      {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]}]  # fmt: skip


def some_rows(count, seed=0):
    seeded = random.Random(seed)
    words = ["今天", "天气", "很", "好", "the", "quick", "brown", "fox", "裙子", "上衣", "and", "1", "2", "3", "x"]

    def text():
        return " ".join(seeded.choices(words, k=seeded.randint(1, 30)))

    return [{"content": text(), "summary": text()} for _ in range(count)]
