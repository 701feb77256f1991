"""What a method is: a configuration that fits cells of some kinds and builds a module for each.

What the user sets stands in `adapters.settings`. A method's file adds a `MethodConfig` over these settings, and one or
more `AdapterModule` (the parameters at one cell, their forward, and, where the method is linear in the cell's weight,
their ``delta``). Matching, wrapping, merging and files are written once, elsewhere, and know no method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from mindspore import Parameter, nn

from adapters.schema import Settings, described
from model_zoo.checkpoint.parameters import write_parameter
from model_zoo.errors import InputError, shown

PRECISIONS = ("fp16", "bf16", "fp32")
"""Flags by which MindSpore casts what a cell gets."""


class AdapterModule(nn.Cell):
    """What one adapter adds to one cell.

    ``construct(x, y)`` gets the cell's input and its output so far, and returns the new output. A module that changes
    the input instead sets ``changes_input`` and gives ``before(x)``. One that puts keys before the real ones (its cell
    is an attention core) gives ``extend(keys, values)``.

    One that rescales what the base itself computed sets ``needs_base`` and gives
    ``on_base(x, y, base, weight, bias)`` in place of ``construct``: `base` is the bare cell's output, which `y` is not
    any more when another adapter went before.

    ``trace(tracer, x, y)`` and ``trace_before(tracer, x)``, where a class has them, say which operations of the CPU
    engine's table ``construct`` and ``before`` are (`model_zoo.engine.trace`).

    Attributes:
        saved: its parameters by the last part of their names in an adapter file, ``name=attribute`` where the two
            differ.
        rows: ``(B,)`` 0/1 Tensor while a batch mixes adapters, else None: the rows that this module applies to.
        reads_output: whether what it adds depends on the output so far, so that the order on a cell matters.
        rescales: whether it scales the output so far, as if that came of the weight alone.
        starts_from_base: whether its first values are taken out of the base's weights.
        comes_last: whether it acts behind all others on its cell, in whatever order they are active.
        lent: cells of another module that it computes with, whose parameters are trained through it as well.
        added: that it is no cell of the model's own (`adapters.cells.plain_cells`).
    """

    saved: ClassVar[tuple[str, ...]]
    lent: tuple[nn.Cell, ...] = ()
    added: ClassVar[bool] = True
    changes_input = False
    needs_base = False
    reads_output = False
    rescales = False
    starts_from_base = False
    comes_last = False

    def __init__(self):
        super().__init__()
        self.rows = None

    # An adapter computes in float32, whatever precision the cells of its network are given by ``to_float`` and by
    # ``mindspore.amp``, which goes down by these methods.

    def to_float(self, dst_type):
        return self

    def add_flags_recursive(self, **flags):
        super().add_flags_recursive(**{key: flag for key, flag in flags.items() if key not in PRECISIONS})

    def name_cells(self) -> dict[str, nn.Cell]:
        return {}

    def cells(self):
        return self._cells.values()

    def tensors(self) -> dict[str, Parameter]:
        """The parameters by the last part of their name in an adapter file (``lora_A.weight``)."""
        pairs = (entry.partition("=") for entry in self.saved)
        return {name: attrgetter(attribute or name)(self) for name, _, attribute in pairs}

    def attached(self, site) -> bool:
        """Called when it sits on its cell, and when another base was loaded beneath it. Returns whether the cell's own
        forward is another one now."""
        return False

    def detached(self, site) -> bool:
        """Called before it is taken off its cell: undoes `attached`, and returns the same."""
        return False

    def noticed(self, cell) -> None:
        """Called when what takes part on its cell has changed."""

    def follow_base(self, before: AdapterModule, after: AdapterModule) -> None:
        """Takes over what starts from the base's weights, which have changed, as far as it was not trained since.

        Args:
            before, after: this module as it would be built on the old weights, and on the new ones.
        """
        old, new = dict(before.parameters_and_names()), dict(after.parameters_and_names())
        for name, parameter in self.parameters_and_names():
            first, now = old[name].asnumpy(), new[name].asnumpy()
            if not np.array_equal(first, now) and np.array_equal(parameter.asnumpy(), first):
                write_parameter(parameter, now)

    def why_unmergeable(self) -> str | None:
        """Why this cannot become part of the weight although its method can (`Settings.unmergeable`); else None."""
        return None

    def delta(self, weight: np.ndarray) -> np.ndarray:
        """ΔW in float64, in the weight's own shape.

        Args:
            weight: in float64: the base's; for a module that scales (`reads_output`, `changes_input`) the weight that
                the modules before it have made.
        """
        raise TypeError(f"{type(self).__name__} cannot be merged: it is no change of a weight")

    def delta_bias(self, bias: np.ndarray) -> np.ndarray | None:
        """Δb in float64 for a bias given likewise, or None when it stays as it is."""
        return None


class MethodConfig(Settings):
    """What a method does with its settings: the cells that it fits, the modules there, and its form in files."""

    peft_keys: ClassVar[tuple[str, ...]] = ()
    prefixed: ClassVar[bool] = True
    """Whether tensor names in a file begin with PEFT's ``base_model.model.``."""
    stackable: ClassVar[bool] = True
    """Whether two adapters of this method can take part in one row at once."""

    def __init_subclass__(cls, **options):
        """Completes the docstring by what the settings say of themselves."""
        super().__init_subclass__(**options)
        own = cls.__doc__ or cls.__base__.__doc__ or ""  # python -OO keeps none
        cls.__doc__ = f"{own.rstrip()}\n\n{described(cls)}    "

    def resolved(self, model) -> MethodConfig:
        """This configuration with what it leaves open taken from the model; `self` where nothing is open."""
        return self

    def build_all(self, model, chosen) -> dict[str, AdapterModule]:
        """{cell path: module} for the chosen cells; methods whose modules share something override this."""
        return {site.path: self.build(site) for site in chosen}

    def build(self, site) -> AdapterModule:
        """The module for one cell (an `adapters.sites.Site`), with its fresh parameters."""
        raise TypeError(f"{type(self).__name__} does not say how to build a module")

    def parameters_at(self, site) -> int:
        """How many parameters `build` would add at this cell, without allocating them."""
        raise TypeError(f"{type(self).__name__} does not count its parameters")

    def check_tensors(self, model, tensors: dict[str, Any], where) -> None:
        """Raises InputError where a file's tensors (name → shape and type) contradict the configuration; it is called
        before anything is allocated."""

    def companions(self, model, chosen) -> list:
        """Cells that get a module beside the chosen ones, as `Companion`; most methods have none."""
        return []

    def pack(self, arrays: dict[str, np.ndarray], adapter) -> dict[str, np.ndarray]:
        """The modules' arrays as the file holds them; most methods keep one tensor per parameter."""
        return arrays

    def unpack(self, arrays: dict[str, np.ndarray], model) -> dict[str, np.ndarray]:
        """The file's arrays as the modules hold them."""
        return arrays

    def restarted(
        self, model, arrays: dict[str, np.ndarray], started_by: str | None
    ) -> tuple[MethodConfig, dict[str, np.ndarray]]:
        """A file's configuration and unpacked arrays as they were trained on this model, where that is not as they are
        written."""
        return self, arrays

    def say_elsewhere(self, model) -> None:
        """Warns where PEFT computes something else by the same file."""

    def to_peft(self, model, adapter) -> dict[str, Any]:
        """The fields of PEFT's adapter_config.json that describe this configuration."""
        if not (names := self.peft_names()):
            raise InputError(f"method {self.method!r} has no form in PEFT's files")
        return {key: getattr(self, name) for name, key in names.items()}


@dataclasses.dataclass(frozen=True)
class Companion:
    """A cell outside the targets that an adapter works on too, and how its module is built.

    Attributes:
        parameters: how many it adds.
        build: () → module.
    """

    site: Any
    parameters: int
    build: Callable[[], AdapterModule]


def check_config(config: Any) -> None:
    """Raises InputError for what is no method's configuration: its name, say, or its class."""
    if not isinstance(config, MethodConfig):
        raise InputError(f"an adapter's configuration was expected, as pet.LoRAConfig(rank=8), got {shown(config)}")
