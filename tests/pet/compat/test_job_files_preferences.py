"""Objectives of job files of LLaMA-Factory and axolotl: preferences, rewards, and losses of their own."""

from __future__ import annotations

import json

import pytest
import yaml
from job_files import JOBS, write

from model_zoo.errors import InputError
from pet.compat import axolotl, llama_factory
from pet.compat.llama_factory_data import BESIDE
from pet.compat.prompts import AXOLOTL
from pet.compat.yaml_files import load_any

DPO = {"objective": "dpo"}
SIMPO = {"objective": "simpo", "beta": 0.1}


@pytest.mark.parametrize(
    ("system", "given", "expected"),
    [
        ("llama_factory", {"stage": "dpo"}, {"objective": "dpo", "beta": 0.1}),
        (
            "llama_factory",
            {"stage": "dpo", "pref_beta": 0.3, "pref_ftx": 0.5},
            DPO | {"beta": 0.3, "sft_weight": 0.5},
        ),
        (
            "llama_factory",
            {"stage": "dpo", "pref_loss": "simpo", "simpo_gamma": 0.7},
            {"objective": "simpo", "beta": 0.1, "gamma": 0.7},
        ),
        ("llama_factory", {"stage": "orpo", "orpo_beta": 0.2}, {"objective": "orpo", "beta": 0.2}),
        ("llama_factory", {"stage": "sft", "pref_beta": 0.3}, {}),
        ("llama_factory", {"stage": "rm"}, {"objective": "reward"}),
        (
            "llama_factory",
            {"stage": "kto", "adapter_name_or_path": "tuned"},  # its reference is the base all the same
            {"objective": "kto", "beta": 0.1, "reference": "adapters_off"},
        ),
        ("axolotl", {"rl": "ipo", "lora_model_dir": "tuned"}, {"objective": "ipo", "beta": 0.1}),
        ("axolotl", {"rl": "dpo", "dpo_loss_type": ["hinge"], "rl_beta": 0.3}, {"objective": "hinge", "beta": 0.3}),
        ("llama_factory", {"stage": "dpo", "pref_loss": "hinge"}, {"objective": "hinge", "beta": 0.1}),
        (
            "llama_factory",
            {"stage": "kto", "kto_rejected_weight": 1.3},
            {"objective": "kto", "beta": 0.1, "undesirable_weight": 1.3},
        ),
        (
            "axolotl",
            {"rl": "kto", "rl_beta": 0.5, "kto_desirable_weight": 0.2},
            {"objective": "kto", "beta": 0.5, "desirable_weight": 0.2},
        ),
        (
            "axolotl",
            {"rl": "dpo", "dpo_beta": 0.2, "rpo_alpha": 1.0},
            {"objective": "dpo", "beta": 0.2, "sft_weight": 1.0},
        ),
        ("axolotl", {"rl": "orpo", "orpo_alpha": 0.25}, {"objective": "orpo", "beta": 0.25}),
        ("axolotl", {"rl": "orpo", "orpo_alpha": 0.25, "rl_beta": 0.5}, {"objective": "orpo", "beta": 0.5}),
        ("axolotl", {"rl": "orpo", "rl_beta": 0.5, "trl": {"beta": 0.7}}, {"objective": "orpo", "beta": 0.7}),
        ("axolotl", {"rl": "simpo", "simpo_gamma": 1.0}, SIMPO | {"sft_weight": 1.0, "gamma": 1.0}),
        ("axolotl", {"rl": "simpo", "cpo_alpha": 0.0, "rl_beta": 2.0}, SIMPO | {"sft_weight": 0.0, "beta": 2.0}),
        ("axolotl", {"rl": "dpo", "cpo_alpha": 0.5}, DPO | {"beta": 0.1}),
        ("axolotl", {"rl": "dpo", "train_on_inputs": True}, DPO | {"beta": 0.1}),
        ("axolotl", {"reward_model": True, "num_labels": 1, "rl_beta": 0.3}, {"objective": "reward"}),
        ("axolotl", {"reward_model": False}, {}),
    ],
)
def test_preferences(tmp_path, system, given, expected):
    module = {"llama_factory": llama_factory, "axolotl": axolotl}[system]
    style = {"kto": None, "orpo": "chat_template.argilla"}.get(given.get("rl"), "chat_template.default")
    rows = [{"path": "rows.jsonl", "type": style, "field_chosen": "better", "field_rejected": "worse"}]
    more = {"datasets": rows} if "rl" in given else {}
    translation = module.translate({**JOBS[system], **given, **more}, tmp_path / "job.yaml")
    assert not translation.problems
    found = {key.removeprefix("train."): value for key, value in translation.settings.items()}
    names = ("objective", "beta", "sft_weight", "gamma", "desirable_weight", "undesirable_weight", "reference")
    assert {name: found[name] for name in names if name in found} == expected
    if "rl" in given:
        alone = {"system": ""} if given["rl"] in ("dpo", "ipo", "simpo") else {"input": ""} if style is None else {}
        assert translation.get("data.columns") == {"chosen": "better", "rejected": "worse", **alone}
    if given.get("stage") == "sft":
        assert "pref_beta" in translation.ignored
    assert translation.get("data.train_on") is None
    assert ("train_on_inputs" in translation.ignored) == ("train_on_inputs" in given)


@pytest.mark.parametrize(
    ("system", "given", "dropout"),
    [
        ("axolotl", {}, 0.5),
        *[("axolotl", {"rl": name}, None) for name in ("dpo", "ipo", "simpo", "orpo", "kto")],
        ("axolotl", {"reward_model": True}, None),
        ("axolotl", {"rl": "dpo", "lora_dropout": 0}, 0.0),
        ("llama_factory", {"stage": "sft"}, 0.5),
        ("llama_factory", {"stage": "rm"}, 0.5),
        *[("llama_factory", {"stage": "dpo", "pref_loss": name}, None) for name in ("sigmoid", "simpo", "orpo")],
        ("llama_factory", {"stage": "kto"}, None),
    ],
)
def test_answers_are_compared_without_dropout_as_by_trl(tmp_path, system, given, dropout):
    """TRL's trainers set that of the adapter to 0, too, and LLaMA-Factory's but for the reward model's."""
    module = {"llama_factory": llama_factory, "axolotl": axolotl}[system]
    t = module.translate({**JOBS[system], "lora_dropout": 0.5, **given}, tmp_path / "job.yaml")
    assert t.get("adapter.dropout") == dropout and ("lora_dropout" in t.ignored) == (dropout is None)


@pytest.mark.parametrize(
    ("system", "given", "problem"),
    [
        ("axolotl", {"rl": "grpo"}, "rl: 'grpo': supported are dpo, ipo, simpo, orpo, kto"),
        ("axolotl", {"rl": "dpo", "trl": {"beta": 0.1, "num_generations": 4}}, "trl: num_generations: nothing is"),
        ("axolotl", {"rl": "dpo", "rl_beta": [1]}, "rl_beta: [1] is not a value that it takes"),
        ("llama_factory", {"stage": "kto", "pref_ftx": 0.5}, "pref_ftx: 0.5: kto has no likelihood term here"),
        ("llama_factory", {"stage": "kto", "kto_ftx": 0.5}, "kto_ftx: 0.5: kto has no likelihood term here"),
        ("llama_factory", {"stage": "dpo", "ld_alpha": 0.5}, "ld_alpha: 0.5: a loss that is not here"),
        ("llama_factory", {"eval_on_each_dataset": True}, "eval_on_each_dataset: True: what is held out is"),
    ],
)
def test_a_loss_that_is_not_here_is_one_problem(tmp_path, system, given, problem):
    module = {"llama_factory": llama_factory, "axolotl": axolotl}[system]
    rows = str(write(tmp_path / "rows.jsonl", "{}\n"))
    datasets = {"llama_factory": {"dataset": rows}, "axolotl": {"datasets": [{"path": rows, "type": "chatml"}]}}
    translation = module.translate({**JOBS[system], **datasets[system], **given}, tmp_path / "job.yaml")
    assert not translation.missing and len(translation.problems) == 1
    assert problem in translation.problems[0]


def test_llama_factorys_ranked_data_set(tmp_path):
    columns = {"messages": "talk", "chosen": "good", "rejected": "bad"}
    index = {"ranked": {"file_name": "r.json", "formatting": "sharegpt", "ranking": True, "columns": columns}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(index))
    file = {**JOBS["llama_factory"], "stage": "dpo", "dataset_dir": str(tmp_path), "dataset": "ranked"}
    translation = llama_factory.translate(file, tmp_path / "job.yaml")
    assert (translation.get("data.format"), translation.get("data.columns")) == (
        "auto",
        {"messages": "talk", "chosen": "good", "rejected": "bad", **dict.fromkeys(BESIDE, "")},
    )


def test_axolotls_reward_model_is_trained_on_the_prompt_of_the_file(tmp_path):
    """What is too long is cut at its end, and not left out."""
    entry = {"path": str(write(tmp_path / "rows.jsonl", "{}")), "type": "bradley_terry.chat_template"}
    file = {**JOBS["axolotl"], "reward_model": True, "chat_template": "chatml", "datasets": [entry]}
    t = axolotl.translate(file, tmp_path / "job.yaml")
    assert not t.problems and "chat_template" not in t.ignored and t.get("data.too_long") == "cut"
    assert t.get("data.template") == AXOLOTL["chatml"].jinja()
    t = axolotl.translate({**file, "reward_model": False}, tmp_path / "job.yaml")
    ((_, problem),) = t.missing
    assert "'bradley_terry.chat_template' is not supported" in problem


@pytest.mark.parametrize("system", ["llama_factory", "axolotl"])
def test_a_reward_models_job_file(base, tmp_path, system):
    """From the file to the pairs that are read, whose question axolotl calls input."""
    from pet.data.load import load_dataset
    from pet.train.prepare import data_settings, load_tokenizer

    row = {"system": "Be short.", "input": "Who?", "chosen": "Me.", "rejected": "I do not know."}
    rows = write(tmp_path / "rows.jsonl", json.dumps(row) + "\n" + json.dumps({**row, "input": "Where?"}))
    if system == "llama_factory":
        file = {"model_name_or_path": str(base), "stage": "rm", "dataset": str(rows), "finetuning_type": "lora"}
    else:
        file = {"base_model": str(base), "adapter": "lora", "reward_model": True, "num_labels": 1}
        file |= {"model_type": "AutoModelForSequenceClassification", "sequence_len": 128}
        file["datasets"] = [{"path": str(rows), "type": "bradley_terry.chat_template"}]
    file["output_dir"] = str(tmp_path / "out")
    recipe = load_any(write(tmp_path / "job.yaml", yaml.safe_dump(file)), ["data.max_length=128"])
    assert recipe.train.objective == "reward"
    dataset = load_dataset(recipe.data.train, load_tokenizer(recipe), settings=data_settings(recipe))
    assert dataset.documents == 2 and len(dataset) == 4
    for more, message in (
        ({"process_reward_model": True}, "process_reward_model: True: one score for a whole answer"),
        ({"reward_model": "rough"}, "reward_model: 'rough': true or false was expected"),
        ({"reward_model": True, "center_rewards_coefficient": -1}, "center_rewards_coefficient"),
    ):
        if system == "axolotl":
            with pytest.raises(InputError, match=message):
                load_any(write(tmp_path / "job.yaml", yaml.safe_dump({**file, **more})))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"train_on_prompt": True, "mask_history": True}, "train_on_prompt with mask_history: one learns every prompt"),
        ({"mask_history": True, "stage": "dpo"}, "mask_history with stage: dpo: it is about stage: sft"),
        ({"train_on_prompt": True, "stage": "pt"}, "train_on_prompt with stage: pt: it is about stage: sft"),
    ],
    ids=str,
)
def test_what_llama_factory_refuses_to_learn_is_refused(tmp_path, given, problem):
    assert any(problem in one for one in llama_factory.translate(given, tmp_path / "job.yaml").problems)


@pytest.mark.parametrize(
    ("given", "objective"),
    [({}, "dft"), ({"stage": "pt"}, None), ({"stage": "dpo"}, "dpo"), ({"use_dft_loss": "false"}, None)],
    ids=str,
)
def test_llama_factorys_dft(tmp_path, given, objective):
    t = llama_factory.translate({**JOBS["llama_factory"], "use_dft_loss": True, **given}, tmp_path / "job.yaml")
    assert not t.problems and t.get("train.objective") == objective
    assert ("use_dft_loss" in t.ignored) is ("stage" in given)


def test_llama_factorys_kto_of_single_rows_takes_two_of_half_the_steps(tmp_path):
    told = {"stage": "kto", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    t = llama_factory.translate(told, tmp_path / "job.yaml")
    assert (t.get("train.batch_size"), t.get("train.accumulation")) == (2, 4)
    assert "per_device_train_batch_size" in t.ignored
    t = llama_factory.translate({**told, "gradient_accumulation_steps": 1}, tmp_path / "job.yaml")
    assert t.get("train.batch_size") == 1  # which the recipe refuses
    t = llama_factory.translate({"stage": "kto", "per_device_eval_batch_size": 1}, tmp_path / "job.yaml")
    assert t.get("eval.batch_size") == 2 and "per_device_eval_batch_size" in t.ignored
