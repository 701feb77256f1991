"""Control tokens around rows of ids and within texts, as scripts of MindFormers ask a tokenizer for them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from model_zoo.errors import InputError
from model_zoo.tokenizers import Tokenizer
from model_zoo.tokenizers.special import TOKEN_KEYS

Ids = Sequence[int]


@dataclasses.dataclass(frozen=True)
class Ways:
    """What a family's tokenizer does in MindFormers otherwise than the others.

    Attributes:
        in_texts: which control tokens a text of a call may hold: those that have a name (``eos_token`` …), ``all``, or
            ``none``.
        writes: whether `decode` writes control tokens.
        types, positions: whether a call gives ``token_type_ids`` and ``position_ids``.
        saves_file: whether `save_vocabulary` takes a file, too, and no prefix of names.
    """

    in_texts: str = "named"
    writes: bool = True
    types: bool = False
    positions: bool = False
    saves_file: bool = False


FAMILIES = {
    "ChatGLMTokenizer": Ways(writes=False, types=True),
    "ChatGLM2Tokenizer": Ways("none", writes=False, saves_file=True),
    "ChatGLM3Tokenizer": Ways("none", positions=True, saves_file=True),
    "GLM4Tokenizer": Ways("all", positions=True, saves_file=True),
}


def ways_of(tokenizer: type) -> Ways:
    """Those of a tokenizer's class."""
    return next((FAMILIES[one.__name__] for one in tokenizer.__mro__ if one.__name__ in FAMILIES), Ways())


def _named(text: str) -> tuple[property, property]:
    return (
        property(lambda self: text if text in self.special_tokens else None, doc=f"``{text}``, where there is one."),
        property(lambda self: self.special_tokens.get(text), doc=f"The id of ``{text}``."),
    )


class Controls(Tokenizer if TYPE_CHECKING else object):
    """Which there are, and where a call puts them."""

    is_fast = False
    all_special_tokens = property(lambda self: list(self.special_tokens), doc="The texts of all control tokens.")
    all_special_ids = property(lambda self: list(self.special_tokens.values()), doc="Their ids.")

    mask_token, mask_token_id = _named("[MASK]")
    gmask_token, gmask_token_id = _named("[gMASK]")
    end_token, end_token_id = _named("</s>")
    ways = property(lambda self: ways_of(type(self)), doc="See `Ways`.")

    def get_command(self, token: str) -> int:
        """The id of a control token, as scripts of ChatGLM ask for it."""
        return self.token_to_id(token)

    @property
    def has_token_types(self) -> bool:
        """Whether a call gives ``token_type_ids``."""
        return self.ways.types or super().has_token_types

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """{``bos_token``, ``eos_token`` …: its text}, of those that there are."""
        return {name: text for name in (*TOKEN_KEYS, "mask_token") if (text := getattr(self, name, None))}

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
        """Ids of a text; in one of a call or `encode`, where ``further`` is None, control tokens (``</s>``) are these,
        as there: see `Ways.in_texts`."""
        texts = self.special_tokens if self.ways.in_texts == "all" else self.special_tokens_map.values()
        named = sorted({*texts} & {*self.special_tokens}, key=len, reverse=True)
        if further is not None or not named or not isinstance(text, str) or self.ways.in_texts == "none":
            return super()._encode_checked(text, bool(further))
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, named))})", text):
            ids += [self.special_tokens[part]] if part in named else super()._encode_checked(part)
        return ids

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """How many tokens were new: none, or an error.

        Args:
            new_tokens: texts of tokens, or one.
            special_tokens: says nothing here.

        Raises:
            InputError: one that the tokenizer does not have.
        """
        known = {"", *self.special_tokens, *self.plain}
        lacking = [text for token in _texts(new_tokens) if (text := str(token)) not in known]
        if lacking:
            raise InputError(
                f"add_tokens: {', '.join(map(repr, lacking))}: the tokenizer and the model's embedding stay as they "
                "are; pet add-tokens writes a checkpoint that has them"
            )
        return 0

    def add_special_tokens(self, special_tokens_dict: Mapping[str, Any]) -> int:
        """Names control tokens: of those that the tokenizer has, pad_token may be another one.

        Raises:
            InputError: see `add_tokens`; or another bos_token or eos_token than the tokenizer's.
        """
        self.add_tokens([one for value in special_tokens_dict.values() for one in _texts(value)])
        for name, value in special_tokens_dict.items():
            if name in ("bos_token", "eos_token", "pad_token") and str(value) != getattr(self, name):
                setattr(self, name, str(value))
        return 0


def _texts(value: Any) -> list:
    return list(value) if isinstance(value, (list, tuple)) else [value]
