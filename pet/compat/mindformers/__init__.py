"""MindFormers' names, under its module paths too: ``from pet.compat.mindformers.trainer import Trainer``."""

from __future__ import annotations

from pet.compat.paths import modules_of
from pet.lazy import names_of, stub_table

_STUB = stub_table(__file__)
_INNER = {
    "pet.compat.command_line": "str2bool",
    f"{__name__}.callbacks": "_get_loss_output",
    f"{__name__}.classes": "ProcessorMixin process_response",
    f"{__name__}.context": "get_last_checkpoint get_real_group_size get_real_rank",
    f"{__name__}.converting": "convert_ms_to_pt convert_pt_to_ms convert_weight ffn_concat_hf2mg "
    "is_lora_param ms2pt pt2ms qkv_concat_hf2mg",
    f"{__name__}.encodings": "AddedToken BatchEncoding PaddingStrategy TensorType TruncationStrategy",
    f"{__name__}.optimizers": "get_optimizer_grouped_parameters",
    f"{__name__}.pet_config": "is_supported_pet_type",
    f"{__name__}.preparing": "get_default_conv_template get_strategy wikitext_clean",
    f"{__name__}.script": "FILE_PERMISSION TrainingDataset build_trainer check_in_modelarts check_shared_disk "
    "get_load_path_after_hf_convert get_output_root_path get_resume_checkpoint is_publicly_accessible_path "
    "is_version_ge set_output_path set_remote_save_url str2bool_or_str transform_and_load_checkpoint",
    f"{__name__}.script_config": "parse_value",
}
"""Names of MindFormers' inner modules alone, which the stub leaves out."""
_WHERE = {name: module for module, names in _INNER.items() for name in names.split()}
_WHERE |= {name: module for module, names in _STUB.items() for name in names}


def _found(words: str) -> dict[str, list[str]]:
    """{module here: names} of names with spaces between them, and of modules whose names in the stub are meant."""
    table: dict[str, list[str]] = {}
    for word in words.split():
        for name in _STUB.get(f"{__name__}.{word}", [word]):
            table.setdefault(_WHERE[name], []).append(name)
    return table


_ENDINGS = ("", "_config", "_tokenizer", "_tokenizer_fast", "_processor")
_FAMILIES = {
    "gpt2": ("GPT2LMHeadModel GPT2WithLora", "GPT2Config", "GPT2Tokenizer", "GPT2TokenizerFast", "GPT2Processor"),
    "llama": (
        "LlamaForCausalLM LlamaForCausalLMWithLora",
        *("LlamaConfig", "LlamaTokenizer", "LlamaTokenizerFast", "LlamaProcessor"),
    ),
    "glm": (
        "GLMChatModel GLMChatModelWithLora GLMForPreTraining GLMForPreTrainingWithLora",
        *("GLMConfig", "ChatGLMTokenizer", None, "GLMProcessor"),
    ),
    "glm2": (
        "ChatGLM2ForConditionalGeneration ChatGLM2WithPtuning2",
        *("ChatGLM2Config", "ChatGLM2Tokenizer", None, "GLMProcessor"),
    ),
    "glm3": ("", "ChatGLM2Config", "ChatGLM3Tokenizer", None, "GLMProcessor"),
}
"""Package below models -> what its modules have, by how their names end; None where there is no such module."""
_AUTO = "AutoConfig AutoModel AutoModelForCausalLM AutoProcessor AutoTokenizer"
_BASES = (
    "BaseConfig BaseModel BaseProcessor BaseTokenizer PreTrainedModel PreTrainedTokenizer PreTrainedTokenizerBase "
    "PretrainedConfig ProcessorMixin"
)
_BUILD = "context build_context build_parallel_config build_profile_cb"
_REGISTER = "script_config MindFormerModuleType MindFormerRegister"
_TUNING = "pet_config is_supported_pet_type"
_TUNERS = "LoraAdapter PetAdapter PrefixTuningAdapter Ptuning2Adapter"
_PLACES = "get_output_root_path set_output_path"
_UTILS = (
    f"{_PLACES} FILE_PERMISSION check_in_modelarts check_shared_disk get_real_group_size get_real_rank "
    "is_publicly_accessible_path is_version_ge parse_value set_remote_save_url str2bool str2bool_or_str"
)


def _families() -> dict[str, str]:
    found = {}
    for package, names in _FAMILIES.items():
        path = f"models.{package}"
        parts = {ending: one for ending, one in zip(_ENDINGS, names, strict=True) if one is not None}
        found[path] = " ".join(parts.values())
        found |= {f"{path}.{package}{ending}": one for ending, one in parts.items()}
        found[f"{path}.convert_weight"] = "convert_pt_to_ms convert_weight"
        found[f"{path}.convert_reversed"] = "convert_ms_to_pt"
    found["models.glm2"] += " ChatGLM3Tokenizer ChatGLM4Tokenizer"  # its package has those of the later ones, too
    whole = " ".join(found[f"models.{package}"] for package in _FAMILIES)
    makers = "build_model build_model_config build_network build_processor build_tokenizer"
    return {**found, "models": f"{_AUTO} {_BASES} {whole} {makers}"}


_MODULES = {
    **_families(),
    "models.build_model": "build_model build_network",
    "models.build_config": "build_model_config",
    "models.build_processor": "build_processor",
    "models.build_tokenizer": "build_tokenizer",
    "models.base_config models.base_model models.base_processor models.base_tokenizer": _BASES,
    "models.configuration_utils models.modeling_utils models.processing_utils": _BASES,
    "models.tokenization_utils models.tokenization_utils_base": f"{_BASES} {_INNER[f'{__name__}.encodings']}",
    "models.auto models.auto.configuration_auto models.auto.modeling_auto auto_class": _AUTO,
    "models.auto.processing_auto models.auto.tokenization_auto": _AUTO,
    "modules modules.transformer modules.transformer.transformer": "TransformerOpParallelConfig",
    "models.glm.glm_processor": "GLMProcessor process_response",
    "models.glm2.glm3_tokenizer": "ChatGLM3Tokenizer",
    "models.glm2.glm4_tokenizer": "ChatGLM4Tokenizer",
    "models.glm.chatglm_6b_tokenizer": "ChatGLMTokenizer",
    "common.context core.context core.context.build_context": _BUILD,
    "common.parallel_config core.parallel_config": "build_parallel_config",
    "core": f"{_BUILD} learning_rates optimizers metrics losses CheckpointMonitor EvalCallBack MFLossMonitor "
    "ObsMonitor ProfileMonitor SummaryMonitor build_callback build_loss build_lr build_metric build_optim",
    "core.lr core.lr.lr_schedule": "learning_rates build_lr",
    "core.optim core.optim.optim core.optim.adamw": "optimizers build_optim",
    "core.callback": "callbacks build_callback",
    "core.callback.callback": "callbacks _get_loss_output build_callback",
    "core.metric core.metric.metric": "metrics build_metric",
    "core.loss core.loss.loss": "CrossEntropyLoss build_loss",
    "wrapper": "build_wrapper",
    "generation": "streaming BaseStreamer GenerationConfig",
    "generation.generation_config": "GenerationConfig",
    "generation.streamers": "streaming BaseStreamer",
    "pet pet.pet_config pet.pet_model": _TUNING,
    "pet.tuners pet.tuners.lora_adapter pet.tuners.pet_adapter": _TUNERS,
    "pet.tuners.prefix_tuning_adapter pet.tuners.ptuning2_adapter": _TUNERS,
    "dataset dataset.build_dataset": "build_dataset build_dataset_loader",
    "dataset.dataloader dataset.dataloader.build_dataloader": "build_dataset_loader",
    "dataset.dataloader.datareaders": "wikitext_clean",
    "dataset.dataloader.training_dataloader": "TrainingDataLoader TrainingDataset",
    "pipeline pipeline.pipeline pipeline.text_generation_pipeline": "asking",
    "pipeline.build_pipeline": "build_pipeline",
    "run_check": "run_check",
    "mindformer_book": "MindFormerBook",
    "tools": f"logger {_UTILS} {_REGISTER}",
    "tools.cloud_adapter": "cloud_monitor",
    "tools.dataset_preprocess.llama.conversation": "get_default_conv_template",
    "tools.logger": "logger",
    "tools.register tools.register.config tools.register.register": _REGISTER,
    "tools.resume_ckpt": "get_resume_checkpoint",
    "tools.transform_ckpt": "get_strategy",
    "tools.utils": _UTILS,
    "trainer": "Trainer TrainingArguments context build_trainer",
    "trainer.optimizer_grouped_parameters": "get_optimizer_grouped_parameters",
    "trainer.build_trainer": "build_trainer",
    "trainer.config_args": "context",
    "trainer.trainer trainer.training_args": "Trainer TrainingArguments",
    "trainer.utils": "get_last_checkpoint transform_and_load_checkpoint",
    "utils utils.file_utils": _PLACES,
    "utils.convert_utils": "ffn_concat_hf2mg is_lora_param ms2pt pt2ms qkv_concat_hf2mg",
    "utils.load_checkpoint_utils": "get_load_path_after_hf_convert",
}
"""MindFormers' modules, several with spaces between them -> what they have; see `_found`."""
__getattr__, __dir__ = names_of(__name__, _STUB)
__lacking__ = {
    r"DataLoader|^dataset\b|Dataset": "rows are read and packed here; give the files as train_dataset=, or a job file",
    r"(Runner|Optimizer|LR|Wrapper|Cloud|Checkpoint)Config$|ConfigArguments": "TrainingArguments says it, or "
    "MindFormerConfig with the sections of a job file as Trainer(args=…)",
    r"ogits_?[pP]rocess": "generate's settings choose tokens",
    r"(Llama|GPT2|GLM2?)Model$": "model.hidden_states(ids, *model.layout(ids)) is what a head gets",
    r"^tools\.(ckpt_transform|utils\.get_remote_save_url)": "pet transform divides and joins checkpoints",
    r"convert": "pet convert reads and writes .ckpt files",
    r"^models\.|Model$|Tokenizer$|For[A-Z]\w+$": "the models here are GPT-2, LLaMA and GLM",
}
__modules__ = modules_of({path: _found(words) for paths, words in _MODULES.items() for path in paths.split()})
