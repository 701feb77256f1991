"""Everything about a run that its next step depends on, to and from a checkpoint."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import mindspore
import numpy as np

import pet
from model_zoo.checkpoint.parameters import read_parameter, write_parameter
from model_zoo.errors import InputError, nearest
from pet.train.callbacks.records import with_nan
from pet.train.checkpoint import Checkpoint
from pet.train.evaluate import Answer
from pet.train.origins import differences
from pet.train.restarts import EARLIER, merged_weights, take_merged

log = logging.getLogger("pet")

FREE = {"resume", "accept_changes", "profile", "save_every", "save_prefix", "keep_last", "log_every", "max_seconds"}
FREE |= {"recompute", "steps", "epochs"}
"""Settings of training that a resumed run may change without becoming another run; of the last two the number of steps
is compared."""


@dataclasses.dataclass
class Position:
    """Where a run stands, between two optimizer steps.

    Attributes:
        updates: those of them that changed the weights; an overflow skips the update.
        epoch, step_in_epoch: the next step's place in the data.
        useful_tokens, tokens: processed so far, without and with padding.
        timed_useful_tokens, timed_tokens, timed_seconds: the same, and their time, of the steps that compiled nothing.
        seconds: training time so far, without compilation and evaluation.
        compile_seconds: time of first calls.
        restarted: the step in front of which the adapter was begun anew last.
    """

    step: int = 0
    updates: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    useful_tokens: int = 0
    tokens: int = 0
    timed_useful_tokens: int = 0
    timed_tokens: int = 0
    timed_seconds: float = 0.0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    restarted: int = 0


@dataclasses.dataclass
class Best:
    """The best evaluation so far, how many came after it without being better, and by what it is the best
    (`pet.recipe.training.Eval.choice`)."""

    step: int | None = None
    value: float | None = None
    since: int = 0
    choice: str | None = None


def trained(trainer) -> dict[str, Any]:
    """The trainable parameters by name."""
    return {p.name: p for segment in trainer.optimizer.segments for p in segment.parameters}


def whole_weights(trainer) -> dict[str, np.ndarray]:
    """The weights that files hold, whole in the main process: the trained ones, and those that are not trained but
    belong to the files all the same. All processes must call it."""
    parameters = {**trained(trainer), **trainer.distributed.untrained(trainer.model)}
    return trainer.distributed.gather({name: read_parameter(value) for name, value in parameters.items()})


def snapshot(trainer) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    """The weights, the optimizer's state, and the numbers, as a checkpoint holds them.

    In a job of several processes all must call it; tensors are this process's own. Whole, on the main one's host, are
    the weights alone, for adapter/ or model/ (`Saving.whole_weights`).
    """
    weights = {name: read_parameter(value) for name, value in trained(trainer).items()}
    weights |= merged_weights(trainer.model)
    trainer.whole_weights = whole_weights(trainer)
    optimizer = trainer.optimizer.state_arrays()
    numbers = {
        "position": dataclasses.asdict(trainer.position),
        "best": dataclasses.asdict(trainer.best),
        "loss_scale": trainer.loss_scale.state(),
        "watch": trainer.watch.state(),
        "before": trainer.before,
        "before_samples": [dataclasses.asdict(sample) for sample in trainer.before_samples],
        "base_samples": [dataclasses.asdict(sample) for sample in trainer.base_samples],
        "unfinished": trainer.unfinished,
        "origins": origins(trainer),
        "fixed": fixed(trainer),
    }
    return weights, optimizer, numbers


def fixed(trainer) -> dict[str, Any]:
    """What a resumed run must have in common with the interrupted one, to give the same numbers."""
    return {
        "mindspore-pet": pet.__version__,
        "mindspore": mindspore.__version__,
        "total_steps": trainer.total_steps,
        **({"training data": trainer.data_seen} if trainer.data_seen else {}),
        **trainer.settings.model_dump(mode="json", exclude=FREE),
    }


def origins(trainer) -> dict[str, list]:
    """The digests of what a run is made from: those that it was given, and those of its objective."""
    return {**(trainer.origins or {}), **(trainer.objective.origins or {})}


def check_origins(trainer, found: Checkpoint) -> None:
    """Compares the data and the base with those that the run began with.

    Raises:
        InputError: they are others, and ``train.accept_changes`` is not set.
    """
    changed = list(differences(found.state.get("origins") or {}, origins(trainer)))
    if changed and not trainer.settings.accept_changes:
        raise InputError.collect(
            [
                *(f"{found.path}: {text} since this run began" for text in changed),
                "train.accept_changes=true (in a script accept_changes=True) goes on with what is there now",
            ]
        )
    for text in changed:
        log.warning("%s since this run began: it continues, but not bit for bit as it would have", text)


def restore(trainer, found: Checkpoint) -> None:
    """Takes over a checkpoint's numbers.

    Raises:
        InputError: tensors are missing, of another shape, or not trained here: another model or adapter; or other data
            or another base than before.
    """
    state = found.state
    check_origins(trainer, found)
    # earlier ones had some of these beside the rest
    written = state.get("fixed") or {key: value for key, value in state.items() if key != "loss_scale"}
    for key, mine in fixed(trainer).items():
        if written.get(key, mine) != mine:
            said = f"{found.path} was written with {key} {written[key]}, this run has {mine}"
            log.warning("%s: it continues, but not bit for bit as it would have", said)
    restore_weights(trainer, found)
    trainer.optimizer.load_state(trainer.distributed.scatter(found.optimizer))
    trainer.position, trainer.best = Position(**state["position"]), Best(**state["best"])
    if trainer.best.choice not in (None, trainer.eval_settings.choice()):
        trainer.best = Best()  # the settings ask for another one now
    trainer.weights_step = trainer.last_measured = None
    trainer.loss_scale.load(state["loss_scale"])
    trainer.watch.load(state["watch"])
    trainer.before, trainer.unfinished = (state.get(one) and with_nan(state[one]) for one in ("before", "unfinished"))
    trainer.before_samples = [Answer(**sample) for sample in state["before_samples"]]
    trainer.base_samples = [Answer(**sample) for sample in state.get("base_samples", [])]


def restore_weights(trainer, found: Checkpoint) -> None:
    """Takes over a checkpoint's weights alone.

    Raises:
        InputError: tensors are missing, of another shape, or not trained here: another model or adapter.
    """
    parameters = trained(trainer)
    weights, problems = trainer.distributed.scatter(found.weights), []
    for name, parameter in parameters.items():
        if name not in weights:
            problems.append(f"checkpoint {found.path}: has no {name!r}{nearest(name, weights)}")
        elif tuple(weights[name].shape) != tuple(parameter.shape):
            shape = tuple(weights[name].shape)
            problems.append(f"checkpoint {found.path}: {name!r} has shape {shape}, expected {parameter.shape}")
    extra = sorted(name for name in weights.keys() - parameters.keys() if not name.startswith(EARLIER))
    problems.extend(f"checkpoint {found.path}: {name!r} is not trained here" for name in extra)
    InputError.raise_any(problems)
    take_merged(trainer.model, weights)
    for name, parameter in parameters.items():
        write_parameter(parameter, weights[name])
