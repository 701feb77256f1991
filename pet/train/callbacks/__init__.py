"""Callbacks: the interface and what is built in."""

from pet.train.callbacks.base import BUILT_IN, Callback, make_callback, make_callbacks

__all__ = ["BUILT_IN", "Callback", "make_callback", "make_callbacks"]
