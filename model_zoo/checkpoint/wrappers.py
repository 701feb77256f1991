"""What other programs put around a model, and so in front of its tensors' names: DistributedDataParallel (``module.``),
torch.compile (``_orig_mod.``), FSDP, Lightning and PEFT (``model.``, ``base_model.model.``). And how transformers 5 has
the experts of a layer: as one tensor, where published files have them one by one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from model_zoo.errors import InputError

WITHIN = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What these may put around a part of a model, too."""
PUBLISHED = {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."}
"""How the names of text models within multimodal ones begin in published files, and how in the models."""
STACKS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""{parameter: matrices of an expert that it holds, one below the other}, as PEFT wraps them."""
ADAPTER = re.compile(r".+\.(lora_[AB]|lora_embedding_[AB]|base_layer)\b.*")


def unwrapped(stored: Collection[str], known: Collection[str]) -> dict[str, str]:
    """{stored name: name without what stands in front of all of them}; of names that the model knows nothing is taken.

    Args:
        stored: the names in the files.
        known: the model's own, which may lack their first part.

    Raises:
        InputError: an adapter's matrices lie among them.
    """
    if odd := next(filter(ADAPTER.fullmatch, stored), None):
        raise InputError(
            f"{odd}: an adapter lies among the model's weights; in PEFT model.merge_and_unload().save_pretrained(DIR) "
            "writes both as one, and model.save_pretrained(DIR) the adapter alone"
        )
    names = {name: WITHIN.sub("", name) for name in stored}
    if len({*names.values()}) < len(names):  # two models in one file
        return {name: name for name in stored}
    parts = [name.split(".") for name in names.values()]
    for depth in range(min(map(len, parts), default=0)):
        if len({tuple(one[:depth]) for one in parts}) > 1:
            break
        cut = {name: own.split(".", depth)[-1] for name, own in names.items()}
        if not known.isdisjoint(cut.values()):
            return cut
    return names


def unstacked(tensors: Mapping[str, Any], made: Collection[str]) -> dict[str, Any]:
    """{name: `TensorInfo`} of a file that has experts one by one, where it has them as one tensor ``(E, rows, in)``.

    Args:
        tensors: as the file has them.
        made: those of them that do not lie row by row, and stay as they are.
    """
    found = {}
    for name, info in tensors.items():
        experts, _, last = name.rpartition(".")
        matrices = STACKS.get(last, ()) if experts.endswith(".experts") and len(info.shape) == 3 else ()
        if not matrices or info.shape[1] % len(matrices) or name in made:
            found[name] = info
            continue
        count, rows, width = info.shape
        size = info.nbytes // max(1, count * len(matrices))
        for place in range(count * len(matrices)):
            expert, part = divmod(place, len(matrices))
            shown, start = f"{experts}.{expert}.{matrices[part]}.weight", info.start + place * size
            found[shown] = info._replace(shape=(rows // len(matrices), width), start=start, end=start + size)
    return found
