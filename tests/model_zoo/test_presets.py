"""Presets and the counts that are made from a configuration alone."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys

import mindspore as ms
import pytest

from adapters.patterns import named
from model_zoo.auto import model_class
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.counting import config_of, layout_of, parameter_shapes, sizes, tied_head
from model_zoo.errors import InputError
from model_zoo.families import PRESETS, config_class

FIXTURES = ("chatglm1", "chatglm2", "gemma2", "gemma3", "glm", "glm4_0414", "gpt2", "llama_gqa", "llama_mha")


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("gpt2", 124_439_808),
        ("gpt2_small", 124_439_808),
        ("gpt2_medium", 354_823_168),
        ("gpt2_large", 774_030_080),
        ("gpt2_xl", 1_557_611_200),
        ("llama_7b", 6_738_415_616),
        ("llama2_7b", 6_738_415_616),
        ("llama_13b", 13_015_864_320),
        ("llama_65b", 65_285_660_672),
        ("llama2_70b", 68_976_648_192),
        ("llama3_8b", 8_030_261_248),
        ("llama3_1_8b", 8_030_261_248),
        ("llama3_2_1b", 1_235_814_400),
        ("qwen2_5_0_5b", 494_032_768),
        ("qwen2_5_1_5b", 1_543_714_304),
        ("qwen2_5_3b", 3_085_938_688),
        ("qwen2_5_7b", 7_615_616_512),
        ("qwen2_5_14b", 14_770_033_664),
        ("qwen2_5_32b", 32_763_876_352),
        ("qwen2_5_72b", 72_706_203_648),
        ("deepseek_r1_qwen_1_5b", 1_777_088_000),
        ("deepseek_r1_qwen_7b", 7_615_616_512),
        ("deepseek_r1_qwen_14b", 14_770_033_664),
        ("deepseek_r1_qwen_32b", 32_763_876_352),
        ("deepseek_r1_llama_8b", 8_030_261_248),
        ("deepseek_r1_llama_70b", 70_553_706_496),
        ("mistral_7b", 7_241_732_096),
        ("mistral_7b_v0_3", 7_248_023_552),
        ("qwen3_30b_a3b", 30_532_122_624),
        ("qwen3_235b_a22b", 235_093_634_560),
        ("gemma2_2b", 2_614_341_888),
        ("gemma2_9b", 9_241_705_984),
        ("gemma2_27b", 27_227_128_320),
        ("gemma3_270m", 268_098_176),
        ("gemma3_1b", 999_885_952),
        ("gemma3_4b", 3_880_263_168),
        ("gemma3_12b", 11_766_034_176),
        ("gemma3_27b", 27_009_346_304),
        ("glm_6b", 6_173_286_400),
        ("glm2_6b", 6_243_584_000),
        ("glm3_6b", 6_243_584_000),
        ("glm4_9b", 9_399_951_360),
    ],
)
def test_published_parameter_counts(name, parameters):
    assert sum(map(math.prod, parameter_shapes(PRESETS[name]).values())) == parameters


def test_all_names_are_there():
    names = "gpt2 gpt2_13b gpt2_52b glm_6b glm2_6b glm3_6b glm4_9b llama_7b llama_13b llama_65b llama2_7b llama2_13b "
    names += "llama2_70b llama3_8b llama3_70b llama3_2_1b"
    assert set(names.split()) <= set(PRESETS)


@pytest.mark.parametrize("name", ("gpt2", "llama_7b", "glm4", "glm_6b", "glm2_6b", "gemma2_2b", "gemma3_1b"))
def test_a_familys_table_names_cells_that_it_has(name):
    values = PRESETS.get(name, {"model_type": name})
    config = config_class(values).from_dict(values)
    family, cells = config.family, config.cells()
    for path in (*family.embeddings, *({family.head} - {name.removesuffix(".weight") for name in family.tied})):
        assert path in cells
    assert {path for path, cell in cells.items() if cell.kind == "embedding"} == set(family.embeddings)
    layer = [path for path, cell in cells.items() if path.startswith(f"{family.layers}.0.") and len(cell.weight) == 2]
    for names in (family.attention + family.mlp, family.column + family.row):  # each projection once
        assert sorted(path for name in names for path in layer if named(path, name)) == sorted(layer)
    rows = sum(
        cells[path].shapes["weight"][0 if not cells[path].transposed else 1]
        for path in layer
        for name in set(family.mlp) & set(family.column)
        if named(path, name)
    )
    assert rows == config.dims.ffn * (2 if family.gated else 1)
    assert all(any(named(path, name) for path in layer) for name in (*family.default_targets, *family.fused))


VARIANTS = {
    "llama": [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 8},
        {"model_type": "qwen2"},
        {"model_type": "mistral"},
    ],
    "gemma2": [{}, {"tie_word_embeddings": False}],
    "gemma3": [{}, {"attention_bias": True}],
    "gpt2": [{}, {"tie_word_embeddings": False}, {"n_inner": 24}],
    "glm4": [{}, {"tie_word_embeddings": True}, {"attention_bias": False}, {"head_dim": 8}],
    "chatglm": [{}, {"inner_hidden_size": 40}],
    "chatglm2": [{}, {"add_qkv_bias": False}, {"kv_channels": 32}],
}


def variants():
    for name in FIXTURES:
        kinds = {"chatglm1": "chatglm", **{kind: kind for kind in ("chatglm2", "gpt2", "gemma2", "gemma3")}}
        kind = kinds.get(name, "llama" if name.startswith("llama") else "glm4")
        for change in VARIANTS[kind]:
            yield pytest.param(name, change, id=f"{name}-{'-'.join(map(str, change.values())) or 'plain'}")


@pytest.mark.parametrize("name, change", list(variants()))
def test_shapes_equal_the_real_model(name, change, fixtures):
    values = {**read_config(fixtures / name), **change}
    config = config_class(values)
    model = model_class(config)(config.from_dict(values), dtype=ms.float32)
    expected = {parameter.name: tuple(parameter.shape) for parameter in model.get_parameters()}
    assert parameter_shapes(values) == expected
    assert parameter_shapes(model.config.to_dict()) == expected
    head = tied_head(values)
    assert (head is None) == any(tensor.endswith(("lm_head.weight", "output_layer.weight")) for tensor in expected)
    if head is not None:
        assert head[0] not in expected and head[1] in expected
        assert model.family.tied[head[0]] == head[1]


@pytest.mark.parametrize("name", FIXTURES)
def test_shapes_equal_the_file(name, fixtures):
    values = read_config(fixtures / name)
    shapes = parameter_shapes(values)
    with Checkpoint(fixtures / name) as checkpoint:
        for tensor, shape in shapes.items():
            assert checkpoint.shape(tensor) == shape
    transposed = [cell for cell in config_of(values).cells().values() if cell.transposed]
    assert bool(transposed) == (name == "gpt2") and all(len(cell.weight) == 2 for cell in transposed)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "bert"}, "model_type is 'bert'; supported: gpt2"),
        ({"hidden_size": None}, "hidden_size must be a positive integer, it is None"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3; a whole number"),
        ({"vocab_size": 3.5}, "vocab_size is 3.5; a whole number"),
        ({"num_key_value_heads": 3}, "num_attention_heads 32 is no multiple of num_key_value_heads 3"),
    ],
)
def test_bad_configuration(change, message):
    with pytest.raises(InputError, match=message):
        sizes({**copy.deepcopy(PRESETS["llama_7b"]), **change})


def test_layouts_of_one_model_type():
    assert layout_of(PRESETS["glm_6b"]) == "chatglm"
    assert layout_of(PRESETS["glm2_6b"]) == "chatglm2"


def test_counting_needs_no_mindspore():
    code = (
        "import json, sys; from model_zoo.families import PRESETS; from model_zoo.counting import parameter_shapes; "
        "print(json.dumps([sum(map(len, map(parameter_shapes, PRESETS.values()))), 'mindspore' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    total, imported = json.loads(done.stdout)
    assert total > 10_000 and not imported
