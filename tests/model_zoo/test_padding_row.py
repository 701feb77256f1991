"""The row of the padding's id learns nothing from lookups, in the families whose own implementation has it so."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from model_zoo.auto import AutoModel, config_class
from model_zoo.checkpoint.reading import read_config
from model_zoo.engine import available, cells
from model_zoo.graph import Graph
from model_zoo.layers import Embedding

IDS = np.array([[1, 2, 2], [3, 2, 0]], np.int32)


def gradient(fast: bool, compiled: bool, padding: int) -> np.ndarray:
    cell = Embedding(5, 3, output_scale=2.0, padding_row=padding)
    cell.weight.set_data(Tensor(np.arange(15, dtype=np.float32).reshape(5, 3)))
    if fast:
        cell.fast, cell.kernel = True, cells.native("rows_of", padding=padding)
    direction = Tensor(np.arange(18, dtype=np.float32).reshape(2, 3, 3) + 1)

    def weighted(ids):
        return (cell(ids) * direction).sum()

    differentiate = ms.value_and_grad(weighted, None, [cell.weight])
    _, (found,) = (Graph(differentiate) if compiled else differentiate)(Tensor(IDS))
    return found.asnumpy()


@pytest.mark.parametrize("compiled", (False, True))
@pytest.mark.parametrize("fast", (False, pytest.param(True, marks=pytest.mark.skipif(not available(), reason="no C"))))
def test_every_path_leaves_the_row_out(fast, compiled):
    expected = np.zeros((5, 3), np.float32)
    np.add.at(expected, IDS, 2 * np.arange(18, dtype=np.float32).reshape(2, 3, 3) + 2)
    with cells.Eagerly():
        np.testing.assert_array_equal(gradient(fast, compiled, -1), expected)
        expected[2] = 0
        np.testing.assert_array_equal(gradient(fast, compiled, 2), expected)


SIZES = {"vocab_size": 97}
ROWS = {
    "llama": ({}, -1),
    "qwen2": ({"pad_token_id": 5}, 5),
    "qwen3": ({"pad_token_id": 0}, 0),
    "mistral": ({"pad_token_id": None}, -1),
    "gemma2": ({}, 0),
    "gemma3_text": ({"pad_token_id": None}, -1),
    "glm": ({}, -1),  # 151329, which this vocabulary lacks
    "glm4": ({"vocab_size": 151552}, 151329),
    "gpt2": ({"pad_token_id": 5}, -1),
}


@pytest.mark.parametrize("kind", ROWS)
def test_the_row_is_that_of_the_family(kind):
    changes, row = ROWS[kind]
    values = {"model_type": kind, **SIZES, **changes}
    assert config_class(values).from_dict(values).padding_row == row


def test_minus_one_is_the_last_row_as_torch_counts():
    values = {"model_type": "llama", **SIZES, "pad_token_id": -1}
    assert config_class(values).from_dict(values).padding_row == 96


def test_a_multimodal_files_row_is_its_text_models():
    text = {**SIZES, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    values = {"model_type": "gemma3", "pad_token_id": 9, "text_config": text}
    assert config_class(values).from_dict(values).padding_row == 0
    text["pad_token_id"] = 7
    assert config_class(values).from_dict(values).padding_row == 7


def test_chatglm_has_none(fixtures):
    for name in ("chatglm1", "chatglm2"):
        values = {**read_config(fixtures / name), "pad_token_id": 3}
        assert config_class(values).from_dict(values).padding_row == -1


def test_the_cell_has_the_configurations_row(fixtures):
    values = {**read_config(fixtures / "llama_gqa"), "pad_token_id": 4}
    assert AutoModel.from_config(values).model.embed_tokens.padding_row == 4
