"""The alphabet of byte-level BPE: a printable character for each of the 256 bytes (GPT-2's choice of characters)."""

from __future__ import annotations


def _alphabet() -> dict[int, str]:
    """Visible Latin-1 characters stand for themselves; the other bytes take the characters from U+0100 on, in order."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}


BYTE_TO_CHARACTER = _alphabet()
CHARACTER_TO_BYTE = {character: byte for byte, character in BYTE_TO_CHARACTER.items()}


def to_characters(data: bytes) -> str:
    return "".join(BYTE_TO_CHARACTER[byte] for byte in data)


def to_bytes(piece: str) -> bytes:
    """The bytes of a piece; a piece with a character outside the alphabet was added as plain text and is just that."""
    try:
        return bytes(CHARACTER_TO_BYTE[character] for character in piece)
    except KeyError:
        return piece.encode("utf-8")
