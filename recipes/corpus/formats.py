"""The tuning task in each format that ``pet`` reads: larger alpaca and chat sets, and an example of a few rows each."""

from __future__ import annotations

import csv
import io
import json

import corpus
import questions
import world
from dice import Dice
from world import TEXTS

Row = dict[str, str]


def _language(text: str) -> str:
    return "en" if text.isascii() else "zh"


def alpaca(rows: list[Row]) -> list[dict[str, str]]:
    """``instruction``, ``input``, ``output``: the attribute string is the input, a question has none."""
    result = []
    for row in rows:
        content, summary = row["content"], row["summary"]
        if "#" in content:
            result.append({"instruction": TEXTS["describe"][_language(content)], "input": content, "output": summary})
        else:
            result.append({"instruction": content, "input": "", "output": summary})
    return result


def conversations(seed: int, count: int, held_out: bool) -> list[list[dict[str, str]]]:
    """Visits to the new shop: a greeting, one or two questions, or a product."""
    dice = Dice(seed + 2)
    taken: set[tuple[str, ...]] = set()
    result = []
    for index in range(count):
        language = "zh" if index % 5 < 3 else "en"
        turns = [questions.greeting(dice, language)] if dice.chance(0.4) else []
        for relation in dice.sample(world.RELATIONS, 1 + dice.below(2)):
            openings = questions.OPENINGS[language]
            begin = dice.pick(openings[2:] if held_out else ("", *openings[:2]))
            turns.append(questions.house_fact(relation, language, dice.below(len(relation.zh)), begin))
        if dice.chance(0.4):
            row = corpus.house_products(dice, 1, taken)[0]
            turns.append((row["content"], row["summary"]))
        result.append(corpus.messages(turns))
    return result


def sharegpt(conversation: list[dict[str, str]]) -> dict:
    names = {"user": "human", "assistant": "gpt"}
    turns = [{"from": names[message["role"]], "value": message["content"]} for message in conversation]
    return {"conversations": turns}


def completion_csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("prompt", "completion"))
    writer.writerows((row["content"], row["summary"]) for row in rows)
    return text.getvalue()


def jsonl(rows: list) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _json(rows: list) -> str:
    return json.dumps(rows, ensure_ascii=False, indent=1) + "\n"


def files(seed: int) -> dict[str, str]:
    tuning = corpus.tuning(seed)
    train, held_out = tuning["train"], tuning["held_out"]
    chat = conversations(seed, 240, held_out=False)
    chat_held_out = conversations(seed + 1000, 40, held_out=True)
    few = train[:20]
    return {
        "alpaca/train.json": _json(alpaca(train)),
        "alpaca/held_out.json": _json(alpaca(held_out)),
        "chat/train.jsonl": jsonl([{"messages": conversation} for conversation in chat]),
        "chat/held_out.jsonl": jsonl([{"messages": conversation} for conversation in chat_held_out]),
        "formats/alpaca.json": _json(alpaca(few)),
        "formats/adgen.jsonl": jsonl(few),
        "formats/prompt_completion.csv": completion_csv(few),
        "formats/chat.jsonl": jsonl([{"messages": conversation} for conversation in chat[:20]]),
        "formats/sharegpt.json": _json([sharegpt(conversation) for conversation in chat[:20]]),
        "formats/text.txt": "".join(row["summary"] + "\n" for row in few),
    }
