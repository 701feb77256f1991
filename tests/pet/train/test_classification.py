"""Classification: runs, files, data, measures, and what is refused. test_classification_parity.py has the rest."""

from __future__ import annotations

import json
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from first_layers import first_layers
from labelled_texts import NAMES, padded, rows_of, texts, write
from recipe_jobs import RecipeJobs

import pet
from model_zoo.labels import MULTI, SINGLE, Labels
from pet import AutoModel, InputError
from pet.cli.main import main
from pet.names import bundled_models
from pet.serving import ENGINES, check_served
from pet.train.objectives.classification import Classification


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Two layers of it: a pipeline wants as many."""
    return first_layers(bundled_models()["llama_tiny"], tmp_path_factory.mktemp("base"), 2)


@pytest.fixture(scope="module")
def job(tmp_path_factory, base):
    """Runs a recipe of a classifier; gives its directory, or what was said where it failed."""
    home = tmp_path_factory.mktemp("jobs")
    rows = write(home / "rows.jsonl", rows_of())

    return RecipeJobs(
        home,
        {
            "model": {"path": str(base)},
            "data": {"train": str(rows), "eval_fraction": 0.25, "max_length": 32, "packing": "none"},
            "adapter": {"method": "lora", "targets": ["all-linear"]},
            "train": {"objective": "classification", "steps": 16, "batch_size": 6, "learning_rate": 5e-3},
        },
    )


@pytest.fixture(scope="module")
def trained(job):
    """The run directory of a classifier's adapter, merged too."""
    return job(
        "trained", "output.merged=true", "eval={every_steps: 4, metrics: [loss, accuracy], best_metric: accuracy}"
    )


def lines_of(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_run_learns_the_labels(trained, job, capsys):
    summary, lines = json.loads((trained / "summary.json").read_text()), lines_of(trained)
    assert lines[0]["loss"] == pytest.approx(np.log(3), abs=0.2) and lines[0]["texts"] == 6
    assert summary["after"]["accuracy"] == summary["after"]["f1"] == 1 > summary["before"]["accuracy"]
    assert summary["best"]["accuracy"] == 1 and "eval_f1" in lines[3]
    assert not (trained / "samples.jsonl").exists()
    capsys.readouterr()
    job("again", command=("evaluate", "--adapter", str(trained / "adapter")), capsys=capsys)
    assert "macro F1         1.0000" in capsys.readouterr().out


def test_accuracy_and_macro_f1_are_their_definitions():
    """Of one label among four, of which the data lacks the last, and of four labels each by itself."""
    random, names = np.random.default_rng(0), ("a", "b", "c", "d")
    for problem in (SINGLE, MULTI):
        objective = Classification()
        objective.know(SimpleNamespace(labels=Labels(names, problem)))
        logits = random.normal(size=(40, 4)).astype(np.float32)
        if problem == SINGLE:
            logits[:, 3] -= 9
            chosen, given = np.eye(4)[logits.argmax(1)], np.eye(4)[random.integers(0, 3, 40)]
        else:
            chosen, given = logits > 0, random.integers(0, 2, (40, 4))
        judged = np.ones((1, 40), np.float32)
        vector = objective.measure(*(ms.Tensor(np.float32(one)) for one in (logits, given[None], judged)))[0].asnumpy()
        found, f1 = objective.metrics(vector.tolist(), 40), []
        for own, its in zip(chosen.T, given.T, strict=True):
            right = np.sum((own == 1) & (its == 1))
            if own.any() or its.any():
                precision, recall = right / max(own.sum(), 1), right / max(its.sum(), 1)
                f1.append(2 * precision * recall / max(precision + recall, 1e-9))
        assert found["accuracy"] == pytest.approx(np.mean((chosen == given).all(1)))
        assert found["f1"] == pytest.approx(np.mean(f1)) and len(f1) == (3 if problem == SINGLE else 4)


def test_files_go_to_transformers_and_peft_and_back(trained, theirs, base, job, tmp_path, capsys):
    torch, transformers = theirs.torch, theirs.transformers
    ids, mask = padded(texts(), 2, "right")
    model = AutoModel.from_pretrained(base)
    pet.load_adapter(model, trained / "adapter")
    ours = pet.scores(model, ids, mask)
    given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    adapter = theirs.peft.AutoPeftModelForSequenceClassification.from_pretrained(trained / "adapter", num_labels=3)
    adapter.base_model.model.config.pad_token_id = 2
    merged = transformers.AutoModelForSequenceClassification.from_pretrained(trained / "merged")
    assert merged.config.id2label == dict(enumerate(NAMES)) and merged.config.pad_token_id == 2
    with torch.no_grad():
        for one in (adapter.eval(), merged.eval()):
            np.testing.assert_allclose(ours, one(**given).logits.numpy(), atol=1e-5)
    on_disk = tmp_path / "on_disk"
    pet.merge_checkpoint(base, trained / "adapter", on_disk)
    assert (on_disk / "model.safetensors").read_bytes() == (trained / "merged/model.safetensors").read_bytes()
    assert json.loads((on_disk / "config.json").read_text()) == json.loads((trained / "merged/config.json").read_text())
    # theirs back here: a classifier's checkpoint, and PEFT's adapter on it and on the plain base
    merged.save_pretrained(tmp_path / "theirs")
    again = AutoModel.from_pretrained(tmp_path / "theirs")
    assert again.labels.names == NAMES and again.family.head == "lm_head"
    np.testing.assert_allclose(pet.scores(again, ids, mask), ours, atol=1e-5)
    again.save_pretrained(tmp_path / "again")
    back = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        np.testing.assert_allclose(back(**given).logits.numpy(), ours, atol=1e-5)


def test_merging_in_memory_makes_a_classifier_and_unmerging_the_language_model(trained, base, tmp_path):
    model = AutoModel.from_pretrained(base)
    plain = model([[5, 6, 7]]).asnumpy()
    pet.load_adapter(model, trained / "adapter")
    before = pet.scores(model, [[5, 6, 7]])
    with pytest.raises(InputError, match="input_ids: rows of different lengths; pad them and give attention_mask"):
        pet.scores(model, [[5, 6, 7], [5]])
    pet.merge(model)
    np.testing.assert_allclose(pet.scores(model, [[5, 6, 7]]), before, atol=1e-5)
    with pet.disable_adapters(model):
        np.testing.assert_array_equal(model([[5, 6, 7]]).asnumpy(), plain)
    pet.unmerge(model)
    pet.delete_adapter(model, "default")
    np.testing.assert_array_equal(model([[5, 6, 7]]).asnumpy(), plain)
    pet.load_adapter(model, trained / "adapter")
    pet.save_pretrained(pet.merge_and_unload(model), tmp_path)
    assert model.config.labels.names == NAMES
    np.testing.assert_allclose(pet.scores(AutoModel.from_pretrained(tmp_path), [[5, 6, 7]]), before, atol=1e-5)


def test_texts_are_asked_by_a_pipeline_and_by_the_command_line(trained, base, job, capsys):
    asked = ["Shirt 4 is great.", "Shirt 5 is usual.", "Shirt 9 is awful."]
    found = pet.pipeline("text-classification", str(base), adapter=trained / "adapter", top_k=2)(asked)
    assert [row[0]["label"] for row in found] == ["good", "plain", "bad"] and [len(row) for row in found] == [2, 2, 2]
    merged = pet.pipeline("sentiment-analysis", str(trained / "merged"))(asked[0])
    assert merged[0][0]["score"] == pytest.approx(found[0][0]["score"], abs=1e-5)
    assert sum(one["score"] for one in merged[0]) == pytest.approx(1)
    with pytest.raises(InputError, match="no head that judges texts"):
        pet.pipeline("text_classification", str(base))
    capsys.readouterr()
    assert main(["predict", "--run", str(trained), "--input", "a", "--temperature", "0.5"]) == 2
    assert "--temperature: has no effect with a model that judges texts" in capsys.readouterr().err
    assert main(["predict", "--run", str(trained), *(word for text in asked for word in ("--input", text))]) == 0
    assert capsys.readouterr().out.split() == ["good", "plain", "bad"]
    assert main(["predict", "--model", str(trained / "merged"), "--file", str(job.home / "rows.jsonl"), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] for row in rows] == [NAMES[n % 3] for n in range(48)]
    assert rows[0].keys() == {"text", "label", "scores", "where", "reference"}


def test_a_text_beyond_the_context_is_cut_and_that_is_said(trained, base, tmp_path, capsys, caplog):
    pipe = pet.pipeline("text_classification", model=base, adapter=trained / "adapter")
    room, text = pipe.model.room, "green tea " * pet.AutoModel.from_pretrained(base).room
    (found,) = pipe(text)
    assert f"1 of 1 texts are cut: the model's context holds {room} tokens" in caplog.text
    assert found == pipe.judged([pipe.tokenizer.encode(text)[:room]])[0]
    caplog.clear()
    (tmp_path / "texts.txt").write_text(f"green tea\n{text}\n")
    asked = ["predict", "--model", str(base), "--adapter", str(trained / "adapter")]
    assert main([*asked, "--file", str(tmp_path / "texts.txt"), "--json"]) == 0
    assert "1 of 2 texts are cut" in caplog.text
    assert json.loads(capsys.readouterr().out.splitlines()[1])["label"] == found[0]["label"]


def test_a_server_of_language_models_has_no_place_for_a_classifier_s_head(trained, base):
    with pytest.raises(InputError, match=r"has a head that judges texts; only pet merge has a place for it"):
        check_served(trained / "adapter", base, ENGINES["vllm"])


def test_an_export_says_how_it_is_opened(trained, tmp_path):
    for form, said in {"adapter": ", num_labels=3)", "merged": '(".")'}.items():
        assert main(["export", str(trained), "--format", form, "--output", str(tmp_path / form)]) == 0
        card = (tmp_path / form / "README.md").read_text()
        assert "pipeline_tag: text-classification" in card and "AutoModelForCausalLM" not in card
        assert "AutoModelForSequenceClassification.from_pretrained" in card and said in card
        assert "pet predict --model" in card and "pet chat" not in card


@pytest.mark.parametrize("method", ["none", "reward"])
def test_every_weight_is_trained_without_an_adapter(job, theirs, method):
    data = write(
        job.home / "full.jsonl",
        rows_of()
        if method == "none"
        else [{"prompt": f"{n}?", "chosen": f"Yes, {n}.", "rejected": f"No, {n}."} for n in range(24)],
    )
    objective = "classification" if method == "none" else "reward"
    run = job(
        f"full_{method}",
        "adapter={method: none}",
        f"train.objective={objective}",
        f"data.train={data}",
        learning_rate=1e-3,
    )
    ids, mask = padded(texts(), 2, "right")
    ours = pet.scores(AutoModel.from_pretrained(run / "model"), ids, mask)
    model = theirs.transformers.AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    torch = theirs.torch
    with torch.no_grad():
        expected = model(torch.tensor(ids), attention_mask=torch.tensor(mask)).logits.numpy()
    np.testing.assert_allclose(ours.reshape(expected.shape), expected, atol=1e-5)
    last = json.loads((run / "summary.json").read_text())["after"]
    assert (last["accuracy"] if method == "none" else last["reward_accuracy"]) == 1


def test_a_classifier_of_transformers_is_trained_on(theirs, job, base, tmp_path, capsys):
    torch, transformers = theirs.torch, theirs.transformers
    torch.manual_seed(3)
    names = {0: "plain", 1: "bad", 2: "good"}
    theirs_ = transformers.AutoModelForSequenceClassification.from_pretrained(base, id2label=names, dtype=torch.float32)
    theirs_.save_pretrained(tmp_path)
    for file in ("tokenizer.model", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((base / file).read_bytes())
    run = job("on_theirs", model=tmp_path)
    model = AutoModel.from_pretrained(tmp_path)
    assert model.labels.names == tuple(names.values())
    pet.load_adapter(model, run / "adapter")
    assert model.labels.names == tuple(names.values())
    adapter = theirs.peft.AutoPeftModelForSequenceClassification.from_pretrained(run / "adapter").eval()
    ids = texts(1)
    with torch.no_grad():
        np.testing.assert_allclose(pet.scores(model, ids), adapter(torch.tensor(ids)).logits.numpy(), atol=1e-5)
    assert json.loads((run / "summary.json").read_text())["after"]["accuracy"] == 1
    said = job(
        "wrong",
        data={"train": str(write(tmp_path / "r.jsonl", [{"text": "a b", "label": "odd"}]))},
        model=tmp_path,
        capsys=capsys,
    )
    assert "r.jsonl:1: label 'odd' is none of 3: 'plain', 'bad', 'good'" in said


LAYOUTS = {"data": ["data=2"], "tensor": ["tensor=2"], "pipeline": ["pipeline=2", "micro_batches=2"]}


@pytest.fixture(scope="module")
def divided(job, pair):
    """Where the runs of two processes lie, by their layouts: one job."""
    pair(*(job.words(name, *(f"parallel.{setting}" for setting in layout)) for name, layout in LAYOUTS.items()))
    return job.home


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_equal_one_process(divided, trained, base, layout):
    divided = divided / layout
    losses = [[line["loss"] for line in lines_of(run)] for run in (divided, trained)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=1e-5)
    summaries = [json.loads((run / "summary.json").read_text())["before"] for run in (divided, trained)]
    assert summaries[0] == pytest.approx(summaries[1], rel=1e-4)
    one, two = (AutoModel.from_pretrained(base) for _ in range(2))
    pet.load_adapter(one, trained / "adapter")
    pet.load_adapter(two, divided / "adapter")
    assert two.labels.names == NAMES
    np.testing.assert_allclose(pet.scores(two, texts(1)), pet.scores(one, texts(1)), rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_packed_texts_are_judged_as_single_ones_and_resuming_gives_the_same_bits(job, trained):
    import shutil

    first = json.loads((trained / "summary.json").read_text())
    packed = json.loads((job("packed", "data.packing=pack", "train.steps=1") / "summary.json").read_text())
    assert packed["before"] == pytest.approx(first["before"], abs=1e-6)
    whole = job("whole", "train.save_every=8")
    kept = (whole / "adapter/adapter_model.safetensors").read_bytes()
    shutil.rmtree(whole / "checkpoints/step-000016")
    shutil.rmtree(whole / "adapter")
    job("whole", "--resume", "train.save_every=8")
    assert (whole / "adapter/adapter_model.safetensors").read_bytes() == kept


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a b"}, "no column 'label' or 'labels', which a text with a label needs (there is: text)"),
        ({"label": 1}, "no column 'text', which a text with a label needs (there is: label)"),
        ({"sentence1": "one alone", "label": 1}, "no column 'sentence2'"),
        ({"text": 7, "label": 1}, "column 'text': expected a string, found a number"),
        ({"text": "a b", "label": {"x": 1}}, "label: expected a name, a number, or a list of these"),
        ({"input_ids": [], "label": 1}, "column 'input_ids' is empty"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(job, tmp_path, capsys, row, said):
    file = write(tmp_path / "rows.jsonl", [*rows_of(6), row])
    found = job("wrong", "--force", data={"train": str(file)}, capsys=capsys)
    assert f"rows.jsonl:7: {said}" in found


def test_what_a_classifier_cannot_do_is_refused(job, trained, base, capsys):
    said = job("wrong", "adapter={method: prefix}", capsys=capsys)
    assert "adapter.method: prefix has no modules_to_save in PEFT's format" in said
    said = job("wrong", "data.system=Hello", capsys=capsys)
    assert "data.system: has no effect: texts are judged as they stand" in said
    said = job("wrong", "eval.metrics=[loss, bleu]", capsys=capsys)
    assert "eval.metrics: bleu: the model judges texts and writes no answers" in said
    said = job("wrong", "--force", "data.streaming=true", "data.eval_fraction=0", capsys=capsys)
    assert "no label of the data is known beforehand; say them by model.config" in said
    said = job("wrong", "eval.metrics=[loss, f1]", "train.objective=causal", capsys=capsys)
    assert "eval.metrics: f1 is measured with train.objective: classification" in said
    values = write(job.home / "values.jsonl", [{"text": f"{n} a", "label": n / 2} for n in range(8)])
    best = "eval={every_steps: 4, metrics: [loss, accuracy], best_metric: accuracy}"
    said = job("wrong", "--force", best, f"data.train={values}", capsys=capsys)
    assert "eval.best_metric: accuracy is not measured here: loss" in said
    metrics = job.home / "wrong" / "metrics.jsonl"
    assert not (metrics.exists() and metrics.read_text()), "before the first step"
    texts = write(job.home / "texts.jsonl", [{"text": row["text"]} for row in rows_of()])
    causal = ("--force", "train.objective=causal", "data.eval_fraction=0", f"data.train={texts}")
    said = job("wrong", f"model.path={trained / 'merged'}", *causal, capsys=capsys)
    assert "learns of a language model's head, and the model's judges texts" in said
    for setting in ("output.merged=true", "adapter={method: none}"):
        said = job("wrong", "--force", "model.path=glm_tiny", setting, capsys=capsys)
        assert "ChatGLMForConditionalGeneration: transformers has no ForSequenceClassification" in said
