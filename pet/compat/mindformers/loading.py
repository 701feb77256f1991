"""MindSpore's own ``load_checkpoint`` and ``load_param_into_net`` with MindFormers' files and this library's models:
scripts call them on a model that has there the names of its file."""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import mindspore as ms
from mindspore.train import serialization

from adapters.apply import delete_adapter
from adapters.lora import LoRAConfig
from adapters.registry import registry
from adapters.saving import load_adapter
from model_zoo.atomic import read_json, write_json
from model_zoo.causal_lm import CausalLM
from model_zoo.errors import InputError
from pet.compat.ckpt.lora import to_adapter
from pet.compat.ckpt.names import Form, form_of, groups, shapes_of
from pet.compat.ckpt.view import is_lora, is_weight, misshapen, our_tensors, own_names

Held = MutableMapping[str, ms.Parameter]  # what `mindspore.load_checkpoint` returns


@functools.cache
def load_their_names() -> None:
    """From now on MindSpore loads MindFormers' names into this library's models.

    Before anything else it checks what it was given in a function of its own; there the names become ours. A script may
    have taken ``load_param_into_net`` out of MindSpore before it imported anything of this library: this reaches that,
    too, with what it returns, and ``load_checkpoint(file, net)``.
    """
    check = serialization._check_load_param_into_net

    @functools.wraps(check)
    def checked(net, parameter_dict) -> None:
        check(net, parameter_dict)
        if isinstance(net, CausalLM):
            rename(net, parameter_dict)

    serialization._check_load_param_into_net = checked


def rename(model: CausalLM, held: Held) -> None:
    """Gives tensors a model's names, as far as theirs are MindFormers'. LoRA's matrices are put into the model's LoRA.
    What is not there whole, or has no place in the model, keeps its name: MindSpore reports it.

    Args:
        held: is changed, so that no tensor is in memory twice.

    Raises:
        InputError: tensors of other shapes than the model's, all of them.
    """
    values = model.config.to_dict()
    form = form_of(held, Form(use_rearrange_rope=bool(getattr(model.config, "use_rearrange_rope", False))))
    if own_names(values, filter(is_weight, held), form):
        return
    shapes, whole = shapes_of(values), []
    with suppress(InputError):  # MindFormers has no names for this model
        whole = [group for group in groups(values, form) if held.keys() >= {*group.theirs}]
    there = {name: held[name].shape for group in whole for name in group.theirs}
    wrong = (problem for group in whole for problem in misshapen(group, shapes, there))
    InputError.raise_any(f"load_param_into_net: {problem}" for problem in wrong)
    for group in whole:
        theirs = [held.pop(name) for name in group.theirs]
        if len(theirs) == len(group.ours) and not (group.rearranged or theirs[0].shape != shapes[group.ours[0]]):
            held.update(zip(group.ours, theirs, strict=True))
        else:
            ours = our_tensors(group, [one.asnumpy() for one in theirs], shapes)
            held.update({name: ms.Parameter(ms.Tensor(one)) for name, one in zip(group.ours, ours, strict=True)})
    names, adapters = [*filter(is_lora, held)], [*registry(model).adapters.values()]
    if names and adapters and isinstance(adapters[-1].config, LoRAConfig):
        with TemporaryDirectory() as place:
            file = Path(place, "lora.ckpt")
            ms.save_checkpoint([{"name": name, "data": held.pop(name)} for name in names], str(file))
            fill_lora(file, form, model)
        held.update({one.name: one for one in model.get_parameters() if one.name not in shapes})


def fill_lora(file: Path, form: Form, model: CausalLM) -> None:
    """Puts the matrices of a model's MindFormers file in the place of the LoRA that it got last, whose dropout stays.
    Its rank may change: LoRA of two parts of a matrix that is one here has both."""
    mine = list(registry(model).adapters.values())[-1]
    with TemporaryDirectory() as place:
        to_adapter(file, place, mine.config.alpha, model.config.to_dict(), form)
        settings = Path(place, "adapter_config.json")
        write_json(settings, {**read_json(settings), "lora_dropout": mine.config.dropout})
        delete_adapter(model, mine.name)
        load_adapter(model, place, mine.name)
