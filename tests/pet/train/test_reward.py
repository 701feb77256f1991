"""Reward models: the formula against torch, files against PEFT, the curve against TRL, and what is refused."""

from __future__ import annotations

import json

import mindspore as ms
import numpy as np
import pytest
from first_layers import first_layers
from recipe_jobs import RecipeJobs
from sets import some

import pet
from adapters.score import add_head
from model_zoo.labels import Labels
from pet import AutoModel, InputError, apply_lora
from pet.data.dataset import TokenDataset
from pet.data.loader import Loader
from pet.data.settings import DataSettings
from pet.names import bundled_models
from pet.recipe.training import Train
from pet.train.objectives import make_objective
from pet.train.trainer import Trainer

ADAPTER = "adapter/adapter_model.safetensors"


def packed(documents, rows: int = 2, said=None):
    found = TokenDataset.from_samples(documents, said)
    found.documents = 2
    return next(iter(Loader(found, rows, DataSettings(packing="pack", max_length=12, shuffle=False)).batches(0)))


@pytest.mark.parametrize("centering", [0.0, 0.3])
@pytest.mark.parametrize("margins", [False, True])
@pytest.mark.parametrize("spread", [1, 300])
def test_the_loss_and_its_gradient_are_the_formula(spread, margins, centering):
    torch = pytest.importorskip("torch")
    random, documents = np.random.default_rng(0), []
    for _ in range(5):
        for _ in range(2):
            length = random.integers(2, 6)
            documents.append((random.integers(0, 9, length).tolist(), [False, *[True] * (length - 1)]))
    objective = make_objective(Train(objective="reward", center_rewards_coefficient=centering))
    said = [value for own in (0.5, None, 1.5, -0.25, 0.0) for value in (own, own)] if margins else None
    batch = objective.prepare(packed(documents, said=said), training=True)
    assert objective.count(batch) == 5
    numbers = random.normal(0, spread, (batch["labels"].size, 1)).astype(np.float32)
    arrays = [ms.Tensor(batch[name]) for name in objective.arrays]
    value, gradient = ms.value_and_grad(lambda x: objective.loss(x, *arrays))(ms.Tensor(numbers))
    leaf, total = torch.tensor(numbers.astype(np.float64), requires_grad=True), 0.0
    by_key = {}
    for row, members in enumerate(batch["sample_ids"]):
        place = row * batch["labels"].shape[1]
        for key in members:
            place += len(documents[key][0])
            by_key[key] = leaf[place - 1, 0]
    for key in range(0, len(documents), 2):
        margin = (said[key] or 0.0) if margins else 0.0
        total = total - torch.nn.functional.logsigmoid(by_key[key] - by_key[key + 1] - margin)
        total = total + centering * (by_key[key] + by_key[key + 1]) ** 2
    total.backward()
    assert float(value) == pytest.approx(float(total.detach()), rel=1e-5)
    np.testing.assert_allclose(gradient.asnumpy(), leaf.grad.numpy(), rtol=1e-5, atol=1e-5)
    measured = objective.metrics([float(one) for one in objective.measure(ms.Tensor(numbers), *arrays)], 5)
    ahead = [float(by_key[key] > by_key[key + 1]) for key in range(0, 10, 2)]
    assert measured["reward_accuracy"] == pytest.approx(np.mean(ahead))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A file of pairs whose better answer is polite."""
    file = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [
        {"prompt": f"What is {n}?", "chosen": f"Thank you, it is {n}.", "rejected": f"No idea, {n}."} for n in range(24)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Two layers of it: a pipeline wants as many."""
    return first_layers(bundled_models()["llama_tiny"], tmp_path_factory.mktemp("base"), 2)


@pytest.fixture(scope="module")
def job(tmp_path_factory, base, pairs):
    """Runs a recipe of a reward model; gives its directory, or what was said where it failed."""
    return RecipeJobs(
        tmp_path_factory.mktemp("jobs"),
        {
            "model": {"path": str(base)},
            "data": {"train": str(pairs), "eval_fraction": 0.25, "max_length": 48, "packing": "none"},
            "adapter": {"method": "lora", "targets": ["all-linear"]},
            "train": {"objective": "reward", "steps": 8, "batch_size": 6, "learning_rate": 5e-3},
        },
    )


@pytest.fixture(scope="module")
def trained(job):
    """The run directory of a reward model."""
    return job("trained")


def lines_of(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_reward_model_learns_which_answer_is_preferred(trained, job, capsys):
    summary, lines = json.loads((trained / "summary.json").read_text()), lines_of(trained)
    assert lines[0]["loss"] == pytest.approx(np.log(2), abs=1e-6) and lines[0]["pairs"] == 6
    assert summary["after"]["reward_accuracy"] == 1 and summary["after"]["loss"] < 0.3
    assert not (trained / "samples.jsonl").exists(), "a reward model writes no answers"
    capsys.readouterr()
    job("again", command=("evaluate", "--adapter", str(trained / "adapter")), capsys=capsys)
    assert "reward accuracy    1.0000" in capsys.readouterr().out


def scores_of_rows(model):
    ids = np.random.default_rng(0).integers(5, 200, (3, 9))
    mask = np.ones_like(ids)
    mask[1, 6:], mask[2, :4] = 0, 0
    return ids, mask, pet.scores(model, ids, mask)


def test_transformers_and_peft_give_the_same_scores(trained, base):
    torch = pytest.importorskip("torch")
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = json.loads((trained / "adapter/adapter_config.json").read_text())
    assert config["task_type"] == "SEQ_CLS" and config["modules_to_save"] == ["score"]
    model = AutoModel.from_pretrained(base)
    pet.load_adapter(model, trained / "adapter")
    ids, mask, ours = scores_of_rows(model)
    assert np.abs(ours).min() > 1e-3
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(plain, trained / "adapter").eval()
    found = []
    for row, real in zip(ids, mask, strict=True):  # one by one: without padding the last token is the last
        with torch.no_grad():
            found.append(float(theirs(torch.tensor(row[real != 0][None])).logits))
    np.testing.assert_allclose(ours, found, atol=1e-5)


def test_a_reward_model_of_peft_is_opened(tmp_path):
    torch = pytest.importorskip("torch")
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(
        bundled_models()["llama_tiny"], num_labels=1, dtype=torch.float32
    )
    adapted = peft.get_peft_model(plain, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["q_proj"])).eval()
    adapted.save_pretrained(tmp_path)
    model = AutoModel.from_pretrained("llama_tiny")
    pet.load_adapter(model, tmp_path)
    ids, _, ours = scores_of_rows(model)
    with torch.no_grad():
        expected = float(adapted(torch.tensor(ids[:1])).logits)
    assert ours[0] == pytest.approx(expected, abs=1e-5)
    pet.save_adapter(model, tmp_path / "again")
    assert json.loads((tmp_path / "again/adapter_config.json").read_text())["task_type"] == "SEQ_CLS"


def test_a_margin_of_the_data_reaches_the_loss(tmp_path):
    """A head that is fresh gives every answer the same score, so that the first loss is the margins' alone."""
    rows = [{"prompt": f"{n}?", "chosen": "Yes.", "rejected": "No!", "margin": n / 2} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = apply_lora(AutoModel.from_pretrained("llama_tiny"), rank=2, targets=["q_proj"])
    trainer = Trainer(model, tmp_path / "rows.jsonl", objective="reward", steps=1, batch_size=4)
    trainer.train()
    expected = np.mean([np.log1p(np.exp(row["margin"])) for row in rows])
    assert trainer.history[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_trainer_gives_an_adapter_its_head(pairs, tmp_path):
    model = apply_lora(AutoModel.from_pretrained("llama_tiny"), rank=4, targets="all-linear")
    trainer = Trainer(model, pairs, pairs, objective="reward", steps=6, batch_size=2, learning_rate=1e-2)
    assert "score" in [one.name.split(".")[0] for one in pet.trainable_parameters(model)]
    trainer.train()
    assert trainer.history[-1]["loss"] < 0.3 < trainer.history[0]["loss"]
    pet.save_adapter(model, tmp_path / "saved")
    again = AutoModel.from_pretrained("llama_tiny")
    pet.load_adapter(again, tmp_path / "saved")
    np.testing.assert_allclose(scores_of_rows(again)[2], scores_of_rows(model)[2], atol=1e-6)


def test_what_a_reward_model_cannot_do_is_refused(trained, base, job, pairs, capsys, tmp_path):
    said = job("wrong", "adapter={method: prefix}", capsys=capsys)
    assert "adapter.method: prefix has no modules_to_save in PEFT's format" in said
    said = job("wrong", "eval.metrics=[loss, rouge_l]", capsys=capsys)
    assert "eval.metrics: rouge_l" in said and "writes no answers" in said
    said = job("wrong", command=("evaluate", "--base"), capsys=capsys)
    assert "learns of a head that judges texts, and the model has none" in said
    model = AutoModel.from_pretrained(base)
    with pytest.raises(InputError, match="prompt has no modules_to_save"):
        Trainer(pet.apply_prompt(model, length=2), pairs, objective="reward", steps=1)
    pet.delete_adapter(model, "default")
    with pytest.raises(InputError, match="no head that judges texts, nor has an active adapter"):
        pet.scores(model, [[1, 2]])
    pet.load_adapter(model, trained / "adapter")
    with pytest.raises(InputError, match="judges texts and writes none"):
        model.generate([[1, 2]])
    with pytest.raises(InputError, match="learns of a language model's head, and the model's judges texts"):
        Trainer(model, [{"input_ids": [[1, 2, 3]]}], steps=1)
    pairs_only = pet.apply_lora(AutoModel.from_pretrained(base), rank=2, targets=["q_proj"])
    add_head(pairs_only, Labels.plain(2))
    with pytest.raises(InputError, match="head has 2 labels; one number was expected"):
        Trainer(pairs_only, pairs, objective="reward", steps=1)
    with pet.disable_adapters(model):
        assert model.generate([[1, 2]], max_new_tokens=1).shape == (1, 3), "the base still writes"


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
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    one, two = (AutoModel.from_pretrained(base) for _ in range(2))
    pet.load_adapter(one, trained / "adapter")
    pet.load_adapter(two, divided / "adapter")
    np.testing.assert_allclose(scores_of_rows(two)[2], scores_of_rows(one)[2], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_packed_pairs_are_scored_as_single_ones_and_resuming_gives_the_same_bits(job, trained, tmp_path):
    import shutil

    first = json.loads((trained / "summary.json").read_text())
    packed = json.loads((job("packed", "data.packing=pack", "train.steps=1") / "summary.json").read_text())
    assert packed["before"] == pytest.approx(first["before"], abs=1e-6)
    whole = job("whole", "train.save_every=4")
    kept = (whole / ADAPTER).read_bytes()
    shutil.rmtree(whole / "checkpoints/step-000008")
    shutil.rmtree(whole / "adapter")
    job("whole", "--resume", "train.save_every=4")
    assert (whole / ADAPTER).read_bytes() == kept


@pytest.mark.slow
@pytest.mark.parametrize("how", some([{}, {"center_rewards_coefficient": 0.05}], [{}]), ids=str)
def test_the_curve_of_trl(trl_side, tmp_path, how):
    """Twenty steps of TRL's RewardTrainer with PEFT, and of this library from the same adapter on the same tokens."""
    torch = pytest.importorskip("torch")
    try:
        from datasets import Dataset
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        from trl import RewardConfig, RewardTrainer
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"TRL cannot be imported here: {str(error).splitlines()[0]}")
    random = np.random.default_rng(0)

    torch.manual_seed(0)
    directory = bundled_models()["llama_tiny"]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    plain = AutoModelForSequenceClassification.from_pretrained(directory, num_labels=1, dtype=torch.float32)
    plain.config.pad_token_id = tokenizer.pad_token_id
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="SEQ_CLS")
    adapted = get_peft_model(plain, config)
    adapted.save_pretrained(tmp_path / "start")
    pairs = [[random.integers(10, 200, random.integers(4, 12)).tolist() for _ in range(2)] for _ in range(80)]
    settings = RewardConfig(
        per_device_train_batch_size=4,
        **trl_side.settings,
        **how,
    )
    margins = [random.normal() if how else None for _ in pairs]
    rows = [{"chosen_ids": chosen, "rejected_ids": rejected} for chosen, rejected in pairs]
    rows = [{**row, "margin": margin} if how else row for row, margin in zip(rows, margins, strict=True)]
    rows = Dataset.from_list(rows)
    theirs = trl_side.in_order(RewardTrainer)(adapted, args=settings, train_dataset=rows, processing_class=tokenizer)
    theirs.train()
    documents = [(ids, [0] + [1] * (len(ids) - 1)) for pair in pairs for ids in pair]
    data = TokenDataset.from_samples(documents, [margin for margin in margins for _ in range(2)])
    data.documents = 2
    loader = Loader(data, 4, DataSettings(packing="none", max_length=12, shuffle=False))
    model = AutoModel.from_pretrained("llama_tiny")
    pet.load_adapter(model, tmp_path / "start")
    steps = {"steps": 20, "learning_rate": 1e-3, "schedule": "constant", "warmup": 0}
    ours = Trainer(model, loader, objective="reward", **steps, **how)
    ours.train()
    losses = trl_side.losses
    assert max(losses) - min(losses) > 0.1
    np.testing.assert_allclose([line["loss"] for line in ours.history], losses, atol=1e-4)
