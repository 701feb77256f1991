"""Counts of published scripts and job files that run: one module per system, with ``count(clone, work)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Case:
    """One published script, job file or test, and what became of it.

    Attributes:
        name: what it is called in the clone.
        outcome: ``runs`` to the end; ``refused`` with an error that says what cannot be honoured; ``fails`` otherwise.
        reason: of a refusal or failure, in one line. Equal reasons are counted together.
    """

    name: str
    outcome: Literal["runs", "refused", "fails"]
    reason: str = ""


def outcome_of(name: str, action) -> Case:
    """What becomes of an action: an `InputError` is a refusal, any other exception a failure."""
    from model_zoo.errors import InputError

    try:
        action()
    except InputError as error:
        return Case(name, "refused", " ".join(str(error).split()))
    except Exception as error:
        return Case(name, "fails", f"{type(error).__name__}: {error}".splitlines()[0])
    return Case(name, "runs")
