"""MindFormers' objects that scripts make beside a model: optimizers, a trainer's configuration, callbacks."""

from __future__ import annotations

import json

import mindspore as ms
import numpy as np
import pytest
from pet.compat.mindformers.core import lr, optim
from pet.compat.mindformers.trainer.optimizer_grouped_parameters import get_optimizer_grouped_parameters

import pet
from model_zoo.errors import InputError
from pet.compat.mindformers import (
    AutoModel,
    LlamaConfig,
    LlamaForCausalLM,
    LoraConfig,
    MindFormerConfig,
    Trainer,
    TrainingArguments,
    TransformerOpParallelConfig,
    get_pet_model,
)
from pet.compat.mindformers.callbacks import told


def rows(length=9, count=8):
    random = np.random.default_rng(0)

    def generate():
        for _ in range(count):
            yield (random.integers(0, 15, length).astype(np.int32),)

    return ms.dataset.GeneratorDataset(generate, column_names=["input_ids"]).batch(2)


def tiny(**settings):
    return LlamaForCausalLM(
        LlamaConfig(num_layers=1, hidden_size=32, num_heads=2, vocab_size=20, seq_length=8, **settings)
    )


def trainer_of(model, tmp_path, **given):
    arguments = TrainingArguments(output_dir=str(tmp_path / "run"), batch_size=2, num_train_epochs=1)
    return Trainer(model=model, args=arguments, train_dataset=rows(), **given)


def logged(tmp_path, name):
    return [json.loads(line)[name] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]


def test_an_optimizer_gives_its_settings_and_its_rates(tmp_path):
    model = tiny()
    groups = get_optimizer_grouped_parameters(model, weight_decay=0.1)
    assert [len(group["params"]) for group in groups] and {group["weight_decay"] for group in groups} == {0.1, 0.0}
    rates = lr.CosineWithWarmUpLR(learning_rate=1e-3, warmup_steps=2, total_steps=4)
    made = optim.FusedAdamWeightDecay(groups, rates, beta2=0.95, eps=1e-7, weight_decay=0.1)
    trainer = trainer_of(model, tmp_path, optimizers=made)
    train = trainer.recipe("train").train
    assert (train.optimizer, train.bias_correction, train.betas, train.eps) == (
        "adamw",
        False,
        pytest.approx([0.9, 0.95]),
        pytest.approx(1e-7),
    )
    assert (train.weight_decay, train.decay_vectors) == (pytest.approx(0.1), False)
    trainer.train()
    assert logged(tmp_path, "learning_rate") == pytest.approx([0.0, 5e-4, 1e-3, 5e-4], abs=1e-9)
    train = trainer_of(model, tmp_path, optimizers=optim.AdamW(model.trainable_params(), 2e-3)).recipe("train").train
    assert (train.bias_correction, train.eps, train.learning_rate) == (True, 1e-8, pytest.approx(2e-3))
    assert (train.schedule, train.warmup) == ("constant", 0.0)


def test_an_optimizer_needs_a_model_that_is_an_object(base):
    with pytest.raises(InputError, match="optimizers= is an optimizer over the parameters"):
        Trainer(model=str(base), optimizers=optim.AdamW(tiny().trainable_params()))


def test_what_a_script_sets_on_a_trainers_config_counts(tmp_path):
    trainer = trainer_of(tiny(), tmp_path)
    trainer.config.runner_config.epochs = 3
    trainer.config.runner_config.sink_mode = False
    trainer.config.runner_wrapper.scale_sense.loss_scale_value = 1024
    trainer.config.callbacks = trainer.config.callbacks[:1]
    trainer.config.optimizer.type = "FP32StateAdamWeightDecay"
    trainer.config.lr_schedule.learning_rate = 1e-2
    train = trainer.recipe("train").train
    assert (train.epochs, train.bias_correction, train.learning_rate) == (3, False, 1e-2)
    trainer.config.runner_config.epoch = 1
    with pytest.raises(InputError, match=r"runner_config\.epoch: is not known"):
        trainer.recipe("train")


def test_a_trainers_config_says_where_a_run_starts_and_how_it_is_divided(tmp_path):
    """What it holds counts, or is refused: nothing that a script sets there is passed over."""
    trainer = trainer_of("llama_tiny", tmp_path)
    trainer.config.parallel_config.data_parallel = 2
    trainer.config.runner_config.batch_size = 3
    trainer.config.runner_wrapper.use_clip_grad = False
    trainer.config.callbacks = [{"type": "CheckpointMonitor", "save_checkpoint_steps": 7}]
    trainer.config.remote_save_url = f"file://{tmp_path}"
    trainer.config.model.model_config.use_past = trainer.config.moe_config.expert_num = 1  # says nothing here
    recipe = trainer.recipe("train")
    train = recipe.train
    assert (recipe.parallel.data, train.batch_size, train.clip_norm, train.save_every) == (2, 6, None, 7)
    assert [one.args["url"] for one in recipe.callbacks] == [f"file://{tmp_path}"]
    trainer.config.use_parallel = False
    assert trainer.recipe("train").parallel.data == 1
    trainer.config.train_dataset.input_columns = ["input_ids", "input_mask"]
    assert trainer.recipe("train").data.columns == {"labels": ""}
    for name, value in (("load_checkpoint", "none"), ("model", {"model_config": {"checkpoint_name_or_path": "none"}})):
        trainer = trainer_of("llama_tiny", tmp_path)
        trainer.config.merge_from_dict({name: value})
        with pytest.raises(InputError, match="none: neither an adapter"):
            trainer.train()


def test_a_layout_of_a_call_stands_in_the_file_that_a_script_has_read():
    """Where it may be read and changed again, as there."""
    values = {
        "model": {"model_config": {"type": "LlamaConfig"}},
        "load_checkpoint": "llama_tiny",
        "use_parallel": False,
    }
    trainer = Trainer(args=MindFormerConfig(values), train_dataset=rows())
    trainer.set_parallel_config(model_parallel=2, micro_batch_interleave_num=2)
    assert (trainer.config.parallel_config.model_parallel, trainer.config.micro_batch_interleave_num) == (2, 2)
    parallel = trainer.recipe("train").parallel
    assert (parallel.data, parallel.tensor) == (1, 2)
    trainer.config.parallel_config.data_parallel = 2
    trainer.set_recompute_config(recompute=True)
    recipe = trainer.recipe("train")
    assert recipe.parallel.processes == 4 and recipe.train.recompute and trainer.config.recompute_config.recompute
    trainer.set_recompute_config()  # off, as there
    assert not trainer.recipe("train").train.recompute and trainer.config.recompute_config.select_recompute is False


def test_the_layout_on_a_models_configuration_counts_where_nothing_else_says_one(tmp_path):
    """As scripts set it, ``config.parallel_config = TransformerOpParallelConfig(model_parallel=2)``."""
    config = LlamaConfig(num_layers=1, hidden_size=32, num_heads=2, vocab_size=20, seq_length=8)
    config.parallel_config = TransformerOpParallelConfig(model_parallel=2, recompute=False)
    model = LlamaForCausalLM(config)

    def layout(**given):
        arguments = TrainingArguments(output_dir=str(tmp_path / "run"), **given)
        return Trainer(model=model, args=arguments, train_dataset=rows()).recipe("train").parallel

    assert (layout(use_parallel=True).tensor, layout(use_parallel=False).tensor) == (2, 1)
    said = layout(use_parallel=True, data_parallel=2)
    assert (said.data, said.tensor) == (2, 1)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("model.model_config.num_layers", "set it on the configuration"),
        ("train_dataset.data_loader.dataset_dir", "give the data as train_dataset="),
        ("input_data", "take it as an argument"),
        ("no_key", "is not known"),
    ],
)
def test_what_a_trainers_config_cannot_hold_is_refused(key, why, tmp_path):
    trainer = trainer_of("llama_tiny", tmp_path)
    trainer.config.merge_from_dict({key: 1})
    with pytest.raises(InputError, match=f"{key.rpartition('.')[0] or key}.*{why}"):
        trainer.recipe("train")


def test_random_weights_are_tuned_where_the_script_has_made_them(tmp_path, caplog):
    """As there, with a line that says so; not after training or loading. A size that was named is refused: MindFormers
    would download its weights."""
    said = "Trainer.finetune: the model has random weights"
    trainer_of(tiny(), tmp_path).finetune()
    assert caplog.text.count(said) == 1
    caplog.clear()
    trainer = trainer_of(tiny(), tmp_path)
    trainer.train()
    trainer.finetune()
    model = tiny()
    values = {name: ms.Parameter(one.asnumpy() + 1) for name, one in model.parameters_dict().items()}
    ms.load_param_into_net(model, values)
    trainer_of(model, tmp_path).finetune()
    assert said not in caplog.text
    config = LlamaConfig.from_pretrained("llama_7b")
    sizes = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "vocab_size": 60, "intermediate_size": 32}
    for name, value in sizes.items():
        setattr(config, name, value)
    with pytest.raises(InputError, match="'llama_7b' names a size, there are no base weights"):
        trainer_of(LlamaForCausalLM(config), tmp_path).finetune()


def test_true_for_a_checkpoint_is_the_run_in_the_output_directory(tmp_path):
    """Of another process, too: MindFormers takes the last checkpoint that lies there."""
    with pytest.raises(InputError, match=r"no result of this trainer yet, nor a run in .*run; give a directory"):
        trainer_of("llama_tiny", tmp_path).evaluate(rows(), eval_checkpoint=True)
    first = trainer_of("llama_tiny", tmp_path, pet_method="lora")
    first.train()
    expected = first.evaluate(rows())["loss"]
    later = trainer_of("llama_tiny", tmp_path, pet_method="lora")
    assert later.evaluate(rows(), eval_checkpoint=True)["loss"] == pytest.approx(expected, rel=1e-6)
    assert later.evaluate(rows())["loss"] != pytest.approx(expected, rel=1e-6)


def test_a_files_interval_holds_for_rows_in_memory(tmp_path):
    """A file that measures while it trains, and whose data the script gives as objects."""
    loader = {"data_loader": {"type": "MindDataset", "dataset_dir": ""}, "input_columns": ["input_ids"]}
    values = {"do_eval": True, "eval_step_interval": 2, "run_mode": "finetune", "output_dir": str(tmp_path / "run")}
    values |= {"model": {"model_config": {"type": "LlamaConfig"}}, "load_checkpoint": "llama_tiny"}
    values |= {"train_dataset": loader}
    values |= {"eval_dataset": loader, "runner_config": {"epochs": 1, "batch_size": 2}}
    (tmp_path / "job.yaml").write_text(json.dumps(values))
    Trainer(args=str(tmp_path / "job.yaml"), train_dataset=rows(), eval_dataset=rows()).train()
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval_loss" in line] == [2, 4]
    with pytest.raises(InputError, match="there is nothing to evaluate on"):
        Trainer(args=str(tmp_path / "job.yaml"), train_dataset=rows()).train()
    Trainer(args=str(tmp_path / "job.yaml")).recipe("predict")  # which measures nothing
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "other"), batch_size=2, num_train_epochs=1, evaluation_strategy="steps", eval_steps=3
    )
    Trainer(model=tiny(), args=arguments, train_dataset=rows(), eval_dataset=rows()).train()
    lines = [json.loads(line) for line in (tmp_path / "other/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval_loss" in line] == [3, 4]
    Trainer(model=tiny(), args=arguments, train_dataset=rows()).train()  # nothing to measure on
    arguments = TrainingArguments(do_eval=True, eval_steps=-1, eval_epochs=2)
    found = Trainer(model=tiny(), args=arguments, train_dataset=rows(), eval_dataset=rows()).recipe().eval
    assert (found.every_steps, found.every_epochs) == (None, 2)


class Noted(ms.train.Callback):
    def __init__(self, stop_at=None):
        self.seen, self.losses, self.stop_at = [], [], stop_at

    def _note(self, moment, run_context):
        values = run_context.original_args()
        self.seen.append((moment, values.get("cur_epoch_num"), values.cur_step_num, values.epoch_num, values.batch_num))
        if moment == "step_end":
            loss = values.net_outputs[0] if isinstance(values.net_outputs, tuple) else values.net_outputs
            self.losses.append(float(loss.asnumpy()))
            if values.cur_step_num == self.stop_at:
                run_context.request_stop()


for moment in ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end"):
    setattr(Noted, moment, lambda self, run_context, moment=moment: self._note(moment, run_context))


def test_callbacks_of_mindspores_kind_are_told_what_its_own_loop_tells(tmp_path, capsys):
    whole = ms.nn.Dense(2, 1)
    data = [(np.ones(2, np.float32), np.ones(1, np.float32))] * 8
    data = ms.dataset.GeneratorDataset(data, ["input", "label"], shuffle=False).batch(2)
    loop = ms.train.Model(whole, ms.nn.MSELoss(), ms.nn.SGD(whole.trainable_params()))
    for stop_at, steps in ((None, 8), (3, 3)):
        theirs, ours = Noted(stop_at), Noted(stop_at)
        loop.train(2, data, callbacks=[theirs], dataset_sink_mode=False)
        trainer = trainer_of(tiny(), tmp_path, callbacks=[ours, ms.train.LossMonitor()])
        trainer.config.runner_config.epochs = 2
        trainer.train()
        assert ours.seen == theirs.seen
        assert ours.losses == pytest.approx(logged(tmp_path, "loss")) and len(ours.losses) == steps
    assert "epoch: 2 step: 4, loss is" in capsys.readouterr().out


@pytest.mark.parametrize("stop_at", [1, 2])
def test_a_run_that_is_gone_on_with_tells_the_epochs_that_are_left(stop_at, tmp_path):
    """Also behind an epoch's last step, where the next one begins."""

    def told_of(place, stop_at=None, **how):
        noted, model = Noted(stop_at), pet.apply(pet.AutoModel.from_pretrained("llama_tiny"), pet.LoRAConfig(rank=1))
        batches = [{"input_ids": [[5, 6, 7]]}] * 2
        trainer = pet.Trainer(model, batches, directory=place, callbacks=told([noted]), epochs=2, compiled=False)
        trainer.train(**how)
        return [line for line in noted.seen if line[0] in ("epoch_begin", "step_end")]

    first = told_of(tmp_path / "run", stop_at)
    assert first + told_of(tmp_path / "run", resume=True) == told_of(tmp_path / "whole")


def test_a_model_whose_configuration_has_named_the_adapter_gets_it_once():
    config = LlamaConfig(num_layers=1, hidden_size=32, num_heads=2, vocab_size=20, seq_length=8)
    config.pet_config = LoraConfig(lora_rank=4, lora_alpha=8, target_modules=".*wq")
    model = LlamaForCausalLM(config)
    names = [one.name for one in model.trainable_params()]
    assert get_pet_model(model, config.pet_config) is model
    assert [one.name for one in model.trainable_params()] == names
    with pytest.raises(InputError, match="there is an adapter"):
        get_pet_model(model, LoraConfig(lora_rank=2, lora_alpha=8))


class Pairs:
    """Rows of ids and marks, by their place."""

    def __getitem__(self, place):
        ids = (np.arange(9, dtype=np.int32) + place) % 50 + 5
        return ids, np.ones_like(ids)

    def __len__(self):
        return 6


@pytest.mark.parametrize("form", ["indexable", "iterable", "function"])
def test_data_of_tuples_by_the_names_of_their_columns(tmp_path, form):
    """As MindFormers' trainer takes them; the same losses as of the MindSpore Dataset that it makes of them."""
    pairs, names = Pairs(), ["input_ids", "attention_mask"]
    made = [pairs[place] for place in range(len(pairs))]
    data = {"indexable": pairs, "iterable": type("Rows", (), {"__iter__": lambda _: iter(made)})()}
    data["function"] = lambda: iter(made)
    settings = {"num_train_epochs": 1, "train_dataset_in_columns": names, "eval_dataset_in_columns": names}
    found = []
    for given in (data[form], ms.dataset.GeneratorDataset(pairs, names, shuffle=False).batch(8)):
        arguments = TrainingArguments(batch_size=2, output_dir=str(tmp_path / "run"), **settings)
        trainer = Trainer(args=arguments, model=AutoModel.from_pretrained("llama_tiny"), train_dataset=given)
        trainer.train()
        found.append(trainer.evaluate(eval_dataset=given)["loss"])
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["tuples", "Dataset"])
def test_columns_of_data_by_the_names_of_release_0_6(tmp_path, kind):
    """A mask by its earlier name leaves padding out, as by its later one."""
    rows = [(ids, np.r_[mask[:5], 0 * mask[5:]]) for ids, mask in map(Pairs().__getitem__, range(6))]
    found = []
    for names in (["input_ids", "attention_mask"], ["input_ids", "input_mask"], ["input_ids", "ignored"]):
        arguments = TrainingArguments(output_dir=str(tmp_path / "run"), eval_dataset_in_columns=names)
        trainer = Trainer(args=arguments, model=AutoModel.from_pretrained("gpt_tiny"))
        data = ms.dataset.GeneratorDataset(rows, names, shuffle=False).batch(2)
        found.append(trainer.evaluate(eval_dataset=data if kind == "Dataset" else lambda: iter(rows))["loss"])
    assert found[0] == found[1] != found[2]
