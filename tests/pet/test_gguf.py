"""GGUF files: llama.cpp gives the same greedy ids from them, for models and for adapters on them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from tiny_tokenizers import write_byte_level

from model_zoo.checkpoint.reading import open_checkpoint
from model_zoo.errors import InputError
from pet.names import bundled_models

gguf = pytest.importorskip("gguf")

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


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """{name: a checkpoint with its tokenizer}, small and random, made when first asked for."""
    from model_zoo.auto import AutoModel

    root, tiny = tmp_path_factory.mktemp("bases"), bundled_models()

    def make(name):
        directory = root / name
        if directory.exists():
            return directory
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
        return directory

    return make


def write_fast(source, directory):
    """A sentencepiece model as the tokenizer.json that transformers makes of it."""
    transformers = pytest.importorskip("transformers", reason="it writes the tokenizer.json")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(directory)
    assert not (directory / "tokenizer.model").exists()


@pytest.fixture(scope="module")
def adapters(bases, tmp_path_factory):
    """name → (base's greedy ids, adapter directory, the adapted model's greedy ids), after the prompt."""
    from adapters.saving import save_adapter
    from model_zoo.auto import AutoModel
    from model_zoo.tokenizers import AutoTokenizer
    from pet import apply_lora

    root, known = tmp_path_factory.mktemp("adapters"), {}

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


def llama_cpp(model, prompt, adapter=None):
    """Greedy ids by llama.cpp."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp (pip install xllamacpp)")
    settings = xllamacpp.CommonParams()
    settings.model.path = str(model)
    settings.n_ctx, settings.n_parallel, settings.verbosity = 256, 1, -1
    settings.warmup = settings.fit_params = False
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    if adapter is not None:
        settings.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0)]
    asked = {"prompt": prompt, "max_tokens": 12, "temperature": 0.0, "return_tokens": True, "verbose": True}
    answer = xllamacpp.Server(settings).handle_completions(asked)
    return answer["__verbose"]["tokens"]


@pytest.mark.parametrize("name", BASES)
def test_llama_cpp_gives_the_same_greedy_ids(bases, adapters, tmp_path, name):
    from model_zoo.tokenizers import AutoTokenizer
    from pet.gguf.adapter import write_adapter
    from pet.gguf.model import write_model

    base = bases(name)
    plain, adapter, adapted = adapters(name)
    assert plain != adapted
    write_model(base, tmp_path / "base.gguf", "float32")
    write_adapter(adapter, base, tmp_path / "lora.gguf")
    ids = AutoTokenizer.from_pretrained(base).encode(PROMPT)
    assert llama_cpp(tmp_path / "base.gguf", ids) == plain
    assert llama_cpp(tmp_path / "base.gguf", ids, tmp_path / "lora.gguf") == adapted


@pytest.mark.parametrize("name", ["llama", "llama_json", "llama3", "qwen2"])
def test_llama_cpp_cuts_texts_into_the_same_tokens(bases, adapters, tmp_path, name):
    from pet.gguf.model import write_model

    write_model(bases(name), tmp_path / "base.gguf", "float32")
    assert llama_cpp(tmp_path / "base.gguf", PROMPT) == adapters(name)[0]


@pytest.mark.parametrize(("dtype", "kind", "most"), [("f16", "F16", 1e-3), ("q8_0", "Q8_0", 2e-2)])
def test_matrices_are_rounded_once_and_vectors_are_not(bases, tmp_path, caplog, dtype, kind, most):
    from pet.gguf.model import write_model

    write_model(bases("qwen3"), tmp_path / "base.gguf", dtype)
    reader = gguf.GGUFReader(tmp_path / "base.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    with open_checkpoint(bases("qwen3")) as checkpoint:
        for ours, theirs in (
            ("self_attn.v_proj", "attn_v"),
            ("mlp.up_proj", "ffn_up"),
            ("self_attn.q_norm", "attn_q_norm"),
        ):
            tensor = tensors[f"blk.1.{theirs}.weight"]
            exact = checkpoint.read(f"model.layers.1.{ours}.weight", dtype="float32")
            found = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(exact.shape)
            assert tensor.tensor_type.name == ("F32" if exact.ndim == 1 else kind)
            assert np.abs(found - exact).max() <= (0 if exact.ndim == 1 else most * np.abs(exact).max())
    assert tensors["token_embd.weight"].tensor_type.name == kind
    assert "output.weight" not in tensors, "a tied head is written once"


def test_rows_that_q8_0_cannot_hold_stay_in_float16(tmp_path, caplog):
    from pet.gguf.model import write_model

    write_model(bundled_models()["llama_tiny"], tmp_path / "base.gguf", "q8_0")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "base.gguf").tensors}
    assert (kinds["blk.0.ffn_down.weight"], kinds["blk.0.ffn_up.weight"]) == ("F16", "Q8_0")
    assert "4 matrices stay in float16" in caplog.text


def test_the_file_carries_the_chat_template_and_the_ends(tmp_path):
    from pet.gguf.model import write_model

    base = bundled_models()["llama_tiny"]
    write_model(base, tmp_path / "base.gguf", name="tiny")
    fields = gguf.GGUFReader(tmp_path / "base.gguf").fields
    template = json.loads((base / "tokenizer_config.json").read_text())["chat_template"]
    assert fields["tokenizer.chat_template"].contents() == template
    assert (fields["tokenizer.ggml.bos_token_id"].contents(), fields["tokenizer.ggml.eos_token_id"].contents()) == (
        1,
        2,
    )
    assert fields["general.name"].contents() == "tiny"


def test_the_context_ends_where_a_window_begins_to_matter(tmp_path):
    """llama.cpp's attention is full in this architecture."""
    from pet.gguf.model import write_model

    base = tmp_path / "base"
    shutil.copytree(bundled_models()["llama_tiny"], base)
    config = json.loads((base / "config.json").read_text())
    values = {"model_type": "mistral", "sliding_window": 48, "architectures": ["MistralForCausalLM"]}
    (base / "config.json").write_text(json.dumps({**config, **values}))
    write_model(base, tmp_path / "base.gguf")
    fields = gguf.GGUFReader(tmp_path / "base.gguf").fields
    assert config["max_position_embeddings"] > 48
    assert fields["llama.context_length"].contents() == 48


def vocabulary_in(file):
    fields = gguf.GGUFReader(file).fields
    return {key: fields[f"tokenizer.ggml.{key}"].contents() for key in ("model", "tokens", "scores", "token_type")}


def test_a_sentencepiece_model_in_json_is_that_model(bases, tmp_path, caplog):
    """The same texts and types; and scores in the same order, which is all that counts of them."""
    from pet.gguf.model import write_model

    found = []
    for name in ("llama", "llama_json"):
        write_model(bases(name), tmp_path / name)
        found.append(vocabulary_in(tmp_path / name))
        # the step that transformers 5 writes leaves such texts as they are
        assert ("in front of texts that begin with one, too" in caplog.text) == (name == "llama_json")
    exact, mine = found
    assert [mine[key] for key in ("model", "tokens", "token_type")] == [
        exact[key] for key in ("model", "tokens", "token_type")
    ]
    made = [n for n, (text, kind) in enumerate(zip(exact["tokens"], exact["token_type"], strict=True)) if kind == 1]
    made = [n for n in made if len(exact["tokens"][n]) > 1]
    assert len(made) > 100
    orders = [sorted(made, key=lambda n, scores=one["scores"]: -scores[n]) for one in found]
    assert orders[0] == orders[1]


def edited(description, kind):
    """A tokenizer.json that joins pieces otherwise than sentencepiece."""
    if kind == "normalizer":
        description["normalizer"] = {"type": "NFKC"}
    merges = description["model"]["merges"]
    made = ["".join(merge) for merge in merges]
    if kind == "missing":
        merges.remove(merges[-1])
    if kind == "apart":
        twice = next(n for n, piece in enumerate(made) if made.count(piece) > 1)
        merges.append(merges.pop(twice))
    return description


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("normalizer", "its step NFKC"),
        ("missing", r"\+ \S+ makes a piece, but is no merge"),
        ("apart", r"the merges that make \S+ are mixed with others"),
    ],
)
def test_a_json_that_is_no_sentencepiece_model_is_refused(bases, tmp_path, kind, words):
    from pet.gguf.model import write_model

    shutil.copytree(bases("llama_json"), tmp_path / "base")
    file = tmp_path / "base/tokenizer.json"
    file.write_text(json.dumps(edited(json.loads(file.read_text()), kind)))
    with pytest.raises(InputError, match=f"is no sentencepiece model.*{words}"):
        write_model(tmp_path / "base", tmp_path / "base.gguf")


def saved(model, directory, config):
    from adapters.saving import save_adapter
    from pet import apply

    apply(model, config)
    save_adapter(model, directory)
    return directory


def adapter_of(kind, base, directory):
    """An adapter of a kind that llama.cpp has no place for."""
    import pet

    settings = {
        "dora": pet.LoRAConfig(rank=2, use_dora=True),
        "whole": pet.LoRAConfig(rank=2, modules_to_save=["norm"]),
        "rows": pet.LoRAConfig(rank=2, trainable_tokens=[3, 4]),
        "embedding": pet.LoRAConfig(rank=2, targets=["embed_tokens"]),
        "head": pet.LoRAConfig(rank=2, targets=["lm_head"]),
        "ia3": pet.IA3Config(),
        "prefix": pet.PrefixConfig(length=2),
    }
    return saved(pet.AutoModel.from_pretrained(base), directory, settings[kind])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("dora", "it has DoRA's magnitudes"),
        ("whole", "it is a weight of its own"),
        ("rows", "it is new rows of an embedding"),
        ("embedding", "one tensor for a tied embedding and head"),
        ("head", "lm_head.weight: llama.cpp has one tensor for a tied"),
        ("ia3", "takes LoRA, this is an adapter of type IA3; merge it"),
        ("prefix", "type PREFIX_TUNING; it cannot be merged either: it"),
    ],
)
def test_what_llama_cpp_cannot_take_is_refused_with_the_reason(bases, tmp_path, kind, words):
    from pet.gguf.adapter import write_adapter

    base = bases("llama3")
    adapter = adapter_of(kind, base, tmp_path / kind)
    with pytest.raises(InputError, match=words):
        write_adapter(adapter, base, tmp_path / "lora.gguf")
    assert not (tmp_path / "lora.gguf").exists()


@pytest.mark.parametrize("name", ["gpt_tiny", "glm_tiny"])
def test_families_without_a_place_are_named(tmp_path, name):
    from pet.gguf.model import write_model

    with pytest.raises(InputError, match="cannot be written; supported: chatglm, glm, glm4, llama"):
        write_model(bundled_models()[name], tmp_path / "base.gguf")
    assert not any(tmp_path.iterdir())


def test_yarns_own_bounds_are_refused(bases, tmp_path):
    from pet.gguf.model import write_model

    directory = shutil.copytree(bases("qwen3"), tmp_path / "base")
    values = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**values, "rope_scaling": {**YARN, "beta_fast": 4.0}}))
    with pytest.raises(InputError, match=r"YaRN with beta_fast 4.0 instead of 32: llama.cpp has no place for it"):
        write_model(directory, tmp_path / "a.gguf")


def test_the_missing_package_is_named(tmp_path, monkeypatch):
    import sys

    from pet.gguf.model import write_model

    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"needs the package gguf: pip install 'mindspore-pet\[gguf\]'"):
        write_model(bundled_models()["llama_tiny"], tmp_path / "base.gguf")


def test_the_command(adapters, bases, tmp_path, capsys):
    from pet.cli.main import main

    base, adapter = str(bases("llama")), str(adapters("llama")[1])
    merged, lora = tmp_path / "merged.gguf", tmp_path / "lora.gguf"
    options = ["--base", base, "--format"]
    assert main(["export", adapter, *options, "gguf", "--dtype", "float32", "--output", str(merged)]) == 0
    assert main(["export", adapter, *options, "gguf-lora", "--output", str(lora)]) == 0
    assert "LoRA on 14 matrices of llama" in capsys.readouterr().out
    from model_zoo.tokenizers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(base).encode(PROMPT)
    assert llama_cpp(merged, ids) == adapters("llama")[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lora.gguf", "merged.gguf"]
    for wrong, words in (
        (["export", base, "--format", "gguf", "--output", str(lora)], "is there already"),
        (["export", base, "--format", "gguf-lora", "--output", str(tmp_path / "x")], "there is no adapter to"),
        (["export", base, "--format", "ggfu", "--output", str(tmp_path / "x")], "did you mean 'gguf'"),
        (["export", base, "--format", "gguf", "--merged", "--output", str(tmp_path / "x")], "give one of them"),
        (["export", base, "--format", "gguf", "--dtype", "q4_k", "--output", str(tmp_path / "x")], "no type of a GGUF"),
    ):
        assert main(wrong) == 2
        assert words in capsys.readouterr().err


def test_runs_of_spaces_whose_merges_are_mixed_share_a_score():
    """As sentencepiece gives them one, published files have their merges by the length of the first part."""
    from pet.gguf.vocabulary import _scores

    merges = [("▁", "t"), ("▁▁▁", "▁"), ("▁▁", "▁▁"), ("▁▁", "▁"), ("▁", "▁▁▁"), ("▁", "▁▁"), ("▁", "▁")]
    scores = _scores(None, merges)
    assert scores["▁t"] > scores["▁▁▁▁"] == scores["▁▁▁"] > scores["▁▁"]
