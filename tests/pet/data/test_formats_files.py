"""Kinds of files, directories and compressed data, and the memory that reading takes."""

import bz2
import gzip
import json
import lzma
import re
import string
import struct
import subprocess
import sys
import tracemalloc

import pytest
from data_rows import GOOD, assistant, user
from hypothesis import given, strategies as st

from model_zoo.errors import InputError
from pet.data import read_rows, readers as readers_module
from pet.data.binary import without_nulls
from pet.data.readers import read_records
from pet.data.records import Problems


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


def test_a_directory_of_several_splits_is_not_read_as_one(write, tmp_path):
    for name in ("data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl", "data/test-notes.jsonl"):
        write(name, GOOD)
    splits = "test (data/test-00000-of-00001.jsonl), train (data/train-00000-of-00001.jsonl)"
    with pytest.raises(InputError, match=re.escape(f"holds more than one split: {splits}; name the files")):
        list(read_rows(tmp_path))
    (tmp_path / "data/train-00000-of-00001.jsonl").unlink()
    assert len(list(read_rows(tmp_path))) == 2


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


def test_a_large_file_is_not_held_in_memory(write):
    import tracemalloc

    path = write("large.jsonl", (json.dumps({"text": "x" * 1000}) + "\n") * 20_000)
    assert path.stat().st_size > 20_000_000
    tracemalloc.start()
    assert sum(1 for _ in read_rows(path)) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


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
