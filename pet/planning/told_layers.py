"""What layers that run as one operator keep and forget, from the steps that they tell (`model_zoo.engine.steps`).

A model of two layers is built for it, without values: what they tell depends on widths alone.
"""

from __future__ import annotations

import dataclasses

from adapters.apply import apply
from adapters.lora import LoRALinear
from model_zoo.auto import MODEL_OF, classes_for
from model_zoo.engine import available
from model_zoo.engine.steps import Unrecorded, layer_list
from model_zoo.engine.training import WholeLayers
from model_zoo.errors import InputError

LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer")
"""What config.json calls the number of layers."""


@dataclasses.dataclass(frozen=True)
class Told:
    """Numbers per token.

    Attributes:
        kept: of a layer, until its backward pass.
        forward, backward: forgotten; most at a time while layers run forward, and backward.
    """

    kept: int
    forward: int
    backward: int


_known: dict[tuple[str, str, bool], Told | None] = {}


def told(outline, adapter, forgets: bool) -> Told | None:
    """What the layers of a model hold, or None where they run operator by operator.

    Args:
        outline: the model.
        adapter: a method's configuration, or None where every weight is trained.
        forgets: whether layers are computed again in the backward pass.
    """
    key = (repr(sorted(outline.values.items(), key=str)), repr(adapter), forgets)
    if key not in _known:
        _known[key] = _told(outline, adapter, forgets) if available() else None
    return _known[key]


def _told(outline, adapter, forgets: bool) -> Told | None:
    if getattr(adapter, "init", "default") not in ("default", "gaussian"):
        return None  # it would look at weights, which are not there
    dora = getattr(adapter, "use_dora", False)
    if dora:  # so would its norms
        adapter = dataclasses.replace(adapter, use_dora=False)
    values = {**outline.values, **{key: 2 for key in LAYER_COUNTS if key in outline.values}}
    try:
        config = classes_for(values)[0].from_dict(values)
        model = MODEL_OF[type(config)](config)
        if adapter is not None:
            apply(model, adapter)
        model.set_train(True)
        weights = frozenset(id(parameter) for parameter in model.get_parameters() if parameter.requires_grad)
        layers = list(layer_list(model))
        one, two = (
            WholeLayers(some, config.dims.hidden, weights, True, forgets).operator for some in (layers[1:], layers)
        )
    except (InputError, Unrecorded):  # an adapter for layers that are not there, or that does not tell its steps
        return None
    except (TypeError, ValueError):  # config.json's values are of no use: whoever builds the model says which
        return None
    rescaled = sum(
        module.lora_B.weight.shape[0]
        for _, module in layers[1].cells_and_names()
        if dora and isinstance(module, LoRALinear)
    )  # what DoRA makes of an output is kept beside it
    if forgets:  # each is an operator of its own
        forward, backward = one.work
        return Told(0, forward, backward + rescaled)
    return Told(two.kept - one.kept + rescaled, *two.work)
