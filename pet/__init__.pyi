"""The public names, each with the module that has it: for editors, and for `pet/__init__.py`, which finds them here."""

from adapters.alpha import set_alpha as set_alpha
from adapters.apply import (
    adapter_names as adapter_names,
    adapter_status as adapter_status,
    add_adapter as add_adapter,
    apply as apply,
    apply_adapter as apply_adapter,
    apply_bitfit as apply_bitfit,
    apply_ia3 as apply_ia3,
    apply_lora as apply_lora,
    apply_low_rank_adapter as apply_low_rank_adapter,
    apply_p_tuning as apply_p_tuning,
    apply_prefix as apply_prefix,
    apply_prompt as apply_prompt,
    apply_ptuning as apply_ptuning,
    base_loading as base_loading,
    delete_adapter as delete_adapter,
    disable_adapters as disable_adapters,
    list_adapters as list_adapters,
    print_trainable_parameters as print_trainable_parameters,
    set_adapter as set_adapter,
    trainable_parameters as trainable_parameters,
)
from adapters.bitfit import BitFitConfig as BitFitConfig
from adapters.bottleneck import BottleneckConfig as BottleneckConfig
from adapters.combine import combine_adapters as combine_adapters
from adapters.freeze import (
    TrainableParamsCheckPoint as TrainableParamsCheckPoint,
    freeze_delta as freeze_delta,
    freeze_from_config as freeze_from_config,
    freeze_modules as freeze_modules,
)
from adapters.hotswap import hotswap_adapter as hotswap_adapter
from adapters.ia3 import IA3Config as IA3Config
from adapters.lora import LoRAConfig as LoRAConfig
from adapters.low_rank_adapter import LowRankAdapterConfig as LowRankAdapterConfig
from adapters.matching import plan as plan
from adapters.merge import merge as merge, merge_and_unload as merge_and_unload, unmerge as unmerge
from adapters.method import MethodConfig as MethodConfig
from adapters.prefix import PrefixConfig as PrefixConfig
from adapters.prompt import PromptConfig as PromptConfig, PTuningConfig as PTuningConfig
from adapters.ptuning import PTuningV2Config as PTuningV2Config
from adapters.ptuning_file import load_ptuning as load_ptuning, save_ptuning as save_ptuning
from adapters.saving import load_adapter as load_adapter, save_adapter as save_adapter
from model_zoo.checkpoint.saving import save_pretrained as save_pretrained
from model_zoo.errors import InputError as InputError
from model_zoo.generation.streamers import TextIteratorStreamer as TextIteratorStreamer, TextStreamer as TextStreamer
from pet.auto import AutoConfig as AutoConfig, AutoModel as AutoModel, AutoTokenizer as AutoTokenizer
from pet.compat.mindformers.classes import (
    AutoProcessor as AutoProcessor,
    ChatGLMTokenizer as ChatGLMTokenizer,
    GPT2Processor as GPT2Processor,
    GPT2Tokenizer as GPT2Tokenizer,
    LlamaTokenizer as LlamaTokenizer,
)
from pet.compat.mindformers.config import GLMConfig as GLMConfig, GPT2Config as GPT2Config, LlamaConfig as LlamaConfig
from pet.compat.mindformers.context import (
    ContextConfig as ContextConfig,
    ParallelContextConfig as ParallelContextConfig,
    init_context as init_context,
)
from pet.compat.mindformers.named import (
    GLMChatModel as GLMChatModel,
    GPT2LMHeadModel as GPT2LMHeadModel,
    LlamaForCausalLM as LlamaForCausalLM,
)
from pet.compat.mindformers.training_arguments import TrainingArguments as TrainingArguments
from pet.compat.mindspore_trainer.model import build_transformer_model as build_transformer_model
from pet.compat.mindspore_trainer.running import launch as launch
from pet.compat.mindspore_trainer.tasks import Task as Task, register_task as register_task
from pet.export import merge_checkpoint as merge_checkpoint
from pet.info import describe as describe
from pet.pipelines import pipeline as pipeline
from pet.text_classification import scores as scores
from pet.train.objectives.rdrop import RDropLoss as RDropLoss, rdrop_repeat as rdrop_repeat
from pet.train.trainer import Trainer as Trainer

__version__: str
