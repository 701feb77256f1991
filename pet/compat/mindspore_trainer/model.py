"""Models of tasks: built by a configuration, called by a dataset's columns, measured by the task's metrics."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np

from model_zoo.arguments import checked
from model_zoo.atomic import read_json
from model_zoo.checkpoint.reading import load_into
from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.counting import parameter_shapes
from model_zoo.errors import InputError
from model_zoo.rope_config import with_changes
from pet.auto import AutoModel
from pet.compat.ckpt.beside import converted
from pet.compat.ckpt.doors import is_ckpt
from pet.compat.mindspore_trainer.tasks import width
from pet.compat.objects import TRAINED
from pet.compat.outputs import Outputs, call, tensors
from pet.names import find_model, model_config, preset_names

log = logging.getLogger("pet")


def outputs(model, data: dict[str, Any], columns: Sequence[str]) -> tuple:
    """What a model gives for a batch, as a tuple: a bundled one its logits, another cell what its columns give."""
    if getattr(model, "family", None) is None:
        found = model(*[data[name] for name in columns])
        return found if isinstance(found, tuple) else (found,)
    return (Outputs(model)(**{name: value for name, value in data.items() if name != "labels"}).logits,)


def with_loss(loss, columns: Sequence[str], simple: bool) -> Callable:
    """``(data, model) → loss`` by a loss cell of (outputs…, second column), or of (columns…, outputs…)."""

    def forward(data, model):
        found = outputs(model, data, columns)
        sample = [data[name] for name in columns]
        result = loss(*found, sample[1]) if simple else loss(*sample, *found)
        return result[0] if isinstance(result, tuple) else result

    return forward


class Measured(Outputs):
    """The model as an evaluation function gets it: ``model.eval(data)`` gives this evaluation's numbers.

    Args:
        columns: the data's.
        metrics: ``{name: MindSpore's Metric}``.
        head: gives what metrics are updated with, see `judged`; None for the first output and second column.
        named: an `EvalData`, whose ``metrics_fn`` gives more.
    """

    def __init__(self, model, columns: Sequence[str], metrics: dict[str, Any], head=None, named=None):
        super().__init__(model)
        self.columns, self.metrics, self.head, self.named = columns, metrics, head, named
        self.results: dict[str, Any] = {}

    def eval(self, data: Any = None, **how: Any) -> dict[str, Any]:
        """Loss, perplexity and the metrics by name."""
        return dict(self.results)

    def judged(self, data: dict[str, Any], found: tuple) -> tuple:
        """What the head gives, of (outputs…, second column) where it takes two, else of (columns…, outputs…)."""
        if self.head is None:
            return found
        sample = [data[name] for name in self.columns]
        given = self.head(*found, sample[1]) if width(self.head) == 2 else self.head(*sample, *found)
        return given if isinstance(given, tuple) else (given,)

    def predicted(self, data: dict[str, Any]) -> Any:
        """The first of what the head gives."""
        return self.judged(data, outputs(self.model, data, self.columns))[0]

    def measure(self, batches: Iterable) -> dict[str, float]:
        """Updates the metrics with all batches; their numbers, those of a dictionary as ``<metric>_<name>``."""
        for metric in self.metrics.values():
            metric.clear()
        rows = []
        for data in map(tensors, batches):
            found = outputs(self.model, data, self.columns)
            rows.append([each.asnumpy() for each in (found[0], data[self.columns[1]])])
            given = (found[0], data[self.columns[1]]) if self.head is None else self.judged(data, found)
            for metric in self.metrics.values():
                metric.update(*given)
        self.results = {name: metric.eval() for name, metric in self.metrics.items()}
        if self.named and self.named.metrics_fn:
            logits, labels = (np.concatenate(parts) for parts in zip(*rows, strict=True))
            self.results[self.named.name] = dict(self.named.metrics_fn(logits, labels))
        flat = {}
        for name, value in self.results.items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            flat.update({f"{name}_{part}".rstrip("_"): float(number) for part, number in parts})
        return flat


def trained_file(source: str) -> Path | None:
    """What a run of a cell of no family has trained, in its directory or one of its checkpoints."""
    path = Path(source).expanduser()
    path = path / TRAINED if path.is_dir() else path
    return path if path.name == TRAINED and path.is_file() else None


def is_mindspores(source: str) -> bool:
    """Whether a file is of parameters that MindSpore wrote, and not what a run here has trained."""
    return trained_file(source) is None and is_ckpt(source)


def put_trained(model, file: Path) -> None:
    """Gives a cell what such a run has trained.

    Raises:
        InputError: the cell has other parameters.
    """
    found = read_file(file)
    own = {parameter.name: parameter for parameter in model.trainable_params()}
    shapes = ({name: tuple(each.shape) for name, each in every.items()} for every in (found, own))
    if other := sorted(name for name, _ in {*next(shapes).items()} ^ {*next(shapes).items()}):
        raise InputError(f"{file}: is of another cell; not in both, or of another shape: {', '.join(other[:4])}")
    for name, value in found.items():
        own[name].set_data(ms.Tensor(value))


@checked
def build_transformer_model(
    config_path: str | os.PathLike | None = None,
    model="auto",
    application="encoder",
    checkpoint_path: str | os.PathLike | None = None,
    compute_type=None,
    padding_idx=None,
    **changes,
) -> tuple[Any, Any]:
    """``(model, config)``: with the weights of a checkpoint directory or bundled base, else random ones of the
    configuration's sizes.

    Args:
        config_path: a config.json, a checkpoint directory, or a bundled base's or preset's name.
        model: a class of the script's own, which gets the configuration; else of no effect.
        application, compute_type, padding_idx: of no effect: ``--fp16`` says the precision, the tokenizer the padding.
        checkpoint_path: where the weights are, if not beside the configuration: a directory, or a MindFormers
            ``.ckpt`` file; not with a class of the script's own.
        changes: keys of config.json to change. Where the weights no longer fit, they are random, with a warning.
    """
    source = checkpoint_path or config_path
    if source is None:
        raise InputError("build_transformer_model: config_path is missing")
    if isinstance(model, type):
        if checkpoint_path is not None:
            why = "a class of the script's own loads its weights itself (mindspore.load_param_into_net)"
            raise InputError(f"build_transformer_model: checkpoint_path: {why}")
        config = {**read_json(config_path, "a model's configuration"), **changes}
        more = {"compute_type": compute_type, "padding_idx": padding_idx}
        return call(model, config, **{name: value for name, value in more.items() if value is not None}), config
    if is_ckpt(source):
        source = converted(source, config_path if checkpoint_path else None)
    given = model_config(config_path or source)
    values = with_changes(given, changes)
    built = AutoModel.from_config(values)
    if str(source) in preset_names() or Path(str(source)).is_file():
        return built, built.config  # sizes alone
    if parameter_shapes(values) == parameter_shapes(given):
        load_into(built, find_model(source))
    else:
        log.warning("build_transformer_model: weights are random, their shapes change by %s", ", ".join(changes))
    return built, built.config
