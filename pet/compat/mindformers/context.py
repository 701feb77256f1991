"""MindFormers' start of a script: ``init_context`` and its configurations."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from model_zoo.arguments import checked
from model_zoo.errors import InputError, check_one_of, first_line, nearest
from pet.compat.command_line import place_or_switch
from pet.compat.mindformers.parallel import defaults
from pet.launching.environment import read_job

log = logging.getLogger("pet")

PARALLEL_MODES = ("STAND_ALONE", "DATA_PARALLEL", "SEMI_AUTO_PARALLEL", "AUTO_PARALLEL", "HYBRID_PARALLEL")


class ContextConfig:
    """What MindFormers hands to ``ms.set_context``.

    Args:
        mode: 0 or 1. Without influence: training and generation are compiled, everything else is not.
        device_target: ``CPU``, ``Ascend`` or ``GPU``; where this machine has none, its own device is used.
        device_id: index of the device, for a single process; workers of a job know theirs.
        settings: further settings of ``ms.set_context``, handed on.
    """

    def __init__(self, mode: int | str = 0, device_target: str | None = None, device_id: int | None = None, **settings):
        if str(mode) not in ("0", "1", "GRAPH_MODE", "PYNATIVE_MODE"):
            raise InputError(f"ContextConfig: mode is {mode!r}; 0 (graph) or 1 (PyNative) was expected")
        self.mode, self.device_target, self.device_id, self.settings = mode, device_target, device_id, settings


class ParallelContextConfig:
    """What MindFormers hands to ``ms.set_auto_parallel_context``. Only ``parallel_mode`` and the optimizer's division
    matter: the layers of this library divide themselves (`pet.set_parallel_config`), and its gradients are always those
    of the mean over the whole batch.
    """

    def __init__(
        self,
        parallel_mode: str | int = "DATA_PARALLEL",
        gradients_mean: bool = True,
        enable_parallel_optimizer: bool = False,
        full_batch: bool = False,
        **settings,
    ):
        word = str(parallel_mode)
        if word.upper() not in (*PARALLEL_MODES, "0", "1", "2", "3"):
            raise InputError(
                f"ParallelContextConfig: parallel_mode {parallel_mode!r}; supported: {', '.join(PARALLEL_MODES)}"
                f"{nearest(word, PARALLEL_MODES)}"
            )
        self.parallel_mode, self.gradients_mean, self.full_batch = word.upper(), gradients_mean, full_batch
        self.enable_parallel_optimizer, self.settings = enable_parallel_optimizer, settings


@checked
def init_context(
    use_parallel: bool | str = False,
    context_config: ContextConfig | dict[str, Any] | None = None,
    parallel_config: ParallelContextConfig | dict[str, Any] | None = None,
) -> tuple[int, int]:
    """Joins the job that this process belongs to.

    What the script has set by ``ms.set_context`` itself is respected: a device is chosen only where it asks for one
    here, and the mode is left alone.

    Args:
        use_parallel: the script is one of several processes, started by ``pet launch``, msrun or the cluster. A text
            is one of the words for True and False; MindFormers takes every text for True.
        context_config: device target and index.
        parallel_config: how MindFormers would divide the work.

    Returns:
        ``(rank_id, device_num)``: this process's number, and how many there are.

    Raises:
        InputError: use_parallel without a job, or settings of unknown form.
    """
    import mindspore as ms

    use_parallel = asks_parallel(use_parallel, "init_context: use_parallel")
    context = ContextConfig(**context_config) if isinstance(context_config, dict) else context_config
    if isinstance(parallel_config, dict):
        parallel_config = ParallelContextConfig(**parallel_config)
    if context is not None and context.device_target is not None:
        _choose_device(ms, context, use_parallel)
    if context is not None and context.settings:
        try:
            ms.set_context(**context.settings)
        except (ValueError, TypeError) as error:
            raise InputError(f"ContextConfig: {first_line(error)}") from None
    if not use_parallel:
        return 0, 1
    job = read_job()
    if job.launcher == "none":
        raise InputError(
            "init_context(use_parallel=True): this is a single process; start the script by "
            "pet launch -n 4 -- python SCRIPT"
        )
    from pet.parallel.together import come_together

    job = come_together()
    if parallel_config is not None and parallel_config.enable_parallel_optimizer:
        defaults["optimizer_shard"] = True
    return job.rank, job.size


def asks_parallel(value: Any, name: str) -> bool:
    """Whether a setting turns several processes on. A text is one of the words for True and False, and one for False is
    said: MindFormers takes every text for True."""
    if not isinstance(value, str):
        return bool(value)
    found = place_or_switch(value)
    check_one_of(name, found, (True, False))
    if not found:
        log.warning("%s=%r is False here; MindFormers takes every text for True", name, value)
    return bool(found)


def _choose_device(ms, context: ContextConfig, use_parallel: bool) -> None:
    target, present = str(context.device_target), ms.get_context("device_target")
    if target == present and (target == "CPU" or context.device_id is None or use_parallel):
        return
    try:
        ms.set_device(target, *([] if use_parallel else [context.device_id or 0]))
    except (RuntimeError, ValueError) as error:
        if target == present:
            raise
        why = first_line(error).partition(". ")[0]  # without the advice
        log.warning("device_target %s is not available (%s); using %s", target, why, present)


def get_real_rank() -> int:
    """This process's number among those of the job."""
    return read_job().rank


def get_real_group_size() -> int:
    """How many processes the job has."""
    return read_job().size


def get_last_checkpoint(directory: str) -> str | None:
    """The newest ``.ckpt`` file in a directory; None where there is none."""
    found = sorted(Path(directory).glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    return str(found[-1]) if found else None
