"""Control tokens around rows of ids and within texts, as scripts of MindFormers ask a tokenizer for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from model_zoo.tokenizers import Tokenizer
from model_zoo.tokenizers.special import TOKEN_KEYS

Ids = Sequence[int]
IN_NO_TEXT = {"ChatGLM2Tokenizer", "ChatGLM3Tokenizer", "GLM4Tokenizer"}
"""Tokenizers whose control tokens stand in no text."""


class Controls(Tokenizer if TYPE_CHECKING else object):
    """Which there are, and where a call puts them."""

    is_fast = False
    all_special_tokens = property(lambda self: list(self.special_tokens), doc="The texts of all control tokens.")
    all_special_ids = property(lambda self: list(self.special_tokens.values()), doc="Their ids.")

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """{``bos_token``, ``eos_token`` …: its text}, of those that there are."""
        return {name: text for name in TOKEN_KEYS if (text := getattr(self, name, None))}

    def build_inputs_with_special_tokens(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> list[int]:
        """Ids with a call's control tokens around them; further ones have their own, or of GLM's the end token."""
        before, after = self.call_tokens()
        whole = [*before, *token_ids_0, *after]
        if token_ids_1 is None:
            return whole
        ends = "[gMASK]" in self.special_tokens
        return [*whole, *token_ids_1, self.eos_token_id] if ends else [*whole, *before, *token_ids_1, *after]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many tokens these are."""
        return len(self.build_inputs_with_special_tokens((), () if pair else None))

    def get_special_tokens_mask(
        self, token_ids_0: Ids, token_ids_1: Ids | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """1 for each control token, 0 for the others: of a row that has them, or of the one that is built."""
        if already_has_special_tokens:
            return [int(one in self.all_special_ids) for one in token_ids_0]
        others = [None if ids is None else [None] * len(ids) for ids in (token_ids_0, token_ids_1)]
        return [int(one is not None) for one in self.build_inputs_with_special_tokens(*others)]

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> list[int]:
        """0 for the row that is built of the first ids, 1 for what the second ones add."""
        first = len(self.build_inputs_with_special_tokens(token_ids_0))
        return [0] * first + [1] * (len(self.build_inputs_with_special_tokens(token_ids_0, token_ids_1)) - first)

    def _encode_checked(self, text: str, further: bool | None = None) -> list[int]:
        """Ids of a text; in one of a call or `encode`, where ``further`` is None, the control tokens that have a name
        (``</s>``) are these, as there, but for the tokenizers that have them in no text there either."""
        named = sorted({*self.special_tokens_map.values()} & {*self.special_tokens}, key=len, reverse=True)
        if (
            further is not None
            or not named
            or not isinstance(text, str)
            or IN_NO_TEXT & {one.__name__ for one in type(self).__mro__}
        ):
            return super()._encode_checked(text, bool(further))
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, named))})", text):
            ids += [self.special_tokens[part]] if part in named else super()._encode_checked(part)
        return ids
