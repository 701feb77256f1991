"""Tokenizers of the model families, chat formats included. Nothing here imports MindSpore before it is asked for."""

from model_zoo.tokenizers.auto import AutoTokenizer
from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.chatglm import ChatGLMTokenizer
from model_zoo.tokenizers.chatglm2 import ChatGLM2Tokenizer, ChatGLM3Tokenizer
from model_zoo.tokenizers.fast import FastTokenizer
from model_zoo.tokenizers.glm4 import GLM4Tokenizer
from model_zoo.tokenizers.gpt2 import GPT2Tokenizer
from model_zoo.tokenizers.llama import LlamaTokenizer
from model_zoo.tokenizers.prompts import STYLES
from model_zoo.tokenizers.qwen2 import Qwen2Tokenizer
from model_zoo.tokenizers.streaming import StreamDecoder

__all__ = [
    "STYLES",
    "AutoTokenizer",
    "ChatGLM2Tokenizer",
    "ChatGLM3Tokenizer",
    "ChatGLMTokenizer",
    "FastTokenizer",
    "GLM4Tokenizer",
    "GPT2Tokenizer",
    "LlamaTokenizer",
    "Qwen2Tokenizer",
    "StreamDecoder",
    "Tokenizer",
]
