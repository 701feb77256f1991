"""What a recipe's data section says reaches the batches."""

from __future__ import annotations

import json
import types

import numpy as np
import pytest

import pet
from model_zoo.checkpoint.reading import read_config
from model_zoo.errors import InputError
from pet.names import bundled_models
from pet.recipe.loading import from_dict
from pet.train.distributed import DistributedContext
from pet.train.prepare import (
    Prepared,
    load_asked,
    load_data,
    load_tokenizer,
    make_distributed_context,
    make_feeds,
    prepare as whole,
)


def prepare(tmp_path, data, **sections):
    """The feeds of a recipe, without a model: only its sizes are asked for."""
    values = {
        "model": {"path": "gpt_tiny"},
        "data": {"workers": 0, "cache_dir": str(tmp_path / "cache"), "shuffle": False, **data},
        "train": {"steps": 2, "batch_size": 2, "warmup": 0},
        **sections,
    }
    recipe = from_dict(values)
    tokenizer = load_tokenizer(recipe)
    config = json.loads((bundled_models()["gpt_tiny"] / "config.json").read_text())
    dims = types.SimpleNamespace(vocab=config["vocab_size"], context=config["n_positions"])
    model = types.SimpleNamespace(config=types.SimpleNamespace(dims=dims))
    prepared = Prepared(model, tokenizer, "gpt_tiny", *load_data(recipe, tokenizer))
    make_feeds(recipe, prepared, DistributedContext())
    return recipe, prepared


def test_packages_of_metrics_are_needed_only_where_something_is_measured(tmp_path, monkeypatch):
    class Loading(Exception):
        """Further than that nothing is looked at."""

    def refuse(metrics):
        raise InputError(f"{metrics[-1]} needs a package")

    def load(recipe, model):
        raise Loading

    monkeypatch.setattr("pet.train.metrics.check_available", refuse)
    monkeypatch.setattr("pet.train.prepare.load_tokenizer", load)
    rows = write(tmp_path / "rows.jsonl", [{"prompt": "a", "completion": "b"}])
    values = {"model": {"path": "gpt_tiny"}, "data": {"train": rows}, "eval": {"metrics": ["loss", "rouge_l"]}}
    with pytest.raises(Loading):
        whole(from_dict(values), DistributedContext())
    values["data"]["eval_fraction"] = 0.5
    with pytest.raises(InputError, match="rouge_l needs a package"):
        whole(from_dict(values), DistributedContext())


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_of_ids_padded_to_the_longest_of_a_step(tmp_path):
    rows = [{"input_ids": list(range(5, 5 + length))} for length in (70, 100, 20, 60)]
    rows[1]["labels"] = [-100] * 90 + rows[1]["input_ids"][90:]
    data = {"train": write(tmp_path / "ids.jsonl", rows), "format": "tokens", "max_length": 200}
    _, prepared = prepare(tmp_path, {**data, "packing": "longest"})
    first, second = prepared.train_feed.batches(0, 0)
    assert first["input_ids"].shape == (2, 128) and second["input_ids"].shape == (2, 64), "multiples of 64"
    assert first["input_ids"][0, :70].tolist() == rows[0]["input_ids"]
    assert first["labels"][1, :100].tolist() == rows[1]["labels"]
    _, prepared = prepare(tmp_path, {**data, "packing": "none"})
    assert prepared.train_feed.shapes(0) == [(2, 200)]
    rows[2]["input_ids"][3] = 1216
    write(tmp_path / "ids.jsonl", rows)
    with pytest.raises(InputError, match=r"ids.jsonl:3: token id 1216 is beyond the model's vocabulary of 1216"):
        prepare(tmp_path, data)


@pytest.mark.parametrize("streaming", (False, True))
def test_rows_beyond_the_models_context(streaming, tmp_path, caplog):
    """A row length that cannot be raised is not to be raised."""
    full = "the model's context has room for no more (the longest has "
    rows = write(tmp_path / "rows.jsonl", [{"input_ids": [5] * length} for length in (300, 100, 90)])
    data = {"train": rows, "format": "tokens", "streaming": streaming}

    def said(adapter=None, **more):
        caplog.clear()
        _, prepared = prepare(tmp_path, {**data, **more}, **({"adapter": adapter} if adapter else {}))
        if streaming:
            prepared.train.window(0)
        return [record.message for record in caplog.records if "data.max_length" in record.message]

    (line,) = said()
    assert f"at data.max_length=256; {full}" in line
    (line,) = said(max_length=128)
    assert "at data.max_length=128; raise it (the longest has " in line
    (line,) = said({"method": "prompt", "length": 16})
    assert f"at data.max_length=240; {full}" in line


def test_rows_of_a_trainer_beyond_the_models_context(tmp_path, caplog):
    rows = write(tmp_path / "rows.jsonl", [{"prompt": "a", "completion": "word " * count} for count in (400, 9, 9)])
    pet.Trainer(pet.apply_lora(pet.AutoModel.from_pretrained("gpt_tiny"), rank=2), rows, steps=1)
    assert "at data.max_length=256; the model's context has room for no more" in caplog.text
    caplog.clear()
    rows = write(tmp_path / "rows.jsonl", [{"prompt": "a", "completion": "word " * count} for count in (800, 9, 9)])
    model = pet.AutoModel.from_config({**read_config(bundled_models()["gpt_tiny"]), "n_positions": 1024})
    model.loaded_from = str(bundled_models()["gpt_tiny"])
    pet.Trainer(pet.apply_lora(model, rank=2), rows, steps=1)
    assert "at data.max_length=512; pet.data.load_dataset (max_length) and make_loader make longer" in caplog.text


def test_evaluation_data_of_another_format(tmp_path):
    """Questions and answers are held out of training on texts, and asked in the columns of their own file."""
    data = {"train": write(tmp_path / "texts.jsonl", [{"body": f"text number {n}"} for n in range(4)])}
    data |= {"eval": write(tmp_path / "asked.jsonl", [{"q": "Who?", "a": "Ada."}, {"q": "Where?", "a": "Here."}])}
    data |= {"format": "text", "columns": {"text": "body"}, "max_length": 32}
    how = {"eval_format": "prompt_completion", "eval_columns": {"prompt": "q", "answer": "a"}}
    recipe, prepared = prepare(tmp_path, {**data, **how}, eval={"metrics": ["loss", "exact_match"]})
    assert (len(prepared.train), len(prepared.evaluation)) == (4, 2)
    found = [(each.prompt, each.reference) for each in load_asked(recipe, prepared)]
    assert found == [("Who?", "Ada."), ("Where?", "Here.")]
    write(tmp_path / "asked.jsonl", [{"prompt": "Who?", "completion": "Ada."}])
    _, prepared = prepare(tmp_path, {**data, "eval_format": "auto"})  # the columns of training are not asked for
    assert len(prepared.evaluation) == 1
    write(tmp_path / "asked.jsonl", [{"other": "a text"}])
    _, prepared = prepare(tmp_path, {**data, "eval_columns": {"text": "other"}})
    assert len(prepared.evaluation) == 1


def test_rows_that_stream_in_windows(tmp_path):
    rows = [{"text": f"text number {number} of many"} for number in range(50)]
    data = {"train": write(tmp_path / "texts.jsonl", rows), "max_length": 32, "packing": "none"}
    _, prepared = prepare(tmp_path, {**data, "streaming": True, "stream_window": 8})
    assert [[count for _, _, count in spans] for spans in prepared.train.windows] == [*6 * [[8]], [2]]
    _, stored = prepare(tmp_path, data)
    streamed = [batch["input_ids"] for batch in prepared.train_feed.batches(0, 0)]
    kept = [batch["input_ids"] for batch in stored.train_feed.batches(0, 0)]
    assert np.array_equal(np.concatenate(streamed), np.concatenate(kept))


def test_answers_cannot_be_measured_where_nothing_is_asked(tmp_path, caplog):
    texts = write(tmp_path / "texts.jsonl", [{"text": "nothing is asked here"}] * 4)
    evaluation = {"metrics": ["loss", "exact_match"]}
    recipe, prepared = prepare(tmp_path, {"train": texts, "eval": texts, "max_length": 32}, eval=evaluation)
    with pytest.raises(InputError, match=r"eval.metrics: exact_match compare answers to questions"):
        load_asked(recipe, prepared)
    assert load_asked(recipe, prepared, required=False) == []
    assert "exact_match compare answers" in caplog.text


@pytest.mark.parametrize("held_out", [{}, {"eval_fraction": 0.5}])
def test_how_to_evaluate_where_nothing_is_held_out(tmp_path, caplog, held_out):
    rows = write(tmp_path / "rows.jsonl", [{"prompt": f"a{n}", "completion": "b"} for n in range(4)])
    prepare(tmp_path, {"train": rows, **held_out})
    assert "nothing to evaluate on" not in caplog.text  # of what is filled in
    prepare(tmp_path, {"train": rows, **held_out}, eval={"batch_size": 4, "before": False})
    told = "eval.batch_size, eval.before: there is nothing to evaluate on; set data.eval" in caplog.text
    assert told == (not held_out)


def test_a_seed_that_chooses_nothing_is_told(tmp_path, caplog):
    rows = write(tmp_path / "rows.jsonl", [{"prompt": f"a{n}", "completion": "b"} for n in range(4)])
    for data, told in (
        ({}, False),
        ({"seed": 3}, True),
        ({"seed": 3, "shuffle": True}, False),
        ({"seed": 3, "eval_fraction": 0.5}, False),
        ({"seed": 3, "mix": [2]}, True),
        ({"seed": 3, "mix": [1.5]}, False),
    ):
        caplog.clear()
        prepare(tmp_path, {"train": rows, **data})
        assert ("data.seed: has no effect without data.shuffle" in caplog.text) == told, data


def test_an_optimizer_that_has_nobody_to_share_with(caplog):
    values = {
        "model": {"path": "gpt_tiny"},
        "data": {"train": __file__, "max_length": 64},
        "parallel": {"shard_optimizer": True},
    }
    values["train"] = {"steps": 2, "warmup": 0}
    with caplog.at_level("WARNING", "pet"):
        assert type(make_distributed_context(from_dict(values))) is DistributedContext
    assert [record.message for record in caplog.records] == [
        "parallel.shard_optimizer divides nothing: parallel.data is 1"
    ]


def test_repeated_rows_are_left_out_before_rows_are_held_out_and_sets_are_mixed(tmp_path):
    rows = [{"text": f"text number {n % 4}"} for n in range(6)]
    data = {"train": write(tmp_path / "texts.jsonl", rows), "deduplicate": True, "packing": "none", "max_length": 32}
    _, prepared = prepare(tmp_path, {**data, "eval_fraction": 0.25})
    assert (len(prepared.train), len(prepared.evaluation)) == (3, 1)
    held = write(tmp_path / "held.jsonl", [rows[0], {"text": "another text"}])
    _, prepared = prepare(tmp_path, {**data, "eval": held, "mix": [2]})
    assert (len(prepared.train), len(prepared.evaluation)) == (8, 1)
    with pytest.raises(InputError, match=r"data.deduplicate.*samples that stream cannot be compared"):
        prepare(tmp_path, {**data, "streaming": True})


def test_what_reaches_nothing_is_said(tmp_path, caplog):
    """A path that is named again, unless each has a part or a weight; a format beside an objective's own rows."""
    rows = write(tmp_path / "rows.jsonl", [{"prompt": f"number {n}", "completion": str(n)} for n in range(4)])
    twice = {"train": [rows, rows], "packing": "none", "max_length": 32}
    for more, samples, said in (({}, 4, 1), ({"mix": [1, 1]}, 8, 0), ({"rows": [":1", "2:"]}, 3, 0)):
        caplog.clear()
        _, prepared = prepare(tmp_path, {**twice, **more})
        assert len(prepared.train) == samples
        assert caplog.text.count("rows.jsonl is named 2 times and read once; a weight of 2 in data.mix") == said
    pairs = write(tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2)
    for train in (pairs, {"path": pairs, "format": "chat"}):
        for own in ({"format": "alpaca"}, {}):
            caplog.clear()
            steps = {"steps": 2, "batch_size": 2, "warmup": 0, "objective": "dpo"}
            prepare(tmp_path, {"train": train, "max_length": 64, **own}, train=steps)
            unused = [*own.values(), *(["chat"] if train is not pairs else [])]
            said = f"format {', '.join(unused)} is not used: dpo reads rows of its own form"
            assert (said in caplog.text) if unused else ("not used" not in caplog.text)
