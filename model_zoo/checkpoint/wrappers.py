"""What other programs put around a model, and so in front of its tensors' names: DistributedDataParallel (``module.``),
torch.compile (``_orig_mod.``), FSDP, Lightning and PEFT (``model.``, ``base_model.model.``)."""

from __future__ import annotations

import re
from collections.abc import Collection

from model_zoo.errors import InputError

WITHIN = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What these may put around a part of a model, too."""
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
