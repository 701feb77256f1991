"""What rows and prompts of a model are padded with in MindFormers, which goes by the id and not by a mask."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from model_zoo.counting import layout_of
from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.data import columns
from pet.names import find_tokenizer
from pet.recipe.translation import Translation

PADS = {"gpt2": "eos_token_id", "llama": 0, "chatglm2": 0}
"""What MindFormers' configurations pad with where nothing says it."""
EARLIER = {"label": "labels", **columns.EARLIER}
"""Columns by the names of release 0.6."""
AHEAD = ("chatglm", "chatglm2", "glm", "glm4")
"""Layouts of models whose labels stand where they are predicted."""


def pad_of(config: Mapping[str, Any], checkpoint: Any, of_rows: bool = False) -> int | None:
    """What a model's rows are padded with: as its config.json says, or else the tokenizer beside its weights.

    Args:
        config: the config.json's dictionary.
        checkpoint: directory or name of the weights, or None.
        of_rows: of rows to learn, in which an end token that the tokenizer pads with may end a document.
    """
    pad, default = config.get("pad_token_id"), PADS.get(layout_of(config))
    if pad is None and checkpoint:
        with contextlib.suppress(InputError):  # of a .ckpt, or weights without their tokenizer
            tokenizer = AutoTokenizer.from_pretrained(find_tokenizer(checkpoint))
            pad = tokenizer.pad_token_id
            pad = None if of_rows and pad in tokenizer.eos_token_ids else pad
            if default == 0 and tokenizer.control_text(0) is None:  # a letter of LLaMA 3
                default = None
    pad = config.get(default, default) if pad is None else pad
    return pad if isinstance(pad, int) and pad >= 0 else None


def row_pad(config: Mapping[str, Any], checkpoint: Any = None) -> int | None:
    """What rows of nothing but token ids are padded with in MindFormers: GPT-2's with its end token, or 50256."""
    pad = config.get("eos_token_id", 50256) if layout_of(config) == "gpt2" else pad_of(config, checkpoint, of_rows=True)
    return pad if isinstance(pad, int) and pad >= 0 else None


def put_padding(t: Translation, config: Mapping[str, Any], checkpoint: Any = None) -> None:
    """Lets rows of token ids be learnt as MindFormers' models learn them: without labels, LLaMA's beside those whose
    question is padding, GPT-2's beside those that are its end token themselves; GLM's by labels where they are
    predicted, and LLaMA's with ``input_sliced_sig``; by labels of any kind.

    Args:
        config, checkpoint: see `pad_of`.
    """
    if t.get("train.objective") != "classification":  # whose labels are of no token
        if layout_of(config) in AHEAD or config.get("input_sliced_sig"):
            t.put("data.labels_ahead", True)
        t.put("data.other_labels", True)
    if (pad := row_pad(config, checkpoint)) is not None:
        t.put("data.padding", pad)
        t.put("data.padding_ends", layout_of(config) != "gpt2")
