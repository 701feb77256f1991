"""Published forms of preference data, and what cannot be used."""

import csv
import json

import numpy as np
import pytest

from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.data import DataSettings, TokenDataset, load_dataset
from pet.data.classified import asked
from pet.data.formats import read_rows
from pet.data.preferences import labelled, pairs, ranked
from pet.names import bundled_models
from pet.recipe.classes import rows_of

USER, GOOD, BAD = (
    {"role": role, "content": text} for role, text in (("user", "Q"), ("assistant", "A"), ("assistant", "B"))
)
EXPECTED = [[USER, GOOD], [USER, BAD]]


@pytest.mark.parametrize(
    "columns",
    [
        {"prompt": "Q", "chosen": "A", "rejected": "B"},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "Q", "chosen": [USER, GOOD], "rejected": [USER, BAD], "score_chosen": 1.0},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "Q", "messages": [USER, GOOD], "chosen": [USER, GOOD], "rejected": [USER, BAD], "score_chosen": 8.0},
        {"messages": [USER], "chosen": GOOD, "rejected": BAD},
        {"instruction": "Q", "input": "", "chosen": "A", "rejected": "B"},
        {"instruction": "Q", "chosen_response": "A", "rejected_response": "B"},
        {"messages": [USER, GOOD], "rejected_response": "B"},
        {"messages": [USER, GOOD], "rejected_messages": [USER, BAD]},
        {"chosen": "\n\nHuman: Q\n\nAssistant: A", "rejected": "\n\nHuman: Q\n\nAssistant: B"},
    ],
)
def test_forms(columns, tmp_path):
    assert pairs(columns) == EXPECTED
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerow(
            {name: value if isinstance(value, str) else json.dumps(value) for name, value in columns.items()}
        )
    (row,) = read_rows(tmp_path / "rows.csv", conversations=pairs, documents=2)
    assert [row.messages, *row.others] == EXPECTED


def test_openais_pairs(tmp_path):
    tools = [{"type": "function", "function": {"name": "find"}}]
    row = {"input": {"messages": [USER], "tools": tools}, "preferred_output": [GOOD], "non_preferred_output": [BAD]}
    found = of_one_row(tmp_path, "dpo", row)
    assert ([found.messages, *found.others], found.tools, found.unread) == (EXPECTED, tools, [])
    with pytest.raises(InputError, match=r"from 'user'; expected an answer .*; chosen and rejected are learnt by"):
        list(read_rows(tmp_path / "rows.jsonl"))


def test_sharegpt_with_ranking():
    turns = [{"from": "human", "value": "Q"}]
    good, bad = {"from": "gpt", "value": "A"}, {"from": "gpt", "value": "B"}
    assert pairs({"conversations": turns, "chosen": good, "rejected": bad}) == [[*turns, good], [*turns, bad]]


CALLS = [
    {"role": "assistant", "content": "", "tool_calls": [{"id": i, "function": {"name": n}}]} for i, n in ("1f", "2g")
]


def test_calls_and_thoughts_are_compared():
    """Beside the texts; not how calls are numbered, nor in which form a text stands."""
    better, worse = CALLS
    assert pairs({"prompt": "Q", "chosen": [better], "rejected": [worse]}) == [[USER, better], [USER, worse]]
    again = {**better, "tool_calls": [{**better["tool_calls"][0], "id": "3"}]}
    thoughts = [{**GOOD, "reasoning_content": text} for text in "xy"]
    assert pairs({"prompt": "Q", "chosen": thoughts[:1], "rejected": thoughts[1:]})[0][-1] == thoughts[0]
    parts = {**USER, "content": [{"type": "text", "text": "Q"}]}
    assert pairs({"chosen": [parts, better, GOOD], "rejected": [USER, again, BAD]})[1] == [USER, again, BAD]
    with pytest.raises(ValueError, match="are the same"):
        pairs({"prompt": "Q", "chosen": [better], "rejected": [again]})
    with pytest.raises(ValueError, match="differ before their last answer"):
        pairs({"chosen": [USER, better, GOOD], "rejected": [USER, worse, BAD]})


def test_a_call_in_json_is_a_message():
    call = {"role": "assistant", "tool_calls": CALLS[0]["tool_calls"]}
    assert pairs({"prompt": "Q", "chosen": json.dumps([call]), "rejected": "B"}) == [[USER, call], [USER, BAD]]


@pytest.mark.parametrize("name", ["instruction", "question"])
def test_a_template_has_the_input_where_it_says(name, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    rows = [{name: "Q", "input": "X", "chosen": "A", "rejected": "B"}, {name: "Q", "chosen": "A", "rejected": "C"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    how = {"max_length": 64, "template": "{prompt}|{input}|", "conversations": pairs, "documents": 2}
    found = load_dataset(tmp_path / "rows.jsonl", tokenizer=tokenizer, settings=DataSettings(**how))
    assert [tokenizer.decode(found[n][0].tolist()).split("|")[:2] for n in range(4)] == [["Q", "X"]] * 2 + [
        ["Q", ""]
    ] * 2


def test_an_answer_in_json_is_a_text():
    answers = '{"role": "x"}', "[1, 2]", "[]", "{x", '[{"role": "user", "content": "c"}, 3]'
    for answer in answers:
        assert pairs({"prompt": "Q", "chosen": answer, "rejected": "B"})[0] == [USER, {**GOOD, "content": answer}]


def test_rows_of_a_list_and_named_columns(tmp_path):
    rows = [{"ask": "Q", "chosen": f"A{number}", "rejected": "B"} for number in range(2)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    given = {"conversations": pairs, "documents": 2}
    found = list(read_rows(tmp_path / "rows.json", columns={"prompt": "ask"}, **given))
    assert [row.messages[-1]["content"] for row in found] == ["A0", "A1"]
    assert len({row.where for row in found}) == 2, "rows of one line have names of their own"
    with pytest.raises(InputError, match=r"no column 'asks', which is to be the prompt .did you mean 'ask'"):
        list(read_rows(tmp_path / "rows.json", columns={"prompt": "asks"}, **given))


def test_system_and_earlier_turns_stay():
    system = {"role": "system", "content": "S"}
    assert pairs({"system": "S", "prompt": "Q", "chosen": "A", "rejected": "B"})[0] == [system, USER, GOOD]
    before = [{"role": "user", "content": "H"}, {"role": "assistant", "content": "I"}]
    row = {"system": "S", "instruction": "Q", "history": [["H", "I"]]}
    assert pairs({**row, "chosen": "A", "rejected": "B"})[1] == [system, *before, USER, BAD]
    assert labelled({**row, "output": "A", "label": True})[0][:-1] == [system, *before, USER]
    talk = "\n\nHuman: H\n\nAssistant: I\n\nHuman: Q\n\nAssistant:"
    first, second = pairs({"chosen": f"{talk} A", "rejected": f"{talk} B"})
    assert [one["content"] for one in first] == ["H", "I", "Q", "A"] and second[:-1] == first[:-1]
    for prompt in (talk, "\n\nHuman: Q\n\nAssistant:"):  # the dialogue until the answer as the question
        question = [USER] if prompt != talk else [*before, USER]
        assert pairs({"prompt": prompt, "chosen": "A", "rejected": "B"}) == [[*question, GOOD], [*question, BAD]]
    spoken = "The Human: a being. So says an Assistant: always"
    first, second = pairs({"chosen": f"{talk} {spoken}", "rejected": f"{talk} B"})
    assert first[-1]["content"] == spoken and second[:-1] == first[:-1], "a turn begins a line"


def test_a_column_without_a_name_is_left_out(tmp_path):
    """As of rows that no objective reads itself; another name of the same is read."""
    row = {"prompt": "Q0", "question": "Q", "chosen": "A", "rejected": "B", "completion": "A", "label": 1}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    for objective, columns in (("dpo", {"prompt": ""}), ("classification", {"prompt": "", "text": "completion"})):
        reading = rows_of(objective)
        reading = {name: reading[name] for name in ("conversations", "documents")}
        (found,) = read_rows(tmp_path / "rows.jsonl", columns=columns, **reading)
        assert found.text == "A" if objective == "classification" else found.messages[0]["content"] == "Q"
        assert not {"prompt"} & set(found.unread)


def test_a_column_that_has_a_role_is_read(tmp_path):
    """By whatever name the file has it; nobody is told of it that it is not read."""
    rows = [
        {"conversations": [USER], "chosen": "A", "rejected": "B", "prompt": "other"},
        {"instruction": "Q", "output": "A", "tag": True, "input": ""},
    ]
    named = {"dpo": {"messages": "conversations"}, "kto": {"prompt": "instruction", "label": "tag"}}
    for row, (objective, columns) in zip(rows, named.items(), strict=True):
        (tmp_path / "rows.jsonl").write_text(json.dumps(row))
        reading = {name: one for name, one in rows_of(objective).items() if name in ("conversations", "documents")}
        (found,) = read_rows(tmp_path / "rows.jsonl", columns=columns, **reading)
        assert found.messages[0]["content"] == USER["content"]
        assert not found.beside and found.unread == (["prompt"] if objective == "dpo" else [])


@pytest.mark.parametrize("objective", ["reward", "dpo"])
def test_a_margin_is_a_reward_models(objective, tmp_path):
    """Of other objectives it is said that it is not read."""
    rows = [{"prompt": "Q", "chosen": "A", "rejected": "B", "margin": margin} for margin in (0.5, None)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    settings = DataSettings(**rows_of(objective), cache_dir=str(tmp_path))
    for _ in range(2):  # also out of the cache
        dataset = load_dataset([tmp_path / "rows.jsonl"], tokenizer=tokenizer, settings=settings)
        found = dataset.counts.findings(512)
        said = f"column 'margin' is not read in 1 of 2 rows (the first: {tmp_path / 'rows.jsonl'}:1)"
        assert found == ([said] if objective == "dpo" else []) and len(dataset) == 4
        own = [0.5, 0.5, None, None] if objective == "reward" else [None] * 4
        assert [dataset.label(number) for number in range(4)] == own
    for wrong in ("much", [1], float("nan"), True, 10**400):
        with pytest.raises(ValueError, match="margin: a number was expected"):
            ranked({**rows[0], "margin": wrong})
    assert ranked({**rows[0], "margin": "0.25"})[0][-1]["margin"] == 0.25, "in CSV it is a text"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt": "Q", "chosen": "A", "rejected": "A"}, "the same"),
        ({"chosen": "A", "rejected": "B"}, "no question"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "no question"),
        ({"prompt": "Q", "chosen": 3, "rejected": "B"}, "chosen: expected a text or messages"),
        ({"prompt": "Q", "chosen": [], "rejected": "B"}, "chosen: expected messages"),
        ({"prompt": [3], "chosen": "A", "rejected": "B"}, "prompt: expected messages"),
        ({"messages": [USER, 3], "chosen": "A", "rejected": "B"}, "messages: expected messages"),
        ({"chosen": [USER, GOOD], "rejected": [BAD, GOOD]}, "differ before"),
    ],
)
def test_what_cannot_be_compared(columns, message):
    with pytest.raises(ValueError, match=message):
        pairs(columns)


@pytest.mark.parametrize(
    ("objective", "columns"),
    [
        ("dpo", {"prompt": "input", "chosen": "best", "rejected": "worse"}),
        ("kto", {"prompt": "input", "answer": "best", "label": "fine"}),
        ("kto", {"messages": "response", "label": "fine"}),
    ],
)
def test_a_column_with_a_role_is_read_in_it_alone_and_is_the_only_one_of_it(tmp_path, objective, columns):
    row = {"input": "Q", "best": "A", "worse": "B", "response": [USER, GOOD], "fine": True}
    row |= {"messages": [GOOD, USER], "prompt": "another", "kto_tag": False}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    settings = DataSettings(columns=columns, **rows_of(objective))
    (read,) = read_rows(tmp_path / "rows.jsonl", **settings.reading)
    assert [one["content"] for one in read.messages] == ["Q", "A"]
    assert read.label is (True if objective == "kto" else None)


@pytest.mark.parametrize("flagged", ["chosen", "rejected"])
def test_a_pair_with_an_answer_that_is_not_learnt_is_left_out(tmp_path, flagged):
    row = {"messages": [USER], "chosen": GOOD, "rejected": BAD}
    rows = [row, row, {**row, flagged: {**row[flagged], "weight": 0}}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tokenizer = AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    dataset = load_dataset(tmp_path / "rows.jsonl", tokenizer, settings=DataSettings(**rows_of("dpo")))
    assert dataset.counts.samples == 2 and dataset.counts.dropped_unlabelled == 1


def test_a_missing_answer_is_a_missing_column():
    with pytest.raises(KeyError, match="rejected"):
        pairs({"prompt": "Q", "chosen": "A"})


@pytest.mark.parametrize(
    "columns",
    [
        {"prompt": "Q", "completion": "A", "label": True},
        {"prompt": [USER], "completion": [GOOD], "label": "true"},
        {"messages": [USER, GOOD], "kto_tag": True},
        {"instruction": "Q", "output": "A", "kto_tag": 1},
    ],
)
def test_answers_with_a_label(columns):
    assert labelled(columns) == [[USER, {**GOOD, "desirable": True}]]


def test_labels_are_true_or_false():
    assert labelled({"prompt": "Q", "completion": "A", "label": False})[0][-1]["desirable"] is False
    with pytest.raises(ValueError, match="label: expected true or false, found 'good'"):
        labelled({"prompt": "Q", "completion": "A", "label": "good"})
    with pytest.raises(KeyError, match="completion"):
        labelled({"prompt": "Q", "label": True})


def of_one_row(tmp_path, objective, row, **how):
    """The row as an objective reads it out of a file."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (found,) = read_rows(tmp_path / "rows.jsonl", **{**DataSettings(**rows_of(objective)).reading, **how})
    return found


PAIR, JUDGED = {"prompt": "Q", "chosen": "A", "rejected": "B"}, {"prompt": "Q", "completion": "A", "label": True}


@pytest.mark.parametrize(
    ("objective", "row", "words"),
    [
        ("dpo", {"prompt": "Q", "chosen": "A", "rejectd": "B"}, r"no column 'rejected' or .*did you mean 'rejectd'"),
        ("dpo", {**PAIR, "rejected": None}, "column 'rejected': expected a text or messages, found null"),
        ("dpo", {**PAIR, "prompt": 3}, "column 'prompt': expected a string, found a number"),
        ("dpo", {**PAIR, "system": 3}, "column 'system': expected a string, found a number"),
        ("kto", {**JUDGED, "completion": None}, "column 'completion': expected a string, found null"),
        ("kto", {**JUDGED, "label": None}, "column 'label': expected a label, found null"),
        ("classification", {"text": None, "label": 1}, "column 'text': expected a string, found null"),
        ("classification", {"text": "a", "lable": 1}, "no column 'label' or 'labels', .*did you mean 'lable'"),
    ],
)
def test_what_a_row_lacks_is_said_in_the_same_words_everywhere(tmp_path, objective, row, words):
    with pytest.raises(InputError, match=words):
        of_one_row(tmp_path, objective, row)


def test_of_two_names_the_one_that_holds_something_counts(tmp_path):
    """A table has all columns in all rows, with null or an empty text where a row has nothing."""
    assert of_one_row(tmp_path, "kto", {**JUDGED, "kto_tag": None}).label is True
    assert of_one_row(tmp_path, "kto", {**JUDGED, "kto_tag": False}).label is False
    found = of_one_row(tmp_path, "causal", {"prompt": "", "question": "Q", "completion": "", "answer": "A"})
    assert found.messages == [USER, GOOD] and not found.unread
    found = of_one_row(tmp_path, "classification", {"text": "a", "text_pair": None, "label": 1})
    assert (found.text, found.text_pair) == ("a", None)


def test_messages_in_columns_are_messages_of_pairs_too(tmp_path):
    """As Hugging Face's datasets write a list of objects."""
    chosen = {"role": ["user", "assistant"], "content": ["Q", "A"]}
    found = of_one_row(tmp_path, "dpo", {"chosen": chosen, "rejected": [USER, BAD]})
    assert [found.messages, *found.others] == EXPECTED
    asked = {"role": ["user"], "content": ["Q"]}
    assert of_one_row(tmp_path, "dpo", {"messages": asked, "chosen": "A", "rejected": "B"}).messages == EXPECTED[0]


def test_shared_gpts_messages_in_json_are_messages_of_a_prompt(tmp_path):
    asked, said = ({"from": who, "value": text} for who, text in (("human", "Q"), ("gpt", "A")))
    row = {"prompt": f" {json.dumps([asked])}", "completion": json.dumps([said])}
    assert of_one_row(tmp_path, "causal", row).messages == [USER, GOOD]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_system_column_beside_a_system_message_is_not_read_and_said_so(tmp_path, role):
    own = {"role": role, "content": "own"}
    for row in (
        {**PAIR, "prompt": [own, USER]},
        {"chosen": [own, USER, GOOD], "rejected": [own, USER, BAD]},
    ):
        found = of_one_row(tmp_path, "dpo", {**row, "system": "column"}, any_order=True)
        assert [one["content"] for one in found.messages] == ["own", "Q", "A"] and found.unread == ["system"]
    assert of_one_row(tmp_path, "dpo", {**PAIR, "prompt": [own, USER], "system": "own"}, any_order=True).unread == []


@pytest.mark.parametrize("objective", ["causal", "classification"])
def test_settings_of_a_chat_template_beside_a_text_are_not_read_and_said_so(tmp_path, objective):
    row = {"text": "a", "label": 1, "chat_template_kwargs": {"enable_thinking": True}}
    unread = ["label"] * (objective == "causal") + ["chat_template_kwargs"]
    assert of_one_row(tmp_path, objective, row).unread == unread


@pytest.mark.parametrize(("objective", "role"), [("dpo", "label"), ("kto", "chosen"), ("classification", "prompt")])
def test_a_role_that_an_objective_has_not_is_refused(tmp_path, objective, role):
    row = {**PAIR, **JUDGED, "text": "a"}
    with pytest.raises(InputError, match=f"data.columns: the objective has no {role}"):
        of_one_row(tmp_path, objective, row, columns={role: "prompt"})


def test_questions_need_no_label_where_columns_are_named(tmp_path):
    how = {"columns": {"text": "review", "label": "stars"}, "conversations": asked, "answers": False}
    for row in ({"review": "a"}, {"review": "a", "stars": None}):
        found = of_one_row(tmp_path, "classification", row, **how)
        assert (found.text, found.label) == ("a", None)


def test_what_is_selected_is_counted_in_pairs():
    documents = [(np.arange(3) + index, np.ones(3, bool)) for index in range(6)]
    dataset = TokenDataset.from_samples(documents)
    dataset.documents = 2
    dataset.origin = np.array([[0, 1, 0], [0, 1, 0], [0, 2, 0], [0, 2, 0], [0, 3, 0], [0, 3, 0]])
    found = dataset.select([0, 1, 4, 5])
    assert (found.counts.rows, found.counts.samples) == (2, 2)
    assert [ids.tolist() for ids, _ in map(found.__getitem__, range(4))] == [[0, 1, 2], [1, 2, 3], [4, 5, 6], [5, 6, 7]]
