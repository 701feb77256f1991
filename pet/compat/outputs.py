"""What scripts of other systems expect of a call: a model's outputs by name, and a hook that takes what it knows."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from model_zoo.turns import in_turn

HIDDEN = ("hidden_states", "decoder_hidden_states")


@dataclasses.dataclass
class Output:
    """Of a model's call: ``loss``, None without labels; ``logits`` ``(B, S, V)``; ``hidden_states`` ``(B, S, H)``, of
    the last layer."""

    loss: Any
    logits: Any
    hidden_states: Any

    @property
    def decoder_hidden_states(self):
        """The same: these models are nothing but decoders."""
        return self.hidden_states


class Outputs:
    """A model whose call gives an `Output`; its other attributes are the model's. Not for graphs."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @in_turn
    def __call__(self, input_ids, labels=None, **data) -> Any:
        """By a batch's arrays; a cell of no family gives what it gives."""
        from mindspore import ops

        from pet.train.objectives.causal import CausalLM, shift_labels

        if getattr(self.model, "family", None) is None:
            labels = {} if labels is None else {"labels": labels}
            return call(self.model, input_ids=input_ids, **labels, **data)
        arrays = [data.get(name) for name in ("position_ids", "start", "end")]
        if any(array is None for array in arrays):
            arrays = self.model.layout(input_ids, data.get("attention_mask"), arrays[0])[:3]
        hidden = self.model.hidden_states(input_ids, *arrays, None)
        logits, hidden = (each.reshape((*input_ids.shape, -1)) for each in (self.model.head(hidden), hidden))
        if labels is None:
            return Output(None, logits, hidden)
        count = ops.maximum((shift_labels(labels) != -100).astype(logits.dtype).sum(), 1)
        return Output(CausalLM().loss(logits, labels) / count, logits, hidden)


def tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch's arrays as Tensors, without rows that only fill it up."""
    import mindspore as ms
    import numpy as np

    arrays = {name: value for name, value in batch.items() if isinstance(value, np.ndarray)}
    filling = [not members for members in batch.get("sample_ids", ())]
    if any(filling):
        real = np.flatnonzero(~np.asarray(filling))
        arrays = {name: value[real] if len(value) == len(filling) else value for name, value in arrays.items()}
    return {name: ms.Tensor(value) for name, value in arrays.items()}


def call(function: Callable, *arguments: Any, **offered: Any) -> Any:
    """Calls a user's function with those of the keywords that it takes."""
    shown = function.construct if hasattr(function, "construct") else function
    parameters = inspect.signature(shown).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return function(*arguments, **offered)
    return function(*arguments, **{name: value for name, value in offered.items() if name in parameters})
