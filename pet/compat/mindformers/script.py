"""What MindFormers' own ``run_mindformer.py`` and its kin in ``research`` import besides the trainer: they run with the
prefix of their imports changed, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from model_zoo.errors import InputError
from pet.compat.ckpt.beside import bring
from pet.compat.ckpt.doors import is_ckpt
from pet.compat.command_line import place_or_switch
from pet.compat.mindformers import logs
from pet.compat.mindformers.context import ContextConfig, init_context
from pet.compat.mindformers.high_level import Trainer
from pet.compat.mindformers.script_config import MindFormerConfig
from pet.compat.mindformers.sizes import facts_of
from pet.compat.mindformers.training_arguments import TrainingArguments
from pet.compat.modelarts import ON_MODELARTS
from pet.compat.objects import put_weights
from pet.compat.results import find_weights

Main = TypeVar("Main", bound=Callable[..., Any])
DEVICE = ("device_target", "device_id")
"""Of the section ``context``; its other settings are MindSpore's compiler's."""

FILE_PERMISSION = 0o600
"""Of the files that scripts write."""
_places = {"output": "./output"}


class Files:
    """What scripts until 0.3 ask for the files of a job: a path stays as it is."""

    @staticmethod
    def get_dataset(path: str) -> str:
        """The path."""
        return path

    get_checkpoint = get_dataset


def build_context(config: MindFormerConfig | TrainingArguments | dict[str, Any]) -> tuple[type[Files], None]:
    """Joins the job that the file's ``use_parallel``, or that of the arguments, speaks of, and chooses its device. The
    configuration gets ``rank_id`` and ``device_num``, but for a plain dictionary.

    Returns:
        What scripts until 0.3 take: `Files`, and no callback that profiles.

    Raises:
        InputError: see `init_context`.
    """
    logs.keep()
    values: Mapping[str, Any] = config.given if isinstance(config, TrainingArguments) else config
    given: Mapping[str, Any] = values.get("context") or {}
    device = {name: given[name] for name in DEVICE if given.get(name) is not None}
    rank, size = init_context(values.get("use_parallel") or False, ContextConfig(**device))
    facts = {"rank_id": rank, "local_rank": rank, "device_num": size}
    for name, value in facts.items() if type(config) is not dict else ():
        object.__setattr__(config, name, value)  # no key of the file: scripts look at them
    return Files, None


def build_parallel_config(config: Mapping[str, Any]) -> None:
    """Leaves the section as it is: the trainer reads it."""


build_profile_cb = build_parallel_config  # the same of ``profile``


class TaskTrainer:
    """MindFormers' trainer of one task as its scripts until 1.0 make it, by `build_trainer`."""

    @staticmethod
    def _of(config: MindFormerConfig) -> Trainer:
        # these scripts have moved the checkpoint there
        config.load_checkpoint = config.load_checkpoint or config.model.model_config.checkpoint_name_or_path
        return Trainer(args=config)

    def train(self, config: MindFormerConfig, is_full_config: bool = True) -> dict[str, Any]:
        """Trains, or tunes where the file's run_mode says so."""
        return self._of(config).train()

    def evaluate(self, config: MindFormerConfig, is_full_config: bool = True) -> dict[str, float]:
        """Measures."""
        return self._of(config).evaluate()

    def predict(self, config: MindFormerConfig, is_full_config: bool = True, batch_size=None) -> list[dict]:
        """Answers ``input_data``."""
        return self._of(config).predict(input_data=config.input_data, batch_size=batch_size)

    def export(self, config: MindFormerConfig, is_full_config: bool = True) -> None:
        """Raises InputError: see `Trainer.export`."""
        self._of(config).export()


def build_trainer(config: Mapping[str, Any] | None = None) -> TaskTrainer:
    """The trainer of a file's section ``trainer``, which is looked at when it is used."""
    return TaskTrainer()


def transform_and_load_checkpoint(config: MindFormerConfig, model, network, dataset=None, **settings) -> None:
    """Puts the weights of ``config.load_checkpoint`` into a script's network, or the adapter that lies there.

    Args:
        config: names it, and how a MindFormers file's tensors are divided.
        model: MindSpore's ``Model`` around the network; not needed.
        network: gets them.
        dataset, settings: of MindFormers' compilation; not needed.

    Raises:
        InputError: there is nothing of this model.
    """
    place = config.load_checkpoint
    if not place:
        return
    found = bring(place, network.config.to_dict(), **facts_of(config)) if is_ckpt(place) else find_weights(place)
    put_weights(network, *found)


def get_load_path_after_hf_convert(config: MindFormerConfig, network) -> str:
    """The checkpoint as it is: Hugging Face directories are read."""
    return config.load_checkpoint


def cloud_monitor(*arguments: Any, **settings: Any) -> Callable[[Main], Main]:
    """A decorator that leaves a script's ``main`` as it is: ``remote_save_url`` uploads, also after a failure."""
    return lambda main: main


def set_output_path(path: str | None) -> None:
    """Kept for the next function, and said: where a run's output goes is what the trainer's configuration says."""
    _places["output"] = path or "./output"
    _goes_by("output_dir", path)


def get_output_root_path() -> str:
    """Where the output goes."""
    return os.path.abspath(os.path.expanduser(_places["output"]))


def set_remote_save_url(url: str | None) -> None:
    """Only said: what is uploaded is what the trainer's configuration says."""
    _goes_by("remote_save_url", url)


def _goes_by(name: str, given: str | None) -> None:
    if given:
        logs.logger.info("%s: %s: the trainer goes by %s of its configuration", name, given, name)


def check_in_modelarts() -> bool:
    """Whether this is a ModelArts job."""
    return any(name in os.environ for name in ON_MODELARTS)


def is_publicly_accessible_path(path: str) -> bool:
    """True: a directory that the machines do not share is written to by machine 0 alone, and a warning says so."""
    return True


check_shared_disk, str2bool_or_str = is_publicly_accessible_path, place_or_switch


def is_version_ge(current_version: str, base_version: str) -> bool:
    """Whether a version is the other one or newer, by its numbers: of ``2.3.0rc1`` by 2 and 3."""
    pairs = zip(current_version.split("."), base_version.split("."), strict=False)
    numbers = [(int(one), int(other)) for one, other in pairs if one.isdigit() and other.isdigit()]
    return all(one == other for one, other in numbers) or next(one > other for one, other in numbers if one != other)


def get_resume_checkpoint(checkpoint_dir: str, resume_training: bool | str, **settings) -> bool | str:
    """What ``resume_training`` says: the trainer finds the last whole checkpoint."""
    return resume_training


class TrainingDataLoader:
    """MindFormers' loader of text files as an object, which is not here. Its own scripts import it for one of several
    kinds of data.

    Raises:
        InputError: always.
    """

    def __init__(self, *arguments, **settings) -> None:
        raise InputError(
            f"{type(self).__name__}: loaders are not made in scripts; give train_dataset= the files themselves, or a "
            "job file with data_loader"
        )


TrainingDataset = TrainingDataLoader


class SFTDataLoader(TrainingDataLoader):
    """The same of rows with questions and answers."""
