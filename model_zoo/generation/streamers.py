"""Text as it is generated, for a terminal or for another thread. Half characters are held back."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator

import numpy as np

from model_zoo.arguments import checked
from model_zoo.errors import InputError
from model_zoo.settings import require


class TextStreamer:
    """Prints the answer while it is generated; for one row at a time.

    Args:
        tokenizer: decodes the tokens.
        skip_prompt: leave the prompt out. True by default: the caller has just typed it.
        file: where to; default the standard output.
        skip_special_tokens: leave control tokens out.
    """

    @checked
    def __init__(self, tokenizer, skip_prompt: bool = True, file=None, skip_special_tokens: bool = True):
        self.file = file
        for name, value, method in (("tokenizer", tokenizer, "stream_decoder"), ("file", self.stream, "write")):
            if not hasattr(value, method):
                raise InputError(f"{name} is of the type {type(value).__name__}, which has no {method}()")
        self.tokenizer, self.skip_prompt, self.skip_special_tokens = tokenizer, skip_prompt, skip_special_tokens
        self.reset()

    @property
    def stream(self):
        """Where the answer goes."""
        return sys.stdout if self.file is None else self.file

    def reset(self) -> None:
        """Makes it ready for an answer."""
        self.decoder = self.tokenizer.stream_decoder(self.skip_special_tokens)
        self.at_prompt = True

    def put(self, ids) -> None:
        """Takes the prompt first, then one token at a time."""
        left_out, self.at_prompt = self.at_prompt and self.skip_prompt, False
        for token in () if left_out else np.asarray(ids).reshape(-1):
            if text := self.decoder.put(int(token)):  # behind a prompt that is printed, an answer keeps its first space
                self.on_text(text)

    def end(self) -> None:
        """Gives out what was held back, and is ready for the next answer."""
        rest = self.decoder.end()
        if rest:
            self.on_text(rest)
        self.reset()
        self.on_end()

    def fail(self, error: BaseException) -> None:
        """The answer ends with an error, or was interrupted: what comes next is another one."""
        self.reset()

    def on_text(self, text: str) -> None:
        """A piece of finished text."""
        # a character that the encoding lacks must not end the answer
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding), end="", flush=True, file=self.stream)

    def on_end(self) -> None:
        """The answer is complete."""
        print(flush=True, file=self.stream)


class TextIteratorStreamer(TextStreamer):
    """An iterator over the pieces of the answer, while another thread generates it.

    Args:
        tokenizer, skip_prompt, skip_special_tokens: as in `TextStreamer`.
        timeout: seconds to wait for the next piece before `queue.Empty` is raised; None waits for ever.
    """

    _END = object()

    @checked
    def __init__(
        self,
        tokenizer,
        skip_prompt: bool = True,
        timeout: float | None = None,
        skip_special_tokens: bool = True,
    ):
        super().__init__(tokenizer, skip_prompt, skip_special_tokens=skip_special_tokens)
        require("TextIteratorStreamer", "timeout", timeout, float | None, ge=0, le=threading.TIMEOUT_MAX)
        self.pieces: queue.Queue = queue.Queue()
        self.timeout, self.error = timeout, None

    def on_text(self, text: str) -> None:
        self.pieces.put(text)

    def on_end(self) -> None:
        self.pieces.put(self._END)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        if error is not self.error:  # a pipeline says once more what its model has said
            self.pieces.put(error)
        self.error = error

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        piece = self.pieces.get(timeout=self.timeout)
        if piece is self._END:
            raise StopIteration
        if isinstance(piece, BaseException):
            raise InputError(f"the answer ended with an error: {piece!r}") from piece
        return piece
