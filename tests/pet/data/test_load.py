"""Rows to samples, held-out parts, and the way back from a sample to its question."""

import json
import os
import tracemalloc
from collections import Counter
from pathlib import PurePath

import numpy as np
import pytest
from letter_samples import letters_of, some_rows, spelled

from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer, pieces
from pet.data import (
    Loader,
    TokenDataset,
    encode,
    load_dataset,
    load_questions,
    make_loader,
    mix_dataset,
    split_dataset,
)
from pet.data.encode import Encoder
from pet.data.finding import find_files
from pet.data.row import Row
from pet.data.show import describe

WAYS = [
    ("a.jsonl", [{"prompt": "p", "completion": "c"}] * 3, {}),
    (
        "b.jsonl",
        [{"talk": [{"by": "x", "t": "q"}, {"by": "y", "t": "r"}]}],
        {
            "columns": {"messages": "talk", "role": "by", "content": "t"},
            "roles": {"x": "user", "y": "assistant"},
        },
    ),
    ("c.jsonl", [{"instruction": "i", "output": "o"}], {"template": "{prompt}!", "system": None}),
    ("d.txt", "body", {"format": "text"}),
]


@pytest.mark.parametrize("streaming", [False, True])
def test_each_path_is_read_in_its_own_way(write, settings, letters, streaming):
    """Of prompts, too: `data.template` is for those that say none; also where workers tokenise, and for questions."""
    paths = [{"path": str(write(name, rows)), **own} if own else write(name, rows) for name, rows, own in WAYS]
    how = settings(template="{system}{prompt}?", system="S", streaming=streaming)
    found = load_dataset(paths, letters, settings=how)
    samples = ["<Sp?c>", "<Sp?c>", "<Sp?c>", "<Sq?r>", "<i!o>", "<body>"]
    assert [text for text, _ in spelled(found.window(0) if streaming else found)] == samples
    if streaming:
        return
    assert [text for text, _ in spelled(load_dataset(paths, letters, settings=how))] == samples  # from the cache
    changed = [paths[0], {**paths[1], "roles": {"y": "user", "x": "assistant"}}, *paths[2:]]
    with pytest.raises(InputError, match=r"b.jsonl:1: .*assistant"):
        load_dataset(changed, letters, settings=how)
    asked = load_questions(found.select([0, 4, 3]), letters, settings=how)
    assert [letters_of(one.prompt_ids) for one in asked] == ["<Sp?", "<Sq?", "<i!"]
    shown = describe(found, letters, settings=how, samples=1)
    assert [name for name, _, _ in WAYS if f"{name}:1 ·" in shown] == ["a.jsonl", "b.jsonl", "c.jsonl", "d.txt"]
    with pytest.raises(InputError, match=r"a.jsonl: is named twice in data, to be read in two ways"):
        load_dataset([paths[0], {"path": str(paths[0]), "format": "chat"}], letters, settings=how)
    with pytest.raises(InputError, match=r"data.colums: .*did you mean 'columns'"):
        load_dataset({"path": str(paths[0]), "colums": {}}, letters, settings=how)


def test_columns_that_are_not_read_are_told_once(write, settings, letters, caplog):
    """For all rows, also where the samples are in the cache; in a stream for its first window."""
    rows = [{"prompt": "a", "completion": "b"}, *[{"prompt": "c", "completion": "d", "response": "e"}] * 2]
    path = write("rows.jsonl", rows)
    for streaming in (False, False, True):
        caplog.clear()
        found = load_dataset(path, letters, settings=settings(streaming=streaming, deduplicate=False))
        if streaming:
            found.window(0)
        assert [line.getMessage() for line in caplog.records] == [
            f"{path}: column 'response' is not read in 2 of 3 rows (the first: {path}:2)"
        ]


def test_columns_and_roles_that_no_row_has_are_told(write, settings, letters, caplog):
    """Also where the rows come out of the cache; a column or a role that one row has is enough."""
    rows = [{"q": "a", "a": "b", "sys": "c"}, {"q": "b", "a": "c", "past": [["d", "e"]]}]
    said = {"prompt": "q", "answer": "a", "input": "", "history": "past"}
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    kept = write("turns.jsonl", [{"messages": turns}])
    noted = write("noted.jsonl", [{"messages": turns}, {"messages": [{"role": "note", "content": "c"}, *turns]}])
    own = {"path": str(write("rows.jsonl", rows)), "columns": {**said, "system": "sy"}}
    no_system = "no row has a column 'sy', which is to be the system (did you mean 'sys'?)"
    for paths, changes, told in (
        (own["path"], {"columns": {**said, "system": "sys"}}, []),
        (own["path"], {"columns": {**said, "system": "sy"}}, [f"data.columns: {no_system}"]),
        ([own, noted], {"roles": {"note": ""}}, [f"data.columns: {no_system}"]),
        (noted, {"roles": {"note": "", "human": "user"}}, []),
        (kept, {"roles": {"note": ""}}, ["data.roles: no message to be left out is by 'note'"]),
    ):
        for _ in range(2):
            caplog.clear()
            load_dataset(paths, letters, settings=settings(**changes))
            messages = [line.getMessage().partition(": ")[2] for line in caplog.records]
            assert [line for line in messages if line.startswith("data.")] == told


def test_other_words_for_who_speaks_are_other_samples(write, settings, letters):
    """The cache is not that of the words before."""
    path = write("a.jsonl", [{"messages": [{"role": "x", "content": "q"}, {"role": "y", "content": "r"}] * 2}])
    for roles, learnt in (({"x": "user", "y": "assistant"}, "r>r>"), ({"x": "system", "y": "user"}, None)):
        how = settings(roles=roles)
        if learnt is not None:
            ((_, found),) = spelled(load_dataset(path, letters, settings=how))
            assert found == learnt
    with pytest.raises(InputError, match=r"a.jsonl:1"):
        load_dataset(path, letters, settings=how)


def test_a_list_on_one_line_is_many_rows(write, letters, settings):
    rows = [{"prompt": chr(97 + number), "completion": "x"} for number in range(20)]
    path = write("rows.json", json.dumps(rows))
    dataset = load_dataset(path, letters, settings=settings())
    assert [dataset.where(sample) for sample in (0, 1, 19)] == [f"{path}:1", f"{path}:1 (row 2)", f"{path}:1 (row 20)"]
    kept, held = split_dataset(dataset, 0.25)
    assert (len(kept), len(held)) == (15, 5)
    asked = load_questions(held, letters, settings=settings())
    assert sorted(question.where for question in asked) == sorted(held.where(sample) for sample in range(5))
    lines = write("rows.jsonl", rows)
    same = split_dataset(load_dataset(lines, letters, settings=settings()), 0.25)[1]
    assert spelled(same) == spelled(held)


def test_samples_know_where_they_come_from(write, letters, settings, tmp_path):
    write("set/a.jsonl", [{"text": "a"}, {"text": "b"}])
    write("set/b.csv", "text\nc\n")
    dataset = load_dataset(tmp_path / "set", letters, settings=settings())
    assert [os.path.relpath(dataset.where(i), tmp_path / "set") for i in range(3)] == [
        "a.jsonl:1",
        "a.jsonl:2",
        "b.csv:2",
    ]
    assert dataset.lengths.sum() == 9 and dataset.label_counts.sum() == 6


def test_nothing_is_written_for_broken_data(write, letters, settings, tmp_path):
    path = write("rows.jsonl", '{"text": "a"}\n[]\n')
    with pytest.raises(InputError, match=":2: expected a JSON object"):
        load_dataset(path, letters, settings=settings())
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]


def test_only_the_first_samples(write, letters, settings):
    path = write("rows.jsonl", [{"text": str(n)} for n in range(9)])
    assert len(load_dataset(path, letters, settings=settings(max_samples=4))) == 4
    path = write("rows.jsonl", "x\n" + '{"text": "a"}\n' * 9)
    with pytest.raises(InputError, match=":1: broken"):
        load_dataset(path, letters, settings=settings(max_samples=4))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([":2"], "ab de"),
        ([":34%", "1:"], "a e"),
        (["50%:", "1:1"], "c"),  # of 3 rows half is 2, as datasets rounds
        ([":"], "abc de"),
    ],
)
def test_parts_of_sets(write, letters, settings, parts, expected):
    paths = [write(f"{name}.jsonl", [{"text": one} for one in name]) for name in ("abc", "de")]
    dataset = load_dataset(paths, letters, settings=settings(rows=parts))
    found = [text.strip("<>") for text, _ in spelled(dataset)]
    assert found == list(expected.replace(" ", ""))
    assert len(load_dataset(paths, letters, settings=settings(rows=parts, max_samples=1))) == 1


def test_parts_that_cannot_be(write, letters, settings):
    path = write("rows.jsonl", [{"text": "a"}])
    for given, message in (
        ({"rows": [":1", ":2"]}, "data.rows: 2 parts for 1 paths"),
        ({"rows": [":1"], "streaming": True}, "data.rows: streaming files are read as a whole"),
        ({"rows": ["5"]}, r"data\.rows"),
        ({"rows": [":101%"]}, r"data\.rows"),
    ):
        with pytest.raises(InputError, match=message):
            load_dataset(path, letters, settings=settings(**given))


def test_what_no_data_set_can_be_made_of(write, letters, settings):
    path = write("rows.jsonl", [{"text": "a b"}] * 3)
    unlabelled = write("ids.jsonl", [{"input_ids": [5, 6], "labels": [-100, -100]}])
    data, stream = load_dataset(path, letters, settings=settings()), settings(streaming=True)
    for make, message in (
        (lambda: load_dataset([], letters, settings=settings()), "no data files were given"),
        (lambda: load_dataset(path, letters, settings=settings(columns={"prompt": "text"})), "prompt is given without"),
        (lambda: mix_dataset(data, path, [0.01]), "no sample is left; the weights are too small for so few rows"),
        (
            lambda: mix_dataset(load_dataset(path, letters, settings=stream), path, [2]),
            "streaming data cannot be mixed",
        ),
        (lambda: split_dataset(data, 1.5), "expected a share below 1 or a number of rows, found 1.5"),
        (lambda: settings(packing="buckets", buckets=[64], max_length=128), "a sample may have max_length = 128"),
        (lambda: make_loader(load_dataset(unlabelled, letters, settings=stream), 2), "no row has anything to learn"),
        (lambda: TokenDataset.from_samples([([5], [1, 1])]), "sample 0 has 1 tokens and 2 label marks"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_chatglm_packed(write, fixtures, settings):
    """The real tokenizer: [gMASK] <sop> before the answer, which alone is learnt, with its <eop>."""
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_chatglm1")
    rows = some_rows(60)
    chosen = settings(max_length=400)
    dataset = load_dataset(write("train.json", rows), tokenizer, settings=chosen)
    assert len(dataset) == 60 and dataset.counts.cut == 0
    sop, end = tokenizer.special_tokens["<sop>"], tokenizer.eos_token_id
    for index, row in enumerate(rows):
        ids, trained = dataset[index]
        answer = ids.tolist().index(sop) + 1
        assert trained.tolist() == [place >= answer for place in range(len(ids))]
        assert ids[-1] == end and tokenizer.decode(ids[answer:]) == row["summary"]
        assert ids[:answer].tolist() == tokenizer.prompt([{"role": "user", "content": row["content"]}])
    loader = Loader(dataset, 4, chosen, pad_token_id=tokenizer.pad_token_id)
    assert loader.padding() < 0.2
    for batch in loader.batches(0):
        for row, samples in enumerate(batch["sample_ids"]):
            learnt = [label for label in batch["labels"][row].tolist() if label != -100]
            assert learnt == [token for sample in samples for token in dataset[sample][0][dataset[sample][1]].tolist()]


def test_chatglm_raw_text(write, fixtures, settings):
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_chatglm1")
    dataset = load_dataset(write("a.txt", "你好，世界！"), tokenizer, settings=settings())
    ids, trained = dataset[0]
    control = [tokenizer.special_tokens["[gMASK]"], tokenizer.special_tokens["<sop>"]]
    assert ids[:2].tolist() == control and ids[-1] == tokenizer.eos_token_id
    assert trained.tolist() == [False, False] + [True] * (len(ids) - 2)


def test_a_held_out_part(write, letters, settings):
    path = write("rows.jsonl", [{"text": chr(97 + n) * 8} for n in range(20)])
    dataset = load_dataset(path, letters, settings=settings(max_length=5))
    kept, held = split_dataset(dataset, 0.25, seed=3)
    rows = [{tuple(row) for row in np.asarray(part.origin).tolist()} for part in (kept, held)]
    assert len(rows[1]) == 5 and len(rows[0]) == 15 and not rows[0] & rows[1]
    assert len(kept) + len(held) == len(dataset) and len(held) == 15
    assert spelled(split_dataset(dataset, 0.25, seed=3)[1]) == spelled(held)
    assert spelled(split_dataset(dataset, 0.25, seed=4)[1]) != spelled(held)
    assert held.where(0).startswith(str(path))
    for fraction, counts in ((4, [16, 4]), (0.12, [17, 3]), (0.99, [1, 19])):  # a number of rows, or a share rounded up
        assert [len(np.unique(part.origin, axis=0)) for part in split_dataset(dataset, fraction)] == counts
    with pytest.raises(InputError, match="20 of 20 rows leaves none to train on"):
        split_dataset(dataset, 20)
    with pytest.raises(InputError, match="rows to hold some out of: 1; at least 2 were expected"):
        split_dataset(TokenDataset.from_samples([([1, 2], [1, 1])]), 0.5)


def test_questions(write, letters, settings):
    rows = [{"prompt": c, "completion": c.upper()} for c in "abcdef"]
    path = write("rows.jsonl", rows)
    questions = load_questions(path, letters, settings=settings(), limit=2)
    assert [(letters_of(q.prompt_ids), q.prompt, q.reference) for q in questions] == [
        ("<a|", "a", "A"),
        ("<b|", "b", "B"),
    ]
    assert questions[1].where == f"{path}:2"
    held = split_dataset(load_dataset(path, letters, settings=settings()), 0.5)[1]
    asked = load_questions(held, letters, settings=settings())
    assert sorted(q.where for q in asked) == sorted(held.where(i) for i in range(len(held)))
    asked = load_questions(path, letters, settings=settings(template="Q{prompt}A"))
    assert letters_of(asked[0].prompt_ids) == "<QaA"
    open_ended = load_questions(write("ask.jsonl", [{"prompt": "x"}]), letters, settings=settings())
    assert letters_of(open_ended[0].prompt_ids) == "<x|" and open_ended[0].reference == ""


def test_questions_need_the_columns_of_a_question_alone(write, letters, settings):
    path = write("ask.jsonl", [{"q": "x"}])
    (asked,) = load_questions(path, letters, settings=settings(columns={"prompt": "q", "answer": "a"}))
    assert asked.prompt == "x" and asked.reference == ""
    with pytest.raises(InputError, match="no column 'p', which is to be the prompt"):
        load_questions(path, letters, settings=settings(columns={"prompt": "p", "answer": "q"}))


def test_sets_are_mixed_by_their_weights(write, letters, settings):
    from pet.data import mix_dataset

    paths = [write(f"{name}.jsonl", [{"text": f"{name}{i}"} for i in range(8)]) for name in "abc"]
    dataset = load_dataset(paths, letters, settings=settings())
    mixed = mix_dataset(dataset, paths, [2, 0.25, 1.5], seed=3)
    found = Counter(mixed.where(index).split("/")[-1] for index in range(len(mixed)))
    assert [sum(n for name, n in found.items() if name[0] == one) for one in "abc"] == [16, 2, 12]
    assert {n for name, n in found.items() if name[0] == "a"} == {2}, "all of it, twice"
    assert {n for name, n in found.items() if name[0] == "c"} == {1, 2}
    again = mix_dataset(dataset, paths, [2, 0.25, 1.5], seed=3)
    assert (again.starts == mixed.starts).all()
    assert (mix_dataset(dataset, paths, [2, 0.25, 1.5], seed=4).starts != mixed.starts).any()
    with pytest.raises(InputError, match="2 weights for 3 paths"):
        mix_dataset(dataset, paths, [1, 1])
    for odd in (-1, float("nan"), float("inf")):
        with pytest.raises(InputError, match=f"a weight of {odd}; a number of at least 0 was expected"):
            mix_dataset(dataset, paths, [1, odd, 1])


def test_repeated_samples_are_left_out_and_counted(write, letters, settings, caplog):
    texts = [write("one.jsonl", [{"text": word} for word in ("ab", "cd", "ab")]), write("two.jsonl", [{"text": "cd"}])]
    dataset = load_dataset(texts, letters, settings=settings(deduplicate=True))
    assert [text for text, _ in spelled(dataset)] == ["<ab>", "<cd>"]
    assert [dataset.where(index).split("/")[-1] for index in range(2)] == ["one.jsonl:1", "one.jsonl:2"]
    assert (dataset.counts.rows, dataset.counts.samples, dataset.counts.repeated) == (4, 2, 2)
    assert "2 of 4 samples are left out by data.deduplicate" in caplog.text
    path = write("held.jsonl", [{"text": word} for word in ("ab", "ef", "ef")])
    held = load_dataset(path, letters, settings=settings(deduplicate=True), unlike=dataset)
    assert [text for text, _ in spelled(held)] == ["<ef>"]
    assert len(load_dataset(path, letters, settings=settings(), unlike=dataset)) == 3, "only where it is asked for"
    with pytest.raises(InputError, match=r"no sample is left: 0 samples from 1 rows.*1 left out as repeated"):
        load_dataset(texts[1], letters, settings=settings(deduplicate=True), unlike=dataset)
    with pytest.raises(InputError, match=r"data.deduplicate: streaming data cannot be compared"):
        load_dataset(path, letters, settings=settings(deduplicate=True, streaming=True))


def test_samples_are_repeated_if_their_labels_and_all_their_documents_are(letters):
    rows = [([1, 2, 3], [0, 1, 1]), ([1, 2, 3], [0, 0, 1]), ([1, 2], [0, 1]), ([3], [1]), ([1, 2, 3], [0, 1, 1])]
    dataset = TokenDataset.from_samples(rows)
    assert dataset.without_repeated().lengths.tolist() == [3, 3, 2, 1], "other labels, or other bounds, are others"
    pairs = TokenDataset.from_samples([*rows[:2], *rows[1::-1], *rows[:2]])
    pairs.documents, pairs.counts.samples = 2, 3
    found = pairs.without_repeated()
    assert found.starts.tolist() == pairs.starts[:4].tolist(), "documents in another order are another sample"
    assert (found.documents, found.counts.samples, found.counts.repeated) == (2, 2, 1)


def test_labels_are_counted_in_little_memory():
    """NumPy would take eight bytes for each token."""
    lengths = np.random.default_rng(0).integers(50, 150, 3000)
    dataset = TokenDataset.from_samples([(range(length), np.arange(length) % 3 == 0) for length in lengths])
    tracemalloc.start()
    try:
        counts = dataset.label_counts
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts.tolist() == ((lengths + 2) // 3 - 1).tolist()
    assert peak < 1.5e6, "not 2.4 MB"


def test_long_rows_go_to_the_tokenizer_few_at_a_time(monkeypatch, tmp_path):
    """Rows of a megabyte each, 512 in a chunk and eight chunks at once, would be gigabytes of text."""
    monkeypatch.setattr(encode, "CHUNK", 4)
    monkeypatch.setattr(encode, "CHUNK_SIZE", 10)
    rows = [Row(tmp_path / "x", line, text="a" * size) for line, size in enumerate([1, 1, 1, 1, 1, 9, 30, 2])]
    rows.append(
        Row(tmp_path / "x", 9, messages=[{"role": "user", "content": "12345"}], others=[[{"content": "67890"}]])
    )
    rows.append(Row(tmp_path / "x", 10, tokens=([1, 2], [True, True])))
    assert [[row.size for row in chunk] for chunk in encode.chunked(rows)] == [[1, 1, 1, 1], [1, 9], [30], [2, 10], [2]]


@pytest.mark.parametrize(("name", "warned"), [("tok_gpt2", False), ("tok_chatglm1", True)])
def test_a_long_text_is_tokenised_in_pieces_or_with_a_warning(settings, monkeypatch, caplog, fixtures, name, warned):
    tokenizer = AutoTokenizer.from_pretrained(fixtures / name)
    encoder = Encoder(tokenizer, settings(max_length=40))
    row = Row(fixtures / "rows.jsonl", 1, text="The world is round, and the day is long.\n" * 30)
    whole = encoder([row])
    encoded, original = [], type(tokenizer).encode_text
    monkeypatch.setattr(pieces, "AT_ONCE", 50)
    monkeypatch.setattr(encode, "LONG_TEXT", 1000)
    monkeypatch.setattr(
        type(tokenizer), "encode_text", lambda self, text: encoded.append(len(text)) or original(self, text)
    )
    again = encoder([row])
    assert [ids.tolist() for ids, _ in again.samples] == [ids.tolist() for ids, _ in whole.samples]
    assert len(encoded) == 1 and (encoded[0] == len(row.text)) is warned and (encoded[0] < 60) is not warned
    assert ("rows.jsonl:1: a text of 0 MB is tokenised as a whole" in caplog.text) is warned


def test_many_compressed_files_are_each_looked_up_once(tmp_path, monkeypatch):
    names = [tmp_path / f"part{number:03}.jsonl.gz" for number in range(200)]
    for name in names:
        name.touch()
    compared, equal = [], PurePath.__eq__
    monkeypatch.setattr(PurePath, "__eq__", lambda one, other: compared.append(one) or equal(one, other))
    assert find_files(tmp_path) == names
    assert len(compared) < 10 * len(names)
