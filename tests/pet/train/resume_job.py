"""A small run with everything that a resume must bring back: dropout, noise, accumulation, schedule, evaluation, a loss
scale that falls and rises, and two adapters, of which a prefix is what a network comes to.

    python resume_job.py DIRECTORY FIXTURE [--resume] [--die-at N] [--signal-at N] [--steps N] [--compiled]

``--die-at N`` kills the process with SIGKILL in the middle of step N: after its gradients, before its update.
What is restored is there before anything is compiled, and compiling takes longer than the run: without ``--compiled``
all of it runs operator by operator.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np

from pet.cli.imports import import_quickly

import_quickly()

from adapters.apply import add_adapter, apply_lora, set_adapter  # noqa: E402
from adapters.prefix import PrefixConfig  # noqa: E402
from model_zoo.auto import AutoModel  # noqa: E402
from pet.recipe.training import Eval  # noqa: E402
from pet.train.trainer import Trainer  # noqa: E402


def batches(count: int, vocabulary: int):
    random = np.random.default_rng(7)
    made = []
    for _ in range(count):
        ids = random.integers(3, vocabulary, (2, 12)).astype(np.int32)
        labels = ids.copy()
        for row in range(2):
            labels[row, : random.integers(1, 9)] = -100
        made.append({"input_ids": ids, "labels": labels})
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("fixture")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--signal-at", type=int)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    model = AutoModel.from_pretrained(arguments.fixture)
    apply_lora(model, rank=4, dropout=0.3, seed=1)
    add_adapter(model, PrefixConfig(length=3, projection=True, projection_hidden=8), "prefix")
    set_adapter(model, ["default", "prefix"])
    data = batches(10, model.config.dims.vocab)
    trainer = Trainer(
        model,
        data,
        data[:1],
        eval=Eval(every_steps=3),
        directory=arguments.directory,
        callbacks=["metrics"],
        steps=arguments.steps,
        batch_size=2,
        accumulation=2,
        learning_rate=0.01,
        warmup=2,
        save_every=arguments.save_every,
        neftune_alpha=5.0,
        weight_decay=0.01,
        seed=3,
        precision="fp16",
        compiled=arguments.compiled,
        loss_scale={"initial": 2.0**24, "factor": 16.0, "window": 2},
    )
    squares_of = (
        trainer.train_step.squares_of
    )  # asked for between gradients and update, also where the update is skipped

    def dying(vectors) -> list[float]:
        if trainer.position.step + 1 == arguments.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if trainer.position.step + 1 == arguments.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return squares_of(vectors)

    trainer.train_step.squares_of = dying
    outcome = trainer.train(resume=arguments.resume)
    weights = {p.name: p.asnumpy() for p in model.get_parameters() if p.requires_grad}
    np.savez(Path(arguments.directory) / "final.npz", **weights)
    (Path(arguments.directory) / "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
