"""Settings that contradict each other in LLaMA-Factory's and axolotl's job files: pairs that these systems refuse, too.

What they refuse for the sake of a library that they use, and the library here can do, is not among them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pet.compat.translation import switched_on
from pet.recipe.translation import Translation, is_off

LORA_ALONE = "it is about finetuning_type: lora"
SFT_ALONE = "it is about stage: sft"
HOW_OFTEN = "each says how often is evaluated"
BITS_WITHOUT = "weights in 8 or 4 bits cannot be trained; choose an adapter"
FOUR_BITS = "qlora means a base in 4 bits: load_in_4bit"

LLAMA_FACTORY = {
    ("bf16", "fp16"): "a run has one precision",
    ("train_on_prompt", "mask_history"): "one learns every prompt, the other the last answer alone",
    ("train_on_prompt", "stage != sft"): SFT_ALONE,
    ("mask_history", "stage != sft"): SFT_ALONE,
    ("neat_packing", "stage != sft"): SFT_ALONE,
    ("predict_with_generate", "stage != sft"): SFT_ALONE,
    ("predict_with_generate", "compute_accuracy"): "answers are either written, or compared token by token",
    ("eval_dataset", "val_size"): "each says what is held out",
    ("interleave_probs", "mix_strategy = concat"): "data sets that stand one after the other have no shares",
    ("dpo_label_smoothing", "pref_loss != sigmoid"): "it is about pref_loss: sigmoid",
    ("use_dora", "finetuning_type != lora"): LORA_ALONE,
    ("use_rslora", "finetuning_type != lora"): LORA_ALONE,
    ("pissa_init", "finetuning_type != lora"): LORA_ALONE,
    ("loraplus_lr_ratio", "finetuning_type != lora"): LORA_ALONE,
    ("adapter_name_or_path", "finetuning_type != lora"): LORA_ALONE,
    ("quantization_bit", "finetuning_type = full|freeze"): BITS_WITHOUT,
    ("use_llama_pro", "finetuning_type = full"): "it is about finetuning_type: freeze or lora",
}
"""Of LLaMA-Factory: two conditions, and why they exclude each other. A name is on; ``name = a|b`` has one of these
values, and ``name != a|b`` is given another one; ``no name`` is off or not given."""
OF_A_DATA_SET = {("chat_template = jinja", "no chat_template_jinja"): "which has the template's text"}
AXOLOTL = {
    ("warmup_steps", "warmup_ratio"): "each says how long the warm-up is",
    ("gradient_accumulation_steps", "batch_size"): "each says how many rows a step has",
    ("save_steps", "saves_per_epoch"): "each says how often is saved",
    ("save_steps", "save_strategy != steps"): "each says how often is saved",
    ("save_strategy = best", "no metric_for_best_model"): "it has to say what is best",
    ("eval_steps", "evals_per_epoch"): HOW_OFTEN,
    ("eval_steps", "eval_strategy != steps"): HOW_OFTEN,
    ("evals_per_epoch", "eval_strategy != steps"): HOW_OFTEN,
    ("eval_steps", "val_set_size = 0", "no test_datasets"): "nothing is held out to evaluate on",
    ("eval_strategy = steps|epoch", "val_set_size = 0", "no test_datasets"): "nothing is held out to evaluate on",
    ("test_datasets", "val_set_size"): "each says what is held out",
    ("noisy_embedding_alpha", "neftune_noise_alpha"): "two names of one setting",
    ("pretrain_multipack_buffer_size", "streaming_multipack_buffer_size"): "two names of one setting",
    ("dpo_loss_type", "rl != dpo"): "it is about rl: dpo",
    ("dpo_loss_type", "no rl"): "it is about rl: dpo",
    **OF_A_DATA_SET,
    ("relora", "no adapter"): "an adapter begins anew",
    ("relora_steps", "no adapter"): "an adapter begins anew",
    ("load_in_8bit", "no adapter"): BITS_WITHOUT,
    ("load_in_4bit", "no adapter"): BITS_WITHOUT,
    ("adapter = qlora", "load_in_8bit"): FOUR_BITS,
    ("adapter = qlora", "gptq"): FOUR_BITS,
    ("adapter = qlora", "no load_in_4bit"): FOUR_BITS,
}
"""The same of axolotl, and of one of its data sets."""
DEFAULTS = {"stage": "sft", "finetuning_type": "lora", "pref_loss": "sigmoid"}
"""What LLaMA-Factory has where a file says nothing; axolotl has no such names."""
RENAMED = {"dpo_loss": "pref_loss", "evaluation_strategy": "eval_strategy"}
"""Names of earlier releases."""


def refuse_contradictions(
    t: Translation, values: Mapping[str, Any], table: Mapping[tuple[str, ...], str], prefix: str = ""
) -> None:
    """Notes each pair of a table that a file's settings have, with both names; ``prefix`` is the section's name."""
    said = {name: value for name, value in values.items() if value is False or not is_off(value)}
    given = {**DEFAULTS, **{RENAMED.get(name, name): value for name, value in said.items()}}
    for pair, why in table.items():
        if all(_holds(condition, given) for condition in pair):
            t.refuse(prefix + " ".join(_shown(condition, given) for condition in pair).partition(" ")[2], why)


def _holds(condition: str, given: Mapping[str, Any]) -> bool:
    name, how, words = re.fullmatch(r"(?:no )?(\w+) ?(!?=)? ?(.*)", condition).groups()
    if how == "=":
        return name in given and _word(given[name]) in words.split("|")
    if how == "!=":
        return name in given and not is_off(given[name]) and _word(given[name]) not in words.split("|")
    return _is_on(given.get(name)) != condition.startswith("no ")


def _is_on(value: Any) -> bool:
    try:
        return switched_on(value)
    except (TypeError, ValueError):  # a number, a name, a list
        return value not in (0, "0", "0.0")


def _word(value: Any) -> str:
    return "0" if value is False or value == 0 else str(value)


def _shown(condition: str, given: Mapping[str, Any]) -> str:
    name = condition.removeprefix("no ").partition(" ")[0]
    if condition.startswith("no "):
        return f"without {name}"
    return f"with {name}: {given[name]}" if "=" in condition else f"with {name}"
