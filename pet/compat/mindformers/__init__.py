"""MindFormers' names: ``from pet.compat.mindformers import Trainer, TrainingArguments, init_context, GPT2Config …``."""

from pet.lazy import names_of

__getattr__, __dir__ = names_of(
    __name__,
    {
        "model_zoo.generation.streamers": ("TextIteratorStreamer", "TextStreamer"),
        "pet.auto": ("AutoConfig", "AutoModel", "AutoTokenizer"),
        "pet.compat.mindformers.config": ("ChatGLM2Config", "GLMConfig", "GPT2Config", "LlamaConfig"),
        "pet.compat.mindformers.context": ("ContextConfig", "ParallelContextConfig", "init_context"),
        "pet.compat.mindformers.models": (
            *("AutoProcessor", "GLMProcessor", "GPT2Processor", "LlamaProcessor"),
            *("ChatGLM2ForConditionalGeneration", "GLMChatModel", "GLMForPreTraining", "GPT2LMHeadModel"),
            *("LlamaForCausalLM", "ChatGLM2Tokenizer", "ChatGLMTokenizer", "GPT2Tokenizer", "LlamaTokenizer"),
        ),
        "pet.compat.mindformers.trainer": ("Trainer",),
        "pet.compat.mindformers.training_arguments": ("TrainingArguments",),
        "pet.text_generation": ("pipeline",),
    },
)
