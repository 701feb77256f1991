"""MindFormers' arguments of a training: what they say, and what they say of processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pet
from adapters.apply import list_adapters
from model_zoo.errors import InputError


def test_training_arguments_that_say_nothing(tmp_path):
    """They are as in MindFormers, but what a recipe or a file says counts before it."""
    from pet.compat.mindformers import Trainer, TrainingArguments

    rows = tmp_path / "rows.txt"
    rows.write_text("a\nb\n")

    def train(arguments, **more):
        return Trainer(model="gpt_tiny", args=arguments, train_dataset=str(rows), **more).recipe("train").train

    bare = train(TrainingArguments(output_dir="out"))
    rates = (bare.learning_rate, bare.final_ratio, bare.warmup, bare.schedule)
    assert rates == (5e-5, pytest.approx(0.02), 0, "cosine")
    others = (bare.optimizer, bare.weight_decay, bare.betas, bare.eps, bare.clip_norm, bare.seed, bare.batch_size)
    assert others == ("adamw", 0.0, [0.9, 0.999], 1e-8, 1.0, 42, 8)
    assert (bare.epochs or 3) == 3 and TrainingArguments().learning_rate == 5e-5
    assert train(TrainingArguments(learning_rate=1e-3)).final_ratio == pytest.approx(1e-3)
    assert train(TrainingArguments(warmup_ratio=0.1)).warmup == 0.1
    assert train(TrainingArguments(lr_end=0)).final_ratio == 0
    for name, wanted in (("linear", (0, 2, 2.0)), ("constant", (0, 2, 2.0)), ("polynomial", (0.02, 2, 1.0))):
        found = train(TrainingArguments(lr_scheduler_type=name))
        assert (found.final_ratio, found.cycles, found.power) == pytest.approx(wanted)
    assert train(TrainingArguments(lr_scheduler_type="cosine_with_restarts")).cycles == 1
    (tmp_path / "job.yaml").write_text(
        "trainer: {model_name: gpt_tiny}\nmodel: {model_config: {type: GPT2Config}}\n"
        "lr_schedule: {type: CosineWithRestartsAndWarmUpLR, learning_rate: 1.e-3}\n"
    )
    assert train(None, recipe=str(tmp_path / "job.yaml")).cycles == 1
    own = train({"output_dir": "out"})
    assert (own.learning_rate, own.warmup, own.final_ratio) == (2e-4, 0.03, 0)
    (tmp_path / "recipe.yaml").write_text("model: {path: gpt_tiny}\ntrain: {learning_rate: 1e-2}\n")
    said = train(TrainingArguments(seed=3), recipe=str(tmp_path / "recipe.yaml"))
    assert (said.learning_rate, said.warmup, said.seed) == (1e-2, 0.03, 3)


def test_arguments_of_mindformers_trainer(tmp_path, caplog):
    """One callback is as good as a list; what has no meaning is noted, and what cannot be had is refused as such."""
    from mindspore import nn

    from pet.compat.mindformers import CheckpointMonitor, MFLossMonitor, Trainer

    rows = tmp_path / "rows.txt"
    rows.write_text("a\nb\n")
    given = {"model": "gpt_tiny", "train_dataset": str(rows)}
    callbacks = {
        "callbacks": CheckpointMonitor(save_checkpoint_steps=5),
        "eval_callbacks": MFLossMonitor(per_print_times=3),
    }
    theirs = {"model_name": "gpt2", "save_config": True, "optimizers": None, "compute_metrics": None, "wrapper": None}
    recipe = Trainer(**given, **callbacks, **theirs).recipe()
    assert (recipe.train.save_every, recipe.train.log_every) == (5, 3)
    assert "Trainer: ignored: model_name: the model says" in caplog.text and "save_config" in caplog.text
    assert Trainer(**given, eval_callbacks=None, callbacks=None).recipe().callbacks == []
    assert Trainer(**given, callbacks="csv").callbacks == ["csv"]
    network = nn.Dense(2, 2)
    for name, value, why in (
        (
            "optimizers",
            nn.SGD(network.trainable_params()),
            "optimizers= is an optimizer over the parameters of a model that is an object",
        ),
        ("compute_metrics", {"PerplexityMetric"}, "compute_metrics: loss and perplexity are measured"),
        ("wrapper", network, "wrapper: the step is this library's own"),
        ("eval_callbacks", [object()], "eval_callbacks: an evaluation has no callbacks of its own"),
        ("max_steps", 3, "max_steps: settings of a trainer over batches"),
        ("parallel", {"data_parallel": 2}, "parallel: .*; its set_parallel_config divides the work"),
    ):
        with pytest.raises(InputError, match=rf"Trainer: {why}") as caught:
            Trainer(**given, **{name: value})
        assert "\n" not in str(caught.value)


def test_training_arguments_as_mindformers_defines_them(tmp_path):
    """Fields of its class that say nothing here are noted, and its layout counts where use_parallel is on."""
    from pet.compat.mindformers import Trainer, TrainingArguments

    rows = tmp_path / "rows.txt"
    rows.write_text("a\nb\n")
    arguments = TrainingArguments(
        num_train_epochs=1, batch_size=2, sink_mode=True, device_target="Ascend", data_parallel=8, scale_sense=1.0,
        lr_scheduler_type="cosine", learning_rate=1e-3, lr_end=1e-4, layer_scale=False, expert_num=1, total_steps=-1,
        use_clip_grad=False, save_prefix="gpt", train_dataset=str(rows), shuffle=False, num_samples=1, unheard_of=None,
    )  # fmt: skip
    recipe = Trainer(model="gpt_tiny", pet_method="lora", args=arguments, train_dataset=str(rows)).recipe()
    train = recipe.train
    assert (train.final_ratio, train.clip_norm, train.save_prefix) == (pytest.approx(0.1), None, "gpt")
    assert (recipe.data.shuffle, recipe.data.max_samples, recipe.parallel.data) == (False, 1, 1)
    longer = TrainingArguments(learning_rate=1e-3, warmup_steps=2, warmup_lr_init=1e-4, total_steps=50)
    train = Trainer(model="gpt_tiny", args=longer, train_dataset=str(rows)).recipe("train").train
    assert (train.warmup_from, train.schedule_steps) == (pytest.approx(0.1), 50)
    divided = Trainer(model="gpt_tiny", args={"use_parallel": True, "model_parallel": 2}, train_dataset=str(rows))
    assert divided.recipe("train").parallel.tensor == 2
    for wrong in ({"layer_scale": True}, {"expert_num": 4}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Trainer(model="gpt_tiny", args=TrainingArguments(**wrong), train_dataset=str(rows)).recipe()
    with pytest.raises(InputError, match="has no 'unheard_of'"):
        TrainingArguments(unheard_of=1)
    shown = TrainingArguments(seed=3)  # as its class shows what is left out
    assert (shown.output_dir, shown.num_train_epochs, shown.per_device_train_batch_size) == ("./output", 3.0, 8)
    assert (shown.seed, shown.learning_rate, shown.batch_size, shown.warmup_ratio) == (3, 5e-5, None, None)


def test_training_arguments_that_are_set_later(tmp_path):
    """By attribute, or by the methods of MindFormers' class, which say what they leave out, too."""
    from pet.compat.mindformers import Trainer, TrainingArguments

    rows = tmp_path / "rows.txt"
    rows.write_text("a\nb\n")

    def recipe(arguments: TrainingArguments):
        return Trainer(model="gpt_tiny", args=arguments, train_dataset=str(rows), eval_dataset=str(rows)).recipe(
            "train"
        )

    arguments = TrainingArguments(output_dir=str(tmp_path / "run"), learning_rate=1e-3, batch_size=2, max_steps=9)
    arguments.learning_rate, arguments.max_steps = 5e-4, None
    train = recipe(arguments).train
    assert (train.learning_rate, train.batch_size, train.steps) == (5e-4, 2, None)
    assert recipe(TrainingArguments(batch_size=2, per_device_train_batch_size=3)).train.batch_size == 2
    assert arguments.set_training(learning_rate=1e-4, batch_size=4) is arguments
    assert (recipe(arguments).train.learning_rate, recipe(arguments).train.batch_size) == (1e-4, 4)
    arguments.batch_size = 3
    arguments.set_evaluate("steps", steps=7).set_save("no", steps=5).set_logging(steps=2)
    arguments.set_optimizer("sgd", learning_rate=1e-2, lr_end=1e-3).set_lr_scheduler("cosine", warmup_ratio=0.1)
    found = recipe(arguments)
    train = found.train
    assert (train.batch_size, train.save_every, train.log_every, found.eval.every_steps) == (3, None, 2, 7)
    assert (train.optimizer, train.schedule, train.warmup, train.steps) == ("sgd", "cosine", 0.1, None)
    assert train.final_ratio == pytest.approx(0.1)
    found = recipe(arguments.set_dataloader(sampler_seed=5).set_testing().set_evaluate().set_save())
    assert (found.data.seed, found.data.drop_last, found.train.batch_size) == (5, False, 8)
    assert (found.eval.every_steps, found.train.save_every) == (None, 500)
    assert arguments.to_dict()["save_steps"] == 500
    with pytest.raises(AttributeError, match="did you mean 'learning_rate'"):
        arguments.learning_rat = 1
    with pytest.raises(InputError, match="see remote_save_url, or pet export --hub"):
        recipe(arguments.set_push_to_hub("me/adapter"))


def test_the_job_of_trainings_arguments(monkeypatch):
    from pet.compat.mindformers import TrainingArguments, build_context

    arguments = TrainingArguments(use_parallel=False, num_train_epochs=1)
    build_context(arguments)
    assert (arguments.rank_id, arguments.device_num) == (0, 1)
    with pytest.raises(InputError, match="single process"):
        build_context(TrainingArguments(use_parallel=True))


def test_use_parallel_as_a_text_of_the_command_line(caplog):
    """A script's ``--use_parallel`` without a type."""
    from pet.compat.mindformers import init_context

    assert init_context(use_parallel="False") == (0, 1)
    assert "use_parallel='False' is False here; MindFormers takes every text for True" in caplog.text
    with pytest.raises(InputError, match="single process"):
        init_context(use_parallel="True")
    with pytest.raises(InputError, match="init_context: use_parallel: unknown value 'perhaps'"):
        init_context(use_parallel="perhaps")


def test_use_parallel_as_a_text_of_arguments_and_files(caplog):
    """As of the command line: a word for False is False, and what MindFormers does with it is said."""
    from pet.compat.mindformers import MindFormerConfig, Trainer, TrainingArguments, build_context
    from pet.compat.mindformers.yaml_file import translate

    for args in (TrainingArguments(use_parallel="False"), {"use_parallel": "no"}):
        assert Trainer(model="gpt_tiny", args=args).arguments["use_parallel"] is False
    assert "Trainer: use_parallel='False' is False here" in caplog.text
    with pytest.raises(InputError, match="Trainer: use_parallel: unknown value 'perhaps'"):
        Trainer(model="gpt_tiny", args={"use_parallel": "perhaps"})
    build_context(config := MindFormerConfig(use_parallel="False"))
    assert config.device_num == 1
    layout = {"data_parallel": 2, "model_parallel": 1, "pipeline_stage": 1}
    said = [
        translate({"use_parallel": use, "parallel_config": layout, "load_checkpoint": "gpt_tiny"}, Path("job.yaml"))
        for use in ("True", "False")
    ]
    assert said[0].get("parallel.data") == 2 and "parallel.data" not in said[1].settings
    assert said[1].ignored["parallel_config"] == "use_parallel is off"


def test_settings_of_the_configuration_beside_a_models_name(caplog):
    from pet.compat.mindformers import AutoConfig, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained("llama_tiny", use_past=True, seq_length=32, trust_remote_code=True)
    assert (model.config.use_past, model.config.seq_length) == (True, 32)
    own = pet.AutoModel.from_pretrained("llama_tiny").parameters_dict()
    assert all(np.array_equal(one.asnumpy(), own[name].asnumpy()) for name, one in model.parameters_dict().items())
    assert list_adapters(AutoModel.from_pretrained("gpt_tiny_lora", use_past=True)) == ["default"]
    assert AutoConfig.from_pretrained("gpt_tiny", num_layers=1, trust_remote_code=True).n_layer == 1
    assert AutoTokenizer.from_pretrained("gpt_tiny", trust_remote_code=True).encode("a")
    assert caplog.text.count("ignored: trust_remote_code: no code is loaded with a model") == 3
    with pytest.raises(InputError, match=r"there is no 'use_pas' \(did you mean 'use_past'"):
        AutoModel.from_pretrained("gpt_tiny", use_pas=True)
    with pytest.raises(InputError, match="device_map has no counterpart"):
        AutoModel.from_pretrained("gpt_tiny", device_map="auto")
    with pytest.raises(InputError, match="'llama_7b': is a known size, but its weights are not bundled"):
        AutoModel.from_pretrained("llama_7b", use_past=True)  # no random weights
    with pytest.raises(InputError, match="use_past belong to a configuration, dtype to opening weights"):
        AutoModel.from_pretrained("llama_tiny", use_past=True, dtype="float32")
