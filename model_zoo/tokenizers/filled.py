"""Templates that are plain text, with places for what a row says."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any


class Filled:
    """The part of a tokenizer that takes a text of which a template has written some pieces."""

    @functools.cached_property
    def _reader(self: Any) -> Any:
        return self.with_chat_template("{{ opening }}", self.source)

    def encode_written(self: Any, text: str) -> list[int]:
        """Ids of a text in which control tokens' names are these tokens, with nothing around it."""
        return [number for part in self._reader.template.parts(text) for number, _ in self._reader._part_ids(part)]

    def encode_filled(self: Any, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of a text that goes on, with what stands around one. Control tokens that the template names are such; in
        what fills it they stay text.

        Args:
            pieces: (text, whether it fills a place of the template), in order.
        """
        form = self._reader.template
        text = "".join(form.guarded(piece) if fills else piece for piece, fills in pieces)
        before, after = self.around
        return [*before, *self.encode_written(text), *(number for number in after if number != self.eos_token_id)]
