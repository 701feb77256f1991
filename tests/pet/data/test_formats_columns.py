"""Which columns of a row are read, and what is said of the others."""

import json
import re
from pathlib import Path

import pytest
from data_rows import CALL, CALLED, assistant, system, user

from model_zoo.errors import InputError
from pet.data import read_rows
from pet.data.columns import COLUMNS
from pet.data.preferences import pairs
from pet.data.token_rows import PACKED


def test_a_column_map_names_the_columns(write):
    path = write("rows.jsonl", [{"frage": "a", "antwort": "b", "input": "not asked for"}])
    (row,) = read_rows(path, columns={"prompt": "frage", "answer": "antwort"})
    assert row.messages == [user("a"), assistant("b")]
    path = write("mixed.jsonl", [{"instruction": "a", "input": "b", "reply": "c"}])
    (row,) = read_rows(path, format="alpaca", columns={"answer": "reply"})
    assert row.messages == [user("a\nb"), assistant("c")]
    path = write("named.jsonl", [{"input": "a", "output": "b"}])
    (row,) = read_rows(path, format="alpaca", columns={"prompt": "input"})  # which is then no further part of itself
    assert row.messages == [user("a"), assistant("b")]
    (row,) = read_rows(write("t.jsonl", [{"body": "x", "id": 3}]), columns={"text": "body"})
    assert row.text == "x"


@pytest.mark.parametrize("objective", [False, True])
def test_messages_with_names_of_their_own(write, objective):
    """What a message calls its parts and who says it, in rows that are read here or by an objective."""
    talk = [{"who": word, "said": word, "role": "x", "content": "y"} for word in ("Patient", "Doctor")]
    how = {"columns": {"messages": "talk", "role": "who", "content": "said"}}
    how["roles"] = {"Patient": "user", "Doctor": "assistant"}
    if objective:
        row = {"talk": talk[:1], "chosen": talk[1], "rejected": {**talk[1], "said": "No."}}
        (read,) = read_rows(write("a.jsonl", [row]), conversations=pairs, documents=2, **how)
        assert [one["content"] for one in read.others[0]] == ["Patient", "No."]
    else:
        (read,) = read_rows(write("a.jsonl", [{"talk": talk}]), **how)
    assert [(one["role"], one["content"]) for one in read.messages] == [("user", "Patient"), ("assistant", "Doctor")]


@pytest.mark.parametrize("words", [{"system": ""}, {"SYS": "", "human": "user"}], ids=str)
def test_messages_of_an_empty_role_are_left_out(write, words):
    said = [system("own"), user("a"), assistant("b")]
    if "SYS" in words:
        said = [{"from": "SYS", "value": "own"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    (read,) = read_rows(write("a.jsonl", [{"messages": said}]), roles=words)
    assert read.messages == [user("a"), assistant("b")]
    (read,) = read_rows(write("a.jsonl", [{"messages": said}]), roles=words, system="ours")
    assert read.messages[0] == system("ours")


def test_the_parts_of_a_content_are_kept_for_templates_that_write_each(write):
    said = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    (read,) = read_rows(write("a.jsonl", [{"messages": [said, assistant("c")]}]))
    assert read.messages[0] == user("ab") and read.messages[0]["content"].parts == ["a", "b"]


def test_a_system_message_for_rows_without(write):
    rows = [{"messages": [user("a"), assistant("b")]}, {"messages": [system("own"), user("a"), assistant("b")]}]
    first, second = read_rows(write("rows.jsonl", rows), system="ours")
    assert first.messages[0] == system("ours") and second.messages[0] == system("own")
    assert len(second.messages) == 3


def test_a_conversations_own_system_message_counts_before_its_columns(write):
    said = [system("own"), user("a"), assistant("b")]
    rows = [{"messages": said, "system": "column"}, {"messages": said[1:], "system": "column"}]
    first, second = read_rows(write("rows.jsonl", rows))
    assert first.messages == said and second.messages == [system("column"), *said[1:]]
    (compared,) = read_rows(
        write("pairs.jsonl", [{"prompt": said[:2], "system": "column", "chosen": "b", "rejected": "c"}]),
        conversations=pairs,
        documents=2,
    )
    assert compared.messages == said and compared.others == [[*said[:2], assistant("c")]]


def test_a_column_of_no_name_is_not_read(write):
    row = {"prompt": "a", "chosen": "b", "rejected": "c", "system": "s", "history": [["x", "y"]]}
    columns = {"system": "", "history": ""}
    (read,) = read_rows(write("pairs.jsonl", [row]), conversations=pairs, documents=2, columns=columns)
    assert read.messages == [user("a"), assistant("b")]
    row = {"instruction": "a", "output": "b", "system": "s"}
    (read,) = read_rows(write("rows.jsonl", [row]), format="alpaca", columns={"system": ""})
    assert read.messages == [user("a"), assistant("b")]


SAID = [user("a b"), assistant("c")]
HUMAN = "\n\nHuman: Q\n\nAssistant:"
COMPARED = {"chosen": "A", "rejected": "B"}
UNREAD = {
    "nothing": ({"messages": SAID, "input": "", "history": [], "system": None, "prompt": " "}, []),
    "parts of a question beside messages": (
        {"messages": SAID, "input": "a b", "history": [["a b", "c"]], "prompt": "a"},
        ["input", "history", "prompt"],
    ),
    "a system message of its own": ({"messages": [system("s"), *SAID], "system": "t"}, ["system"]),
    "the same system message": ({"messages": [system("s"), *SAID], "system": "s"}, []),
    "a system prompt of its own": ({"messages": [system("s"), *SAID], "system_prompt": "t"}, ["system_prompt"]),
    "two system messages": ({"messages": SAID, "system": "s", "system_prompt": "t"}, ["system_prompt"]),
    "whether an answer is desirable": ({"messages": SAID, "label": False}, ["label"]),
    "a text with its class": ({"text": "a", "label": 0}, ["label"]),
    "how much a row counts": ({"messages": SAID, "weight": 0.5}, ["weight"]),
    "two questions": ({"prompt": "a", "question": "b", "completion": "c", "response": "d"}, ["question", "response"]),
    "another format": ({"messages": SAID, "instruction": "d", "input_ids": [1]}, ["instruction", "input_ids"]),
    "a text beside its parts": ({"instruction": "a", "input": "b", "output": "c", "text": "a: b, c"}, ["text"]),
    "pictures": ({"messages": SAID, "images": ["a.png"], "videos": ["b.mp4"]}, ["images", "videos"]),
    "a question beside a text": ({"text": "a", "prompt": "b", "input": "c"}, ["prompt", "input"]),
    "a text beside tokens": ({"input_ids": [5], "text": "b"}, ["text"]),
    "answers that are compared": ({"messages": SAID, "chosen": "c", "rejected": "d"}, ["chosen", "rejected"]),
    "calls": ({"messages": CALLED, "tools": [CALL]}, []),
}
OF_PAIRS = {
    "the whole dialogues": (
        {"prompt": "Q", "chosen": [user("Q"), assistant("A")], "rejected": [user("Q"), assistant("B")]},
        [],
    ),
    "two prompts": ({"prompt": "Q", "question": "R", **COMPARED}, ["question"]),
    "turns in a text": ({"prompt": HUMAN, **COMPARED}, []),
    "all of a question": ({"instruction": "Q", "input": "I", "history": [["a", "b"]], "system": "s", **COMPARED}, []),
}  # fmt: skip


@pytest.mark.parametrize(("row", "names"), UNREAD.values(), ids=UNREAD)
def test_columns_that_are_not_read_are_known(write, row, names):
    (found,) = read_rows(write("rows.jsonl", [row]))
    assert found.unread == names


def test_columns_of_other_names_that_are_not_read_are_known(write):
    choice = {"question": "a", "A": "b", "B": "c", "C": "", "answer": "A", "explanation": None}
    (found,) = read_rows(write("rows.jsonl", [choice]))
    assert (found.unread, found.beside) == ([], ["A", "B"])


@pytest.mark.parametrize(("row", "names"), OF_PAIRS.values(), ids=OF_PAIRS)
def test_columns_of_pairs_that_are_not_read_are_known(write, row, names):
    (found,) = read_rows(write("rows.jsonl", [row]), conversations=pairs, documents=2)
    assert found.unread == names


def test_columns_that_are_not_to_be_read_are_not_missed(write):
    path = write("rows.jsonl", [{"turns": SAID, "input": "x", "system": "s", "history": [["y", "z"]]}])
    (found,) = read_rows(path, columns={"messages": "turns", "system": "", "history": ""})
    assert (found.messages, found.unread) == (SAID, ["input"])


def test_a_column_of_no_name_decides_no_format(write):
    row = {"messages": SAID, "instruction": "d", "output": "e"}
    (found,) = read_rows(write("rows.jsonl", [row]), columns={"messages": ""})
    assert (found.messages, found.unread) == ([user("d"), assistant("e")], [])
    with pytest.raises(InputError, match="the chat format needs the messages"):
        list(read_rows(write("rows.jsonl", [row]), format="chat", columns={"messages": ""}))


@pytest.mark.parametrize("names", [("instruction", "output"), ("prompt", "completion"), ("content", "summary")])
def test_questions_and_answers_have_tools(write, names):
    row = dict(zip(names, "ab", strict=True), tools=json.dumps([CALL]))
    (found,) = read_rows(write("rows.jsonl", [row]))
    assert found.tools == [CALL]


def test_questions_need_no_answer_when_predicting(write):
    path = write("rows.jsonl", [{"prompt": "a"}, {"prompt": "b", "completion": "c"}])
    assert [len(row.messages) for row in read_rows(path, answers=False)] == [1, 2]
    with pytest.raises(InputError):
        list(read_rows(path))


def test_wrong_columns_and_formats(write):
    path = write("rows.jsonl", [{"a": "1", "b": "2"}])
    with pytest.raises(InputError, match="no column 'c', which is to be the answer"):
        list(read_rows(path, columns={"prompt": "a", "answer": "c"}))
    with pytest.raises(InputError, match="exactly one of prompt, messages and text"):
        list(read_rows(path, columns={"answer": "b"}))
    with pytest.raises(InputError, match="the chat format has no prompt"):
        list(read_rows(path, format="chat", columns={"prompt": "a"}))
    with pytest.raises(InputError, match="did you mean 'alpaca'"):
        list(read_rows(path, format="alpca"))


def test_the_page_about_data_names_the_columns_of_the_table():
    page = (Path(__file__).parents[3] / "docs/data.md").read_text("utf-8")
    rows = dict(
        re.findall(r"^\| (chat|ShareGPT|alpaca|\w+ and \w+|ADGEN|Dolly|segments|text|tokens) \| (.*) \|$", page, re.M)
    )
    called = {
        "chat": "chat",
        "ShareGPT": "sharegpt",
        "alpaca": "alpaca",
        "ADGEN": "adgen",
        "Dolly": "dolly",
        "segments": "segments",
        "text": "text",
    }
    called |= {"prompt and completion": "prompt_completion", "tokens": "tokens", "input and target": "input_target"}
    assert rows.keys() == called.keys() and set(called.values()) == COLUMNS.keys()
    for form, row in rows.items():
        given = [role for role in COLUMNS[called[form]].items() if role[0] not in ("chat_template_kwargs", *PACKED)]
        assert set(re.findall(r"`(\w+)`", row)) == {name for _, role in given for name in role.names}
        assert set(re.findall(r"\[`(\w+)`", row)) == {role.names[0] for _, role in given if not role.required}
