"""Recipes: what they resolve to, and what is said of wrong ones."""

import contextlib
import dataclasses
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from model_zoo.errors import InputError
from pet.data.plan import PACKED_TOGETHER
from pet.recipe import dump, json_schema, load, trl_names
from pet.recipe.evaluation_rules import unmeasured
from pet.recipe.keys import known_keys, path_keys, walk
from pet.recipe.loading import from_dict
from pet.recipe.overrides import parse_override
from pet.recipe.training import Eval
from pet.train.callbacks import Callback

GOOD = """\
model:
  path: {model}
adapter:
  method: lora
  targets: [q_proj, v_proj]
data:
  train: train.jsonl
  max_length: 128
train:
  steps: 20
  learning_rate: 3e-4
"""


@pytest.fixture
def write(tmp_path, fixtures, monkeypatch):
    """Writes a recipe beside a data file and gives its path; the current directory is elsewhere."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    (home / "train.jsonl").write_text('{"content": "a", "summary": "b"}\n')
    (tmp_path / "run/adapter").mkdir(parents=True)
    (tmp_path / "run/adapter/adapter_config.json").write_text("{}")

    def writer(text: str = GOOD) -> Path:
        path = home / "job.yaml"
        path.write_text(text.replace("{model}", str(fixtures / "llama_gqa")))
        return path

    return writer


def problems(path, overrides=None, **options) -> list[str]:
    with pytest.raises(InputError) as error:
        load(path, overrides, **options)
    lines = str(error.value).splitlines()
    return [line.removeprefix("  - ") for line in lines[1:]] if len(lines) > 1 else lines


def test_no_metrics_are_the_loss_alone(write):
    assert load(write(), ["eval.metrics=[]"]).eval.metrics == ["loss"]


@pytest.mark.parametrize(("settings", "length"), [([], 256), (["adapter={method: prefix}"], 236)])
def test_a_row_that_nobody_set_fits_the_model_s_context(write, settings, length):
    text = GOOD.replace("  max_length: 128\n", "")
    assert load(write(text.replace("  targets: [q_proj, v_proj]\n", "")), settings).data.max_length == length


def test_a_row_fits_the_context_of_a_model_within_another(write, tmp_path, fixtures):
    text_config = json.loads((fixtures / "gemma3/config.json").read_text())
    (tmp_path / "seeing").mkdir()
    config = {"model_type": "gemma3", "text_config": text_config, "vision_config": {"hidden_size": 8}}
    (tmp_path / "seeing/config.json").write_text(json.dumps(config))
    (problem,) = problems(write(), [f"model.path={tmp_path / 'seeing'}", "data.max_length=258"])
    assert "longer than the model's context of 256 tokens" in problem


def test_a_model_that_does_not_open_is_refused_before_anything_is_loaded(write, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text('{"model_type": "bert", "max_position_embeddings": 512}')
    (problem,) = problems(write(), [f"model.path={tmp_path / 'other'}"])
    assert "model.path: config.json: model_type is 'bert'; supported: gpt2, llama" in problem


def test_a_field_of_the_configuration_that_nothing_reads_is_an_error(write):
    (problem,) = problems(write(), ["model.config={hidden_sizes: 3, max_position_embeddings: 64}"])
    assert "model.config.hidden_sizes: no field of this model's config.json (did you mean 'hidden_size'?)" in problem


def test_every_default_is_filled_in(write, tmp_path, fixtures):
    recipe = load(write())
    assert recipe.name == "job"
    assert recipe.train.learning_rate == 3e-4
    assert recipe.train.epochs is None
    assert recipe.adapter.rank == 8
    assert recipe.data.train == [str(tmp_path / "home" / "train.jsonl")]
    assert recipe.output.dir == str(tmp_path / "output" / "job"), "results go below the current directory"
    assert recipe.model.tokenizer == recipe.model.path == str(fixtures / "llama_gqa")
    assert recipe.eval.batch_size == recipe.train.batch_size
    assert recipe.data.seed == recipe.generation.seed == recipe.train.seed
    assert recipe.eval.best_mode == "min"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a" * 129, "expected a text that is not so long"),
        ("情" * 100, "300 bytes of UTF-8; a directory's name has room for 200"),
        ("a b", "has characters that cannot be used here"),
    ],
)
def test_a_name_that_no_directory_can_have_is_refused(write, name, message):
    (problem,) = problems(write(), [f"name={json.dumps(name)}"])
    assert message in problem


def test_a_run_is_named_in_any_script(write):
    """Files of Chinese names had one run's directory, and --force for the second deleted the first one's run."""
    for name in ("情感", "问答", "café 2"):
        path = write()
        assert load(path.rename(path.with_name(f"{name}.yaml"))).name == name.replace(" ", "_")
    assert load(write(), {"name": "名"}).name == "名"
    for name in ("a/../b", "a b", "..", "."):
        assert problems(write(), {"name": name})


def test_without_steps_and_epochs_there_are_three_epochs(write):
    recipe = load(write(GOOD.replace("  steps: 20\n", "")))
    assert (recipe.train.steps, recipe.train.epochs) == (None, 3.0)


@pytest.mark.parametrize("comments", [False, True])
def test_dump_loads_as_the_same_recipe(write, tmp_path, comments, monkeypatch):
    own = type("Own", (Callback,), {"__init__": lambda self, x: None})
    monkeypatch.setitem(sys.modules, "my", types.SimpleNamespace(Own=own))
    recipe = load(
        write(),
        [
            'data.template="Frage: {prompt}\\n# no comment\\nAntwort: "',
            "callbacks=[csv, {name: 'my:Own', args: {x: 1e-3}}]",
            "adapter.layers=[0, 1-2]",
            "train.groups=[{match: '*.lora_B*', learning_rate: 1e-3}]",
            "adapter.rank_pattern={'.*q_proj': 4}",
            "generation.stop=['\\n', '问：']",
            "train.clip_norm=null",
            'description="a\\x85b\\u2028c\\x7fd\\ufeffe 😀"',
        ],
    )
    assert recipe.description == "a\x85b\u2028c\x7fd\ufeffe 😀"
    text = dump(recipe, comments=comments)
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert load(again) == recipe
    assert dump(load(again), comments=comments) == text
    assert from_dict(recipe.model_dump()) == recipe


def test_dump_shows_every_key_with_its_meaning(write):
    text = dump(load(write()), comments=True)
    for path, field in walk():
        if path[0] != "adapter" and "groups" not in path:
            assert f"{path[-1]}:" in text
            assert field.description.split()[0] in text


def test_every_key_has_a_description():
    schema = json_schema()
    for owner in [schema, *schema["$defs"].values()]:
        for name, value in owner["properties"].items():
            # where a section's own description says the same, the schema has it once
            meaning = value.get("description") or schema["$defs"][value["$ref"].rpartition("/")[2]]["description"]
            assert meaning.endswith((".", ")")), (owner["title"], name)


def test_json_schema_is_json_and_strict():
    schema = json.loads(json.dumps(json_schema()))
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["model"]
    assert set(schema["properties"]["adapter"]["discriminator"]["mapping"]) >= {"lora", "dora", "prefix", "ia3", "none"}


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("rows", [":1000", "80%:", "5:10", ":", [":5%"], {"80%": None}], ["5", "120%:", "a:b", "", [], ["5"]]),
        ("eval_fraction", [0, 0.5, 100], [-1, 1.5]),
        ("template", ["Q: {prompt}", "{% for m in messages %}", "own.jinja", None], ["no place", ""]),
        ("template_without_input", ["{prompt}", None], ["{input}", ""]),
    ],
)
def test_json_schema_of_data_says_what_the_check_says(write, tmp_path, key, good, bad):
    jsonschema = pytest.importorskip("jsonschema")
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    rules = jsonschema.Draft202012Validator(json_schema())
    for value in [*good, *bad]:
        data = {"train": "a", **({"template": "{prompt}"} if key == "template_without_input" else {}), key: value}
        assert rules.is_valid({"model": {"path": "a"}, "data": data}) == (value in good), value
        with contextlib.nullcontext() if value in good else pytest.raises(InputError):
            from_dict({"model": {"path": "llama_tiny"}, "data": {**data, "train": "home/train.jsonl"}})


# Overrides


def test_overrides_are_yaml(write):
    recipe = load(
        write(), ["train.learning_rate=1e-3", "adapter.targets=[k_proj]", "eval.before=false", "data.train_on=all"]
    )
    assert recipe.train.learning_rate == 1e-3
    assert recipe.adapter.targets == ["k_proj"]
    assert recipe.eval.before is False
    assert recipe.data.train_on == "all"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("data.template=Q: {prompt}\n=A=", "Q: {prompt}\n=A="),
        ('data.template="x{prompt}"', "x{prompt}"),
        ("data.system=8", "8"),
        ("data.system=[not a list", "[not a list"),
        ("data.system=", None),
        ("data.system=null", None),
        ("data.system='null'", "null"),
        ("data.template=### Human: {prompt} ### Assistant:", "### Human: {prompt} ### Assistant:"),
        ("data.system=# Be short.", "# Be short."),
    ],
)
def test_a_text_is_taken_as_it_stands(write, text, value):
    recipe = load(write(), [text, *(["data.template={system}{prompt}"] if "system" in text else [])])
    assert (recipe.data.template if "template" in text else recipe.data.system) == value


def test_override_value_may_hold_equals_signs():
    assert parse_override("a.b=c=d==") == (("a", "b"), "c=d==", [])


def test_override_of_epochs_puts_steps_aside(write):
    recipe = load(write(), ["train.epochs=2"])
    assert (recipe.train.steps, recipe.train.epochs) == (None, 2.0)


def test_an_override_puts_the_other_of_two_settings_aside_where_it_says_something(write):
    kept = GOOD + "eval: {every_epochs: 1}\n"
    schedule = load(write(kept), ["data.eval=home/train.jsonl", "eval.every_steps=5"]).eval
    assert (schedule.every_steps, schedule.every_epochs) == (5, None)
    held_out = GOOD.replace("max_length: 128", "eval: train.jsonl")
    assert load(write(held_out), ["data.eval_fraction=0"]).data.eval
    assert not load(write(held_out), ["data.eval_fraction=0.5"]).data.eval


@pytest.mark.parametrize("text", ["80%:", "5:", "[80%:]", "[{5: null}]", ":5%", "'80%:'"])
def test_a_part_of_the_rows_needs_no_quotes(write, text):
    (part,) = load(write(), [f"data.rows={text}"]).data.rows
    assert part in text


def test_a_directory_is_looked_into(write, tmp_path):
    (tmp_path / "home" / "set" / "part").mkdir(parents=True)
    (problem,) = problems(write(), ["data.train=home/set"])
    assert "home/set: the directory holds no files" in problem
    (tmp_path / "home" / "set" / "part" / "rows.jsonl").write_text("{}\n")
    assert load(write(), ["data.train=home/set"]).data.train


def test_overrides_as_a_mapping(write):
    assert load(write(), {"train.steps": 7, "adapter.rank": 4}).adapter.rank == 4


def test_path_overrides_are_relative_to_the_current_directory(write, tmp_path):
    (tmp_path / "here.jsonl").write_text("{}\n")
    assert load(write(), ["data.train=here.jsonl"]).data.train == [str(tmp_path / "here.jsonl")]
    assert load(write(), ["data.train=[here.jsonl]"]).data.train == [str(tmp_path / "here.jsonl")]
    assert load(write(), ["data={train: here.jsonl, max_length: 64}"]).data.train == [str(tmp_path / "here.jsonl")], (
        "a whole section"
    )
    (problem,) = problems(write(), ["data={train: nowhere.jsonl, max_length: 64}"])
    assert problem.startswith("command line: data={train: nowhere.jsonl, max_length: 64}: data.train")


def test_a_path_may_say_how_its_rows_are_read(write, tmp_path, monkeypatch):
    monkeypatch.setenv("PET_TEST_NAME", "s3cond")
    (tmp_path / "home" / "s3cond.jsonl").write_text("{}\n")
    (tmp_path / "home" / "own.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    own = "{path: $PET_TEST_NAME.jsonl, columns: {prompt: ask}, template: own.jinja, system: null}"
    recipe = load(write(GOOD.replace("train: train.jsonl", f"train: [train.jsonl, {own}, {{path: train.jsonl}}]")))
    home = tmp_path / "home"
    first, second, third = recipe.data.train
    assert first == third == str(home / "train.jsonl") and second.path == str(home / "s3cond.jsonl")
    assert second.own == {"columns": {"prompt": "ask"}, "template": str(home / "own.jinja"), "system": None}
    text = dump(recipe)
    assert f'  - {{path: "{home}/$PET_TEST_NAME.jsonl", columns: ' in text
    (tmp_path / "again.yaml").write_text(text)
    assert load(tmp_path / "again.yaml") == recipe
    given = [{"path": "home/train.jsonl", "format": "chat"}]
    assert load(write(), {"data.train": given}).data.train[0].path == first and given[0]["path"] == "home/train.jsonl"
    assert load(write(), ["data.train={path: home/train.jsonl, format: chat}"]).data.train[0].format == "chat"
    found = problems(
        write(),
        ["data.train=[{path: home/train.jsonl, colums: {}}, {path: a, format: alpca}, {format: chat}, 5]"]
        + ["data.eval={path: home/no.jsonl, template: no.jinja}", "data.test={path: home/train.jsonl, template: Ask}"],
    )
    for problem in (
        "data.train[0].colums: the section data.train[0] has no such key (did you mean 'columns'?)",
        "data.train[1].format: expected one of auto, alpaca",
        "data.train[2].path: is missing",
        "data.train[3]: expected a path, or a mapping as {path: rows.jsonl, format: chat}; got 5",
        f"data.eval: {tmp_path}/home/no.jsonl: no such file",
        f"data.eval.template: {tmp_path}/no.jinja: no such file",
        "data.test[0].template: the text must hold {prompt}",
    ):
        assert sum(problem in line for line in found) == 1, (problem, found)
    (problem,) = problems(write(), ["data.train={path: home/train.jsonl, format: text, system: S}"])
    assert "data.train[0].system: text rows have no question that it could go with" in problem


def test_environment_variables_in_paths(write, monkeypatch, tmp_path):
    monkeypatch.setenv("PET_TEST_DIR", str(tmp_path / "home"))
    path = write(GOOD.replace("train.jsonl", "${PET_TEST_DIR}/train.jsonl"))
    assert load(path).data.train == [str(tmp_path / "home" / "train.jsonl")]
    assert '["${PET_TEST_DIR}/train.jsonl"]' in dump(load(path)), "absolute, and not below the recipe's directory"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PET_TEST_DIR", "~/home")
    assert '["${PET_TEST_DIR}/train.jsonl"]' in dump(load(path))
    monkeypatch.delenv("PET_TEST_DIR")
    (problem,) = problems(path)
    assert "job.yaml:7: data.train" in problem
    assert "'PET_TEST_DIR' is not set" in problem
    assert load(path, check_files=False).adapter.method, "nobody asks for the data"


def test_the_values_of_environment_variables_are_neither_written_nor_shown(write, monkeypatch, tmp_path):
    monkeypatch.setenv("PET_TEST_TOKEN", "s3cret")
    (tmp_path / "home" / "s3cret").mkdir()
    (tmp_path / "home" / "s3cret" / "train.jsonl").write_text("{}\n")
    path = write(GOOD.replace("train.jsonl", "${PET_TEST_TOKEN}/train.jsonl"))
    recipe = load(path, [f"output.dir={tmp_path}/$PET_TEST_TOKEN/run"])
    assert recipe.data.train == [str(tmp_path / "home" / "s3cret" / "train.jsonl")]
    text = dump(recipe)
    assert not [line for line in text.splitlines() if "s3cret" in line]
    assert f"{tmp_path}/home/${{PET_TEST_TOKEN}}/train.jsonl" in text
    (tmp_path / "again.yaml").write_text(text)
    assert load(tmp_path / "again.yaml") == recipe
    (tmp_path / "home" / "s3cret" / "train.jsonl").unlink()
    (problem,) = problems(path)
    assert "s3cret" not in problem and "${PET_TEST_TOKEN}/train.jsonl: no such file" in problem
    (tmp_path / "home" / "s3cret").rmdir()
    (problem,) = problems(path)
    assert "s3cret" not in problem and "${PET_TEST_TOKEN}" in problem


def test_a_variable_whose_value_is_the_name_of_a_key_hides_no_key(write, monkeypatch):
    monkeypatch.setenv("PET_TEST_DIR", "data")
    found = problems(write(GOOD.replace("train.jsonl", "${PET_TEST_DIR}/none.jsonl").replace("128", "0")))
    assert "data.train: " in found[0] and "${PET_TEST_DIR}/none.jsonl: no such file" in found[0]
    assert "data.max_length: expected at least 2" in found[1]


def test_a_group_of_settings_with_nothing_in_it_is_as_one_that_is_left_out(write):
    plain = load(write())
    assert load(write(GOOD + "generation:\neval:\ncallbacks:\n")) == plain
    assert load(write(), ["model.quantization=null", "model.config=null", "callbacks=null"]) == plain
    packed = write(GOOD + "generation:\n  max_new_tokens: 3\n")
    assert load(packed, ["generation=null"]).generation == plain.generation
    assert load(write(), ["adapter=null"]).adapter.method == "lora"
    assert problems(write(), ["model=null"])[0].endswith(
        "model: expected a section (key: value lines, indented); got nothing (null)"
    )


# Problems


def test_all_problems_in_one_report(write):
    text = GOOD.replace("steps: 20", "stesp: 20").replace("q_proj, v_proj", "q_proj, 3").replace("128", '"128"')
    text += "  optimizer: adamm\nlearning_rate: 1\neval: [1]\n"
    found = problems(write(text), ["train.warmup=x", "nonsense", "modle.path=x"])
    report = "\n".join(found)
    assert len(found) == 9
    assert "job.yaml:5: adapter.targets[1]: expected a text" in report
    assert "job.yaml:8: data.max_length: expected a whole number; got '128' (a text)" in report
    assert "job.yaml:10: train.stesp: the section train has no such key (did you mean 'steps'?)" in report
    assert "job.yaml:12: train.optimizer" in report
    assert "did you mean 'adam' or 'adamw'?" in report
    assert "job.yaml:13: learning_rate: a recipe has no such key (there is: train.learning_rate)" in report
    assert "job.yaml:14: eval: expected a section" in report
    assert "command line: train.warmup=x: train.warmup: expected a number; got 'x' (a text)" in report
    assert "'nonsense': an override looks like" in report
    assert "command line: modle.path=x: modle: a recipe has no such key (did you mean 'model'?)" in report


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        (["train.steps=5", "train.epochs=2"], "train.steps", "steps or epochs, not both"),
        (["train.schedule=wsd", "train.warmup=15", "train.decay=10"], "train.warmup", "longer than the run"),
        (["train.schedule=wsd", "train.warmup=21"], "train.warmup", "21 steps are more than the run has"),
        (["train.schedule=wsd", "train.warmup=11", "train.decay=0.5"], "train.warmup", "longer than the run"),
        (["train.batch_size=6", "parallel.data=4"], "train.batch_size", "divided over 4 copies"),
        (
            ["parallel.pipeline=2", "parallel.micro_batches=3"],
            "train.batch_size",
            "divided over 1 × 3 micro-batches",
        ),
        (["parallel.pipeline=2"], "parallel.micro_batches", "at least 2"),
        (["parallel.micro_batches=2"], "parallel.micro_batches", "use train.accumulation"),
        (["parallel.reduce_dtype=float16"], "parallel.reduce_dtype", "one process adds nothing up"),
        (["parallel.reduce_buckets=2"], "parallel.reduce_buckets", "between replicas alone"),
        (["parallel.reduce_buckets=2", "parallel.data=2", "parallel.tensor=2"], "parallel.reduce_buckets", "alone"),
        (
            ["parallel.reduce_buckets=2", "parallel.data=2", "parallel.shard_base=true"],
            "parallel.reduce_buckets",
            "gathers and sums would meet",
        ),
        (
            ["parallel={data: 2, shard_base: true}", "adapter={method: none}"],
            "parallel.shard_base",
            "every weight is trained",
        ),
        (
            ["parallel={data: 2, shard_base: true}", "model.quantization.type=nf4"],
            "parallel.shard_base",
            "packed weights are not gathered",
        ),
        ([f"train.accumulation={10**18}"], "train.accumulation", "expected at most 1048576"),
        (["train.batch_size=2000000"], "train.batch_size", "expected at most 1048576"),
        (["train.schedule=wsd", "train.decay=0", "train.decay_shape=cosine"], "train.decay_shape", "without a descent"),
        (["train.schedule=wsd", "train.decay=0", "train.final_ratio=0.1"], "train.final_ratio", "without a descent"),
        (
            ["train={restart_every: 10, restart_warmup: 2, restart_prune: 0.5, optimizer: sgd}"],
            "train.restart_prune",
            "has no effect with train.optimizer: sgd",
        ),
        (["train.momentum=0.5"], "train.momentum", "no effect with train.optimizer: adamw; it belongs to momentum"),
        (["train.power=3"], "train.power", "it belongs to polynomial"),
        (["train.decay_vectors=true"], "train.decay_vectors", "no effect without train.weight_decay"),
        (
            ["train.groups=[{match: lora_B}]"],
            "train.groups",
            "lora_B: has no effect without a learning_rate",
        ),
        (["train.loss_scale.initial=8"], "train.loss_scale", "it belongs to fp16"),
        (["train.warmup=0", "train.warmup_power=2"], "train.warmup_power", "has no effect without a warm-up"),
        (["train.warmup=0", "train.warmup_from=0.1"], "train.warmup_from", "has no effect without a warm-up"),
        (["train.schedule=wsd", "train.steps=9", "train.warmup=10"], "train.warmup", "more than the run has"),
        (["train.schedule=wsd", "train.epochs=2", "train.warmup=0.6", "train.decay=0.6"], "train.warmup", "the shares"),
        (["train.objective=kto", "train.batch_size=3"], "train.batch_size", "an even number for each process"),
        (["data.max_prompt=8", "data.train_on=all"], "data.max_prompt", "does not go with data.train_on: all"),
        (["data.too_long=drop", "data.min_length=200"], "data.min_length", "leave nothing"),
        (
            ["train.objective=dpo", "adapter={method: none}", "train.reference=adapters_off"],
            "adapter.method",
            "there is no adapter to switch off",
        ),
        (
            ["train.objective=dpo", "data.streaming=true", "train.reference=precompute"],
            "data.streaming",
            "reads the data beforehand",
        ),
        (
            ["adapter={method: none, trained: ['*norm*']}", "parallel.tensor=2"],
            "adapter.trained",
            "expected parallel.data alone",
        ),
        (["train.schedule=constant", "train.final_ratio=0.1"], "train.final_ratio", "has no effect"),
        (["train.schedule=constant", "train.warmup=3", "train.schedule_steps=9"], "train.schedule_steps", "no effect"),
        (["train.lora_plus_ratio=16", "adapter={method: ia3}"], "train.lora_plus_ratio", "no effect"),
        (["train.recompute=1"], "train.recompute", "expected true, false or a whole number of at least 2; got 1"),
        (["train.epochs=1e30"], "train.epochs", "expected at most"),
        (["train.r_drop_alpha=4"], "train.r_drop_alpha", "adapter.dropout is 0"),
        (["train.r_drop_alpha=0.1"], "train.r_drop_alpha", "adapter.dropout is 0"),
        (["train.r_drop_alpha=1", "adapter={method: none}"], "train.r_drop_alpha", "compares two dropouts"),
        (["train.objective=dpo", "data.train_on=all"], "data.train_on", "dpo compares last answers"),
        (
            ["train.objective=dpo", "data.train={path: home/train.jsonl, train_on: all}"],
            "data.train[0].train_on",
            "dpo compares last answers",
        ),
        (["train.objective=dpo", "data.padding=0"], "data.padding", "token ids, which dpo does not read"),
        (["train.objective=kto", "data.labels_ahead=true"], "data.labels_ahead", "which kto does not read"),
        (["train.objective=classification", "data.max_answer=3"], "data.max_answer", "texts are judged as they stand"),
        (
            ["train.objective=classification", "data.train={path: home/train.jsonl, template: 'Q {prompt}'}"],
            "data.train[0].template",
            "texts are judged as they stand",
        ),
        (["train.objective=classification", "data.roles={doctor: user}"], "data.roles", "judged as they stand"),
        (["train.objective=classification", "data.too_long=shorten"], "data.too_long", "questions and answers"),
        (["train.objective=classification", "data.labels_ahead=true"], "data.labels_ahead", "a label is of a text"),
        (["train.objective=classification", "data.other_labels=true"], "data.other_labels", "a label is of a text"),
        (["train.objective=classification", "generation.max_new_tokens=3"], "generation.max_new_tokens", "no answers"),
        (["train.objective=classification", "eval.shown_samples=4"], "eval.shown_samples", "writes no answers"),
        (["data.format=segments", "data.too_long=shorten"], "data.too_long", "which segments rows do not hold"),
        (["data.format=text", "data.roles={doctor: user}"], "data.roles", "text rows hold no messages"),
        (["data.format=text", "data.max_prompt=3"], "data.max_prompt", "text rows have no question"),
        (
            ["train.objective=reward", "eval.metrics=[loss, accuracy]"],
            "eval.metrics",
            "with reward reward_accuracy is always measured",
        ),
        (
            ["train.objective=simpo", "data.eval_fraction=0.5", "eval.metrics=[loss, perplexity, bleu]"],
            "eval.metrics",
            "which simpo does not measure",
        ),
        (["data.format=chat", "data.padding=0"], "data.padding", "token ids, which chat rows are not"),
        (["data.format=text", "data.labels_ahead=true"], "data.labels_ahead", "token ids, which text rows are not"),
        (
            ["train.objective=robust", "train.label_smoothing=0.5"],
            "train.label_smoothing",
            "less than half of the pairs",
        ),
        (["output.merged=true", "adapter={method: none}"], "output.merged", "has no effect without an adapter"),
        (
            ["data.eval=home/train.jsonl", "data.eval_fraction=0.1"],
            "data.eval_fraction",
            "has no effect beside data.eval",
        ),
        (["eval.every_steps=5"], "eval.every_steps", "nothing to evaluate on"),
        (["data.eval_fraction=0.5", "eval.patience=2"], "eval.patience", "needs evaluations along the way"),
        (
            ["data.eval_fraction=0.5", "eval={every_steps: 2, every_epochs: 1}"],
            "eval.every_steps",
            "give every_steps or every_epochs, not both",
        ),
        (["eval.metrics=[loss, loss]"], "eval.metrics", "names a metric twice"),
        (["data.eval_fraction=0.5", "eval.best_mode=max"], "eval.best_mode", "needs evaluations along the way"),
        (["data.eval_fraction=0.5", "eval.best_metric=perplexity"], "eval.best_metric", "evaluations along the way"),
        (
            ["train.objective=dpo", "data.eval_fraction=0.5", "eval={every_steps: 2, best_metric: perplexity}"],
            "eval.best_metric",
            "which dpo does not measure",
        ),
        (
            ["data.eval_fraction=0.5", "eval={every_steps: 2, best_metric: bleu}"],
            "eval.best_metric",
            "expected one of loss, perplexity",
        ),
        (
            ["data.eval_fraction=0.5", "eval={every_steps: 2, best_metric: reward_accuracy}"],
            "eval.best_metric",
            "is measured with dpo",
        ),
        (["generation.top_p=0.5"], "generation.top_p", "no effect without do_sample"),
        (
            ["generation.length_penalty=2.0", "generation.num_beams=1"],
            "generation.length_penalty",
            "has no effect without num_beams above 1",
        ),
        (["data.buckets=[64, 128]"], "data.buckets", "no effect with data.packing"),
        (["data.buckets=[128, 64]", "data.packing=buckets"], "data.buckets", "rising lengths"),
        (["data.buckets=[64, 100]", "data.packing=buckets"], "data.buckets", "must be data.max_length (128)"),
        (["data.template=hello"], "data.template", "{prompt}"),
        (["data.mix=[1, 2]"], "data.mix", "2 weights for 1 paths"),
        (["data.rows=[':1', ':2']"], "data.rows", "2 parts for 1 paths"),
        (["data.rows=5%"], "data.rows", "'5%' is no part of a file's rows"),
        (["data.rows={5: 6}"], "data.rows[0]", "expected a text"),
        (["data.rows=5"], "data.rows", "expected a part as :1000, or a list of them; got 5"),
        (["data.train=3"], "data.train", "expected a path, or a mapping"),
        (["adapter.targets=3"], "adapter.targets", "expected a text or a list of texts; got 3"),
        ([f"data.max_samples={1 << 63}"], "data.max_samples", "expected a whole number of ordinary size"),
        (["eval.best_metric=los"], "eval.best_metric", "(did you mean 'loss'?)"),
        (['data.train="a\\nb"'], "data.train", "a\\nb: no such file"),
        (["data.eval_rows=':5'"], "data.eval_rows", "data.eval and data.test, which are missing"),
        (["data.eval_fraction=1.5"], "data.eval_fraction", "neither a whole number"),
        (["data.template_without_input=Q {prompt}"], "data.template_without_input", "belongs to a template"),
        (
            ["data.template=Q {prompt}", "data.template_without_input=Q"],
            "data.template_without_input",
            "must hold {prompt}",
        ),
        (["data.template=no.jinja"], "data.template", "no.jinja: no such file"),
        (["data.template={prompt}", "data.enable_thinking=false"], "data.enable_thinking", "has no such switch"),
        (["data.template={prompt}", "data.system=S"], "data.system", "the text has no {system}"),
        (["data.template=Ask {prompt}", "data.format=text"], "data.template", "text rows have no question"),
        (["data.system=Be short.", "data.format=tokens"], "data.system", "tokens rows have no question"),
        (["data.train_on=last", "data.format=text"], "data.train_on", "no effect on text rows"),
        (["data.train_on=all", "data.format=tokens"], "data.train_on", "no effect on tokens rows"),
        (["data.format=text", "data.test=home/train.jsonl", "eval.metrics=[loss, rouge_l]"], "eval.metrics")
        + ("text rows hold none",),
        (["data.format=alpaca", "data.eval=home/train.jsonl", "data.eval_format=text", "eval.metrics=[loss, bleu]"],)
        + ("eval.metrics", "text rows hold none"),
        (["data.eval_format=text"], "data.eval_format", "data.eval and data.test, which are missing"),
        (
            ["data.test=home/train.jsonl", "data.eval_fraction=0.5", "data.eval_columns={prompt: q}"],
            "data.eval_columns",
            "rows held out of data.train are in its format",
        ),
        (["data.stream_window=64"], "data.stream_window", "no effect without data.streaming"),
        (["data.streaming=true", f"data.stream_window={PACKED_TOGETHER + 1}"], "data.stream_window", "at most 16384"),
        (["data.streaming=true", "data.eval_fraction=0.1"], "data.eval_fraction", "rows that stream cannot be divided"),
        (["data.streaming=true", "data.rows=':5%'"], "data.rows", "files stream as a whole"),
        (["data.streaming=true", "data.packing=buckets"], "data.buckets", "give them, such as [32, 64, 128]"),
        (["data.streaming=true", "train.epochs=2"], "train.steps", "is needed with data.streaming"),
        (
            ["data.streaming=true", "data.eval=home/train.jsonl", "eval.every_epochs=1"],
            "eval.every_epochs",
            "set eval.every_steps",
        ),
        (["eval.load_best_model_at_end=true"], "eval.load_best_model_at_end", "needs evaluations along the way"),
        (["data.eval_fraction=0.5", "eval.min_delta=0.1"], "eval.min_delta", "needs evaluations along the way"),
        (["eval.generate=ends"], "eval.generate", "needs evaluations along the way"),
        (
            [
                "data.eval_fraction=0.5",
                "eval={every_steps: 2, generate: ends, metrics: [loss, bleu], best_metric: bleu}",
            ],
            "eval.generate",
            "eval.best_metric is bleu",
        ),
        (["generation.max_new_tokens=256"], "generation.max_new_tokens", "no room for a question"),
        (["model.from_scratch=true"], "model.from_scratch", "random weights"),
        (["train.resume=true", "output.force=true"], "output.force", "keep one"),
        (
            ["output.merged=true", "adapter={method: prefix}"],
            "output.merged",
            "cannot be merged into the weights: it puts keys",
        ),
        (["adapter={method: prefix, projection: true, init_text: Hi}"], "adapter.init_text", "no projection"),
        (["train.learning_rate=1e300"], "train.learning_rate", "1e+300 is inf in float32"),
        (["train.eps=1e-60"], "train.eps", "1e-60 is 0.0 in float32, which is out of bounds"),
        (["train.betas=[0.9, 0.999999999999]"], "train.betas", "1.0] in float32"),
        (["adapter={rank_pattern: {q_proj: 0}}"], "adapter.rank_pattern.q_proj", "expected at least 1; got 0"),
        (["adapter={trainable_tokens: [3, 3]}"], "adapter.trainable_tokens", "named twice"),
        (["data.max_length=258"], "data.max_length", "context of 256 tokens"),
        (["data.max_length=250", "adapter={method: prefix}"], "data.max_length", "250 + 20 virtual tokens"),
        (["data.train=[]"], "data.train", "this command needs it"),
        (["data.train=nowhere.jsonl"], "data.train", "no such file"),
        (["adapter={method: lora, load: home}"], "adapter.load", "adapter_config.json: not found"),
        (["adapter={method: lora, load: run}"], "adapter.load", "run: is a run directory; its adapter is "),
        (["train.objective=dpo", "train.reference=nowhere"], "train.reference", "nowhere: no such directory"),
        (["train.objective=dpo", "train.reference=home"], "train.reference", "adapter_config.json: not found"),
        (["train.objective=dpo", "train.reference=run"], "train.reference", "run: is a run directory; its adapter"),
        (["train.objective=dpo", "train.reference=adapter_off"], "train.reference", "did you mean 'adapters_off'"),
        (
            ["train.objective=dpo", "train.reference=home/train.jsonl"],
            "train.reference",
            "is a file; an adapter directory",
        ),
        (["train.objective=sigmoid"], "train.objective", "did you mean 'dpo'"),
        (["model.path=glm_tinny"], "model.path", "no such directory"),
        (["model.path=./hame"], "model.path", "no such directory ("),
        (["model.path=llama_7b"], "model.path", "weights are not bundled"),
        (["model.path=home"], "model.path", "no config.json"),
        (["adapter={method: loar}"], "adapter.method", "did you mean 'lora'"),
        (["adapter.r=4"], "adapter.r", "did you mean 'rank'"),
        (["adapter.target_modules=[q_proj]"], "adapter.target_modules", "did you mean 'targets'"),
        (["adapter={length: 8}"], "adapter.length", "the method 'lora' has no such key"),
        (["adapter={method: prefix, rank: 8}"], "adapter.rank", "the method 'prefix' has no such key"),
        (["train.betas=[0.9]"], "train.betas", "at least 2 entries"),
        (["train.learning_rate=-1"], "train.learning_rate", "more than 0; got -1"),
        (["train.learning_rate=.nan"], "train.learning_rate", "finite number"),
        (["model.config={vocab_size: .nan}"], "model.path", "vocab_size is nan"),
        (["eval.metrics=[loss, los]"], "eval.metrics[1]", "did you mean 'loss'"),
        (["train.steps=2.5"], "train.steps", "whole number; got 2.5"),
        (["train.steps=true"], "train.steps", "whole number; got true"),
        (["eval.before=1"], "eval.before", "true or false; got 1"),
        (["name=a/b"], "name", "cannot be used here"),
        (["train.recompute=often"], "train.recompute", "a whole number of at least 2; got 'often'"),
        (["adapter.layers=[-1]"], "adapter.layers", "-1 is negative; layers are counted from 0"),
        (["adapter.trainable_tokens=[-1]"], "adapter.trainable_tokens", "tokens: [-1]; a list of token ids was"),
        (
            ["generation.exponential_decay_length_penalty=[3,-1]"],
            "generation.exponential_decay_length_penalty",
            "a factor above 0",
        ),
        (["adapter.layers=[3-1]"], "adapter.layers", "'3-1' is no layer index or range"),
        (["adapter.targets=[q_prj]"], "adapter.targets", "'q_prj' matches no cell (did you mean 'q_proj'"),
        (["adapter.targets=[norm]"], "adapter.targets", "model.norm is no matrix and no embedding, which no adapter"),
        (["adapter.targets=['q_proj|v_proj']"], "adapter.targets", "'q_proj|v_proj' matches no cell"),
        (["adapter.exclude=[up_prj]"], "adapter.exclude", "'up_prj' matches no cell (did you mean 'up_proj'"),
        (["adapter.layers=3"], "adapter.layers", "3 names a layer that does not exist (there is: 0-2)"),
        (["adapter.rank_pattern={v_prj: 2}"], "adapter.rank_pattern", "'v_prj' matches no target (did you mean"),
        (["adapter.modules_to_save=[lmhead]"], "adapter.modules_to_save", "no cell with parameters (did you mean 'lm_"),
        (["adapter.trainable_tokens=[128]"], "adapter.trainable_tokens", "id 128, but model.embed_tokens has ids 0"),
        (["adapter={method: ia3, feedforward: up}"], "adapter.feedforward", "'up' matches no cell (there is: down_"),
        (["adapter={method: bitfit, add_missing: false}"], "adapter.method", "there is no bias to train"),
        (["adapter={method: low_rank_adapter, rank: 17}"], "adapter.method", "above the bottleneck's width 16"),
        (["adapter={init: loftq, targets: embed_tokens}"], "adapter.method", "fits linear cells"),
    ],
)
def test_rules(write, changes, key, words):
    found = problems(write(), changes, needs=["data.train"])
    assert len(found) == 1, found
    assert f"{key}: " in found[0]
    assert words in found[0]


def test_every_metric_that_an_objective_lacks_is_named():
    found = [why.split()[0] for _, _, why in unmeasured(Eval(metrics=["bleu", "f1", "accuracy"]), "reward")]
    assert found == ["bleu:", "f1", "accuracy"]


@pytest.mark.parametrize(
    ("key", "taken", "refused"),
    [
        ("eval.every_steps", 1, 0),
        ("train.save_every", 0.1, 1.5),
        ("train.groups", [{"match": ["*"], "learning_rate": 1e-9}], [{"match": ["*"], "learning_rate": 0}]),
        ("train.betas", [0.0, 0.0], [0.9, 0.99, 0.999]),
        ("train.betas", [0.9, 0.99], [0.9]),
        ("train.warmup_most", 1, 0),
        ("parallel.reduce_buckets", 64, 65),
    ],
)
def test_ends_of_a_range(write, key, taken, refused):
    beside = {"parallel.data": 2, "data.eval_fraction": 0.1, "train.warmup": 0.1}
    assert load(write(), {**beside, key: taken})
    (problem,) = problems(write(), {**beside, key: refused})
    assert f"{key}" in problem


def test_data_by_a_pattern_are_there(write):
    assert load(write(GOOD.replace("train.jsonl", '"*.jsonl"'))).data.train[0].endswith("home/*.jsonl")
    (problem,) = problems(write(GOOD.replace("train.jsonl", '"*.csv"')))
    assert "data.train" in problem and "*.csv: no such file or directory" in problem


def test_what_may_be_of_two_kinds_is_called_by_its_key(write):
    for key, kinds in (
        ("forced_eos_token_id", "a list or a whole number"),
        ("early_stopping", "true or false or a text"),
    ):
        (problem,) = problems(write(), [f"generation.{key}=1.5"])
        assert f": generation.{key}: expected {kinds}" in problem


def test_what_is_missing_is_named(write):
    (problem,) = problems(write(), ["data.train=null", "data.eval_fraction=0.1"])
    assert "data.eval_fraction: takes rows out of data.train, which is missing" in problem
    (problem,) = problems(write(), ["train..steps=1"])
    assert "'train..steps' is no key; write section.key=value" in problem


def test_settings_that_are_no_mistake(write):
    changes = ["data.streaming=true", "data.packing=buckets", "data.buckets=[64, 128]"]
    changes.append(f"data.stream_window={PACKED_TOGETHER}")
    assert load(write(), changes).data.stream_window == PACKED_TOGETHER
    assert load(write(), ["data.format=tokens", "data.packing=longest"]).data.format == "tokens"
    assert load(write(), ["data.format=text", "data.train_on=all"]).data.train_on == "all"
    # values that do nothing: recipes of runs from when these were the defaults have them, job files, too
    nothing = ["temperature=1.0", "top_p=1", "top_k=0", "num_beams=1", "length_penalty=1.0", "early_stopping=false"]
    assert load(write(), [f"generation.{one}" for one in nothing]).generation.temperature == 1.0
    assert load(write(), ["generation.top_k=1"]).generation.top_k == 1  # as greedy decoding
    phases = ["train.schedule=wsd", "train.warmup=10", "train.warmup_power=2", "train.decay=0.5"]
    assert load(write(), phases).train.decay == 0.5  # no longer than the run together
    assert load(write(), ["train.warmup=21"]).train.warmup == 21  # shortened to the run
    robust = ["train.objective=robust", "train.label_smoothing=0.49"]
    assert load(write(), robust).train.label_smoothing == 0.49
    judged = ["train.objective=classification", "data.eval_fraction=0.1", "eval.metrics=[loss, accuracy, f1]"]
    assert load(write(), judged).eval.metrics == ["loss", "accuracy", "f1"]
    for other in ("train.base_dropout={hidden: 0.1}", "train.neftune_alpha=5", "adapter.dropout=0.1"):
        assert load(write(), ["train.r_drop_alpha=1", other]).train.r_drop_alpha == 1
    for format in ("auto", "tokens", "mindrecord"):
        assert load(write(), [f"data.format={format}", "data.padding=0"]).data.padding == 0
    # the default length of answers is no reason to refuse a small context
    assert load(write(), ["model.config={max_position_embeddings: 48}", "data.max_length=48"]).data.max_length == 48


def test_numbers_of_numpy_are_numbers(write):
    recipe = load(
        write(), {"train.steps": np.int64(7), "train.betas": (np.float32(0.5), 0.25), "eval.before": np.True_}
    )
    assert (recipe.train.steps, recipe.train.betas, recipe.eval.before) == (7, [0.5, 0.25], True)


@pytest.mark.parametrize(
    "settings, mode",
    [
        ({"best_metric": "loss"}, "min"),
        ({"best_metric": "perplexity"}, "min"),
        ({"best_metric": "rouge_l", "metrics": ["loss", "rouge_l"]}, "max"),
        ({"best_metric": "rouge_l", "metrics": ["loss", "rouge_l"], "best_mode": "min"}, "min"),
    ],
)
def test_which_end_of_a_measure_is_the_best(write, settings, mode):
    schedule = {"data.eval_fraction": 0.5, "eval": {"every_steps": 2, **settings}}
    assert load(write(), schedule).eval.best_mode == mode


def test_early_stopping_means_the_best_weights_unless_told_otherwise(write):
    schedule = ["data.eval_fraction=0.5", "eval.every_steps=2"]
    assert load(write(), schedule).eval.load_best_model_at_end is False
    assert load(write(), [*schedule, "eval.patience=3"]).eval.load_best_model_at_end is True
    last = load(write(), [*schedule, "eval.patience=3", "eval.load_best_model_at_end=false"])
    assert last.eval.load_best_model_at_end is False


def test_processes_that_were_started_must_fit(write, monkeypatch):
    monkeypatch.setenv("RANK_SIZE", "4")
    (problem,) = problems(write(), ["parallel.data=2"])
    assert "2 × 1 × 1 = 2, but 4 processes were started; to run each by itself, unset RANK_SIZE" in problem
    assert load(write(), ["parallel.data=2", "parallel.tensor=2"]).parallel.processes == 4
    monkeypatch.delenv("RANK_SIZE")
    monkeypatch.setenv("MS_WORKER_NUM", "8")  # left over from another job: without a role it says nothing
    assert load(write()).parallel.processes == 1


def test_a_rule_about_a_refused_key_is_silent(write):
    (problem,) = problems(write(), ["train.optimizer=adamm", "train.momentum=0.5"])
    assert "train.optimizer" in problem


def test_missing_model_and_wrong_files(write, tmp_path):
    (problem,) = problems(write(GOOD.replace("model:\n  path: {model}\n", "")))
    assert "model: is missing" in problem
    (problem,) = problems(write("- a\n- b\n"))
    assert "expected sections" in problem
    (problem,) = problems(write("# nothing\n"))
    assert "is empty" in problem
    (tmp_path / "binary.yaml").write_bytes(b"a: 1\nb: \xff\xfe")
    assert problems(tmp_path / "binary.yaml")[0].endswith("binary.yaml:2: not UTF-8 text")
    (problem,) = problems(tmp_path / "home" / "jop.yaml")
    assert "no such file" in problem


def test_recipe_says_where_a_key_stands(write):
    recipe = load(write())
    assert recipe.where("adapter.targets") == "home/job.yaml:5: adapter.targets"
    assert recipe.where("train.seed") == "home/job.yaml:9: train.seed", "a default: the section's line"


def test_path_keys():
    assert path_keys()[("data", "train")] == "recipe"
    assert path_keys()[("output", "dir")] == "here"
    assert path_keys()[("model", "path")] == "model"
    assert path_keys()[("adapter", "load")] == "recipe"
    assert path_keys()[("train", "reference")] == "reference"
    assert ("adapter", "rank") in known_keys()


def test_names_of_trl_are_recognised(write):
    text = GOOD + "  loss_type: sigmoid\n  rpo_alpha: 1\n  per_device_train_batch_size: 2\n"
    text += "  evaluation_strategy: steps\n  remove_unused_columns: false\n"
    said = problems(write(text))
    assert "(TRL's loss_type is train.objective (sigmoid is dpo))" in said[0]
    assert "(TRL's rpo_alpha is train.sft_weight)" in said[1]
    assert "(TRL's per_device_train_batch_size is train.batch_size, over all processes)" in said[2]
    assert "(TRL's evaluation_strategy is eval.every_steps or eval.every_epochs)" in said[3]
    assert "(leave it out: TRL's remove_unused_columns changes nothing here)" in said[4]


def test_settings_of_trl_alone_have_a_hint():
    """Live with TRL: each setting that its trainers add to transformers' is ours, too, or has a hint."""
    trl, transformers = pytest.importorskip("trl"), pytest.importorskip("transformers")
    needless = {"activation_offloading", "eos_token", "model_init_kwargs", "pad_to_multiple_of", "pad_token"}
    needless |= {"dataset_kwargs", "trust_remote_code"}
    shared = needless | {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    for config in (trl.SFTConfig, trl.DPOConfig, trl.KTOConfig, trl.RewardConfig):
        for name in {field.name for field in dataclasses.fields(config)} - shared:
            known = any(key[-1] == name for key in known_keys())
            assert known or trl_names.hint(name), f"{config.__name__}.{name}"


def test_settings_of_trls_newest_have_a_hint():
    assert "train.recompute" in trl_names.hint("activation_checkpointing")
    assert "in Python an argument of pet.data.load_dataset" in trl_names.hint("tokenizer")
    assert "no counterpart" in trl_names.hint("router_aux_loss_coef")
    assert "data.train_on: answers" in trl_names.hint("assistant_only_loss")
    assert "eval.every_steps or eval.every_epochs" in trl_names.hint("eval_strategy")


def test_lengths_of_a_question_and_of_an_answer_are_settings_of_their_own():
    assert "data.max_prompt" in trl_names.hint("max_prompt_length")
    assert "data.max_answer" in trl_names.hint("max_completion_length")


def test_every_key_that_a_hint_names_is_there():
    for text in trl_names.NAMES.values():
        if (key := tuple(text.split(",")[0].split(" ")[0].rstrip(":").split(".")))[0] in ("train", "data", "eval"):
            assert key in known_keys(), text


def test_names_of_cells_are_checked_on_the_model_that_the_recipe_makes(write):
    assert load(write(), ["adapter.layers=3", "model.config.num_hidden_layers=4", "model.from_scratch=false"])
    assert load(write(), ["adapter.targets=[q_prj]", "model.path=./not_there_yet"], check_files=False)
    assert load(write(), ["adapter={method: prefix}"])
    two = problems(write(), ["adapter.targets=[q_prj, mlp, k_prj]"])
    assert [line.rpartition("adapter.targets: ")[2].split()[0] for line in two] == ["'q_prj'", "'k_prj'"]


@pytest.mark.parametrize("section", ["", "adapter", "train"])
def test_a_key_with_half_a_character_is_named(write, section):
    added = f'{section}:\n  "a\\ud800": 1\n' if section else '"a\\ud800": 1\n'
    text = GOOD.replace(f"{section}:\n", added) if section else GOOD + added
    (line,) = problems(write(text))
    at = f"{section}." if section else ""
    assert f"job.yaml:{text[: text.index('ud800')].count(chr(10)) + 1}: {at}a\\ud800: expected a text" in line
