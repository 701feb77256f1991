"""What vLLM and MindIE can serve passes; all else is refused with the reason, before anything is written."""

from __future__ import annotations

import pytest

import pet
from adapters.saving import save_adapter
from model_zoo.errors import InputError
from pet.cli.main import main
from pet.names import bundled_models
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
    ("base", "settings"),
    [
        ("llama_tiny", {"rank": 4}),
        ("llama_tiny", {"rank": 4, "targets": "all-linear"}),
        ("glm4_tiny", {"rank": 4}),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_plain_lora_is_served(made, base, settings, engine):
    adapter = made(base, pet.LoRAConfig(**settings))
    assert check_served(adapter, bundled_models()[base], ENGINES[engine]) == 4


PATTERNS = {"rank": 4, "rank_pattern": {".*v_proj": 2}}
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
        ("mindie", {"rank": 4, "use_rslora": True}, "does not read use_rslora"),
        ("mindie", EMBEDDING, "projections only, not on model.embed_tokens.weight"),
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
        ("mindie", PATTERNS),
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
    with pytest.raises(InputError, match="vLLM serves no adapters on a base of the gpt family"):
        check_served(gpt, bundled_models()["gpt_tiny"], ENGINES["vllm"])


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
