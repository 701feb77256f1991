"""MindFormers' names, under its module paths too: ``from pet.compat.mindformers.trainer import Trainer``."""

from pet.compat.paths import modules_of
from pet.lazy import names_of, stub_table

_CLASSES, _CONFIG, _CONTEXT, _HIGH_LEVEL, _ARGUMENTS, _PET, _CALLBACKS = (
    f"{__name__}.{name}"
    for name in ("classes", "config", "context", "high_level", "training_arguments", "pet_config", "callbacks")
)
_STREAMERS = {"model_zoo.generation.streamers": ("TextIteratorStreamer", "TextStreamer")}
_PIPELINE = {"pet.text_generation": ("pipeline",)}
_TRAINER = {_HIGH_LEVEL: ("Trainer",), _ARGUMENTS: ("TrainingArguments",)}
_BUILD = {_CONTEXT: ("ContextConfig", "ParallelContextConfig", "init_context")}
_TUNING = {_PET: ("LoraConfig", "PetConfig", "PrefixTuningConfig", "Ptuning2Config", "get_pet_model")}
_AUTO = {_CLASSES: ("AutoConfig", "AutoModel", "AutoProcessor", "AutoTokenizer")}
_LOGGER = {_CONTEXT: ("logger",)}
_MONITORS = {_CALLBACKS: ("CheckpointMonitor", "MFLossMonitor", "ObsMonitor", "SummaryMonitor")}
# package below models -> model classes, configuration, tokenizer, processor
_FAMILIES = {
    "gpt2": (("GPT2LMHeadModel",), "GPT2Config", "GPT2Tokenizer", "GPT2Processor"),
    "llama": (("LlamaForCausalLM",), "LlamaConfig", "LlamaTokenizer", "LlamaProcessor"),
    "glm": (("GLMChatModel", "GLMForPreTraining"), "GLMConfig", "ChatGLMTokenizer", "GLMProcessor"),
    "glm2": (("ChatGLM2ForConditionalGeneration",), "ChatGLM2Config", "ChatGLM2Tokenizer", "GLMProcessor"),
    "glm3": ((), "ChatGLM2Config", "ChatGLM3Tokenizer", "GLMProcessor"),
}


def _families() -> dict:
    found = {"models": {_CLASSES: list(_AUTO[_CLASSES]), _CONFIG: []}}
    for package, (models, config, tokenizer, processor) in _FAMILIES.items():
        path = f"models.{package}"
        found[path] = {_CLASSES: (*models, tokenizer, processor), _CONFIG: (config,)}
        found[f"{path}.{package}"] = {_CLASSES: models}
        found[f"{path}.{package}_config"] = {_CONFIG: (config,)}
        found[f"{path}.{package}_tokenizer"] = {_CLASSES: (tokenizer,)}
        found[f"{path}.{package}_processor"] = {_CLASSES: (processor,)}
        found["models"][_CLASSES] += found[path][_CLASSES]
        found["models"][_CONFIG] += found[path][_CONFIG]
    return found


_MODELS = _families()
__getattr__, __dir__ = names_of(__name__, lambda: stub_table(__file__))
__modules__ = modules_of(
    {
        **_MODELS,
        "auto_class": _AUTO,
        "models.auto": _AUTO,
        "models.glm.chatglm_6b_tokenizer": {_CLASSES: ("ChatGLMTokenizer",)},
        "core": {**_BUILD, **_MONITORS},
        "core.callback": {_CALLBACKS: (*_MONITORS[_CALLBACKS], "CheckpointMointor", "EvalCallBack", "ProfileMonitor")},
        "core.context": _BUILD,
        "core.context.build_context": _BUILD,
        "generation": _STREAMERS,
        "generation.streamers": _STREAMERS,
        "pet": _TUNING,
        "pet.pet_config": _TUNING,
        "pet.pet_model": _TUNING,
        "pipeline": _PIPELINE,
        "tools": {**_LOGGER, "pet.compat.command_line": ("str2bool",)},
        "tools.logger": _LOGGER,
        "tools.utils": {"pet.compat.command_line": ("str2bool",), _CONTEXT: ("get_real_rank",)},
        "trainer": {**_TRAINER, **_BUILD},
        "trainer.config_args": _BUILD,
        "trainer.trainer": _TRAINER,
        "trainer.training_args": _TRAINER,
        "trainer.utils": {_CONTEXT: ("get_last_checkpoint",)},
    }
)
