"""Small models of the families that llama.cpp runs, adapters on them, and llama.cpp itself."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from tiny_tokenizers import write_byte_level

from pet.names import bundled_models

PROMPT = "Where is the shop? 你好 12345"
BASES = ("llama", "llama_json", "llama3", "qwen2", "qwen3", "glm", "glm4", "chatglm")
SIZES = {
    "vocab_size": 1216,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CONFIGS = {
    "llama": {"model_type": "llama"},
    "llama_json": {"model_type": "llama"},
    "llama3": {"model_type": "llama", "rope_scaling": LLAMA3_ROPE, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "rope_scaling": {**YARN, "attention_factor": 0.8}},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True, "rope_scaling": YARN},
    "glm": {"model_type": "glm", "attention_bias": True},
    "glm4": {"model_type": "glm4", "attention_bias": True},
    "chatglm": {
        "model_type": "chatglm",
        "padded_vocab_size": 1216,
        "num_layers": 2,
        "multi_query_group_num": 2,
        "kv_channels": 16,
        "ffn_hidden_size": 96,
        "seq_length": 256,
        "rope_ratio": 50.0,
    },
}


def bases_in(root):
    """name → a checkpoint with its tokenizer, small and random, made when first asked for."""
    from model_zoo.auto import AutoModel

    tiny = bundled_models()

    def make(name):
        if (root / name).exists():
            return root / name
        directory = root / f"{name}.part"  # what is skipped half-way is no base for the next test
        shutil.rmtree(directory, ignore_errors=True)
        model = AutoModel.from_config({**SIZES, **CONFIGS[name]})
        generator = np.random.default_rng(len(name))
        for parameter in model.get_parameters():
            if parameter.ndim == 1:  # norms and biases of ones and zeros would hide what is left out
                values = parameter.asnumpy() + generator.normal(0, 0.2, parameter.shape)
                parameter.set_data(type(parameter.data)(values.astype(np.float32)))
        model.save_pretrained(directory)
        if name.startswith("qwen"):
            write_byte_level(directory, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 1)
        elif name == "llama3":
            names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
            write_byte_level(directory, names, 3)
        elif name == "llama_json":
            write_fast(bundled_models()["llama_tiny"], directory)
        else:
            source = tiny["llama_tiny" if name == "llama" else "glm4_tiny"]
            for file in source.glob("tokenizer*"):
                shutil.copy(file, directory)
        return directory.rename(root / name)

    return make


def write_fast(source, directory):
    """A sentencepiece model as the tokenizer.json that transformers makes of it."""
    transformers = pytest.importorskip("transformers", reason="it writes the tokenizer.json")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(directory)
    assert not (directory / "tokenizer.model").exists()


def adapters_in(root, bases):
    """name → (base's greedy ids, adapter directory, the adapted model's greedy ids), after the prompt."""
    from adapters.saving import save_adapter
    from model_zoo.auto import AutoModel
    from model_zoo.tokenizers import AutoTokenizer
    from pet import apply_lora

    known = {}

    def make(name):
        if name not in known:
            model = AutoModel.from_pretrained(bases(name))
            ids = AutoTokenizer.from_pretrained(bases(name)).encode(PROMPT)
            plain = greedy(model, ids)
            apply_lora(
                model,
                rank=4,
                alpha=6,
                targets="all-linear",
                rank_pattern={r".*(down_proj|h_to_4h)": 2},
                use_rslora=True,
            )
            generator = np.random.default_rng(3)
            for parameter in model.trainable_params():
                values = generator.normal(0, 0.3, parameter.shape).astype(np.float32)
                parameter.set_data(type(parameter.data)(values))
            save_adapter(model, root / name)
            known[name] = plain, root / name, greedy(model, ids)
        return known[name]

    return make


def greedy(model, ids):
    return model.generate([ids], max_new_tokens=12, eos_token_id=None)[0, len(ids) :].tolist()


def server(model, adapter=None):
    """llama.cpp's server with a model."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp (pip install xllamacpp)")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(model)
    settings.n_ctx, settings.n_parallel, settings.verbosity = 256, 1, -1
    settings.warmup = settings.fit_params = False
    settings.use_jinja = True
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    if adapter is not None:
        settings.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0)]
    return xllamacpp.Server(settings)


def llama_cpp(model, prompt, adapter=None):
    """Greedy ids by llama.cpp."""
    asked = {"prompt": prompt, "max_tokens": 12, "temperature": 0.0, "return_tokens": True, "verbose": True}
    return server(model, adapter).handle_completions(asked)["__verbose"]["tokens"]
