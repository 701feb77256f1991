"""What tests of this directory share."""

from __future__ import annotations

import shutil
import warnings

import mindspore as ms
import pytest
from peft_pairs import Pair

import pet
from adapters.registry import registry


@pytest.fixture(params=(ms.PYNATIVE_MODE, ms.GRAPH_MODE), ids=("pynative", "graph"))
def mode(request):
    """MindSpore's two ways to run, one after the other."""
    ms.set_context(mode=request.param)
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture(scope="module")
def models(fixtures):
    """Opens each base of the fixtures once for a file."""
    made = {}

    def model(name):
        if name not in made:
            made[name] = pet.AutoModel.from_pretrained(fixtures / name)
        return made[name]

    return model


@pytest.fixture
def llama(models):
    """A LLaMA that loses its adapters behind a test."""
    model = models("llama_gqa")
    yield model
    for name in pet.list_adapters(model):
        pet.delete_adapter(model, name)


@pytest.fixture
def directory(fixtures, tmp_path):
    """An adapter of `llama` as PEFT wrote it, to be changed."""
    target = tmp_path / "adapter"
    shutil.copytree(fixtures / "llama_gqa" / "lora", target)
    return target


@pytest.fixture(scope="module")
def base(fixtures):
    return pet.AutoModel.from_pretrained(fixtures / "llama_gqa")


@pytest.fixture
def model(base):
    """The same base for all tests of a file, each of which gets it bare."""
    yield base
    if registry(base).merged_names:
        pet.unmerge(base)
    for name in pet.list_adapters(base):
        pet.delete_adapter(base, name)


@pytest.fixture
def quiet():
    """For files of whose warnings none is of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def pairs(fixtures):
    """Opens each base in both libraries once for a file."""
    made = {}

    def pair(family):
        if family not in made:
            made[family] = Pair(fixtures / family)
        return made[family]

    return pair
