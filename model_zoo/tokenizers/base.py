"""What every tokenizer does, whatever its algorithm: batches, prompts, training examples, decoding, saving."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo.arguments import checked
from model_zoo.atomic import atomic_write
from model_zoo.errors import InputError, check_one_of, nearest
from model_zoo.tokenizers.chat_template import ChatTemplate
from model_zoo.tokenizers.files import TokenizerFiles
from model_zoo.tokenizers.filled import Filled
from model_zoo.tokenizers.pieces import InPieces
from model_zoo.tokenizers.prompts import STYLES, TRAIN_ON, Part, check_messages, check_style, labels, recognise_style
from model_zoo.tokenizers.settable import Settable
from model_zoo.tokenizers.special import TOKEN_KEYS, TokenText, check_needed, for_any_version, named_token, special_ids
from model_zoo.tokenizers.streaming import StreamDecoder, whole_ids


class Tokenizer(InPieces, Filled, Settable, ABC):
    """Base of all tokenizers. A subclass knows its files, its algorithm, and its control tokens.

    Control tokens never come out of a text: ``encode`` reads ``"<|user|>"`` as eight characters of text. Only
    ``prompt``, ``example``, a template's own pieces and what ``add_special_tokens`` puts around a text have any.

    Attributes:
        special_tokens, plain: {text: id} of the control tokens, and of other added tokens, which are text.
        bos_token_id, eos_token_id, pad_token_id: Ids, or None where the family has no such token.
        bos_token, eos_token, pad_token: Their texts; that of pad_token may be set.
        eos_token_ids: All ids that end an answer, ``eos_token_id`` first.
        vocab_size: Number of ids, control tokens included. A model's own vocabulary is often padded beyond it.
        prompt_style: Name of the chat format used by ``prompt`` and ``example``.
        chat_template: The model's own chat template, a Jinja text; empty where its files hold none. ``prompt`` and
            ``example`` use it unless a prompt style is asked for, by argument or in tokenizer_config.json.
    """

    #: the names of the files that it is read from, and of those that it may be read from instead
    file_names: tuple[tuple[str, ...], ...] = ()
    #: name written as ``tokenizer_class``; what other tools look for
    class_name = "PreTrainedTokenizerFast"
    default_style = "plain"  #: chat format where the files do not say otherwise
    undecodable = "replace"  #: codec error handler for bytes that are no UTF-8
    #: how many spaces at the start of the first piece belong to the algorithm and not to the text
    leading_spaces = 0
    adds_space = False  #: whether the algorithm itself puts a space before every text
    first_space_only = False  #: whether it does so only before the first text of a rendered chat template
    every_space = False  #: and before a text that begins with one, too
    has_token_types = False  #: whether ``__call__`` returns ``token_type_ids``
    by_template = True  #: whether its files' chat template and end tokens count
    bos_token, eos_token, pad_token = TokenText(), TokenText(), TokenText()

    def __init__(
        self,
        source: Any,
        kept: dict[str, bytes],
        tokens: Iterable[dict],
        files: TokenizerFiles,
        prompt_style: str | None = None,
        *,
        size: int,
        bos: int | None = None,
        eos: int | None = None,
        pad: int | None = None,
        before: Iterable[int] = (),
        after: Iterable[int] = (),
    ):
        """``kept``: the files that it is read from; ``tokens``: see `added_tokens`; ``files``: what is said of it;
        ``size``: that of the vocabulary without these tokens."""
        self.source, self.added = str(source), list(tokens)
        self.special_tokens, self.plain = special_ids(self.added), special_ids(self.added, special=False)
        self.vocab_size = max([size, *(one["id"] + 1 for one in self.added)])
        self.bos_token_id, self.eos_token_id, self.pad_token_id = bos, eos, pad
        self._files, self._settings = {**files.companions(), **kept}, dict(files.settings)
        self._before, self._after = list(before), list(after)
        self._control = {number: name for name, number in reversed(self.special_tokens.items())}

        chat_template = files.chat_template() if self.by_template else ""
        chosen = prompt_style or self._settings.get("prompt_style")
        self._styled = chosen is not None
        if chosen is None and (chosen := self.default_style) == "plain":
            chosen = recognise_style(chat_template, self.special_tokens) or chosen
        self.prompt_style = check_style(chosen, self.special_tokens, self.source)
        named = [self.special_tokens[name] for name in STYLES[chosen].stops if name in self.special_tokens]
        stops = [number for number in files.stops if number in self._control] if self.by_template else []
        every = [number for number in [eos, *named, *stops] if number is not None]
        self.eos_token_ids = list(dict.fromkeys(every))
        self._stops = [self._control[number] for number in [*named, *every] if number in self._control]
        self._set_template(chat_template, self.source)

    def _set_template(self, text: str, source: str) -> None:
        self._chat_template, self.template = text, None
        if text and not self._styled:
            check_needed(text, source, lambda name: name in self.special_tokens or len(self.encode_text(name)) == 1)
            ids = {"bos_token": self.bos_token_id, "eos_token": self.eos_token_id, "pad_token": self.pad_token_id}
            names = {key: named_token(self._settings, key) or self._control.get(ids.get(key)) for key in TOKEN_KEYS}
            names["opening"] = "".join(self._control.get(number, "") for number in self.around[0])
            names = {key: name for key, name in names.items() if name}
            spaces = self.adds_space and not self.first_space_only
            controls = [one for one in self.added if one["special"]]
            self.template = ChatTemplate(text, source, controls, self._stops, names, spaces)
            ends = [self.special_tokens[name] for name in self.template.ends]
            self.eos_token_ids = list(dict.fromkeys([*self.eos_token_ids, *ends]))

    @classmethod
    def from_files(cls, files: TokenizerFiles, prompt_style: str | None = None) -> Tokenizer:
        """Builds the tokenizer from an opened directory."""
        names = next((names for names in cls.file_names if files.has(*names)), cls.file_names[0])
        return cls(*map(files.path, names), prompt_style=prompt_style, settings=files.settings, files=files)

    @abstractmethod
    def encode_text(self, text: str) -> list[int]:
        """Ids of a text that is not empty, without control tokens."""

    def encode_further(self, text: str) -> list[int]:
        """Ids of a text behind a control token, which is not empty."""
        return self.encode_text(text)

    @abstractmethod
    def token_bytes(self, token_id: int) -> tuple[bytes, int]:
        """UTF-8 bytes of an ordinary token, and how many spaces at their start may be the algorithm's own."""

    def own_settings(self) -> dict:
        """Settings of this family that ``tokenizer_config.json`` must hold for it to load the same again."""
        return {}

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """Control tokens that ``encode`` puts before and after a text."""
        return list(self._before), list(self._after)

    def call_tokens(self) -> tuple[list[int], list[int]]:
        """Control tokens that ``__call__`` puts before and after a text."""
        return self._before, self._after

    # ---- for users ----

    @classmethod
    def from_pretrained(cls, path, prompt_style: str | None = None) -> Tokenizer:
        """Loads the tokenizer of a directory as this class.

        Args:
            path: A directory, or a file in it.
            prompt_style: Chat format to use instead of the one that the files suggest; see ``prompts.STYLES``.

        Raises:
            InputError: If a file is missing, damaged, or of another family, or the style is unknown.
        """
        return cls.from_files(TokenizerFiles(path), prompt_style)

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source}, vocab_size={self.vocab_size}, prompt_style={self.prompt_style!r})"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of one text, with the control tokens that this family puts around it unless told not to."""
        ids = self._encode_checked(text)
        return [*self._before, *ids, *self._after] if add_special_tokens else ids

    @checked
    def decode(self, ids, skip_special_tokens: bool = True) -> str:
        """The text of a list, array or Tensor of ids; bytes that are no UTF-8 come out as U+FFFD."""
        decoder = self.stream_decoder(skip_special_tokens)
        return "".join([decoder.put(number) for number in whole_ids(ids)]) + decoder.end()

    def stream_decoder(self, skip_special_tokens: bool = True) -> StreamDecoder:
        """A decoder for ids that arrive one by one; what it gives adds up to ``decode`` of them all."""
        return StreamDecoder(self, skip_special_tokens)

    def token_to_id(self, token: str) -> int:
        """The id of a control token, or of another added one, by its text.

        Raises:
            InputError: If there is no such token.
        """
        known = {**self.plain, **self.special_tokens}
        if token not in known:
            raise InputError(f"{self.source}: no control token {token!r}{nearest(token, known)}")
        return known[token]

    def control_text(self, token_id: int) -> str | None:
        """The text of a control token; None for an ordinary one."""
        return self._control.get(token_id)

    @property
    def chats(self) -> bool:
        """Whether there is a form for questions and answers, so that a prompt is more than the bare text."""
        return self.template is not None or self.prompt_style != "plain"

    def with_chat_template(self, text: str, source: str) -> Tokenizer:
        """The same tokenizer with another chat template, which is saved with it; ``source`` names it in errors."""
        other = copy.copy(self)
        other._styled = False
        other._settings = {key: one for key, one in self._settings.items() if key != "prompt_style"}
        other._settings["chat_template"] = text
        other._files = {name: data for name, data in self._files.items() if not name.endswith(".jinja")}
        other._set_template(text, source)
        return other

    @checked
    def prompt(self, messages, tools: list | None = None, enable_thinking: bool | None = None) -> list[int]:
        """Ids of a conversation, ready for the model to answer.

        Args:
            messages: ``[{"role": "system"|"user"|"assistant", "content": str}, …]``, ending with the user; a content
                may be a list of ``{"type": "text", "text": str}``. A chat template decides on the order, and may take
                other roles (``tool``) and more in a message (``tool_calls``).
            tools: JSON schemas of functions, for a chat template that has a place for them.
            enable_thinking: For a chat template with such a switch; None leaves it as the template has it.

        Raises:
            InputError: On empty messages, an unknown role or a wrong order, or what a chat template refuses.
        """
        options, style = {"tools": tools, "enable_thinking": enable_thinking}, STYLES[self.prompt_style]
        own = self.template
        parts = own.prompt(messages, options) if own else style.render(self._checked(messages, options, answered=False))
        return [number for part in parts for number, _ in self._part_ids(part)]

    def _checked(self, messages, options: dict, answered: bool):
        found = check_messages(messages, answered)
        for name, value in (*options.items(), *(("tools", one.get("tools")) for one in messages)):
            if value is not None and value != []:
                style = f"the prompt style {self.prompt_style!r}"
                raise InputError(f"{self.source}: {style} has no place for {name}; templates have")
        return found

    @checked
    def example(
        self, messages, train_on: str = "answers", tools: list | None = None, enable_thinking: bool | None = None
    ) -> tuple[list[int], list[bool]]:
        """A finished conversation as a training example.

        Args:
            messages: As in :meth:`prompt`, ending with the assistant; an answer with ``"weight": 0`` is no label.
            train_on: ``"answers"``: every answer; ``"last"``: the last one; ``"all"``: every token. A style whose
                context is read in both directions (ChatGLM-6B) can only learn the last answer: ``"answers"`` means
                ``"last"`` there and ``"all"`` is refused.
            tools, enable_thinking: As in :meth:`prompt`.

        Returns:
            The ids, and for each id whether it is a label, or below 0 where the label is another token (see `prompts`).
            Labels of an answer are its tokens and its end token.

        Raises:
            InputError: On messages that do not fit, or an unknown ``train_on``.
        """
        if train_on not in TRAIN_ON:
            raise InputError(f"train_on: unknown value {train_on!r}{nearest(train_on, TRAIN_ON)}")
        style, options = STYLES[self.prompt_style], {"tools": tools, "enable_thinking": enable_thinking}
        if train_on == "all" and style.two_way:
            raise InputError(
                f"train_on: 'all' is impossible with the {self.prompt_style!r} style, whose context is read in both "
                "directions; use 'answers' or 'last'"
            )
        if self.template is not None:
            parts = self.template.example(messages, options, train_on)
        else:
            parts = style.render(self._checked(messages, options, answered=True))
        found, ended = [], {}
        for part in parts:
            if part.ended is not None:
                ended[len(found)] = part.ended
            found += self._part_ids(part)
        answers = [answer for _, answer in found]
        return [number for number, _ in found], labels(answers, messages, train_on, ended, self.eos_token_id)

    @checked
    def __call__(
        self,
        text: str | list,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        padding_side: str | None = None,
        max_length: int | None = None,
        truncation: bool = False,
        return_tensors: str | None = None,
    ) -> dict:
        """Encodes a text or a list of texts.

        Args:
            text: One text, or a list.
            add_special_tokens: Put the family's control tokens around each text.
            padding: ``True`` or ``"longest"``: to the longest of the batch; ``"max_length"``: to ``max_length``.
            padding_side: ``"left"`` or ``"right"``; None: the tokenizer's, left unless set (answers follow behind).
            max_length: Length for truncation and for ``padding="max_length"``, control tokens included.
            truncation: Cut the end of a text that is too long; its control tokens stay.
            return_tensors: None for lists, ``"np"`` for int32 arrays, ``"ms"`` for MindSpore Tensors, both (B, S).

        Returns:
            ``input_ids`` and ``attention_mask`` (1 for tokens, 0 for padding); GPT-2 adds ``token_type_ids``, all 0.

        Raises:
            InputError: On a value that is none of the above, or rows of different lengths asked for as one array.
        """
        check_one_of("padding", padding, (False, True, "longest", "max_length"))
        padding_side = self.padding_side if padding_side is None else padding_side
        check_one_of("padding_side", padding_side, ("left", "right"))
        check_one_of("return_tensors", return_tensors, (None, "np", "ms"))
        single = isinstance(text, str)
        texts = [text] if single else list(text)
        before, after = self.call_tokens() if add_special_tokens else ([], [])
        if (truncation or padding == "max_length") and max_length is None:
            raise InputError("max_length: needed for truncation and for padding='max_length'")
        rows = []
        for one in texts:
            ids = self._encode_checked(one)
            if truncation:
                room = max_length - (controls := len(before) + len(after))
                if room < 0:
                    raise InputError(f"max_length: {max_length} has no room for the {controls} controls")
                ids = ids[:room]
            rows.append([*before, *ids, *after])
        masks = [[1] * len(row) for row in rows]
        if padding:
            if self.pad_token_id is None:
                raise InputError(f"{self.source}: this tokenizer has no padding token")
            width = max_length if padding == "max_length" else max(map(len, rows), default=0)
            rows = [padded(row, width, self.pad_token_id, padding_side) for row in rows]
            masks = [padded(mask, width, 0, padding_side) for mask in masks]
        kinds = {"token_type_ids": [[0] * len(row) for row in rows]} if self.has_token_types else {}
        result = {"input_ids": rows, **kinds, "attention_mask": masks}
        if return_tensors is None:
            return {key: value[0] for key, value in result.items()} if single else result
        if len({len(row) for row in rows}) > 1:
            raise InputError("return_tensors: the texts have different lengths; add padding=True")
        width = len(rows[0]) if rows else 0
        arrays = {key: np.asarray(value, dtype=np.int32).reshape(len(rows), width) for key, value in result.items()}
        if return_tensors == "np":
            return arrays
        from mindspore import Tensor

        return {key: Tensor(value) for key, value in arrays.items()}

    @checked
    def save_pretrained(self, directory: str | Path) -> list[Path]:
        """Writes the tokenizer in its family's own files, each one atomically; returns their paths."""
        directory = Path(directory)
        settings = {"tokenizer_class": self.class_name, **self._settings, **self.own_settings()}
        if self.template is None:
            settings["prompt_style"] = self.prompt_style
        text = json.dumps(for_any_version(settings), ensure_ascii=False, indent=2) + "\n"
        files = {**self._files, "tokenizer_config.json": text.encode("utf-8")}
        for name, data in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(directory / name, len(data)) as file:
                file.write(data)
        return [directory / name for name in files]

    def _encode_checked(self, text, further: bool = False) -> list[int]:
        pieces = list(self.encode_pieces(text, further))
        return pieces[0] if len(pieces) == 1 else [number for piece in pieces for number in piece]

    def _part_ids(self, part: Part) -> Iterable[tuple[int, int | None]]:
        """(id, number of the answer it is a label of) for each token of a rendered part."""
        if part.kind == "token":
            return [(self.token_to_id(part.text), part.answer)]
        if part.kind == "bos":
            return [(self.bos_token_id, None)] if self.bos_token_id in self._before else []
        if part.kind == "eos":
            return [(self.eos_token_id, part.answer)]
        text = part.text if self.adds_space or not part.after_space else " " + part.text
        own = self.template is not None and self.adds_space and (part.after_space or not self.every_space)
        spaced = own and text.startswith(" ")  # which is the algorithm's own
        ids = self.encode_following(text) if spaced else self._encode_checked(text, part.further)
        if not part.spans:
            return [(number, part.answer) for number in ids]
        return zip(ids, self._answers_at(text, ids, part.spans), strict=True)

    def _answers_at(self, text: str, ids: list[int], spans) -> list[int | None]:
        """For each token of a text the number of the first answer that it writes something of, by counting bytes: one
        that a space of the prompt begins is learnt with its answer, as in transformers."""
        pieces = [self.token_bytes(number)[0] for number in ids]
        written, wanted = b"".join(pieces), text.encode("utf-8")
        position = len(wanted) - len(written)  # below 0 by the space that the algorithm puts in front
        if not written.endswith(wanted):
            raise InputError(
                f"{self.source}: this tokenizer changes the text, so earlier answers cannot be found in it; "
                "use train_on: last"
            )
        borders = [(len(text[:start].encode("utf-8")), len(text[:end].encode("utf-8")), n) for start, end, n in spans]
        answers = []
        for piece in pieces:
            reached = position + len(piece)
            answers.append(next((n for start, end, n in borders if start < reached and position < end), None))
            position = reached
        return answers


def padded(row: list[int], width: int, value: int, side: str) -> list[int]:
    """A row with so many values in all, filled up on one side."""
    fill = [value] * (width - len(row))
    return [*fill, *row] if side == "left" else [*row, *fill]
