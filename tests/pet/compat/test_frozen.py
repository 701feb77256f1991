"""Job files that train some weights of a base: those that LLaMA-Factory and axolotl train."""

from __future__ import annotations

import pytest
import yaml

from adapters.patterns import names_like
from model_zoo.counting import parameter_shapes
from model_zoo.errors import InputError
from pet.compat.yaml_files import convert, load_any
from pet.names import model_config

BASE = "llama_tiny"
NAMES = list(parameter_shapes(model_config(BASE)))
"""Four layers, whose tensors are those of LLaMA, and a head of its own."""


def layers(*numbers, within=""):
    return {name for name in NAMES if any(f".layers.{number}.{within}" in name for number in numbers)}


def written(tmp_path, given):
    rows = tmp_path / "rows.json"
    rows.write_text('[{"instruction": "Who?", "output": "Me."}]')
    file = {"model_name_or_path": BASE, "finetuning_type": "freeze", "dataset": str(rows), "output_dir": "saves"}
    if "unfrozen_parameters" in given:
        file = {"base_model": BASE, "datasets": [{"path": str(rows), "type": "alpaca"}], "output_dir": "out"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**file, **given}))
    return tmp_path / "job.yaml"


@pytest.mark.parametrize(
    ("given", "trained"),
    [
        ({}, layers(2, 3)),
        ({"freeze_trainable_layers": 1}, layers(3)),
        ({"freeze_trainable_layers": -3}, layers(0, 1, 2)),
        ({"freeze_trainable_layers": 99}, layers(0, 1, 2, 3)),
        ({"freeze_trainable_layers": 2, "use_llama_pro": True}, layers(1, 3)),
        ({"freeze_trainable_layers": 1, "freeze_trainable_modules": "mlp"}, layers(3, within="mlp.")),
        (
            {
                "freeze_trainable_layers": 1,
                "freeze_trainable_modules": "mlp, self_attn",
                "freeze_extra_modules": "norm,lm_head",
            },
            layers(3, within="mlp.")
            | layers(3, within="self_attn.")
            | {n for n in NAMES if "norm" in n}
            | {"lm_head.weight"},
        ),
        ({"unfrozen_parameters": ["^lm_head.weight$", "model.layers.[01]."]}, layers(0, 1) | {"lm_head.weight"}),
        ({"unfrozen_parameters": ["model.language_model.layers.3.*"]}, layers(3)),
        (
            {"unfrozen_parameters": ["layers.3"] + ["^model\\.norm.+"]},
            {"model.norm.weight"},
        ),  # from the name's beginning on
        ({"unfrozen_parameters": "model.embed_tokens", "freeze_mm_modules": None}, {"model.embed_tokens.weight"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_the_weights_that_are_trained(tmp_path, given, trained):
    recipe = load_any(written(tmp_path, given))
    assert recipe.adapter.method == "none"
    assert {name for pattern in recipe.adapter.trained for name in names_like(pattern, NAMES)} == trained
    assert yaml.safe_load(convert(written(tmp_path, given))[0])["adapter"]["trained"] == recipe.adapter.trained


def test_added_layers_have_the_adapter_alone(tmp_path):
    given = {"finetuning_type": "lora", "use_llama_pro": True, "freeze_trainable_layers": 2}
    recipe = load_any(written(tmp_path, given))
    assert (recipe.adapter.method, recipe.adapter.layers) == ("lora", [1, 3])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"freeze_trainable_modules": "experts"}, "adapter.trained: '.*experts.*' matches no weight"),
        (
            {"freeze_trainable_layers": 3, "use_llama_pro": True},
            "3: the base has 4 layers, which use_llama_pro divides",
        ),
        ({"freeze_trainable_layers": "many"}, "finetuning_type: .*many.* is not a value that it takes"),
        ({"model_name_or_path": "org/base"}, "goes by the layers of the base"),
        ({"finetuning_type": "full", "use_llama_pro": True}, "use_llama_pro with finetuning_type: full"),
        ({"unfrozen_parameters": ["^model.embed_tokens.weight$[:32000]"]}, "a weight is trained as a whole"),
        ({"unfrozen_parameters": ["experts.*"]}, "unfrozen_parameters: experts.*: the base has no such weights"),
    ],
    ids=str,
)
def test_weights_that_cannot_be_trained_alone(tmp_path, given, problem):
    with pytest.raises(InputError, match=problem):
        load_any(written(tmp_path, given))


def test_what_the_base_lacks_is_noted(tmp_path, caplog):
    given = {"unfrozen_parameters": ["lm_head", "model.mtp.*"]}
    recipe = load_any(written(tmp_path, given))
    assert recipe.adapter.trained == ["re:lm_head.*"] and "model.mtp.*: the base has no such weights" in caplog.text
