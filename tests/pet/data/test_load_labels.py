"""Which tokens of a sample are learnt, and how long samples are shortened."""

import itertools
import json
import re

import pytest
from letter_samples import CHAT, spelled

from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.data import (
    Counts,
    Loader,
    load_dataset,
    load_questions,
)
from pet.data.preferences import labelled, pairs
from pet.data.prompt import Prompt
from pet.data.show import describe
from pet.names import bundled_models, find_model


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
