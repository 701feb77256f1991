"""IA3 (Liu et al. 2022): one trained factor per channel, on keys, values and the feed-forward's inner activation.

On attention cells the output is scaled, ``y·l`` with l ``(out, 1)`` and y with its bias; on feed-forward cells the
input, ``x·l`` with l ``(1, in)``. Factors start at one. Files are PEFT's.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from adapters.deltas import ia3_delta
from adapters.lora_peft import saved_whole, written_targets
from adapters.matching import check_feedforward, means
from adapters.method import AdapterModule, MethodConfig
from adapters.patterns import as_list
from adapters.peft_config import from_file
from adapters.settings import IA3 as Settings
from model_zoo.errors import InputError


class IA3Config(Settings, MethodConfig):
    """IA3. `feedforward` takes the same forms as `targets`; without it, for models of no known family, it is empty."""

    family: ClassVar[Any] = None
    """The table of the model at hand (`resolved`), whose groups of cells `feedforward` may name."""

    def resolved(self, model) -> MethodConfig:
        family = getattr(model, "family", None)
        default = [family.mlp[-1]] if family is not None else []
        config = dataclasses.replace(self, feedforward=default if self.feedforward is None else self.feedforward)
        config.family = family
        return config

    def build_all(self, model, chosen) -> dict[str, AdapterModule]:
        check_feedforward(self, chosen, self.family)
        return {site.path: IA3(site, means(self.feedforward, site, self.family)) for site in chosen}

    def parameters_at(self, site) -> int:
        return site.in_features if means(self.feedforward, site, self.family) else site.out_features

    def to_peft(self, model, adapter) -> dict[str, Any]:
        paths = list(adapter.sites)
        feedforward = [path for path, module in adapter.modules.items() if module.changes_input]
        names = written_targets(self, model, paths)
        if isinstance(names, list):  # PEFT wants the one to be part of the other
            short = sorted(set(as_list(self.feedforward)) & set(names))
            covered = all(any(path == name or path.endswith("." + name) for name in short) for path in feedforward)
            if not covered:
                names, short = sorted(paths), sorted(feedforward)
        else:
            short = sorted(feedforward)
        return {
            "fan_in_fan_out": any(site.published_transposed for site in adapter.sites.values()),
            "feedforward_modules": short,
            "init_ia3_weights": True,
            "modules_to_save": saved_whole(self, model),
            "target_modules": names,
        }

    from_peft = classmethod(from_file)

    def check_tensors(self, model, tensors, where) -> None:
        if not any(name.endswith(".ia3_l") for name in tensors):
            raise InputError(f"{where}: the file holds no IA3 tensors (ia3_l)")


class IA3(AdapterModule):
    """The factors at one linear cell.

    Args:
        feedforward: scale the input instead of the output.
    """

    saved = ("ia3_l",)

    def __init__(self, site, feedforward: bool):
        super().__init__()
        self.changes_input, self.reads_output = feedforward, not feedforward
        self.rescales = self.reads_output
        self.transposed = site.transposed
        shape = (1, site.in_features) if feedforward else (site.out_features, 1)
        self.ia3_l = Parameter(Tensor(np.ones(shape, np.float32)), name="ia3_l")

    def before(self, x):
        """Each channel times its factor."""
        return (x.astype(ms.float32) * self.ia3_l.reshape(-1)).astype(x.dtype)

    def construct(self, x, y):
        return y if self.changes_input else self.before(y)

    def trace(self, tracer, x, y):
        return y if self.changes_input else self.trace_before(tracer, y)

    def trace_before(self, tracer, x):
        return tracer.emit("scale_columns", x, self.ia3_l)

    def delta(self, weight: np.ndarray) -> np.ndarray:
        factor = self.ia3_l.asnumpy()
        return ia3_delta(weight, factor.T if self.transposed else factor)

    def delta_bias(self, bias: np.ndarray) -> np.ndarray | None:
        return None if self.changes_input else bias * self.ia3_l.asnumpy().astype(np.float64).reshape(-1) - bias
