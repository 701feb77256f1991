"""Parameter-efficient fine-tuning of GPT, LLaMA and GLM models with MindSpore.

Everything that a program needs is imported from here. The names are looked up on first use, so that ``import pet`` does
not import MindSpore; nothing is defined in this file. It imports next to nothing: the command ``pet`` cannot answer
Ctrl-C before this file has run.
"""

from __future__ import annotations

import model_zoo  # noqa: F401  (it sets what MindSpore reads when it is imported)
from pet.lazy import names_of

__version__ = "0.1.0"

_NAMES = {
    "pet.auto": ("AutoConfig", "AutoModel", "AutoTokenizer"),
    "model_zoo.errors": ("InputError",),
    "adapters.method": ("MethodConfig",),
    "adapters.ptuning_file": ("load_ptuning", "save_ptuning"),
    "adapters.matching": ("plan",),
    "adapters.apply": (
        "adapter_names",
        "adapter_status",
        "add_adapter",
        "apply",
        "apply_adapter",
        "apply_bitfit",
        "apply_ia3",
        "apply_lora",
        "apply_low_rank_adapter",
        "apply_p_tuning",
        "apply_prefix",
        "apply_prompt",
        "apply_ptuning",
        "delete_adapter",
        "disable_adapters",
        "list_adapters",
        "print_trainable_parameters",
        "set_adapter",
        "trainable_parameters",
    ),
    "adapters.combine": ("combine_adapters",),
    "adapters.freeze": ("TrainableParamsCheckPoint", "freeze_delta", "freeze_from_config", "freeze_modules"),
    "pet.train.objectives.rdrop": ("RDropLoss", "rdrop_repeat"),
    "adapters.saving": ("load_adapter", "save_adapter"),
    "adapters.hotswap": ("hotswap_adapter",),
    "adapters.merge": ("merge", "merge_and_unload", "unmerge"),
    "adapters.alpha": ("set_alpha",),
    "model_zoo.checkpoint.saving": ("save_pretrained",),
    "pet.export": ("merge_checkpoint",),
    "pet.info": ("describe",),
    "pet.text_generation": ("pipeline",),
    "pet.train.trainer": ("Trainer",),
    "pet.compat.mindformers.training_arguments": ("TrainingArguments",),
    "pet.compat.mindformers.context": ("ContextConfig", "ParallelContextConfig", "init_context"),
    "pet.compat.mindformers.config": ("GLMConfig", "GPT2Config", "LlamaConfig"),
    "pet.compat.mindformers.models": (
        "AutoProcessor",
        "ChatGLMTokenizer",
        "GLMChatModel",
        "GPT2LMHeadModel",
        "GPT2Processor",
        "GPT2Tokenizer",
        "LlamaForCausalLM",
        "LlamaTokenizer",
    ),
    "pet.compat.mindspore_trainer": ("Task", "build_transformer_model", "launch", "register_task"),
    "model_zoo.generation.streamers": ("TextIteratorStreamer", "TextStreamer"),
}


def _configs() -> dict[str, tuple[str, ...]]:
    from adapters.settings import SETTINGS

    places = [method.config.rsplit(".", 1) for method in SETTINGS]
    return {module: tuple(name for other, name in places if other == module) for module, _ in places}


def _check() -> None:
    from pet.installation import foreign_adapters

    if wrong := foreign_adapters():
        raise ImportError(wrong)


__getattr__, __dir__ = names_of(__name__, _NAMES, _configs, _check)
