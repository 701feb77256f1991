"""How job files of LLaMA-Factory and axolotl write and shorten conversations, and what is learnt of these."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
from job_files import CHAT, CHATML, JOBS, of_llama_factory

from pet.compat import axolotl
from pet.compat.prompts import ALPACA, AXOLOTL, LLAMA_FACTORY


def test_each_data_set_has_its_own_prompt(tmp_path):
    entries = [{"path": "a", "type": "alpaca"}, {"path": "b", "type": "chat_template"}]
    other = {"path": "b", "format": "chat", "template": None, "template_without_input": None}
    for key, file in (
        ("data.train", {"datasets": entries}),
        ("data.eval", {"datasets": entries[:1], "test_datasets": entries[1:]}),
    ):
        t = axolotl.translate({**JOBS["axolotl"], **file}, tmp_path / "job.yaml")
        assert t.get(key)[-1] == other and t.get("data.template") == ALPACA["alpaca"][0][0]
    # the tokenizer's own prompt of one data set stays, whatever the file says of the others
    named = [{**entries[1], "chat_template": "tokenizer_default"}, {**entries[1], "path": "c"}]
    t = axolotl.translate({**JOBS["axolotl"], "datasets": named, "chat_template": "llama3"}, tmp_path / "job.yaml")
    assert t.get("data.template") is None and "start_header_id" in t.get("data.train")[1]["template"]
    t = axolotl.translate(
        {**JOBS["axolotl"], "datasets": entries[:1], "chat_template": "llama3"}, tmp_path / "job.yaml"
    )
    assert t.ignored["chat_template"] == "the data sets have a prompt of their own"


@pytest.mark.parametrize(
    ("given", "how"),
    [
        ({}, {}),
        ({"enable_thinking": None}, {"thinking": None}),
        ({"enable_thinking": False, "preserve_thinking": True, "mask_history": True}, {"thinking": False}),
        ({"mask_history": True}, {"last_thought": True}),
        ({"stage": "dpo"}, {"last_thought": True}),
        ({"stage": "kto", "preserve_thinking": True}, {"as_said": True}),
    ],
)
def test_what_llama_factory_says_of_thoughts_is_in_the_prompt(tmp_path, given, how):
    t = of_llama_factory(tmp_path, template="qwen3", **given)
    assert t.get("data.template") == LLAMA_FACTORY["qwen3"].jinja(**how)
    assert t.get("data.enable_thinking") is None and not t.problems


@pytest.mark.parametrize("system", ["", "Be short."])
def test_llama_factorys_default_system_takes_the_place_of_the_prompts(tmp_path, system):
    t = of_llama_factory(tmp_path, template="vicuna", default_system=system)
    assert t.get("data.template") == dataclasses.replace(LLAMA_FACTORY["vicuna"], default=system).jinja()
    assert t.get("data.system") is None


def test_llama_factorys_openai_data_have_a_system_text(tmp_path):
    openai = {"formatting": "openai", "columns": {"messages": "messages"}}
    t = of_llama_factory(tmp_path, {"a": openai}, template="yi")
    assert t.get("data.template") == LLAMA_FACTORY["yi"].jinja(openai=True)
    t = of_llama_factory(tmp_path, {"a": openai, "b": {**openai, "formatting": "sharegpt"}}, template="yi")
    assert t.get("data.train")[1] == {"path": f"{tmp_path}/b.json", "template": LLAMA_FACTORY["yi"].jinja()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"max_length": 2048, "too_long": "shorten"}),
        ({"cutoff_len": 1024, "packing": True}, {"max_length": 1023, "too_long": "shorten", "packing": "pack"}),
        ({"cutoff_len": 1024, "neat_packing": True}, {"max_length": 1023, "packing": "pack"}),
        ({"cutoff_len": 1024, "stage": "pt"}, {"max_length": 1024, "too_long": "cut", "packing": "pack"}),
    ],
)
def test_how_llama_factory_shortens(tmp_path, given, expected):
    t = of_llama_factory(tmp_path, **given)
    assert {name: t.get(f"data.{name}") for name in expected} == expected


def test_llama_factory_learns_no_question_where_one_end_stands_for_all(tmp_path):
    (problem,) = of_llama_factory(tmp_path, template="glm4", train_on_prompt=True).problems
    assert "train_on_prompt: the template glm4 does not take it" in problem


@pytest.mark.parametrize(
    ("given", "entry", "ends", "needs"),
    [
        ({}, {}, "eos_token == '<|im_end|>'", ""),
        ({"eot_tokens": ["<|im_end|>"]}, {}, "true", "<|im_end|>"),
        ({"special_tokens": {"eos_token": "<|im_end|>"}}, {"train_on_eos": "last"}, "loop.last and true", "<|im_end|>"),
        ({"special_tokens": {"eos_token": "</s>"}}, {}, "false", ""),
        ({}, {"train_on_eos": "none"}, "false", ""),
        (
            {"eot_tokens": ["<|im_end|>"]},
            {"train_on_eot": "last"},  # unless it is the tokenizer's end token, too
            "eos_token == '<|im_end|>' or loop.last and true",
            "<|im_end|>",
        ),
    ],
)
def test_where_axolotl_learns_the_end_of_an_answer(tmp_path, given, entry, ends, needs):
    prompt = dataclasses.replace(AXOLOTL["chatml"], needs=needs).jinja(ends=ends)
    for top, own in ((True, {}), (False, {"chat_template": "chatml"})):
        file = {**JOBS["axolotl"], "datasets": [{**CHAT, **own, **entry}], **given}
        t = axolotl.translate(file | ({"chat_template": "chatml"} if top else {}), tmp_path / "job.yaml")
        assert not t.problems and t.get("data.template") == prompt


@pytest.mark.parametrize(
    ("entry", "columns", "roles"),
    [
        ({"message_property_mappings": {"role": "from", "content": "value"}}, None, None),
        ({"message_field_role": "who", "message_field_content": "said"}, {"role": "who", "content": "said"}, None),
        ({"roles": {"user": ["patient"], "assistant": ["doctor", "gpt"]}}, None, ["patient", "doctor"]),
        ({"roles": {"user": "patient", "assistant": "doctor"}}, None, ["patient", "doctor"]),
        (
            {"message_field_training": "train", "roles_to_train": ["assistant"], "field_tools": "t"},
            {"tools": "t"},
            None,
        ),
    ],
)
def test_axolotls_messages(tmp_path, entry, columns, roles):
    t = axolotl.translate({**JOBS["axolotl"], "datasets": [{**CHAT, **entry}]}, tmp_path / "job.yaml")
    assert not t.problems and t.get("data.columns") == columns
    words = dict(zip(roles, ("user", "assistant"), strict=True)) if roles else None
    assert t.get("data.roles") == words


@pytest.mark.parametrize(
    ("given", "entry", "problem"),
    [
        ({}, {"roles_to_train": ["user"]}, "datasets.roles_to_train: ['user'] is not supported"),
        ({}, {"message_field_training": "mine"}, "datasets.message_field_training: 'mine' is not supported"),
        ({}, {"train_on_eos": "last"}, "datasets.train_on_eos: with the model's own prompt"),
        ({}, {"message_property_mappings": {"name": "who"}}, "name: who: it has to be called name"),
        ({}, {"split_thinking": True}, "datasets.split_thinking: True is not supported"),
        ({"chat_template": "chatml"}, {"train_on_eos": "all"}, "train_on_eos: 'all' is not supported"),
        ({"train_on_inputs": True}, {}, "train_on_inputs: of messages what all say is learnt there"),
        ({"push_dataset_to_hub": "me/rows"}, {}, "push_dataset_to_hub: 'me/rows': rows are not uploaded"),
        ({"hub_model_id": "me/it", "hub_revision": "two"}, {}, "hub_revision: 'two': results go to the branch main"),
    ],
)
def test_what_axolotl_learns_otherwise_is_refused(tmp_path, given, entry, problem):
    t = axolotl.translate({**JOBS["axolotl"], "datasets": [{**CHAT, **entry}], **given}, tmp_path / "job.yaml")
    assert problem in t.problems[0] and len(t.problems) == 1


def test_system_messages_short_samples_and_a_place_for_a_name(tmp_path):
    entry = {**CHAT, "drop_system_message": True, "roles": {"assistant": ["bot"], "system": ["sys"]}}
    file = {**JOBS["axolotl"], "min_sample_len": 9, "hub_model_id": "<your-hub-model-id>"}
    t = axolotl.translate({**file, "datasets": [entry]}, tmp_path / "job.yaml")
    assert not t.problems and "hub_model_id" in t.ignored
    assert t.get("data.roles") == {"system": "", "sys": ""}
    assert (t.get("data.columns"), t.get("data.min_length")) == ({"system": ""}, 9)


def test_a_fallback_serves_a_tokenizer_without_a_template(tmp_path, base, fixtures):
    without = tmp_path / "without"
    shutil.copytree(base, without)
    (without / "tokenizer_config.json").write_text(
        json.dumps({**json.loads((base / "tokenizer_config.json").read_text()), "chat_template": None})
    )
    fallback = "tokenizer_default_fallback_"

    def read(where, named, **entry):
        file = {**JOBS["axolotl"], "base_model": str(where), "datasets": [{**CHAT, **entry}]}
        return axolotl.translate({**file, **({"chat_template": named} if named else {})}, tmp_path / "job.yaml")

    for t in (read(without, f"{fallback}chatml"), read(without, None, chat_template=f"{fallback}chatml")):
        assert t.get("data.template") == CHATML and not t.problems
    told = "the base's tokenizer has no chat template"
    for t in (read(without, "gemma"), read(without, f"{fallback}gemma"), read(without, None, chat_template="gemma")):
        assert told in t.problems[0]
    for where in (fixtures / "chatglm2", "org/base"):  # ChatGLM's is in its code, and a hub's base has one
        t = read(where, f"{fallback}chatml")
        assert t.get("data.template") is None and not t.problems
        assert t.ignored["chat_template"].startswith("the prompt is that of the model's own tokenizer")
    t = axolotl.translate(
        {**JOBS["axolotl"], "datasets": [CHAT], "chat_template": "jinja", "chat_template_jinja": "{{ messages }}"},
        tmp_path / "job.yaml",
    )
    assert t.get("data.template") == "{{ messages }}" and "chat_template" not in t.ignored
