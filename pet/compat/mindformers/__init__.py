"""MindFormers' names: ``from pet.compat.mindformers import Trainer, TrainingArguments, init_context, GPT2Config …``."""

from model_zoo.generation.streamers import TextIteratorStreamer, TextStreamer
from pet.auto import AutoConfig, AutoModel, AutoTokenizer
from pet.compat.mindformers.context import ContextConfig, ParallelContextConfig, init_context
from pet.compat.mindformers.models import (
    AutoProcessor,
    ChatGLM2Config,
    ChatGLM2ForConditionalGeneration,
    ChatGLM2Tokenizer,
    ChatGLMTokenizer,
    GLMChatModel,
    GLMConfig,
    GLMForPreTraining,
    GLMProcessor,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Processor,
    GPT2Tokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaProcessor,
    LlamaTokenizer,
)
from pet.compat.mindformers.trainer import Trainer
from pet.compat.mindformers.training_arguments import TrainingArguments
from pet.text_generation import pipeline

__all__ = [
    "AutoConfig",
    "AutoModel",
    "AutoProcessor",
    "AutoTokenizer",
    "ChatGLM2Config",
    "ChatGLM2ForConditionalGeneration",
    "ChatGLM2Tokenizer",
    "ChatGLMTokenizer",
    "ContextConfig",
    "GLMChatModel",
    "GLMConfig",
    "GLMForPreTraining",
    "GLMProcessor",
    "GPT2Config",
    "GPT2LMHeadModel",
    "GPT2Processor",
    "GPT2Tokenizer",
    "LlamaConfig",
    "LlamaForCausalLM",
    "LlamaProcessor",
    "LlamaTokenizer",
    "ParallelContextConfig",
    "TextIteratorStreamer",
    "TextStreamer",
    "Trainer",
    "TrainingArguments",
    "init_context",
    "pipeline",
]
