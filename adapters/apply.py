"""What a user calls: apply a method, and manage the adapters on a model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from mindspore import Parameter, nn

from adapters.bitfit import BitFitConfig
from adapters.bottleneck import BottleneckConfig
from adapters.ia3 import IA3Config
from adapters.lora import LoRAConfig
from adapters.low_rank_adapter import LowRankAdapterConfig
from adapters.method import MethodConfig
from adapters.prefix import PrefixConfig
from adapters.prompt import PromptConfig, PTuningConfig
from adapters.ptuning import PTuningV2Config
from adapters.registry import check_model, registry
from adapters.restart import base_loading as base_beneath
from adapters.saving import knows
from model_zoo.arguments import checked
from model_zoo.checkpoint.parameters import whole_base
from model_zoo.errors import InputError, warn_caller
from model_zoo.layers import weights_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from adapters import keywords

Model = TypeVar("Model", bound=nn.Cell)  # what comes back is of the class that was given


@checked
def apply(model: Model, config: MethodConfig, name: str = "default") -> Model:
    """Adds an adapter and makes it the active one; the base is frozen. Changes the model in place and returns it.

    Args:
        model: one of `model_zoo`, or any cell that holds Dense, convolution or embedding cells.
        config: a method's configuration, such as ``LoRAConfig(rank=8)``.
        name: of the adapter.

    Raises:
        InputError: a target that matches nothing, a taken name, a setting out of range. The model is unchanged then.
    """
    add_adapter(model, config, name)
    set_adapter(model, name)
    return model


@checked
def apply_lora(
    model: Model,
    rank: int = 8,
    alpha: float = 16,
    dropout: float = 0.0,
    targets: list[str] | str | None = None,
    exclude: list[str] | str | None = None,
    layers: list[int | str] | int | str | None = None,
    name: str = "default",
    **settings: Unpack[keywords.LoRA],
) -> Model:
    """Adds a LoRA adapter: `apply` with a `LoRAConfig`, whose docstring says what each setting means."""
    config = LoRAConfig(
        rank=rank,
        alpha=alpha,
        dropout=dropout,
        targets=targets,
        exclude=exclude,
        layers=layers,
        **settings,
    )
    return apply(model, config, name)


@checked
def apply_prefix(
    model: Model,
    length: int = 20,
    projection: bool = False,
    init_text: str | None = None,
    tokenizer=None,
    name: str = "default",
    **settings: Unpack[keywords.Prefix],
) -> Model:
    """Adds prefix tuning; `adapters.prefix.PrefixConfig` says what the settings mean.

    Args:
        tokenizer: reads `init_text`.
    """
    given = {"length": length, "projection": projection, **text_settings(init_text, tokenizer), **settings}
    return apply(model, PrefixConfig(**given), name)


@checked
def apply_ptuning(
    model: Model,
    length: int = 128,
    projection: bool = False,
    init_text: str | None = None,
    tokenizer=None,
    name: str = "default",
    **settings: Unpack[keywords.PTuning2],
) -> Model:
    """Adds P-Tuning v2 in ChatGLM's form; the arguments are those of `apply_prefix`."""
    given = {"length": length, "projection": projection, **text_settings(init_text, tokenizer), **settings}
    return apply(model, PTuningV2Config(**given), name)


@checked
def apply_prompt(
    model: Model,
    length: int = 20,
    init_text: str | None = None,
    tokenizer=None,
    name: str = "default",
    **settings: Unpack[keywords.Prompt],
) -> Model:
    """Adds prompt tuning (`adapters.prompt.PromptConfig`)."""
    given = {"length": length, **text_settings(init_text, tokenizer), **settings}
    return apply(model, PromptConfig(**given), name)


@checked
def apply_p_tuning(
    model: Model,
    length: int = 20,
    projection_hidden: int | None = None,
    name: str = "default",
    **settings: Unpack[keywords.PTuning],
) -> Model:
    """Adds p-tuning, prompt tuning through a network (`adapters.prompt.PTuningConfig`)."""
    return apply(model, PTuningConfig(length=length, projection_hidden=projection_hidden, **settings), name)


@checked
def apply_adapter(
    model: Model,
    size: int = 64,
    placement: str = "houlsby",
    name: str = "default",
    **settings: Unpack[keywords.Bottleneck],
) -> Model:
    """Adds bottleneck adapters (`adapters.bottleneck.BottleneckConfig`)."""
    return apply(model, BottleneckConfig(size=size, placement=placement, **settings), name)


@checked
def apply_low_rank_adapter(
    model: Model,
    reduction_factor: int = 4,
    rank: int = 1,
    name: str = "default",
    **settings: Unpack[keywords.LowRankAdapter],
) -> Model:
    """Adds MindPet's low-rank adapters (`adapters.low_rank_adapter.LowRankAdapterConfig`)."""
    config = LowRankAdapterConfig(reduction_factor=reduction_factor, rank=rank, **settings)
    return apply(model, config, name)


@checked
def apply_ia3(
    model: Model,
    targets: list[str] | str | None = None,
    feedforward: list[str] | str | None = None,
    name: str = "default",
    **settings: Unpack[keywords.IA3],
) -> Model:
    """Adds IA3 (`adapters.ia3.IA3Config`)."""
    return apply(model, IA3Config(targets=targets, feedforward=feedforward, **settings), name)


@checked
def apply_bitfit(
    model: Model,
    targets: list[str] | str | None = None,
    add_missing: bool = True,
    name: str = "default",
    **settings: Unpack[keywords.BitFit],
) -> Model:
    """Trains the biases alone (`adapters.bitfit.BitFitConfig`)."""
    return apply(model, BitFitConfig(targets=targets, add_missing=add_missing, **settings), name)


def text_settings(init_text: str | None, tokenizer) -> dict[str, Any]:
    """``init_text`` and its ids, read without special tokens; nothing where there is no text."""
    if tokenizer is not None and (isinstance(tokenizer, str) or not hasattr(tokenizer, "encode")):
        raise InputError(f"tokenizer is of the type {type(tokenizer).__name__}; one of pet.AutoTokenizer was expected")
    if init_text is None or tokenizer is None:
        return {} if init_text is None else {"init_text": init_text}
    return {"init_text": init_text, "init_ids": list(tokenizer.encode(init_text, add_special_tokens=False))}


@checked
def add_adapter(model: nn.Cell, config: MethodConfig, name: str) -> None:
    """Adds an adapter without making it active.

    A model in which a cell was exchanged before can be trained, but `adapters.saving.save_adapter` refuses it, since
    its base is none that could be found again: a warning says so.
    """
    registry(model).add(config, name)
    try:
        check_base(model)
    except InputError as error:
        warn_caller(f"{error}; save_adapter will refuse adapter {name!r}")


def check_base(model: nn.Cell) -> None:
    """Raises InputError where an adapter could not be saved: a family's model lacks weights of its configuration. One
    process of many has a part of them."""
    if knows(model) and not hasattr(model, "base_fingerprint"):
        with registry(model).disabled():
            whole_base(model)


@checked
def set_adapter(model: nn.Cell, names: str | Iterable[str]) -> None:
    """Lets just this adapter, or these in this order, take part in the forward and in training: their parameters become
    trainable and those of all others frozen. Nothing else undoes what `freeze_modules` set."""
    registry(model).set(names)


@checked
def delete_adapter(model: nn.Cell, name: str) -> None:
    """Takes an adapter off. With the last one gone the model is the plain base again, trainable as it was."""
    registry(model).delete(name)


def list_adapters(model: nn.Cell) -> list[str]:
    """The names of the adapters on a model, in the order they were added."""
    return list(registry(model).adapters)


def adapter_status(model: nn.Cell) -> dict[str, dict[str, Any]]:
    """{name: {method, active, merged, cells, parameters}} of every adapter."""
    state = registry(model)
    return {
        name: {
            "method": adapter.config.method,
            "active": name in state.active,
            "merged": name in state.merged_names,
            "cells": len(adapter.modules),
            "parameters": sum(parameter.size for parameter in adapter.parameters()),
        }
        for name, adapter in state.adapters.items()
    }


def disable_adapters(model: nn.Cell) -> AbstractContextManager[None]:
    """A context in which the model is its bare base, whatever is called within; blocks nest. What is active and what is
    merged stays so and takes part again afterwards; adapters chosen within count from then on. The same context may be
    entered again, within itself too."""
    return Again(registry(model).disabled)


@contextmanager
def base_loading(model: nn.Cell) -> Iterator[None]:
    """A context in which the weights of a base are loaded beneath its adapters, by MindSpore's own means::

        with pet.base_loading(network):
            mindspore.load_param_into_net(network, mindspore.load_checkpoint("network.ckpt"))

    Within, the network is its bare base, with its own parameters under their own names. Afterwards the adapters stand
    on the new weights as if these had been loaded before: DoRA's norms, PiSSA's factors and copies of biases are taken
    anew, as far as nobody has trained them.
    """
    state = registry(model)
    with base_beneath(state):
        yield
    state.note_base([True])  # loading may put weights where a compiled graph does not look
    state.refresh()


@checked
def adapter_names(model: nn.Cell, names: list[str]) -> AbstractContextManager[None]:
    """A context in which row i of every batch goes through adapter ``names[i]``, or the base for ``"__base__"``.

    A batch with another number of rows is an InputError. What is trained stays as it is.
    """
    return Again(functools.partial(registry(model).rows, names))


class Again(AbstractContextManager, ContextDecorator):
    """A context that may be entered more than once, each time a new one of those that `make` gives."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]):
        self.make, self.entered = make, []

    def __enter__(self) -> None:
        context = self.make()
        context.__enter__()
        self.entered.append(context)

    def __exit__(self, *error: Any) -> bool | None:
        return self.entered.pop().__exit__(*error)


def trainable_parameters(model: nn.Cell) -> list[Parameter]:
    """What an optimizer gets: the parameters of the active adapters, and what `freeze_modules` made trainable, but for
    what is no weight (dropout's key, DoRA's norms).

    Raises:
        InputError: one of them is stored in 8 or 4 bits, or an active adapter is on a cell that was exchanged.
    """
    check_model(model)
    for _, part in model.cells_and_names():
        if (state := part.__dict__.get("_adapter_registry")) is not None:
            for name in state.active:
                state.get(name).refuse_lost(part)
    found = [one for one in model.get_parameters() if one.requires_grad and not getattr(one, "buffer", False)]
    for parameter in found:
        if (form := getattr(parameter, "form", None)) is not None:
            raise InputError(f"{parameter.name} is stored in {form} and cannot be trained; freeze it")
    return found


def print_trainable_parameters(model: nn.Cell) -> str:
    """Prints, and returns, ``trainable params: N || all params: M || trainable%: p``, as PEFT does."""
    trainable = sum(parameter.size for parameter in trainable_parameters(model))
    total = sum(weights_of(one) for one in model.get_parameters() if not getattr(one, "buffer", False))
    line = (
        f"trainable params: {trainable:,} || all params: {total:,} || trainable%: {100 * trainable / max(total, 1):.4f}"
    )
    print(line)
    return line
