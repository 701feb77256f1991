"""Ids to text, one id at a time. ``decode`` is this decoder fed with the whole list, so the two cannot differ."""

from __future__ import annotations

import codecs

import numpy as np

from model_zoo.errors import InputError, shown


def _one_mark_per_byte(error: UnicodeError):
    return "\ufffd" * (error.end - error.start), error.end


# sentencepiece shows every undecodable byte as one U+FFFD; Python's own "replace" joins the bytes of a cut character.
codecs.register_error("model_zoo.one_mark_per_byte", _one_mark_per_byte)


class StreamDecoder:
    """Turns ids into text as they arrive, holding back the bytes of a character that is not complete yet.

    Args:
        skip_special_tokens: Leave control tokens out of the text.
    """

    def __init__(self, tokenizer, skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(tokenizer.undecodable)
        self._strip = tokenizer.leading_spaces

    def put(self, token_id: int) -> str:
        """The text that became final with this id: possibly empty, never half a character."""
        token_id = int(token_id)
        control = self._tokenizer.control_text(token_id)
        if control is not None:
            if self._skip:
                return ""
            self._strip = 0
            return self._utf8.decode(control.encode("utf-8"))
        data, spaces = self._tokenizer.token_bytes(token_id)
        if self._strip:
            removed = min(self._strip, spaces)
            data = data[removed:]
            # Only the very beginning of the text has a space too many: once anything stands there, nothing is removed.
            self._strip = 0 if data else self._strip - removed
        return self._utf8.decode(data)

    def end(self) -> str:
        """What was held back: an incomplete character comes out as U+FFFD. The decoder then starts afresh."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        self._strip = self._tokenizer.leading_spaces
        return rest


def whole_ids(ids) -> list[int]:
    """A list, array or Tensor of ids, or one id, as numbers. Raises InputError for what is none."""
    try:
        numbers = np.asarray(ids)
    except ValueError:  # lists of different lengths
        numbers = None
    if numbers is None or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
        raise InputError(f"decode: token ids are whole numbers in lists of one length, found {shown(ids)}")
    return numbers.reshape(-1).tolist()
