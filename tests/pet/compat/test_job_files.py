"""LLaMA-Factory's and axolotl's job files become recipes that say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from job_files import JOBS, write

from model_zoo.errors import InputError
from pet.compat import axolotl, llama_factory
from pet.compat.merging import of_file
from pet.compat.prompts import ALPACA, LLAMA_FACTORY
from pet.compat.yaml_files import convert, load_any


def test_llama_factory(base, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dataset_info.json").write_text(
        json.dumps({"mine": {"file_name": "rows.json", "columns": {"prompt": "question", "response": "reply"}}})
    )
    (tmp_path / "data/rows.json").write_text(json.dumps([{"question": "Who?", "reply": "Me."}] * 3))
    file = {
        "model_name_or_path": str(base),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora",
        "lora_target": "all",
        "lora_rank": 4,
        "dataset": "mine",
        "dataset_dir": str(tmp_path / "data"),
        "template": "default",
        "cutoff_len": 64,
        "output_dir": str(tmp_path / "saves"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "learning_rate": 1e-4,
        "num_train_epochs": 2.0,
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.1,
        "plot_loss": True,
        "val_size": 0.4,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
    }
    recipe = load_any(write(tmp_path / "lf.yaml", yaml.safe_dump(file)))
    assert (recipe.adapter.rank, recipe.adapter.alpha, recipe.adapter.targets) == (4, 8.0, ["all-linear"])
    assert recipe.data.train == [str(tmp_path / "data/rows.json")]
    # by the columns that the list names, and no others
    assert (recipe.data.format, recipe.data.columns) == ("auto", {"prompt": "question", "answer": "reply"})
    assert (recipe.train.accumulation, recipe.train.warmup, recipe.train.schedule) == (4, 0.1, "cosine")
    assert (recipe.data.eval_fraction, recipe.eval.every_steps) == (0.4, 1)
    assert recipe.eval.load_best_model_at_end and recipe.data.template == LLAMA_FACTORY["default"].jinja()
    for more, message in (
        ({"quantization_bit": 3}, "quantization_bit: 3: 4 and 8 are supported"),
        ({"stage": "ppo"}, "stage: 'ppo': supported are sft, pt, dpo, orpo, kto, rm"),
        ({"stage": "dpo", "pref_loss": "slic"}, "pref_loss: 'slic': supported are sigmoid, hinge, ipo, orpo, simpo"),
        ({"use_galore": True}, "use_galore: True: an optimizer that is not here"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last: True: with gradient_accumulation_steps an epoch"),
        ({"template": "phi"}, "template: 'phi': the prompt is that of the model's own tokenizer"),
    ):
        with pytest.raises(InputError, match=message):
            load_any(write(tmp_path / "lf.yaml", yaml.safe_dump({**file, **more})))
    alone = {**file, "dataloader_drop_last": True, "gradient_accumulation_steps": 1}
    assert load_any(write(tmp_path / "lf.yaml", yaml.safe_dump(alone))).data.drop_last


def test_axolotl(base, tmp_path):
    file = {
        "base_model": str(base),
        "load_in_8bit": False,
        "datasets": [{"path": str(base / "data.jsonl"), "type": "alpaca"}],
        "val_set_size": 0.25,
        "adapter": "lora",
        "lora_r": 4,
        "lora_alpha": 8,
        "lora_target_modules": ["c_attn"],
        "sequence_len": 64,
        "sample_packing": True,
        "micro_batch_size": 2,
        "num_epochs": 2,
        "max_steps": 6,
        "optimizer": "adamw_bnb_8bit",
        "lr_scheduler": "cosine",
        "learning_rate": 2e-4,
        "bf16": "auto",
        "evals_per_epoch": 2,
        "wandb_project": None,
        "special_tokens": None,
        "output_dir": str(tmp_path / "out"),
    }
    jinja = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    file |= {"noisy_embedding_alpha": 5, "chat_template": "jinja", "chat_template_jinja": jinja}
    recipe = load_any(write(tmp_path / "ax.yaml", yaml.safe_dump(file)), ["adapter.rank=6"])
    assert (recipe.train.neftune_alpha, recipe.data.template) == (5, ALPACA["alpaca"][0][0])
    talk = {**file, "datasets": [{"path": str(base / "data.jsonl"), "type": "chat_template"}]}
    assert axolotl.translate(talk, tmp_path / "ax.yaml").get("data.template") == jinja
    assert (recipe.adapter.rank, recipe.adapter.targets, recipe.data.format) == (6, ["c_attn"], "alpaca")
    assert (recipe.train.steps, recipe.train.epochs, recipe.data.packing) == (6, None, "pack")
    assert (recipe.eval.every_steps, recipe.eval.every_epochs) == (0.25, None)
    for more, message in (
        ({"rl": "grpo"}, "rl: 'grpo': supported are dpo, ipo, simpo, orpo, kto"),
        ({"landmark_attention": True}, "landmark_attention: True: every token sees all tokens before it"),
        ({"adapter": "oft"}, "adapter: 'oft': lora and qlora are supported"),
        (
            {"special_tokens": {"eos_token": "<end>"}},
            "special_tokens: '<end>': not so in the base's tokenizer; pet add-tokens",
        ),
        ({"plugins": ["my.Plugin"]}, "plugins: my.Plugin: see callbacks"),
        ({"datasets": [{"path": "x", "type": "alpaca", "field_chosen": "c"}]}, "datasets.field_chosen: 'c'"),
    ):
        with pytest.raises(InputError, match=message):
            load_any(write(tmp_path / "ax.yaml", yaml.safe_dump({**file, **more})))


@pytest.mark.parametrize("system", ["llama_factory", "axolotl"])
def test_bf16_of_a_job_file_falls_back_with_one_line(base, tmp_path, caplog, system):
    file = {
        "llama_factory": {"model_name_or_path": str(base), "stage": "sft", "do_train": True, "finetuning_type": "lora"}
        | {"dataset": str(base / "data.jsonl"), "output_dir": str(tmp_path / "out"), "bf16": True},
        "axolotl": {"base_model": str(base), "adapter": "lora", "output_dir": str(tmp_path / "out"), "bf16": True}
        | {"datasets": [{"path": str(base / "data.jsonl"), "type": "alpaca"}]},
    }[system]
    short = ["data.max_length=64"]
    path = write(tmp_path / "job.yaml", yaml.safe_dump(file))
    assert load_any(path, short).train.precision == "auto"
    line = "train.precision is auto: bf16 where this processor is fast at it, else fp32"
    assert sum(line in record.message for record in caplog.records) == 1
    assert (
        load_any(path, [*short, "train.precision=bf16"]).train.precision == "bf16"
    )  # asked for here: an error when it runs
    assert (
        load_any(write(tmp_path / "job.yaml", yaml.safe_dump({**file, "bf16": False})), short).train.precision == "fp32"
    )


def test_the_command_line_may_use_the_files_own_names(job, base):
    files = {"model.path": str(base), "data.train": str(base / "data.jsonl"), "data.max_length": 64}
    own = {"learning_rate": 3e-4, "num_train_epochs" if "lora_target" not in job().read_text() else "num_epochs": 7}
    for given in ({**files, **own}, [f"{key}={value}" for key, value in {**files, **own}.items()]):
        train = load_any(job(learning_rate=1e-5), given).train
        assert (train.learning_rate, train.epochs) == (3e-4, 7)
    for wrong in ("learning_rte=1", "learning_rate", "learning_rate=["):
        with pytest.raises(InputError, match=r"learning_r(te: is not known|ate'|ate=\[)"):
            load_any(job(), [f"model.path={base}", f"data.train={base / 'data.jsonl'}", "data.max_length=64", wrong])


def test_an_own_name_that_a_recipe_has_too_is_the_files_unless_it_is_given_a_section(job, base):
    """``adapter=`` was the recipe's section with all of its defaults: LoRA, in place of all weights."""
    path, files = job(), [f"model.path={base}", f"data.train={base / 'data.jsonl'}", "data.max_length=64"]
    dora = load_any(path, [*files, "adapter={method: dora, rank: 2}"]).adapter
    assert (dora.method, dora.rank) == ("dora", 2)
    for none in ("adapter=", "adapter=none"):
        if "base_model" in path.read_text():
            assert load_any(path, [*files, none]).adapter.method == "none"
    if "base_model" in path.read_text():
        assert load_any(path, [*files, "adapter=qlora", "load_in_4bit=true"]).model.quantization.type == "nf4"
    else:
        with pytest.raises(InputError, match="adapter: expected a section"):
            load_any(path, [*files, "adapter=qlora"])
    again = ["learning_rate=1e-4", "learning_rate=2e-4", "learning_rate=1e-4"]
    assert load_any(path, [*files, *again]).train.learning_rate == 1e-4, "the last one counts"


@pytest.mark.parametrize("asked", ["1", "true", "0", None])
def test_llama_factorys_variable_for_modelscope_says_where_a_name_is_looked_up(tmp_path, base, monkeypatch, asked):
    monkeypatch.delenv("USE_MODELSCOPE_HUB", raising=False)
    if asked is not None:
        monkeypatch.setenv("USE_MODELSCOPE_HUB", asked)
    before = "modelscope:" if asked in ("1", "true") else ""
    for given, expected in (
        ({"model_name_or_path": "org/base"}, f"{before}org/base"),
        ({"model_name_or_path": "org/base", "model_revision": "main"}, f"{before}org/base"),
        ({"model_name_or_path": "org/base", "model_revision": "v2"}, f"{before}org/base@v2"),
        ({"model_name_or_path": str(base)}, str(base)),
        ({"model_name_or_path": "modelscope:org/base"}, "modelscope:org/base"),
    ):
        assert llama_factory.translate(given, tmp_path / "lf.yaml").get("model.path") == expected
        if "model_revision" not in given:
            merged = {**given, "adapter_name_or_path": "adapter"}
            assert of_file(write(tmp_path / "lf.yaml", yaml.safe_dump(merged)))["base"] == expected
    assert axolotl.translate({"base_model": "org/base"}, tmp_path / "ax.yaml").get("model.path") == "org/base"


def test_words_of_yaml_1_1_are_truth_values_as_these_systems_read_them(job, base):
    files = [f"model.path={base}", f"data.train={base / 'data.jsonl'}", "data.max_length=64"]
    whole = job(save_total_limit=2)
    packing = "sample_packing" if "base_model" in whole.read_text() else "packing"
    off = f"{packing}: no\ngradient_checkpointing: off\nfp16: No\nsave_steps: 1_000\n"
    write(whole, whole.read_text() + off)
    recipe = load_any(whole, files)
    unsaid = "auto" if packing == "sample_packing" else "fp32"  # what axolotl's bf16 is where a file does not say it
    assert (recipe.train.recompute, recipe.train.precision, recipe.data.packing) == (False, unsaid, "longest")
    assert recipe.train.save_every == 1000
    recipe = load_any(write(whole, whole.read_text().replace(": off", ": yes").replace(": no", ": on")), files)
    assert (recipe.train.recompute, recipe.data.packing) == (True, "pack")
    write(whole, whole.read_text().replace(": yes", ": maybe"))
    with pytest.raises(InputError, match=r"gradient_checkpointing: 'maybe' is not a value.*true or false"):
        load_any(whole, files)


def test_a_missing_base_and_data_on_a_hub_are_an_error_unless_the_command_line_has_files(job, base):
    key = "base_model" if "base_model" in job().read_text() else "model_name_or_path"
    with pytest.raises(InputError) as error:
        load_any(job(**{key: "./bases/gone"}))
    assert f"{key}: './bases/gone': no such directory; give model.path=PATH" in str(error.value)
    assert "nothing is downloaded; give data.train=PATH" in str(error.value)
    given = [f"model.path={base}", f"data.train={base / 'data.jsonl'}", "data.max_length=64"]
    assert load_any(job(), given).data.train == [str(base / "data.jsonl")]


def test_the_order_of_keys_changes_nothing():
    base = {"base_model": "llama_tiny", "adapter": "lora", "micro_batch_size": 2, "batch_size": 8}
    base |= {"lora_target_linear": True, "lora_target_modules": ["embed_tokens"]}
    base |= {"group_by_length": True, "sample_packing": False}
    for values in (base, dict(reversed(base.items()))):
        found = axolotl.translate(values, Path("x.yaml"))
        assert found.get("adapter.targets") == ["embed_tokens", "all-linear"]
        assert (found.get("data.packing"), found.get("train.accumulation")) == ("buckets", 4)
    base = {"model_name_or_path": "llama_tiny", "quantization_bit": 4, "double_quantization": False}
    base |= {"eval_steps": 5, "eval_strategy": "no", "preprocessing_num_workers": 16, "dataloader_num_workers": 4}
    for values in (base, dict(reversed(base.items()))):
        found = llama_factory.translate(values, Path("x.yaml"))
        assert (found.get("model.quantization.double"), found.get("data.workers")) == (False, 4)
        assert found.get("eval.every_steps") is None


@pytest.mark.parametrize("system", ["llama_factory", "axolotl"])
def test_a_converted_file_is_what_runs(tmp_path, fixtures, base, system):
    """With the base's own modules and context, as when the file itself is run."""
    key, names = {"llama_factory": "model_name_or_path", "axolotl": "base_model"}[system], ["gate_proj", "q_proj"]
    file = {**JOBS[system], key: str(fixtures / "glm4_0414"), "output_dir": str(tmp_path / "out"), "bf16": True}
    file |= {"lora_target": "gate_proj,q_proj"} if system == "llama_factory" else {"lora_target_modules": names}
    path = write(tmp_path / "job.yaml", yaml.safe_dump({**file, "lora_target_linear": None}))
    data = [f"data.train={base / 'data.jsonl'}"]
    text, ignored = convert(path)
    ours, theirs = load_any(write(tmp_path / "ours.yaml", text), data), load_any(path, data)
    assert ours.adapter == theirs.adapter and ours.adapter.targets == ["q_proj"]
    assert ours.data.max_length == theirs.data.max_length < 512
    assert ours.train.precision == theirs.train.precision == "auto"
    assert any("the base has no such modules" in line for line in ignored)


STRANGE = ["x", -1, True, [1], {"a": 1}, float("nan")]


@pytest.mark.full
@pytest.mark.parametrize(("system", "least"), [(llama_factory, 308), (axolotl, 230)])
def test_a_malformed_value_is_an_input_error_whatever_it_is_of(base, tmp_path, system, least):
    """Of these values so many are refused at least; the keys that are noted take any."""
    output, data = {"output_dir": str(tmp_path / "out")}, str(base / "data.jsonl")
    if system is llama_factory:
        file = {"model_name_or_path": str(base), "stage": "sft", "finetuning_type": "lora", "dataset": data, **output}
    else:
        file = {"base_model": str(base), "adapter": "lora", "datasets": [{"path": data, "type": "alpaca"}], **output}
    refused = 0
    for number, key in enumerate(system.TABLE):
        for value in STRANGE[number % 2 :: 2] if key not in ("max_steps", "lora_rank", "stage") else STRANGE:
            path = write(tmp_path / "job.yaml", yaml.safe_dump({**file, key: value}))
            try:
                load_any(path, ["data.max_length=64"])
            except InputError:
                refused += 1
    assert refused >= least
    path = write(tmp_path / "job.yaml", yaml.safe_dump({**file, "lora_alpha": "x"}))
    with pytest.raises(InputError, match=r"job.yaml: lora_alpha: 'x' is not a value that it takes"):
        load_any(path)


@pytest.mark.parametrize("asked", [{"do_train": False, "do_eval": True}, {"do_predict": True}, {"do_train": "no"}])
def test_a_file_that_does_not_train_names_the_command(base, tmp_path, asked):
    (tmp_path / "run" / "adapter").mkdir(parents=True)
    file = {"model_name_or_path": str(base), "stage": "sft", "dataset": str(base / "data.jsonl"), **asked}
    file |= {"adapter_name_or_path": str(tmp_path / "run"), "finetuning_type": "lora"}
    path = write(tmp_path / "job.yaml", yaml.safe_dump(file))
    with pytest.raises(InputError, match="nothing is trained; pet evaluate FILE"):
        load_any(path, needs=["data.train"], check_files=False)
    assert load_any(path, check_files=False).data.max_length == 128, "their 2048 is more than the base has"
    path = write(tmp_path / "job.yaml", yaml.safe_dump({**file, "cutoff_len": 2048}))
    with pytest.raises(InputError, match="2048 is longer than the model's context of 128"):
        load_any(path)
