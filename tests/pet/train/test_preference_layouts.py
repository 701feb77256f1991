"""Objectives over answers by two processes, held to one."""

from __future__ import annotations

import numpy as np
import pytest
from first_layers import first_layers
from sets import asked

from model_zoo.checkpoint.safetensors_io import read_file
from pet.cli.main import main
from pet.names import bundled_directory

LAYOUTS = {"data": ["data=2"], "tensor": ["tensor=2"], "pipeline": ["pipeline=2", "micro_batches=2"]}
STORED = {
    "glm dpo": ("glm_tiny", "nf4", "pipeline", {"steps": 3}),
    "gpt kto": ("gpt_tiny", "int8", "tensor", {"objective": "kto", "steps": 3, "batch_size": 8}),
    "glm4 orpo": ("glm4_tiny", "nf4", "tensor", {"objective": "orpo", "steps": 3}),
}
"""Other families over packed weights, in packed rows: base, type of its weights, layout, settings of training."""
CASES = [
    ("dpo", "data"),
    ("dpo", "tensor"),
    ("dpo", "pipeline"),
    *(pytest.param("kto", layout, marks=pytest.mark.full) for layout in LAYOUTS),
    *(pytest.param(name, how[2], marks=pytest.mark.full) for name, how in STORED.items()),
]
"""DPO and KTO over layers of LLaMA, and what is stored."""
UNEVEN = ("simpo", "glm dpo")
"""Pipelines over three layers, so that a stage has more than one and another one than the other, without a reference
and with one; the rest is over two."""


@pytest.fixture(scope="module")
def divided(request, tmp_path_factory, pair, preference_runs):
    """Where runs of one process lie, by a name (``kto``), and those of two (``kto tensor``), which are one job. Those
    are made that tests ask for."""
    home, commands = tmp_path_factory.mktemp("divided"), []
    preference_runs.write_rows(home)

    def over(base: str, layers: int = 2) -> str:
        source = bundled_directory() / "bases" / base
        return f"model.path={first_layers(source, home / f'{base}-{layers}', layers)}"

    assert main(preference_runs.command(home, "other", over("llama_tiny"), steps=2)) == 0
    start = str(home / "other/adapter")
    beside = {"reference": start}
    runs = {
        "dpo": {"objective": "dpo", "steps": 3, "batch_size": 8},
        # its reference is asked in every step, and is the adapter that it starts from
        "kto": {"objective": "kto", "steps": 3, "batch_size": 8, "adapter": {"method": "lora", "load": start}},
        "simpo": {"objective": "simpo", "steps": 3},  # without a reference
        "another": {**beside, "steps": 3, "save_every": 3},
        "whole": {**beside, "steps": 2, "learning_rate": 1e-3, "optimizer": "momentum", "adapter": {"method": "none"}},
    }
    bases, words, divisions = {}, {}, {}
    for name, (base, storage, _, how) in STORED.items():
        runs[name], bases[name] = how, base
        words[name] = [f"model.quantization.type={storage}", "data.packing=pack"]
    for parameters in asked(request, "divided"):
        divisions.setdefault(parameters["name"], []).append(parameters["layout"])
    for name, layouts in divisions.items():
        how = runs[name]
        own = [over(bases.get(name, "llama_tiny"), 3 if name in UNEVEN else 2), *words.get(name, [])]
        assert main(preference_runs.command(home, name, *own, **how)) == 0
        for layout in layouts:
            settings = [f"parallel.{setting}" for setting in LAYOUTS[layout]]
            commands.append(preference_runs.command(home, f"{name} {layout}", *own, *settings, **how))
    pair(*commands)
    return home


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_layouts_equal_one_process(divided, name, layout, preference_runs):
    """DPO and KTO, and other families over packed weights, in packed rows."""
    homes = [divided / each for each in (name, f"{name} {layout}")]
    (one, alone), (lines, together) = map(preference_runs.result, homes)
    assert len({line["loss"] for line in one}) == 3
    for measure in ("loss", "reward_margin", "logp_chosen", "logp_rejected"):
        expected = pytest.approx([line[measure] for line in one], rel=1e-5, abs=1e-5)
        assert [line[measure] for line in lines] == expected, measure
    assert together["after"] == pytest.approx(alone["after"], rel=1e-4, abs=1e-5)
    names = [read_file(home / "adapter/adapter_model.safetensors").keys() for home in homes]
    assert names[0] == names[1], "a reference is in no file"


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(("name", "layout"), [("simpo", "pipeline")])
def test_a_pipeline_of_an_objective_without_a_reference(divided, name, layout, preference_runs):
    (one, _), (lines, _) = (preference_runs.result(divided / each) for each in (name, f"{name} {layout}"))
    for measure in ("loss", "reward_margin"):
        assert [line[measure] for line in lines] == pytest.approx([line[measure] for line in one], rel=1e-4), measure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout"), [("another", "tensor"), pytest.param("another", "pipeline", marks=pytest.mark.full)]
)
def test_another_adapter_as_reference_of_a_divided_model(divided, name, layout, preference_runs):
    """It takes part in nothing but the reference: files hold what one process writes, and nothing else."""
    homes = divided / name, divided / f"{name} {layout}"
    (one, alone), (lines, together) = map(preference_runs.result, homes)
    assert abs(one[0]["loss"] - np.log(2)) > 1e-3
    for measure in ("loss", "reward_margin", "kl"):
        expected = pytest.approx([line[measure] for line in one], rel=1e-5, abs=1e-5)
        assert [line[measure] for line in lines] == expected, measure
    assert together["after"] == pytest.approx(alone["after"], rel=1e-4, abs=1e-5)
    assert [together[count] for count in ("trainable", "total")] == [alone[count] for count in ("trainable", "total")]
    for file in ("adapter/adapter_model.safetensors", "checkpoints/step-000003/adapter/adapter_model.safetensors"):
        names = [read_file(home / file).keys() for home in homes]
        assert names[0] == names[1], file


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize(("name", "layout"), [("whole", "tensor"), ("whole", "pipeline")])
def test_weights_that_are_all_trained_on_a_divided_model_beside_a_reference(divided, name, layout, preference_runs):
    (one, alone), (lines, together) = (preference_runs.result(divided / each) for each in (name, f"{name} {layout}"))
    assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in one], rel=1e-5)
    assert together["trainable"] == alone["trainable"] == alone["total"]
