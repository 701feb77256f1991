"""Recipes: what they resolve to, and what is said of wrong ones."""

import contextlib
import dataclasses
import json
import sys
import types

import numpy as np
import pytest
from recipe_problems import GOOD, problems

from model_zoo.errors import InputError
from pet.data.plan import PACKED_TOGETHER
from pet.recipe import dump, json_schema, load, trl_names
from pet.recipe.keys import known_keys, path_keys, walk
from pet.recipe.loading import from_dict
from pet.train.callbacks import Callback


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


def test_a_file_whose_name_is_too_long_names_its_run_by_the_beginning(write):
    path = write()
    recipe = load(path.rename(path.with_name("情" * 80 + ".yaml")))
    assert recipe.name == "情" * 66
    assert load(write(f"name: {recipe.name}\n{GOOD}")).name == recipe.name


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
