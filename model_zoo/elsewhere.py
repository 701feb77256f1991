"""Arguments that transformers, PEFT and mindnlp have at the places of this library's functions, and what is here in
their place.

Whoever comes from there reads it in one line. What no table has stays Python's own TypeError.
"""

from __future__ import annotations

from collections.abc import Iterable

from model_zoo.errors import InputError
from model_zoo.labels import LABEL_FIELDS

NONE = "has no counterpart: "
HUB = {
    "token": "HF_TOKEN",
    "use_auth_token": "HF_TOKEN",
    "cache_dir": "HF_HOME",
    "local_files_only": "HF_HUB_OFFLINE=1",
}
"""What huggingface_hub has in the environment."""
FROM = {
    **{name: f"is {one} in the environment" for name, one in HUB.items()},
    "mirror": "is part of the name: modelscope:NAME; without it Hugging Face is asked",
    "revision": "is part of the name: NAME@REVISION",
    "trust_remote_code": f"{NONE}a checkpoint's own code never runs",
}
"""Whence a model, or its tokenizer, comes."""
MEMORY = ("max_memory", "offload_folder", "offload_state_dict")
OPENED = {
    **FROM,
    **dict.fromkeys(("torch_dtype", "ms_dtype", "ms_type"), "is dtype"),
    "load_in_4bit": 'is quantization={"type": "nf4"}',
    "load_in_8bit": 'is quantization={"type": "int8"}',
    "quantization_config": 'is quantization, as {"type": "nf4", "double": True}',
    "device_map": f"{NONE}a model is on MindSpore's device (mindspore.set_device)",
    "config": "is pet.AutoModel.from_config, which makes random weights",
    "attn_implementation": f"{NONE}the fastest attention there is runs",
    **dict.fromkeys(("low_cpu_mem_usage", *MEMORY), f"{NONE}weights are read one by one"),
    **dict.fromkeys(("use_safetensors", "from_pt"), f"{NONE}what lies there is opened"),
    **dict.fromkeys(
        LABEL_FIELDS,
        'comes with a head, by pet.Trainer(…, objective="classification"); a recipe has it in model.config',
    ),
}
JUDGED = {
    "return_all_scores": "is top_k",
    "function_to_apply": f"{NONE}pet.scores gives the head's numbers",
    "truncation": f"{NONE}longer texts are cut at the model's length",
    "batch_size": 'is an argument of pet.pipeline("text_classification", …)',
}
TYPES = {"token_type_ids": f"{NONE}leave it out; input_ids and attention_mask are all that counts"}
ANSWERED = {
    **TYPES,
    "generation_config": "is its settings, by their names",
    "inputs": "is input_ids",
    **dict.fromkeys(("logits_processor", "prefix_allowed_tokens_fn"), f"{NONE}settings choose tokens"),
    **dict.fromkeys(("stopping_criteria", "max_time"), "is stop_strings or max_new_tokens"),
    "return_dict_in_generate": f"{NONE}ids are given",
    **dict.fromkeys(("output_scores", "output_logits"), f"{NONE}ids are given; the model itself gives logits"),
    **dict.fromkeys(("output_attentions", "output_hidden_states"), f"{NONE}ids are given"),
    "cache_implementation": f"{NONE}keys and values are kept, unless use_cache=False",
    "remove_invalid_values": f"{NONE}logits that are no numbers are an error",
    "adapter_names": "is a block: with pet.adapter_names(model, names)",
    **dict.fromkeys(("assistant_model", "prompt_lookup_num_tokens"), f"{NONE}answers are the same without it"),
    **dict.fromkeys(("penalty_alpha", "dola_layers", "guidance_scale", "sequence_bias"), f"{NONE}nothing computes it"),
    **dict.fromkeys(
        ("forced_bos_token_id", "token_healing", "top_h", "watermarking_config"), f"{NONE}nothing computes it"
    ),
    **dict.fromkeys(
        ("num_beam_groups", "diversity_penalty", "constraints", "force_words_ids"), f"{NONE}beams are plain ones"
    ),
    "bos_token_id": f"{NONE}a prompt begins as it is given",
    "synced_gpus": f"{NONE}each process generates by itself",
}
CALLED = {
    **TYPES,
    "labels": f"{NONE}logits are given; pet.Trainer computes losses",
    "inputs_embeds": f"{NONE}ids are taken",
    **dict.fromkeys(("past_key_values", "use_cache"), f"{NONE}generate keeps keys and values"),
    **dict.fromkeys(("return_dict", "output_hidden_states", "output_attentions"), f"{NONE}logits are given"),
}
SAVED = {
    "safe_serialization": f"{NONE}files are always safetensors",
    "push_to_hub": f"{NONE}upload the directory",
    "save_directory": "is directory",
    "state_dict": f"{NONE}what the model has is written",
    "save_embedding_layers": "is modules_to_save of the adapter",
}
FLOAT = f"{NONE}an adapter is computed in float32"
ADDED = {
    **{"adapter_name": "is name", "peft_config": "is config"},
    **{"low_cpu_mem_usage": OPENED["low_cpu_mem_usage"], "autocast_adapter_dtype": FLOAT},
}
MERGED = {"safe_merge": "is safe", "adapter_names": "is names", "progressbar": NONE + "nothing is shown"}
ELSEWHERE = {
    "AutoModel.from_pretrained": OPENED,
    "AutoModel.from_config": {"torch_dtype": "is dtype"},
    "AutoTokenizer.from_pretrained": {
        "use_fast": f"{NONE}there is one tokenizer for each file",
        "padding_side": "is an argument of the tokenizer's call",
        "model_max_length": "is max_length of the tokenizer's call",
        **dict.fromkeys(("ms_dtype", "ms_type"), f"{NONE}ids are whole numbers"),
        **FROM,
    },
    "CausalLM.__call__": CALLED,
    "generate": ANSWERED,
    "TextClassification.__call__": JUDGED,
    "pipeline": {
        **dict.fromkeys(("torch_dtype", "ms_dtype"), "is dtype of pet.AutoModel.from_pretrained, whose model it takes"),
        **dict.fromkeys(("device", "device_map"), OPENED["device_map"]),
        "clean_up_tokenization_spaces": f"{NONE}texts are what the tokenizer decodes",
        "return_full_text": f"{NONE}a continued text comes whole, an answer (chat=True) alone",
        **FROM,
    },
    "load_adapter": {
        **{"adapter_name": "is name", "model_id": "is directory"},
        "config": f"{NONE}the directory's adapter_config.json is read",
        "is_trainable": f"{NONE}an active adapter is trained, and pet.freeze_modules freezes",
        **dict.fromkeys(("torch_dtype", "autocast_adapter_dtype"), FLOAT),
        **dict.fromkeys(("ephemeral_gpu_offload", "key_mapping"), f"{NONE}what lies there is opened"),
        **{name: OPENED[name] for name in ("device_map", "low_cpu_mem_usage", "trust_remote_code", "revision")},
        "torch_device": OPENED["device_map"],
    },
    **dict.fromkeys(("add_adapter", "apply"), ADDED),
    "hotswap_adapter": {
        **{"adapter_name": "is name", "model_name_or_path": "is directory"},
        "torch_device": OPENED["device_map"],
    },
    "save_adapter": {
        **{**SAVED, "adapter_name": "is name", "selected_adapters": "is name, one at a time"},
        "is_main_process": f"{NONE}write it in one process",
        "path_initial_model_for_weight_conversion": f"{NONE}files of pissa and olora are of the unchanged base",
    },
    "save_pretrained": {**SAVED, "selected_adapters": "is pet.save_adapter(model, directory, name)"},
    "set_adapter": {"adapter_name": "is names", "inference_mode": f"{NONE}pet.freeze_modules freezes"},
    "delete_adapter": {"adapter_name": "is name"},
    **dict.fromkeys(("merge", "merge_and_unload"), MERGED),
    "combine_adapters": {
        **{"adapters": "is names", "adapter_name": "is new_name", "combination_type": "is method"},
        **{"svd_rank": "is rank", "majority_sign_method": "is majority"},
        "svd_clamp": f"{NONE}no factor is clamped",
        **dict.fromkeys(("svd_full_matrices", "svd_driver"), f"{NONE}results are the same without it"),
    },
}
"""{function: {argument there: what is said of it}}."""
_PEFT = ("PeftModel", "AutoPeftModel")
_TASKS = ("FeatureExtraction", "QuestionAnswering", "Seq2SeqLM", "TokenClassification")
JUDGE = "is pet.load_adapter(model, directory), which adds the head, too"
_CLASSES = f"{NONE}an adapter's settings are those of its method; leave it out"
_MODEL = "is pet.AutoModel"
_PREPARED = f"{NONE}a packed base needs no preparing; leave it out"
NAMES = {
    "get_peft_model": "is pet.apply_lora(model, rank=8), or pet.apply(model, config); the model itself is changed",
    **dict.fromkeys(
        ("PeftModel", "PeftModelForCausalLM", "PeftMixedModel", "set_peft_model_state_dict"),
        "is pet.load_adapter(model, directory); the model itself is changed",
    ),
    **dict.fromkeys(
        ("AutoPeftModel", "AutoPeftModelForCausalLM"),
        "is pet.load_adapter(model, directory), onto a model of pet.AutoModel.from_pretrained(base)",
    ),
    **{f"{kind}ForSequenceClassification": JUDGE for kind in _PEFT},
    **dict.fromkeys([f"{kind}For{task}" for kind in _PEFT for task in _TASKS], f"{NONE}no model has such a head"),
    **dict.fromkeys(
        ("inject_adapter_in_model", "LoraModel", "IA3Model"), "is pet.apply(model, config); the model itself is changed"
    ),
    "load_peft_weights": "is pet.load_adapter(model, directory), which puts them into the model",
    **dict.fromkeys(("get_layer_status", "get_model_status"), "is pet.adapter_status(model)"),
    "get_peft_config": "is a method's configuration, as pet.LoRAConfig(rank=8)",
    "cast_mixed_precision_params": FLOAT,
    "PeftConfig": f"{NONE}pet.load_adapter reads the file, whose base_model_name_or_path names the base",
    "LoraConfig": "is pet.LoRAConfig, or the arguments of pet.apply_lora",
    "PrefixTuningConfig": "is pet.PrefixConfig, or the arguments of pet.apply_prefix",
    "PromptTuningConfig": "is pet.PromptConfig, or the arguments of pet.apply_prompt",
    "PromptEncoderConfig": "is the arguments of pet.apply_p_tuning",
    "PromptEncoderReparameterizationType": f"{NONE}the network is the MLP",
    "PromptTuningInit": "is init_text of pet.apply_prompt; without it tokens are drawn",
    "TrainableTokensConfig": "is trainable_tokens of pet.apply_lora",
    "AdaLoraConfig": f"{NONE}what chooses its ranks is not here; pet.load_adapter opens it as the LoRA that it is",
    **dict.fromkeys(("LoftQConfig", "replace_lora_weights_loftq"), 'is init="loftq" of pet.LoRAConfig'),
    **dict.fromkeys(("TaskType", "PeftType"), _CLASSES),
    "get_peft_model_state_dict": "is pet.save_adapter(model, directory), which writes a file",
    **{f"prepare_model_for_{bits}_training": _PREPARED for bits in ("kbit", "int8")},
    "prepare_model_for_compiled_hotswap": f"{NONE}pet.hotswap_adapter takes ranks up to the adapter's, and any scale",
    "initialize_kv_prefix_from_text": "is init_text of pet.apply_prefix",
    "create_loraplus_optimizer": "is learning_rate_ratio of pet.LoRAConfig",
    **dict.fromkeys(
        ("EvaConfig", "LoraGAConfig", "initialize_lora_eva_weights", "preprocess_loraga"),
        f"{NONE}pet.LoRAConfig has other starts (init)",
    ),
    **dict.fromkeys(("ArrowConfig", "create_arrow_model"), f"{NONE}pet.adapter_names chooses by rows"),
    "BitsAndBytesConfig": 'is an argument: pet.AutoModel.from_pretrained(base, quantization={"type": "nf4"})',
    "AutoModelForCausalLM": _MODEL,
    "AutoModelForSequenceClassification": f'{_MODEL}, and pet.Trainer(…, objective="classification") adds the head',
    **dict.fromkeys(("SFTTrainer", "DPOTrainer", "Seq2SeqTrainer"), "is pet.Trainer, with an objective"),
    **dict.fromkeys(("SFTConfig", "DPOConfig"), "is the arguments of pet.Trainer"),
    "GenerationConfig": "is the arguments of model.generate",
    "TrainerCallback": "is pet.train.callbacks.Callback",
    "load_dataset": "is pet.data.load_dataset, of files; pet.Trainer takes the file itself, too",
    **dict.fromkeys(
        (
            "DataCollatorForSeq2Seq",
            "DataCollatorForLanguageModeling",
            "DataCollatorWithPadding",
            "default_data_collator",
        ),
        f"{NONE}rows are padded and labelled here; pet.data.make_loader takes a collate_fn",
    ),
}
"""PEFT's, transformers' and TRL's names, and what is in `pet` in their place."""
METHODS = {
    **{name: f"is pet.{name}(model, …)" for name in ("add_adapter", "delete_adapter", "load_adapter", "set_adapter")},
    **{name: f"is pet.{name}(model)" for name in ("merge_and_unload", "print_trainable_parameters")},
    **{f"{name}_adapter": f"is pet.{name}(model)" for name in ("merge", "unmerge")},
    "add_weighted_adapter": "is pet.combine_adapters(model, names, weights)",
    **dict.fromkeys(
        ("disable_adapter", "disable_adapters", "disable_adapter_layers", "enable_adapter_layers"),
        "is a block: with pet.disable_adapters(model)",
    ),
    **dict.fromkeys(
        ("active_adapter", "active_adapters", "peft_config", "get_layer_status", "get_model_status"),
        "is among what pet.adapter_status(model) says",
    ),
    **dict.fromkeys(("base_model", "get_base_model"), "is the model itself, bare within pet.disable_adapters(model)"),
    "unload": "is pet.delete_adapter(model, name)",
    "push_to_hub": "is pet export of a run, with --hub NAME; pet.save_adapter writes what is uploaded",
    "forward": "is a call: model(input_ids)",
    "eval": "is set_train(False)",
    "train": "is set_train()",
    "named_parameters": "is parameters_and_names()",
    **dict.fromkeys(
        ("num_parameters", "get_nb_trainable_parameters"),
        "is among what pet.print_trainable_parameters(model) says",
    ),
    "parameters": "is get_parameters()",
    "named_modules": "is cells_and_names()",
    **dict.fromkeys(("cpu", "cuda", "device"), OPENED["device_map"]),
    **dict.fromkeys(("bfloat16", "float", "half"), "is dtype of pet.AutoModel.from_pretrained"),
    "resize_token_embeddings": "is pet add-tokens, which writes a base with further tokens",
    "gradient_checkpointing_enable": "is train.recompute of a recipe",
    "enable_input_require_grads": f"{NONE}leave it out",
}
"""What models have as methods there."""
OF_TOKENIZERS = {
    "apply_chat_template": "is prompt(messages), which gives ids",
    "batch_decode": "is decode(ids) of each row",
    **dict.fromkeys(("batch_encode_plus", "encode_plus"), "is a call: tokenizer(texts)"),
    "pad": "is an argument of a call: tokenizer(texts, padding=True)",
    "tokenize": "is encode(text), which gives ids",
    "convert_tokens_to_ids": "is token_to_id(token)",
    "convert_ids_to_tokens": "is decode([id], skip_special_tokens=False)",
    **dict.fromkeys(
        ("add_tokens", "add_special_tokens"), f"{NONE}a checkpoint's files hold the tokens, and a row for each"
    ),
}
"""What tokenizers have as methods there."""
CALLS = {"CausalLM.__call__": "model", "TextClassification.__call__": "pipeline"}
"""What is called, where it is no function."""


def refuse_others(function: str, known: Iterable[str], given: Iterable[str]) -> None:
    """Raises InputError for arguments of another library that a function does not have."""
    others, shown = ELSEWHERE.get(function, {}), CALLS.get(function, function)
    InputError.raise_any(f"{shown}: {name} {others[name]}" for name in given if name in others and name not in known)
