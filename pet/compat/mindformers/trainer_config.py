"""``trainer.config`` of a trainer without a file: what a script sets there before a call, by a file's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pet.compat.mindformers.config import TABLE as OF_MODELS
from pet.compat.mindformers.script_config import MindFormerConfig
from pet.compat.mindformers.yaml_file import SECTIONS, TOP, unread_columns
from pet.compat.translation import elsewhere, per_process
from pet.recipe.translation import Ignored, Refused, Translation, is_off

MODEL = {
    "checkpoint_name_or_path": elsewhere,
    **{name: rule for name, rule in OF_MODELS.items() if isinstance(rule, Ignored)},
    "*": Refused("set it on the configuration that the model is made of"),
}
DATA = {"input_columns": elsewhere, "*": Refused("give the data as train_dataset= and eval_dataset=")}
RECOMPUTE = {
    **dict.fromkeys(("parallel_optimizer_comm_recompute", "select_recompute", "recompute_slice_activation"), False),
    "mp_comm_recompute": True,
}
"""MindFormers' defaults of `set_recompute_config`."""
READ = ("parallel_config", "micro_batch_interleave_num", "use_parallel", "load_checkpoint", "do_eval")
READ += ("callbacks", "eval_callbacks", "remote_save_url")
"""What `Request` reads itself."""


def nothing_said() -> MindFormerConfig:
    """A configuration whose sections are there to be set."""
    loader = {"data_loader": {}}
    sections: dict[str, Any] = {key: {} for key in (*SECTIONS, "parallel_config", "moe_config")}
    sections |= {"runner_wrapper": {"scale_sense": {}}, "model": {"model_config": {}}}
    return MindFormerConfig(sections, train_dataset=loader, eval_dataset=loader, callbacks=[], eval_callbacks=[])


def put_config(t: Translation, config: MindFormerConfig, rows: int) -> None:
    """Adds what was set.

    Args:
        rows: by what a batch size is multiplied; see `rows_of`.
    """
    for name, table in SECTIONS.items():
        t.apply(_said(config[name]), table, f"{name}.")
    if config.runner_config.batch_size:
        per_process(t, rows, "train.batch_size")
    t.apply(_said(config.model.model_config), MODEL, "model.model_config.")
    for name, key in (("train_dataset", "data.columns"), ("eval_dataset", "data.eval_columns")):
        t.apply(_said(config[name]), DATA, f"{name}.")
        t.put(key, unread_columns(config[name].input_columns) or None)
    own = (*SECTIONS, *READ, "model", "train_dataset", "eval_dataset")
    top = {key: one for key, one in _said(config).items() if key not in own and one != -1}
    for key in [key for key in top if TOP.get(key) is elsewhere]:
        t.refuse(key, "is not read of trainer.config; the Trainer or its calls take it as an argument")
    t.apply(top, TOP)


def _said(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in section.items() if one is False or not is_off(one)}
