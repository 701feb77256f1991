"""sentencepiece, as all its families use it: ids of a text, and the bytes of an id."""

from __future__ import annotations

import functools
from typing import Any

from model_zoo.errors import InputError
from model_zoo.tokenizers.base import Tokenizer
from model_zoo.tokenizers.files import parse_sentencepiece, protobuf_fields, read_bytes
from model_zoo.tokenizers.pieces import SPACE, marks_apart

BPE = 2
"""The kind of model, in its trainer's settings."""
NO_FIRST_SPACE = b"\x1a\x02\x18\x00"
"""Behind a sentencepiece model, whose fields count as its last say: ``normalizer_spec.add_dummy_prefix`` is false."""
UNDECODABLE = "\ufffd".encode()


class SentencePieceTokenizer(Tokenizer):
    """Shared by all families over a sentencepiece model.

    What sentencepiece changes in a text, and decoding therefore cannot bring back: U+2581 is its sign for a space and
    comes back as one, and the model's own normalisation rules apply (none in LLaMA, ChatGLM2 and ChatGLM3; NFKC with
    a few additions in ChatGLM-6B). Characters outside the vocabulary go through byte pieces and come back exactly.

    Attributes:
        processor: The ``sentencepiece.SentencePieceProcessor``.
        offset: Added to sentencepiece's ids.
    """

    undecodable = "model_zoo.one_mark_per_byte"
    leading_spaces = 1
    adds_space = True

    def __init__(self, vocab_file, data: bytes, processor, tokens, files, prompt_style, *, offset: int = 0, **more):
        """``data``, ``processor``: see `opened`; the others as for `Tokenizer`."""
        self.processor, self.offset, self._pieces = processor, offset, {}
        size = processor.get_piece_size() + offset
        super().__init__(vocab_file, {self.file_names[0][0]: data}, tokens, files, prompt_style, size=size, **more)

    @staticmethod
    def opened(vocab_file, expected: str) -> tuple[bytes, Any]:
        """A file's bytes and the processor over them. Raises InputError for ChatGLM-6B's, which is another family's."""
        data = read_bytes(vocab_file)
        processor = parse_sentencepiece(data, vocab_file)
        if processor.piece_to_id("[gMASK]") != processor.unk_id():
            raise InputError(f"{vocab_file}: found the sentencepiece model of ChatGLM-6B, expected one of {expected}")
        return data, processor

    def encode_text(self, text: str) -> list[int]:
        ids = self.processor.encode(text)
        return [number + self.offset for number in ids] if self.offset else ids

    @functools.cached_property
    def marks(self) -> str:
        return "" if self.plain else marks_of(self.processor)

    @functools.cached_property
    def _following(self):
        """The same model without a space of its own in front."""
        return type(self.processor)(model_proto=self.processor.serialized_model_proto() + NO_FIRST_SPACE)

    def encode_following(self, text: str) -> list[int]:
        return [number + self.offset for number in self._following.encode(text)]

    def token_bytes(self, token_id: int) -> tuple[bytes, int]:
        found = self._pieces.get(token_id)
        if found is None:
            found = self._pieces[token_id] = self._read_piece(token_id - self.offset)
        return found

    def piece(self, token_id: int) -> str | None:
        """A token as the vocabulary writes it; None where there is none."""
        index = token_id - self.offset
        own = self.processor.id_to_piece(index) if 0 <= index < self.processor.get_piece_size() else None
        return own or self.control_text(token_id)

    @property
    def unk_token_id(self) -> int:
        """The id of what stands for pieces that the vocabulary has not."""
        return self.processor.unk_id() + self.offset

    def _read_piece(self, index: int) -> tuple[bytes, int]:
        piece = next((name for name, number in self.plain.items() if number == index + self.offset), None)
        if piece is None and not 0 <= index < self.processor.get_piece_size():
            return UNDECODABLE, 0  # padding of the model's vocabulary: an untrained model can sample it
        if piece is None and self.processor.is_byte(index):
            return bytes([int(self.processor.id_to_piece(index)[1:-1], 16)]), 0
        piece = self.processor.id_to_piece(index) if piece is None else piece
        spaced = piece.replace(SPACE, " ")
        return self.written(piece).encode("utf-8"), len(spaced) - len(spaced.lstrip(" "))

    def written(self, piece: str) -> str:
        """A piece as it stands in the text."""
        return piece.replace(SPACE, " ")


def marks_of(processor) -> str:
    """The marks in front of which a text may be cut for a sentencepiece model."""
    pieces = range(processor.get_piece_size())
    return "" if unlike_llama(processor) else marks_apart(map(processor.id_to_piece, pieces))


def unlike_llama(processor) -> str:
    """What a sentencepiece model does otherwise than LLaMA's, which joins pieces and bytes of a text as it stands, with
    signs for its spaces; "" where it does just that."""
    parts: dict[int, dict[int, Any]] = {2: {}, 3: {}}  # the trainer's settings, and the normalizer's
    for field, value in protobuf_fields(processor.serialized_model_proto()):
        if field in parts:
            parts[field].update(protobuf_fields(value))
    trainer, normalizer = parts.values()
    wrong = {
        "it is no BPE model": trainer.get(3) != BPE,
        "it puts spaces at the end of words": trainer.get(24),
        "it normalizes texts": normalizer.get(2) or normalizer.get(4) != 0 or not normalizer.get(5, 1),
        "it has no piece for each byte": sum(map(processor.is_byte, range(processor.get_piece_size()))) != 256,
    }
    return next((why for why, is_so in wrong.items() if is_so), "")


def kinds_of(processor) -> list[int]:
    """The kinds of its pieces, as sentencepiece numbers them: 4 for one that is never made of others."""
    pieces = (value for field, value in protobuf_fields(processor.serialized_model_proto()) if field == 1)
    return [dict(protobuf_fields(piece)).get(3, 1) for piece in pieces]


def control_pieces(processor, offset: int = 0) -> dict[str, int]:
    """The control symbols and the unknown symbol of a sentencepiece model: they never come out of a text."""
    return {
        processor.id_to_piece(index): index + offset
        for index in range(processor.get_piece_size())
        if processor.is_control(index) or processor.is_unknown(index)
    }
