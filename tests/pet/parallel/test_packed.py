"""Packed weights in tensor parallelism: each member has its rows or columns with the whole's numbers."""

from __future__ import annotations

import functools
import types

import numpy as np
import pytest

import pet
from adapters.lora import LoRAConfig
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization
from model_zoo.quantization.cells import quantized_cells
from model_zoo.quantization.loading import fill
from pet.meta_model import MetaModel
from pet.parallel.mesh import Mesh
from pet.parallel.shares import shares
from pet.parallel.specs import ShardSpecs
from pet.parallel.stages import cut_stage
from pet.parallel.tensor import cut_packed
from pet.planning import Work

FAMILIES = ("llama_gqa", "gpt2", "chatglm1", "chatglm2", "glm", "glm4_0414", "qwen3")


KINDS = (Quantization("nf4", double=True), Quantization("int8"))


@pytest.fixture(scope="module")
def parts(fixtures):
    """A member's packed cells, cut and, where they were not loaded before, filled; and the whole's. Each is packed
    once."""

    def packed(family, quantization):
        return quantized_cells(pet.AutoModel.from_pretrained(str(fixtures / family), quantization=quantization))

    whole = functools.cache(packed)

    @functools.cache
    def cut(family, quantization, place, loaded):
        specs = ShardSpecs(pet.AutoConfig.from_pretrained(str(fixtures / family)), 2)
        group, found = types.SimpleNamespace(size=2, place=place), {}
        with Checkpoint(fixtures / family) as checkpoint:
            for name, cell in packed(family, quantization).items():
                path = name.removesuffix(".weight")
                division = specs.of_base(path, "weight")[1]
                if division is None:
                    continue
                cut_packed(cell, path, division, group, loaded)
                if not loaded:
                    fill(cell, checkpoint, name)
                found[name] = cell, division, whole(family, quantization)[name]
        return found

    return cut


@pytest.mark.parametrize("family", FAMILIES)
def test_a_part_has_the_numbers_of_the_whole(parts, family):
    for quantization in KINDS:
        for place, loaded in ((0, True), (1, True), (1, False)):
            found = parts(family, quantization, place, loaded)
            assert len(found) > 4
            for cell, division, whole in found.values():
                mine = cell.published()
                assert np.array_equal(mine, division.take(whole.published(), place))
                assert cell.shape == (mine.T.shape if cell.published_transposed else mine.shape)


@pytest.mark.parametrize("family", FAMILIES)
def test_plans_are_what_is_held(parts, family, fixtures):
    """Bytes of a shard, whose blocks are smaller and whose factors are wide."""
    meta_model, config = MetaModel(read_config(fixtures / family)), LoRAConfig()
    for quantization in KINDS:
        work = Work(meta_model, config, 1, 8, "float32", quantization=quantization)
        planned = {share.name: work.bytes(share) for share in shares(meta_model, config, 2).shares}
        for name, (cell, _, _) in parts(family, quantization, 1, True).items():
            assert planned[name] == sum(array.nbytes for array in cell.arrays().values())


def test_stages_are_those_of_the_unpacked_model(tmp_path):
    """By what weights stand for: half as many bytes would move layers to the stages that hold embedding and head."""
    config = {"model_type": "llama", "vocab_size": 480, "hidden_size": 64, "intermediate_size": 128}
    config |= {"num_hidden_layers": 5, "num_attention_heads": 2, "max_position_embeddings": 32}
    pet.AutoModel.from_config(config).save_pretrained(tmp_path)
    planned = list(shares(MetaModel(config), LoRAConfig(rank=2), 1, 3).layers)
    assert [len(stage) for stage in planned] == [2, 2, 1]
    for quantization in (None, Quantization("nf4"), Quantization("int8")):
        model = pet.AutoModel.from_pretrained(str(tmp_path), quantization=quantization)
        pet.apply_lora(model, rank=2)
        assert cut_stage(model, Mesh(1, 1, 3)) == planned


def test_blocks_that_would_be_cut_too_small_are_refused_with_the_reason(fixtures, tmp_path):
    config = {"model_type": "llama", "vocab_size": 40, "hidden_size": 24, "intermediate_size": 20}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}
    pet.AutoModel.from_config(config).save_pretrained(tmp_path)
    model = pet.AutoModel.from_pretrained(str(tmp_path), quantization=Quantization("nf4"))
    group, path = types.SimpleNamespace(size=2, place=0), "model.layers.0.mlp.down_proj"
    cell = quantized_cells(model)[f"{path}.weight"]
    division = ShardSpecs(model.config, 2).of_base(path, "weight")[1]
    with pytest.raises(
        InputError, match=r"parallel.tensor: .*down_proj: its blocks of 64 would be cut into pieces of 2"
    ):
        cut_packed(cell, path, division, group, True)
