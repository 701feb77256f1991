"""What is frozen, what of it is saved, and R-Drop, with MindPet's arguments, checks and files."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.train import ModelCheckpoint

from adapters import freeze
from adapters.apply import trainable_parameters
from model_zoo.errors import InputError
from pet.compat.mindpet.errors import (
    AbsolutePathError,
    LinkPathError,
    ModelConfigFreezeInfoError,
    ReadYamlFileError,
    WrongType,
)
from pet.train.objectives.rdrop import RDropLoss as MeanRDropLoss, check_pairs, rdrop_repeat as repeat


def freeze_modules(model: nn.Cell, include: list[str] | None = None, exclude: list[str] | None = None) -> None:
    """`adapters.freeze.freeze_modules`, by lists alone.

    Raises:
        InputError: see there; `WrongType`, also a TypeError, for a model or lists that are none.
    """
    _check(model, include, exclude)
    freeze.freeze_modules(model, include, exclude)


def freeze_delta(model: nn.Cell, mode: str, include: list[str] | None = None, exclude: list[str] | None = None) -> None:
    """`adapters.freeze.freeze_delta`, with the checks of `freeze_modules`."""
    _check(model, include or None, exclude or None)
    freeze.freeze_delta(model, mode, include, exclude)


def freeze_from_config(model: nn.Cell, config_path: str) -> None:
    """`freeze_modules` with the lists of a YAML file's section ``freeze``.

    Raises:
        ReadYamlFileError: no such file.
        ModelConfigFreezeInfoError: no such section in it, or other keys there.
        InputError: as `freeze_modules`.
    """
    _check(model)
    if not isinstance(config_path, str):
        raise WrongType(f"freeze_from_config: config_path is {config_path!r}; a string was expected")
    if not config_path:
        raise InputError("freeze_from_config: config_path is empty")
    try:
        section = freeze.freeze_section(config_path)
    except InputError as error:
        missing = not Path(config_path).is_file()
        raise (ReadYamlFileError if missing else ModelConfigFreezeInfoError)(str(error)) from None
    freeze_modules(model, section.get("include"), section.get("exclude"))


def _check(model: Any, include: Any = None, exclude: Any = None) -> None:
    if not isinstance(model, nn.Cell):
        raise WrongType(f"model is a {type(model).__name__}; a Cell was expected")
    for name, patterns in (("include", include), ("exclude", exclude)):
        if patterns is None:
            continue
        if not isinstance(patterns, list) or not patterns or not all(isinstance(item, str) for item in patterns):
            raise WrongType(f"{name} is {patterns!r}; a list of name patterns was expected")


class TrainableParamsCheckPoint(freeze.TrainerHooks, ModelCheckpoint):
    """MindSpore's ``ModelCheckpoint`` of the trained parameters alone, ``<prefix>-<epoch>_<step>.ckpt``, for
    ``Model.train``; with this library's trainer ``<prefix>-step-<step>.ckpt``.

    Args:
        directory: an absolute path.
        prefix: of the file names.
        config: MindSpore's ``CheckpointConfig``.

    Raises:
        InputError: no directory; `AbsolutePathError` for a relative one, `LinkPathError` for a link.
        TypeError, ValueError: MindSpore's, for prefix and config.
    """

    def __init__(self, directory: str, prefix: str = "DELTA_CKP", config=None):
        if not directory:
            raise InputError("TrainableParamsCheckPoint: directory is missing")
        if Path(directory).is_symlink():
            raise LinkPathError(f"TrainableParamsCheckPoint: {directory} is a symbolic link")
        if not Path(directory).is_absolute():
            raise AbsolutePathError(f"TrainableParamsCheckPoint: directory {directory!r} is not absolute")
        ModelCheckpoint.__init__(self, prefix, directory, config)
        self.every = self._config.save_checkpoint_steps

    def trans_network(self, network: nn.Cell) -> list[dict[str, Any]]:
        """The trained parameters as ``mindspore.save_checkpoint`` takes them."""
        trained = [parameter for parameter in trainable_parameters(network) if parameter.requires_grad]
        if not trained:
            raise InputError("TrainableParamsCheckPoint: the model has no trainable parameter")
        return [{"name": parameter.name, "data": Tensor(parameter.asnumpy())} for parameter in trained]

    def _save_ckpt(self, cb_params, force_to_save=False):
        if cb_params.batch_num <= 0:
            raise InputError("TrainableParamsCheckPoint: batch_num is not positive")
        given = self._config.saved_network
        network = freeze.network_of(cb_params) if given is None else given
        if isinstance(network, nn.Cell):
            self._config._saved_network = self.trans_network(network)
        try:
            super()._save_ckpt(cb_params, force_to_save)
        finally:
            self._config._saved_network = given

    def write(self, model: nn.Cell, mark: str) -> None:
        """Writes the trained parameters of a model of this library's trainer."""
        path = Path(self._directory, f"{self._prefix}-{mark}.ckpt")
        ms.save_checkpoint(self.trans_network(model), str(path))
        written = sorted(path.parent.glob(f"{glob.escape(self._prefix)}-step-*.ckpt"))
        for old in written[: -(self._config.keep_checkpoint_max or len(written))]:
            old.unlink()


def rdrop_repeat(*items):
    """Each row of a batch twice, one after the other; always a tuple, as MindPet gives it."""
    return tuple(repeat(item) for item in items)


class RDropLoss(MeanRDropLoss):
    """Mean cross-entropy plus ``α/4 · Σ (KL(p‖q) + KL(q‖p))`` over the pairs of rows: MindPet's divergence is a sum.

    Its gradient is MindSpore's of KLDivLoss, too: in each of the two, that of the other row's probabilities is none.
    Rows 2i and 2i + 1 are the same sample under different dropout (`rdrop_repeat`). Logits of a language model,
    ``(B, S, V)``, are served by `pet.RDropLoss`, whose terms are both means.
    """

    def construct(self, logits, label_ids, alpha=4):
        """A classifier's logits ``(B, V)`` and classes ``(B,)``, or their probabilities ``(B, V)`` → a scalar."""
        if len(logits.shape) == 3:
            return super().construct(logits, label_ids, alpha)
        check_pairs(logits.shape[0])  # a single row would be compared with every other one
        log_probabilities = ops.log_softmax(logits, -1)
        first, second = log_probabilities[0::2], log_probabilities[1::2]
        # p·(log p − log q) + q·(log q − log p)
        divergence = (ops.stop_gradient(ops.exp(first) - ops.exp(second)) * (first - second)).sum()
        labels = label_ids if label_ids.dtype in (ms.float16, ms.float32) else label_ids.reshape(-1).astype(ms.int32)
        return ops.cross_entropy(logits, labels) + divergence * alpha / 4
