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
