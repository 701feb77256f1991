"""MindFormers' ``.ckpt`` files where a script, a job file or the command line names them."""

from __future__ import annotations

import json

import mindspore as ms
import numpy as np
import pytest

import pet
from adapters.registry import registry
from model_zoo.checkpoint.ckpt_io import CkptFile, write_ckpt
from model_zoo.errors import InputError
from pet.compat.ckpt.beside import bring, converted, kinds_in
from pet.compat.ckpt.doors import is_ckpt, to_directory, to_file
from pet.compat.yaml_files import load_any
from pet.parallel.transform import transform


def test_safetensors_that_mindspore_wrote_are_read_as_ckpt_files_are(base, tmp_path):
    """``checkpoint_format: safetensors`` of MindFormers 1.5 and later, by its names, with counters and states."""
    to_file(base, tmp_path / "plain.ckpt")
    tensors = ms.load_checkpoint(str(tmp_path / "plain.ckpt"))
    saved = [{"name": kind + name, "data": one} for kind in ("", "adam_m.") for name, one in tensors.items()]
    (tmp_path / "checkpoint/rank_0").mkdir(parents=True)
    file = tmp_path / "checkpoint/rank_0/run-1_2.safetensors"
    ms.save_checkpoint(saved, str(file), append_dict={"epoch_num": 1}, format="safetensors")
    (tmp_path / "checkpoint/rank_table.json").write_text("{}")
    assert (
        not is_ckpt(tmp_path / "nowhere")
        and is_ckpt(file)
        and is_ckpt(tmp_path / "checkpoint")
        and not is_ckpt(base / "model.safetensors")
    )
    expected = to_directory(tmp_path / "plain.ckpt", tmp_path / "plain", base).output / "model.safetensors"
    found = converted(tmp_path / "checkpoint", base)
    assert found == file.with_suffix(".hf")
    assert (found / "model.safetensors").read_bytes() == expected.read_bytes()
    assert kinds_in(file) == (True, False, False)


def test_front_doors_take_ckpt_files(base, tmp_path):
    from model_zoo.checkpoint.fingerprint import fingerprint

    file = tmp_path / "models/gpt.ckpt"
    to_file(base, file)
    shape = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "seq_length": 128, "vocab_size": 1216}
    original = pet.AutoModel.from_pretrained(str(base))
    model = pet.GPT2LMHeadModel(pet.GPT2Config(checkpoint_name_or_path=str(file), **shape))
    ids = np.arange(10, 20)[None]
    assert np.array_equal(model(ids).asnumpy(), original(ids).asnumpy())
    trainer = pet.Trainer(
        model=str(base),
        pet_method="lora",
        args={"output_dir": str(tmp_path / "run"), "max_steps": 2, "batch_size": 4},
        train_dataset=str(base / "data.jsonl"),
        load_checkpoint=str(file),
    )
    place = tmp_path / "models/gpt.hf"
    model, adapter = trainer._weights()
    assert (model, adapter) == (str(place), None)
    assert trainer.recipe("finetune", model).model.path == str(place)
    assert (place / "merges.txt").is_file()
    time = (place / "model.safetensors").stat().st_mtime_ns
    assert converted(file, str(base)) == place
    assert (place / "model.safetensors").stat().st_mtime_ns == time  # made once
    loaded = pet.AutoModel.from_pretrained(str(place))
    assert fingerprint(loaded.config.to_dict(), loaded) == fingerprint(original.config.to_dict(), original)


def test_a_job_file_with_ckpt_files(base, tmp_path, capsys, lora_file):
    from pet.cli.main import main

    to_file(base, tmp_path / "gpt.ckpt")
    job = tmp_path / "job.yaml"
    sizes = "hidden_size: 32, num_layers: 2, num_heads: 2, seq_length: 128, vocab_size: 1216"
    tuning = "pet_config: {pet_type: lora, lora_rank: 4, lora_alpha: 8}"
    job.write_text(
        f"run_mode: finetune\nload_checkpoint: gpt.ckpt\nrunner_config: {{epochs: 1, batch_size: 4}}\n"
        f"model: {{model_config: {{type: GPT2Config, {sizes}, {tuning}}}}}\n"
        f"train_dataset: {{data_loader: {{dataset_dir: {base}/data.jsonl}}}}\n"
    )
    assert main(["recipes", "convert", "job.yaml"]) == 0
    said = capsys.readouterr().out
    assert "# first: pet convert gpt.ckpt --output gpt.hf --config job.yaml" in said
    assert not (tmp_path / "gpt.hf").exists()
    recipe = load_any("job.yaml")
    assert recipe.model.path == str(tmp_path / "gpt.hf")
    assert (tmp_path / "gpt.hf/model.safetensors").is_file()
    # an adapter in the same form, on a base that the file names besides
    lora_file(tmp_path / "lora.ckpt", {"backbone.blocks.0.attention.dense1": (32, 32)}, 4)
    text = job.read_text().replace("gpt.ckpt", "lora.ckpt")
    job.write_text(text.replace("{type: GPT2Config", f"{{checkpoint_name_or_path: {base}, type: GPT2Config"))
    recipe = load_any("job.yaml")
    assert (recipe.model.path, recipe.adapter.load) == (str(base), str(tmp_path / "lora.adapter"))
    # release 0.6 has the method's settings, and so alpha, in another place
    old = f"arch: {{type: GPT2LMHeadModel, pet: {{pet_type: lora, {tuning}}}}}, model_config:"
    job.write_text(job.read_text().replace(f", {tuning}", "").replace("model_config:", old))
    assert load_any("job.yaml").adapter.alpha == 8


def test_a_file_of_weights_and_lora_is_both(base, tmp_path, lora_file):
    """As MindFormers saves it while it tunes: measured, and gone on from, it is the base with the adapter."""
    from pet.compat.mindformers import Trainer

    to_file(base, tmp_path / "gpt.ckpt")
    lora_file(tmp_path / "lora.ckpt", {"backbone.blocks.0.attention.dense1": (32, 32)}, 4)
    both = {}
    for name in ("gpt.ckpt", "lora.ckpt"):
        with CkptFile(tmp_path / name) as file:
            both |= {key: file.read(key) for key in file.tensors}
    write_ckpt("both.ckpt", {key: ("float32", value.shape) for key, value in both.items()}, both.__getitem__)
    sizes = "hidden_size: 32, num_layers: 2, num_heads: 2, seq_length: 128, vocab_size: 1216"
    tuning = "pet_config: {pet_type: lora, lora_rank: 4, lora_alpha: 8}"
    data = f"{{data_loader: {{dataset_dir: {base}/data.jsonl}}}}"
    job = tmp_path / "job.yaml"
    job.write_text(
        f"run_mode: finetune\nload_checkpoint: both.ckpt\nrunner_config: {{epochs: 1, batch_size: 4}}\n"
        f"model: {{model_config: {{type: GPT2Config, {sizes}, {tuning}}}}}\n"
        f"train_dataset: {data}\neval_dataset: {data}\n"
    )
    recipe = load_any("job.yaml")
    assert (recipe.model.path, recipe.adapter.load) == (str(tmp_path / "both.hf"), str(tmp_path / "both.adapter"))
    how = {"recipe": job, "tokenizer": str(base)}
    named = {"model.model_config.checkpoint_name_or_path": str(base)}
    alone = Trainer(load_checkpoint="gpt.ckpt", **how).evaluate()["loss"]
    tuned = Trainer(load_checkpoint="lora.ckpt", options=named, **how).evaluate()["loss"]
    assert Trainer(**how).evaluate()["loss"] == tuned != alone
    assert Trainer(load_checkpoint="both.ckpt", **how).evaluate()["loss"] == tuned
    asked = {"input_data": "a red", "max_new_tokens": 8, "do_sample": False}
    trainer = Trainer(**how)
    assert trainer.predict(**asked) == Trainer(load_checkpoint="both.ckpt", **how).predict(**asked)
    assert len(pet.list_adapters(trainer._loaded[1])) == 1
    model = pet.AutoModel.from_pretrained(str(base))
    trainer = Trainer(model=model, pet_method="lora", eval_dataset=f"{base}/data.jsonl", load_checkpoint="both.ckpt")
    assert (trainer._weights(), len(pet.list_adapters(model))) == ((None, None), 1)


@pytest.mark.parametrize("kind", ["ptuning2", "prefixtuning"])
def test_a_file_that_holds_a_prefix_is_the_base_and_an_adapter(base, tmp_path, kind, caplog):
    """Logits were compared with MindFormers 1.3 for such files of LLaMA: they are equal, but for its float16."""
    from model_zoo.checkpoint.safetensors_io import SafetensorsFile
    from pet.cli.main import main

    to_file(base, tmp_path / "gpt.ckpt")
    tensors, random = ms.load_checkpoint(str(tmp_path / "gpt.ckpt")), np.random.default_rng(0)
    shapes = {"embedding.embedding_table": (3, 128), "trans.0.weight": (5, 128), "trans.0.bias": (5,)}
    shapes |= {"trans.2.weight": (128, 5), "trans.2.bias": (128,)}
    parts = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    saved = [*tensors.items(), (f"mindpet_delta_{kind}_prefix", ms.Tensor(np.arange(3)))]
    saved += [(f"mindpet_delta_{kind}_{name}", ms.Tensor(one)) for name, one in parts.items()]
    both = tmp_path / "both.ckpt"
    ms.save_checkpoint([{"name": name, "data": one} for name, one in saved], str(both))
    directory, adapter = bring(both, str(base))
    with SafetensorsFile(adapter / "adapter_model.safetensors") as file:
        found = {name.removeprefix("transformer.prefix_encoder."): file.read(name) for name in file.tensors}
    parts["embedding.weight"] = parts.pop("embedding.embedding_table")
    assert found.keys() == parts.keys() and all(np.array_equal(found[name], one) for name, one in parts.items())
    model, ids = pet.AutoModel.from_pretrained(directory), ms.Tensor([[5, 6, 7]], ms.int32)
    plain = model(ids).asnumpy()
    assert np.array_equal(plain, pet.AutoModel.from_pretrained(str(base))(ids).asnumpy())
    pet.load_adapter(model, adapter)
    assert not np.allclose(model(ids).asnumpy(), plain)
    shape = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "seq_length": 128, "vocab_size": 1216}
    pet.GPT2LMHeadModel(pet.GPT2Config(checkpoint_name_or_path=str(both), **shape))
    assert "both.ckpt: its prefix is left out" in caplog.text
    to = ["convert", str(both), "--config", str(base), "--output", str(tmp_path / "made")]
    assert (main(to), main([*to, "--part", "adapter"])) == (2, 0)
    ms.save_checkpoint([{"name": name, "data": one} for name, one in saved[:-1]], str(both))
    with pytest.raises(InputError, match=r"trans\.2\.bias of its prefix is missing"):
        bring(both, str(base))


def test_get_pet_model_puts_on_the_lora_of_the_models_file(base, tmp_path, lora_file, caplog):
    """As MindFormers' loads ``checkpoint_name_or_path`` once more when the matrices are there."""
    from pet.compat.mindformers import AutoModel, GPT2Config, GPT2LMHeadModel, GPT2WithLora, LoraConfig, get_pet_model

    to_file(base, tmp_path / "gpt.ckpt")
    names = [f"backbone.blocks.{layer}.attention.{part}" for layer in (0, 1) for part in ("dense1", "dense3")]
    lora_file(tmp_path / "lora.ckpt", dict.fromkeys(names, (32, 32)), 8)
    both = ms.load_checkpoint(str(tmp_path / "gpt.ckpt")) | ms.load_checkpoint(str(tmp_path / "lora.ckpt"))
    ms.save_checkpoint([{"name": name, "data": one} for name, one in both.items()], str(tmp_path / "both.ckpt"))
    named = {"checkpoint_name_or_path": "both.ckpt", "hidden_size": 32, "num_layers": 2, "num_heads": 2}
    named |= {"seq_length": 128, "vocab_size": 1216}
    method = LoraConfig(lora_rank=8, lora_alpha=8, lora_dropout=0.5, target_modules=".*dense1|.*dense3")
    plain = GPT2LMHeadModel(GPT2Config(**named))
    assert "both.ckpt: its LoRA matrices are put on with the adapter (get_pet_model)" in caplog.text
    model = pet.AutoModel.from_pretrained(str(base))
    pet.load_adapter(model, bring("both.ckpt", str(base), alpha=8)[1])
    ids = ms.Tensor([[5, 6, 7, 8]], ms.int32)
    expected, alone = model(ids).asnumpy(), plain.set_train(False)(ids)[0].asnumpy()
    assert not np.allclose(expected, alone)
    for one in (get_pet_model(plain, method), AutoModel.from_config(GPT2Config(**named, pet_config=method))):
        assert np.array_equal(one.set_train(False)(ids)[0].asnumpy(), expected)
        assert pet.list_adapters(one) == ["default"] and registry(one).get("default").config.dropout == 0.5
        assert [p.requires_grad for p in one.get_parameters()].count(True) == 4
    bare = get_pet_model(GPT2LMHeadModel(GPT2Config(**{**named, "checkpoint_name_or_path": ""})), method)
    assert ms.load_param_into_net(bare, both) == ([], [])  # as a script does that names no file
    assert np.array_equal(bare.set_train(False)(ids)[0].asnumpy(), expected)
    assert np.any([one.asnumpy() for one in pet.trainable_parameters(GPT2WithLora(GPT2Config(**named)))[1::2]])


def test_the_command(base, tmp_path, capsys, lora_file):
    from pet.cli.main import main

    def pet_convert(*words):
        code = main(["convert", *map(str, words)])
        return code, "".join(capsys.readouterr())

    assert pet_convert(base, "--output", "a.ckpt")[0] == 0
    assert pet_convert("a.ckpt", "--output", "a", "--config", base) == (0, "a: 28 tensors\n")
    assert sorted(path.name for path in (tmp_path / "a").iterdir())[-2:] == ["tokenizer_config.json", "vocab.json"]
    assert "is there already" in pet_convert("a.ckpt", "--output", "a", "--config", base)[1]
    lora_file(tmp_path / "l.ckpt", {"backbone.blocks.0.attention.projection": (32, 32)}, 2)
    assert "give --alpha" in pet_convert("l.ckpt", "--output", "b", "--config", base)[1]
    assert pet_convert("l.ckpt", "--output", "b", "--config", base, "--alpha", 4)[0] == 0
    both = {}
    for name in ("a.ckpt", "l.ckpt"):
        with CkptFile(tmp_path / name) as file:
            both |= {key: file.read(key) for key in file.tensors}
    write_ckpt("both.ckpt", {key: ("float32", value.shape) for key, value in both.items()}, both.__getitem__)
    assert "--part model, or --part adapter" in pet_convert("both.ckpt", "--output", "c", "--config", base)[1]
    assert "2 left out" in pet_convert("both.ckpt", "--output", "c", "--config", base, "--part", "model")[1]
    assert (tmp_path / "c/model.safetensors").read_bytes() == (tmp_path / "a/model.safetensors").read_bytes()
    words = ("both.ckpt", "--output", "d", "--config", base, "--part", "adapter", "--alpha", 4)
    assert pet_convert(*words)[0] == 0
    assert (tmp_path / "d/adapter_model.safetensors").read_bytes() == (
        tmp_path / "b/adapter_model.safetensors"
    ).read_bytes()
    assert "a file ending in .ckpt was expected" in pet_convert(base, "--output", "e")[1]
    for words, wrong in (
        (("a.ckpt", "--output", "e", "--config", base, "--alpha", 4), "--alpha: has no effect on weights of a model"),
        (("a.ckpt", "--output", "e", "--config", base, "--qkv-concat", True), "--qkv-concat: has no effect on a .ckpt"),
        (("l.ckpt", "--output", "e", "--config", base, "--dtype", "float16"), "--dtype: has no effect on LoRA"),
        (("l.ckpt", "--output", "e", "--config", base, "--part", "model"), "and no weights of a model"),
        ((base, "--output", "e.ckpt", "--part", "adapter"), "--part: has no effect in writing a .ckpt file"),
        (("b", "--output", "e.ckpt", "--config", base, "--dtype", "float16"), "--dtype: has no effect on LoRA"),
        ((base, "--output", "e.ckpt", "--config", base), "--config: has no effect on a model directory"),
        ((base, "--output", "e.ckpt", "--qkv-concat", True), "--qkv-concat: has no effect on the matrices"),
        (
            (base, "--output", "e.ckpt", "--old-names"),
            "--old-names: has no effect on the matrices",
        ),
        (("a.ckpt", "--output", "e", "--config", base, "--rearranged-rope"), "--rearranged-rope: has no effect"),
        (("llama_tiny", "--output", "e.ckpt", "--plain-concat"), "--plain-concat: has no effect"),
    ):
        assert wrong in pet_convert(*words)[1]
        assert not any((tmp_path / name).exists() for name in ("e", "e.ckpt"))
    assert pet_convert("absent.ckpt", "--output", "e") == (2, "pet convert: absent.ckpt: no such file\n")


def divide(file, directory):
    """A ``.ckpt`` file's matrices by rows over two ranks, as MindSpore would; returns the strategy's place."""
    with CkptFile(file) as whole:
        shapes = {name: whole.read(name).shape for name in whole.tensors}
    entries = {
        name: {"dev_matrix": [2], "tensor_map": [0, *[-1] * (len(shape) - 1)] if len(shape) == 2 else [-1]}
        for name, shape in shapes.items()
    }
    strategy = directory.parent / "layout/ckpt_strategy_rank_0.json"
    strategy.parent.mkdir(parents=True)
    strategy.write_text(json.dumps({"parallel_strategy_item": {}, "parallel_layout_item": entries}))
    transform(file, directory, None, strategy)
    return strategy


def test_a_folder_of_ranks_is_put_together_by_its_strategy(base, tmp_path):
    to_file(base, tmp_path / "gpt.ckpt")
    strategy = divide(tmp_path / "gpt.ckpt", tmp_path / "divided")
    job = tmp_path / "job.yaml"
    sizes = "hidden_size: 32, num_layers: 2, num_heads: 2, seq_length: 128, vocab_size: 1216"
    text = (
        "run_mode: finetune\nrunner_config: {epochs: 1, batch_size: 4}\nload_checkpoint: divided\n"
        f"model: {{model_config: {{type: GPT2Config, {sizes}, pet_config: {{pet_type: lora}}}}}}\n"
        f"train_dataset: {{data_loader: {{dataset_dir: {base}/data.jsonl}}}}\n"
    )
    job.write_text(text)
    with pytest.raises(InputError, match=r"holds 2 ranks.*src_strategy_path_or_dir"):
        load_any(job)
    job.write_text(f"{text}src_strategy_path_or_dir: {strategy}\n")
    place = load_any(job).model.path
    loaded, original = (pet.AutoModel.from_pretrained(one).parameters_dict() for one in (place, str(base)))
    assert loaded.keys() == original.keys()
    for name, tensor in original.items():
        assert np.array_equal(loaded[name].asnumpy(), tensor.asnumpy()), name
