"""BitFit (Ben Zaken et al. 2021): only biases are trained.

Biases that the base has are trained as copies of their own, put in the base's place while the adapter is active
(`adapters.replacement`). LLaMA-like models have hardly any: a Dense without one gets a bias that starts at zero, beside
the base.
"""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor

from adapters.cells import own_parameters
from adapters.matching import sites
from adapters.method import AdapterModule, MethodConfig
from adapters.settings import NO_BIAS, BitFit


class BitFitConfig(BitFit, MethodConfig):
    """BitFit.

    Without `targets`, every bias of the model is trained, those of the norms too, and every Dense but the head that has
    none gets one; with `targets`, `exclude` or `layers`, only those Dense. One that is given a bias cannot be merged:
    the base's checkpoint has no place for it.
    """

    def fixed_sites(self, model) -> list | None:
        """A network of convolutions has biases to train, and no Dense that could be given one."""
        return [] if self.bias == "all" and all(site.kind != "linear" for site in sites(model)) else None

    def build_all(self, model, chosen) -> dict[str, AdapterModule]:
        if not self.add_missing:
            return {}
        return {site.path: AddedBias(site) for site in chosen if own_parameters(site.cell).get("bias") is None}

    def parameters_at(self, site) -> int:
        missing = own_parameters(site.cell).get("bias") is None
        return site.out_features if missing and self.add_missing else 0


class AddedBias(AdapterModule):
    """A bias for a cell that has none."""

    saved = ("bias=shift",)

    def __init__(self, site):
        super().__init__()
        self.shift = Parameter(Tensor(np.zeros(site.out_features, np.float32)), name="bias")

    def why_unmergeable(self) -> str:
        return NO_BIAS

    def construct(self, x, y):
        return y + self.shift.astype(y.dtype)

    def trace(self, tracer, x, y):
        return tracer.emit("add_bias", y, self.shift)
