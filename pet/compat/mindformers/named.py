"""MindFormers' models by names of `pet`, too: called, they give logits in every mode, as `pet.AutoModel`'s do."""

from __future__ import annotations

from model_zoo.causal_lm import CausalLM
from pet.compat.mindformers import classes
from pet.compat.mindformers.cells import give_logits


class _Logits(classes.FamilyModel):
    def __new__(cls, config=None) -> CausalLM:
        return give_logits(super().__new__(cls, config))

    @staticmethod
    def from_pretrained(name_or_directory) -> CausalLM:
        """The model of a checkpoint directory, bundled base or MindFormers ``.ckpt`` file, with its weights."""
        return give_logits(classes.AutoModel.from_pretrained(name_or_directory))


class GPT2LMHeadModel(_Logits, classes.GPT2LMHeadModel):
    """GPT-2."""


class LlamaForCausalLM(_Logits, classes.LlamaForCausalLM):
    """LLaMA 1 to 3.2."""


class GLMChatModel(_Logits, classes.GLMChatModel):
    """ChatGLM-6B."""
