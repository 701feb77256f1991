"""The command ``pet``: the console script, and ``python -m pet``. The launcher runs this file by its path."""

import os
import sys


def main() -> int:
    """Runs the command line of this process; returns the exit code."""
    # Python's own answer to Ctrl-C is a traceback. So signals wait until pet.interrupts listens, some 0.1 s of imports
    # from here; nothing is imported before.
    import signal

    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    from pet.cli.main import main

    return main()


if __name__ == "__main__":
    # Python has put the current directory (-m) or this one (by path) first. Neither may shadow a module.
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if home not in sys.path:
        sys.path.insert(0, home)
    sys.exit(main())
