"""MindFormers' names under its own module paths, and what its documents do with them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

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


def test_no_file_stands_where_a_module_path_is_stated():
    front = importlib.import_module("pet.compat.mindformers")
    here = Path(front.__file__).parent
    assert [path for path in front.__modules__ if (here / f"{path.replace('.', '/')}.py").exists()] == []


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
