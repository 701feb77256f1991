"""What stands in the job files that MindFormers publishes, at tiny sizes, and what a command says instead of them."""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path

import pytest
import yaml
from mindspore import nn
from recipe_jobs import changed

from model_zoo.errors import InputError
from pet.cli.main import main
from pet.compat.mindformers import AutoModel, AutoTokenizer, MindFormerConfig, Trainer, TrainingArguments
from pet.compat.mindformers.sizes import config_of, contradictions
from pet.compat.yaml_files import load_any
from pet.train.schedules import Schedule

ROOT = Path(__file__).parents[3]
JOB = {
    "run_mode": "train",
    "load_checkpoint": "",
    "src_strategy_path_or_dir": "",
    "remote_save_url": "Please input obs url on AICC platform.",
    "runner_config": {"epochs": 2, "batch_size": 2, "sink_mode": True},
    "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "llama2_7b"},
    "optimizer": {"type": "FP32StateAdamWeightDecay", "beta1": 0.9, "beta2": 0.95},
    "lr_schedule": {"type": "polynomial", "learning_rate": 1e-4, "total_steps": -1},
    "use_parallel": False,
    "parallel_config": {"data_parallel": 8, "use_seq_parallel": True, "mem_coeff": 0.1},
    "train_dataset": {"data_loader": {"type": "MindDataset", "dataset_dir": ""}, "input_columns": ["input_ids"]},
    "model": {
        "model_config": {
            "type": "LlamaConfig", "hidden_size": 4096, "num_layers": 32, "num_heads": 32, "vocab_size": 32000,
            "seq_length": 64, "checkpoint_name_or_path": "llama2_7b", "compute_in_2d": True, "use_past_shard": False,
            "max_position_embedding": 4096, "extend_method": "None",
        },
        "arch": {"type": "LlamaForCausalLM"},
    },
    "callbacks": [{"type": "ObsMonitor", "keep_last": False}],
}  # fmt: skip


@pytest.fixture
def job(tmp_path):
    """Writes the file with values `changed`."""

    def write(**changes):
        file = tmp_path / "run_llama2_7b.yaml"
        file.write_text(yaml.safe_dump(changed(JOB, changes)))
        return file

    return write


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "rows.txt"
    file.write_text("a red shirt\n" * 4)
    return str(file)


def notes(caplog) -> str:
    return " ".join(record.message for record in caplog.records)


def test_a_published_file_starts_from_random_weights_as_it_is(job):
    recipe = load_any(job(), check_files=False)
    assert recipe.model.from_scratch
    assert (recipe.model.config["hidden_size"], recipe.model.config["max_position_embeddings"]) == (4096, 64)
    assert recipe.data.max_length == 65  # rows of ids have one more, which is predicted alone
    assert recipe.data.drop_last
    assert recipe.callbacks == []  # the address to upload to is still the placeholder
    # what the file leaves out is MindFormers' default
    assert (recipe.train.eps, recipe.train.warmup, recipe.train.power) == (1e-6, 0, 1.0)
    assert recipe.train.warmup_like == "mindformers"
    assert recipe.train.final_ratio == pytest.approx(1e-7 / 1e-4)


def test_a_class_of_another_model_over_a_checkpoint(job, caplog):
    """It may compute something else than what config.json says, which decides where the command gives it."""
    says = "type: LlamaConfig of BaichuanForCausalLM, but the checkpoint's model_type is 'llama'"
    other = {"model__arch__type": "BaichuanForCausalLM"}
    load_any(job(**other), changes={"load_checkpoint": "llama_tiny"}, check_files=False)
    assert f"the model is that of the command: {says}" in notes(caplog)
    with pytest.raises(InputError, match=f"model_config.{says}"):
        load_any(job(**other, run_mode="finetune", load_checkpoint="llama_tiny"), check_files=False)
    with pytest.raises(InputError, match="'BaichuanForCausalLM' is not supported; models of GPT2, Llama"):
        load_any(job(**other), check_files=False)


def test_a_file_changes_those_that_its_base_config_names(job, tmp_path):
    job(runner_config__epochs=7)
    first, second, file = tmp_path / "first.yaml", tmp_path / "bases/second.yaml", tmp_path / "own.yaml"
    (tmp_path / "bases").mkdir()
    second.write_text("seed: 5\nbase_config: ../run_llama2_7b.yaml\n")
    first.write_text("seed: 4\noutput_dir: here\n")
    file.write_text("base_config: [first.yaml, bases/second.yaml]\nrunner_config: {batch_size: 3}\n")
    recipe = load_any(file, check_files=False)
    assert (recipe.train.epochs, recipe.train.batch_size, recipe.train.seed) == (7, 3, 5)
    assert Path(recipe.output.dir).name == "here" and recipe.model.config["hidden_size"] == 4096
    assert MindFormerConfig(str(file)).runner_config == {**MindFormerConfig(str(second)).runner_config, "batch_size": 3}
    second.write_text("base_config: ../own.yaml\n")
    with pytest.raises(InputError, match=r"second.yaml: base_config: ../own.yaml goes in a circle"):
        load_any(file, check_files=False)


@pytest.mark.parametrize(
    ("kind", "eps", "corrects"),
    [
        ("AdamW", 1e-8, True),
        ("adamw", 1e-6, False),  # its alias for MindSpore's AdamWeightDecay
        ("FusedAdamWeightDecay", 1e-6, False),
        ("FP32StateAdamWeightDecay", 1e-6, False),
        ("AdamWeightDecayX", 1e-6, True),
        ("Adam", 1e-8, True),
    ],
)
def test_an_optimizer_is_that_of_its_name(job, kind, eps, corrects):
    train = load_any(job(optimizer={"type": kind}), check_files=False).train
    assert (train.eps, train.bias_correction) == (eps, corrects)


def test_what_changes_no_result_is_noted(job, caplog):
    caplog.set_level(logging.WARNING, "pet")
    load_any(job(use_parallel=True, parallel_config__data_parallel=1), check_files=False)
    (said,) = [record.message for record in caplog.records if ": ignored: " in record.message]
    for name in ("remote_save_url: is still the placeholder", "parallel_config.use_seq_parallel", "mem_coeff"):
        assert name in said


def test_a_base_on_the_command_line_is_the_model(job, rows, caplog):
    caplog.set_level(logging.WARNING, "pet")
    for recipe in (
        load_any(job(), ["model.path=llama_tiny", f"data.train={rows}"]),
        Trainer(recipe=job(), train_dataset=rows, load_checkpoint="llama_tiny").recipe("train", "llama_tiny"),
    ):
        assert (recipe.model.path, recipe.model.from_scratch, recipe.model.config) == ("llama_tiny", False, {})
    assert "hidden_size: 4096, but the model has 128" in notes(caplog)
    with pytest.raises(InputError, match="hidden_size: 4096, but the model has 128"):
        load_any(job(load_checkpoint="llama_tiny"), [f"data.train={rows}"])


def test_the_run_mode_of_the_command_beats_that_of_the_file(job, rows):
    trainer = Trainer(recipe=job(trainer__model_name="llama_7b_lora"), train_dataset=rows, load_checkpoint="llama_tiny")
    recipe = trainer.recipe("finetune", "llama_tiny")
    assert not recipe.model.from_scratch
    with pytest.raises(InputError, match="'llama2_7b': is a known size, but its weights are not bundled"):
        Trainer(recipe=job(), train_dataset=rows).recipe("finetune")


def test_the_command_says_whether_a_base_is_tuned(job, rows, capsys):
    """A file to train from random weights has no base to tune; the reason is that, not the file's run_mode."""
    assert main(["finetune", str(job()), f"data.train={rows}"]) == 2
    assert "'llama2_7b': is a known size, but its weights are not bundled" in capsys.readouterr().err


def test_options_stand_in_the_place_of_the_files_values(job, rows):
    options = {"model.model_config.num_layers": 1, "model.model_config.hidden_size": 64, "runner_config.epochs": 5}
    recipe = Trainer(recipe=job(), train_dataset=rows, options=options).recipe("train")
    assert (recipe.model.config["num_hidden_layers"], recipe.model.config["hidden_size"]) == (1, 64)
    assert recipe.train.epochs == 5


@pytest.mark.parametrize(
    ("pet", "expected"),
    [
        ({"pet_type": "lora", "in_channels": 768, "out_channels": 768}, {"method": "lora", "dropout": 0.01}),
        ({"pet_type": "ptuning2", "pre_seq_len": 4, "prefix_projection": False, "projection_dim": 8,
          "dropout_prob": 0.01}, {"method": "ptuning2", "length": 4, "projection": False}),
        ({"pet_type": "ptuning2", "pre_seq_len": 4, "prefix_projection": True, "projection_dim": 8},
         {"method": "ptuning2", "length": 4, "projection": True, "projection_hidden": 8}),
        ({"pet_type": "prefixtuning", "prefix_token_num": 4, "mid_dim": 8, "dropout_rate": 0.1},
         {"method": "prefix", "length": 4, "projection": True, "projection_hidden": 8}),
        # its classes' own defaults
        ({"pet_type": "prefixtuning"}, {"length": 128, "projection": True, "projection_hidden": 512}),
        ({"pet_type": "prefixtuning", "prefix_seq_len": 4, "projection": False},
         {"length": 4, "projection": False, "projection_hidden": None}),
        ({"pet_type": "ptuning2", "prefix_projection": True}, {"length": 128, "projection_hidden": 128}),
    ],
)  # fmt: skip
def test_pet_config(job, pet, expected):
    recipe = load_any(job(model__model_config__pet_config=pet), ["model.path=llama_tiny"], check_files=False)
    assert recipe.adapter.model_dump(include=set(expected)) == expected


def test_a_methods_settings_under_arch_as_in_the_first_release(job):
    old = {"pet_type": "lora", "pet_config": {"lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.1}}
    recipe = load_any(job(model__arch__pet=old), ["model.path=llama_tiny"], check_files=False)
    assert recipe.adapter.model_dump(include={"method", "rank", "alpha", "dropout"}) == {
        "method": "lora", "rank": 4, "alpha": 8.0, "dropout": 0.1,
    }  # fmt: skip


def test_the_columns_of_the_loader(job):
    loader = {"type": "ADGenDataLoader", "dataset_dir": "x.json", "origin_columns": ["PROMPT", "ANSWER"], "version": 2}
    recipe = load_any(job(train_dataset__data_loader=loader), ["model.path=llama_tiny"], check_files=False)
    assert recipe.data.columns == {"prompt": "PROMPT", "answer": "ANSWER"}
    held_out = {**loader, "dataset_dir": "y.json", "origin_columns": ["ask", "reply"]}
    both = job(train_dataset__data_loader=loader, eval_dataset__data_loader=held_out)
    data = load_any(both, ["model.path=llama_tiny"], check_files=False).data
    assert data.columns == {"prompt": "PROMPT", "answer": "ANSWER"}
    assert data.eval_columns == {"prompt": "ask", "answer": "reply"}


def test_gpt2_has_its_own_dropout_and_activation(job, caplog):
    sizes = {"type": "GPT2Config", "hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 300}
    more = {"seq_length": 32, "hidden_act": "fast_gelu", "hidden_dropout_rate": 0.2}
    file = job(model__model_config={**sizes, **more}, trainer__model_name="gpt2")
    recipe = load_any(file, check_files=False)
    # what the file leaves out is MindFormers' 0.1
    assert recipe.train.base_dropout == {"embedding": 0.1, "hidden": 0.2, "attention": 0.1}
    assert recipe.model.config["activation_function"] == "quick_gelu"
    caplog.set_level(logging.WARNING, "pet")
    assert load_any(file, ["model.path=gpt_tiny"], check_files=False).train.base_dropout == recipe.train.base_dropout
    assert "hidden_act: fast_gelu, but the model has gelu_new" in notes(caplog)
    assert load_any(file, ["model.path=llama_tiny"], check_files=False).train.base_dropout == {}
    off = dict.fromkeys(("embedding_dropout_prob", "hidden_dropout_rate", "attention_dropout_rate"), 0.0)
    assert load_any(job(model__model_config={**sizes, **off}), check_files=False).train.base_dropout == {}
    with pytest.raises(InputError, match="hidden_dropout: only GPT-2's own dropout"):
        load_any(job(model__model_config={"type": "ChatGLM2Config", "hidden_dropout": 0.1}), check_files=False)


LONG = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"qkv_has_bias": True, "rotary_emb_base": 10**6, "rotary_pct": 1.0, "kv_channels": 16, "auto_map": {"A": "b"}},
         {"model_type": "qwen2", "rope_theta": 10**6, "head_dim": 16}),
        ({"extend_method": "LLAMA3", "scaling_factor": LONG}, {"rope_scaling": {"rope_type": "llama3", **LONG}}),
        ({"extend_method": "PI", "scaling_factor": 4}, {"rope_scaling": {"rope_type": "linear", "factor": 4}}),
        ({"extend_method": "None", "num_block": 1, "qkv_has_bias": False},
         {"rope_scaling": None, "model_type": "llama"}),
        ({"type": "ChatGLM2Config", "rotary_percent": 0.5}, {"model_type": "chatglm"}),
    ],
)  # fmt: skip
def test_keys_of_the_models_beyond_llama_and_glm(given, expected):
    """Qwen 1.5 to 2.5, LLaMA 3.1 and 3.2, DeepSeek Coder and CodeGeeX2 are LLaMA or ChatGLM2 there."""
    sizes = {"type": "LlamaConfig", "hidden_size": 64, "num_layers": 2, "seq_length": 64}
    values = {"model": {"model_config": {**sizes, **given}}}
    config = config_of(values)
    assert {key: config[key] for key in expected} == expected
    assert not contradictions(values, config)
    if config.get("rope_scaling"):
        other = {**config, "rope_scaling": {**config["rope_scaling"], "factor": 2}}
        assert contradictions(values, other)[0].startswith("extend_method: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer__type": "TranslationTrainer"}, "trainer.type: 'TranslationTrainer'"),
        ({"parallel_config__context_parallel": 2, "use_parallel": True}, "parallel_config: context_parallel: 2"),
        ({"layer_scale": True}, "layer_scale: True"),
        ({"runner_wrapper__use_skip_data_by_global_norm": True}, "by_global_norm: True: no batch is left out"),
        ({"train_dataset__repeat": 2}, "train_dataset.repeat: 2: give runner_config.epochs"),
        ({"train_dataset__eod_reset": True}, "train_dataset.eod_reset: True: rows are not divided at an end token"),
        ({"remote_save_url": "/mnt/results"}, "remote_save_url: '/mnt/results': file:///directory or obs://"),
    ],
)
def test_what_would_change_results_is_refused(job, changes, message):
    with pytest.raises(InputError, match=message):
        load_any(job(**changes), ["model.path=llama_tiny"], check_files=False)


def test_the_arguments_of_run_mindformer(job, rows, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "pet")
    recipes = []
    run = lambda self, mode, *rest: recipes.append(self.recipe(mode, self.load_checkpoint))  # noqa: E731
    monkeypatch.setattr(Trainer, "_run", run)
    script = runpy.run_path(str(ROOT / "examples/run_mindformer.py"))
    words = f"""--config {job(model__model_config__pet_config={"pet_type": "lora"})} --run_mode finetune
        --load_checkpoint llama_tiny --train_dataset_dir {rows} --num_samples 3 --gradient_accumulation_steps 2
        --predict_batch_size 4 --register_path research
        --src_strategy_path_or_dir x --options runner_config.epochs=4 lr_schedule.type=linear
        --runner_config.batch_size 1 --optimizer.weight_decay=0.5"""
    monkeypatch.setattr(sys, "argv", ["run_mindformer.py", *words.split()])
    script["main"]()
    (recipe,) = recipes
    train = recipe.train
    assert (recipe.data.max_samples, train.accumulation, train.epochs, train.batch_size) == (3, 2, 4, 1)
    assert (train.schedule, train.weight_decay) == ("linear", 0.5)
    assert "--predict_batch_size: an answer does not depend on the others" in notes(caplog)
    assert "--register_path: the models here need no code of the job's own" in notes(caplog)
    # the README's command has the shorter name, which MindFormers' parser takes for the longer one
    monkeypatch.setattr(sys, "argv", ["run_mindformer.py", *words.replace("_dataset_dir", "_dataset").split()])
    script["main"]()
    assert recipes[0].data == recipes[1].data
    monkeypatch.setattr(sys, "argv", ["run_mindformer.py", *words.split(), "--register_pat", "research"])
    with pytest.raises(InputError, match="--register_pat: is not known"):
        script["main"]()


def test_the_checkpoint_of_the_command_line_answers_though_the_files_is_a_name(tmp_path):
    """A name such as glm_6b_chat, which stands for a download."""
    (tmp_path / "job.yaml").write_text(
        "run_mode: predict\ntrainer: {type: CausalLanguageModelingTrainer}\n"
        "model: {model_config: {type: LlamaConfig, checkpoint_name_or_path: llama_chat, num_layers: 4}}\n"
    )
    from pet.compat.mindformers import Trainer
    from pet.names import bundled_models

    trainer = Trainer(recipe=tmp_path / "job.yaml", load_checkpoint=str(bundled_models()["llama_tiny"]))
    assert trainer.predict("a red", max_new_tokens=1)[0]["text_generation_text"][0].startswith("a red")


PIPELINE = {"use_parallel": True, "parallel_config": {"data_parallel": 2, "pipeline_stage": 2, "micro_batch_num": 2}}


@pytest.mark.parametrize(
    ("changes", "rows", "accumulation"),
    [
        ({"micro_batch_interleave_num": 2}, 2, 1),  # of one process it does nothing
        ({"micro_batch_interleave_num": 2, "use_parallel": True}, 2 * 8 * 2, 1),
        ({**PIPELINE, "micro_batch_interleave_num": 2, "runner_config__gradient_accumulation_steps": 4}, 16, 1),
        ({"use_parallel": True, "runner_config__gradient_accumulation_steps": 4}, 2 * 8, 4),
    ],
)
def test_the_rows_of_a_step_are_mindformers(job, changes, rows, accumulation):
    """Its trainer's global batch: batch_size × data_parallel × micro_batch_interleave_num, times micro_batch_num in a
    pipeline, which leaves gradient_accumulation_steps out."""
    train = load_any(job(**changes), check_files=False).train
    assert (train.batch_size, train.accumulation) == (rows, accumulation)


def test_rows_of_arguments_are_mindformers(tmp_path):
    arguments = {
        "batch_size": 2,
        "per_device_train_batch_size": 5,
        "use_parallel": True,
        "data_parallel": 4,
        "micro_batch_interleave_num": 2,
    }
    assert Trainer(model="llama_tiny", args=TrainingArguments(**arguments)).recipe("train").train.batch_size == 16
    trainer = Trainer(model="llama_tiny", args=TrainingArguments(batch_size=2, gradient_accumulation_steps=4))
    trainer.set_parallel_config(data_parallel=1, pipeline_stage=2, micro_batch_num=2)
    assert (trainer.recipe("train").train.batch_size, trainer.recipe("train").train.accumulation) == (4, 1)
    own = tmp_path / "own.yaml"  # a recipe accumulates over pipelines, too
    own.write_text("model: {path: llama_tiny}\nparallel: {pipeline: 2, micro_batches: 2}\n")
    args = {"use_parallel": True, "gradient_accumulation_steps": 4}
    assert Trainer(recipe=own, args=args).recipe("train").train.accumulation == 4


def test_sections_that_are_not_there_are_mindformers_defaults(job):
    """Without a schedule the optimizer's rate stays, and without a wrapper nothing is clipped."""
    train = load_any(job(lr_schedule=None, optimizer={"type": "AdamW", "learning_rate": 1e-3}), check_files=False).train
    assert (train.schedule, train.learning_rate, train.warmup, train.clip_norm) == ("constant", 1e-3, 0, None)


def test_adafactor_of_a_file_is_that_without_a_first_moment(job):
    """MindSpore's has one unless ``beta1`` is 0, and scales by the weights where the rate is no schedule."""
    plain = {"type": "AdaFactor", "beta1": 0.0, "relative_step": False}
    assert load_any(job(optimizer=plain), check_files=False).train.optimizer == "adafactor"
    with pytest.raises(InputError, match=r"optimizer\.beta1: 0\.9"):
        load_any(job(optimizer={"type": "adafactor"}), check_files=False)
    with pytest.raises(InputError, match=r"optimizer\.scale_parameter: True"):
        load_any(job(optimizer={**plain, "learning_rate": 1e-3}, lr_schedule=None), check_files=False)
    model = AutoModel.from_pretrained("llama_tiny")
    theirs = nn.AdaFactor(model.trainable_params(), learning_rate=1e-3, relative_step=False)
    with pytest.raises(InputError, match=r"use_first_moment: (?s:.*)scale_parameter: adafactor"):
        Trainer(model=model, optimizers=theirs).recipe("train")
    settings = {"relative_step": False, "scale_parameter": False, "beta1": 0.0}
    alike = nn.AdaFactor(model.trainable_params(), learning_rate=1e-3, **settings)
    assert Trainer(model=model, optimizers=alike).recipe("train").train.optimizer == "adafactor"


@pytest.mark.parametrize("kind", ["SGD", "sgd", "Momentum"])
def test_momentum_of_a_file_counts(job, kind):
    train = load_any(job(optimizer={"type": kind, "momentum": 0.8}), check_files=False).train
    assert (train.optimizer, train.momentum) == ("momentum", 0.8)


def test_a_schedule_without_an_end_has_none(job, caplog):
    caplog.set_level(logging.WARNING, "pet")
    given = {"type": "linear", "learning_rate": 1e-4, "lr_end": 1e-5}
    assert load_any(job(lr_schedule=given), check_files=False).train.final_ratio == 0
    assert "lr_schedule.lr_end: the schedule linear has none, in MindFormers either" in notes(caplog)
    rounds = {"type": "CosineWithRestartsAndWarmUpLR", "learning_rate": 1e-3, "num_cycles": 2.0}
    assert load_any(job(lr_schedule=rounds), check_files=False).train.cycles == 2
    load_any(job(lr_schedule={**rounds, "type": "cosine", "num_cycles": 0.5}), check_files=False)
    with pytest.raises(InputError, match=r"num_cycles: 2\.0: only CosineWithRestartsAndWarmUpLR has several"):
        load_any(job(lr_schedule={**rounds, "type": "cosine"}), check_files=False)
    arguments = TrainingArguments(lr_scheduler_type="linear", lr_end=1e-5)
    assert Trainer(model="llama_tiny", args=arguments).recipe("train").train.final_ratio == 0
    with pytest.raises(InputError, match="lr_end: give learning_rate beside it"):
        Trainer(model="llama_tiny", args={"lr_end": 1e-5}).recipe("train")
    trainer = Trainer(model="llama_tiny", args={})
    trainer.config.lr_schedule.update({"type": "polynomial", "warmup_ratio": 0.1})
    train = trainer.recipe("train").train
    assert (train.power, train.warmup_like) == (1.0, "mindformers")


VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. USER: Below is an instruction that describes a task. Write a response "
    "that appropriately completes the request.\n\n### Instruction:\nsay a\n\n### Response: ASSISTANT:"
)


def test_the_prompt_of_alpacas_handler(job, tmp_path):
    """The ids and labels are those of release 1.6 for LLaMA: the text as a whole, of which the answer is learnt."""
    from pet.data import DataSettings, load_dataset

    (tmp_path / "rows.json").write_text('[{"instruction": "say a", "input": "", "output": "a red shirt"}]')
    handler = {"type": "AlpacaInstructDataHandler", "seq_length": 60}
    packed = [handler, {"type": "PackingHandler"}]
    for given, packing, base, space in ((handler, "longest", "llama_tiny", ""), (packed, "pack", "gpt_tiny", " ")):
        loader = {"type": "CommonDataLoader", "data_files": str(tmp_path / "rows.json"), "handler": given}
        file = job(train_dataset={"data_loader": loader}, load_checkpoint=base, model={"model_config": {}})
        data = load_any(file, check_files=False).data
        assert (data.template_without_input.format(prompt="say a"), data.packing) == (VICUNA + space, packing)
        assert "provides further context" in data.template and "### Input:\n{input}\n\n### Response:" in data.template
        if not space:
            tokenizer = AutoTokenizer.from_pretrained("llama_tiny")
            ids, learnt = load_dataset(data.train[0], tokenizer, settings=DataSettings.of(data, max_length=400))[0][:2]
            assert list(ids) == tokenizer(f"{VICUNA} a red shirt</s>")["input_ids"]
            assert tokenizer.decode([one for one, label in zip(ids, learnt, strict=True) if label]) == "a red shirt</s>"


def test_loaders_of_texts_name_their_column_and_their_prompt(job, rows):
    """Rows of these loaders have no labels, so all of a text is learnt."""
    base = {"load_checkpoint": "llama_tiny", "model": {"model_config": {}}}

    def data(**loader):
        given = {"data_loader": {"dataset_dir": rows, "column_names": ["input_ids"], "max_length": 99, **loader}}
        return load_any(job(train_dataset=given, **base), check_files=False).data

    text = data(type="TrainingDataLoader", text_col="content")
    assert (text.columns, text.format, text.packing, text.max_length) == ({"text": "content"}, "text", "pack", 99)
    asked = data(type="SFTDataLoader", dataset_name="alpaca")
    assert asked.template_without_input.endswith("### Instruction:\n{prompt}\n\n### Response:\n")
    assert (asked.train_on, asked.packing) == ("all", "longest")


def test_switches_of_the_newest_files(job, caplog):
    on = dict.fromkeys(("calculate_per_token_loss", "print_separate_loss", "check_for_nan_in_loss_and_grad"), True)
    load_any(job(**on, monitor_config={"monitor_on": True}, train_precision_sync=True), check_files=False)
    assert "calculate_per_token_loss: a loss is always the mean over the batch's tokens" in notes(caplog)
    for name in ("use_skip_data_by_global_norm", "grouped_lr_schedule"):
        with pytest.raises(InputError, match=f"{name}: True: (no batch is left out|give lr_schedule)"):
            load_any(job(**{name: True}), check_files=False)


def test_so_many_rows_are_measured(job, rows):
    loader = {"type": "MindDataset", "dataset_dir": rows, "num_samples": 3}
    assert load_any(job(eval_dataset={"data_loader": loader}), check_files=False).data.eval_rows == [":3"]
    assert load_any(job(eval_dataset={"data_loader": loader}, do_eval=False), check_files=False).data.eval_rows is None


def test_warm_up_stable_decay_has_mindformers_rates(job):
    """Those that WarmUpStableDecayLR of 1.6 gives for 33 steps; it rounds where the descent begins."""
    given = {"learning_rate": 0.01, "lr_end": 1e-4, "warmup_ratio": 0.2, "decay_start_ratio": 0.7}
    train = load_any(job(lr_schedule={"type": "WarmUpStableDecayLR", **given}), check_files=False).train
    expected = [1667, 3333, 5000, 6667, 8333, *[10000] * 18, 9010, 8020, 7030, 6040, 5050, 4060, 3070, 2080, 1090]
    assert [round(Schedule.from_settings(train, 33)(step) * 1e6) for step in range(1, 33)] == expected
    with pytest.raises(InputError, match=r"lr_schedule.decay_start_steps: .*give decay_start_ratio"):
        load_any(job(lr_schedule={"type": "WarmUpStableDecayLR", **given, "decay_start_steps": 9}), check_files=False)


FELL = {"type": "ConstantWithCoolDownLR", "keep_steps": 3, "decay_steps": 4, "lr_end1": 1e-4}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "cosine", "warmup_lr_init": 1e-4}, [100, 400, 700, 1000, 970, 883, 750, 587, 413, 250, 117, 30]),
        ({"type": "linear", "total_steps": 8}, [0, 333, 667, 1000, 800, 600, 400, 200, 0, 0, 0, 0]),
        (
            {"type": "linear", "warmup_ratio": 0.25, "total_steps": 20},
            [0, 200, 400, 600, 800, 1000, 933, 867, 800, 733, 667, 600],
        ),
        (
            {"type": "WarmUpStableDecayLR", "decay_start_steps": 6, "total_steps": 12, "lr_end": 0},
            [0, 333, 667, 1000, 1000, 1000, 1000, 833, 667, 500, 333, 167],
        ),
        (FELL, [0, 333, 667, 1000, 1000, 1000, 1000, 868, 550, 232, 100, 100]),
        (
            {**FELL, "decay_steps": None, "decay_ratio": 0.5, "total_steps": 12, "warmup_lr_init": 1e-4},
            [100, 400, 700, 1000, 1000, 1000, 1000, 940, 775, 550, 325, 160],
        ),
    ],
)
def test_a_schedule_of_its_own_length_and_start(job, given, expected):
    """Rates of the first 12 steps, as the classes of release 1.7 give them."""
    section = {"learning_rate": 1e-3, "warmup_steps": 3, **given}
    train = load_any(job(lr_schedule=section), check_files=False).train
    schedule = Schedule.from_settings(train, 12)
    assert [round(schedule(step) * 1e6) for step in range(12)] == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"decay_steps": None, "decay_ratio": 0.5}, "decay_steps: is missing"),
        ({"lr_end2": 1e-5}, "the rate falls once"),
    ],
)
def test_a_cool_down_that_is_not_here_says_why(job, given, message):
    with pytest.raises(InputError, match=message):
        load_any(job(lr_schedule={"learning_rate": 1e-3, "warmup_steps": 3, **FELL, **given}), check_files=False)
