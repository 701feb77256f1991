"""Choosing which parameters are trained, by name, as MindPet's users know it; and checkpoints of just those.

`freeze_modules`, `freeze_delta`, `freeze_from_config` and `TrainableParamsCheckPoint` take MindPet's arguments. Unlike
there, an unknown mode or a pattern that matches no parameter is an error, a configuration may hold ``include`` alone,
and nothing is frozen before everything has been checked.
"""

from __future__ import annotations

import fnmatch
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mindspore as ms
import yaml
from mindspore import Parameter, nn
from mindspore.train.callback import Callback

from adapters.apply import trainable_parameters
from adapters.registry import registry
from adapters.settings import SETTINGS
from model_zoo.arguments import checked
from model_zoo.atomic import check_name, read_bytes
from model_zoo.checkpoint.safetensors_io import write_file
from model_zoo.errors import InputError, nearest, similar
from model_zoo.settings import require

log = logging.getLogger("pet")

# The methods by their names here and elsewhere.
MODES = {name: cls.method for cls in SETTINGS for name in (cls.method, *cls.aliases)}
SHIFTS = ("*bias", "*beta")
NUMBERS = ("save_checkpoint_steps", "keep_checkpoint_max")
FLOATS = (ms.float32, ms.float16, ms.bfloat16)


@checked
def freeze_modules(
    model: nn.Cell, include: Iterable[str] | str | None = None, exclude: Iterable[str] | str | None = None
) -> None:
    """Freezes and unfreezes parameters by globs over their names.

    A parameter that only `include` matches is frozen; one that only `exclude` matches is trained; one that both or
    neither match stays as it is.

    Args:
        model: any cell.
        include, exclude: globs such as ``*embedding*``; at least one is needed.

    Raises:
        InputError: neither is given, or a pattern matches no parameter. Nothing has been changed then.
    """
    frozen, trained = _patterns("include", include), _patterns("exclude", exclude)
    if not frozen and not trained:
        raise InputError("freeze_modules: neither include nor exclude is given")
    parameters = [one for one in model.get_parameters() if not getattr(one, "buffer", False)]
    chosen = _matching(parameters, frozen, "include"), _matching(parameters, trained, "exclude")
    for parameter in parameters:
        in_include, in_exclude = id(parameter) in chosen[0], id(parameter) in chosen[1]
        if in_include != in_exclude:
            parameter.requires_grad = in_exclude


@checked
def freeze_delta(
    model: nn.Cell,
    mode: str,
    include: Iterable[str] | str | None = None,
    exclude: Iterable[str] | str | None = None,
) -> None:
    """Freezes everything but one method's parameters; `include` and `exclude` then act as in `freeze_modules`.

    Args:
        model: with an adapter of this method, or with cells put in by hand whose names have ``mindpet_delta_<method>``;
            for ``bitfit`` also a plain one, whose biases are then trained in place.
        mode: the method: ``lora``, ``prefix`` (``prefixtuning``), ``ptuning2``, ``prompt``, ``p_tuning``, ``adapter``,
            ``low_rank_adapter``, ``ia3``, ``bitfit``; upper or lower case.
        include, exclude: globs over parameter names.

    Raises:
        InputError: an unknown mode, a model without parameters of this method, or a pattern that matches nothing.
            Nothing has been changed then.
    """
    key = str(mode).lower()
    if key not in MODES:
        raise InputError(
            f"freeze_delta: mode {mode!r} is not known; supported: {', '.join(MODES)}{similar(key, MODES)}"
        )
    state = registry(model)
    parameters = list(model.get_parameters())
    own = [adapter for adapter in state.adapters.values() if adapter.config.method == MODES[key]]
    kept = [parameter for adapter in own for parameter in adapter.parameters()]
    marks = [f"mindpet_delta_{name}" for name, method in MODES.items() if method == MODES[key]]
    kept += [p for p in parameters if any(mark in p.name for mark in marks) and p.dtype in FLOATS]
    if key == "bitfit" and not own:
        kept = [p for p in parameters if any(fnmatch.fnmatchcase(p.name, pattern) for pattern in SHIFTS)]
    if not kept:
        there = sorted({adapter.config.method for adapter in state.adapters.values()})
        raise InputError(
            f"freeze_delta: the model has no {MODES[key]} parameters (it has: {', '.join(there) or 'none'})"
        )
    frozen, trained = _patterns("include", include), _patterns("exclude", exclude)
    _matching(parameters, frozen, "include"), _matching(parameters, trained, "exclude")
    chosen = {id(parameter) for parameter in kept}
    for parameter in parameters:
        parameter.requires_grad = id(parameter) in chosen
    if frozen or trained:
        freeze_modules(model, frozen or None, trained or None)


@checked
def freeze_from_config(model: nn.Cell, config: str | os.PathLike | dict[str, Any]) -> None:
    """`freeze_modules` with the patterns of a YAML file::

        freeze:
          include: ["*"]
          exclude: ["*lora*"]

    Args:
        model: any cell.
        config: the file's path, or what it holds; one of the two keys is enough.

    Raises:
        InputError: no such file, no ``freeze`` section, or keys that it does not have.
    """
    section = freeze_section(config)
    freeze_modules(model, section.get("include"), section.get("exclude"))


def freeze_section(config: str | os.PathLike | dict[str, Any]) -> dict[str, Any]:
    """The section ``freeze`` of a YAML file or of what one holds; the errors are those of `freeze_from_config`."""
    where = "freeze_from_config"
    if not isinstance(config, dict):
        where = str(config)
        content = read_bytes(where, "a YAML file")
        try:
            config = yaml.safe_load(content.decode("utf-8"))
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # of dates, escapes and brackets
            raise InputError(f"{where}: is no YAML: {' '.join(str(error).split())}") from None
    section = config.get("freeze") if isinstance(config, dict) else None
    if not isinstance(section, dict):
        raise InputError(f"{where}: a section 'freeze' with include, exclude or both was expected")
    for key in section:
        if key not in ("include", "exclude"):
            raise InputError(f"{where}: freeze.{key} is not known{nearest(str(key), ('include', 'exclude'))}")
    return section


def _patterns(name: str, value) -> list[str]:
    """One pattern or several as a list; InputError for anything else."""
    patterns = [value] if isinstance(value, str) else list(value or [])
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise InputError(f"{name}: {pattern!r} is no name pattern")
    return patterns


def _matching(parameters: list[Parameter], patterns: list[str], name: str) -> set[int]:
    """The parameters that any pattern matches, by identity; InputError for a pattern that matches none."""
    found, problems = set(), []
    for pattern in patterns:
        hits = {id(p) for p in parameters if fnmatch.fnmatchcase(p.name, pattern)}
        if not hits:
            problems.append(f"{name}: {pattern!r} matches no parameter{nearest(pattern, [p.name for p in parameters])}")
        found |= hits
    InputError.raise_any(problems)
    return found


class TrainerHooks:
    """What this library's trainer calls of a callback that has `write` and ``every``, beside MindSpore's methods."""

    every: int | None

    def write(self, model: nn.Cell, mark: str) -> None:
        """Writes the trained parameters."""
        raise NotImplementedError

    def start(self, trainer) -> None:
        """Before the first step."""

    def step(self, trainer, record: dict[str, Any]) -> None:
        """After a step."""
        if self.every and record["step"] % self.every == 0:
            self.write(trainer.model, f"step-{record['step']:06d}")

    def evaluation(self, trainer, record: dict[str, Any]) -> None:
        """After an evaluation."""

    def save(self, trainer, path: Path) -> None:
        """After a checkpoint."""
        self.write(trainer.model, f"step-{trainer.position.step:06d}")

    def end(self, context, summary=None) -> None:
        """After training: MindSpore gives its run context, this library's trainer itself and its summary."""
        if summary is not None:
            self.write(context.model, f"step-{context.position.step:06d}")
        else:
            super().end(context)


class TrainableParamsCheckPoint(TrainerHooks, Callback):
    """Writes the trained parameters, and no others, at the end of every epoch or so.

    A callback for MindSpore's ``Model.train`` and for this library's trainer alike; there it writes whenever the
    trainer saves a checkpoint, and at the end.

    Args:
        directory: where ``<prefix>-<epoch or step>.safetensors`` goes; made if need be.
        prefix: of the file names.
        config: MindSpore's ``CheckpointConfig``, or a dictionary with ``save_checkpoint_steps`` and
            ``keep_checkpoint_max``. Default: every epoch, the last five.

    Raises:
        InputError: a prefix that is no file name, or settings out of range.
    """

    @checked
    def __init__(self, directory: str | os.PathLike, prefix: str = "trainable", config=None):
        super().__init__()
        if not prefix or "/" in prefix or os.sep in prefix:
            raise InputError(f"TrainableParamsCheckPoint: prefix is {prefix!r}; a file name was expected")
        check_name(prefix)
        if config is not None and not isinstance(config, dict) and not hasattr(config, NUMBERS[0]):
            found = f"config is of the type {type(config).__name__}"
            raise InputError(f"TrainableParamsCheckPoint: {found}; a CheckpointConfig or a dictionary was expected")
        self.directory, self.prefix = Path(directory), prefix
        for key in config if isinstance(config, dict) else ():
            if key not in NUMBERS:
                raise InputError(f"TrainableParamsCheckPoint: config has {key!r}{nearest(str(key), NUMBERS)}")
        self.every, kept = (_setting(config, name) for name in NUMBERS)
        self.kept = kept or 5
        self.written: list[Path] = []

    def write(self, model: nn.Cell, mark: str) -> Path:
        """Writes the trained parameters of a model, and deletes files beyond the number kept."""
        parameters = [parameter for parameter in trainable_parameters(model) if parameter.requires_grad]
        if not parameters:
            raise InputError("TrainableParamsCheckPoint: the model has no trainable parameter")
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{self.prefix}-{mark}.safetensors"
        write_file(path, {parameter.name: parameter.asnumpy() for parameter in parameters}, {"format": "ms"})
        self.written = [*(old for old in self.written if old != path), path]
        for old in self.written[: -self.kept]:
            old.unlink(missing_ok=True)
        self.written = self.written[-self.kept :]
        return path

    # MindSpore's Model.train

    def on_train_step_end(self, run_context) -> None:
        """After a step of ``Model.train``."""
        values = run_context.original_args()
        if self.every and values.cur_step_num % self.every == 0:
            self.write(network_of(values), f"{values.cur_epoch_num}_{values.cur_step_num}")

    def on_train_epoch_end(self, run_context) -> None:
        """After an epoch of ``Model.train``."""
        values = run_context.original_args()
        if not self.every:
            self.write(network_of(values), str(values.cur_epoch_num))


def _setting(config, name: str) -> int | None:
    """A number of MindSpore's CheckpointConfig, which calls it ``_name`` or ``name``, or of a dictionary."""
    value = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
    require("TrainableParamsCheckPoint", name, value, int | None, ge=1)
    return value


def network_of(values) -> nn.Cell:
    """The network within what ``Model.train`` runs: behind the training step and the loss."""
    network = values.train_network
    names = ("network", "_backbone", "backbone_network")
    while True:
        inner = next(
            (getattr(network, name) for name in names if isinstance(getattr(network, name, None), nn.Cell)), None
        )
        if inner is None:
            return network
        network = inner
