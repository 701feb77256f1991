"""The outline of protocol-buffer messages, read from bytes or from a file of any size; without protobuf."""

from __future__ import annotations

from collections.abc import Iterator

FIXED = {1: 8, 5: 4}
"""Bytes of the wire types of one size."""


def varint(data, place: int) -> tuple[int, int]:
    """A number that begins at this byte, and the place behind it."""
    value, shift = 0, 0
    while shift < 64:
        byte = data[place]
        value, shift, place = value | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return value, place
    raise ValueError(f"byte {place} begins no number")


def fields(data, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, first byte, end) of a message's fields; a number's bytes are its own.

    Args:
        data: gives the byte at an index, and raises IndexError behind the last.
        start, stop: of the message.

    Raises:
        ValueError, IndexError: this is no whole message.
    """
    while start < stop:
        key, begin = varint(data, start)
        wire = key & 7
        if wire == 2:
            length, begin = varint(data, begin)
            end = begin + length
        elif wire in FIXED:
            end = begin + FIXED[wire]
        else:
            end = varint(data, begin)[1] if wire == 0 else 0
        if not end or not key >> 3:
            raise ValueError(f"byte {start} begins no field")
        if end > stop:
            raise ValueError(f"a field at byte {start} ends {end - stop} bytes too late")
        yield key >> 3, wire, begin, end
        start = end
