"""``pet.Trainer`` in MindFormers' form: names, paths, objects."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pet
from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.errors import InputError
from pet import run_directory
from pet.parallel.strategy import read_strategy

ARGUMENTS = {"num_train_epochs": 4, "batch_size": 4, "learning_rate": 1e-2, "max_length": 48, "warmup_steps": 1}


def losses(directory):
    return [json.loads(line)["loss"] for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_finetune_evaluate_predict_by_paths(base, tmp_path, numpy_loss, asked):
    trainer = pet.Trainer(
        task="text_generation",
        model=str(base),
        pet_method="lora",
        args=pet.TrainingArguments(output_dir=str(tmp_path / "run"), **ARGUMENTS),
        train_dataset=str(base / "data.jsonl"),
        eval_dataset=str(base / "held_out.jsonl"),
    )
    summary = trainer.finetune()
    found = losses(tmp_path / "run")
    assert len(found) == summary["steps"] > 1
    assert found[-1] < found[0]
    assert (tmp_path / "run/adapter/adapter_config.json").is_file()
    model, tokenizer = pet.AutoModel.from_pretrained(str(base)), pet.AutoTokenizer.from_pretrained(str(base))
    rows = [json.loads(line) for line in (base / "held_out.jsonl").read_text().splitlines()]
    assert summary["before"]["loss"] == pytest.approx(numpy_loss(model, asked(tokenizer, rows)), rel=1e-4)
    pet.load_adapter(model, tmp_path / "run/adapter")
    after = trainer.evaluate()
    assert after["loss"] == pytest.approx(numpy_loss(model, asked(tokenizer, rows)), rel=1e-4)
    assert after["loss"] == pytest.approx(summary["after"]["loss"], rel=1e-5)
    assert after["loss"] < summary["before"]["loss"]
    # up to release 1.0 the checkpoint is the first argument of evaluate
    for checkpoint in (True, str(tmp_path / "run"), tmp_path / "run/adapter"):
        assert trainer.evaluate(checkpoint)["loss"] == pytest.approx(after["loss"], rel=1e-6)
    assert trainer.evaluate(str(base))["loss"] == pytest.approx(summary["before"]["loss"], rel=1e-4)
    assert trainer.evaluate(str(base / "held_out.jsonl"))["loss"] == pytest.approx(after["loss"], rel=1e-6)
    (answer,) = trainer.predict(input_data="What is 3?", max_new_tokens=3, top_k=1)
    same = pet.pipeline("text_generation", model=model, tokenizer=tokenizer)
    assert answer == same("What is 3?", max_new_tokens=3, top_k=1)[0]


def test_mindformers_first_argument_are_the_args(base, tmp_path):
    """By place: args, task, model, in all of its releases; what follows differs between them."""
    from pet.compat.mindformers import Trainer

    arguments = pet.TrainingArguments(output_dir=str(tmp_path / "run"), **ARGUMENTS)
    data = {"train_dataset": str(base / "data.jsonl"), "pet_method": "lora"}
    expected = Trainer(args=arguments, model=str(base), **data).recipe()
    for trainer in (
        Trainer(arguments, model=str(base), **data),
        Trainer(arguments, "text_generation", str(base), **data),
        Trainer(str(base), args=arguments, **data),
    ):
        assert trainer.recipe() == expected
    (tmp_path / "job.yaml").write_text(f"model: {{path: {base}}}\ndata: {{train: {base / 'data.jsonl'}}}\n")
    assert Trainer(str(tmp_path / "job.yaml")).recipe() == Trainer(args=str(tmp_path / "job.yaml")).recipe()
    assert Trainer(dict(ARGUMENTS), None, str(base)).recipe().model.path == str(base)
    for given, words in (((arguments, "general", str(base), "llama_tiny"), "by name: its order differs"),):
        with pytest.raises(InputError, match=words):
            Trainer(*given)
    with pytest.raises(InputError, match="Trainer: args is given twice"):
        Trainer(arguments, model=str(base), args=arguments)


def test_a_cell_and_a_mindspore_dataset(base, tmp_path, perplexity):
    from mindspore.dataset import GeneratorDataset

    rows = np.random.default_rng(0).integers(10, 40, (8, 17)).astype(np.int32)
    data = GeneratorDataset([(row,) for row in rows], column_names=["input_ids"], shuffle=False).batch(4)
    model = pet.AutoModel.from_pretrained(str(base))
    trainer = pet.Trainer(
        task="text_generation",
        model=model,
        args={"output_dir": str(tmp_path / "run"), "num_train_epochs": 3, "learning_rate": 1e-2, "warmup_steps": 0},
        train_dataset=data,
        eval_dataset=data,
    )
    assert trainer.evaluate()["perplexity"] == pytest.approx(perplexity(model, rows), rel=1e-4)
    summary = trainer.train()
    assert summary["steps"] == 6  # two batches of four, three times
    found = losses(tmp_path / "run")
    assert found[-1] < found[0]
    assert trainer.evaluate()["perplexity"] == pytest.approx(perplexity(model, rows), rel=1e-4)
    saved = read_file(tmp_path / "run/model/model.safetensors")
    assert np.array_equal(
        saved["transformer.h.0.attn.c_attn.weight"], model.transformer.h[0].attn.c_attn.weight.asnumpy()
    )
    assert not run_directory._claimed, "the directory is free again"


def test_what_was_trained_on_objects_is_measured_and_asked(base, tmp_path, perplexity):
    """A model by its path with data that is an object; and the run's result given to a cell."""
    rows = np.random.default_rng(0).integers(10, 40, (8, 17)).astype(np.int32)
    data = [{"input_ids": rows[:4]}, {"input_ids": rows[4:]}]
    arguments = {"output_dir": str(tmp_path / "run"), "num_train_epochs": 4, "learning_rate": 1e-2, "warmup_steps": 0}
    trainer = pet.Trainer(model=str(base), pet_method="lora", args=arguments, train_dataset=data, eval_dataset=data)
    summary = trainer.finetune()
    cell = pet.AutoModel.from_pretrained(str(base))
    plain = perplexity(cell, rows)
    given = pet.Trainer(model=cell, tokenizer=str(base), eval_dataset=data, load_checkpoint=str(tmp_path / "run"))
    found = given.evaluate()["perplexity"]
    assert found == pytest.approx(perplexity(cell, rows), rel=1e-4)
    assert found < 0.97 * plain
    assert trainer.evaluate()["perplexity"] == pytest.approx(found, rel=1e-5)
    assert summary["after"]["perplexity"] == pytest.approx(found, rel=1e-5)
    assert trainer.predict("The shop", max_new_tokens=4) == given.predict("The shop", max_new_tokens=4)
    untuned = trainer.predict(str(base), input_data="The shop", max_new_tokens=4)  # as in MindFormers
    assert untuned == trainer.predict("The shop", str(base), max_new_tokens=4)
    other = pet.Trainer(model=pet.AutoModel.from_pretrained(str(base)), tokenizer=str(base))
    asked = other.predict("The shop", predict_checkpoint=str(tmp_path / "run"), max_new_tokens=4)
    with pytest.raises(InputError, match="predict_checkpoint is given twice"):
        other.predict(str(base), str(tmp_path / "run"), input_data="The shop")
    assert asked == trainer.predict("The shop", max_new_tokens=4)
    assert pet.list_adapters(other.model) == ["default"]


def test_resuming_goes_on_from_another_run(base, tmp_path):
    def trainer(output, **more):
        arguments = {**ARGUMENTS, "save_steps": 2, "output_dir": str(tmp_path / output), **more}
        data = str(base / "data.jsonl")
        return pet.Trainer(model=str(base), pet_method="lora", args=arguments, train_dataset=data)

    whole = trainer("whole")
    whole.finetune()
    import shutil

    first = sorted((tmp_path / "whole/checkpoints").iterdir())[0]
    part = tmp_path / "part/checkpoints"
    part.mkdir(parents=True)
    shutil.copytree(first, part / first.name)
    trainer("resumed").finetune(resume=str(tmp_path / "part"))
    mine, other = (read_file(tmp_path / name / "adapter/adapter_model.safetensors") for name in ("whole", "resumed"))
    assert mine.keys() == other.keys()
    assert all(np.array_equal(mine[name], other[name]) for name in mine)
    steps = [json.loads(line)["step"] for line in (tmp_path / "resumed/metrics.jsonl").read_text().splitlines()]
    # MindFormers' arguments: the place of a run or of weights, and whether a run goes on, or the name of its checkpoint
    place, adapter = str(tmp_path / "part"), str(tmp_path / "whole/adapter")
    for number, (arguments, call) in enumerate(
        [
            ({}, {"resume_from_checkpoint": place, "resume_training": True}),
            ({}, {"finetune_checkpoint": place, "resume_training": "True"}),
            ({"resume_from_checkpoint": place, "resume_training": True}, {}),
            ({}, {"resume_from_checkpoint": str(tmp_path / "whole"), "resume_training": first.name}),
        ]
    ):
        trainer(f"run{number}", **arguments).finetune(ignore_data_skip=False, **call)
        lines = (tmp_path / f"run{number}/metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == steps
    for number, more in enumerate([{"resume_training": False}, {}]):
        trainer(f"from{number}").finetune(resume_from_checkpoint=adapter, **more)
        assert losses(tmp_path / f"from{number}")[0] < losses(tmp_path / "whole")[0]
    with pytest.raises(InputError, match=f"{first.name} is not the last checkpoint of its run"):
        trainer("whole").finetune(resume_training=first.name)
    with pytest.raises(InputError, match=r"whole has checkpoints of its own, not of .*part; give another output_dir"):
        trainer("whole").finetune(resume=place)
    assert trainer("resumed").finetune(resume=place)["steps"] == len(losses(tmp_path / "whole"))  # the same once more


def test_the_core_form_is_the_core():
    from pet.train.trainer import Trainer as Core

    model = pet.AutoModel.from_config({"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50})
    batches = [{"input_ids": np.arange(16).reshape(2, 8)}]
    trainer = pet.Trainer(model, batches, steps=2, warmup=0)
    assert pet.Trainer is Core and isinstance(trainer, Core)
    assert trainer.train()["steps"] == 2
    assert len(trainer.history) == 2
    assert trainer.model is model
    with pytest.raises(InputError, match=r"pet_methode: settings of a trainer over .*did you mean 'pet_method'"):
        pet.Trainer(model, pet_methode="lora")
    with pytest.raises(InputError, match=r"no setting 'pet_method'.*; MindFormers' arguments go with train_dataset"):
        pet.Trainer(model, batches, steps=2, pet_method="lora")
    with pytest.raises(InputError, match="has no tokenizer"):
        trainer.predict("text")


def test_what_cannot_be_had_says_what_to_do(base):
    data = str(base / "data.jsonl")
    with pytest.raises(InputError, match="no base weights: give the directory"):
        pet.Trainer(model="gpt2", pet_method="lora", train_dataset=data).finetune()
    with pytest.raises(InputError, match="'gpt2' names a size, there are no base weights"):
        small = pet.GPT2Config.from_pretrained("gpt2")
        small.n_embd, small.n_layer, small.n_head, small.vocab_size = 16, 1, 2, 50
        pet.Trainer(model=pet.GPT2LMHeadModel(small), train_dataset=[{"input_ids": [[1, 2, 3]]}]).finetune()
    with pytest.raises(InputError, match=r"batchsize.*did you mean 'batch_size'"):
        pet.TrainingArguments(batchsize=3)
    with pytest.raises(InputError, match=r"pet_method 'lorra'.*'lora'"):
        pet.Trainer(model=str(base), pet_method="lorra", train_dataset=data)
    with pytest.raises(InputError, match="push_to_hub"):
        pet.Trainer(model=str(base), args={"push_to_hub": True}, train_dataset=data).finetune()
    with pytest.raises(InputError, match="eval_dataset"):
        pet.Trainer(model=str(base), train_dataset=data, do_eval=True).finetune()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fp16": "maybe"}, "fp16: 'maybe' is not a value that it takes .true or false"),
        ({"max_steps": 1.5}, "max_steps: 1.5 is not a value that it takes .a whole number"),
        ({"max_steps": float("nan")}, "max_steps: nan"),
        ({"save_steps": 1.5}, "TrainingArguments: save_steps=1.5: train.save_every: 1.5 is neither a whole number of"),
        ({"num_train_epochs": -1}, "TrainingArguments: num_train_epochs=-1: train.epochs: expected more than 0"),
    ],
)
def test_a_wrong_argument_is_named_as_it_was_given(base, given, message):
    trainer = pet.Trainer(model=str(base), args=given, train_dataset=str(base / "data.jsonl"))
    with pytest.raises(InputError, match=message):
        trainer.recipe()


def test_words_for_switches_and_numpys_numbers(base):
    given = {
        "fp16": "False", "gradient_checkpointing": "no", "load_best_model_at_end": "off",
        "overwrite_output_dir": "true", "save_steps": np.int64(3), "seed": np.int32(7),
        "learning_rate": np.float32(0.5),
    }  # fmt: skip
    recipe = pet.Trainer(model=str(base), args=given, train_dataset=str(base / "data.jsonl")).recipe()
    train = recipe.train
    assert (train.precision, train.recompute, recipe.eval.load_best_model_at_end) == ("fp32", False, False)
    assert (recipe.output.force, train.save_every, train.seed, train.learning_rate) == (True, 3, 7, 0.5)


@pytest.mark.parametrize(
    ("data", "message"),
    [([], "the training data are empty"), ({"input_ids": [[1, 2]]}, "data is a dict; files"), (3, "data is a int")],
)
def test_data_that_are_none_are_one_line(base, tmp_path, data, message):
    arguments = pet.TrainingArguments(output_dir=str(tmp_path / "run"), max_steps=1)
    with pytest.raises(InputError, match=message):
        pet.Trainer(model=str(base), pet_method="lora", args=arguments, train_dataset=data).finetune()


def test_a_method_of_the_file_itself_keeps_its_settings(base, tmp_path):
    section = {"pet_type": "lora", "lora_rank": 4, "target_modules": ".*dense1"}
    values = {"trainer": {"type": "GeneralTaskTrainer"}, "load_checkpoint": str(base)}
    values["model"] = {"model_config": {"type": "GPT2Config", "pet_config": section}}
    (tmp_path / "job.yaml").write_text(json.dumps(values))
    own = {"model": {"path": str(base)}, "adapter": {"method": "lora", "rank": 4, "targets": ["c_attn"]}}
    (tmp_path / "own.yaml").write_text(json.dumps(own))
    for file in ("job.yaml", "own.yaml"):
        trainer = pet.Trainer(recipe=tmp_path / file, pet_method="LoRA", train_dataset=str(base / "data.jsonl"))
        adapter = trainer.recipe().adapter
        assert (adapter.rank, adapter.targets) == (4, ["c_attn"])
        other = pet.Trainer(recipe=tmp_path / file, pet_method="bitfit", train_dataset=str(base / "data.jsonl"))
        assert other.recipe().adapter.method == "bitfit"


def test_unset_arguments_do_not_override_the_recipe(base, tmp_path):
    (tmp_path / "job.yaml").write_text(
        f"model: {{path: {base}}}\nadapter: {{method: ia3}}\ntrain: {{learning_rate: 3e-3, steps: 7, batch_size: 6}}\n"
        f"data: {{train: {base}/data.jsonl, max_length: 32}}\n"
    )
    arguments = pet.TrainingArguments(batch_size=2, weight_decay=None)
    recipe = pet.Trainer(recipe=str(tmp_path / "job.yaml"), args=arguments).recipe()
    assert (recipe.train.learning_rate, recipe.train.steps, recipe.train.batch_size) == (3e-3, 7, 2)
    assert recipe.adapter.method == "ia3"


def test_layouts_and_preset_names(base, monkeypatch):
    trainer = pet.Trainer(model=str(base), args={"batch_size": 2}, train_dataset=str(base / "data.jsonl"))
    trainer.set_parallel_config(
        data_parallel=4, model_parallel=2, pipeline_stage=2, micro_batch_num=2, optimizer_shard=True
    )
    trainer.set_recompute_config(recompute=True, select_recompute=False)
    recipe = trainer.recipe()
    said = trainer.config.parallel_config, trainer.config.recompute_config
    assert (said[0].data_parallel, said[0].optimizer_shard, said[1].select_recompute) == (4, True, False)
    trainer.config.parallel_config.data_parallel = 1
    assert trainer.recipe().parallel.processes == 4
    assert recipe.parallel.processes == 16
    assert recipe.parallel.shard_optimizer
    assert recipe.train.batch_size == 2 * 4 * 2  # MindFormers counts the rows of one micro-batch of one copy
    assert recipe.train.recompute
    file = base / "layout.yaml"  # a file's own layout, turned on or off by the script
    file.write_text(
        f"run_mode: finetune\nload_checkpoint: {base}\nrunner_config: {{batch_size: 3}}\nuse_parallel: False\n"
        "parallel_config: {data_parallel: 2, model_parallel: 2}\n"
        "model: {model_config: {type: GPT2Config, seq_length: 64}}\n"
    )
    with monkeypatch.context() as patch:
        for name, value in {
            "RANK_ID": "0",
            "RANK_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "8118",
        }.items():
            patch.setenv(name, value)
        for use, expected in ((True, (2, 2, 6)), (None, (4, 1, 12))):
            arguments = {} if use is None else {"use_parallel": use}
            recipe = pet.Trainer(recipe=str(file), args=arguments, train_dataset=str(base / "data.jsonl")).recipe()
            assert (recipe.parallel.data, recipe.parallel.tensor, recipe.train.batch_size) == expected
        own = base / "own.yaml"  # a recipe's, which may say more than MindFormers knows
        own.write_text("{adapter: {method: lora}, parallel: {data: 4, shard_base: true, reduce_dtype: bfloat16}}")
        trainer = pet.Trainer(model=str(base), recipe=str(own), args=arguments | {"use_parallel": True})
        trainer.train_dataset = str(base / "data.jsonl")
        assert trainer.recipe().parallel.model_dump(exclude_defaults=True) == {
            "data": 4, "shard_base": True, "reduce_dtype": "bfloat16",
        }  # fmt: skip
    recipe = pet.Trainer(model="glm_tiny_lora", train_dataset=str(base / "data.jsonl")).recipe()
    assert (recipe.model.path, recipe.adapter.method, recipe.adapter.alpha) == ("glm_tiny", "lora", 32)


def test_every_training_argument(base):
    arguments = pet.TrainingArguments(
        output_dir="somewhere", num_train_epochs=2, batch_size=3, learning_rate=2e-4, warmup_steps=4, sink_mode=True,
        sink_size=2, weight_decay=0.2, adam_beta1=0.8, adam_beta2=0.9, adam_epsilon=1e-6, max_grad_norm=0.5,
        lr_scheduler_type="cosine", optim="adamw", save_strategy="steps", save_steps=5, save_total_limit=2, seed=7,
        data_seed=8, use_parallel=False, profile=True, only_save_strategy=False, per_device_eval_batch_size=6,
    )  # fmt: skip
    recipe = pet.Trainer(model=str(base), args=arguments, train_dataset=str(base / "data.jsonl")).recipe()
    train = recipe.train
    assert (train.epochs, train.batch_size, train.learning_rate, train.warmup) == (2, 3, 2e-4, 4)
    assert (train.weight_decay, train.betas, train.eps, train.clip_norm) == (0.2, [0.8, 0.9], 1e-6, 0.5)
    assert (train.schedule, train.optimizer, train.save_every, train.keep_last) == ("cosine", "adamw", 5, 2)
    assert (train.seed, recipe.data.seed, recipe.eval.batch_size) == (7, 8, 6)
    assert [callback.name for callback in recipe.callbacks] == ["profiler"]
    arguments = pet.TrainingArguments(per_device_train_batch_size=5, save_strategy="no", save_steps=5)
    recipe = pet.Trainer(model=str(base), args=arguments, train_dataset=str(base / "data.jsonl")).recipe()
    assert (recipe.train.batch_size, recipe.train.save_every) == (5, None)


@pytest.mark.parametrize("name", ["lora", "LoRA", "prefix", "ptuning2", "adapter", "low_rank_adapter", "ia3", "bitfit"])
def test_every_pet_method_by_its_name(base, name):
    trainer = pet.Trainer(model=str(base), pet_method=name, train_dataset=str(base / "data.jsonl"))
    assert trainer.recipe().adapter.method == name.lower()


def test_glm_is_measured_by_what_it_writes(base):
    """PPL for GPT and LLaMA, BLEU and ROUGE besides for GLM."""
    data = {"train_dataset": str(base / "data.jsonl"), "eval_dataset": str(base / "held_out.jsonl")}
    for model, written in (("glm_tiny", True), ("llama_tiny", False), (str(base), False)):
        trainer = pet.Trainer(model=model, **data)
        recipe = trainer.recipe("evaluate")
        trainer.put_written_metrics(recipe)
        assert ("bleu" in recipe.eval.metrics, "rouge_l" in recipe.eval.metrics) == (written, written)
        assert "perplexity" in recipe.eval.metrics


@pytest.mark.parametrize("in_memory", [False, True])
def test_only_save_strategy_writes_the_layout_and_ends(base, tmp_path, in_memory):
    model = pet.AutoModel.from_pretrained(str(base)) if in_memory else str(base)
    arguments = pet.TrainingArguments(output_dir=str(tmp_path / "run"), only_save_strategy=True, **ARGUMENTS)
    data = str(base / "data.jsonl")
    trainer = pet.Trainer(model=model, tokenizer=str(base), pet_method="lora", args=arguments, train_dataset=data)
    trainer.set_parallel_config(data_parallel=2, model_parallel=2)
    found = trainer.finetune()
    assert [path.rpartition("_")[2] for path in found["files"]] == [f"{rank}.json" for rank in range(4)]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["strategy"]
    assert len(read_strategy(tmp_path / "run/strategy").stages[0]) > len(read_file(base / "model.safetensors"))


@pytest.mark.parametrize("data", [[[1, 2, 3]], [1, 2], [("x", 1)], [None], [{"input_ids": [1, 2, 3]}, 5], ["a", 3]])
def test_samples_that_are_no_dictionaries_are_named(data, tmp_path):
    trainer = pet.Trainer(model="llama_tiny", train_dataset=data, args={"output_dir": str(tmp_path), "max_steps": 1})
    with pytest.raises(InputError, match=r"a sample is a \w+; expected a dictionary with input_ids"):
        trainer.train()


def test_the_alpha_of_a_lora_file_is_mindformers_own(tmp_path, lora_file, caplog):
    """The file does not hold it; pet_method says that it is LoRA as MindFormers' job files have it."""
    import json

    shapes = {f"model.layers.{layer}.attention.wq": (128, 128) for layer in range(4)}
    lora_file(tmp_path / "lora.ckpt", shapes, 4)
    trainer = pet.Trainer(model="llama_tiny", pet_method="lora")
    trainer.predict("a red", predict_checkpoint=str(tmp_path / "lora.ckpt"), max_new_tokens=1)
    assert "lora_alpha is taken to be 16" in caplog.text
    assert json.loads((tmp_path / "lora.adapter/adapter_config.json").read_text())["lora_alpha"] == 16
    with pytest.raises(InputError, match="not their alpha"):
        pet.Trainer(model="llama_tiny").predict("a red", predict_checkpoint=str(tmp_path / "lora.ckpt"))
