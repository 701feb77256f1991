"""Settings of job files that exclude each other are refused with both names, as in these systems."""

from __future__ import annotations

import re

import pytest

from pet.compat import axolotl, llama_factory
from pet.compat.contradictions import AXOLOTL, LLAMA_FACTORY

SYSTEMS = {"llama_factory": (llama_factory, LLAMA_FACTORY), "axolotl": (axolotl, AXOLOTL)}
OTHERS = {"stage": "dpo", "finetuning_type": "full", "pref_loss": "ipo", "eval_strategy": "epoch", "rl": "kto"}
OTHERS |= {"save_strategy": "epoch"}
"""Another value than the one that a pair leaves out."""
VALUES = {"adapter_name_or_path": "saves/a", "eval_dataset": "identity", "dpo_loss_type": ["ipo"], "val_size": 0.1}
VALUES |= {"test_datasets": [{"path": "a", "type": "alpaca"}], "val_set_size": 0.1, "interleave_probs": "0.5,0.5"}
VALUES |= dict.fromkeys(("warmup_ratio", "dpo_label_smoothing", "eval_steps", "save_steps", "batch_size"), 0.5)


def setting(condition):
    """The setting by which a condition holds; none for one that is not given."""
    name, how, word = re.fullmatch(r"(?:no )?(\w+) ?(!?=)? ?([\w]*).*", condition).groups()
    if condition.startswith("no "):
        return {}
    return {name: {"=": word, "!=": OTHERS.get(name)}.get(how, VALUES.get(name, True))}


def refused(module, tmp_path, given):
    told = module.translate(given, tmp_path / "job.yaml").problems
    return [one.removeprefix("job.yaml: ") for one in told]


@pytest.mark.parametrize(
    ("system", "pair"), [(name, pair) for name, (_, table) in SYSTEMS.items() for pair in table], ids=str
)
def test_a_pair_is_refused_and_one_alone_is_not(tmp_path, system, pair):
    module, table = SYSTEMS[system]
    given = {key: value for condition in pair for key, value in setting(condition).items()}
    names = [condition.removeprefix("no ").split()[0] for condition in pair]
    said = [one for one in refused(module, tmp_path, given) if one.endswith(f": {table[pair]}")]
    (line,) = [one for one in said if all(re.search(rf"\b{name}\b", one.removesuffix(table[pair])) for name in names)]
    for condition in pair:
        less = {key: value for key, value in given.items() if key not in setting(condition)}
        if condition.startswith("no "):
            name = condition.removeprefix("no ")
            less = {**given, name: {"adapter": "lora", "rl": "dpo"}.get(name, VALUES.get(name, True))}
        assert line not in refused(module, tmp_path, less)


@pytest.mark.parametrize(
    ("system", "given", "problem"),
    [
        ("llama_factory", {"bf16": "true", "fp16": "false"}, None),
        ("llama_factory", {"bf16": True, "fp16": 1}, "bf16 with fp16: a run has one precision"),
        ("llama_factory", {"warmup_steps": 3, "warmup_ratio": 0.1, "max_steps": 9, "num_train_epochs": 1}, None),
        ("llama_factory", {"stage": "dpo", "dpo_loss": "ipo", "dpo_label_smoothing": 0.1}, "pref_loss: ipo"),
        ("llama_factory", {"stage": "dpo", "dpo_label_smoothing": 0.1}, None),
        ("axolotl", {"adapter": "lora", "warmup_steps": 3, "warmup_ratio": 0}, None),
        ("axolotl", {"adapter": "lora", "eval_steps": 5, "evaluation_strategy": "epoch"}, "eval_strategy: epoch"),
        (
            "axolotl",
            {"adapter": "lora", "eval_steps": 5, "val_set_size": 0.0},
            "val_set_size: 0.0",
        ),
        ("axolotl", {"adapter": "lora", "eval_steps": 5, "eval_strategy": "steps"}, None),
        ("axolotl", {"adapter": "lora", "bf16": True, "fp16": True}, None),
        (
            "axolotl",
            {"datasets": [{"path": "a", "type": "chat_template", "chat_template": "jinja"}]},
            "datasets.chat_template",
        ),
    ],
    ids=str,
)
def test_what_is_on_and_what_is_not(tmp_path, system, given, problem):
    found = [one for one in refused(SYSTEMS[system][0], tmp_path, given) if " with" in one]
    assert [problem in one for one in found] == [True] * bool(problem), found


@pytest.mark.parametrize(
    ("given", "precision"),
    [
        ({"bf16": "auto", "fp16": True}, "fp16"),
        ({"bf16": "auto", "fp16": False}, "bf16"),
        ({"bf16": True, "fp16": True}, "bf16"),
    ],
    ids=str,
)
def test_axolotls_precision_of_two(tmp_path, given, precision):
    t = axolotl.translate({"adapter": "lora", **given}, tmp_path / "job.yaml")
    assert t.get("train.precision") == precision and ("fp16" in t.ignored) is (given["bf16"] is given["fp16"])


def test_what_is_of_an_adapter_is_noted_without_one(tmp_path):
    t = axolotl.translate({"peft_use_dora": True, "lora_r": 8, "lora_dropout": None}, tmp_path / "job.yaml")
    assert t.get("adapter.method") == "none" and not t.problems
    assert {name: why for name, why in t.ignored.items() if "adapter" in why} == dict.fromkeys(
        ("peft_use_dora", "lora_r"), "there is no adapter"
    )


def test_pairs_are_not_packed(tmp_path):
    given = {"stage": "dpo", "packing": True}
    t = llama_factory.translate(given, tmp_path / "job.yaml")
    assert t.get("data.packing") == "longest" and t.ignored["packing"] == "it is about stage: sft and pt"
    assert llama_factory.translate({**given, "stage": "sft"}, tmp_path / "job.yaml").get("data.packing") == "pack"
