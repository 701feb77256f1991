"""What vLLM and MindIE can serve passes; all else is refused with the reason, before anything is written."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import pet
from adapters.peft_config import WEIGHTS
from adapters.saving import save_adapter
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, write_file
from model_zoo.errors import InputError
from pet.cli.main import main
from pet.companions import generation_settings
from pet.model_card import _facts
from pet.names import bundled_models
from pet.recipe.loading import load
from pet.serving import ENGINES, check_served


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(name of a base, configuration) → adapter directory."""
    root, models = tmp_path_factory.mktemp("adapters"), {}

    def make(base, config):
        model = models.setdefault(base, pet.AutoModel.from_pretrained(bundled_models()[base]))
        directory = root / str(len(list(root.iterdir())))
        pet.apply(model, config)
        save_adapter(model, directory)
        pet.delete_adapter(model, "default")
        return directory

    return make


@pytest.mark.parametrize(
    ("engine", "base", "settings"),
    [
        ("vllm", "llama_tiny", {"rank": 4}),
        ("vllm", "llama_tiny", {"rank": 4, "targets": "all-linear"}),
        ("vllm", "glm4_tiny", {"rank": 4}),
        ("mindie", "llama_tiny", {"rank": 4}),
        ("mindie", "llama_tiny", {"rank": 4, "targets": "all-linear"}),
    ],
)
def test_plain_lora_is_served(made, base, settings, engine):
    adapter = made(base, pet.LoRAConfig(**settings))
    assert check_served(adapter, bundled_models()[base], ENGINES[engine]) == 4


PATTERNS = {"rank": 4, "rank_pattern": {".*v_proj": 2}}
LAST_NAMES = {"rank": 4, "rank_pattern": {"self_attn.v_proj": 2}, "alpha_pattern": {"self_attn.q_proj": 3.0}}
EMBEDDING = {"rank": 4, "targets": ["q_proj", "embed_tokens"]}


@pytest.mark.parametrize(
    ("engine", "settings", "words"),
    [
        (
            "vllm",
            {"rank": 4, "use_dora": True},
            "vLLM cannot take it as an adapter: it has DoRA's magn.*; merge it",
        ),
        ("mindie", {"rank": 4, "use_dora": True}, "MindIE cannot take it as an adapter: it has DoRA's magnitudes"),
        ("vllm", {"rank": 4, "modules_to_save": ["norm"]}, "model.norm.weight: .* it is a weight of its own"),
        ("vllm", {"rank": 513}, "rank 513 is above its limit of 512"),
        ("vllm", PATTERNS, "one alpha and one rank for all matrices"),
        ("vllm", LAST_NAMES, "one alpha and one rank for all matrices"),
        ("vllm", {"rank": 4, "bias": "all"}, "it takes bias 'none' only; adapter_config.json has 'all'"),
        ("mindie", PATTERNS, "by a matrix's last two names, .* would scale model.layers.0.self_attn.v_proj.weight"),
        ("mindie", {"rank": 1025}, "rank 1025 is above its limit of 1024"),
        ("mindie", {"rank": 4, "alpha": 2000}, "alpha 2000 is above its limit of 1024"),
        ("mindie", EMBEDDING, "takes no LoRA on model.embed_tokens.weight"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(made, engine, settings, words):
    adapter = made("llama_tiny", pet.LoRAConfig(**settings))
    with pytest.raises(InputError, match=words):
        check_served(adapter, bundled_models()["llama_tiny"], ENGINES[engine])


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("vllm", {"rank": 4, "use_rslora": True}),
        ("vllm", EMBEDDING),
        ("vllm", {"rank": 512}),
        ("mindie", LAST_NAMES),
        ("mindie", {"rank": 4, "use_rslora": True}),
        ("mindie", {"rank": 4, "bias": "all"}),
        ("mindie", {"rank": 513}),
    ],
)
def test_what_one_of_them_reads_is_not_refused_for_it(made, engine, settings):
    adapter = made("llama_tiny", pet.LoRAConfig(**settings))
    assert check_served(adapter, bundled_models()["llama_tiny"], ENGINES[engine]) == settings["rank"]


def test_prefixes_and_other_families_are_refused(made):
    prefix = made("llama_tiny", pet.PrefixConfig(length=2))
    with pytest.raises(InputError, match=r"vLLM takes LoRA, this is .* PREFIX_TUNING; it cannot be merged either"):
        check_served(prefix, bundled_models()["llama_tiny"], ENGINES["vllm"])
    gpt = made("gpt_tiny", pet.LoRAConfig(rank=4))
    with pytest.raises(
        InputError, match=r"vLLM serves no adapters on a base of type 'gpt2' \(gpt family\), only on llama"
    ):
        check_served(gpt, bundled_models()["gpt_tiny"], ENGINES["vllm"])
    chatglm = made("glm4_tiny", pet.LoRAConfig(rank=4))
    with pytest.raises(InputError, match="MindIE serves no adapters on a base of type 'glm'"):
        check_served(chatglm, bundled_models()["glm4_tiny"], ENGINES["mindie"])


def test_tensors_under_other_names_than_peft_s_are_refused_with_a_way(made, tmp_path):
    """They open here, but not elsewhere; what is saved here does."""
    adapter, base = made("llama_tiny", pet.LoRAConfig(rank=4)), bundled_models()["llama_tiny"]
    other = tmp_path / "other"
    shutil.copytree(adapter, other)
    with SafetensorsFile(adapter / WEIGHTS) as file:
        tensors = {name.replace(".weight", ".default.weight"): file.read(name) for name in file.tensors}
    write_file(other / WEIGHTS, tensors, {"format": "pt"})
    with pytest.raises(InputError, match=r"it takes the names and the matrices that PEFT writes now.*load and save it"):
        check_served(other, base, ENGINES["vllm"])
    model = pet.AutoModel.from_pretrained(base)
    pet.load_adapter(model, other)
    save_adapter(model, tmp_path / "saved")
    assert check_served(tmp_path / "saved", base, ENGINES["vllm"]) == 4


@pytest.mark.parametrize(
    ("values", "targets", "words"),
    [
        ({"model_type": "qwen2"}, ["q_proj", "lm_head"], "takes no LoRA on lm_head.weight"),
        ({"model_type": "gemma2"}, ["embed_tokens"], "takes no LoRA on model.embed_tokens.weight"),
        ({"model_type": "glm4"}, "all-linear", "takes no LoRA on model.layers.0.mlp.gate_up_proj.weight"),
        ({"model_type": "qwen3", "head_dim": 16}, ["q_proj", "lm_head", "embed_tokens"], None),
        ({"model_type": "gemma2"}, "all-linear", None),
    ],
    ids=lambda one: one.get("model_type") if isinstance(one, dict) else None,
)
def test_where_vllm_takes_lora_depends_on_the_model(tmp_path, values, targets, words):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    model = pet.AutoModel.from_config({**sizes, **heads, **values})
    model.save_pretrained(tmp_path / "base")
    pet.apply(model, pet.LoRAConfig(rank=2, targets=targets))
    save_adapter(model, tmp_path / "adapter")
    if words is None:
        assert check_served(tmp_path / "adapter", tmp_path / "base", ENGINES["vllm"]) == 2
        return
    with pytest.raises(InputError, match=words):
        check_served(tmp_path / "adapter", tmp_path / "base", ENGINES["vllm"])


def test_mindie_gets_every_projection(made, tmp_path, capsys):
    """Its loaders pass over q and v, or end, where k has no LoRA."""
    adapter = made("llama_tiny", pet.LoRAConfig(rank=4, layers=[1], rank_pattern={"self_attn.v_proj": 2}))
    model = pet.AutoModel.from_pretrained(bundled_models()["llama_tiny"])
    config, ids = model.config, np.array([[5, 9, 70, 8]])
    with SafetensorsFile(adapter / "adapter_model.safetensors") as file:
        own, metadata = {name: file.read(name) for name in file.tensors}, file.metadata
    written = {name: np.ones_like(value) * np.float32(0.01) for name, value in own.items()}
    write_file(adapter / "adapter_model.safetensors", written, metadata)
    options = ["--base", "llama_tiny", "--format", "mindie", "--output", str(tmp_path / "served")]
    assert main(["export", str(adapter), *options]) == 0
    places = [path for path in config.cells() if path.rpartition(".")[2].endswith("_proj")]
    assert f"; {len(places) - 2} projections without LoRA have one of zeros" in capsys.readouterr().out
    with SafetensorsFile(tmp_path / "served" / "adapter_model.safetensors") as file:
        found = {name: file.read(name) for name in file.tensors}
        assert file.metadata == metadata
    assert set(found) == {f"base_model.model.{path}.lora_{part}.weight" for path in places for part in "AB"}
    for name, value in found.items():
        assert np.array_equal(value, written.get(name, np.zeros_like(value)))
    pet.load_adapter(model, adapter)
    expected = model(ids).asnumpy()
    again = pet.AutoModel.from_pretrained(bundled_models()["llama_tiny"])
    plain = again(ids).asnumpy()
    pet.load_adapter(again, tmp_path / "served")
    assert np.abs(expected - plain).max() > 1e-3
    assert np.abs(again(ids).asnumpy() - expected).max() < 1e-5


def test_the_command_writes_peft_form_with_a_card_or_nothing(made, tmp_path, capsys):
    adapter = made("llama_tiny", pet.LoRAConfig(rank=4))
    options = ["--base", "llama_tiny", "--format", "vllm", "--output"]
    assert main(["export", str(adapter), *options, str(tmp_path / "served")]) == 0
    for name in ("adapter_config.json", "adapter_model.safetensors", "tokenizer.model", "generation_config.json"):
        assert (tmp_path / "served" / name).is_file()
    weights = "adapter_model.safetensors"
    assert (tmp_path / "served" / weights).read_bytes() == (adapter / weights).read_bytes()
    card = (tmp_path / "served" / "README.md").read_text()
    assert "vllm serve llama_tiny --enable-lora --max-lora-rank 8 --lora-modules tuned=." in card
    dora = made("llama_tiny", pet.LoRAConfig(rank=4, use_dora=True))
    assert main(["export", str(dora), *options, str(tmp_path / "not")]) == 2
    assert "DoRA" in capsys.readouterr().err
    assert not (tmp_path / "not").exists()
    assert main(["export", str(dora), "--base", "llama_tiny", "--output", str(tmp_path / "dora")]) == 0
    assert "vLLM cannot serve it beside its base: " in (tmp_path / "dora" / "README.md").read_text()


@pytest.mark.parametrize(
    "base, what", [("glm_tiny", "the model and the tokenizer"), ("glm4_tiny", "the tokenizer"), ("llama_tiny", "")]
)
def test_a_card_names_what_is_opened_by_published_code_alone(base, what, made, tmp_path):
    adapter = made(base, pet.LoRAConfig(rank=4))
    assert main(["export", str(adapter), "--base", base, "--output", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out/README.md").read_text()
    assert (f"open {what} by the code" in card) == ("trust_remote_code=True" in card) == bool(what)


@pytest.mark.parametrize("asked", [["Q:", "\n\n"], []])
def test_what_ends_the_answers_of_a_run_goes_with_its_export(asked, tmp_path):
    """In the place of the base's own, for programs that read it, and for readers of the card."""
    directory = tmp_path / "base"
    shutil.copytree(bundled_models()["llama_tiny"], directory)
    (directory / "generation_config.json").write_text('{"eos_token_id": 2, "stop_strings": ["own"]}')
    given = {"model.path": str(directory), "generation.stop": asked}
    recipe, tokenizer = load("llama_lora", given), pet.AutoTokenizer.from_pretrained(directory)
    found = generation_settings(directory, tokenizer, recipe)
    assert found["stop_strings"] == (asked or ["own"])
    assert (found["max_new_tokens"], found["do_sample"]) == (96, False)
    shown = [line for line in _facts(recipe, None) if "answers end at" in line]
    assert shown == (['| answers end at | `"Q:"`, `"\\n\\n"` |'] if asked else [])


def test_no_end_is_no_empty_list(tmp_path):
    """transformers' `generate` ends with an IndexError where generation_config.json has one."""
    tokenizer = pet.AutoTokenizer.from_pretrained(bundled_models()["llama_tiny"])
    tokenizer.eos_token_ids = []
    assert generation_settings(tmp_path, tokenizer, None)["eos_token_id"] is None
