"""What tuning a model would take: parameters, and memory for weights, gradients, optimizer and activations.

Everything comes from shapes; no weight is allocated. Weights, gradients and optimizer state are exact. Activations are
what one device holds of them (`pet.planning.activations`); a framework's buffers come on top.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from model_zoo.arguments import checked
from model_zoo.checkpoint.directory import holds_weights
from model_zoo.checkpoint.dtypes import STORAGE, float_name
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.counting import config_of, parameter_shapes, sizes
from model_zoo.errors import InputError, nearest
from model_zoo.quantization import Quantization
from model_zoo.quantization.files import section_of
from model_zoo.quantization.scaled import METHODS
from model_zoo.settings import require
from pet.names import bundled_models, model_config


@dataclasses.dataclass(frozen=True)
class Description:
    """A model's size, what an adapter would train of it, and the memory of a training step; prints as a table.

    Attributes:
        config: config.json's dictionary.
        parameters: of the base; a tied head counts once.
        adapter: the method's name, or None when every weight is trained.
        cells: how many cells the adapter sits on.
        trainable: parameters that are trained.
        batch, length: of the step.
        dtype: the base's type in memory.
        quantization: what of it is packed in 8 or 4 bits.
        memory: bytes by what they are for.
    """

    name: str
    config: dict[str, Any]
    parameters: int
    adapter: str | None
    cells: int
    trainable: int
    batch: int
    length: int
    dtype: str
    memory: dict[str, int]
    quantization: Quantization | None = None

    @property
    def share(self) -> float:
        """Trained parameters over all, the adapter's included, as PEFT counts it."""
        added = self.trainable if self.adapter is not None else 0
        return self.trainable / (self.parameters + added)

    @property
    def total(self) -> int:
        """Bytes of everything together."""
        return sum(self.memory.values())

    @property
    def held(self) -> str:
        """The forms of the base's weights."""
        return self.dtype + (f", projections in {self.quantization.storage}" if self.quantization else "")

    def to_dict(self) -> dict[str, Any]:
        """The same for a program to read."""
        values = dataclasses.asdict(self)
        config, memory = values.pop("config"), values.pop("memory")
        return {
            "model": values.pop("name"),
            "model_type": config.get("model_type"),
            **sizes(config)._asdict(),
            **values,
            "trainable_share": self.share,
            "memory_bytes": {**memory, "total": self.total},
        }

    def __str__(self) -> str:
        config = config_of(self.config)
        size, windows = config.dims, [window for window in config.windows if window]
        shared = f" sharing {size.kv_heads} key-value heads" if size.kv_heads != size.heads else ""
        if windows:
            shared += f", a window of {windows[0]:,} tokens in {len(windows)} of {size.layers} layers"
        experts = f" × {config.feed_forwards} experts" if config.feed_forwards > 1 else ""
        what = "every weight" if self.adapter is None else f"{self.adapter} on {self.cells} cells"
        rows = [
            ("model", f"{self.name} ({self.config.get('model_type')})"),
            ("layers", f"{size.layers} × hidden {size.hidden}, ffn {size.ffn}{experts}"),
            ("attention", f"{size.heads} heads of {size.head_dim}{shared}"),
            ("vocabulary", f"{size.vocab:,} tokens, context {size.context:,}"),
            ("parameters", f"{self.parameters:,}"),
            ("trained", f"{what}: {self.trainable:,} ({self.share:.4%})"),
            ("", ""),
            ("memory of a training step", f"batch {self.batch} × {self.length} tokens, base in {self.held}"),
            *((f"  {key}", f"{value / 1e6:>12,.1f} MB") for key, value in self.memory.items()),
            ("  total", f"{self.total / 1e6:>12,.1f} MB"),
        ]
        width = max(len(key) for key, _ in rows)
        return "\n".join(f"{key:<{width}}  {value}".rstrip() for key, value in rows)


@checked
def describe(
    model: str | Path | Mapping[str, Any],
    adapter: object | None = None,
    batch: int = 1,
    length: int | None = None,
    dtype: object = None,
    optimizer: str = "adamw",
    recompute: bool = False,
    quantization: Quantization | None = None,
) -> Description:
    """What training a model would take, without loading it.

    Args:
        model: a preset (``llama_7b``), a checkpoint directory, or config.json's dictionary.
        adapter: a method's configuration (``LoRAConfig(rank=8)``), or a dictionary such as
            ``{"method": "lora", "rank": 8}``; ``None`` trains every weight.
        batch: rows in a forward pass.
        length: tokens in a row; ``None`` is 512, or the model's context where that is shorter.
        dtype: type that the base is held in; ``None`` is the one its configuration names. What is trained is held in
            float32, with its gradients and optimizer state.
        optimizer: adamw, adam, lamb (two states each), momentum, lion (one), sgd, adafactor (next to none).
        recompute: keep only each layer's input, and compute the rest again in the backward pass.
        quantization: what of the base is to be packed in 8 or 4 bits, where its files hold it wide; activations are
            then float32.

    Raises:
        InputError: an unknown model, method or setting, a target that matches nothing, a length beyond the context.
    """
    from adapters.methods import method_config
    from pet.planning.process_memory import OPTIMIZER_STATES

    if isinstance(model, Mapping):
        name, config = str(model.get("_name_or_path") or model.get("model_type")), dict(model)
    else:
        name, config = str(model), model_config(model)
    size = sizes(config)
    length = min(512, size.context) if length is None else length
    for key, value in (("batch", batch), ("length", length)):
        require("describe", key, value, int, ge=1)
    if length > size.context:
        raise InputError(f"length is {length}, but the context of {name} holds {size.context} tokens")
    if optimizer not in OPTIMIZER_STATES:
        raise InputError(f"optimizer {optimizer!r} is unknown{nearest(optimizer, OPTIMIZER_STATES)}")
    quantization = packed_form(model, quantization)
    held = float_name(dtype if dtype is not None else stored_type(config) or "float32")
    parameters = sum(prod(shape) for shape in parameter_shapes(config).values())
    adapter = method_config(adapter)
    method, cells, trainable = (None, 0, parameters) if adapter is None else count_adapter(config, adapter)
    width = STORAGE[held].itemsize
    memory = {"weights": parameters * (width if method else 4)}
    if quantization is not None:
        if method is None:
            raise InputError(f"weights in {quantization.type} cannot be trained; choose a method")
        places = quantization.places(config_of(config)).values()
        packed = sum(quantization.storage.nbytes(shape) for shape in places)
        memory["weights"] = packed + (parameters - sum(map(prod, places))) * width
    if method:
        memory["adapter"] = trainable * 4
    memory["gradients"] = trainable * 4
    memory["optimizer"] = trainable * 4 * OPTIMIZER_STATES[optimizer]
    held_in_pass = held if method and quantization is None else "float32"
    memory["activations"] = activations(config, adapter, batch, length, held_in_pass, recompute)
    return Description(name, config, parameters, method, cells, trainable, batch, length, held, memory, quantization)


def stored_type(config: Mapping[str, Any]) -> str | None:
    """The type of a base's weights by its config.json, None where that says none; of FP8 what they are once read."""
    scaled = section_of(config).get("quant_method") in METHODS
    return "float32" if scaled else config.get("dtype") or config.get("torch_dtype")


def packed_form(model: str | Path | Mapping[str, Any], asked: Quantization | None) -> Quantization | None:
    """What of a model is packed once it is loaded: what its files hold in 8 or 4 bits, else what is asked for.

    Raises:
        InputError: its files hold another form than is asked for.
    """
    if isinstance(model, Mapping) or str(model) in bundled_models():
        return asked
    path = Path(model).expanduser()
    directory = path.parent if path.name == "config.json" else path
    if not holds_weights(directory):
        return asked
    with Checkpoint(directory) as checkpoint:
        return Quantization.of(checkpoint, config_of(read_config(directory)), asked)


def count_adapter(config: Mapping[str, Any], adapter: object) -> tuple[str, int, int]:
    """(method, number of cells, trained parameters) of an adapter on a model of this configuration."""
    from adapters.matching import plan
    from pet.meta_model import MetaModel

    planned = plan(MetaModel(config), adapter)
    return adapter.method, sum(not entry.whole for entry in planned.entries), planned.parameters


def activations(
    config: Mapping[str, Any], adapter: object, batch: int, length: int, dtype: str, recompute: bool
) -> int:
    """Bytes at the peak of one forward and backward pass on one device (`pet.planning.activations`)."""
    from pet.meta_model import MetaModel
    from pet.parallel.shares import shares
    from pet.planning.activations import activation_bytes
    from pet.planning.search import Work
    from pet.planning.traffic import Steps

    work = Work(MetaModel(config), adapter, batch, length, dtype, recompute=recompute)
    steps = Steps(1, 1, 1, 1, batch * length, work.width, recompute=recompute)
    return activation_bytes(work, shares(work.meta_model, work.adapter), steps, 0)
