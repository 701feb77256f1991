"""Tools and thoughts of conversations."""

import json

import pytest
from data_rows import CALL, assistant, system, user

from model_zoo.errors import InputError
from pet.data import read_rows

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
