"""Every format becomes messages, text or tokens; everything that is wrong is said at once, with file and line."""

import bz2
import gzip
import json
import lzma
import os
import random
import re
import string
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from model_zoo.errors import InputError
from pet.data import read_rows, readers as readers_module
from pet.data.binary import without_nulls
from pet.data.columns import COLUMNS
from pet.data.formats import read_file
from pet.data.preferences import pairs
from pet.data.readers import read_records
from pet.data.records import Problems
from pet.data.token_rows import PACKED


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


DEEP_CALL = {"type": "function", "function": {"name": "f", "arguments": "[" * 100000}}


def system(content):
    return {"role": "system", "content": content}


CALL = {"type": "function", "function": {"name": "find", "arguments": {"what": "shop"}}}
CALLED = [user("a"), {**assistant(""), "tool_calls": [CALL]}, {"role": "tool", "content": "12"}, assistant("b")]
ROWS = {
    "tool calls": (
        {
            "messages": [
                user("a"),
                {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "1"}]},
                {"role": "tool", "content": "12"},
                assistant("b"),
            ]
        },
        [CALLED[0], {**assistant(""), "tool_calls": [{**CALL, "id": "1"}]}, *CALLED[2:]],
    ),
    "tool calls with arguments in JSON": (
        {
            "messages": [
                user("a"),
                {"role": "assistant", "tool_calls": [{"name": "find", "arguments": '{"what": "shop"}'}]},
                {"role": "tool", "content": "12"},
                assistant("b"),
            ]
        },
        CALLED,
    ),
    "sharegpt with calls": (
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": '{"name": "find", "arguments": {"what": "shop"}}'},
                {"from": "observation", "value": "12"},
                {"from": "gpt", "value": "b"},
            ]
        },
        CALLED,
    ),
    "alpaca": ({"instruction": "Add.", "input": "1+1", "output": "2"}, [user("Add.\n1+1"), assistant("2")]),
    "a question with an input": (
        {"question": "Add.", "input": "1+1", "answer": "2"},
        [user("Add.\n1+1"), assistant("2")],
    ),
    "ADGEN with an input": (
        {"content": "Add.", "input": "1+1", "summary": "2"},
        [user("Add.\n1+1"), assistant("2")],
    ),
    "a call as a function": (
        {
            "messages": [
                user("a"),
                {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": "find", "arguments": '{"what": "shop"}'},
                },
                {"role": "function", "content": "12"},
                assistant("b"),
            ]
        },
        CALLED,
    ),
    "alpaca without input": ({"instruction": "Hi", "output": "Ho"}, [user("Hi"), assistant("Ho")]),
    "alpaca with history": (
        {"instruction": "c", "input": "", "output": "d", "history": [["a", "b"]], "system": "s"},
        [system("s"), user("a"), assistant("b"), user("c"), assistant("d")],
    ),
    "adgen": ({"content": "类型#裙", "summary": "好看"}, [user("类型#裙"), assistant("好看")]),
    "adgen with history": (
        {"content": "c", "summary": "d", "history": [["a", "b"]]},
        [user("a"), assistant("b"), user("c"), assistant("d")],
    ),
    "dolly": (
        {"instruction": "Who?", "context": "Ada did.", "response": "Ada.", "category": "closed_qa"},
        [user("Who?\nAda did."), assistant("Ada.")],
    ),
    "dolly without context": ({"instruction": "Hi", "context": "", "response": "Ho"}, [user("Hi"), assistant("Ho")]),
    "dolly with input": ({"instruction": "a", "input": "b", "response": "c"}, [user("a\nb"), assistant("c")]),
    "an instruction beside a prompt": (
        {"instruction": "a", "prompt": "p", "response": "c"},
        [user("p"), assistant("c")],
    ),
    "prompt_completion": ({"prompt": "p", "completion": "c"}, [user("p"), assistant("c")]),
    "lists of messages": (
        {"prompt": [system("s"), user("a"), assistant("b"), user("c")], "completion": [assistant("d")]},
        [system("s"), user("a"), {**assistant("b"), "weight": 0}, user("c"), assistant("d")],
    ),
    "texts in brackets": (
        {"prompt": "[1, 2", "completion": '[{"name": "d"}]'},
        [user("[1, 2"), assistant('[{"name": "d"}]')],
    ),
    "prompt and response": ({"prompt": "p", "response": "c"}, [user("p"), assistant("c")]),
    "question and answer": ({"question": "p", "answer": "c"}, [user("p"), assistant("c")]),
    "chat": (
        {"messages": [system("s"), user("a"), assistant("b"), user("c"), assistant("d")]},
        [system("s"), user("a"), assistant("b"), user("c"), assistant("d")],
    ),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "s"},
        [system("s"), user("a"), assistant("b")],
    ),
    "text in parts": (
        {"messages": [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), assistant("c")]},
        [user("ab"), assistant("c")],
    ),
    "weights": (
        {"messages": [user("a"), {**assistant("b"), "weight": 0}, user("c"), {**assistant("d"), "weight": 1}]},
        [user("a"), {**assistant("b"), "weight": 0}, user("c"), assistant("d")],
    ),
    "sharegpt with weights of all": (
        {
            "conversations": [
                {"from": "system", "value": "s", "weight": None},
                {"from": "human", "value": "a", "weight": 0.0},
                {"from": "gpt", "value": "b", "weight": 1.0},
            ]
        },
        [system("s"), user("a"), assistant("b")],
    ),
    "ms-swift's and xtuner's loss": (
        {"messages": [user("a"), {**assistant("b"), "loss": False}, user("c"), {**assistant("d"), "loss": True}]},
        [user("a"), {**assistant("b"), "weight": 0}, user("c"), assistant("d")],
    ),
    "LLaMA-Factory's newer form": (
        {
            "messages": [
                {**user([{"type": "text", "value": "a"}]), "loss_weight": 0.0},
                {**assistant([{"type": "text", "value": "b"}]), "loss_weight": 0.0},
                {**user([{"type": "text", "value": "c"}]), "loss_weight": 0.0},
                {**assistant([{"type": "text", "value": "d"}, {"type": "text", "value": "e"}]), "loss_weight": 1.0},
            ]
        },
        [user("a"), {**assistant("b"), "weight": 0}, user("c"), assistant("de")],
    ),
    "OpenOrca": (
        {"id": "t0", "system_prompt": "s", "question": "a", "response": "b"},
        [system("s"), user("a"), assistant("b")],
    ),
    "OpenOrca without a system prompt": (
        {"id": "t0", "system_prompt": "", "question": "a", "response": "b"},
        [user("a"), assistant("b")],
    ),
    "Firefly's questions with answers": (
        {"conversation": [{"human": "a", "assistant": "b"}, {"human": "c", "assistant": "d"}], "category": "x"},
        [user("a"), assistant("b"), user("c"), assistant("d")],
    ),
    "XTuner's questions with answers": (
        {"conversation": [{"system": "s", "input": "a", "output": "b"}, {"input": "c", "output": "d", "loss": 0}]},
        [system("s"), user("a"), assistant("b"), user("c"), {**assistant("d"), "weight": 0}],
    ),
    "Firefly and pCLUE": ({"kind": "NLI", "input": "a", "target": "b"}, [user("a"), assistant("b")]),
    "Open Assistant's role": (
        {"messages": [{"role": "prompter", "content": "a"}, assistant("b")]},
        [user("a"), assistant("b")],
    ),
    "ms-swift's roles of calls": (
        {
            "messages": [
                user("a"),
                {"role": "tool_call", "content": '{"name": "find", "arguments": {"what": "shop"}}'},
                {"role": "tool_response", "content": "12"},
                assistant("b"),
            ]
        },
        CALLED,
    ),
    "sharegpt with train": (
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "train": False}]},
        [user("a"), {**assistant("b"), "weight": 0}],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_becomes_messages(write, name):
    row, messages = ROWS[name]
    path = write("rows.jsonl", [row])
    (found,) = read_rows(path)
    assert found.messages == messages and found.text is None and found.tokens is None and found.line == 1


@pytest.mark.parametrize("name", ROWS)
def test_json_and_csv_say_the_same_as_jsonl(write, name):
    row, messages = ROWS[name]
    as_list = write("rows.json", json.dumps([row, row], indent=2))
    assert [found.messages for found in read_rows(as_list)] == [messages, messages]
    values = [value if isinstance(value, str) else json.dumps(value) for value in row.values()]
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in line) for line in (list(row), values)]
    (found,) = read_rows(write("rows.csv", "\n".join(quoted) + "\n"))
    assert found.messages == messages


def test_text_and_tokens(write):
    (row,) = read_rows(write("rows.jsonl", [{"text": "a\nb"}]))
    assert row.text == "a\nb" and row.messages is None
    rows = [
        {"input_ids": [5, 6, 7]},
        {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]},
        {"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]},
    ]
    found = [row.tokens for row in read_rows(write("tokens.jsonl", rows))]
    assert found == [([5, 6, 7], [True] * 3), ([5, 6, 7], [False, True, True]), ([5, 6], [True, True])]


def test_answers_within_a_prompt_are_learnt_where_everything_is(write):
    rows = [{"prompt": [user("a"), assistant("b"), user("c")], "completion": [assistant("d")]}]
    (row,) = read_rows(write("rows.jsonl", rows), train_on="all")
    assert row.messages == [user("a"), assistant("b"), user("c"), assistant("d")]


def test_plain_text_is_divided_at_blank_lines(write):
    rows = list(read_rows(write("a.txt", "one\ntwo\n\n  \nthree\r\n")))
    assert [(row.text, row.line) for row in rows] == [("one\ntwo", 1), ("three", 5)]
    # without blank lines between texts each line is one
    rows = list(read_rows(write("b.txt", "one\ntwo\n\n")))
    assert [(row.text, row.line) for row in rows] == [("one", 1), ("two", 2)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"], ids=ascii)
def test_lines_end_as_python_s_do(write, end):
    """And as a program writes CR LF that takes LF for the end."""
    by_blank = write("a.txt", "one\ntwo\n\nthree\n".replace("\n", end).encode())
    by_line = write("b.txt", "one\u2028\x0btwo\nthree".replace("\n", end).encode())
    objects = write("c.jsonl", '{"text": "one"}\n\n{"text": "two"}\n'.replace("\n", end).encode())
    expected = {by_blank: [("one\ntwo", 1), ("three", 4)], by_line: [("one\u2028\x0btwo", 1), ("three", 2)]}
    for path, rows in {**expected, objects: [("one", 1), ("two", 3)]}.items():
        found = list(read_rows(path))
        assert [(row.text, row.line) for row in found] == rows
        later = list(read_file(path, Problems(), place=found[0].place))
        assert [(row.text, row.line) for row in later] == rows[1:]


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


def test_a_directory_is_all_its_data_files(write, tmp_path):
    write("set/b.jsonl", [{"text": "2"}])
    write("set/a.json", '[{"text": "1"}]')
    write("set/deeper/c.txt", "3")
    write("set/README.md", "no data")
    write("set/.hidden.jsonl", "rubbish")
    write("set/.git/x.jsonl", "rubbish")
    assert [row.text for row in read_rows(tmp_path / "set")] == ["1", "2", "3"]
    assert [row.text for row in read_rows([tmp_path / "set/b.jsonl", tmp_path / "set/a.json"])] == ["2", "1"]


def test_a_byte_order_mark_is_passed_over(write):
    for name, content in {
        "a.jsonl": '{"text": "x"}\n',
        "a.json": '[{"text": "x"}]',
        "a.csv": "text\nx\n",
        "a.txt": "x",
    }.items():
        (row,) = read_rows(write(name, b"\xef\xbb\xbf" + content.encode()))
        assert row.text == "x"


def test_json_lines_called_json(write):
    path = write("train.json", '{"content": "a", "summary": "b"}\n{"content": "c", "summary": "d"}\n')
    assert [row.line for row in read_rows(path)] == [1, 2]


def test_mindrecord(tmp_path):
    from mindspore.mindrecord import FileWriter

    def store(name, schema, rows, parts=1):
        writer = FileWriter(str(tmp_path / name), shard_num=parts)
        writer.add_schema(schema, "rows")
        writer.write_raw_data(rows)
        writer.commit()

    store("a.mindrecord", {"instruction": {"type": "string"}, "output": {"type": "string"}},
          [{"instruction": "你", "output": "b"}, {"instruction": "c", "output": "d"}])  # fmt: skip
    found = [row.messages for row in read_rows(tmp_path / "a.mindrecord", format="mindrecord")]
    assert found == [[user("你"), assistant("b")], [user("c"), assistant("d")]]

    rows = [{"input_ids": np.arange(5, dtype=np.int32) + n} for n in range(6)]
    (tmp_path / "set").mkdir()
    store("set/b.mindrecord", {"input_ids": {"type": "int32", "shape": [-1]}}, rows, parts=2)
    found = sorted(row.tokens[0] for row in read_rows(tmp_path / "set"))
    assert found == [list(range(n, n + 5)) for n in range(6)], "a set in two parts is read once"

    (tmp_path / "a.jsonl").write_text('{"instruction": "a", "output": "b"}')
    with pytest.raises(InputError, match=r"a\.jsonl: data\.format is mindrecord, and by its name this is jsonl"):
        list(read_rows(tmp_path / "a.jsonl", format="mindrecord"))
    (tmp_path / "c.mindrecord").write_bytes(b"rubbish")
    with pytest.raises(InputError, match=r"c\.mindrecord: not a readable MindRecord file"):
        list(read_rows(tmp_path / "c.mindrecord"))


GOOD = '{"instruction": "a", "output": "b"}'
BROKEN = {
    "broken": (f'{GOOD}\n{{"instruction": "a", \n', ":2: broken JSON"),
    "cut off": (f'{GOOD}\n{{"instruction": "a', ":2: broken JSON: Unterminated string at column 17"),
    "not an object": (f"{GOOD}\n[1]\n", ":2: expected a JSON object, found a list"),
    "missing column": (f'{GOOD}\n{{"instruction": "a"}}\n', ":2: no column 'output', which the alpaca format needs"),
    "misspelt column": (f'{GOOD}\n{{"instruction": "a", "ouput": "b"}}\n', "did you mean 'ouput'?"),
    "wrong type": (
        f'{GOOD}\n{{"instruction": "a", "output": 5}}\n',
        ":2: column 'output': expected a string, found a number",
    ),
    "null": (f'{GOOD}\n{{"instruction": "a", "output": null}}\n', ":2: column 'output': expected a string, found null"),
    "null for a list": ('{"messages": null}', ":1: column 'messages': expected a list, found null"),
    "a message of null": (
        '{"messages": [{"role": "user", "content": null}]}',
        ":1: message 1: expected role and content (or from and value), found 'role', 'content' of null",
    ),
    "parts of an answer": (
        '{"messages": [{"role": "user", "content": "a"}, '
        '{"role": "assistant", "content": "b c", "train_detail": [{"begin_offset": 0, "end_offset": 1}]}]}',
        ":1: message 2: train_detail: parts of an answer cannot be learnt; only whole ones, by weight",
    ),
    "another role": (
        '{"messages": [{"role": "Chatbot", "content": "a"}]}',
        "data.roles says who that is: {Chatbot: assistant}, for one",
    ),
    "another part": (
        '{"messages": [{"role": "user", "text": "a"}]}',
        "found 'role', 'text'; data.columns names others: {role: …, content: …}",
    ),
    "unknown format": ('{"x": 1, "y": 2}\n', ":1: the format is not known by these columns: 'x', 'y'"),
    "history": (f'{GOOD}\n{{"instruction": "a", "output": "b", "history": ["x"]}}\n', "turn 1: expected a pair"),
    "role": (
        '{"messages": [{"role": "usr", "content": "a"}]}',
        ":1: message 1: role 'usr' is not known (did you mean 'user'?)",
    ),
    "two questions": (
        json.dumps({"messages": [user("a"), user("b")]}),
        "message 2 is from 'user' after 'user'; expected 'assistant'",
    ),
    "late system": (json.dumps({"messages": [user("a"), system("b")]}), "message 2 is from 'system'"),
    "no answer": (json.dumps({"messages": [user("a")]}), "ends with a message from 'user'"),
    "no messages": ('{"messages": []}', "the conversation has no messages"),
    "no role": (
        '{"messages": [{"content": "a"}]}',
        "message 1: expected role and content (or from and value), found 'content'",
    ),
    "number as content": (
        '{"messages": [{"role": "user", "content": 1}]}',
        "content: expected a string, found a number",
    ),
    "string as message": (
        '{"messages": ["hello"]}',
        "message 1: expected an object with role and content, found a string",
    ),
    "image": (
        json.dumps({"messages": [user([{"type": "image", "image": "a.png"}]), assistant("b")]}),
        "message 1: content: expected a string or parts of the type 'text', found 'image'",
    ),
    "a part without a text": (
        json.dumps({"messages": [user([{"type": "text", "content": "a"}]), assistant("b")]}),
        "expected a string or parts of the type 'text', found one without a text",
    ),
    "a call that is no object": (
        json.dumps({"messages": [user("a"), {**assistant(""), "tool_calls": ["find"]}]}),
        "message 2: tool_calls: expected objects with a function's name and arguments",
    ),
    "half a weight": (
        json.dumps({"messages": [user("a"), {**assistant("b"), "weight": 0.5}]}),
        "message 2: weight: expected 0 or 1, or true or false, found 0.5",
    ),
    "half a loss": (
        json.dumps({"messages": [user("a"), {**assistant("b"), "loss": 0.5}]}),
        "message 2: loss: expected 0 or 1, or true or false, found 0.5",
    ),
    "a question to learn": (
        json.dumps({"messages": [{**user("a"), "train": True}, assistant("b")]}),
        "message 1: train: only answers can be learnt, this is from 'user'",
    ),
    "two flags": (
        json.dumps({"messages": [user("a"), {**assistant("b"), "weight": 0, "training": True}]}),
        "message 2: weight and training contradict each other",
    ),
    "object as messages": ('{"messages": {"a": 1}}', "column 'messages': expected a list, found an object"),
    "uneven columns": ('{"messages": {"role": ["user"], "content": []}}', "expected a list, found an object"),
    "half a surrogate in a name": (
        '{"text": "a", "\\ud800": 1}',
        "rows.jsonl:1: column '\\ud800': half of a surrogate pair",
    ),
    "half a surrogate": ('{"text": "\\ud800"}', "half of a surrogate pair at character 0"),
    "token": ('{"input_ids": [1, "2"]}', "column 'input_ids': expected a list of whole numbers"),
    "documents in one row": (
        '{"input_ids": [1, 2, 3], "position_ids": [0, 1, 0]}',
        "column 'position_ids': 2 documents in one row; expected a row for each",
    ),
    "a mask of documents": (
        '{"input_ids": [1, 2], "attention_mask": [[1, 0], [0, 1]]}',
        "column 'attention_mask' hides tokens from later ones; expected a row for each document",
    ),
    "lengths of documents": ('{"input_ids": [1, 2], "seq_lengths": [1, 1]}', "column 'seq_lengths': 2 documents"),
    "huge token": ('{"input_ids": [1, 4294967296]}', "4294967296 is no token id"),
    "negative token": ('{"input_ids": [1, -2]}', "-2 is no token id"),
    "labels": ('{"input_ids": [1, 2], "labels": [1]}', "column 'labels' has 1 values, input_ids has 2"),
    "nothing but padding": (
        '{"input_ids": [1, 2], "attention_mask": [0, 0]}',
        "column 'attention_mask' leaves no token",
    ),
    "deep": ('{"text": ' + "[" * 100000 + "\n", ":1: broken JSON: nested too deeply"),
    "deep in a text": (json.dumps({"messages": "[" * 100000}), "a list in JSON: nested too deeply"),
    "deep arguments": (
        json.dumps({"messages": [user("a"), {**assistant("b"), "tool_calls": [DEEP_CALL]}]}),
        "message 2: tool_calls: arguments: expected JSON: nested too deeply",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_line(write, name):
    content, message = BROKEN[name]
    path = write("rows.jsonl", content)
    with pytest.raises(InputError) as caught:
        list(read_rows(path))
    assert message in str(caught.value) and str(path) in str(caught.value)


BROKEN_FILES = {
    "empty.jsonl": (b"", "the file is empty"),
    "blank.json": (b" \n", "blank.json: the file has no rows"),
    "indented.json": (b'\n{\n "data": [\n', "indented.json:2: an object over several lines; expected one per line"),
    "none.json": (b"[]", "the file has no rows"),
    "open.json": (b'[{"text": "a"},\n{"text": "b"}\n', "open.json:3: the list is not closed"),
    "comma.json": (b'[{"text": "a"}\n{"text": "b"}]', "comma.json:2: broken JSON: expected ',' or ']', found '{'"),
    "value.json": (b'[{"text": "a"},\n\n{"text": b}]', "value.json:3: broken JSON"),
    "after.json": (b'[{"text": "a"}]\nx', "after.json:2: text after the end"),
    "number.json": (b'[{"text": "a"}, 12]', "number.json:1: expected a JSON object, found a number"),
    "latin.jsonl": ('{"text": "a"}\n{"text": "é"}\n'.encode("latin-1"), "latin.jsonl:2: not UTF-8: byte 0xe9"),
    "latin.csv": ("text\né\n".encode("latin-1"), "latin.csv: not UTF-8"),
    "shown.csv": (
        b"prompt,completion\n\"[{'role': 'user', 'content': 'a'}]\",b\n",
        "shown.csv:2: column 'prompt': expected messages in JSON, found a list as Python shows it",
    ),
    "more.csv": (b"instruction,output\na,b\na,b,c\n", "more.csv:3: expected 2 values as in the first row, found 3"),
    "twice.csv": (b"text,text\na,b\n", "twice.csv:1: the first row must name each column once"),
    **dict.fromkeys(
        ("pointer.txt", "pointer.parquet", "pointer.jsonl.gz"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "only a Git LFS pointer"),
    ),
    "UTF-16.csv": ("text\na\n".encode("utf-16"), "UTF-16.csv: is UTF-16; save the file as UTF-8"),
    "UTF-16 without a mark.txt": ("a\nb\n".encode("utf-16-le"), "mark.txt:1: holds a NUL byte"),
    "UTF-16 without a mark.csv": ("text\nb\n".encode("utf-16-le"), "mark.csv:1: holds a NUL byte"),
    "after a power failure.jsonl": (b'{"text": "a"}\n' + bytes(9), "failure.jsonl:2: holds a NUL byte"),
    "packed.jsonl": (
        gzip.compress(b'{"text": "a"}\n'),
        "packed.jsonl: is compressed by gzip; its name must end in .gz",
    ),
    "table.csv": (b"PAR1xxxx", "table.csv: is Parquet; its name must end in .parquet"),
    "unnamed.csv": (b",\na,b\n", "unnamed.csv:1: the first row must name each column once"),
    "line.csv": (b"\ntext\na\n", "line.csv:1: the first row must name each column once, found an empty line"),
    "semicolon.csv": (b"instruction;output\na;b\n", "semicolon.csv:1: columns must be separated by ','; found one"),
    "comma.tsv": (b"instruction,output\na,b\n", "'instruction,output', with ',' in its name"),
    "quote.csv": (b'text\n"a\n', "quote.csv:2: broken CSV"),
    "quotes within.tsv": (
        b'text\tlabel\n"Good," he said.\t1\n',
        "within.tsv:2: broken CSV: '\t' expected after '\"'; a quotation mark that is text is doubled",
    ),
    "quotes of texts.tsv": (
        b'text\tlabel\na\t0\n"b\t1\nc\t0\nso he said"\t1\nd\t0\n',
        "texts.tsv:3: 3 lines, each a row by itself, would be one row; a quotation mark that is text is doubled",
    ),
    "instances.json": (
        b'{"type": "text2text", "instances": [{"input": "a", "output": "b"}]}',
        "instances.json:1: the format is not known by these columns: 'type', 'instances'",
    ),
    "within.json": (b'{"instances": [{"input": "a"}]}', "; where 'instances' holds the rows, save that list alone"),
    "header.csv": (b"text\n", "the file has no rows"),
    "blank.txt": (b"\n\n", "the file has no rows"),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_what_is_wrong_with_a_file(write, name):
    content, message = BROKEN_FILES[name]
    with pytest.raises(InputError) as caught:
        list(read_rows(write(name, content)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    {
        "a.jsonl": f"\n{GOOD}\n \n{GOOD}\n\n",
        "a list.jsonl": f"[{GOOD},\n{GOOD}]",
        "a.ndjson": f"{GOOD}\n{GOOD}\n",
        "empty lines.csv": "instruction,output\n\na,b\n\na,b\n\n",
        "pandas.csv": ",instruction,output\n0,a,b\n1,a,b\n",
        "spreadsheet.csv": "instruction,output,,\na,b,,\na,b,,\n",
        "quoted.tsv": 'instruction\toutput\n"a"\t"b"\na\tb\n',
        "sequence.jsonl": 2 * (json.dumps({"messages": {"role": ["user", "assistant"], "content": ["a", "b"]}}) + "\n"),
    }.items(),
)
def test_what_other_programs_write_besides_is_passed_over(write, name, content):
    assert [row.messages for row in read_rows(write(name, content))] == 2 * [[user("a"), assistant("b")]]


def test_texts_about_data_are_no_data_and_nothing_is_read_twice(write, tmp_path):
    texts = ("LICENSE", "requirements", "md5", "SHA256SUMS", "checksums", "vocab")
    for name in ("set/rows.jsonl", *(f"set/{text}.txt" for text in texts)):
        write(name, GOOD)
    assert len(list(read_rows(tmp_path / "set"))) == 1
    write("set/rows.jsonl.gz", gzip.compress(GOOD.encode()))
    with pytest.raises(InputError, match=r"holds rows\.jsonl\.gz and rows\.jsonl, which would be the same rows"):
        list(read_rows(tmp_path / "set"))


def test_a_pattern_is_the_files_that_it_matches(write, tmp_path):
    for name in ("in [one]/a.jsonl", "in [one]/b.jsonl", "in [one]/c.csv", "in [one]/deep/d.jsonl"):
        write(name, GOOD if name.endswith("l") else "text\nc\n")
    found = {
        pattern: len(list(read_rows(tmp_path / "in [one]" / pattern))) for pattern in ("*.jsonl", "[ac].*", "**/*")
    }
    assert found == {"*.jsonl": 2, "[ac].*": 2, "**/*": 4}
    with pytest.raises(InputError, match=r"x\*\.jsonl: no such file or directory"):
        list(read_rows(tmp_path / "in [one]" / "x*.jsonl"))


def test_the_current_directory_is_read_where_it_is_named(write, tmp_path, monkeypatch):
    write("rows.jsonl", GOOD)
    monkeypatch.chdir(tmp_path)
    assert len(list(read_rows("."))) == len(list(read_rows("rows.jsonl"))) == 1
    with pytest.raises(InputError, match="an empty text is no path"):
        list(read_rows(""))


@pytest.mark.parametrize("name", ["https://a.b/rows.jsonl", "hf://datasets/a/b", "s3://b/rows.jsonl"])
def test_an_address_is_called_so(name):
    for path in (name, f"/recipes/{name}"):  # a recipe's are beside it
        with pytest.raises(InputError, match="an address, and no file of this machine; download"):
            list(read_rows(path))


def test_a_link_to_nothing_is_called_so(tmp_path):
    (tmp_path / "rows.jsonl").symlink_to("gone.jsonl")
    with pytest.raises(InputError, match=r"rows\.jsonl: a link to gone\.jsonl, which is not there"):
        list(read_rows(tmp_path / "rows.jsonl"))


def test_columns_of_one_name_in_a_table(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(InputError, match=r"rows\.parquet: each column must have a name of its own, found text twice"):
        list(read_rows(tmp_path / "rows.parquet"))


@pytest.mark.parametrize("name", ["completion_mask", "assistant_masks", "loss_mask"])
def test_marks_say_which_tokens_are_learnt(write, name):
    row = {"input_ids": [1, 2, 3, 0], "attention_mask": [1, 1, 1, 0], name: [0, 1, 1, 1], "position_ids": [0, 1, 2, 0]}
    (found,) = read_rows(write("rows.jsonl", [row]))
    assert found.tokens == ([1, 2, 3], [False, True, True])
    (found,) = read_rows(write("rows.jsonl", [{**row, "labels": [1, 2, -100, -100]}]))
    assert found.tokens == ([1, 2, 3], [False, True, False])


def test_a_directory_of_several_splits_is_not_read_as_one(write, tmp_path):
    for name in ("data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl", "data/test-notes.jsonl"):
        write(name, GOOD)
    splits = "test (data/test-00000-of-00001.jsonl), train (data/train-00000-of-00001.jsonl)"
    with pytest.raises(InputError, match=re.escape(f"holds more than one split: {splits}; name the files")):
        list(read_rows(tmp_path))
    (tmp_path / "data/train-00000-of-00001.jsonl").unlink()
    assert len(list(read_rows(tmp_path))) == 2


def test_a_name_in_another_encoding_is_refused(tmp_path):
    """It could be read, but the run would fail where it writes what it was trained on."""
    name = os.fsdecode("训练.jsonl".encode("gbk"))
    (tmp_path / name).write_text(GOOD)
    with pytest.raises(InputError, match=r"\\udcc1.*\.jsonl': the name is not UTF-8"):
        list(read_rows(tmp_path))


def test_all_problems_of_all_files_come_together(write, tmp_path):
    write("set/a.jsonl", "\n".join([GOOD] + ["x"] * 50))
    write("set/b.jsonl", GOOD + "\n[]\n")
    write("set/c.jsonl", "")
    with pytest.raises(InputError) as caught:
        list(read_rows(tmp_path / "set"))
    text = str(caught.value)
    grouped = "a.jsonl:2: broken JSON: Expecting value at column 1; expected one JSON object per line"
    assert f"{grouped} (also lines 3, 4, 5 and 46 more)" in text
    assert "b.jsonl:2: expected a JSON object" in text and "c.jsonl: the file is empty" in text


def test_many_different_problems_are_few_lines(write):
    broken = write("rows.jsonl", "\n".join(number * " " + "x" for number in range(40)))
    with pytest.raises(InputError) as caught:
        list(read_rows(broken))
    assert len(str(caught.value).splitlines()) <= 20
    assert "more (" in str(caught.value)
    with pytest.raises(InputError) as caught:
        raise InputError.collect(f"problem {number}" for number in range(1000))
    assert len(str(caught.value).splitlines()) == 18 and "… and 984 more" in str(caught.value)


@pytest.mark.parametrize("labels", [[-1, 6, 7], [6, 7, -100], [5, 6, 1 << 40]])
def test_labels_are_the_ids_themselves(write, labels):
    path = write("rows.jsonl", [{"input_ids": [5, 6, 7], "labels": labels}])
    with pytest.raises(InputError, match=r"rows\.jsonl:1: column labels: .* at place .*not shifted.* or -100"):
        list(read_rows(path))
    (row,) = read_rows(write("good.jsonl", [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}]))
    assert row.tokens == ([5, 6, 7], [False, True, True])


@pytest.mark.parametrize("text", ['[{"text": "a"}', '[{"text": "a"}, ', '[{"text": "a"}, 12', "[", '[{"text": "a"'])
def test_a_list_without_its_end(write, text):
    with pytest.raises(InputError, match=r"a\.json:1: (the list is not closed|broken JSON|expected a JSON object)"):
        list(read_rows(write("a.json", text)))


def test_paths_that_cannot_be_used(write, tmp_path):
    write("data/train.jsonl", GOOD)
    write("notes.md", "x")
    write("rows.parquet.gz", "x")
    (tmp_path / "void").mkdir()
    with pytest.raises(InputError) as caught:
        list(read_rows([tmp_path / name for name in ("data/tran.jsonl", "notes.md", "void", "rows.parquet.gz")]))
    text = str(caught.value)
    assert "rows.parquet.gz: not a data file" in text
    assert "tran.jsonl: no such file or directory (did you mean 'train.jsonl'?)" in text
    assert "notes.md: not a data file" in text and "void: no data file in this directory" in text


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


def compressed(path):
    """The file's compressed twins, with names that say so."""
    pyarrow = pytest.importorskip("pyarrow")
    for suffix, compress in ((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", None)):
        twin = path.with_name(path.name + suffix)
        if compress is None:
            with pyarrow.output_stream(str(twin), compression="zstd") as stream:
                stream.write(path.read_bytes())
        else:
            twin.write_bytes(compress(path.read_bytes()))
        yield twin


def test_compressed_files_that_are_cut_off_or_of_another_kind_are_named(write, monkeypatch):
    rows = write("a.jsonl", [{"text": string.printable * 99}] * 9)
    for path in compressed(rows):
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(InputError, match=f"{path.name}: not a readable {path.suffix} file: "):
            list(read_rows(path))
        path.write_bytes(rows.read_bytes())
        with pytest.raises(InputError, match=f"{path.name}: not a readable {path.suffix} file: "):
            list(read_rows(path))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs the package pyarrow: pip install 'mindspore-pet\[arrow\]'"):
        list(read_rows(path))
    with pytest.raises(InputError, match="not a data file"):
        list(read_rows(write("rows.parquet.gz", b"x")))


def test_reading_continues_from_a_place(write, monkeypatch):
    monkeypatch.setattr(readers_module, "READ_AT_ONCE", 7)
    rows = [{"text": f'{n} 你好 "x" [{n}], {{}}'} for n in range(9)]
    files = [
        write("a.jsonl", rows),
        write("a.json", json.dumps(rows, ensure_ascii=False, indent=1)),
        write("a.csv", "text\n" + "".join('"' + row["text"].replace('"', '""') + '\n!"\n' for row in rows)),
        write("a.txt", "\n\n".join(row["text"] for row in rows)),
        write("line.json", ("\ufeff" + json.dumps(rows)).encode()),
        write("ends.json", json.dumps(rows, indent=1).replace("\n", "\r\n").encode()),
        write("ends.csv", "\ufefftext\r\n".encode() + b'"a\r\n\xc3\xa4"\r\n' * 9),
    ]
    for path in [*files, *(twin for file in files for twin in compressed(file))]:
        problems = Problems()
        whole = list(read_records(path, problems))
        assert len(whole) == 9 and len({(record.line, record.row) for record in whole}) == 9
        for number, record in enumerate(whole):
            assert list(read_records(path, problems, record.place)) == whole[number + 1 :]
        if path in files:  # what stands before is not read again, but for the first row
            content, first, before = path.read_bytes(), whole[0].place[0], whole[4].place[0]
            path.write_bytes(content[:first] + bytes(before - first) + content[before:])
            assert list(read_records(path, problems, whole[4].place)) == whole[5:]
        assert len(problems) == 0


json_rows = st.lists(st.dictionaries(st.text(max_size=5), st.one_of(st.text(), st.integers(), st.floats(), st.none())))


@given(json_rows, st.integers(1, 30), st.sampled_from([None, 0, 2]))
def test_a_list_of_json_is_read_in_any_portions(tmp_path_factory, rows, portion, indent):
    path = tmp_path_factory.mktemp("json") / "rows.json"
    path.write_text(json.dumps(rows, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers_module, "READ_AT_ONCE", portion)
        problems = Problems()
        found = [record.columns for record in read_records(path, problems)]
    assert json.dumps(found) == json.dumps(rows) and len(problems) == (not rows)


def test_rubbish_never_raises_anything_but_an_input_error(write):
    seeded = random.Random(0)
    base = json.dumps([ROWS["chat"][0], ROWS["alpaca"][0]], ensure_ascii=False).encode()
    for number in range(300):
        content = bytearray(base)
        for _ in range(seeded.randint(1, 6)):
            place = seeded.randrange(len(content))
            content[place : place + seeded.randint(0, 5)] = seeded.choice(
                [b"", b"{", b"]", b'"', b"\xff", b"\n", b"null", b"\\u", seeded.choice(string.printable).encode()]
            )
        path = write(f"rows.{seeded.choice(['json', 'jsonl', 'csv', 'txt', 'tsv'])}", bytes(content))
        try:
            for row in read_rows(path):
                assert row.messages or row.text or row.tokens
        except InputError as error:
            assert str(path) in str(error), number


def test_a_large_file_is_not_held_in_memory(write):
    import tracemalloc

    path = write("large.jsonl", (json.dumps({"text": "x" * 1000}) + "\n") * 20_000)
    assert path.stat().st_size > 20_000_000
    tracemalloc.start()
    assert sum(1 for _ in read_rows(path)) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


FUNCTION = {"name": "find", "parameters": {}}


@pytest.mark.parametrize(
    "columns",
    [
        {"tools": [{"type": "function", "function": FUNCTION}]},
        {"tools": json.dumps([FUNCTION])},  # LLaMA-Factory's
        {"functions": [FUNCTION]},  # OpenAI's earlier form
        {"tools": [{"type": "function", **FUNCTION}]},  # and its latest
    ],
)
def test_tools_are_a_list_or_the_json_of_one_in_the_form_of_templates(write, columns):
    (found,) = read_rows(write("rows.jsonl", [{"messages": [user("a"), assistant("b")], **columns}]))
    assert (found.tools, found.unread) == ([{"type": "function", "function": FUNCTION}], [])


def test_tools_of_a_message_stay_with_it(write):
    opened = {**system(""), "tools": [FUNCTION]}
    (found,) = read_rows(write("rows.jsonl", [{"messages": [opened, user("a"), assistant("b")]}]))
    assert (found.messages[0], found.tools) == (opened, None)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tools": "find"}, "column 'tools': expected a list in JSON"),
        ({"chat_template_kwargs": {"builtin": 1}}, "'chat_template_kwargs': only enable_thinking is supported, found"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "enable_thinking: expected true or false, found 1"),
        ({"chat_template_kwargs": [1]}, "column 'chat_template_kwargs': expected an object, found a list"),
        ({"tools": ["find"]}, "column 'tools': tool 1: expected an object, found a string"),
        ({"messages": [user("a"), {**user("b"), "tool_calls": [CALL]}]}, "tool_calls are the assistant's"),
        ({"messages": [user("a"), {**assistant(""), "tool_calls": [{"id": "1"}]}]}, "expected objects with a function"),
        ({"messages": [user("a"), {**assistant(""), "tool_calls": [CALL]}, user("b")]}, "expected 'tool'"),
        ({"messages": [user("a"), {"role": "tool", "content": "b"}]}, "message 2 is from 'tool' after 'user'"),
        ({"messages": [user("a"), {"role": "function_call", "content": "find()"}]}, "function_call: expected JSON"),
    ],
)
def test_what_is_wrong_with_tools(write, row, words):
    with pytest.raises(InputError, match=words):
        list(read_rows(write("rows.jsonl", [{"messages": [user("a"), assistant("b")], **row}])))


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_a_thought_has_one_name(write, name):
    (row,) = read_rows(write("rows.jsonl", [{"messages": [user("a"), assistant("b") | {name: "hm", "more": "x"}]}]))
    assert row.messages == [user("a"), assistant("b") | {"reasoning_content": "hm"}]


def arrow_file(path, table, rows=5):
    pyarrow = pytest.importorskip("pyarrow")
    if path.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, path, row_group_size=rows)
        return
    new = pyarrow.ipc.new_stream if "stream" in path.name else pyarrow.ipc.new_file
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


@pytest.mark.parametrize("name", ["rows.arrow", "stream.arrow"])
def test_offsets_that_lead_out_of_an_arrow_file_are_one_problem(tmp_path, name):
    """pyarrow follows them, and the process ends."""
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / name
    arrow_file(path, pyarrow.table({"text": ["a" * 77] * 4}))
    data, ends = path.read_bytes(), struct.pack("<5i", 0, 77, 154, 231, 308)
    assert data.count(ends) == 1
    path.write_bytes(data.replace(ends, struct.pack("<5i", 0, 77, -(1 << 30), 1 << 30, 308)))
    program = "import sys; from pet.data import read_rows; [*read_rows(sys.argv[1])]"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert done.returncode == 1 and f"{name}: not a readable arrow file: " in done.stderr, done


def test_a_data_set_saved_by_hugging_faces_datasets_is_its_arrow_files(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": f"question {number}", "completion": "answer"} for number in range(5)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved", num_shards=2)
    assert len(list((tmp_path / "saved").glob("*.json"))) == 2
    datasets.load_from_disk(tmp_path / "saved").map(lambda row: {"more": 1})
    assert list((tmp_path / "saved").glob("cache-*.arrow")), "the same rows again"
    found = list(read_rows(tmp_path / "saved"))
    assert [row.messages[0]["content"] for row in found] == [row["prompt"] for row in rows]
    (tmp_path / "state.json").write_text(json.dumps(rows))  # a name that data may have, too
    assert len(list(read_rows(tmp_path / "state.json"))) == 5


def test_what_is_null_in_a_table_is_not_there(tmp_path):
    """All rows of a table have the fields of each: what two tools take, and both names that a message's parts have."""
    pyarrow = pytest.importorskip("pyarrow")

    def call(name, **arguments):
        function = {"name": name, "arguments": arguments}
        return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}

    tools = [{"name": "sun", "parameters": {"city": "string"}}, {"name": "time", "parameters": {"zone": "string"}}]
    rows = [
        {"messages": [user("a"), call("sun", city="b"), {"role": "tool", "content": "c"}, assistant("d")]},
        {"messages": [user("a"), call("time", zone="b"), {"role": "tool", "content": "c"}, assistant("d")]},
        {"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    ]
    table = pyarrow.Table.from_pylist([row | {"tools": tools} for row in rows])
    assert "null" not in str(table.schema)
    arrow_file(tmp_path / "rows.parquet", table)
    first, second, third = read_rows(tmp_path / "rows.parquet")
    assert first.messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "b"}
    assert second.messages[1]["tool_calls"][0]["function"]["arguments"] == {"zone": "b"}
    assert third.messages == [user("a"), assistant("b")] and [one["function"] for one in third.tools] == tools
    assert without_nulls([None, {"a": None, "b": [1, None]}]) == [None, {"b": [1, None]}]


def test_fields_of_null_in_json(write):
    """Tables that were saved as JSON have them."""
    asked = {"role": None, "content": None, "from": "human", "value": "a"}
    parts = {"role": "assistant", "content": [{"type": None, "text": "b"}], "from": None, "value": None}
    (row,) = read_rows(write("rows.jsonl", [{"messages": [asked, parts]}]))
    assert row.messages == [user("a"), assistant("b")]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "stream.arrow"])
def test_json_in_tables_is_what_it_stands_for(tmp_path, name):
    """Hugging Face's datasets write it (Json) where calls, tools or contents differ from row to row."""
    pyarrow = pytest.importorskip("pyarrow")

    def as_json(field):
        return pyarrow.field(field, pyarrow.string(), metadata={"ARROW:extension:name": "arrow.json"})

    calls = pyarrow.field("tool_calls", pyarrow.list_(as_json("item")))
    message = pyarrow.struct([("role", pyarrow.string()), as_json("content"), calls])
    schema = pyarrow.schema([("messages", pyarrow.list_(message)), ("tools", pyarrow.large_list(as_json("item")))])
    call = {"type": "function", "function": {"name": "find", "arguments": {"what": "shop", "where": None}}}
    tool = {"type": "function", "function": {"name": "find", "parameters": {}}}
    row = {
        "messages": [
            {"role": "user", "content": json.dumps([{"type": "text", "text": "Find\na shop."}]), "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": [json.dumps(call)]},
            {"role": "tool", "content": json.dumps("12"), "tool_calls": None},
            {"role": "assistant", "content": json.dumps('At "12".'), "tool_calls": None},
        ],
        "tools": [json.dumps(tool)],
    }
    arrow_file(tmp_path / name, pyarrow.Table.from_pylist([row, row | {"tools": None}], schema))
    first, second = read_rows(tmp_path / name)
    assert [one["content"] for one in first.messages] == ["Find\na shop.", "", "12", 'At "12".']
    assert first.messages[1]["tool_calls"] == [call] and first.tools == [tool]
    assert second.messages == first.messages and second.tools is None


def test_what_datasets_put_beside_its_arrow_files_later_is_no_data(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    for name in ("data-0.arrow", "cache-0519.arrow"):
        arrow_file(tmp_path / name, pyarrow.table({"text": [name]}))
    assert len(list(read_rows(tmp_path))) == 2
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    (tmp_path / "dataset_infos.json").write_text('{\n "default": {}\n}')  # of data sets on a hub
    assert [row.text for row in read_rows(tmp_path)] == ["data-0.arrow"]


@pytest.mark.parametrize("name", ["rows.arrow", "stream.arrow"])
def test_a_batch_of_all_rows_is_read_in_pieces(tmp_path, name):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": [f"text {row}" for row in range(30_000)]})
    arrow_file(tmp_path / name, table, rows=len(table))
    first = next(read_records(tmp_path / name, Problems(), (4999, 0)))
    assert (first.line, first.columns, first.place) == (5000, {"text": "text 4999"}, (5000, 0))
    tracemalloc.start()
    try:
        places = [record.place[0] for record in read_records(tmp_path / name, Problems(), (4999, 0))]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert places == [*range(5000, 30_001)]
    assert peak < 3e6, "not 10 MB of dictionaries"


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "stream.arrow"])
def test_parquet_and_arrow(tmp_path, monkeypatch, name):
    pyarrow = pytest.importorskip("pyarrow")
    rows = [{"messages": [user(f"a{i}"), assistant("b")], "tools": None} for i in range(12)]
    arrow_file(tmp_path / name, pyarrow.Table.from_pylist(rows))
    assert [row.messages for row in read_rows(tmp_path)] == [row["messages"] for row in rows]
    records = list(read_records(tmp_path / name, Problems()))
    for place in (0, 3, 4, 7, 12):
        rest = list(read_records(tmp_path / name, Problems(), (place, 0)))
        assert [record.line for record in rest] == [record.line for record in records[place:]]
    if name == "rows.parquet":  # row groups of five rows: the first is not decoded
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"PAR1" + bytes(60) + content[64:])
        assert [record.line for record in read_records(tmp_path / name, Problems(), (5, 0))] == [*range(6, 13)]
        (tmp_path / name).write_bytes(content)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-20])
    with pytest.raises(InputError, match=f"{name}: not a readable {name.split('.')[1]} file"):
        list(read_rows(tmp_path))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs the package pyarrow: pip install 'mindspore-pet\[arrow\]'"):
        list(read_rows(tmp_path))


def test_a_long_value_is_decoded_few_times(write, monkeypatch):
    """Each time it is read from its beginning: of a row of 50 MB that would be 2.5 GB."""
    decoded, original = [], json.JSONDecoder.raw_decode
    monkeypatch.setattr(readers_module, "READ_AT_ONCE", 16)
    monkeypatch.setattr(
        json.JSONDecoder, "raw_decode", lambda self, text, at: decoded.append(len(text)) or original(self, text, at)
    )
    path = write("long.json", json.dumps([{"text": "a"}, {"text": "b" * 50_000}, {"text": "c"}]))
    assert [len(row.text) for row in read_rows(path)] == [1, 50_000, 1]
    assert len(decoded) < 20


def test_a_row_group_is_not_held_in_memory(tmp_path):
    """One may be the whole file, as pandas writes up to a million rows."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = [f"{number:06}" * 160 for number in range(10_000)]
    parquet.write_table(
        pyarrow.table({"text": texts}), tmp_path / "x.parquet", compression="none", use_dictionary=False
    )
    pool = pyarrow.default_memory_pool()
    before, most, found = pool.bytes_allocated(), 0, []
    for row in read_rows(tmp_path / "x.parquet"):
        most = max(most, pool.bytes_allocated() - before)
        found.append(row.text)
    assert found == texts and 0 < most < 5_000_000 < (tmp_path / "x.parquet").stat().st_size


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
