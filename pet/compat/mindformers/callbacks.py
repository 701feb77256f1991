"""MindFormers' callbacks as scripts make them: ``CheckpointMonitor(save_checkpoint_steps=100)``."""

from __future__ import annotations

from pet.recipe.callback_names import NAMES


def _maker(name: str):
    def make(**settings) -> dict:
        return {"type": name, **settings}

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"``{name}`` with its settings, as a recipe and `pet.Trainer` take it."
    return make


globals().update({name: _maker(name) for name in NAMES})
