"""Data sets that job files of LLaMA-Factory and axolotl name: kinds, columns, parts and lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from job_files import CHAT, CHATML, JOBS, of_llama_factory, write

from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.compat import axolotl, llama_factory
from pet.compat.prompts import ALPACA, LLAMA_FACTORY, of_turns
from pet.compat.yaml_files import load_any
from pet.data.encode import Encoder
from pet.data.formats import read_rows
from pet.data.settings import DataSettings


@pytest.mark.parametrize(
    ("entry", "settings"),
    [
        ({"type": "completion", "field": "body"}, {"data.format": "text", "data.columns": {"text": "body"}}),
        (
            {"type": "chat_template", "field_messages": "talk"},
            {"data.format": "chat", "data.columns": {"messages": "talk"}},
        ),
        (
            {"type": "alpaca", "split": "train[:5%]"},
            {"data.format": "alpaca", "data.rows": [":5%"], "data.template": ALPACA["alpaca"][0][0]}
            | {"data.template_without_input": ALPACA["alpaca"][0][1]},
        ),
        (
            {"type": "alpaca:chat", "ds_type": "json"},
            {"data.format": "alpaca", "data.template": ALPACA["alpaca:chat"][0][0], "data.rows": None},
        ),
        (
            {"type": {"field_instruction": "ask", "field_output": "reply", "format": "Q: {instruction}\nA: "}},
            {"data.columns": {"prompt": "ask", "answer": "reply"}, "data.template": "{system}Q: {prompt}\nA: "}
            | {"data.template_without_input": "{system}{prompt} "},
        ),
        (
            {"type": {"format": "{instruction}", "no_input_format": "{instruction}", "system_prompt": "Be short. "}},
            {"data.template": "{system}{prompt}", "data.template_without_input": None, "data.system": "Be short. "},
        ),
        (
            {"type": {"field_instruction": "input", "field_output": "output", "format": "[{instruction}] {input}"}},
            {
                "data.template": "{system}[{prompt}] {prompt}",
                "data.template_without_input": None,
            },  # one column for both
        ),
        (
            {"type": {"field_system": "told", "system_prompt": "For rows without the column. "}},
            {"data.columns": {"system": "told"}, "data.system": None},
        ),
        ({"type": "chat_template", "chat_template": "chatml"}, {"data.template": CHATML}),
        ({"type": "sharegpt", "conversation": "chatml"}, {"data.template": of_turns("chatml", None)}),
        ({"type": "input_output"}, {"data.format": "segments", "data.template": None}),
    ],
)
def test_axolotls_kinds_of_data(tmp_path, entry, settings):
    file = {**JOBS["axolotl"], "datasets": [{"path": "rows.jsonl", **entry}]}
    translation = axolotl.translate(file, tmp_path / "job.yaml")
    assert not translation.problems
    assert {key: translation.get(key) for key in settings} == settings


ASKED, WITH_INPUT = {"instruction": "Q", "output": "A"}, {"instruction": "Q", "input": "I", "output": "A"}
INSTRUCT = "### Instruction:\nQ\n\n### Response:\n"


@pytest.mark.parametrize(
    ("kind", "row", "expected"),
    [
        ("alpaca:chatml", ASKED, "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"),
        ("alpaca:phi", WITH_INPUT, "request.<|end|>\n<|user|>\nQ<|end|>I<|assistant|>"),
        ("alpaca_chat.load_qa", {"question": "Q", "answer": "A", "input": "I"}, ".\n\n\nUSER: Q\nASSISTANT:"),
        (
            "alpaca_chat.load_qa",
            {"question": "Q", "answer": "A"},
            "and concisely completes the request.\n\n\nUSER: Q…",
        ),
        (
            "alpaca_chat.load_concise",
            WITH_INPUT,
            "and appropriately completes the request.\n\n\nUSER: Q\nI…",
        ),
        ("alpaca_chat.load_camel_ai", {"message_1": "Q", "message_2": "A"}, ".\n\n\nUSER: Q\nASSISTANT:"),
        ("alpaca_chat.load_no_prompt", ASKED, "^USER: Q\nASSISTANT:"),
        ("alpaca_instruct.load_no_prompt", ASKED, "^" + INSTRUCT),
        ("gpteacher", {"instruction": "Q", "response": "A"}, "the request.\n\n" + INSTRUCT),
        ("oasst", {"INSTRUCTION": "Q", "RESPONSE": "A"}, "the request.\n\n" + INSTRUCT),
    ],
)
def test_axolotls_kinds_of_questions(base, tmp_path, kind, row, expected):
    write(tmp_path / "rows.jsonl", json.dumps(row) + "\n")
    entry = {"path": str(tmp_path / "rows.jsonl"), "type": kind}
    job = {"base_model": str(base), "adapter": "lora", "datasets": [entry]}
    recipe = load_any(write(tmp_path / "job.yaml", yaml.safe_dump(job)))
    encoder = Encoder(AutoTokenizer.from_pretrained(base), DataSettings.of(recipe.data))
    (read,) = read_rows(entry["path"], **encoder.settings.reading)
    text = "^" + encoder.tokenizer.decode(encoder.prompt(read), skip_special_tokens=False)
    assert text.endswith(expected.replace("…", "\nASSISTANT:"))
    assert read.messages[-1]["content"] == "A"


def test_axolotls_pretraining_streams_texts(base, tmp_path):
    entry = {"path": str(base / "data.jsonl"), "type": "pretrain", "text_column": "output"}
    file = {**JOBS["axolotl"], "datasets": None, "pretraining_dataset": [entry], "max_steps": 3, "val_set_size": 0}
    file |= {"sequence_len": 64, "streaming_multipack_buffer_size": 77, "evals_per_epoch": None}
    file["output_dir"] = str(tmp_path / "out")
    data = load_any(write(tmp_path / "job.yaml", yaml.safe_dump(file)), ["model.path=llama_tiny"]).data
    assert (data.format, data.columns, data.packing) == ("text", {"text": "output"}, "longest")
    for told in ({"sample_packing": True}, {"pretraining_sample_concatenation": True}):
        assert axolotl.translate({**file, **told}, tmp_path / "job.yaml").get("data.packing") == "pack"
    assert (data.streaming, data.stream_window) == (True, 77)
    t = axolotl.translate({**file, "pretraining_dataset": entry["path"]}, tmp_path / "job.yaml")  # as in 0.2
    assert (t.problems, t.missing, t.get("data.format")) == ([], [], "text")


def test_each_data_set_is_read_in_its_own_way(base, tmp_path):
    """By the reader of the recipe that a job file comes to: columns, words for roles, prompts, and texts beside."""
    rows = {
        "asked": {"ask": "Who?", "reply": "Ada."},
        "told": {"talk": [{"by": "patient", "said": "Where?"}, {"by": "gpt", "said": "Here."}]},
        "body": {"body": "A text."},
    }
    for name, row in rows.items():
        write(tmp_path / f"{name}.json", json.dumps([row]))
    entries = [
        {"path": "body.json", "type": "completion", "field": "body"},
        {"path": "asked.json"}
        | {"type": {"field_instruction": "ask", "field_output": "reply", "no_input_format": "Q {instruction} A "}},
        {"path": "told.json", "type": "chat_template", "chat_template": "jinja", "field_messages": "talk"}
        | {"message_field_role": "by", "message_field_content": "said", "roles": {"user": ["patient"]}}
        | {"chat_template_jinja": "{% for m in messages %}{{ m.role }} {{ m.content }};{% endfor %}"},
    ]
    entries = [{**entry, "path": str(tmp_path / entry["path"])} for entry in entries]
    file = {**JOBS["axolotl"], "base_model": str(base), "datasets": entries, "test_datasets": entries[2:]}
    file |= {"dataset_prepared_path": None, "val_set_size": 0, "sequence_len": 64, "output_dir": str(tmp_path / "out")}
    recipe = load_any(write(tmp_path / "job.yaml", yaml.safe_dump(file)), {"data.cache_dir": str(tmp_path / "cache")})
    assert [Path(path).name for path in recipe.data.train] == ["body.json", "asked.json", "told.json"]
    from pet.train.prepare import load_data, load_tokenizer

    tokenizer = load_tokenizer(recipe)
    train, held_out = load_data(recipe, tokenizer)
    found = [tokenizer.decode(train[index][0], skip_special_tokens=True) for index in range(3)]
    assert found == ["A text.", "Q Who? A Ada.", "user Where?;assistant Here.;"]
    assert tokenizer.decode(held_out[0][0], skip_special_tokens=True) == found[2]


TURNS = {"messages": "turns"}
TEXTS = {"path": "rows.jsonl", "format": "text", "columns": {"text": "body"}, "too_long": "cut"}


def test_data_sets_to_evaluate_on_have_columns_of_their_own(tmp_path):
    """Whatever stands first in the file; equal ones are not said twice."""
    (tmp_path / "dataset_info.json").write_text(
        json.dumps({"talk": {"file_name": "t.json", "formatting": "sharegpt", "columns": TURNS}})
    )
    kinds = {"test_datasets": {"type": "completion", "field": "body"}, "datasets": {"type": "alpaca"}}
    file = {name: [{"path": "rows.jsonl", **kind}] for name, kind in kinds.items()}
    talk = {"eval_dataset": "talk", "dataset_dir": str(tmp_path)}
    for system, translate, given, expected in (
        ("axolotl", axolotl.translate, file, TEXTS),
        ("axolotl", axolotl.translate, {**file, "test_datasets": file["datasets"]}, "rows.jsonl"),
        ("llama_factory", llama_factory.translate, talk, {"path": str(tmp_path / "t.json"), "columns": TURNS}),
    ):
        t = translate({**JOBS[system], **given}, tmp_path / "job.yaml")
        assert not t.problems
        assert t.get("data.eval") == [expected]
        assert t.get("data.format") == ("alpaca" if system == "axolotl" else "auto")


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [("split", "train", False), ("split", "train+test", True), ("shards", 1, False), ("shards", 9, True)]
    + [("num_samples", 100, True), ("num_samples", None, False)],
)
def test_a_part_of_a_data_set_is_not_taken_for_the_whole(tmp_path, field, value, part):
    (tmp_path / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json", field: value}}))
    for system, translate, given in (
        ("axolotl", axolotl.translate, {"datasets": [{"path": "rows.jsonl", "type": "alpaca", field: value}]}),
        ("llama_factory", llama_factory.translate, {"dataset": "rows", "dataset_dir": str(tmp_path)}),
    ):
        if (system, field) != ("axolotl", "num_samples"):  # which it does not have
            missing = translate({**JOBS[system], **given}, tmp_path / "job.yaml").missing
            assert sum(f"{field}: {value!r}" in text for _, text in missing) == part


def test_rows_of_each_data_set(tmp_path):
    """A split's part of each set of axolotl's, the first of all sets of LLaMA-Factory's."""
    entries = [{"path": name, "type": "alpaca", "split": part} for name, part in (("a", "train[:5%]"), ("b", "train"))]
    t = axolotl.translate({**JOBS["axolotl"], "datasets": entries, "test_datasets": entries[:1]}, tmp_path / "job.yaml")
    assert (t.get("data.rows"), t.get("data.eval_rows")) == ([":5%", ":"], [":5%"])
    several = [{**entries[0], "data_files": ["a", "b"]}]
    missing = axolotl.translate({**JOBS["axolotl"], "datasets": several}, tmp_path / "job.yaml").missing
    assert any("datasets.split: 'train[:5%]' of several files" in problem for _, problem in missing)
    file = {**JOBS["llama_factory"], "dataset": "a, b", "eval_dataset": "c", "max_samples": 9, "val_size": 20}
    t = llama_factory.translate(file, tmp_path / "job.yaml")
    assert (t.get("data.rows"), t.get("data.eval_rows"), t.get("data.eval_fraction")) == ([":9"], [":9"], 20)


def test_llama_factorys_data_sets_without_columns(tmp_path):
    """Of each its default columns are read, and no others."""
    forms = {"a": {}, "s": {"formatting": "sharegpt"}}
    index = {name: {"file_name": f"{name}.json", **more} for name, more in forms.items()}
    (tmp_path / "dataset_info.json").write_text(json.dumps(index))
    columns = {"a": {"prompt": "instruction", "input": "input", "answer": "output"}, "s": {"messages": "conversations"}}
    for first, *others in ("a", "s", "as"):
        file = {**JOBS["llama_factory"], "dataset": ",".join([first, *others]), "dataset_dir": str(tmp_path)}
        t = llama_factory.translate(file, tmp_path / "job.yaml")
        assert (t.get("data.format"), t.get("data.columns")) == ("auto", columns[first])
        assert [entry["columns"] for entry in t.get("data.train")[1:]] == [columns[name] for name in others]


def test_llama_factorys_list_of_data_sets(tmp_path):
    index = {
        "talk": {"file_name": "talk.json", "formatting": "sharegpt", "columns": {"messages": "turns", "tools": "t"}},
        "seen": {"file_name": "seen.json", "formatting": "sharegpt", "columns": {"messages": "m", "images": "i"}},
        "ask": {"file_name": "talk.json", "columns": {"prompt": "q", "response": "a", "tools": "t", "system": "s"}},
    }
    (tmp_path / "dataset_info.json").write_text(json.dumps(index))
    (tmp_path / "talk.json").write_text("[]")
    file = {**JOBS["llama_factory"], "dataset_dir": str(tmp_path), "dataset": "talk", "enable_thinking": False}
    translation = llama_factory.translate(file, tmp_path / "job.yaml")
    assert translation.get("data.train") == [str(tmp_path / "talk.json")]
    assert (translation.get("data.format"), translation.get("data.columns")) == (
        "auto",
        {"messages": "turns", "tools": "t"},
    )
    assert translation.get("data.enable_thinking") is False
    translation = llama_factory.translate({**file, "dataset": "ask"}, tmp_path / "job.yaml")
    assert translation.get("data.columns") == {"prompt": "q", "answer": "a", "tools": "t", "system": "s"}
    translation = llama_factory.translate({**file, "template": "qwen"}, tmp_path / "job.yaml")
    assert translation.get("data.template") == LLAMA_FACTORY["qwen"].jinja() and "template" not in translation.ignored
    translation = llama_factory.translate({**file, "template": "qwen", "tool_format": "glm4"}, tmp_path / "job.yaml")
    assert "# 可用工具" in translation.get("data.template") and "<tools>" not in translation.get("data.template")
    (problem,) = llama_factory.translate(
        {**file, "template": "qwen", "tool_format": "lfm2"}, tmp_path / "job.yaml"
    ).problems
    assert "tool_format: 'lfm2' is not supported; known: default, glm4, llama3, mistral, qwen" in problem
    file |= {"template": "qwen3", "dataset": None, "mask_history": True}
    prompt = llama_factory.translate(file, tmp_path / "job.yaml").get("data.template")
    assert prompt == LLAMA_FACTORY["qwen3"].jinja(thinking=False, last_thought=True)
    file |= {"dataset": "talk"}
    path = write(tmp_path / "job.yaml", yaml.safe_dump({**file, "dataset": "seen"}))
    with pytest.raises(InputError, match="seen: images: such data cannot be read"):
        load_any(path, ["model.path=llama_tiny"])


TALK = {"formatting": "sharegpt", "columns": {"messages": "talk"}}


@pytest.mark.parametrize(
    ("stage", "entry", "row", "expected"),
    [
        (
            "pt",
            {"columns": {"prompt": "body", "response": "a"}},
            {"body": "A text.", "a": "A", "input": "i"},
            "A text.",
        ),
        ("pt", {}, {"instruction": "A text", "input": "of two.", "output": "A"}, "A text\nof two."),
        ("pt", {}, {"instruction": "", "input": "One.", "output": "A"}, "One."),
        ("sft", {"columns": {"prompt": "input", "response": "output"}}, {"input": "Q", "output": "A"}, ["Q", "A"]),
        ("sft", {"columns": {"query": "q", "response": "a"}}, {"q": "Q", "a": "A", "instruction": "not"}, ["Q", "A"]),
        (
            "sft",  # what the list does not name is not read
            {"columns": {"prompt": "instruction", "response": "output"}},
            {"instruction": "Q", "output": "A", "input": "more", "system": "Be short.", "history": [["h", "r"]]},
            ["Q", "A"],
        ),
        (
            "sft",
            TALK | {"tags": {"role_tag": "who", "user_tag": "patient", "assistant_tag": "gpt"}},
            {"talk": [{"who": "patient", "value": "Q", "from": "doctor"}, {"who": "gpt", "value": "A"}]},
            ["Q", "A"],
        ),
        (
            "sft",  # which are the usual names
            TALK | {"tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user"}},
            {"talk": [{"from": "human", "value": "Q"}, {"role": "assistant", "content": "A"}]},
            ["Q", "A"],
        ),
        (
            "sft",  # which no release reads of talks
            {**TALK, "columns": {"messages": "talk", "summary": "s", "prompt": "q"}, "tags": {"tone_tag": "kind"}},
            {"talk": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}], "s": "S", "q": "P"},
            ["Q", "A"],
        ),
        (
            "sft",
            {"columns": {"prompt": "q", "videos": "films"}, "note": "beside what is read"},
            {},
            "mine: videos: such data cannot be read; give data.eval",
        ),
        (
            "pt",
            TALK,
            {},
            "mine: its formatting 'sharegpt' is not supported in stage: pt; give",
        ),
    ],
)
def test_llama_factorys_list_says_how_rows_are_read(tmp_path, stage, entry, row, expected):
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": {"file_name": "rows.json", **entry}}))
    rows = write(tmp_path / "rows.json", json.dumps([row]))
    file = {**JOBS["llama_factory"], "stage": stage, "dataset_dir": str(tmp_path), "eval_dataset": "mine"}
    file["dataset"] = "mine" if row else None
    t = llama_factory.translate(file, tmp_path / "job.yaml")
    if not row:
        ((key, problem),) = t.missing
        assert key == "data.eval" and expected in problem
        return
    how = {name: t.get(f"data.{name}") for name in ("format", "columns", "roles")}
    (read,) = read_rows(rows, **how)
    assert not t.missing
    assert (read.text or [one["content"] for one in read.messages]) == expected


def test_llama_factorys_file_that_merges_names_the_command(base, tmp_path):
    file = {"model_name_or_path": str(base), "adapter_name_or_path": "saves/a", "export_dir": "out"}
    path = write(tmp_path / "job.yaml", yaml.safe_dump(file))
    with pytest.raises(InputError, match="export_dir: nothing is trained; pet merge FILE"):
        load_any(path, needs=["data.train"], check_files=False)


def test_data_sets_of_several_kinds_stand_together(tmp_path):
    talk = {"formatting": "sharegpt", "columns": {"messages": "talk", "tools": "tools"}}
    alpaca = {"columns": {"prompt": "instruction", "response": "output"}}
    tags = {"tags": {"role_tag": "who", "user_tag": "patient"}}
    t = of_llama_factory(tmp_path, {"a": alpaca, "b": talk, "c": {**talk, **tags}}, template="yi")
    assert t.get("data.columns") == {"prompt": "instruction", "answer": "output"}
    assert t.get("data.template") == LLAMA_FACTORY["yi"].jinja() and not t.get("data.roles")
    _, second, third = t.get("data.train")
    assert second["columns"] == {"messages": "talk", "tools": "tools"} and "template" not in second
    assert third["columns"]["role"] == "who" and third["roles"] == {"patient": "user"}
    (problem,) = of_llama_factory(tmp_path, {"a": alpaca, "b": talk}, template="mystery").problems
    assert "'mystery': the prompt is that of the model's own tokenizer" in problem


def test_what_is_no_list_of_data_sets_is_said(tmp_path):
    for value, problem in (
        ("rows.jsonl", "a list of data sets was expected, each with its path"),
        ([{"type": "alpaca"}], "a list of data sets was expected, each with its path"),
        ([{**CHAT, "roles": ["user"]}], "roles: a mapping was expected"),
        ([{"path": "a", "type": {"format": 3}}], "type: texts were expected"),
    ):
        t = axolotl.translate({**JOBS["axolotl"], "datasets": value}, tmp_path / "job.yaml")
        assert problem in t.problems[0]
