"""A model of three tensors that compiles in half a second, and batches of uneven rows for it."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

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
        for mark in (1, 1 if pairs else 2):
            answer = random.integers(10, 60, random.integers(1, length // 2 - 2)).tolist()
            documents.append((question + answer, [0] * len(question) + [mark] * len(answer)))
    data = TokenDataset.from_samples(documents)
    data.documents = 2 if pairs else 1
    how = {"max_length": length, "shuffle": False, "share_question": pairs and shared, **settings}
    return shared_loader(data, rows, DataSettings(**how), model, None, DistributedContext())


@pytest.fixture(scope="session", name="comparisons")
def make_comparisons():
    """Makes such a loader."""
    return comparisons


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
