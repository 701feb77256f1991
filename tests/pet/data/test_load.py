"""Rows to samples, the cache that keeps them, held-out parts, and the way back from a sample to its question."""

import errno
import gzip
import importlib
import importlib.util
import io
import itertools
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections import Counter
from concurrent.futures import Future
from pathlib import Path, PurePath

import numpy as np
import pytest
from waiting import HANGING

from model_zoo import atomic, progress
from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer, pieces
from pet.data import (
    Counts,
    DataSettings,
    Loader,
    TokenDataset,
    cache as cache_module,
    encode,
    load_dataset,
    load_questions,
    make_loader,
    mix_dataset,
    split_dataset,
)
from pet.data.encode import Encoder, start_workers
from pet.data.finding import find_files
from pet.data.preferences import labelled, pairs
from pet.data.prompt import Prompt
from pet.data.row import Row
from pet.data.show import describe
from pet.data.template import chat_template
from pet.data.workers import NoWorkers, Workers
from pet.launching import heartbeat
from pet.names import bundled_models, find_model


@pytest.fixture
def settings(tmp_path):
    def make(**changes):
        return DataSettings(cache_dir=str(tmp_path / "cache"), **changes)

    return make


def letters_of(ids):
    return "".join({0: "_", 1: "<", 2: ">", 3: "|"}.get(number) or chr(number - 10) for number in ids)


def spelled(dataset):
    """Each sample as text, and the part of it that is learnt."""
    return [
        (letters_of(ids.tolist()), letters_of(ids[trained].tolist()))
        for ids, trained in map(dataset.__getitem__, range(len(dataset)))
    ]


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


def test_a_text_without_a_place_for_what_rows_say(write, settings, letters, caplog):
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "b", "system": "s"}]
    rows += [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "t"}]}]
    paths = write("rows.jsonl", rows[:2]), write("thought.jsonl", rows[2:])
    found = load_dataset(paths, letters, settings=settings(template="{prompt}?"))
    assert [text for text, _ in spelled(found)] == ["<a?b>"] * 3
    system, thought = (line.getMessage() for line in caplog.records)
    assert "the system message, for which data.template has no {system}, is not read in 1 of 3 rows" in system
    assert "the thought, for which data.template has no place, is not read in 1 of 3 rows (the first:" in thought
    caplog.clear()
    places = {"template": "{prompt}?", "template_without_input": "{system}{prompt}"}
    load_dataset(paths[0], letters, settings=settings(template="{system}{prompt}?"))
    load_dataset(paths[0], letters, settings=settings(**places))
    assert not caplog.records
    call = {"type": "function", "function": {"name": "find", "arguments": {}}}
    for row in (
        {"prompt": "a", "completion": "b", "tools": [call]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]},
    ):
        with pytest.raises(InputError, match=r"tools.jsonl:1: tools or calls of them, but data.template has no place"):
            load_dataset(write("tools.jsonl", [row]), letters, settings=settings(template="{prompt}?"))


def test_what_a_chat_template_leaves_out_is_told(write, settings, caplog):
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    answer = {"role": "assistant", "content": "b", "thinking": "t"}
    row = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, answer]}
    path = write("rows.jsonl", [{**row, "tools": [{"name": "find"}]}])
    text = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    for template, told in {
        text: ["the list of tools", "the thought"],
        text.replace("{{ m.content", "{{ m.thinking }}{{ tools }}{{ m.content"): [],
        text.replace("in messages", "in messages[1:]"): ["the list of tools", "the system message", "the thought"],
    }.items():
        caplog.clear()
        load_dataset(path, tokenizer, settings=settings(template=template))
        assert [line.getMessage().partition(": ")[2] for line in caplog.records] == [
            f"{what}, for which the chat template has no place, is not read in 1 of 1 rows (the first: {path}:1)"
            for what in told
        ]


def test_a_switch_that_a_chat_template_has_not_is_told(write, settings, caplog):
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    rows = [
        {"prompt": "a", "completion": "b", "chat_template_kwargs": {"enable_thinking": own}} for own in (None, True)
    ]
    for switch, number in ((None, 1), (False, 2)):
        caplog.clear()
        chosen = settings(template="{% for m in messages %}{{ m.content }}</s>{% endfor %}", enable_thinking=switch)
        load_dataset(write("rows.jsonl", rows), tokenizer, settings=chosen)
        assert f"enable_thinking, for which the chat template has no place, is not read in {number} of 2" in caplog.text


def test_a_prompt_form_has_no_place_for_thoughts(write, settings, letters, caplog):
    answer = {"role": "assistant", "content": "b", "reasoning_content": "t"}
    load_dataset(
        write("rows.jsonl", [{"messages": [{"role": "user", "content": "a"}, answer]}]), letters, settings=settings()
    )
    assert "the thought, for which the prompt form has no place, is not read in 1 of 1 rows" in caplog.text


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


CHAT = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"},
                      {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]}]  # fmt: skip


def test_labels_stand_on_answers(write, letters, settings):
    path = write("chat.jsonl", CHAT)
    learnt = {
        name: spelled(load_dataset(path, letters, settings=settings(train_on=name)))[0]
        for name in ("answers", "last", "all")
    }
    assert learnt == {"answers": ("<a|bc>d|e>", "bc>e>"), "last": ("<a|bc>d|e>", "e>"), "all": ("<a|bc>d|e>",) * 2}


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_prompt": 3}, "<abc|efgh>ij|kl>"),
        ({"max_answer": 3}, "<abcd|efg>ij|kl>"),
        ({"max_prompt": 2, "max_answer": 1}, "<ab|e>ij|k>"),
    ],
    ids=str,
)
def test_questions_and_answers_have_limits_of_their_own(write, letters, settings, limits, text):
    turns = [("user", "abcd"), ("assistant", "efgh"), ("user", "ij"), ("assistant", "kl")]
    path = write("chat.jsonl", [{"messages": [{"role": role, "content": said} for role, said in turns]}])
    letters.special_tokens = {"<s>": 1, "</s>": 2, "<a>": 3}  # which stay, and are not counted
    dataset = load_dataset(path, letters, settings=settings(**limits))
    assert spelled(dataset)[0][0] == text and dataset.counts.limited == 1


def test_raw_text_is_learnt_as_a_whole_and_divided(write, letters, settings):
    path = write("text.jsonl", [{"text": "abcdefg"}])
    assert spelled(load_dataset(path, letters, settings=settings())) == [("<abcdefg>", "abcdefg>")]
    dataset = load_dataset(path, letters, settings=settings(max_length=4))
    assert spelled(dataset) == [("<abc", "abc"), ("<def", "def"), ("<g>", "g>")]
    assert dataset.counts == Counts(rows=1, samples=3, divided=1, longest=9)
    whole = load_dataset(path, letters, settings=settings(max_length=9))
    assert whole.counts == Counts(rows=1, samples=1, divided=0, longest=9)


def test_the_last_token_of_a_text_is_no_row_that_was_lost(write, new_letters, settings):
    """Without opening tokens a piece of one token has nothing that it could be learnt from."""

    class Bare(new_letters):
        bos_token_id = None

        def encode(self, text, add_special_tokens=True):
            return super().encode(text, add_special_tokens=False)

    for length, samples in ((8, ["abcdefgh"]), (4, ["abcd", "efgh"]), (5, ["abcde", "fgh>"])):
        dataset = load_dataset(write("book.txt", "abcdefgh"), Bare(), settings=settings(max_length=length, workers=0))
        assert [text for text, _ in spelled(dataset)] == samples and dataset.counts.dropped == 0


def test_what_has_no_room_or_question_is_refused(write, letters, settings):
    text = write("text.jsonl", [{"text": "abc"}])
    with pytest.raises(InputError, match=r"data\.max_length: 2 leaves no room for text after 1 opening tokens"):
        load_dataset(text, letters, settings=settings(max_length=2))
    talk = [{"role": role, "content": role[0]} for role in ("user", "assistant") * 2]
    asked = {"tools": [{"type": "function", "function": {"name": "f"}}], "messages": talk[:2]}
    for row, message in (
        ({"messages": talk}, r"rows\.jsonl:1: several questions, but data\.template has room for one"),
        (asked, r"rows\.jsonl:1: tools or calls of them, but data\.template has no place for any"),
    ):
        with pytest.raises(InputError, match=message):
            load_dataset(write("rows.jsonl", [row]), letters, settings=settings(template="{prompt}="))


def test_a_template(write, letters, settings):
    rows = [
        {"instruction": "a{input}", "input": "b", "output": "c{x}", "system": "s"},
        {"instruction": "d", "output": "e"},
    ]
    path = write("rows.jsonl", rows)
    found = spelled(load_dataset(path, letters, settings=settings(template="{system}{{{prompt}}}/{input}=")))
    assert found == [("<s{a{input}}/b=c{x}>", "c{x}>"), ("<{d}/=e>", "e>")]
    for template, message in {
        "{promt}": "did you mean 'prompt'",
        "{prompt": "expected '}'",
        "{prompt.__class__}": "is not known",
        "{prompt!r}": "only the name",
        "answer:": "does not hold {prompt}",
    }.items():
        with pytest.raises(InputError) as caught:
            load_dataset(path, letters, settings=settings(template=template))
        assert message in str(caught.value)
    with pytest.raises(InputError, match=r"chat\.jsonl:1: several questions"):
        load_dataset(write("chat.jsonl", CHAT), letters, settings=settings(template="{prompt}"))


THINKS = """\
{%- for message in messages %}{{ message.role + '\n' + message.content.split('</think>')[-1] }}
{{- eos_token if message.role == 'assistant' else '\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant\n<think>\n' }}{% endif %}
"""


def test_answers_without_the_thought_of_their_prompt_are_said(write, tmp_path, settings, caplog):
    (tmp_path / "thinks.jinja").write_text(THINKS)
    answers = ["There.", "<think>\nhm\n</think>\n\nThere.", "Here."]
    path = write("rows.jsonl", [{"prompt": "Where?", "completion": answer} for answer in answers])
    own = settings(template=str(tmp_path / "thinks.jinja"), deduplicate=False)
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    dataset = load_dataset(path, tokenizer, settings=own)
    assert dataset.counts.empty_thoughts == 2
    said = "2 answers have no thought, which the prompt of the chat template opens: they are learnt behind an empty one"
    assert f"{path}: {said}" in [record.message for record in caplog.records]
    learnt = [tokenizer.decode(dataset[number][0][dataset[number][1]]) for number in range(3)]
    assert [text.count("</think>") for text in learnt] == [1, 1, 1]


def test_a_byte_order_mark_is_no_part_of_a_chat_template(tmp_path):
    """As of rows and of recipes; it stood in front of every prompt."""
    text = "{% for one in messages %}{{ one.content }}{% endfor %}"
    (path := tmp_path / "own.jinja").write_text(text, encoding="utf-8-sig")
    assert chat_template(str(path)) == (text, str(path))


def test_the_order_of_roles_is_a_chat_template_s_matter(write, fixtures, letters, settings):
    """Of a file, and of the tokenizer itself; not of one in a recipe, as those of other programs are."""
    template = "{% for one in messages %}{{ one.role }}: {{ one.content }}{% endfor %}"
    marked = template.replace("{{ one.content }}", "{% generation %}{{ one.content }}{% endgeneration %}")
    turns = [{"role": role, "content": role[0]} for role in ("developer", "assistant", "user", "user", "assistant")]
    path, file = write("a.jsonl", [{"messages": turns}]), write("own.jinja", marked)
    base = AutoTokenizer.from_pretrained(fixtures / "tok_gpt2")
    tokenizer = base.with_chat_template(marked, "own")
    for given, own in ((tokenizer, {}), (base, {"template": str(file)}), (tokenizer, {"streaming": True})):
        dataset = load_dataset(path, given, settings=settings(train_on="answers", **own), progress=False)
        ids, _ = (dataset.window(0) if own.get("streaming") else dataset)[0]
        assert base.decode(ids) == "developer: dassistant: auser: uuser: uassistant: a"
    for given, own in ((letters, {}), (base, {"template": f"{marked} "})):
        with pytest.raises(
            InputError, match=r"message 1 is from 'developer', for which .* data.roles: \{developer: system\}"
        ):
            load_dataset(path, given, settings=settings(**own), progress=False)


def test_rows_without_an_input_have_a_template_of_their_own(write, letters, settings):
    path = write("rows.jsonl", [{"instruction": "q", "input": more, "output": "a"} for more in ("i", "")])
    dataset = load_dataset(
        path, letters, settings=settings(template="{prompt}+{input}=", template_without_input="{prompt}=")
    )
    assert [text for text, _ in spelled(dataset)] == ["<q+i=a>", "<q=a>"]


def test_a_template_needs_questions(write, letters, settings):
    with pytest.raises(InputError, match=r"text\.jsonl:1: no question and answer, which data\.template needs"):
        load_dataset(write("text.jsonl", [{"text": "a"}]), letters, settings=settings(template="{prompt}"))


TURNS = [["abcdefgh", "ijklmnop"], ["qr", "st"], ["uvwxyz", "0123456789"]]


@pytest.mark.parametrize(
    ("turns", "limit", "train_on", "expected"),
    [
        (TURNS[:1], 10, "answers", ("<abcdeijkl", "ijkl")),  # both in proportion: 10 and 9 tokens
        (TURNS[:1], 18, "answers", ("<abcdefgh|ijklmnop", "ijklmnop")),
        ([["abcdefgh", "i"]], 6, "answers", ("<abci>", "i>")),  # a short answer stays
        ([["a", "ijklmnop"]], 8, "answers", ("<a|ijklm", "ijklm")),  # a short question
        (TURNS, 26, "answers", ("<abcdefgh|ijklmnop>qr|st>u", "ijklmnop>st>")),  # the first turns keep most
        (TURNS, 26, "last", ("<aqr|st>uvwxyz|0123456789>", "0123456789>")),  # or the last ones
        (TURNS[:1], 10, "all", ("<abcdeijkl", "<abcdeijkl")),
    ],
)
def test_long_samples_are_shortened_turn_by_turn(write, letters, settings, turns, limit, train_on, expected):
    """To the tokens that LLaMA-Factory leaves."""
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    path = write("chat.jsonl", [{"messages": messages}])
    cut = settings(max_length=limit, too_long="shorten", train_on=train_on)
    dataset = load_dataset(path, letters, settings=cut)
    assert spelled(dataset) == [expected] and dataset.counts.cut == 1


@pytest.mark.parametrize(
    ("limit", "train_on", "expected"),
    [
        (9, "answers", "abcd[ijkl$]"),
        (18, "answers", "abcdefgh[ijklmnop]|q[$]"),
        (21, "answers", "abcdefgh[ijklmnop]|qr[st$]"),
        (22, "answers", "abcdefgh[ijklmnop]|qr[st]|u[$]"),
        (33, "answers", "abcdefgh[ijklmnop]|qr[st]|uvwxy[0123456$]"),
        (35, "answers", "abcdefgh[ijklmnop]|qr[st]|uvwxyz[01234567$]"),
        (36, "answers", "abcdefgh[ijklmnop]|qr[st]|uvwxyz[012345678$]"),
        (100, "answers", "abcdefgh[ijklmnop]|qr[st]|uvwxyz[0123456789$]"),
        (12, "last", "uvwxy[012345$]"),
        (20, "last", "qrsuvwxyz[0123456789$]"),
        (30, "last", "abcdeijklqrstuvwxyz[0123456789$]"),
    ],
)
def test_the_one_end_of_a_conversation_stays(write, fixtures, settings, limit, train_on, expected):
    """Again to what LLaMA-Factory leaves, of its templates with one end for all answers; | is an earlier one's."""
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_gpt2")
    template = Prompt("{said}", "{said}", one_end=True).jinja()
    # each letter a token of its own
    template = re.sub(r"{{ said }}", "{% for one in said %}{{ one }}{{ cut }}{% endfor %}", template)
    roles = itertools.cycle(("user", "assistant"))
    messages = [{"role": next(roles), "content": text} for turn in TURNS for text in turn]
    cut = settings(max_length=limit, too_long="shorten", train_on=train_on, template=template)
    dataset = load_dataset(write("chat.jsonl", [{"messages": messages}]), tokenizer, settings=cut)
    text, inside = "", False
    for one, label in zip(dataset[0][0].tolist(), dataset.labels(0).tolist(), strict=True):
        mark, end = label == one, tokenizer.eos_token_id
        text += "]" * (inside and not mark) + "|" * (label == end != one)
        text += "[" * (mark and not inside) + ("$" if one == end else tokenizer.decode([one]))
        inside = mark
    assert text + "]" * inside == expected


def test_pairs_are_shortened_to_one_question(write, letters, settings):
    own = {"conversations": pairs, "documents": 2, "compares": True, "train_on": "last"}
    for compares, last in ((True, "r"), (False, "s")):  # an objective of a user's own says nothing of that
        path = write("pairs.jsonl", [{"prompt": "abcdefgh", "chosen": "ij", "rejected": f"klmnopq{last}"}])
        cut = settings(max_length=10, too_long="shorten", **{**own, "compares": compares})
        dataset = load_dataset(path, letters, settings=cut)
        assert [text for text, _ in spelled(dataset)] == ["<abcdeij>", "<abcdeklmn"]


def test_what_a_template_writes_behind_an_answer_is_no_answer_of_a_pair(write, fixtures, settings):
    turn = "{% if m.role == 'user' %}Q{{ m.content }}{% else %}{% generation %}{{ m.content }}{% endgeneration %}"
    template = f"{{% for m in messages %}}{turn}{{% endif %}}.{{% endfor %}}"
    row = {"prompt": "abcdefgh", "chosen": "ijk", "rejected": "lmnopqrst"}
    own = {"conversations": pairs, "documents": 2, "compares": True, "train_on": "last", "too_long": "shorten"}
    how = settings(template=template, max_length=12, **own)
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_gpt2")
    dataset = load_dataset(write("pairs.jsonl", [row]), tokenizer, settings=how)
    assert [tokenizer.decode(dataset[number][0].tolist()) for number in (0, 1)] == ["Qabcdefgijk", "Qabcdefglmnop"]


def test_an_end_that_is_not_written_is_a_label(fixtures, tmp_path, settings, write):
    """Where the next token stands: so LLaMA-Factory's GLM-4 learns to end earlier answers."""
    turn = "Q{{ m.content }}{% else %}{% generation %}{{ m.content }}{% endgeneration %}{{ ends }}"
    template = f"{{% for m in messages %}}{{% if m.role == 'user' %}}{turn}{{% endif %}}{{% endfor %}}"
    (tmp_path / "t.jinja").write_text(template)
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_gpt2")
    path, found = write("chat.jsonl", CHAT), {}
    for train_on in ("answers", "last"):
        how = settings(template=str(tmp_path / "t.jinja"), train_on=train_on, packing="none", max_length=16)
        dataset = load_dataset(path, tokenizer, settings=how)
        loader = Loader(dataset, settings=how, batch_size=1)
        found[train_on] = next(iter(loader.batches()))["labels"][0, : dataset.lengths[0]].tolist()
        assert dataset.label_counts.sum() == sum(label >= 0 for label in found[train_on])
    letter = {name: tokenizer.encode(name)[0] for name in "abcdeQ"}
    b, c, e, end = letter["b"], letter["c"], letter["e"], tokenizer.eos_token_id
    assert found == {"answers": [-100, -100, b, c, end, -100, e], "last": [-100] * 6 + [e]}
    assert dataset.select([0]).labels(0).tolist() == found["last"]
    shown = load_dataset(path, tokenizer, settings=settings(template=how.template, max_length=16))
    assert "Qa[[bc]][[<|endoftext|>]]Qd[[e]]" in describe(shown, tokenizer)


@pytest.mark.parametrize("how", [{}, {"train_on": "all"}, {"max_length": 8}], ids=str)
def test_segments_are_learnt_as_they_are_labelled(write, settings, how):
    """axolotl's input_output: no prompt, nothing around the texts, and control tokens by their names."""
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(find_model("llama_tiny"))
    segments = [
        {"label": False, "text": "<s>Who?"},
        {"label": True, "text": " Me.</s>"},
        {"label": False, "text": "\n"},
    ]
    path, tokenizer = (
        write("rows.jsonl", [{"segments": segments}]),
        AutoTokenizer.from_pretrained(find_model("llama_tiny")),
    )
    ((ids, trained),) = load_dataset(path, tokenizer, settings=settings(**{"max_length": 32, **how}))
    every = [theirs(one["text"], add_special_tokens=False)["input_ids"] for one in segments]
    limit, everything = how.get("max_length", 32), how.get("train_on") == "all"
    assert list(ids) == [number for own in every for number in own][:limit]
    labels = [one["label"] or everything for one, own in zip(segments, every, strict=True) for _ in own]
    assert [bool(one) for one in trained] == labels[:limit]


@pytest.mark.parametrize(
    "segment", ["a", {"text": "a"}, {"text": 1, "label": True}, {"text": "a", "label": 1}], ids=str
)
def test_segments_that_are_none_are_said(write, letters, settings, segment):
    with pytest.raises(InputError, match="segment 1: expected an object with a text and a label of true or false"):
        load_dataset(write("rows.jsonl", [{"segments": [segment]}]), letters, settings=settings())


def test_short_samples_are_left_out_and_counted(write, letters, settings, caplog):
    path = write("rows.jsonl", [{"prompt": "a", "completion": "b" * count} for count in (1, 2, 3, 9)])
    every = load_dataset(path, letters, settings=settings(max_length=9, too_long="drop"))
    kept = load_dataset(path, letters, settings=settings(max_length=9, too_long="drop", min_length=6))
    assert min(every.lengths) == 5 and list(kept.lengths) == [one for one in every.lengths if one >= 6]
    assert (kept.counts.dropped_short, kept.counts.dropped_long) == (1, 1) and kept.counts.longest == 13
    assert "1 as too short" in str(kept.counts) and "fewer tokens than data.min_length" in caplog.text
    texts = write("texts.txt", "ab\n\nabcdef\n")
    kept = load_dataset(texts, letters, settings=settings(max_length=9, min_length=6))
    assert len(kept) == 1 and kept.counts.dropped_short == 1


def test_long_samples_are_cut_or_dropped_and_counted(write, letters, settings, caplog):
    rows = [
        {"prompt": "a", "completion": "b"},
        {"prompt": "a", "completion": "b" * 9},
        {"prompt": "a" * 9, "completion": "b"},
    ]
    path = write("rows.jsonl", rows)
    cut = load_dataset(path, letters, settings=settings(max_length=6))
    assert spelled(cut) == [("<a|b>", "b>"), ("<a|bbb", "bbb")]
    assert cut.counts == Counts(rows=3, samples=2, cut=2, dropped_unlabelled=1, longest=13)
    assert [record.message for record in caplog.records] == [
        f"{path}: 2 of 3 rows are cut at data.max_length=6, 1 of them have no answer left; "
        "raise it (the longest has 13 tokens)"
    ]
    with pytest.raises(
        InputError, match=r"1 of 3 rows remain.*2 of 3 rows are left out at data\.max_length=6; raise it"
    ):
        load_dataset(path, letters, settings=settings(max_length=6, too_long="drop"))
    half = write("half.jsonl", rows[:1] * 2 + rows[1:])
    dropped = load_dataset(half, letters, settings=settings(max_length=6, too_long="drop"))
    assert spelled(dropped) == [("<a|b>", "b>")] * 2 and dropped.counts.dropped_long == 2
    with pytest.raises(InputError, match=r"1 of 3 rows remain.*2 of them have no answer left; raise it \(the longest"):
        load_dataset(write("long.jsonl", rows[:1] + rows[2:] * 2), letters, settings=settings(max_length=6))
    with pytest.raises(InputError, match=r"no sample is left: 0 samples from 3 rows; .*data\.max_length=2; raise it"):
        load_dataset(path, letters, settings=settings(max_length=2, too_long="drop"))
    texts = load_dataset(
        write("texts.txt", "abc\nabcdefgh\n"), letters, settings=settings(max_length=6, too_long="drop")
    )
    assert len(texts) == 1 and (texts.counts.dropped_long, texts.counts.divided) == (1, 0)


@pytest.mark.parametrize("streaming", [False, True])
def test_rows_without_an_answer_are_left_out_and_said(write, letters, settings, caplog, streaming):
    empty = [
        {"prompt": "a", "completion": " "},
        {"text": ""},
        {"prompt": "c", "completion": "d", "history": [["e", ""]]},
    ]
    rows = [{"prompt": "a", "completion": "b"}] * 3
    path = write("rows.jsonl", [rows[0], empty[0], *rows[1:], empty[2]])
    dataset = load_dataset(path, letters, settings=settings(streaming=streaming))
    dataset = dataset.window(0) if streaming else dataset
    assert spelled(dataset) == [("<a|b>", "b>")] * 3
    message = f"{path}: 2 of 5 rows are left out: their answer or text is empty (the first: {path}:2)"
    assert [record.message for record in caplog.records] == [message]
    assert len(load_dataset(path, letters, settings=settings(train_on="last"))) == 4  # only the last answer is learnt
    with pytest.raises(InputError, match="no sample is left"):
        load_dataset(write("texts.jsonl", [empty[1]]), letters, settings=settings())


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


@pytest.fixture
def tokenised(monkeypatch):
    """How often rows were tokenised, rather than taken from the cache."""
    calls = []
    original = cache_module.write_cache
    monkeypatch.setattr(cache_module, "write_cache", lambda *given: calls.append(given) or original(*given))
    return calls


def test_the_cache_is_used_for_the_same_content_tokenizer_and_settings(
    write, new_letters, settings, tokenised, tmp_path
):
    path = write("rows.jsonl", CHAT * 3)
    first = load_dataset(path, new_letters(), settings=settings())
    assert isinstance(first.tokens, np.memmap)

    def made_again(path=path, tokenizer=None, **changes):
        before = len(tokenised)
        dataset = load_dataset(path, tokenizer or new_letters(), settings=settings(**changes))
        assert dataset.where(0) == f"{path}:1"
        return len(tokenised) - before

    assert made_again() == 0
    assert made_again(packing="none", shuffle=False, workers=0, seed=9) == 0
    assert made_again(path=write("elsewhere/rows.jsonl", CHAT * 3)) == 0
    assert made_again(train_on="last") == 1
    assert made_again(max_length=11) == 1
    assert made_again(system="x") == 1
    assert made_again(tokenizer=new_letters("2")) == 1
    assert made_again(path=write("rows.jsonl", CHAT * 4)) == 1
    again = load_dataset(write("rows.jsonl", CHAT * 3), new_letters(), settings=settings())
    assert spelled(again) == spelled(first) and again.counts == first.counts and len(tokenised) == 6

    def one(columns):
        return [[columns]]

    def other(columns):
        return []

    digests = {cache_module.settings_digest(new_letters(), settings(conversations=each)) for each in (None, one, other)}
    assert len(digests) == 3


def test_parts_of_other_paths_and_files_of_another_kind_are_other_samples(write, letters, settings):
    for name in "ab":
        path = write(f"set/{name}.jsonl", [{"text": name * 3}] * 4)
    assert len(load_dataset(path.parent, letters, settings=settings(rows=[":3"]))) == 3
    files = sorted(path.parent.iterdir())
    assert len(load_dataset(files, letters, settings=settings(rows=[":3"]))) == 6, "of each"
    content = gzip.compress(b'{"text": "abc"}')
    read = [load_dataset(write(f"rows.{kind}.gz", content), letters, settings=settings()) for kind in ("txt", "jsonl")]
    assert [spelled(one)[0][0] for one in read] == ['<{"text": "abc"}>', "<abc>"]


def test_an_objective_is_known_by_its_module(tmp_path, monkeypatch):
    """What reads the rows may call what stands beside it."""
    found = set()
    for change in ("strip", "lower"):
        text = f"def clean(text):\n    return text.{change}()\n\n\ndef read(columns):\n    return clean(columns)\n"
        (tmp_path / "reading_rows.py").write_text(text)
        spec = importlib.util.spec_from_file_location("reading_rows", tmp_path / "reading_rows.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "reading_rows", module)
        spec.loader.exec_module(module)
        found.add(cache_module.source_of(module.read))
    assert len(found) == 2


@pytest.mark.parametrize("damage", ["flip", "shorten", "remove", "meta", "field", "deep", "count", "said"])
def test_a_damaged_cache_is_made_again_with_one_warning(write, letters, settings, tokenised, tmp_path, caplog, damage):
    path = write("rows.jsonl", CHAT * 3)
    first = spelled(load_dataset(path, letters, settings=settings()))
    (directory,) = [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]
    tokens, meta = directory / "tokens.bin", directory / "meta.json"
    if damage == "flip":
        content = bytearray(tokens.read_bytes())
        content[len(content) // 2] ^= 1
        tokens.write_bytes(content)
    elif damage == "shorten":
        tokens.write_bytes(tokens.read_bytes()[:-4])
    elif damage == "remove":
        tokens.unlink()
    elif damage == "meta":
        meta.write_text(meta.read_text()[:20])
    elif damage == "deep":
        meta.write_text("[" * 100_000)
    elif damage in ("count", "said"):
        content = json.loads(meta.read_text())
        content["counts"]["samples"] = ""
        meta.write_text(json.dumps({**content, "said": []} if damage == "said" else content))
    else:
        meta.write_text(json.dumps({"parts": {}}))
    with caplog.at_level(logging.WARNING):
        assert spelled(load_dataset(path, letters, settings=settings())) == first
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert "damaged cache" in caplog.text and len(tokenised) == 2
    caplog.clear()
    assert spelled(load_dataset(path, letters, settings=settings())) == first
    assert len(tokenised) == 2 and not caplog.records


def test_workers_end_before_an_error_of_writing_is_told(write, letters, settings, monkeypatch):
    """Whatever still held their generator ended it later, in one of the threads that it waits for."""
    ended = []

    def endless(rows, encoder, progress):
        try:
            yield from iter(list, 0)
        finally:
            ended.append(True)

    def disk_full(directory, chunks, files):
        next(chunks)
        raise OSError("full")

    monkeypatch.setattr(encode, "encode_rows", endless)
    monkeypatch.setattr(cache_module, "write_cache", disk_full)
    with pytest.raises(OSError, match="full") as caught:
        load_dataset(write("rows.jsonl", CHAT), letters, settings=settings())
    assert ended and caught.tb is not None, "which holds the generator"


@pytest.mark.parametrize(
    ("streaming", "said"),
    [
        (False, ["tokenising: 512 rows so far", "tokenising: 600 rows so far"]),
        (True, ["reading rows.jsonl: 1 rows so far"]),
    ],
)
def test_without_a_terminal_lines_say_how_far_it_is(write, letters, settings, monkeypatch, capsys, streaming, said):
    monkeypatch.setattr("pet.data.encode.LINE_EVERY", 0)
    path = write("rows.jsonl", [{"prompt": "a", "completion": "b"}] * 600)
    load_dataset(path, letters, settings=settings(streaming=streaming))
    assert capsys.readouterr().err.splitlines()[: len(said)] == said


def test_a_file_that_grows_while_it_is_read_is_an_error(write, letters, settings, monkeypatch):
    """Its rows would be kept under the digest of a part of them."""
    path = write("rows.jsonl", CHAT)
    digest = cache_module.content_digest

    def and_then_written(files):
        try:
            return digest(files)
        finally:
            write("rows.jsonl", CHAT * 2)

    monkeypatch.setattr(cache_module, "content_digest", and_then_written)
    with pytest.raises(InputError, match=r"rows\.jsonl: was written to while it was read; start again"):
        load_dataset(path, letters, settings=settings())
    monkeypatch.undo()
    write("rows.jsonl", CHAT)
    assert len(load_dataset(path, letters, settings=settings())) == 1


def test_a_cache_directory_that_cannot_be_written(write, letters, caplog, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        dataset = load_dataset(write("rows.jsonl", CHAT), letters, settings={"cache_dir": str(tmp_path / "file/cache")})
    assert len(dataset) == 1 and "cannot be written" in caplog.text


class Full(io.BytesIO):
    """A file on a disk that takes no more."""

    def write(self, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_full_cache_directory_is_as_one_that_cannot_be_written(
    write, letters, settings, tmp_path, monkeypatch, caplog, meanwhile, streaming
):
    place, temporary = tmp_path / "cache", tempfile.TemporaryFile

    def opened(path, mode="r", *buffering, **options):
        full = Path(path).is_relative_to(place) and mode == "wb"
        return Full() if full else open(path, mode, *buffering, **options)

    if meanwhile:
        for module in (cache_module, atomic):
            monkeypatch.setattr(module, "open", opened, raising=False)
    else:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Full() if dir == place else temporary(dir=dir))
    path = write("rows.jsonl", CHAT * 3)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = load_dataset(path, letters, settings=settings(streaming=streaming))
            assert (found.rows if streaming else len(found)) == 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{place}: cannot be written (the disk is full); tokenised data goes to ")
    assert not [one for one in place.iterdir() if one.suffix != ".lock"]


def test_the_users_cache_directory_is_private(tmp_path, monkeypatch):
    """Whatever the umask says; else kernels are not kept there, as others of the group could put some there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0o002)
    try:
        directory = cache_module.writable_directory(None)
    finally:
        os.umask(before)
    assert directory.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "~")  # what becomes of the home of a user whom the system does not know
    assert cache_module.writable_directory(None).name.startswith("mindspore-pet-")


def test_a_directory_instead_of_the_cache_is_gone_with_its_process(write, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "temporary").mkdir()
    arguments = [write("rows.jsonl", CHAT), tmp_path / "file/cache", bundled_models()["llama_tiny"]]
    command = [sys.executable, "-c", ELSEWHERE, *arguments]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert str(tmp_path / "temporary" / "mindspore-pet-") in ended.stderr
    assert not list((tmp_path / "temporary").glob("mindspore-pet-*"))


@pytest.mark.parametrize("template", [None, "{prompt}:"])
def test_a_row_of_answers_of_weight_0_alone_is_left_out(write, settings, template):
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    rows = [{"messages": [question, answer]}] * 2 + [{"messages": [question, {**answer, "weight": 0}]}]
    dataset = load_dataset(write("rows.jsonl", rows), tokenizer, settings=settings(template=template))
    assert len(dataset) == 2 and dataset.counts.dropped_unlabelled == 1


ELSEWHERE = """
import sys
import tracemalloc
from model_zoo.tokenizers import AutoTokenizer
from pet.data import load_dataset

path, cache, tokenizer = sys.argv[1:]
dataset = load_dataset(path, AutoTokenizer.from_pretrained(tokenizer), settings={"cache_dir": cache})
print(len(dataset), dataset.tokens.sum())
"""


def test_processes_that_start_together_share_one_cache(write, fixtures, tmp_path):
    command = [sys.executable, "-c", ELSEWHERE, write("rows.jsonl", CHAT * 200), tmp_path / "cache"]
    processes = [
        subprocess.Popen([*map(str, command), str(fixtures / "tok_chatglm1")], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    found = {process.communicate(timeout=HANGING)[0] for process in processes}
    assert len(found) == 1 and found.pop().startswith("200 ")
    assert len([entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]) == 1


def some_rows(count, seed=0):
    seeded = random.Random(seed)
    words = ["今天", "天气", "很", "好", "the", "quick", "brown", "fox", "裙子", "上衣", "and", "1", "2", "3", "x"]

    def text():
        return " ".join(seeded.choices(words, k=seeded.randint(1, 30)))

    return [{"content": text(), "summary": text()} for _ in range(count)]


def test_several_processes_give_what_one_gives(write, fixtures, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_chatglm1")
    path = write("rows.jsonl", some_rows(5000))
    alone, shared = (
        load_dataset(path, tokenizer, settings={"workers": workers, "cache_dir": str(tmp_path / str(workers))})
        for workers in (0, 2)
    )
    assert len(alone) == 5000 and alone.counts == shared.counts
    for name in ("tokens", "trained", "starts", "lengths", "origin"):
        assert np.array_equal(getattr(alone, name), getattr(shared, name))


def test_an_error_in_a_worker_is_the_callers():
    with Workers(json.loads, 2) as workers:
        assert list(workers.map(["1", "[2]", "3"] * 9)) == [1, [2], 3] * 9
        with pytest.raises(json.JSONDecodeError):
            list(workers.map(["1", "x"]))


def test_a_process_of_a_job_may_wait_for_its_workers_for_any_time(tmp_path, monkeypatch):
    """Where each of two machines tokenised for more than ten seconds, the job ended as one that hangs."""
    monkeypatch.setenv(heartbeat.BEAT_FILE, str(tmp_path / "beat"))
    answer, result, states = Workers._answer, Future.result, []

    def noted(wait):
        def waited(*words):
            if threading.current_thread() is threading.main_thread():
                states.append(heartbeat._now[0])
            return wait(*words)

        return waited

    monkeypatch.setattr(Workers, "_answer", staticmethod(noted(answer)))
    monkeypatch.setattr(Future, "result", noted(result))
    with heartbeat.watched():
        progress.tick()
        with Workers(json.loads, 1) as workers:
            assert list(workers.map(["[1]"] * 4)) == [[1]] * 4
    assert states == [heartbeat.PAUSING] * 5


@pytest.mark.parametrize(
    ("end", "given", "words"),
    [(os._exit, 7, "ended with exit code 7; data.workers: 0"), (signal.raise_signal, 9, "SIGKILL.*lack of memory")],
)
def test_a_worker_that_dies_is_reported(end, given, words):
    with Workers(end, 1) as workers, pytest.raises(InputError, match=words):
        list(workers.map([given]))


USERS = """
import sys
print("printed when it is imported")
class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one + two)
class Tokenizer:
    def __init__(self):
        self.state = 1
    def __call__(self, chunk):
        if chunk == "x":
            raise Odd("an ", "error")
        return chunk * 2
class Ends(Tokenizer):
    def __setstate__(self, state):
        sys.exit(3)
class Raises(Tokenizer):
    def __getstate__(self):
        raise RuntimeError("it has no state")
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    """A module of the user's, beside a Python that prints at its start and in a directory that is gone."""
    gone, begins, beside = tmp_path / "gone", tmp_path / "begins", tmp_path / "named:so"
    for directory in (gone, begins, beside):
        directory.mkdir()
    (begins / "sitecustomize.py").write_text("print('the start', end='')")
    (beside / "modules_of_a_user.py").write_text(USERS)
    monkeypatch.setenv("PYTHONPATH", str(begins))
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.syspath_prepend("")
    monkeypatch.syspath_prepend(str(beside))
    yield importlib.import_module("modules_of_a_user")
    del sys.modules["modules_of_a_user"]


def test_workers_find_what_this_process_finds(users):
    with Workers(users.Tokenizer(), 2) as workers:
        assert list(workers.map(["a", "b", "c"])) == ["aa", "bb", "cc"]
        with pytest.raises(RuntimeError, match=r"^Odd: an error$"):
            list(workers.map(["x"]))


@pytest.mark.parametrize(
    ("kind", "words"), [("Ends", r"other processes \(.*exit code 3"), ("Raises", r"\(it has no state\)")]
)
def test_a_tokenizer_that_no_worker_can_have(users, kind, words):
    with pytest.raises(NoWorkers, match=words):
        Workers(getattr(users, kind)(), 1)


def test_a_process_that_can_start_no_other_works_alone(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(NoWorkers, match="other processes cannot be started"):
        Workers(json.loads, 1)


def test_a_worker_has_no_workers(monkeypatch, letters, settings):
    monkeypatch.setattr(Workers, "within", True)
    assert start_workers(Encoder(letters, settings(workers=2))) is None


def test_a_tokenizer_that_cannot_be_sent_is_used_here(write, new_letters, settings, caplog):
    class Local(new_letters):
        pass

    path = write("rows.jsonl", [{"text": "abc"}] * 5000)
    with caplog.at_level(logging.WARNING):
        assert len(load_dataset(path, Local(), settings=settings(workers=2))) == 5000
    assert "cannot be sent to other processes" in caplog.text


@pytest.mark.parametrize("rows", [{"streaming": True, "stream_window": 5000}, {}])
def test_a_tokenizer_of_the_users_own_script_is_used_here(write, rows, tmp_path):
    """A worker could not import the script's classes: it ended, and the run with it."""
    conftest = Path(__file__).with_name("conftest.py").read_text()
    loading = (
        f"load_dataset({str(write('rows.jsonl', [{'text': 'abc'}] * 10000))!r}, LetterTokenizer(), settings=settings)"
    )
    script = write(
        "own.py",
        f"""{conftest}
from pet.data import load_dataset, make_loader
settings = {{"workers": 2, "max_length": 20, "packing": "none", "cache_dir": {str(tmp_path / "cache")!r}, **{rows}}}
print(sum(len(batch["sample_ids"]) for batch in make_loader({loading}, 2, settings).batches(0)))
""",
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert ran.stdout == "10000\n" and ran.stderr.count("cannot be sent to other processes") == 1, ran.stderr
    assert "Traceback" not in ran.stderr


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


def test_undesirable_answers_are_no_references(write, letters, settings):
    liked = {"a": True, "b": False, "c": True}
    rows = [{"prompt": name, "completion": name.upper(), "label": label} for name, label in liked.items()]
    how = settings(conversations=labelled, train_on="last")
    path = write("labelled.jsonl", rows)
    asked = load_questions(load_dataset(path, letters, settings=how), letters, settings=how)
    assert [(one.prompt, one.reference) for one in asked] == [("a", "A"), ("c", "C")]


ANSWERING = """\
{% for m in messages %}
<|{{ m.role }}|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
{% if m.role == 'assistant' %}<|endoftext|>{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}
"""


def test_the_reference_is_what_is_learnt(write, settings, tmp_path):
    """A call of a tool was compared with nothing, and a thought was left out."""
    from pet.names import bundled_models

    (tmp_path / "own.jinja").write_text(ANSWERING)
    call = [{"function": {"name": "find", "arguments": {"what": 1}}}]
    answers = {"content": "It is."}, {"content": "It is.", "reasoning_content": "Is it?"}, {"tool_calls": call}
    rows = [{"messages": [{"role": "user", "content": "What?"}, {"role": "assistant", **one}]} for one in answers]
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["glm4_tiny"])
    how = settings(template=str(tmp_path / "own.jinja"))
    held = load_dataset(write("rows.jsonl", rows), tokenizer, settings=how)
    found = [one.reference for one in load_questions(held, tokenizer, settings=how)]
    assert found[:2] == ["It is.", "<think>Is it?</think>It is."]
    assert json.loads(found[2]) == call[0]["function"]


def test_a_row_is_tokenised_once_and_never_again(write, fixtures, settings, monkeypatch):
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_chatglm1")
    path = write("rows.jsonl", some_rows(300))
    seen, example = [], tokenizer.example
    monkeypatch.setattr(tokenizer, "example", lambda *given, **more: seen.append(given) or example(*given, **more))
    dataset = load_dataset(path, tokenizer, settings=settings(workers=0))
    first = len(seen)
    assert load_dataset(path, tokenizer, settings=settings(workers=0)).counts == dataset.counts
    second = len(seen) - first  # whatever tells the tokenizer from another one
    assert dataset.counts.rows == first - second == 300 and second <= 1


def test_a_changed_part_of_a_mindrecord_set_is_noticed(letters, settings, tmp_path):
    from mindspore.mindrecord import FileWriter

    def store(last):
        writer = FileWriter(str(tmp_path / "set.mindrecord"), shard_num=2, overwrite=True)
        writer.add_schema({"text": {"type": "string"}}, "rows")
        writer.write_raw_data([{"text": "aaaa"}, {"text": "bbbb"}, {"text": "cccc"}, {"text": last}])
        writer.commit()
        dataset = load_dataset(tmp_path / "set.mindrecord0", letters, settings=settings())
        return sorted(text for _, text in spelled(dataset))

    assert store("dddd") == ["aaaa>", "bbbb>", "cccc>", "dddd>"]
    assert store("eeee") == ["aaaa>", "bbbb>", "cccc>", "eeee>"]


def test_a_killed_write_leaves_nothing_behind(write, letters, settings, tmp_path, monkeypatch):
    path = write("rows.jsonl", CHAT)
    load_dataset(path, letters, settings=settings())
    (directory,) = [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]
    half = directory.with_name(f".{directory.name}.unfinished-x")
    directory.rename(half)
    assert len(load_dataset(path, letters, settings=settings())) == 1
    assert directory.is_dir() and not half.exists()


def test_the_question_of_an_alpaca_row_holds_its_input(write, letters, settings):
    path = write("rows.jsonl", [{"instruction": "a", "input": "b", "output": "c"}])
    (question,) = load_questions(path, letters, settings=settings())
    assert question.prompt == "a\nb" and letters_of(question.prompt_ids) == "<a\nb|"
    asked = [
        load_questions(path, letters, settings=settings(template=one)) for one in ("{prompt}?", "{prompt}, {input}?")
    ]
    assert [letters_of(one.prompt_ids) for (one,) in asked] == ["<a\nb?", "<a, b?"], "without a place of its own, too"


TEMPLATE = """\
{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{% for m in messages %}
<|{{ m.role }}|>{{ m.content }}{% if m.role == 'assistant' %}<|endoftext|>{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% if enable_thinking == false %}ok {% endif %}{% endif %}
"""


@pytest.mark.parametrize(("thinking", "opening"), [(None, ""), (False, "ok ")])
def test_a_jinja_file_makes_prompts_and_samples(write, tmp_path, settings, thinking, opening):
    from pet.names import bundled_models

    def text(ids):
        return tokenizer.decode(ids, skip_special_tokens=False)

    (tmp_path / "own.jinja").write_text(TEMPLATE)
    talk = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "ok This."}]
    path = write("rows.jsonl", [{"messages": talk, "tools": [{"name": "find"}]}])
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["glm4_tiny"])
    chosen = settings(template=str(tmp_path / "own.jinja"), enable_thinking=thinking)
    (question,) = load_questions(path, tokenizer, settings=chosen)
    assert text(question.prompt_ids) == f"find <|user|>What?<|assistant|>{opening}"
    ids, trained = load_dataset(path, tokenizer, settings=chosen)[0]
    assert text(ids[trained]) == "ok This.<|endoftext|>".removeprefix(opening)
    said = [{"messages": talk, "chat_template_kwargs": {"enable_thinking": own}} for own in (False, True, None)]
    prompts = [text(one.prompt_ids) for one in load_questions(write("own.jsonl", said), tokenizer, settings=chosen)]
    assert [one.rpartition("<|assistant|>")[2] for one in prompts] == ["ok ", "", opening], "a row's own goes first"
    (tmp_path / "own.jinja").write_text(TEMPLATE.replace("{{ tool.function.name }}", "{{ tool.function.name * 2 }}"))
    again, _ = load_dataset(path, tokenizer, settings=chosen)[0]
    assert text(again).startswith("findfind <|user|>"), "the file's text decides, not its name"


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


@pytest.mark.parametrize("family", ["llama_tiny", "gpt_tiny"])
@pytest.mark.parametrize("template", ["<s>[INST] {prompt} [/INST]", "a {prompt}</s>", "{prompt}<|endoftext|>{input}:"])
def test_control_tokens_of_a_template_are_such(write, settings, family, template):
    """As transformers reads the same text; what a row says of them stays text, and is noted."""
    reference = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(bundled_models()[family])
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()[family])
    more = "x" * template.count("{input}")
    path = write("rows.jsonl", [{"instruction": "Hi there", "input": more, "output": "you"}])
    dataset = load_dataset(path, tokenizer, settings=settings(template=template, max_length=64))
    ids, trained = dataset[0]
    expected = reference(template.replace("{prompt}", "Hi there").replace("{input}", "x")).input_ids
    if not template.endswith("</s>"):  # GPT-2's puts it behind a text as well
        expected = expected[: len(expected) - (expected[-1] == reference.eos_token_id)]
    assert ids[: len(expected)].tolist() == expected and not trained[: len(expected)].any()


def test_control_tokens_in_what_is_said_stay_text_and_are_noted(write, settings, caplog):
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    path = write("rows.jsonl", [{"instruction": "a", "output": f"b{end}"} for end in ("</s>", "", "</s>")])
    dataset = load_dataset(path, tokenizer, settings=settings(template="<s>{prompt}", max_length=64))
    assert dataset[0][0].tolist().count(tokenizer.eos_token_id) == 1
    texts = write("texts.jsonl", [{"text": "[INST] a [/INST] b </s><s>"}])
    load_dataset(texts, tokenizer, settings=settings(format="text", max_length=64))
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "</s> in what is said, which stays text, as a control token is not read in 2 of 3 rows" in said
    assert "</s>, <s> in what is said" in said
