"""Callbacks: the interface and what is built in."""

from pet.train.callbacks.base import Callback, make_callback, make_callbacks

__all__ = ["Callback", "make_callback", "make_callbacks"]
