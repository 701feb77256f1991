"""MindFormers' names under its own module paths, and what its documents do with them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import pet
from adapters.apply import list_adapters
from model_zoo.errors import InputError

# One line for each module that MindFormers' documents and scripts import names of text generation from.
IMPORTS = """
from mindformers import Trainer, TrainingArguments, init_context, ContextConfig, ParallelContextConfig, pipeline
from mindformers import AutoConfig, AutoModel, AutoTokenizer, AutoProcessor, TextStreamer, get_pet_model, LoraConfig
from mindformers.trainer import Trainer, TrainingArguments
from mindformers.trainer.config_args import ContextConfig, ParallelContextConfig
from mindformers.core.context.build_context import init_context
from mindformers.core.callback import MFLossMonitor, CheckpointMonitor
from mindformers.models import LlamaForCausalLM, LlamaConfig, LlamaTokenizer, GPT2LMHeadModel, ChatGLM2Tokenizer
from mindformers.models.llama import LlamaForCausalLM, LlamaConfig
from mindformers.models.llama.llama_config import LlamaConfig
from mindformers.models.glm2.glm2_tokenizer import ChatGLM2Tokenizer
from mindformers.models.glm.chatglm_6b_tokenizer import ChatGLMTokenizer
from mindformers.models.gpt2.gpt2 import GPT2LMHeadModel
from mindformers.pet import get_pet_model, LoraConfig
from mindformers.pet.pet_config import LoraConfig
from mindformers.pipeline import pipeline
from mindformers.generation.streamers import TextIteratorStreamer
from mindformers.generation import GenerationConfig, TextStreamer
from mindformers.generation.generation_config import GenerationConfig
from mindformers import GenerationConfig
from mindformers.auto_class import AutoModel
from mindformers.tools.logger import logger
from mindformers.tools.utils import str2bool, get_real_rank, get_real_group_size
from mindformers.trainer.utils import get_last_checkpoint, transform_and_load_checkpoint
from mindformers.pet import PetAdapter, is_supported_pet_type
from mindformers.pet.tuners import LoraAdapter, Ptuning2Adapter, PrefixTuningAdapter
from mindformers.pet.tuners.lora_adapter import LoraAdapter
from mindformers.pet.tuners.pet_adapter import PetAdapter
from mindformers import MindFormerConfig, logger, LoraAdapter
from mindformers.tools.register import MindFormerConfig, ActionDict
from mindformers.core.parallel_config import build_parallel_config
from mindformers.core.context import build_context, build_profile_cb
from mindformers.trainer import build_trainer
from mindformers.tools.cloud_adapter import cloud_monitor
from mindformers.tools.utils import set_remote_save_url, check_in_modelarts, parse_value, check_shared_disk
from mindformers.tools.utils import str2bool_or_str, is_publicly_accessible_path, get_output_root_path
from mindformers.tools import set_output_path, get_output_root_path
from mindformers.utils.file_utils import set_output_path
from mindformers.tools.resume_ckpt import get_resume_checkpoint
from mindformers.mindformer_book import MindFormerBook
from mindformers import TextGenerationPipeline, TransformerOpParallelConfig
from mindformers import ChatGLM4Tokenizer
from mindformers.models.glm2.glm4_tokenizer import ChatGLM4Tokenizer
from mindformers.modules.transformer import TransformerOpParallelConfig
from mindformers.models.glm.glm_processor import process_response
from mindformers import AutoModelForCausalLM
from mindformers.models.glm import GLMConfig, GLMChatModel, GLMChatModelWithLora
from mindformers.models.glm2 import ChatGLM3Tokenizer, ChatGLM4Tokenizer
from mindformers.models.llama.convert_weight import convert_pt_to_ms
from mindformers.models.glm2.convert_reversed import convert_ms_to_pt
from mindformers.models.glm2.convert_weight import convert_weight
from mindformers import build_context, TrainingDataLoader, SFTDataLoader
from mindformers.dataset.dataloader.training_dataloader import TrainingDataset
from mindformers.tools.utils import FILE_PERMISSION
from mindformers.models import build_model, build_network, build_tokenizer, build_processor
from mindformers.models import BaseModel, BaseConfig, BaseTokenizer, BaseProcessor, PreTrainedModel, PretrainedConfig
from mindformers.models.build_config import build_model_config
from mindformers.core import build_lr, build_optim, build_callback, build_metric, build_loss
from mindformers.core import EvalCallBack, ProfileMonitor, CrossEntropyLoss
from mindformers.core.lr import build_lr, LearningRateWiseLayer
from mindformers.core.optim import build_optim
from mindformers.core.metric import PerplexityMetric, EmF1Metric
from mindformers.dataset import build_dataset, build_dataset_loader
from mindformers.dataset.dataloader.build_dataloader import build_dataset_loader
from mindformers.pipeline.build_pipeline import build_pipeline
from mindformers.wrapper import build_wrapper
from mindformers.tools import MindFormerRegister, MindFormerModuleType, MindFormerConfig
from mindformers.tools.register.register import MindFormerRegister
from mindformers.tools.utils import is_version_ge
from mindformers.models.gpt2.gpt2 import GPT2WithLora
from mindformers.models.llama import LlamaForCausalLMWithLora, LlamaTokenizerFast
from mindformers.models.llama.llama_tokenizer_fast import LlamaTokenizerFast
from mindformers import GPT2TokenizerFast, BaseModel, PreTrainedTokenizerBase
from mindformers.models.modeling_utils import PreTrainedModel
from mindformers.models.configuration_utils import PretrainedConfig
from mindformers.models.tokenization_utils_base import PreTrainedTokenizerBase
from mindformers.models.base_model import BaseModel
from mindformers.models import ProcessorMixin
from mindformers.dataset.dataloader.datareaders import wikitext_clean
from mindformers.tools.dataset_preprocess.llama.conversation import get_default_conv_template
from mindformers.tools.transform_ckpt import get_strategy
from mindformers.utils.load_checkpoint_utils import get_load_path_after_hf_convert
"""


@pytest.mark.parametrize("line", [line for line in IMPORTS.splitlines() if line])
def test_one_replaced_prefix_is_enough(line):
    line = line.replace("from mindformers", "from pet.compat.mindformers")
    names = {}
    exec(line, names)
    package, wanted = re.fullmatch(r"from (\S+) import (.*)", line).groups()
    assert all(names[name] is not None for name in wanted.split(", "))
    module = importlib.import_module(package)
    assert set(wanted.split(", ")) <= set(dir(module))


def test_a_module_of_a_functions_name_is_called_as_the_function():
    import pet.compat.mindformers.pipeline

    with pytest.raises(InputError, match="task"):
        pet.compat.mindformers.pipeline("translation", model="llama_tiny")


def test_a_module_of_an_objects_name_has_the_objects_attributes(capsys):
    """Importing ``tools.logger`` puts the module in the place of ``tools``'s logger."""
    importlib.import_module("pet.compat.mindformers.tools.logger")
    from pet.compat.mindformers.tools import logger

    logger.info("said %d", 7)
    assert "said 7" in capsys.readouterr().out
    with pytest.raises(AttributeError, match="nothing"):
        logger.nothing  # noqa: B018


def test_names_with_lora():
    from pet.compat.mindformers import AutoConfig, AutoModel, AutoTokenizer, GPT2LMHeadModel

    config = AutoConfig.from_pretrained("glm_6b_lora")
    assert (config.model_type, config.pet_config.lora_rank) == ("chatglm", 8)
    assert "pet_config" not in config.to_dict()
    model = AutoModel.from_pretrained("gpt_tiny_lora")
    assert list_adapters(model) == ["default"]
    assert list_adapters(GPT2LMHeadModel.from_pretrained("gpt_tiny_lora")) == ["default"]
    assert list_adapters(AutoModel.from_pretrained("gpt_tiny")) == []
    small = AutoConfig.from_pretrained("llama_tiny_lora")
    assert list_adapters(AutoModel.from_config(small)) == ["default"]
    assert AutoTokenizer.from_pretrained("gpt_tiny_lora").encode("a") == AutoTokenizer.from_pretrained(
        "gpt_tiny"
    ).encode("a")
    assert AutoConfig.from_pretrained("glm_6b_lora_chat").pet_config.lora_alpha == 32
    assert AutoConfig.from_pretrained("glm2_6b_ptuning2").pet_config.pre_seq_len == 128
    for name in ("glm_6b_lora", "glm_6b_lora_chat"):
        with pytest.raises(InputError, match=r"glm_6b.*weights are not bundled"):
            AutoModel.from_pretrained(name)
    with pytest.raises(InputError, match="glm_6b_lora_chatter"):
        AutoConfig.from_pretrained("glm_6b_lora_chatter")


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


def test_no_file_stands_where_a_module_path_is_stated():
    front = importlib.import_module("pet.compat.mindformers")
    here = Path(front.__file__).parent
    assert [path for path in front.__modules__ if (here / f"{path.replace('.', '/')}.py").exists()] == []


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


def test_loaders_of_scripts_can_be_imported_and_are_refused_when_made():
    """Published scripts of preparation import one at their top, for one of several kinds of data."""
    from pet.compat.mindformers import SFTDataLoader

    with pytest.raises(InputError, match=r"SFTDataLoader: .*train_dataset="):
        SFTDataLoader(dataset_dir="alpaca.json", column_names=["input_ids"], tokenizer="GPT2Tokenizer")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from pet.compat.mindformers.dataset.handler import base_handler", "give the files as train_dataset="),
        ("from pet.compat.mindformers.generation import LogitsProcessorList", "generate's settings choose tokens"),
        ("from pet.compat.mindformers.models.llama.llama import LlamaModel", "is what a head gets"),
        ("from pet.compat.mindformers.models.bert import BertConfig", "the models here are GPT-2, LLaMA and GLM"),
        ("from pet.compat.mindformers import T5ForConditionalGeneration", "the models here are GPT-2, LLaMA and GLM"),
        ("from pet.compat.mindformers.tools.utils import get_remote_save_url", "pet transform"),
        ("from pet.compat.mindformers.models.glm2.convert_weight import convert_to_concat_ckpt", "pet convert"),
        ("from pet.compat.mindformers.trainer.config_args import RunnerConfig", "TrainingArguments says it"),
    ],
)
def test_an_import_of_what_is_not_here_says_what_to_do(line, message):
    with pytest.raises(ModuleNotFoundError, match=f"{message}.*docs/coming-from/mindformers.md"):
        exec(line, {})


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


def test_the_book_of_names_and_places(monkeypatch, tmp_path, capsys):
    from pet.compat.mindformers import MindFormerBook

    assert MindFormerBook.get_project_path() == str(Path.cwd())
    assert MindFormerBook.get_default_checkpoint_save_folder() == "./checkpoint_save"
    monkeypatch.setenv("CHECKPOINT_DOWNLOAD_FOLDER", str(tmp_path))
    assert MindFormerBook.get_default_checkpoint_download_folder() == str(tmp_path)
    MindFormerBook.set_default_checkpoint_download_folder("elsewhere")
    assert MindFormerBook.get_default_checkpoint_download_folder() == "elsewhere"
    MindFormerBook.set_default_checkpoint_download_folder("")
    assert "glm_tiny_lora" in MindFormerBook.get_model_support_list()["glm"]
    assert "gpt2" in MindFormerBook().get_model_name_support_list()
    MindFormerBook.set_model_config_to_name("OwnConfig", "own")
    assert {"LlamaConfig": "llama_7b", "OwnConfig": "own"}.items() <= MindFormerBook.get_model_config_to_name().items()
    MindFormerBook.show_project_path()
    assert "project_path" in capsys.readouterr().out
    with pytest.raises(AttributeError, match="MindFormerBook has no 'get_projects'"):
        MindFormerBook.get_projects()


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


@pytest.mark.parametrize(
    ("name", "expression", "adapted"),
    [
        ("gpt_tiny", ".*dense.*", {"c_attn"}),  # dense1, dense2 and dense3 there, not GLM's dense_h_to_4h
        ("gpt_tiny", ".*projection", {"attn.c_proj", "mlp.c_proj"}),
        ("glm_tiny", ".*dense", {"attention.dense", "dense_h_to_4h", "dense_4h_to_h"}),
        ("glm_tiny", ".*query_key_value*", {"query_key_value"}),
        ("llama_tiny", "w", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        ("llama_tiny", ".*w[13]", {"gate_proj", "up_proj"}),
    ],
)
def test_an_expression_is_matched_against_the_names_of_its_family(name, expression, adapted):
    from pet.compat.mindformers import AutoModel, LoraConfig, get_pet_model

    model = get_pet_model(AutoModel.from_pretrained(name), LoraConfig(lora_rank=2, target_modules=expression))
    cells = [one.name.partition(".lora_A")[0] for one in model.get_parameters() if ".lora_A" in one.name]
    layers = {int(part) for cell in cells for part in cell.split(".") if part.isdigit()}
    assert len(cells) == len(layers) * len(adapted)
    assert all(any(cell.endswith(end) for end in adapted) for cell in cells)
