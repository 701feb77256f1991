"""MindFormers' models, adapters and callbacks as objects of a script."""

from __future__ import annotations

import numpy as np
import pytest

import pet
from adapters.apply import list_adapters
from model_zoo.errors import InputError


def test_a_configuration_that_a_script_has_changed(tmp_path):
    """Out of MindFormers' document on prediction with a script of one's own."""
    from pet.compat.mindformers import AutoConfig, AutoModel, AutoTokenizer, pipeline

    config = AutoConfig.from_pretrained("gpt_tiny")
    config.parallel_config.data_parallel = 1
    config.use_past, config.do_sample, config.max_decode_length = True, False, 16
    network, tokenizer = AutoModel.from_config(config), AutoTokenizer.from_pretrained("gpt_tiny")
    whole = pet.AutoModel.from_pretrained("gpt_tiny").parameters_dict()
    assert all(np.array_equal(p.asnumpy(), whole[name].asnumpy()) for name, p in network.parameters_dict().items())
    for answer in pipeline(task="text_generation", model=network, tokenizer=tokenizer)(["a red", "a"]):
        assert 2 < len(tokenizer.encode(answer["text_generation_text"][0])) <= 16
    outputs = network.generate(tokenizer("a red")["input_ids"], max_length=8)
    texts = tokenizer.decode(outputs, skip_special_tokens=True)
    assert texts == [tokenizer.decode(outputs[0], skip_special_tokens=True)] and texts[0].startswith("a red")


def test_a_file_gives_configuration_model_tokenizer_and_processor(tmp_path, fixtures):
    from pet.compat.mindformers import AutoConfig, AutoModel, AutoProcessor, AutoTokenizer, GPT2Config

    sizes = "hidden_size: 16, num_layers: 1, num_heads: 2, vocab_size: 1216, seq_length: 32, top_k: 3"
    lora = "pet_config: {pet_type: lora, lora_rank: 2}"
    processor = f"{{max_length: 12, tokenizer: {{vocab_file: {fixtures / 'tok_gpt2' / 'vocab.json'}}}}}"
    for name, more in (("plain", "bos_token_id: 0"), ("lora", lora)):
        (tmp_path / f"{name}.yaml").write_text(
            f"model: {{model_config: {{type: GPT2Config, eos_token_id: 1, {sizes}, {more}}}}}\nprocessor: {processor}"
        )
    file = str(tmp_path / "plain.yaml")
    config = AutoConfig.from_pretrained(file)
    assert (config.n_embd, config.seq_length, config.top_k) == (16, 32, 3)
    with pytest.raises(InputError, match=r"plain.yaml: AutoConfig.from_pretrained reads"):
        GPT2Config.from_pretrained(file)
    assert GPT2Config.from_pretrained("gpt_tiny").seq_length == 256
    for model in (AutoModel.from_pretrained(file), AutoModel.from_config(config), AutoModel.from_config(file)):
        assert list_adapters(model) == [] and model.generation_defaults["top_k"] == 3
    for model in (
        AutoModel.from_pretrained(str(tmp_path / "lora.yaml")),
        AutoModel.from_config(tmp_path / "lora.yaml"),
    ):
        assert list_adapters(model) == ["default"]
    assert AutoTokenizer.from_pretrained(file).encode("a") == AutoTokenizer.from_pretrained(
        fixtures / "tok_gpt2"
    ).encode("a")
    assert AutoProcessor.from_pretrained(file)("a")["text"].shape == (1, 12)
    (tmp_path / "other.yaml").write_text("model: {model_config: {type: BertConfig, num_layers: 1}}")
    with pytest.raises(InputError, match=r"'BertConfig' is not supported.*own directory, from Hugging Face, opens"):
        AutoModel.from_pretrained(tmp_path / "other.yaml")


@pytest.mark.parametrize("name", ["llama_tiny", "glm_tiny"])
def test_padding_of_the_bases_tokenizer_is_no_part_of_a_prompt(name):
    """Neither of LLaMA's config.json, which names none, nor of a model that was not built from a configuration."""
    from pet.compat.mindformers import AutoConfig, AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    ids, padded = (tokenizer("a red", **how)["input_ids"] for how in ({}, {"padding": "max_length", "max_length": 32}))
    assert len(padded) == 32
    for model in (AutoModel.from_pretrained(name), AutoModel.from_config(AutoConfig.from_pretrained(name))):
        expected = model.generate([ids], max_new_tokens=2, do_sample=False)
        assert np.array_equal(model.generate([padded], max_new_tokens=2, do_sample=False), expected)


def test_answers_of_chatglm_are_written_as_mindformers_writes_them():
    from pet.compat.mindformers.models.glm.glm_processor import process_response

    from pet.compat.mindformers import TextGenerationPipeline

    assert process_response(" 你好,世界! ok, yes:是[[训练时间]]") == "你好，世界！ ok, yes：是2023年"
    assert TextGenerationPipeline("glm_tiny", max_new_tokens=1)("a")[0]["text_generation_text"]


def test_get_pet_model():
    from pet.compat.mindformers.pet import LoraConfig, get_pet_model

    model = pet.AutoModel.from_pretrained("llama_tiny")
    get_pet_model(model, LoraConfig(lora_rank=4, lora_alpha=8, target_modules=".*wq"))
    names = [parameter.name for parameter in pet.trainable_parameters(model)]
    assert len(names) == 8 and all(".q_proj.lora_" in name for name in names)
    with pytest.raises(InputError, match=r"pet_config: pet_config\.lora_rnk: is not known"):
        get_pet_model(pet.AutoModel.from_pretrained("llama_tiny"), {"pet_type": "lora", "lora_rnk": 4})


def test_adapters_of_one_method():
    """MindFormers' own form, with its names of the arguments, and a configuration whose settings are attributes."""
    from pet.compat.mindformers.pet import LoraAdapter, LoraConfig, PetAdapter, is_supported_pet_type

    config = LoraConfig(lora_rank=4, lora_alpha=8)
    assert (config.pet_type, config.lora_rank, config["lora_alpha"]) == ("lora", 4, 8)
    model = pet.AutoModel.from_pretrained("gpt_tiny")
    assert LoraAdapter.get_pet_model(model=model, config={"lora_rank": 4}) is model
    assert list_adapters(model) == ["default"]
    for parameter in model.get_parameters():
        parameter.requires_grad = True
    PetAdapter.freeze_pretrained_model(model, "lora")
    assert all("lora_" in parameter.name for parameter in pet.trainable_parameters(model))
    with pytest.raises(InputError, match="pet_method 'no' is not known"):
        PetAdapter.get_pet_model(model, {"pet_type": "no"})
    assert is_supported_pet_type("lora") and not is_supported_pet_type("no")


def test_processors_give_text():
    from pet.compat.mindformers import AutoProcessor, GPT2Processor

    for processor in (AutoProcessor.from_pretrained("gpt_tiny"), GPT2Processor.from_pretrained("gpt_tiny")):
        inputs = processor("hello!")
        assert inputs["text"].shape == (1, 128)
        assert np.array_equal(inputs["text"].asnumpy(), inputs["input_ids"].asnumpy())
    assert isinstance(processor, GPT2Processor)


def test_callbacks_as_objects(tmp_path):
    from pet.compat.mindformers.core.callback import CheckpointMonitor, MFLossMonitor

    from pet.compat.mindformers import Trainer

    rows = tmp_path / "rows.txt"
    rows.write_text("a\nb\n")
    callbacks = [MFLossMonitor(per_print_times=2), CheckpointMonitor(save_checkpoint_steps=5, keep_checkpoint_max=3)]
    recipe = Trainer(model="gpt_tiny", pet_method="lora", train_dataset=str(rows), callbacks=callbacks).recipe()
    assert (recipe.train.log_every, recipe.train.save_every, recipe.train.keep_last) == (2, 5, 3)


def test_a_model_that_is_an_object_is_asked_by_its_own_tokenizer():
    from pet.compat.mindformers import AutoModel, AutoTokenizer, GPT2Config, GPT2LMHeadModel, MindFormerConfig, Trainer

    asked = {"input_data": "a red shirt", "max_new_tokens": 3, "do_sample": False}
    model = AutoModel.from_pretrained("gpt_tiny")
    told = Trainer(model=model, tokenizer=AutoTokenizer.from_pretrained("gpt_tiny")).predict(**asked)
    assert Trainer(model=model).predict(**asked) == told == Trainer(model_name="gpt_tiny").predict(**asked)
    bare = GPT2LMHeadModel(GPT2Config(num_layers=1, hidden_size=32, num_heads=2, vocab_size=1344))
    for name in ("gpt_tiny", "gpt_tiny_lora"):
        assert Trainer(model=bare, model_name=name).predict(**asked)[0]["text_generation_text"]
    file = MindFormerConfig({"trainer": {"model_name": "gpt_tiny"}, "model": {"model_config": {"type": "GPT2Config"}}})
    assert Trainer(args=file, model=bare).predict(**asked)[0]["text_generation_text"]
    with pytest.raises(InputError, match="of no checkpoint, needs tokenizer="):
        Trainer(model=bare).predict(**asked)


def test_callbacks_come_and_go():
    from pet.compat.mindformers import MFLossMonitor, Trainer
    from pet.train.callbacks import Callback

    class Own(Callback):
        """One of a script."""

    trainer, own = Trainer(model="gpt_tiny"), Own()
    for one in (MFLossMonitor(per_print_times=7), MFLossMonitor, Own, own):
        trainer.add_callback(one)
    assert trainer.callback_list == "MFLossMonitor\nMFLossMonitor\nOwn\nOwn"
    assert trainer.pop_callback(own) is own and isinstance(trainer.callbacks[0], Own)
    trainer.remove_callback(MFLossMonitor)
    assert trainer.callback_list == "MFLossMonitor\nOwn"
    trainer.remove_callback(Own)
    assert trainer.pop_callback(own) is own and trainer.callbacks == []
    trainer.remove_callback(MFLossMonitor)
    trainer.add_callback(MFLossMonitor(per_print_times=7))
    assert trainer.recipe("train").train.log_every == 7


def test_a_models_job_file_in_a_clone(tmp_path, monkeypatch):
    from pet.compat.mindformers import MindFormerBook, Trainer

    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs/gpt2").mkdir(parents=True)
    for name in ("run_gpt2", "run_gpt2_13b", "predict_gpt2", "pretrain_llama2_7b"):
        (tmp_path / f"configs/gpt2/{name}.yaml").write_text(f"run_mode: train\noutput_dir: {name}\n")
    assert Trainer.get_task_config("text_generation", "gpt2").output_dir == "run_gpt2"
    assert Trainer.get_task_config("text_generation", "llama2_7b").output_dir == "pretrain_llama2_7b"
    found = MindFormerBook.get_trainer_support_task_list()["text_generation"]
    assert found["gpt2_13b"] == str(tmp_path / "configs/gpt2/run_gpt2_13b.yaml")
    with pytest.raises(InputError, match="no job file of 'gpt3'; start in a clone of MindFormers"):
        Trainer.get_task_config("text_generation", "gpt3")
    with pytest.raises(InputError, match="task 'fill_mask' is not known"):
        Trainer.get_task_config("fill_mask", "gpt2")


def test_models_with_lora_by_their_class():
    from pet.compat.mindformers import GPT2Config, GPT2WithLora, LlamaConfig, LlamaForCausalLMWithLora, LoraConfig

    sizes = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "vocab_size": 100}
    for make, config, rank in ((GPT2WithLora, GPT2Config, 8), (LlamaForCausalLMWithLora, LlamaConfig, 16)):
        assert ranks(make(config(**sizes))) == {rank}
        assert ranks(make(config(**sizes, pet_config=LoraConfig(lora_rank=4, lora_alpha=8)))) == {4}


def test_chatglm2_with_ptuning2_by_its_class():
    from pet.compat.mindformers.models.glm2.glm2 import ChatGLM2WithPtuning2

    from pet.compat.mindformers import ChatGLM2Config, ChatGLM2ForConditionalGeneration, Ptuning2Config

    sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "vocab_size": 100, "ffn_hidden_size": 48}
    sizes |= {"multi_query_group_num": 2, "kv_channels": 16}
    for pet_config, length in ((None, 128), (Ptuning2Config(pre_seq_len=8), 8)):
        model = ChatGLM2WithPtuning2(ChatGLM2Config(**sizes, pet_config=pet_config))
        assert {one.shape[0] for one in model.trainable_params()} == {length}
        assert isinstance(model, ChatGLM2WithPtuning2)
    plain = ChatGLM2ForConditionalGeneration(ChatGLM2Config(**sizes))
    assert not isinstance(plain, ChatGLM2WithPtuning2)


def ranks(model) -> set[int]:
    return {one.shape[0] for one in model.trainable_params() if "lora_A" in one.name}


def test_tokenizers_and_processors_are_saved_by_mindformers_names(tmp_path):
    from pet.compat.mindformers import AutoProcessor, AutoTokenizer, BaseProcessor, BaseTokenizer

    tokenizer, processor = AutoTokenizer.from_pretrained("gpt_tiny"), AutoProcessor.from_pretrained("gpt_tiny")
    assert isinstance(tokenizer, BaseTokenizer) and isinstance(processor, BaseProcessor)
    for one, name in ((tokenizer, "a"), (processor, "b")):
        one.save_pretrained(save_directory=str(tmp_path / name), save_name="gpt2")
        assert AutoTokenizer.from_pretrained(tmp_path / name).encode("a red") == tokenizer.encode("a red")
    tokenizer.save_pretrained(str(tmp_path / "c"), save_json=True)
    assert (tmp_path / "c/vocab.json").is_file()


@pytest.mark.parametrize(
    ("one", "other", "newer"), [("2.10.0", "2.3.1", True), ("1.8.1", "2.0.0", False), ("2.3.0rc1", "2.3.0", True)]
)
def test_versions(one, other, newer):
    from pet.compat.mindformers.tools.utils import is_version_ge

    assert is_version_ge(one, other) is newer


def test_a_text_that_is_too_long_for_a_files_name_is_asked():
    from pet.compat.mindformers import Trainer

    text = "快速排序" * 22  # 88 characters, but 264 bytes
    found = Trainer(model="glm_tiny").predict(text, max_new_tokens=1)
    assert "快速排序" in found[0]["text_generation_text"][0]
