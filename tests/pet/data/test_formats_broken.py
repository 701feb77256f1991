"""What is wrong with files of data is said at once, with file and line."""

import gzip
import json
import os

import pytest
from data_rows import GOOD, assistant, system, user

from model_zoo.errors import InputError
from pet.data import read_rows

DEEP_CALL = {"type": "function", "function": {"name": "f", "arguments": "[" * 100000}}
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


def test_columns_of_one_name_in_a_table(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(InputError, match=r"rows\.parquet: each column must have a name of its own, found text twice"):
        list(read_rows(tmp_path / "rows.parquet"))


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
