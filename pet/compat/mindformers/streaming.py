"""MindFormers' streamers, which write the prompt as well unless they are told not to."""

from __future__ import annotations

from model_zoo.generation import streamers


class TextStreamer(streamers.TextStreamer):
    """``TextStreamer(tokenizer, skip_prompt=True)`` prints what is generated; see `model_zoo.generation.streamers`."""

    def __init__(self, tokenizer, skip_prompt: bool = False, skip_special_tokens: bool = True):
        super().__init__(tokenizer, skip_prompt, skip_special_tokens=skip_special_tokens)


class TextIteratorStreamer(streamers.TextIteratorStreamer):
    """The same for another thread: an iterator over the pieces."""

    def __init__(
        self, tokenizer, skip_prompt: bool = False, timeout: float | None = None, skip_special_tokens: bool = True
    ):
        super().__init__(tokenizer, skip_prompt, timeout, skip_special_tokens)
