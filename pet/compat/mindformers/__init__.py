"""MindFormers' names, under its module paths too: ``from pet.compat.mindformers.trainer import Trainer``."""

from pet.compat.paths import modules_of
from pet.lazy import names_of, stub_table

_CLASSES, _CONFIG, _CONTEXT, _HIGH_LEVEL, _ARGUMENTS, _PET, _CALLBACKS = (
    f"{__name__}.{name}"
    for name in ("classes", "config", "context", "high_level", "training_arguments", "pet_config", "callbacks")
)
_RATES, _OPTIMIZERS = f"{__name__}.learning_rates", f"{__name__}.optimizers"
_REGISTERING, _METRICS = f"{__name__}.registering", f"{__name__}.metrics"
_SCRIPT, _SCRIPT_CONFIG = f"{__name__}.script", f"{__name__}.script_config"
_STREAMERS = {f"{__name__}.streaming": ("TextIteratorStreamer", "TextStreamer"), _CLASSES: ("BaseStreamer",)}
_GENERATION = {f"{__name__}.generation_defaults": ("GenerationConfig",)}
_PIPELINE = {f"{__name__}.asking": ("TextClassificationPipeline", "TextGenerationPipeline", "pipeline")}
_PARALLEL = {_CONFIG: ("TransformerOpParallelConfig",)}
_TRAINER = {_HIGH_LEVEL: ("Trainer",), _ARGUMENTS: ("TrainingArguments",)}
_INIT = {_CONTEXT: ("ContextConfig", "ParallelContextConfig", "init_context")}
_BUILD = {**_INIT, _SCRIPT: ("build_context", "build_parallel_config", "build_profile_cb")}
_TUNERS = {_PET: ("LoraAdapter", "PetAdapter", "PrefixTuningAdapter", "Ptuning2Adapter")}
_TUNING = {
    _PET: (
        *("LoraConfig", "PetConfig", "PrefixTuningConfig", "Ptuning2Config", "get_pet_model", "is_supported_pet_type"),
        *_TUNERS[_PET],
    )
}
_AUTO = {_CLASSES: ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoProcessor", "AutoTokenizer")}
_OF_AUTO = ("configuration", "modeling", "processing", "tokenization")
_LOGGER = {f"{__name__}.logs": ("logger",)}
_REGISTER = {
    _SCRIPT_CONFIG: ("ActionDict", "DictConfig", "MindFormerConfig"),
    _REGISTERING: ("MindFormerModuleType", "MindFormerRegister"),
}
_METRIC = {
    _METRICS: ("EmF1Metric", "PerplexityMetric"),
    _REGISTERING: ("build_metric",),
}
_BUILDERS = ("build_callback", "build_loss", "build_lr", "build_metric", "build_optim")
_MAKERS = ("build_model", "build_model_config", "build_network", "build_processor", "build_tokenizer")
_LOADER = {_REGISTERING: ("build_dataset_loader",)}
_DATASET = {_REGISTERING: ("build_dataset", "build_dataset_loader")}
_PLACES = ("get_output_root_path", "set_output_path")
_UTILS = {
    "pet.compat.command_line": ("str2bool",),
    _CONTEXT: ("get_real_group_size", "get_real_rank"),
    _SCRIPT_CONFIG: ("parse_value",),
    _SCRIPT: (
        *_PLACES,
        "FILE_PERMISSION",
        "check_in_modelarts",
        "check_shared_disk",
        "is_publicly_accessible_path",
        "is_version_ge",
        "set_remote_save_url",
        "str2bool_or_str",
    ),
}
_LR = {
    _RATES: (
        *("ConstantWarmUpLR", "ConstantWithCoolDownLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts"),
        *("CosineWithRestartsAndWarmUpLR", "CosineWithWarmUpLR", "LinearWithWarmUpLR"),
        *("LearningRateWiseLayer", "PolynomialWithWarmUpLR", "WarmUpStableDecayLR"),
    ),
    _REGISTERING: ("build_lr",),
}
_OPTIM = {
    _OPTIMIZERS: ("AdamW", "FP32StateAdamWeightDecay", "FusedAdamWeightDecay"),
    _REGISTERING: ("build_optim",),
}
_MONITORS = {_CALLBACKS: ("CheckpointMonitor", "MFLossMonitor", "ObsMonitor", "SummaryMonitor")}
_WATCHERS = {
    _CALLBACKS: (*_MONITORS[_CALLBACKS], "CheckpointMointor", "EvalCallBack", "ProfileMonitor"),
    _REGISTERING: ("build_callback",),
}
# package below models -> model classes, configuration, tokenizer, processor
_FAMILIES = {
    "gpt2": (("GPT2LMHeadModel", "GPT2WithLora"), "GPT2Config", "GPT2Tokenizer", "GPT2Processor"),
    "llama": (
        ("LlamaForCausalLM", "LlamaForCausalLMWithLora"),
        "LlamaConfig",
        "LlamaTokenizer",
        "LlamaProcessor",
    ),
    "glm": (
        ("GLMChatModel", "GLMChatModelWithLora", "GLMForPreTraining", "GLMForPreTrainingWithLora"),
        "GLMConfig",
        "ChatGLMTokenizer",
        "GLMProcessor",
    ),
    "glm2": (("ChatGLM2ForConditionalGeneration",), "ChatGLM2Config", "ChatGLM2Tokenizer", "GLMProcessor"),
    "glm3": ((), "ChatGLM2Config", "ChatGLM3Tokenizer", "GLMProcessor"),
}

_FAST = {"gpt2": "GPT2TokenizerFast", "llama": "LlamaTokenizerFast"}
_BASES = (
    *("BaseConfig", "BaseModel", "BaseProcessor", "BaseTokenizer", "PreTrainedModel", "PreTrainedTokenizer"),
    *("PreTrainedTokenizerBase", "PretrainedConfig", "ProcessorMixin"),
)
_OF_BASES = ("base_config", "base_model", "base_processor", "base_tokenizer", "configuration_utils", "modeling_utils")
_OF_BASES += ("processing_utils",)
_ENCODINGS = {
    f"{__name__}.encodings": ("AddedToken", "BatchEncoding", "PaddingStrategy", "TensorType", "TruncationStrategy")
}
_CONVERTING = {"convert_weight": ("convert_pt_to_ms", "convert_weight"), "convert_reversed": ("convert_ms_to_pt",)}


def _families() -> dict:
    found = {"models": {_CLASSES: [*_AUTO[_CLASSES], *_BASES], _CONFIG: []}}
    for package, (models, config, tokenizer, processor) in _FAMILIES.items():
        path = f"models.{package}"
        found[path] = {_CLASSES: (*models, tokenizer, processor), _CONFIG: (config,)}
        found[f"{path}.{package}"] = {_CLASSES: models}
        for way, functions in _CONVERTING.items():
            found[f"{path}.{way}"] = {f"{__name__}.converting": functions}
        found[f"{path}.{package}_config"] = {_CONFIG: (config,)}
        found[f"{path}.{package}_tokenizer"] = {_CLASSES: (tokenizer,)}
        found[f"{path}.{package}_processor"] = {_CLASSES: (processor,)}
        if fast := _FAST.get(package):
            found[f"{path}.{package}_tokenizer_fast"] = {_CLASSES: (fast,)}
            found[path][_CLASSES] += (fast,)
        if package == "glm2":  # its package has those of the later ones, too
            found[path][_CLASSES] += ("ChatGLM3Tokenizer", "ChatGLM4Tokenizer")
        found["models"][_CLASSES] += found[path][_CLASSES]
        found["models"][_CONFIG] += found[path][_CONFIG]
    return found


_MODELS = _families()
__getattr__, __dir__ = names_of(__name__, lambda: stub_table(__file__))
__lacking__ = {
    r"DataLoader|^dataset\b|Dataset": "rows are read and packed here; give the files as train_dataset=, or a job file",
    r"ogits_?[pP]rocess": "generate's settings choose tokens",
    r"(Llama|GPT2|GLM2?)Model$": "model.hidden_states(ids, *model.layout(ids)) is what a head gets",
    r"^tools\.(ckpt_transform|utils\.get_remote_save_url)": "pet transform divides and joins checkpoints",
    r"convert": "pet convert reads and writes .ckpt files",
    r"^models\.|Model$|Tokenizer$|For[A-Z]\w+$": "the models here are GPT-2, LLaMA and GLM",
}
__modules__ = modules_of(
    {
        **_MODELS,
        "models": {**_MODELS["models"], _REGISTERING: _MAKERS},
        "models.build_model": {_REGISTERING: ("build_model", "build_network")},
        "models.build_config": {_REGISTERING: ("build_model_config",)},
        "models.build_processor": {_REGISTERING: ("build_processor",)},
        "models.build_tokenizer": {_REGISTERING: ("build_tokenizer",)},
        **{f"models.{module}": {_CLASSES: _BASES} for module in _OF_BASES},
        **{f"models.tokenization_utils{part}": {_CLASSES: _BASES, **_ENCODINGS} for part in ("", "_base")},
        "auto_class": _AUTO,
        **dict.fromkeys(("models.auto", *(f"models.auto.{kind}_auto" for kind in _OF_AUTO)), _AUTO),
        **dict.fromkeys(("modules", "modules.transformer", "modules.transformer.transformer"), _PARALLEL),
        "models.glm.glm_processor": {_CLASSES: ("GLMProcessor", "process_response")},
        **{f"models.glm2.glm{n}_tokenizer": {_CLASSES: (f"ChatGLM{n}Tokenizer",)} for n in (3, 4)},
        "models.glm.chatglm_6b_tokenizer": {_CLASSES: ("ChatGLMTokenizer",)},
        **dict.fromkeys(("common.context", "core.context.build_context"), _BUILD),
        **{f"{room}.parallel_config": {_SCRIPT: ("build_parallel_config",)} for room in ("common", "core")},
        "core": {**_BUILD, **_MONITORS, **_LR, **_OPTIM, **_METRIC, _REGISTERING: _BUILDERS},
        **dict.fromkeys(("core.lr", "core.lr.lr_schedule"), _LR),
        **dict.fromkeys(("core.optim", "core.optim.optim", "core.optim.adamw"), _OPTIM),
        **dict.fromkeys(("core.callback", "core.callback.callback"), _WATCHERS),
        **dict.fromkeys(("core.metric", "core.metric.metric"), _METRIC),
        "core.loss": {_REGISTERING: ("build_loss",)},
        "wrapper": {_REGISTERING: ("build_wrapper",)},
        "core.context": _BUILD,
        "generation": {**_STREAMERS, **_GENERATION},
        "generation.generation_config": _GENERATION,
        "generation.streamers": _STREAMERS,
        "pet": _TUNING,
        "pet.pet_config": _TUNING,
        "pet.pet_model": _TUNING,
        "pet.tuners": _TUNERS,
        **{f"pet.tuners.{name}_adapter": _TUNERS for name in ("lora", "pet", "prefix_tuning", "ptuning2")},
        **dict.fromkeys(("dataset", "dataset.build_dataset"), _DATASET),
        **dict.fromkeys(("dataset.dataloader", "dataset.dataloader.build_dataloader"), _LOADER),
        "pipeline.build_pipeline": {_REGISTERING: ("build_pipeline",)},
        "dataset.dataloader.datareaders": {f"{__name__}.preparing": ("wikitext_clean",)},
        **dict.fromkeys(("pipeline", "pipeline.pipeline", "pipeline.text_generation_pipeline"), _PIPELINE),
        "dataset.dataloader.training_dataloader": {_SCRIPT: ("TrainingDataLoader", "TrainingDataset")},
        "mindformer_book": {f"{__name__}.book": ("MindFormerBook",)},
        "tools": {
            **_LOGGER,
            **_UTILS,
            **_REGISTER,
            _SCRIPT_CONFIG: (*_REGISTER[_SCRIPT_CONFIG], *_UTILS[_SCRIPT_CONFIG]),
        },
        "tools.cloud_adapter": {_SCRIPT: ("cloud_monitor",)},
        "tools.dataset_preprocess.llama.conversation": {f"{__name__}.preparing": ("get_default_conv_template",)},
        "tools.logger": _LOGGER,
        "tools.register": _REGISTER,
        **dict.fromkeys(("tools.register.config", "tools.register.register"), _REGISTER),
        "tools.resume_ckpt": {_SCRIPT: ("get_resume_checkpoint",)},
        "tools.transform_ckpt": {f"{__name__}.preparing": ("get_strategy",)},
        "tools.utils": _UTILS,
        "trainer": {**_TRAINER, **_INIT, _SCRIPT: ("build_trainer",)},
        "trainer.optimizer_grouped_parameters": {_OPTIMIZERS: ("get_optimizer_grouped_parameters",)},
        "trainer.build_trainer": {_SCRIPT: ("build_trainer",)},
        "trainer.config_args": _INIT,
        "utils": {_SCRIPT: _PLACES},
        "utils.file_utils": {_SCRIPT: _PLACES},
        "utils.load_checkpoint_utils": {_SCRIPT: ("get_load_path_after_hf_convert",)},
        "trainer.trainer": _TRAINER,
        "trainer.training_args": _TRAINER,
        "trainer.utils": {_CONTEXT: ("get_last_checkpoint",), _SCRIPT: ("transform_and_load_checkpoint",)},
    }
)
