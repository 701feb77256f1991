"""Which matrices of a model are packed, and how. Without MindSpore."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from model_zoo.arguments import misfit
from model_zoo.atomic import json_value
from model_zoo.configs import Config
from model_zoo.errors import InputError, nearest, shown
from model_zoo.labels import SCORE
from model_zoo.quantization.storage import BLOCKS, Storage


@dataclasses.dataclass(frozen=True)
class Quantization:
    """What a user asks for: the recipe's ``model.quantization``.

    Attributes:
        type: int8, nf4, fp4 or int4.
        block: elements that share a factor; not for int8, which has one per output.
        double: quantise the factors, too (nf4, fp4).
        skip: projections that stay as they are, by path or by the last part of it; by default the head and what
            chooses among experts. What is no projection, the embeddings and norms, always does.

    Args:
        found: whether this says what files hold, where a block is what their writer had.

    Raises:
        InputError: an unknown type, or a block that this type has not.
    """

    type: str = "nf4"
    block: int = 64
    double: bool = False
    skip: tuple[str, ...] | None = None
    found: dataclasses.InitVar[bool] = False

    @classmethod
    def named(cls, values: Mapping[str, Any]) -> Quantization:
        """Of its fields, by name.

        Raises:
            InputError: one that there is not.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        InputError.raise_any(
            f"quantization: there is no setting {name!r}{nearest(name, known)}" for name in values if name not in known
        )
        return cls(**values)

    def __post_init__(self, found: bool):
        kinds = {"type": "str", "block": "int", "double": "bool", "skip": "list[str] | None"}
        wrong = (misfit(name, annotation, getattr(self, name)) for name, annotation in kinds.items())
        InputError.raise_any(f"quantization {fault}" for fault in wrong if fault is not None)
        allowed = () if found else BLOCKS.get(self.type, ())
        if allowed and self.block not in allowed:
            raise InputError(
                f"quantization block {self.block!r}: {self.type} has blocks of {', '.join(map(str, allowed))}"
            )
        _ = self.storage  # which says what else is wrong

    @classmethod
    def read(cls, text: str) -> Quantization:
        """What an adapter's file says of its base, JSON.

        Raises:
            InputError: it is none.
        """
        try:
            values = json_value(text)
            return cls(values["type"], values["block"], values["double"], tuple(values["skip"]), True)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"base_quantization {shown(text)} is not understood: {error}") from None

    @classmethod
    def of(cls, checkpoint, config: Config, asked: Quantization | None = None) -> Quantization | None:
        """What is packed of a checkpoint once it is loaded: what its files hold, else what is asked for.

        Args:
            checkpoint: an open `model_zoo.checkpoint.reading.Checkpoint`.

        Raises:
            InputError: it is packed in another form than is asked for.
        """
        from model_zoo.quantization.files import projections  # needs NumPy, which recipes do without

        if not checkpoint.packed:
            return asked
        storage, *others = {one.storage: None for one in checkpoint.packed.values()}
        if asked is not None and (others or storage != asked.storage):
            forms = ", ".join(sorted(map(str, (storage, *others))))
            raise InputError(
                f"{checkpoint.directory}: is stored in {forms} already, {asked.storage} was asked for; leave "
                "model.quantization out, or give the unquantised base"
            )
        skip = tuple(projections(config, checkpoint.packed))
        block = math.gcd(storage.block, *(one.block for one in others))  # GPTQ's group_size -1: each matrix has its own
        return cls(storage.kind, block, storage.double, skip, True)

    @property
    def storage(self) -> Storage:
        """The form of each matrix."""
        return Storage(self.type, self.block, self.double)

    def places(self, config: Config) -> dict[str, tuple[int, int]]:
        """{path: ``(out, in)``} of the matrices that are packed.

        Raises:
            InputError: an entry of `skip` that names no projection, or a matrix that has no such blocks.
        """
        projections = {
            path: cell.weight[::-1] if cell.transposed else cell.weight
            for path, cell in config.cells().items()
            if cell.kind in ("linear", "conv1d") and path != SCORE
        }
        skip = (config.family.head, *config.family.routers) if self.skip is None else self.skip
        problems, left = [], set()
        for entry in skip:
            found = [path for path in projections if f".{entry}." in f".{path}."]
            if not found and entry != config.family.head:  # a tied head is no projection of its own
                names = {path.rsplit(".", 1)[-1] for path in projections}
                problems.append(f"quantization.skip: {entry!r} names no projection{nearest(entry, names)}")
            left.update(found)
        found = {path: tuple(shape) for path, shape in projections.items() if path not in left}
        for path, shape in found.items():
            if reason := self.storage.why_not(shape):
                problems.append(f"{path} cannot be stored as {self.storage}: {reason}; list it in skip")
        InputError.raise_any(problems)
        return found
