"""What single keys of LLaMA-Factory's and axolotl's job files mean, and which say nothing."""

from __future__ import annotations

import json

import pytest
from job_files import JOBS

from model_zoo.errors import InputError
from pet.compat import axolotl, llama_factory
from pet.compat.yaml_files import load_any


def test_keys_that_are_off_or_without_influence_are_noted_by_reason(job, base, caplog):
    more = {"some_new_key": None, "another_new_key": False, "deepspeed": "zero3.json", "tf32": True, "fsdp": ["full"]}
    given = [f"model.path={base}", f"data.train={base / 'data.jsonl'}", "data.max_length=64"]
    with pytest.raises(InputError, match="some_new_key: is not known"):
        load_any(job(some_new_key=3), given)
    load_any(job(**more), given)
    note = next(r.getMessage() for r in caplog.records if ": ignored: " in r.getMessage())
    assert "another_new_key, some_new_key: not known here, but empty or off" in note
    assert "tf32: it changes speed" in note
    assert "deepspeed, fsdp: how the work is divided is said by the section parallel" in note


def test_axolotls_smaller_keys(tmp_path):
    """Long rows are left out unless the file says otherwise, and texts are divided."""
    for given, expected in (
        ({}, {"data.too_long": "drop"}),
        ({"excess_length_strategy": "truncate"}, {"data.too_long": "cut"}),
        ({"datasets": [{"path": "a", "type": "completion"}]}, {"data.too_long": "cut"}),
        ({"peft_init_lora_weights": "pissa_niter_4"}, {"adapter.init": "pissa"}),
        ({"peft_init_lora_weights": True}, {"adapter.init": None}),
        (
            {"load_in_4bit": True, "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}},
            {"model.quantization.double": False},
        ),
        (
            {"lr_groups": [{"name": "o", "modules": ["o_proj"], "lr": "1e-6"}]},
            {"train.groups": [{"match": ["*o_proj*"], "learning_rate": 1e-6}]},
        ),
        (
            {"lr_groups": [{"name": "o", "modules": "o_proj", "lr": "1e-6"}]},
            {"train.groups": [{"match": ["*o_proj*"], "learning_rate": 1e-6}]},
        ),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"data.enable_thinking": False}),
        ({"rl": "dpo", "dpo_use_liger_kernel": True, "dpo_padding_free": True}, {"train.objective": "dpo"}),
        (
            {"rl": "dpo", "dpo_loss_type": ["sft", "hinge"], "dpo_loss_weights": [0.5, 1.0]},
            {"train.objective": "hinge", "train.sft_weight": 0.5},
        ),
        ({"rl": "dpo", "dpo_loss_type": ["sigmoid", "sft"]}, {"train.objective": "dpo", "train.sft_weight": 1.0}),
    ):
        t = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml")
        assert not t.problems
        assert {key: t.get(key) for key in expected} == expected
    for wrong in (
        {"excess_length_strategy": "raise"},
        {"peft_init_lora_weights": "eva"},
        {"embedding_lr": 1e-5},
        {"chat_template_kwargs": {"enable_thinking": False, "documents": []}},
        {"rl": "dpo", "dpo_use_weighting": True},
        {"rl": "dpo", "dpo_loss_type": ["sigmoid", "hinge"]},
        {"rl": "dpo", "dpo_loss_type": ["sigmoid", "hinge", "sft"]},
        {"use_pose": True},
        {"eval_sequence_len": 64},
    ):
        t = axolotl.translate({**JOBS["axolotl"], **wrong}, tmp_path / "job.yaml")
        assert len(t.problems) == 1


def test_what_a_file_says_in_vain_is_noted(tmp_path):
    index = {"rows": {"file_name": "rows.json", "max_samples": 3, "file_sha1": "…"}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(index))
    file = {**JOBS["llama_factory"], "dataset_dir": str(tmp_path), "dataset": "rows", "eval_on_start": True}
    file |= {"eval_strategy": "steps", "eval_steps": 10, "badam_mode": "layer", "split_special_tokens": True}
    t = llama_factory.translate(file, tmp_path / "job.yaml")
    assert not t.problems and "eval.every_steps" not in t.settings
    assert t.ignored["eval.every_steps"] == "nothing is held out to evaluate on"
    assert t.ignored["rows.max_samples"] == "LLaMA-Factory reads no such key of a data set"
    assert {"eval_on_start", "badam_mode", "split_special_tokens"} <= t.ignored.keys()
    assert not [name for name in t.ignored if name.endswith(("file_sha1", "file_name"))]
    t = axolotl.translate({**JOBS["axolotl"], "evals_per_epoch": 2, "val_set_size": 0.0}, tmp_path / "job.yaml")
    assert "eval.every_steps" in t.ignored and "eval.every_steps" not in t.settings


@pytest.mark.parametrize(
    ("system", "given", "expected"),
    [
        # transformers' trainer saves every 500 steps and keeps all, axolotl keeps four
        ("llama_factory", {}, {"train.save_every": 500, "train.keep_last": 1 << 20}),
        ("llama_factory", {"save_steps": 20, "save_total_limit": 3}, {"train.save_every": 20, "train.keep_last": 3}),
        ("llama_factory", {"save_strategy": "no", "save_total_limit": 0}, {"train.save_every": None}),
        ("axolotl", {}, {"train.save_every": None, "train.keep_last": 4}),
        # which is about answers
        ("llama_factory", {"max_length": 100}, {"data.max_length": 2048}),
        ("llama_factory", {"buffer_size": 16384}, {"data.stream_window": None}),
        ("llama_factory", {"buffer_size": 64, "streaming": True}, {"data.stream_window": 64}),
        ("axolotl", {"streaming_multipack_buffer_size": 64, "streaming": False}, {"data.stream_window": None}),
        ("llama_factory", {"additional_target": " a , b"}, {"adapter.modules_to_save": ["a", "b"]}),
        ("llama_factory", {"quantization_bit": 4, "quantization_type": "fp4"}, {"model.quantization.type": "fp4"}),
        ("llama_factory", {"quantization_type": "fp4"}, {"model.quantization.type": None}),
        ("axolotl", {"max_steps": 0, "num_epochs": 2}, {"train.steps": None, "train.epochs": 2}),
        ("axolotl", {"max_steps": -1, "num_epochs": 2}, {"train.steps": None, "train.epochs": 2}),
        ("axolotl", {"adam_epsilon": 1e-7, "adam_epsilon2": 1e-16, "adam_beta3": 0.9}, {"train.eps": 1e-7}),
        ("axolotl", {"lora_target_modules": ".*q_proj|.*v_proj"}, {"adapter.targets": ["re:.*q_proj|.*v_proj"]}),
        # of a package of that name, for releases up to 0.7; transformers' own has Adam's
        ("axolotl", {"optimizer": "lion_pytorch"}, {"train.optimizer": "lion", "train.betas": [0.9, 0.99]}),
        ("axolotl", {"optimizer": "lion_pytorch", "adam_beta1": 0.8}, {"train.betas": [0.9, 0.99]}),
        ("axolotl", {"optimizer": "lion_pytorch", "adam_beta1": 0.8, "adam_beta2": 0.9}, {"train.betas": [0.8, 0.9]}),
        ("axolotl", {"optimizer": "lion_32bit"}, {"train.optimizer": "lion", "train.betas": None}),
        ("axolotl", {}, {"train.precision": "bf16"}),
        ("axolotl", {"bf16": None}, {"train.precision": None}),
        ("axolotl", {"bf16": False, "bfloat16": True}, {"train.precision": "bf16"}),
        ("axolotl", {"fp16": True}, {"train.precision": "fp16"}),
        # PEFT's function for LoRA+ decays nothing unless it is told to, LLaMA-Factory's does
        ("axolotl", {"loraplus_lr_ratio": 16, "weight_decay": 0.1}, {"train.weight_decay": None}),
        ("llama_factory", {"loraplus_lr_ratio": 16, "weight_decay": 0.1}, {"train.weight_decay": 0.1}),
    ],
    ids=str,
)
def test_what_a_key_means_there(tmp_path, system, given, expected):
    module = {"llama_factory": llama_factory, "axolotl": axolotl}[system]
    t = module.translate({**JOBS[system], "lora_target_linear": None, **given}, tmp_path / "job.yaml")
    assert {name: t.get(name) for name in expected} == expected and not t.problems


def test_fp16_is_not_said_to_be_ignored_where_bf16_is_off(tmp_path):
    for bf16, precision, noted in ((False, "fp16", False), ("auto", "fp16", False), (True, "bf16", True)):
        t = axolotl.translate({**JOBS["axolotl"], "fp16": True, "bf16": bf16}, tmp_path / "job.yaml")
        assert (t.get("train.precision"), "fp16" in t.ignored) == (precision, noted)


def test_keys_of_todays_releases(tmp_path):
    asked = {"train_sampling_strategy": "group_by_length", "generation_num_beams": 2, "full_determinism": True}
    t = llama_factory.translate({**asked, "trackio_space_id": "x", "project": "p"}, tmp_path / "job.yaml")
    assert t.get("data.packing") == "buckets" and not t.problems
    assert (
        llama_factory.translate({"train_sampling_strategy": "sequential"}, tmp_path / "job.yaml").get("data.shuffle")
        is False
    )
    (problem,) = llama_factory.translate({"train_sampling_strategy": "x"}, tmp_path / "job.yaml").problems
    assert "'x': random, sequential, group_by_length are supported" in problem
    asked = {"batch_flattening": "auto", "float32": True, "gradio_title": "x", "generate_samples": True}
    t = axolotl.translate({"adapter": "lora", **asked, "include_tokens_per_second": True}, tmp_path / "job.yaml")
    assert not t.problems and set(asked) <= set(t.ignored)
