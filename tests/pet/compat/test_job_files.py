"""LLaMA-Factory's and axolotl's job files become recipes that say the same."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import yaml

from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.compat import axolotl, llama_factory
from pet.compat.llama_factory_data import BESIDE
from pet.compat.merging import of_file
from pet.compat.prompts import ALPACA, AXOLOTL, LLAMA_FACTORY, of_turns
from pet.compat.yaml_files import convert, load_any
from pet.data.encode import Encoder
from pet.data.formats import read_rows
from pet.data.settings import DataSettings
from pet.recipe.training import Train
from pet.train.schedules import Schedule


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


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


@pytest.mark.parametrize(
    ("given", "power", "final_ratio"),
    [
        ({"lr_quadratic_warmup": True, "lr_scheduler": "cosine", "cosine_min_lr_ratio": 0.1}, 2.0, 0.0),
        ({"lr_quadratic_warmup": True}, 2.0, 0.0),  # the schedule is cosine unless the file says another
        ({"lr_quadratic_warmup": True, "lr_scheduler": "linear"}, 1.0, 0.0),
        ({"lr_quadratic_warmup": False, "cosine_min_lr_ratio": 0.1}, 1.0, 0.1),
        ({"lr_scheduler": "linear", "cosine_min_lr_ratio": 0.1}, 1.0, 0.0),  # which reads it with cosine alone
        ({"lr_scheduler": "constant", "cosine_min_lr_ratio": 0.1}, 1.0, 0.0),
    ],
    ids=str,
)
def test_axolotls_numbers_of_the_cosine_schedule_are_of_it_alone(base, tmp_path, given, power, final_ratio):
    file = {"base_model": str(base), "datasets": [{"path": str(base / "data.jsonl"), "type": "alpaca"}]}
    file |= {"adapter": "lora", "sequence_len": 64, "dataset_exact_deduplication": True, **given}
    recipe = load_any(write(tmp_path / "ax.yaml", yaml.safe_dump(file)), ["train.learning_rate=1e-3"])
    assert (recipe.train.warmup_power, recipe.train.final_ratio) == (power, final_ratio)
    assert recipe.data.deduplicate


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


CHATML = AXOLOTL["chatml"].jinja(ends="eos_token == '<|im_end|>'")
JOBS = {
    "llama_factory": {
        "model_name_or_path": "org/base",
        "stage": "sft",
        "finetuning_type": "lora",
        "dataset": "identity",
    },
    "axolotl": {"base_model": "org/base", "adapter": "lora", "lora_target_linear": True}
    | {"datasets": [{"path": "org/rows", "type": "alpaca"}]},
}


@pytest.fixture(params=JOBS)
def job(request, tmp_path):
    """Writes a job file of a system, with keys beyond the few that it needs."""
    return lambda **more: write(
        tmp_path / "job.yaml", yaml.safe_dump({**JOBS[request.param], "output_dir": str(tmp_path / "out"), **more})
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


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("cosine_with_restarts", {"train.schedule": "cosine_restarts", "train.cycles": 1, "train.warmup": 0.1}),
        ("polynomial", {"train.schedule": "polynomial", "train.power": 1.0, "train.final_ratio": 1e-7 / 1e-3}),
        ("constant", {"train.schedule": "constant", "train.warmup": 0}),
        ("constant_with_warmup", {"train.schedule": "constant", "train.warmup": 0.1, "train.cycles": None}),
    ],
)
def test_schedules_are_those_of_transformers(word, expected):
    for system, key in ((llama_factory, "lr_scheduler_type"), (axolotl, "lr_scheduler")):
        values = {"learning_rate": 1e-3, "warmup_ratio": 0.1}
        found = system.translate({**values, key: word}, Path("x.yaml"))
        assert {name: found.get(name) for name in expected} == expected and not found.problems
        like = "axolotl" if system is axolotl and word != "constant" else "transformers"
        assert found.get("train.warmup_like") == like  # axolotl rounds a share of all steps down
        for wrong, why in (
            (
                {key: "warmup_stable_decay"},
                "needs lr_scheduler_kwargs: num_decay_steps" if system is axolotl else "give max_steps",
            ),
            ({key: "cosine_with_min_lr"}, "needs lr_scheduler_kwargs: min_lr or min_lr_rate"),
            ({key: "cosine", "lr_scheduler_kwargs": {"min_lr": 1e-5}}, "min_lr: 1e-05: cosine has no such number"),
            (
                {key: "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 0.1}},
                "0.1 is above the learning rate, 0.001",
            ),
            (
                {key: "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-5, "min_lr_rate": 0.5}},
                "min_lr and min_lr_rate are two ways to say one thing",
            ),
            ({key: "linear", "lr_scheduler_kwargs": "{no"}, "lr_scheduler_kwargs"),
        ):
            found = system.translate({**values, **wrong}, Path("x.yaml"))
            assert len(found.problems) == 1 and why in found.problems[0]


@pytest.mark.parametrize(
    ("word", "own"),
    [
        ("cosine_with_min_lr", {"min_lr": 1e-4}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.3}),
        ("inverse_sqrt", {}),
        ("cosine_with_restarts", {"num_cycles": 3}),
        ("polynomial", {"power": 2.0, "lr_end": 1e-4}),
        ("warmup_stable_decay", {"num_decay_steps": 7}),
        ("warmup_stable_decay", {"num_decay_steps": 9, "decay_type": "1-sqrt"}),
        ("warmup_stable_decay", {"num_decay_steps": 9, "decay_type": "linear"}),
        ("warmup_stable_decay", {"num_decay_steps": 9, "min_lr_ratio": 0.2}),
    ],
)
def test_numbers_of_schedules_are_those_of_transformers(word, own):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    for warmup in (0, 4):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
        theirs = transformers.get_scheduler(word, optimizer, warmup, 20, scheduler_specific_kwargs=own)
        values = {"learning_rate": 1e-3, "warmup_steps": warmup, "lr_scheduler": word}
        found = axolotl.translate({**values, "lr_scheduler_kwargs": json.dumps(own)}, Path("x.yaml"))
        assert not found.problems
        names = [field.name for field in dataclasses.fields(Schedule) if field.name in Train.model_fields]
        train = {name: found.settings[f"train.{name}"] for name in names if f"train.{name}" in found.settings}
        train |= {"schedule": found.get("train.schedule"), "learning_rate": 1e-3, "steps": 20}
        ours = Schedule.from_settings(Train(**train), 20)
        for step in range(20):
            assert ours(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
            optimizer.step(), theirs.step()


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


def test_targets_that_a_base_lacks_are_passed_over_as_in_peft(tmp_path, fixtures, base, caplog):
    """GLM-4 calls two of LLaMA's modules gate_up_proj."""
    names = ["gate_proj", "down_proj", "up_proj", "q_proj"]
    given = [f"model.path={fixtures / 'glm4_0414'}", f"data.train={base / 'data.jsonl'}", "data.max_length=32"]
    for system, key, value in (
        ("llama_factory", "lora_target", ",".join(names)),
        ("axolotl", "lora_target_modules", names),
    ):
        file = {**JOBS[system], "output_dir": str(tmp_path / "out"), "lora_target_linear": None, key: value}
        path = write(tmp_path / "job.yaml", yaml.safe_dump(file))
        assert load_any(path, given).adapter.targets == ["down_proj", "q_proj"]
        assert "gate_proj, up_proj: the base has no such modules, and PEFT passes over them" in caplog.text
        caplog.clear()
        write(path, yaml.safe_dump({**file, key: "gate_proj" if system == "llama_factory" else ["gate_proj"]}))
        with pytest.raises(
            InputError, match=r"adapter.targets: 'gate_proj' matches no cell \(did you mean 'gate_up_proj'"
        ):
            load_any(path, given)


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


def test_axolotls_loftq(tmp_path):
    file = {**JOBS["axolotl"], "peft": {"loftq_config": {"loftq_bits": 4}}, "test_value": True}
    translation = axolotl.translate(file, tmp_path / "job.yaml")
    assert not translation.problems
    assert (translation.get("model.quantization.type"), translation.get("adapter.init")) == ("nf4", "loftq")
    assert "model.quantization.double" not in translation.settings  # PEFT does not quantise the factors
    file["peft"] = {"loftq_config": {"loftq_bits": 4, "loftq_iter": 5}}
    assert "loftq_iter: 1 is supported" in axolotl.translate(file, tmp_path / "job.yaml").problems[0]


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


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"chat_template": "gemma3", "eot_tokens": ["<end_of_turn>"]}, None),
        ({"eot_tokens": ["<stop>"]}, "eot_tokens: <stop>"),
        ({"eot_tokens": "<stop>"}, "eot_tokens: <stop>"),
        ({"plugins": "my.Plugin"}, "plugins: my.Plugin: see callbacks"),
        ({"plugins": "axolotl.integrations.liger.LigerPlugin"}, None),
        ({"tokens": {"bos_token": "<s>", "pad_token": "[PAD]"}}, None),
        ({"tokens": {"bos_token": "<begin>"}}, "tokens: '<begin>'"),
        ({"tokens": ["<call>"]}, "tokens: '<call>'"),
        ({"unfrozen_parameters": ["^lm_head.*"]}, None),
        ({"unfrozen_parameters": ["^lm_head.*"], "adapter": None}, None),
        ({"dp_shard_size": 4, "tensor_parallel_size": 2, "context_parallel_size": 2, "tiled_mlp": True}, None),
    ],
)
def test_axolotls_tokens_freezing_and_layouts(tmp_path, given, problem):
    problems = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml").problems
    assert [line.startswith(f"job.yaml: {problem}") for line in problems] == [True] * bool(problem)


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


def test_targets_within_a_model_that_also_sees(tmp_path, fixtures):
    text = json.loads((fixtures / "gemma3" / "config.json").read_text())
    seeing = {"model_type": "gemma3", "text_config": text, "vision_config": {"model_type": "siglip_vision_model"}}
    for name, config in (("text", text), ("seeing", seeing)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    end = ".layers.[\\d]+.(mlp|self_attn).(up|down|q|o)_proj"
    for inside in ("model.language_model", "language_model.model"):
        job = {**JOBS["axolotl"], "lora_target_linear": None, "lora_target_modules": inside + end}
        path = write(tmp_path / "job.yaml", yaml.safe_dump(job))
        for name, root in (("text", "model"), ("seeing", "model.language_model")):
            given = {"model.path": str(tmp_path / name), "data.train": "rows.jsonl"}
            assert load_any(path, given, check_files=False).adapter.targets == [f"re:{root}{end}"]


def test_axolotls_new_weights(tmp_path):
    t = axolotl.translate({**JOBS["axolotl"], "adapter": None, "reinit_weights": True}, tmp_path / "job.yaml")
    assert t.get("model.from_scratch") is True and not t.problems
    for given in ({"qat": {"weight_dtype": "int4"}}, {"fp8": True}, {"lisa_n_layers": 2}):
        t = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml")
        assert t.problems[0].endswith("every weight is trained as it is, in fp32, bf16 or fp16")
    t = llama_factory.translate({**JOBS["llama_factory"], "task": "mmlu_test", "n_shot": 5}, tmp_path / "job.yaml")
    assert len(t.problems) == 2 and all("no benchmark is run" in one for one in t.problems)


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


def test_quantised_bases(tmp_path):
    four = {"model.quantization.type": "nf4", "model.quantization.double": True}
    eight = {"model.quantization.type": "int8"}
    for translate, system, given, expected in (
        (llama_factory.translate, "llama_factory", {"quantization_bit": 4}, four),
        (
            llama_factory.translate,
            "llama_factory",
            {"double_quantization": False, "quantization_bit": 4},
            {**four, "model.quantization.double": False},
        ),
        (llama_factory.translate, "llama_factory", {"quantization_bit": 8}, eight),
        (axolotl.translate, "axolotl", {"load_in_4bit": True, "adapter": "qlora"}, four),
        (axolotl.translate, "axolotl", {"load_in_8bit": True, "load_in_4bit": False}, eight),
    ):
        translation = translate({**JOBS[system], **given}, tmp_path / "job.yaml")
        assert not translation.problems
        found = {key: value for key, value in translation.settings.items() if key.startswith("model.quantization")}
        assert found == expected


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


def of_llama_factory(tmp_path, entries=None, **given):
    """A job file of LLaMA-Factory over data sets of these entries of its list."""
    entries = entries or {"a": {}}
    (tmp_path / "dataset_info.json").write_text(
        json.dumps({name: {"file_name": f"{name}.json", **entry} for name, entry in entries.items()})
    )
    file = {**JOBS["llama_factory"], "dataset": ",".join(entries), "dataset_dir": str(tmp_path), **given}
    return llama_factory.translate(file, tmp_path / "job.yaml")


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


@pytest.mark.parametrize("system", ["llama_factory", "axolotl"])
def test_adapters_of_embeddings_have_a_rate_of_their_own_under_lora_plus(tmp_path, system):
    key = "lora_target" if system == "llama_factory" else "lora_target_modules"
    module = {"llama_factory": llama_factory, "axolotl": axolotl}[system]
    for targets, given, rate in (
        ("q_proj,embed_tokens", {}, 1e-6),
        ("q_proj,embed_tokens", {"loraplus_lr_embedding": "1e-5"}, 1e-5),
        ("q_proj", {"loraplus_lr_embedding": 1e-5}, None),
    ):
        file = {**JOBS[system], "lora_target_linear": None, "loraplus_lr_ratio": 16, key: targets, **given}
        t = module.translate(file, tmp_path / "job.yaml")
        match = "*lora_embedding_B*" if system == "llama_factory" else "*lora_embedding_*"  # as PEFT's own function
        expected = [{"match": [match], "learning_rate": rate}] if rate else None
        assert t.get("train.groups") == expected and not t.problems
        assert ("loraplus_lr_embedding" in t.ignored) == (rate is None)


CHAT = {"path": "rows.jsonl", "type": "chat_template"}


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


def test_what_is_no_list_of_data_sets_is_said(tmp_path):
    for value, problem in (
        ("rows.jsonl", "a list of data sets was expected, each with its path"),
        ([{"type": "alpaca"}], "a list of data sets was expected, each with its path"),
        ([{**CHAT, "roles": ["user"]}], "roles: a mapping was expected"),
        ([{"path": "a", "type": {"format": 3}}], "type: texts were expected"),
    ):
        t = axolotl.translate({**JOBS["axolotl"], "datasets": value}, tmp_path / "job.yaml")
        assert problem in t.problems[0]


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


@pytest.mark.parametrize(
    ("given", "every", "warmup", "decay", "prune"),
    [
        ({"relora_steps": 150, "relora_warmup_steps": 20, "relora_cpu_offload": False}, 150, 20, 1, None),
        ({"relora_steps": 150, "relora_anneal_steps": 5, "relora_prune_ratio": 0.8}, 150, 10, 5, 0.8),
        ({"relora": True, "jagged_restart_steps": 90, "jagged_restart_anneal_steps": False}, 90, 10, 1, None),
        ({"relora": True, "jagged_restart_steps": 90, "relora_prune_method": "reset"}, 90, 10, 1, 1.0),
        ({"relora": False, "relora_prune_ratio": 0.5}, None, None, None, None),
    ],
)
def test_axolotls_relora(tmp_path, given, every, warmup, decay, prune):
    t = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml")
    names = [f"train.restart_{name}" for name in ("every", "warmup", "decay", "prune")]
    assert [t.get(name) for name in names] == [every, warmup, decay, prune] and not t.problems
    assert t.get("output.merged") == (True if every else None)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"jagged_restart_steps": 90}, "jagged_restart_steps: without relora; see train.schedule: cosine_restarts"),
        ({"relora": True}, "relora: jagged_restart_steps says when an adapter begins anew"),
        ({"relora_steps": 9, "relora_prune_method": "random"}, "relora_prune_method: 'random': the smallest"),
        ({"relora_steps": "often"}, "relora_steps: 'often' is not a value that it takes"),
    ],
)
def test_axolotls_relora_that_is_refused(tmp_path, given, problem):
    t = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml")
    assert len(t.problems) == 1 and f"job.yaml: {problem}" in t.problems[0]


def test_axolotls_warm_up_order_and_system_text(tmp_path):
    for given, expected in (
        ({"default_system_message": "S"}, {"data.system": None}),
        ({"default_system_message": "S", "datasets": [{"path": "a", "type": "sharegpt"}]}, {"data.system": "S"}),
        ({}, {"train.warmup": 0.03, "train.warmup_like": "axolotl", "train.warmup_most": 100}),
        ({"warmup_ratio": 0.2}, {"train.warmup": 0.2, "train.warmup_most": None}),
        ({"warmup_steps": 1}, {"train.warmup": 1, "train.warmup_like": "axolotl", "train.warmup_most": None}),
        ({"lr_scheduler": "constant"}, {"train.warmup": 0, "train.warmup_most": None}),
        ({"shuffle_merged_datasets": False}, {"data.shuffle": None}),  # every epoch is shuffled there all the same
        ({"shuffle_merged_datasets": False, "streaming": True}, {"data.shuffle": False}),
    ):
        t = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml")
        assert {name: t.get(name) for name in expected} == expected and not t.problems
    t = axolotl.translate({**JOBS["axolotl"], "warmup_ratio": 1.0}, tmp_path / "job.yaml")
    assert t.problems == ["job.yaml: warmup_ratio: 1.0: a share of the steps below 1"]


TOLD = {"val_size": 0.2, "num_train_epochs": 4}, {"val_set_size": 0.2, "num_epochs": 4}


@pytest.mark.parametrize(
    ("system", "given", "steps", "epochs"),
    [
        ("llama_factory", {"eval_strategy": "steps", "logging_steps": 7}, 7, None),
        ("llama_factory", {"eval_strategy": "steps"}, 500, None),
        ("llama_factory", {"eval_strategy": "steps", "eval_steps": 3, "logging_steps": 7}, 3, None),
        ("llama_factory", {"eval_strategy": "epoch", "eval_steps": 3}, None, 1.0),
        ("llama_factory", {"eval_steps": 0.05, "evaluation_strategy": "steps"}, 0.05, None),
        ("llama_factory", {"eval_steps": 3}, None, None),
        ("axolotl", {"eval_strategy": "epoch"}, None, 1.0),
        ("axolotl", {"eval_strategy": "steps", "logging_steps": 2}, 2, None),
        ("axolotl", {"eval_strategy": "epoch", "evals_per_epoch": 4}, 1 / 16, None),
        ("axolotl", {"evals_per_epoch": 4, "num_epochs": 0.1}, None, 0.25),
        ("axolotl", {"evaluation_strategy": "no"}, None, None),
        ("axolotl", {"eval_steps": 0.25}, 0.25, None),
    ],
    ids=str,
)
def test_how_often_is_evaluated(tmp_path, system, given, steps, epochs):
    module, told = (llama_factory, TOLD[0]) if system == "llama_factory" else (axolotl, TOLD[1])
    t = module.translate({"adapter": "lora", **told, **given}, tmp_path / "job.yaml")
    assert (t.get("eval.every_steps"), t.get("eval.every_epochs")) == (steps, pytest.approx(epochs))


@pytest.mark.parametrize(
    ("given", "metrics", "best"),
    [
        ({"compute_accuracy": True, "metric_for_best_model": "eval_accuracy"}, ["accuracy"], "accuracy"),
        ({"compute_accuracy": True, "stage": "dpo"}, None, None),
        (
            {"predict_with_generate": True, "metric_for_best_model": "eval_rouge-l"},
            ["rouge_1", "rouge_2", "rouge_l", "bleu"],
            "rouge_l",
        ),
        ({"metric_for_best_model": "eval_loss"}, None, "loss"),
        ({"stage": "dpo", "metric_for_best_model": "eval_rewards/accuracies"}, None, "reward_accuracy"),
    ],
)
def test_what_llama_factory_measures(tmp_path, given, metrics, best):
    t = llama_factory.translate({**JOBS["llama_factory"], "val_size": 0.1, **given}, tmp_path / "job.yaml")
    assert t.get("eval.metrics") == (metrics and ["loss", "perplexity", *metrics])
    assert t.get("eval.best_metric") == best and not t.problems


@pytest.mark.parametrize(
    ("system", "given", "every"),
    [
        ("llama_factory", {}, 500),
        ("llama_factory", {"save_steps": 0.1}, 0.1),
        ("llama_factory", {"save_strategy": "epoch"}, 0.25),
        ("llama_factory", {"save_strategy": "epoch", "save_steps": 7}, 0.25),
        ("llama_factory", {"save_strategy": "epoch", "max_steps": 7}, None),
        ("llama_factory", {"save_strategy": "no", "save_steps": 7}, None),
        ("axolotl", {}, 0.25),
        ("axolotl", {"num_epochs": 1}, None),
        ("axolotl", {"max_steps": 7}, None),
        ("axolotl", {"saves_per_epoch": 2}, 1 / 8),
        ("axolotl", {"saves_per_epoch": 2, "max_steps": 7}, 1 / 8),
        ("axolotl", {"save_steps": 0.2}, 0.2),
        ("axolotl", {"save_strategy": "steps"}, 500),
        ("axolotl", {"save_strategy": "no"}, None),
    ],
    ids=str,
)
def test_how_often_is_saved(tmp_path, system, given, every):
    module, told = (llama_factory, TOLD[0]) if system == "llama_factory" else (axolotl, TOLD[1])
    t = module.translate({**told, **given}, tmp_path / "job.yaml")
    assert t.get("train.save_every") == every and not t.problems


@pytest.mark.parametrize(
    ("given", "best"),
    [
        ({"save_steps": 20, "eval_steps": 10}, True),
        ({"saves_per_epoch": 1, "evals_per_epoch": 2}, True),
        ({"save_steps": 15, "eval_steps": 10}, None),
        ({"eval_steps": 10}, None),
    ],
    ids=str,
)
def test_axolotls_early_stopping_keeps_the_best_where_each_checkpoint_was_measured(tmp_path, given, best):
    told = {"adapter": "lora", "early_stopping_patience": 3, "val_set_size": 0.2, **given}
    assert axolotl.translate(told, tmp_path / "job.yaml").get("eval.load_best_model_at_end") is best


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


def test_a_run_is_resumed_from_the_checkpoint_that_a_file_names(job, base, tmp_path):
    """Not from the output directory's last one, nor from the beginning where it is somewhere else."""
    path = job(resume_from_checkpoint=str(tmp_path / "other/checkpoint-10"))
    own = [f"model.path={base}", f"data.train={base / 'data.jsonl'}"]
    with pytest.raises(InputError, match="other/checkpoint-10 holds no whole checkpoint"):
        load_any(path, own)
    assert "copy the run's checkpoint" in convert(path)[0]
    there = tmp_path / "other/checkpoints/step-000010"
    there.mkdir(parents=True)
    (there / "state.json").write_text("{}")
    path = job(resume_from_checkpoint=str(there))
    recipe = load_any(path, [*own, f"output.dir={tmp_path / 'mine'}"])
    assert recipe.train.resume and (tmp_path / "mine/checkpoints/step-000010/state.json").is_file()
    (tmp_path / "other/checkpoints/step-000020").mkdir()
    with pytest.raises(
        InputError, match="step-000010 is not the last checkpoint of its run, which goes on from step-000020"
    ):
        load_any(path, [*own, f"output.dir={tmp_path / 'other'}"])
    assert load_any(job(resume_from_checkpoint=True), own).train.resume


@pytest.mark.parametrize(
    ("given", "decay", "problem"),
    [
        ({}, 12, None),  # of 18 steps after the warm-up 6 are stable
        ({"warmup_ratio": 0.2}, 11, None),
        (
            {"lr_scheduler_kwargs": {"num_stable_steps": 10}},
            12,
            "num_stable_steps: 10, but the descent ends with the run",
        ),
        ({"lr_scheduler_kwargs": {"num_stable_steps": 10, "num_decay_steps": 8}}, 8, None),
        (
            {"lr_scheduler_kwargs": '{"num_decay_steps": 5}'},
            5,
            "num_stable_steps: 6, but the descent ends with the run",
        ),
    ],
    ids=str,
)
def test_llama_factorys_stable_decay(tmp_path, given, decay, problem):
    told = {"lr_scheduler_type": "warmup_stable_decay", "max_steps": 20}
    told |= {} if "warmup_ratio" in given else {"warmup_steps": 2}
    t = llama_factory.translate({**told, **given}, tmp_path / "job.yaml")
    assert t.get("train.decay") == decay
    assert not t.problems if problem is None else problem in t.problems[0]


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


def test_a_file_that_trains_every_weight_may_say_something_of_lora(base, tmp_path):
    told = {"model_name_or_path": str(base), "dataset": "x", "finetuning_type": "full", "cutoff_len": 64}
    told |= {"use_rslora": False, "additional_target": "lm_head", "lora_rank": 4, "lora_dropout": 0.1}
    adapter = load_any(write(tmp_path / "lf.yaml", yaml.safe_dump(told)), [f"data.train={base / 'data.jsonl'}"]).adapter
    assert adapter.method == "none"


def test_the_magnitudes_of_dora_decay_as_in_transformers(tmp_path):
    group = {"match": ["*lora_magnitude_vector*"], "weight_decay": 0.1}
    for module, given in ((llama_factory, {"use_dora": True}), (axolotl, {"adapter": "lora", "peft_use_dora": True})):
        t = module.translate({**given, "weight_decay": 0.1}, tmp_path / "job.yaml")
        assert t.get("train.groups") == [group]
        assert module.translate(given, tmp_path / "job.yaml").get("train.groups") is None


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


def test_what_is_trained_whole_is_named_as_peft_reads_it(base, tmp_path):
    """Each module whose path ends so, dot or no dot."""
    files = [f"data.train={base / 'data.jsonl'}", "data.max_length=64"]
    told = {"model_name_or_path": "llama_tiny", "dataset": "x", "finetuning_type": "lora", "additional_target": "norm"}
    recipe = load_any(write(tmp_path / "lf.yaml", yaml.safe_dump(told)), files)
    assert recipe.adapter.modules_to_save == ["norm", "input_layernorm", "post_attention_layernorm"]
    told = {"base_model": "llama_tiny", "adapter": "lora", "lora_target_modules": ["q_proj"], "micro_batch_size": 1}
    told |= {"lora_modules_to_save": ["model.norm", "head", "1.mlp"], "lora_r": 4, "lora_alpha": 8}
    recipe = load_any(write(tmp_path / "ax.yaml", yaml.safe_dump(told)), files)
    assert recipe.adapter.modules_to_save == ["model.norm", "1.mlp", "lm_head"]
