"""What stands in the job files that MindFormers publishes, at tiny sizes, and what a command says instead of them."""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path

import pytest
from mindformers_jobs import notes

from model_zoo.errors import InputError
from pet.cli.main import main
from pet.compat.mindformers import MindFormerConfig, Trainer
from pet.compat.mindformers.sizes import config_of, contradictions
from pet.compat.yaml_files import load_any

ROOT = Path(__file__).parents[3]


def test_a_published_file_starts_from_random_weights_as_it_is(published):
    recipe = load_any(published(), check_files=False)
    assert recipe.model.from_scratch
    assert (recipe.model.config["hidden_size"], recipe.model.config["max_position_embeddings"]) == (4096, 64)
    assert recipe.data.max_length == 65  # rows of ids have one more, which is predicted alone
    assert recipe.data.drop_last
    assert recipe.callbacks == []  # the address to upload to is still the placeholder
    # what the file leaves out is MindFormers' default
    assert (recipe.train.eps, recipe.train.warmup, recipe.train.power) == (1e-6, 0, 1.0)
    assert recipe.train.warmup_like == "mindformers"
    assert recipe.train.final_ratio == pytest.approx(1e-7 / 1e-4)


def test_a_class_of_another_model_over_a_checkpoint(published, caplog):
    """It may compute something else than what config.json says, which decides where the command gives it."""
    says = "type: LlamaConfig of BaichuanForCausalLM, but the checkpoint's model_type is 'llama'"
    other = {"model__arch__type": "BaichuanForCausalLM"}
    load_any(published(**other), changes={"load_checkpoint": "llama_tiny"}, check_files=False)
    assert f"the model is that of the command: {says}" in notes(caplog)
    with pytest.raises(InputError, match=f"model_config.{says}"):
        load_any(published(**other, run_mode="finetune", load_checkpoint="llama_tiny"), check_files=False)
    with pytest.raises(InputError, match="'BaichuanForCausalLM' is not supported; models of GPT2, Llama"):
        load_any(published(**other), check_files=False)


def test_a_file_changes_those_that_its_base_config_names(published, tmp_path):
    published(runner_config__epochs=7)
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


def test_what_changes_no_result_is_noted(published, caplog):
    caplog.set_level(logging.WARNING, "pet")
    load_any(published(use_parallel=True, parallel_config__data_parallel=1), check_files=False)
    (said,) = [record.message for record in caplog.records if ": ignored: " in record.message]
    for name in ("remote_save_url: is still the placeholder", "parallel_config.use_seq_parallel", "mem_coeff"):
        assert name in said


def test_a_base_on_the_command_line_is_the_model(published, rows, caplog):
    caplog.set_level(logging.WARNING, "pet")
    for recipe in (
        load_any(published(), ["model.path=llama_tiny", f"data.train={rows}"]),
        Trainer(recipe=published(), train_dataset=rows, load_checkpoint="llama_tiny").recipe("train", "llama_tiny"),
    ):
        assert (recipe.model.path, recipe.model.from_scratch, recipe.model.config) == ("llama_tiny", False, {})
    assert "hidden_size: 4096, but the model has 128" in notes(caplog)
    with pytest.raises(InputError, match="hidden_size: 4096, but the model has 128"):
        load_any(published(load_checkpoint="llama_tiny"), [f"data.train={rows}"])


def test_the_run_mode_of_the_command_beats_that_of_the_file(published, rows):
    trainer = Trainer(
        recipe=published(trainer__model_name="llama_7b_lora"), train_dataset=rows, load_checkpoint="llama_tiny"
    )
    recipe = trainer.recipe("finetune", "llama_tiny")
    assert not recipe.model.from_scratch
    with pytest.raises(InputError, match="'llama2_7b': is a known size, but its weights are not bundled"):
        Trainer(recipe=published(), train_dataset=rows).recipe("finetune")


def test_the_command_says_whether_a_base_is_tuned(published, rows, capsys):
    """A file to train from random weights has no base to tune; the reason is that, not the file's run_mode."""
    assert main(["finetune", str(published()), f"data.train={rows}"]) == 2
    assert "'llama2_7b': is a known size, but its weights are not bundled" in capsys.readouterr().err


def test_options_stand_in_the_place_of_the_files_values(published, rows):
    options = {"model.model_config.num_layers": 1, "model.model_config.hidden_size": 64, "runner_config.epochs": 5}
    recipe = Trainer(recipe=published(), train_dataset=rows, options=options).recipe("train")
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
def test_pet_config(published, pet, expected):
    recipe = load_any(published(model__model_config__pet_config=pet), ["model.path=llama_tiny"], check_files=False)
    assert recipe.adapter.model_dump(include=set(expected)) == expected


def test_a_methods_settings_under_arch_as_in_the_first_release(published):
    old = {"pet_type": "lora", "pet_config": {"lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.1}}
    recipe = load_any(published(model__arch__pet=old), ["model.path=llama_tiny"], check_files=False)
    assert recipe.adapter.model_dump(include={"method", "rank", "alpha", "dropout"}) == {
        "method": "lora", "rank": 4, "alpha": 8.0, "dropout": 0.1,
    }  # fmt: skip


def test_gpt2_has_its_own_dropout_and_activation(published, caplog):
    sizes = {"type": "GPT2Config", "hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 300}
    more = {"seq_length": 32, "hidden_act": "fast_gelu", "hidden_dropout_rate": 0.2}
    file = published(model__model_config={**sizes, **more}, trainer__model_name="gpt2")
    recipe = load_any(file, check_files=False)
    # what the file leaves out is MindFormers' 0.1
    assert recipe.train.base_dropout == {"embedding": 0.1, "hidden": 0.2, "attention": 0.1}
    assert recipe.model.config["activation_function"] == "quick_gelu"
    caplog.set_level(logging.WARNING, "pet")
    assert load_any(file, ["model.path=gpt_tiny"], check_files=False).train.base_dropout == recipe.train.base_dropout
    assert "hidden_act: fast_gelu, but the model has gelu_new" in notes(caplog)
    assert load_any(file, ["model.path=llama_tiny"], check_files=False).train.base_dropout == {}
    off = dict.fromkeys(("embedding_dropout_prob", "hidden_dropout_rate", "attention_dropout_rate"), 0.0)
    assert load_any(published(model__model_config={**sizes, **off}), check_files=False).train.base_dropout == {}
    with pytest.raises(InputError, match="hidden_dropout: only GPT-2's own dropout"):
        load_any(published(model__model_config={"type": "ChatGLM2Config", "hidden_dropout": 0.1}), check_files=False)


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
def test_what_would_change_results_is_refused(published, changes, message):
    with pytest.raises(InputError, match=message):
        load_any(published(**changes), ["model.path=llama_tiny"], check_files=False)


def test_the_arguments_of_run_mindformer(published, rows, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "pet")
    recipes = []
    run = lambda self, mode, *rest: recipes.append(self.recipe(mode, self.load_checkpoint))  # noqa: E731
    monkeypatch.setattr(Trainer, "_run", run)
    script = runpy.run_path(str(ROOT / "examples/run_mindformer.py"))
    words = f"""--config {published(model__model_config__pet_config={"pet_type": "lora"})} --run_mode finetune
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


def test_sections_that_are_not_there_are_mindformers_defaults(published):
    """Without a schedule the optimizer's rate stays, and without a wrapper nothing is clipped."""
    train = load_any(
        published(lr_schedule=None, optimizer={"type": "AdamW", "learning_rate": 1e-3}), check_files=False
    ).train
    assert (train.schedule, train.learning_rate, train.warmup, train.clip_norm) == ("constant", 1e-3, 0, None)


def test_switches_of_the_newest_files(published, caplog):
    on = dict.fromkeys(("calculate_per_token_loss", "print_separate_loss", "check_for_nan_in_loss_and_grad"), True)
    load_any(published(**on, monitor_config={"monitor_on": True}, train_precision_sync=True), check_files=False)
    assert "calculate_per_token_loss: a loss is always the mean over the batch's tokens" in notes(caplog)
    for name in ("use_skip_data_by_global_norm", "grouped_lr_schedule"):
        with pytest.raises(InputError, match=f"{name}: True: (no batch is left out|give lr_schedule)"):
            load_any(published(**{name: True}), check_files=False)
