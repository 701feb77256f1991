"""A model of three tensors that compiles in half a second, and batches of uneven rows for it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from first_layers import first_layers
from labelled_texts import BASES
from mindspore import Parameter, Tensor, nn, ops

from pet.names import bundled_models

VOCABULARY, WIDTH = 31, 16


class Toy(nn.Cell):
    """Predicts the next token from the present one: embedding, a hidden layer, tied head."""

    def __init__(self, seed: int = 0):
        super().__init__()
        random = np.random.default_rng(seed)
        self.embed = Parameter(Tensor((random.normal(size=(VOCABULARY, WIDTH)) * 0.3).astype(np.float32)), name="embed")
        self.mix = Parameter(Tensor((random.normal(size=(WIDTH, WIDTH)) * 0.3).astype(np.float32)), name="mix")
        self.bias = Parameter(Tensor(np.zeros(WIDTH, np.float32)), name="bias")

    def hidden_states(self, input_ids, position_ids, start, end, keep):
        hidden = ops.gather(self.embed, input_ids.reshape(-1), 0)
        return ops.tanh(ops.matmul(hidden, self.mix) + self.bias)  # (B·S, H)

    def head(self, hidden):
        return ops.matmul(hidden, self.embed.T)

    def construct(self, input_ids):
        batch, length = input_ids.shape
        return self.head(self.hidden_states(input_ids, None, None, None, None)).reshape(batch, length, -1)


def make_batch(rows: int, length: int = 8, seed: int = 0):
    """Rows with different numbers of label tokens."""
    random = np.random.default_rng(seed)
    ids = random.integers(1, VOCABULARY, (rows, length)).astype(np.int32)
    labels = ids.copy()
    for row in range(rows):
        labels[row, : random.integers(1, length - 2)] = -100
    own = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": own,
        "start": np.zeros_like(own),
        "end": own + 1,
        "sample_ids": [f"sample {seed}.{row}" for row in range(rows)],
    }


def comparisons(model, kind: str = "pairs", *, rows: int = 2, length: int = 24, shared: bool = True, **settings):
    """A loader over six random questions with two answers each, laid out as the model wants them: as pairs, or each
    answer by itself, every second one undesirable. ``shared``: whether a question may stand once for both."""
    from pet.data import DataSettings, TokenDataset
    from pet.train.distributed import DistributedContext
    from pet.train.feed import shared_loader

    random, documents, pairs = np.random.default_rng(3), [], kind == "pairs"
    for _ in range(6):
        question = random.integers(10, 60, random.integers(2, length // 2)).tolist()
        if model.family.name == "glm":  # the question ends with what it is read by, in both directions
            question += [model.config.gmask_token_id, model.config.bos_token_id]
        for _ in range(2):
            answer = random.integers(10, 60, random.integers(1, length // 2 - 2)).tolist()
            documents.append((question + answer, [0] * len(question) + [1] * len(answer)))
    data = TokenDataset.from_samples(documents, None if pairs else [True, False] * 6)
    data.documents = 2 if pairs else 1
    how = {"max_length": length, "shuffle": False, "share_question": pairs and shared, **settings}
    return shared_loader(data, rows, DataSettings(**how), model, None, DistributedContext())


@pytest.fixture(scope="session", name="comparisons")
def make_comparisons():
    """Makes such a loader."""
    return comparisons


def write_rows(home) -> None:
    """Files of pairs and of labelled answers."""
    rows = [
        {"prompt": f"What is {number}?", "chosen": f"two {number}", "rejected": f"one {number}"} for number in range(24)
    ]
    (home / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open(home / "labelled.jsonl", "w") as file:
        for number, row in enumerate(rows):
            label = number % 3 != 0
            answer = {"completion": row["chosen" if label else "rejected"], "label": label}
            file.write(json.dumps({"prompt": row["prompt"], **answer}) + "\n")


def command(home, name: str, *settings: str, adapter=None, **train) -> list[str]:
    """The command line that tunes on these rows."""
    recipe = {
        "model": {"path": "llama_tiny"},
        "data": {
            "train": "labelled.jsonl" if train.get("objective") == "kto" else "pairs.jsonl",
            "eval_fraction": 0.25,
            "max_length": 48,
            "packing": "none",
            "cache_dir": str(home / "cache"),  # a user's own may hold what earlier code made of the reference
        },
        "adapter": adapter or {"method": "lora", "targets": ["all-linear"]},
        "train": {"objective": "dpo", "steps": 6, "batch_size": 6, "learning_rate": 0.002, **train},
        "eval": {"shown_samples": 0},
        "output": {"dir": str(home / name)},
    }
    (home / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    return ["finetune", str(home / f"{name}.yaml"), *settings]


def result(directory):
    """The lines of metrics and the summary of a run."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return lines, json.loads((directory / "summary.json").read_text())


@pytest.fixture(scope="session")
def preference_runs():
    """What `finetune` is made of, for runs of other fixtures."""
    return SimpleNamespace(write_rows=write_rows, command=command, result=result)


@pytest.fixture(scope="session")
def llama_layer(tmp_path_factory):
    """The base of these recipes, its first layer alone."""
    return first_layers(bundled_models()["llama_tiny"], tmp_path_factory.mktemp("base") / "llama_tiny", 1)


@pytest.fixture
def finetune(tmp_path, llama_layer, capsys):
    """Runs a recipe over pairs; gives its lines of metrics and its summary, or what was said if it fails."""
    from pet.cli.main import main

    write_rows(tmp_path)

    def run(name: str, *settings: str, **changes):
        code = main(command(tmp_path, name, f"model.path={llama_layer}", *settings, **changes))
        said = capsys.readouterr()
        return (said.err, None) if code else result(tmp_path / name)

    return run


@pytest.fixture
def toy():
    """Makes a toy model."""
    return Toy


@pytest.fixture
def batch():
    """Makes a batch."""
    return make_batch


@pytest.fixture
def weights():
    """The parameters of a model as arrays."""
    return lambda model: {name: value.asnumpy().copy() for name, value in model.parameters_dict().items()}


class Peer:
    """TRL's side of a comparison: its data in their order, the loss of every step, settings that change nothing else.

    Attributes:
        losses: of the steps.
        settings: of its configurations, for twenty steps.
    """

    def __init__(self, directory):
        self.losses: list[float] = []
        self.settings = {
            "output_dir": str(directory / "run"),
            "max_steps": 20,
            "logging_steps": 1,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "report_to": [],
            "save_strategy": "no",
            "bf16": False,
            "max_length": None,
            "gradient_checkpointing": False,
            "use_cpu": True,
            "disable_tqdm": True,
        }

    def in_order(self, kind):
        """A trainer class that does so."""
        import torch
        from torch.utils.data import SequentialSampler

        losses = self.losses

        class InOrder(kind):
            def _get_train_sampler(self, *_):
                return SequentialSampler(self.train_dataset)

            def training_step(self, *arguments, **keywords):
                losses.append(float(super().training_step(*arguments, **keywords)))
                return torch.tensor(losses[-1])

        return InOrder


@pytest.fixture
def trl_side(tmp_path):
    return Peer(tmp_path)


@pytest.fixture(scope="module")
def theirs():
    """transformers, PEFT and torch, and a classifier of theirs over a bundled base."""
    torch = pytest.importorskip("torch")
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")

    def adapted(base, problem="single_label_classification", **settings):
        torch.manual_seed(0)
        tokenizer = transformers.AutoTokenizer.from_pretrained(bundled_models()[base])
        plain = transformers.AutoModelForSequenceClassification.from_pretrained(
            bundled_models()[base],
            num_labels=1 if problem == "regression" else 3,
            problem_type=problem,
            dtype=torch.float32,
        )
        plain.config.pad_token_id = tokenizer.eos_token_id
        for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
            if hasattr(plain.config, name):
                setattr(plain.config, name, 0.0)
        for module in plain.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=BASES[base], **settings)
        return peft.get_peft_model(plain, config)

    adapted.torch, adapted.peft, adapted.transformers = torch, peft, transformers
    return adapted
