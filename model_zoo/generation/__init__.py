"""Text generation for every family: greedy, sampling, beam search, with a static key/value cache."""

from __future__ import annotations

from model_zoo.generation.generate import generate
from model_zoo.generation.streamers import TextIteratorStreamer, TextStreamer

__all__ = ["TextIteratorStreamer", "TextStreamer", "generate"]
