"""The one error class for what a user can get wrong, and the search for what they may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something a user supplied cannot be used.

    The message is one line per problem: what, where, what was expected, and the nearest valid name. The command line
    prints it without a traceback and exits with code 2.
    """

    @classmethod
    def collect(cls, problems: Iterable[str]) -> InputError:
        """One error that lists every problem, so that a user mends them all in one go."""
        problems = list(problems)
        if len(problems) == 1:
            return cls(problems[0])
        return cls(f"{len(problems)} problems:\n" + "\n".join(f"  - {problem}" for problem in problems))


def nearest(name: object, candidates: Iterable[object], limit: int = 3) -> str:
    """A suffix for an error message: ``" (did you mean 'q_proj'?)"``, or what exists when nothing comes close."""
    names = sorted({str(candidate) for candidate in candidates})
    if not names:
        return ""
    close = difflib.get_close_matches(str(name), names, n=limit, cutoff=0.6)
    if close:
        return f" (did you mean {' or '.join(repr(match) for match in close)}?)"
    shown = ", ".join(names[:12]) + (f", … {len(names) - 12} more" if len(names) > 12 else "")
    return f" (there is: {shown})"
