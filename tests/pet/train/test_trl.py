"""Steps of TRL's trainers with PEFT, and of this library from the same adapter on the same tokens."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from peers import imported
from sets import some

import pet
from pet.data import DataSettings, Loader, TokenDataset
from pet.names import bundled_models
from pet.train.trainer import Trainer

torch = None
peers = imported(globals(), "torch")
CASES = {  # where TRL has it, its settings, ours, steps
    "dpo": ("trl:DPO", {}, {}, 20),
    "dpo sft": ("trl:DPO", {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}, {"sft_weight": 0.5}, 8),
    "hinge": ("trl:DPO", {"loss_type": ["hinge"]}, {}, 8),
    "ipo": ("trl:DPO", {"loss_type": ["ipo"]}, {}, 8),
    "robust": ("trl:DPO", {"loss_type": ["robust"], "label_smoothing": 0.2}, {"label_smoothing": 0.2}, 8),
    "kto": ("trl:KTO", {"train_sampling_strategy": "sequential"}, {}, 20),
    "simpo": (
        "trl.experimental.cpo:CPO",
        {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 0.5},
        {},
        8,
    ),
    "simpo sft": (
        "trl.experimental.cpo:CPO",
        {"loss_type": "simpo", "cpo_alpha": 1.0, "beta": 2.0, "simpo_gamma": 0.5},
        {"sft_weight": 1.0},
        8,
    ),
    "orpo": ("trl.experimental.orpo:ORPO", {"beta": 0.1}, {}, 8),
}


@pytest.fixture
def peer(trl_side, monkeypatch):
    """A trainer of TRL's with its configuration, where they can be imported."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def find(place: str):
        module, _, name = place.partition(":")
        try:
            found = importlib.import_module(module)
            return trl_side.in_order(getattr(found, f"{name}Trainer")), getattr(found, f"{name}Config")
        except (ImportError, RuntimeError, AttributeError) as error:
            pytest.skip(f"TRL cannot be imported here: {str(error).splitlines()[0]}")

    return find


def with_ids(kind):
    """TRL's trainer over rows that hold ids: its own reading adds tokens to texts."""

    class WithIds(kind):
        def tokenize_row(self, feature, model=None):
            found = {"prompt_input_ids": feature["start"], "prompt_attention_mask": [1] * len(feature["start"])}
            for name in ("chosen", "rejected"):
                ids = feature["start"] + feature[f"{name}_answer"]
                labels = [-100] * len(feature["start"]) + feature[f"{name}_answer"]
                found |= {f"{name}_input_ids": ids, f"{name}_labels": labels}
                found[f"{name}_attention_mask"] = [1] * len(ids)
            return found

    return WithIds


def rows_of(objective: str, count: int) -> list[dict]:
    """Texts; or ids for trainers without a reference. Of the objectives with a likelihood beside the comparison the
    preferred answers are of one length, and ORPO's questions of one token: TRL takes one mean over all tokens of a
    batch, and ORPO's over those of the questions, too."""
    if objective in ("simpo", "orpo"):
        random = np.random.default_rng(0)
        lengths = (1, 5, 7) if objective == "orpo" else (4, 6, 9)
        names = ("start", "chosen_answer", "rejected_answer")
        ids = [{name: random.integers(10, 200, n).tolist() for name, n in zip(names, lengths, strict=True)}]
        ids += [
            {name: random.integers(10, 200, len(ids[0][name])).tolist() for name in names} for _ in range(count - 1)
        ]
        return [{**row, "prompt": "?", "chosen": "a", "rejected": "b"} for row in ids]
    rows = []
    for number in range(10, 10 + count):
        good, bad = f"Cup {number} is red.", "Red!"
        row = {"prompt": f"What colour is cup {number}? It is red."}
        if objective == "kto":
            rows.append({**row, "completion": good if number % 3 else bad, "label": number % 3 != 0})
        else:
            rows.append({**row, "chosen": good, "rejected": bad})
    return rows


def documents_of(dataset) -> list[tuple[list[int], list[int]]]:
    """The documents that TRL made of its rows, with what is learnt of them."""
    found = []
    for row in dataset:
        start = row.get("prompt_ids") or row["prompt_input_ids"]
        for name in ("chosen", "rejected", "completion"):
            if f"{name}_ids" in row:
                answer = row[f"{name}_ids"]
            elif f"{name}_input_ids" in row:
                answer = row[f"{name}_input_ids"][len(start) :]
            else:
                continue
            found.append((start + answer, [0] * len(start) + [1] * len(answer)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", some(CASES, ("dpo", "kto")))
def test_the_curve_of_trl(case, peer, trl_side, tmp_path):
    Dataset, peft = pytest.importorskip("datasets").Dataset, pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")

    place, settings, ours, steps = CASES[case]
    objective, batch = case.split()[0], 2 if case == "kto" else 4
    kind, config = peer(place)
    kind = with_ids(kind) if objective in ("simpo", "orpo") else kind
    torch.manual_seed(0)
    directory = bundled_models()["llama_tiny"]
    plain = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(plain, lora)
    adapted.save_pretrained(tmp_path / "start")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    how = {**trl_side.settings, "max_steps": steps, "per_device_train_batch_size": batch, **settings}
    theirs = kind(
        adapted,
        args=config(**how),
        train_dataset=Dataset.from_list(rows_of(objective, steps * batch)),
        processing_class=tokenizer,
    )
    documents = documents_of(theirs.train_dataset)
    theirs.train()
    model = pet.AutoModel.from_pretrained("llama_tiny")
    pet.load_adapter(model, tmp_path / "start")
    labels = [row["label"] for row in theirs.train_dataset] if objective == "kto" else None
    data = TokenDataset.from_samples(documents, labels)
    data.documents = 1 if objective == "kto" else 2
    order = DataSettings(packing="none", max_length=max(len(ids) for ids, _ in documents), shuffle=False)
    how = {"objective": objective, "steps": steps, "learning_rate": 1e-3, "schedule": "constant", "warmup": 0}
    trainer = Trainer(model, Loader(data, batch, order), **how, **ours)
    trainer.train()
    assert len(trl_side.losses) == steps and max(trl_side.losses) - min(trl_side.losses) > 1e-3
    np.testing.assert_allclose([line["loss"] for line in trainer.history], trl_side.losses, atol=1e-4)
    if case in ("dpo", "kto"):
        assert trl_side.losses[0] == pytest.approx(np.log(2) if case == "dpo" else 0.5, abs=1e-6)
    if case == "kto":
        assert max(line.get("kl", 0) for line in theirs.state.log_history) > 0.01
