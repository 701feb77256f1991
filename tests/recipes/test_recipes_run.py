"""Every bundled recipe is valid, and every method runs on every family's tiny base: two steps each, in one process;
`pytest` runs a cover of them, `pytest -m full` the remaining ones.

Compiling is most of a short run, and layer after layer is compiled alike: each family's LoRA recipe runs on the whole
tiny base, the other methods on its first layer.
"""

import json
import math
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.engine import available
from model_zoo.errors import InputError
from pet.cli.main import main
from pet.names import bundled_models, bundled_recipes
from pet.recipe.loading import load

FAMILIES = ("glm", "glm4", "llama", "gpt")
KINDS = {  # of methods: which of them are alike in a model
    "lora": "low rank",
    "dora": "low rank",
    "prefix": "prefix",
    "ptuning2": "prefix",
    "adapter": "small",
    "ia3": "small",
    "bitfit": "small",
}
METHODS = tuple(KINDS)
MATRIX = [f"{family}_{method}" for family in FAMILIES for method in METHODS]
QLORA = ("glm_qlora", "llama_qlora")
CLASSIFIERS = ("llama_classifier",)
REAL_SIZES = ("glm_6b_lora", "glm2_6b_lora", "glm4_9b_lora", "llama_7b_lora", "llama3_8b_lora", "gpt2_lora")
REAL_SIZES += tuple(f"{size}_qlora" for size in ("glm_6b", "glm4_9b", "llama_7b", "llama3_8b"))
RUNNABLE = [name for name in bundled_recipes() if name not in REAL_SIZES]
PREFERENCES = [name for name in RUNNABLE if name.startswith("preferences/")]
PRETRAINING = [name for name in RUNNABLE if name.startswith("pretrain/")]
# Two steps of what the recipe says, on few rows, so that compiling is most of it. Nothing of the method is changed.
SMALL = ["train.steps=2", "train.warmup=0", "train.batch_size=2", "data.max_samples=6", "data.workers=0"]
LATER_LAYER = re.compile(r"\.[1-9][0-9]*\.")
QUICK = [*SMALL, "eval.batch_size=8", "eval.metrics=[loss]", "eval.shown_samples=0"]


def test_every_family_has_every_method_and_all_recipes_are_known():
    names = bundled_recipes()
    known = {
        *MATRIX,
        *REAL_SIZES,
        *QLORA,
        *CLASSIFIERS,
        *PREFERENCES,
        *(f"pretrain/{base}" for base in bundled_models()),
    }
    assert set(names) == known, "all of them run here"
    assert {f"preferences/{name}" for name in ("llama_dpo", "glm_dpo", "llama_orpo", "gpt_kto")} <= set(PREFERENCES)
    for name in MATRIX:
        recipe = load(name, check_files=False)
        family, _, method = name.rpartition("_")
        assert (recipe.model.path, recipe.adapter.method) == (f"{family}_tiny", method)


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_recipe_is_valid_and_says_how_to_run_it(name):
    path = bundled_recipes()[name]
    recipe = load(path, needs=["data.train"])
    assert recipe.description
    command = "train" if recipe.adapter.method == "none" else "finetune"
    assert f"#   pet {command} recipes/{name}.yaml\n" in path.read_text("utf-8")
    assert all(Path(file).exists() for file in (*recipe.data.train, *recipe.data.eval))


@pytest.fixture(scope="module")
def few_rows(tmp_path_factory):
    """Eight held-out rows of each data set, in its own format."""
    home = tmp_path_factory.mktemp("held_out")
    for name in MATRIX:
        source = Path(load(name, check_files=False).data.eval[0])
        target = home / f"{source.parent.name}{source.suffix}"
        if source.suffix == ".json":
            target.write_text(json.dumps(json.loads(source.read_text("utf-8"))[:8]), "utf-8")
        else:
            target.write_text("".join(source.read_text("utf-8").splitlines(keepends=True)[:8]), "utf-8")
    return home


def first_rows(source: Path, count: int, home: Path) -> Path:
    """A file of the first rows of another."""
    rows = home / f"first_{count}.jsonl"
    rows.write_text("".join(source.read_text("utf-8").splitlines(keepends=True)[:count]), "utf-8")
    return rows


def layers_key(base: str) -> str:
    """What the number of layers is called in a base's config.json."""
    config = json.loads((bundled_models()[base] / "config.json").read_text())
    return next(key for key in ("num_hidden_layers", "num_layers", "n_layer") if key in config)


@pytest.fixture(scope="module")
def first_layers(tmp_path_factory):
    """The tiny bases with their first layer alone."""
    home = tmp_path_factory.mktemp("bases")
    for name, source in bundled_models().items():
        shutil.copytree(source, home / name)
        config = json.loads((source / "config.json").read_text())
        (home / name / "config.json").write_text(json.dumps({**config, layers_key(name): 1}))
        tensors = read_file(source / "model.safetensors")
        kept = {key: tensor for key, tensor in tensors.items() if not LATER_LAYER.search(key)}
        assert len(kept) < len(tensors)
        write_file(home / name / "model.safetensors", kept)
    return home


def run(name: str, home: Path, rows: Path, bases: Path) -> tuple[Path, dict]:
    """Two steps through the command line: (run directory, summary)."""
    recipe = load(name)
    source = Path(recipe.data.eval[0])
    words = ["finetune", name, *QUICK, f"output.dir={home / 'run'}", f"data.cache_dir={home / 'cache'}"]
    words.append(f"data.eval={rows / (source.parent.name + source.suffix)}")
    if recipe.adapter.method != "lora":
        words.append(f"model.path={bases / recipe.model.path}")
    assert main(words) == 0
    return home / "run", json.loads((home / "run" / "summary.json").read_text())


def covers(name: str) -> tuple:
    """Each kind of method on each family, and each method on one."""
    family, _, method = name.rpartition("_")
    return method, (family, KINDS.get(method, method))


@pytest.mark.slow
@pytest.mark.cover(by=covers)
@pytest.mark.parametrize("name", ["glm_lora", *(name for name in MATRIX if name != "glm_lora"), "glm_qlora"])
def test_two_steps(name, few_rows, first_layers, tmp_path, pictures):
    pictured = name == "glm_lora"  # a picture is alike for all methods
    with pictures() if pictured else nullcontext():
        directory, summary = run(name, tmp_path, few_rows, first_layers)
    assert summary["steps"] == 2 and summary["method"] == name.rpartition("_")[2].replace("qlora", "lora")
    assert 0 < summary["trainable"] < 0.25 * summary["total"]
    assert math.isfinite(summary["after"]["loss"]) and summary["after"]["loss"] != summary["before"]["loss"]
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "learning_rate" in line] == [1, 2]
    assert load(directory / "recipe.yaml").adapter == load(name).adapter, "the resolved recipe is the recipe"
    tensors = read_file(directory / "adapter" / "adapter_model.safetensors")
    assert sum(tensor.size for tensor in tensors.values()) > 0
    assert json.loads((directory / "adapter" / "adapter_config.json").read_text())["peft_type"]
    assert max(entry.name for entry in (directory / "checkpoints").iterdir()) == "step-000002"
    assert not pictured or (directory / "loss.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINING)
def test_two_steps_of_pretraining(name, few_rows, tmp_path):
    rows = first_rows(bundled_recipes()[name].parent / load(name).data.train[0], 12, tmp_path)
    base = name.partition("/")[2]
    words = ["train", name, *QUICK, f"output.dir={tmp_path / 'run'}", f"data.train={rows}", f"data.eval={rows}"]
    words.append(f"model.config.{layers_key(base)}=1")
    assert main([*words, "data.cache_dir=" + str(tmp_path / "cache"), "train.log_every=1"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["trainable"] == summary["total"] < 1_000_000
    assert summary["after"]["loss"] < summary["before"]["loss"]
    made = {key: value.shape for key, value in read_file(next(tmp_path.glob("run/model/*.safetensors"))).items()}
    bundled = read_file(bundled_models()[base] / "model.safetensors")
    assert made == {key: value.shape for key, value in bundled.items() if not LATER_LAYER.search(key)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["preferences/glm_dpo", "preferences/llama_orpo", "preferences/gpt_kto"])
def test_two_steps_of_preferences(name, tmp_path):
    rows = first_rows(Path(load(name).data.eval[0]), 16, tmp_path)
    words = ["finetune", name, *QUICK, f"data.eval={rows}", "data.packing=none", f"output.dir={tmp_path / 'run'}"]
    assert main([*words, f"data.cache_dir={tmp_path / 'cache'}"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["after"]["loss"] < summary["before"]["loss"]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_learns_what_it_is_shown(name, tmp_path, capsys):
    assert main(["finetune", name, f"output.dir={tmp_path / 'run'}", f"data.cache_dir={tmp_path / 'cache'}"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0.3 < summary["before"]["accuracy"] < 0.7 and summary["after"]["accuracy"] > 0.95
    assert "not read" not in capsys.readouterr().out
    row = json.loads(first_rows(Path(load(name).data.eval[0]), 1, tmp_path).read_text())
    words = ["predict", "--model", "llama_tiny", "--adapter", str(tmp_path / "run/adapter")]
    assert main([*words, "--input", row["completion"]]) == 0
    assert ("first" if row["label"] else "second") in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", ["llama_dpo", "gpt_kto"])
def test_preferences_are_learnt_and_what_was_known_stays(name, tmp_path):
    """A held-out win rate from about a half to at least 0.9; the bases' own held-out loss stays within a tenth."""
    home = tmp_path / "run"
    assert main(["finetune", name, "eval.shown_samples=0", f"output.dir={home}"]) == 0
    summary = json.loads((home / "summary.json").read_text())
    first = math.log(2) if name == "llama_dpo" else 0.5
    assert summary["before"]["loss"] == pytest.approx(first, abs=1e-5)
    assert summary["after"]["reward_accuracy"] >= 0.9
    files = bundled_recipes()["glm_lora"].parent / "data"
    found = {"known": [], "pairs": []}
    for kind, file, objective in (
        ("known", first_rows(files / "pretrain/held_out.jsonl", 100, tmp_path), "causal"),
        ("pairs", files / "preferences/held_out.jsonl", "dpo"),
    ):
        recipe = tmp_path / f"{kind}.yaml"
        data = {"eval": str(file), "max_length": 256, "cache_dir": str(tmp_path / "cache")}
        text = {"model": {"path": f"{name.partition('_')[0]}_tiny"}, "data": data, "eval": {"shown_samples": 0}}
        recipe.write_text(json.dumps({**text, "train": {"objective": objective}, "adapter": {"method": "lora"}}))
        for more in (["--base"], ["--adapter", str(home / "adapter")]):
            assert main(["evaluate", str(recipe), *more, "--output", str(tmp_path / "found.json")]) == 0
            found[kind].append(json.loads((tmp_path / "found.json").read_text()))
    before, after = (one["win_rate"] for one in found["pairs"])
    assert 0.35 < before < 0.65 and after >= 0.9
    assert found["known"][1]["loss"] < 1.1 * found["known"][0]["loss"]


@pytest.mark.parametrize("name", REAL_SIZES)
def test_a_real_size_is_valid_beside_its_weights(name, tmp_path, monkeypatch):
    """A directory with the published config.json passes every check that needs no weights, by either way to it."""
    from model_zoo.families import PRESETS

    monkeypatch.chdir(tmp_path)
    size = name.rpartition("_")[0]
    with pytest.raises(InputError, match=rf"{name}.yaml:\d+: model.path: .*weights are not bundled: download"):
        load(name)
    for directory in ("downloaded", size):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "config.json").write_text(json.dumps(PRESETS[size]))
    recipe = load(name, ["model.path=downloaded"])
    assert recipe.model.path == recipe.model.tokenizer == str(tmp_path / "downloaded")
    assert load(name).adapter == recipe.adapter
    with pytest.raises(InputError, match="longer than the model's context"):
        load(name, ["model.path=downloaded", "data.max_length=200000"])


@pytest.mark.skipif(not available(), reason="no C compiler: operators keep more or less than kernels")
@pytest.mark.parametrize("name", REAL_SIZES)
def test_what_a_real_size_says_of_its_memory(name):
    """The numbers in the comments are those of `pet info` with the recipe's own settings, and its targets match."""
    from pet.info import describe

    recipe, text = load(name, check_files=False), bundled_recipes()[name].read_text("utf-8")
    adapter = {"method": "lora", "rank": recipe.adapter.rank, "targets": recipe.adapter.targets}
    facts = describe(
        recipe.model.path,
        adapter,
        batch=recipe.train.batch_size,
        length=recipe.data.max_length,
        dtype=None if recipe.model.quantization.type else recipe.model.dtype,
        recompute=recipe.train.recompute,
        quantization=recipe.model.quantization.settings(),
    )
    assert f"= {facts.total / 1e9:.1f} GB;" in text
    assert f"{facts.trainable:,} of {facts.parameters:,} parameters are trained" in text


def test_the_table_of_measurements_is_of_these_recipes():
    """README.md holds a row or a word that it is not measured for each of them, and nothing else's."""
    text = (bundled_recipes()["glm_lora"].parent / "README.md").read_text("utf-8")
    for name in (*MATRIX, *QLORA):
        assert f"[`{name}`]({name}.yaml)" in text or f"`{name}`" in text.partition("Not measured yet: ")[2]
