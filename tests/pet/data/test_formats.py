"""Every format becomes messages, text or tokens."""

import json
import random
import string

import numpy as np
import pytest
from data_rows import CALL, CALLED, assistant, system, user

from model_zoo.errors import InputError
from pet.data import read_rows
from pet.data.formats import read_file
from pet.data.records import Problems

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


@pytest.mark.parametrize("name", ["completion_mask", "assistant_masks", "loss_mask"])
def test_marks_say_which_tokens_are_learnt(write, name):
    row = {"input_ids": [1, 2, 3, 0], "attention_mask": [1, 1, 1, 0], name: [0, 1, 1, 1], "position_ids": [0, 1, 2, 0]}
    (found,) = read_rows(write("rows.jsonl", [row]))
    assert found.tokens == ([1, 2, 3], [False, True, True])
    (found,) = read_rows(write("rows.jsonl", [{**row, "labels": [1, 2, -100, -100]}]))
    assert found.tokens == ([1, 2, 3], [False, True, False])


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
