"""Runs in a directory of their own, perplexity by NumPy, job files, tokenizers and prompts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import yaml
from job_files import JOBS, write
from mindformers_jobs import JOB
from recipe_jobs import changed

from model_zoo import tokenizers
from pet.compat.mindformers import AutoTokenizer
from pet.data.encode import Encoder
from pet.data.settings import DataSettings


@pytest.fixture(autouse=True)
def own_directory(tmp_path, tmp_path_factory, monkeypatch, own_cache):
    """Runs write to ``./output`` and keep their tokenised data below the user's cache; here both are the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", own_cache(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def perplexity(numpy_loss):
    """Perplexity of token rows, all of whose tokens are labels."""
    return lambda model, rows: float(np.exp(numpy_loss(model, [(row, [True] * len(row)) for row in rows])))


@pytest.fixture
def lora_file():
    """Writes a MindFormers file of LoRA matrices."""
    from model_zoo.checkpoint.ckpt_io import write_ckpt

    def write(path, matrices, rank, prefix="mindpet", same=False):
        """A file of LoRA matrices for {name: (out, in)}; B is not zero."""
        random = np.random.default_rng(0)
        shared = random.normal(size=(rank, next(iter(matrices.values()))[1])).astype(np.float32)
        arrays = {}
        for name, (out, width) in matrices.items():
            a = shared if same else random.normal(size=(rank, width)).astype(np.float32)
            arrays[f"{name}.{prefix}_delta_lora_a"] = a
            arrays[f"{name}.{prefix}_delta_lora_b"] = random.normal(size=(out, rank)).astype(np.float32)
        write_ckpt(path, {name: ("float32", array.shape) for name, array in arrays.items()}, arrays.__getitem__)
        return arrays

    return write


@pytest.fixture(params=JOBS)
def job(request, tmp_path):
    """Writes a job file of a system, with keys beyond the few that it needs."""
    return lambda **more: write(
        tmp_path / "job.yaml", yaml.safe_dump({**JOBS[request.param], "output_dir": str(tmp_path / "out"), **more})
    )


@pytest.fixture
def published(tmp_path):
    """Writes the file with values `changed`."""

    def write(**changes):
        file = tmp_path / "run_llama2_7b.yaml"
        file.write_text(yaml.safe_dump(changed(JOB, changes)))
        return file

    return write


@pytest.fixture
def rows(tmp_path):
    file = tmp_path / "rows.txt"
    file.write_text("a red shirt\n" * 4)
    return str(file)


@pytest.fixture(params=["llama_tiny", "gpt_tiny", "glm_tiny", "glm4_tiny"])
def tokenizer(request):
    return AutoTokenizer.from_pretrained(request.param)


@pytest.fixture
def encoder(fixtures):
    """Of a tokenizer that has none of the tokens that prompts name, so that they are text."""

    def made(prompt, **how):
        template = dataclasses.replace(prompt, needs="").jinja(**how)
        return Encoder(tokenizers.AutoTokenizer.from_pretrained(fixtures / "tok_gpt2"), DataSettings(template=template))

    return made


@pytest.fixture
def tasks(monkeypatch):
    """Tasks of one test are not another's."""
    from pet.compat.mindspore_trainer.tasks import TASKS

    for name in list(TASKS):
        monkeypatch.delitem(TASKS, name)
    yield TASKS
    TASKS.clear()
