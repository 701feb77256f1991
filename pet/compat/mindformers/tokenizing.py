"""What scripts of MindFormers ask of a tokenizer beside `model_zoo.tokenizers.Tokenizer`'s own methods."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo.errors import InputError, check_one_of
from model_zoo.tokenizers import Tokenizer
from model_zoo.tokenizers.base import padded
from model_zoo.tokenizers.prompts import STYLES, check_messages, joined
from model_zoo.tokenizers.settable import Setting
from pet.compat.mindformers.control_tokens import Controls
from pet.compat.mindformers.encodings import BatchEncoding, apart, as_arrays, cuts, places_of, rows_of
from pet.compat.mindformers.saving import place_of, save_vocabulary

Texts = Sequence[str]
UNLIMITED = int(1e30)
"""``model_max_length`` of a tokenizer whose files say none, as there."""


OF_PAD = ("pad_to_multiple_of", "return_attention_mask", "return_tensors")
NOT_HERE = ("return_overflowing_tokens", "return_token_type_ids", "prepend_batch_axis", "stride")
"""What `prepare_for_model` hands on, and what it has not; others say nothing there either."""


class Spoken(Controls):
    """Before a tokenizer's class: pieces and their ids, several rows at once, padding, and prompts.

    Attributes:
        padding_side: ``right`` or ``left``; right where tokenizer_config.json says nothing, as there.
        model_max_length: what texts are cut at, or padded to, where a call asks for it without ``max_length``.
    """

    padding_side = Setting("right", lambda value: value in ("left", "right"), "'left' or 'right'")
    model_max_length = Setting(UNLIMITED, lambda value: isinstance(value, (int, float)) and value > 0, "a length")

    def __call__(
        self,
        text: str | Texts,
        text_pair: str | Texts | None = None,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        padding_side: str | None = None,
        max_length: int | None = None,
        truncation: bool | str | None = None,
        return_tensors: str | None = None,
        add_bos_token: bool | None = None,
        add_eos_token: bool | None = None,
        return_attention_mask: bool | None = None,
        return_token_type_ids: bool | None = None,
    ) -> BatchEncoding:
        """See `Tokenizer`; with the tokenizer's own side and length.

        Args:
            text: one or several; or a list of pairs, of a text and one behind it.
            text_pair: a text behind it, or one behind each. True and False are `add_special_tokens`, as in `Tokenizer`.
            truncation: None cuts where ``max_length`` is said and no padding, as there.
            add_bos_token, add_eos_token: for this call.
            return_attention_mask, return_token_type_ids: False leaves them out.
        """
        if isinstance(text_pair, bool):
            text_pair, add_special_tokens = None, text_pair
        text, text_pair = apart(text) if text_pair is None else (text, text_pair)
        given = {"add_bos_token": add_bos_token, "add_eos_token": add_eos_token, "padding_side": padding_side}
        given = {name: value for name, value in given.items() if value is not None}
        tokenizer = copy.copy(self) if given else self
        for name, value in given.items():
            setattr(tokenizer, name, value)
        if max_length is None and (truncation or padding == "max_length") and self.model_max_length < UNLIMITED:
            max_length = int(self.model_max_length)
        how = {"padding": padding, "max_length": max_length, "return_tensors": return_tensors}
        cut = cuts(truncation, padding, max_length)
        if text_pair is None:
            found = super(Spoken, tokenizer).__call__(text, add_special_tokens, truncation=cut, **how)
        else:
            found = tokenizer._pairs(text, text_pair, add_special_tokens, cut, **how)
        if self.ways.positions and return_attention_mask is not False:
            places = places_of(rows_of(found["attention_mask"]))
            found["position_ids"] = as_arrays(return_tensors, places) if return_tensors else places
        out = {"attention_mask": return_attention_mask, "token_type_ids": return_token_type_ids}
        return BatchEncoding({name: rows for name, rows in found.items() if out.get(name) is not False})

    def _pairs(self, first: Any, second: Any, special: bool, cut: bool, max_length: int | None, **how) -> dict:
        single = isinstance(first, str)
        if single != isinstance(second, str) or (not single and len(first) != len(second)):
            raise InputError("text_pair: one text for each text was expected")
        pairs = [(first, second)] if single else zip(first, second, strict=True)
        ids = [[self._encode_checked(one) for one in pair] for pair in pairs]
        rows = [self.prepare_for_model(*pair, special, False, cut, max_length) for pair in ids]
        return self.pad(rows[0] if single else rows, max_length=max_length, **how)

    def encode(
        self, text: str, text_pair: str | bool | None = None, add_special_tokens: bool = True, **settings
    ) -> list[int]:
        """The ids that a call gives with these settings; without any see `Tokenizer`."""
        if isinstance(text_pair, bool):
            text_pair, add_special_tokens = None, text_pair
        if text_pair is None and not settings:
            return super().encode(text, add_special_tokens)
        return self(text, text_pair, add_special_tokens, **settings)["input_ids"]

    def pad(
        self,
        encoded_inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Rows of ids, as calls of the tokenizer give them, in one length.

        Args:
            encoded_inputs: one row or several: ``input_ids`` and what stands beside them; or a list of such rows.
            padding: True or ``longest``, ``max_length``, or False.
            max_length: for ``padding="max_length"``; default `model_max_length`.
            pad_to_multiple_of: the length is a multiple of it.
            return_attention_mask: False leaves it out.
            return_tensors: None for lists, ``np`` or ``ms``.
            verbose: says nothing here.
        """
        if not isinstance(encoded_inputs, Mapping):
            rows = list(encoded_inputs)
            encoded_inputs = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        if "input_ids" not in encoded_inputs:
            raise InputError(f"pad: no input_ids, found {', '.join(encoded_inputs) or 'nothing'}")
        found = {name: rows_of(value) for name, value in encoded_inputs.items()}
        single = bool(found["input_ids"]) and np.ndim(found["input_ids"][0]) == 0
        found = {name: [value] for name, value in found.items()} if single else found
        if return_attention_mask is not False:
            found.setdefault("attention_mask", [[1] * len(row) for row in found["input_ids"]])
        else:
            found.pop("attention_mask", None)
        if self.ways.positions and return_attention_mask is not False:
            found.setdefault("position_ids", [list(range(len(row))) for row in found["input_ids"]])
        if padding not in (False, "do_not_pad"):
            width = self._width(padding, max_length, max(map(len, found["input_ids"]), default=0))
            width = -(-width // pad_to_multiple_of) * pad_to_multiple_of if pad_to_multiple_of else width
            if self.pad_token_id is None and any(len(row) < width for row in found["input_ids"]):
                raise InputError(f"{self.source}: this tokenizer has no padding token")
            fill = {"input_ids": self.pad_token_id, "special_tokens_mask": 1}
            found = {
                name: [padded(list(row), width, fill.get(name, 0), self.padding_side) for row in value]
                for name, value in found.items()
            }
        found = {name: value[0] for name, value in found.items()} if single else found
        return BatchEncoding(found, return_tensors)

    def _pad(self, encoded_inputs, max_length=None, padding_strategy="do_not_pad", **settings) -> dict[str, Any]:
        return self.pad(encoded_inputs, padding_strategy, max_length, **settings)

    def prepare_for_model(
        self,
        ids: Sequence[int],
        pair_ids: Sequence[int] | None = None,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """A row of ids as a call of the tokenizer gives it.

        Args:
            ids, pair_ids: one behind the other.
            add_special_tokens: see `build_inputs_with_special_tokens`.
            padding, max_length: see `pad`.
            truncation: cuts at ``max_length``, of a pair the longer one first; None cuts without padding, as there.
            settings: ``return_attention_mask`` and others of `pad`, ``return_length``, ``return_special_tokens_mask``.

        Raises:
            InputError: a setting that is not here, or no room for the control tokens.
        """
        marks, length = (settings.pop(f"return_{name}", False) for name in ("special_tokens_mask", "length"))
        InputError.raise_any(f"prepare_for_model: there is no {name}" for name in NOT_HERE if settings.get(name))
        build = self.build_inputs_with_special_tokens if add_special_tokens else lambda one, two: [*one, *(two or ())]
        ids, pair = list(ids), None if pair_ids is None else list(pair_ids)
        room = int(self.model_max_length if max_length is None else max_length)
        for _ in range(len(build(ids, pair)) - room if cuts(truncation, padding, max_length) else 0):
            longer = ids if pair is None or len(ids) > len(pair) else pair
            if not longer:
                raise InputError(f"max_length: {room} has no room for the control tokens")
            longer.pop()
        row = {"input_ids": build(ids, pair)}
        if self.has_token_types:
            types = self.create_token_type_ids_from_sequences(ids, pair)
            row["token_type_ids"] = types if add_special_tokens else [0] * len(row["input_ids"])
        if marks:
            bare = [0] * len(row["input_ids"])
            row["special_tokens_mask"] = self.get_special_tokens_mask(ids, pair) if add_special_tokens else bare
        found = self.pad(row, padding, max_length, **{name: settings[name] for name in OF_PAD if name in settings})
        return BatchEncoding({**found, "length": len(found["input_ids"])}) if length else found

    def _width(self, padding: bool | str, max_length: int | None, longest: int) -> int:
        if padding is True or padding == "longest":
            return longest
        check_one_of("padding", padding, (False, True, "longest", "max_length"))
        if max_length is None and self.model_max_length >= UNLIMITED:
            raise InputError("max_length: needed for padding='max_length'")
        return int(self.model_max_length if max_length is None else max_length)

    def decode(self, ids, skip_special_tokens: bool | None = None, **settings) -> str | list[str]:
        """The text of ids, with control tokens unless they are skipped; ChatGLM-6B and ChatGLM2 have no text for them.
        Of several rows a list."""
        if skip_special_tokens is None:
            skip_special_tokens = not self.ways.writes
        rows = ids.asnumpy() if hasattr(ids, "asnumpy") else ids
        if not isinstance(rows, int) and len(rows) and np.ndim(rows[0]) == 1:
            return [super(Spoken, self).decode(row, skip_special_tokens, **settings) for row in rows]
        return super().decode(ids, skip_special_tokens, **settings)

    def save_pretrained(self, save_directory=None, save_name: str | None = None, save_json: bool = True) -> list[Path]:
        """See `Tokenizer.save_pretrained`; no YAML file is written whatever `save_json` says."""
        return super().save_pretrained(place_of(save_directory, save_name))

    def save_vocabulary(self, save_directory, filename_prefix: str | None = None) -> tuple[str, ...] | None:
        """See `saving.save_vocabulary`."""
        return save_vocabulary(self, save_directory, filename_prefix, as_file=self.ways.saves_file)

    def batch_decode(self, rows: Iterable, *arguments, **settings) -> list[str]:
        """The text of each row of ids."""
        return [self.decode(row, *arguments, **settings) for row in rows]

    def encode_plus(self, text: str | Texts, **settings) -> dict[str, Any]:
        """The tokenizer called."""
        return self(text if isinstance(text, str) else list(text), **settings)

    batch_encode_plus = encode_plus

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        pieces = ((self.piece(number), number) for number in reversed(range(self.vocab_size)))
        return {**{piece: number for piece, number in pieces if piece is not None}, **self.special_tokens}

    def get_vocab(self) -> dict[str, int]:
        """{token: id}."""
        return dict(self._ids)

    @property
    def unk_token(self) -> str | None:
        """What stands for a piece that there is not."""
        return None if self.unk_token_id is None else self.piece(self.unk_token_id)

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text."""
        return self.convert_ids_to_tokens(self.encode(text, add_special_tokens=add_special_tokens))

    def convert_tokens_to_ids(self, tokens: str | Texts) -> int | list[int | None] | None:
        """The id of a token, or of each; that of ``unk_token`` for what there is not."""
        if isinstance(tokens, str):
            return self._ids.get(tokens, self.unk_token_id)
        return [self._ids.get(token, self.unk_token_id) for token in tokens]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str | None] | None:
        """The token of an id, or of each."""
        return self.piece(ids) if isinstance(ids, int) else [self.piece(int(number)) for number in ids]

    def convert_tokens_to_string(self, tokens: Texts) -> str:
        """The text of tokens."""
        return self.decode(self.convert_tokens_to_ids(tokens), False)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: list | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_tensors: str | None = None,
        chat_template: str | None = None,
        padding: bool | str = False,
        truncation: bool = False,
        max_length: int | None = None,
    ) -> Any:
        """A conversation in the family's prompt.

        Args:
            conversation: its messages.
            tools: see `Tokenizer.prompt`.
            add_generation_prompt: True for one that the model is to answer.
            tokenize: False gives the text.
            return_tensors: ``np`` or ``ms`` for an array ``(1, S)``.
            chat_template: a Jinja text; None for the tokenizer's own.
            padding, truncation, max_length: of the ids: to a length, or cut there.

        Raises:
            InputError: a template that is none, or a question at the end without ``add_generation_prompt``.
        """
        speaking = self.with_chat_template(chat_template, "chat_template") if chat_template else self
        if add_generation_prompt:
            ids = speaking.prompt(conversation, tools=tools)
        elif conversation and conversation[-1].get("role") == "assistant":
            ids = speaking.example(conversation, tools=tools)[0]
        else:
            raise InputError("apply_chat_template: the last message is no answer; give add_generation_prompt=True")
        if not (tokenize or return_tensors):
            return self.decode(ids, False)
        how = ("max_length" if padding is True else padding, truncation, max_length)
        ids = self.prepare_for_model(ids, None, False, *how)["input_ids"]
        return as_arrays(return_tensors, [ids]) if return_tensors else ids

    def build_prompt(self, query: str, history: Sequence[tuple[str, str]] | None = None) -> str:
        """A question in the text that ChatGLM2's prompt is, for a call of the tokenizer.

        Args:
            query: the question.
            history: the questions and answers before it.

        Raises:
            InputError: the family's prompt is more than a text.
        """
        if self.prompt_style not in ("chatglm", "chatglm2"):
            raise InputError(
                f"build_prompt: is ChatGLM2's; of the prompt style {self.prompt_style!r} use build_chat_input or "
                "apply_chat_template"
            )
        parts = STYLES[self.prompt_style].render(check_messages(_messages(query, _turns(history)), answered=False))
        return "".join(part.text for part in parts if part.kind == "text")

    def build_chat_input(
        self, query: str, history: Sequence[Mapping[str, Any]] | None = None, role: str = "user", return_tensors="np"
    ) -> dict[str, Any]:
        """A question in the family's prompt: ``input_ids``, ``attention_mask`` and ``position_ids``, each ``(1, S)``.

        Args:
            query: the question.
            history: the messages before it.
            role: whose the question is.
            return_tensors: ``np`` or ``ms``.
        """
        return self.build_batch_input([query], [history], role, return_tensors=return_tensors)

    def build_batch_input(
        self,
        queries: str | Texts,
        histories: Sequence[Sequence[Mapping[str, Any]] | None] | None = None,
        roles: str | Texts = "user",
        padding: bool | str = True,
        return_tensors="np",
    ) -> dict[str, Any]:
        """Several questions as `build_chat_input` gives one, in one length.

        Args:
            queries, histories: the questions, and the messages before each.
            roles: whose each is, or all are.
            padding: see `pad`.
            return_tensors: ``np`` or ``ms``.
        """
        queries = [queries] if isinstance(queries, str) else list(queries)
        roles = [roles] * len(queries) if isinstance(roles, str) else roles
        before = [None] * len(queries) if histories is None else histories
        if not len(queries) == len(before) == len(roles):
            counts = f"{len(queries)} queries, {len(before)} histories, {len(roles)} roles"
            raise InputError(f"build_batch_input: {counts}; one for each was expected")
        asked = zip(queries, before, roles, strict=True)
        ask = self._joined if self.prompt_style in ("chatglm3", "glm4") else self.prompt
        rows = [ask(_messages(query, list(history or ()), role)) for query, history, role in asked]
        found = {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
        found["position_ids"] = [list(range(len(row))) for row in rows]
        return self.pad(found, padding if len(rows) > 1 else False, return_tensors=return_tensors)

    def _joined(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        said = [number for part in joined(messages) for number, _ in self._part_ids(part)]
        return [*self.call_tokens()[0], *said]


def _turns(history: Iterable[tuple[str, str]] | None) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": role, "content": said} for turn in history or () for role, said in zip(roles, turn, strict=True)]


def _messages(query: str, history: list, role: str = "user") -> list:
    return [*history, {"role": role, "content": query}]


@functools.cache
def _class_of(own: type[Tokenizer]) -> type[Tokenizer]:
    names = {"__qualname__": own.__qualname__, "__doc__": own.__doc__, "__reduce__": _reduced}
    return type(own.__name__, (Spoken, own), names)


def _reduced(tokenizer: Tokenizer) -> tuple:
    """For copies and other processes, which do not find the class by its name."""
    plain = object.__new__(type(tokenizer).__bases__[1])
    vars(plain).update(vars(tokenizer))
    return spoken, (plain,)


def spoken(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer that scripts of MindFormers can use."""
    if not isinstance(tokenizer, Spoken):
        tokenizer.__class__ = _class_of(type(tokenizer))
    return tokenizer
