"""``python -m pet``: the command ``pet``. The launcher runs this file by its path."""

import os
import sys

if __name__ == "__main__":
    # Python has put the current directory (-m) or this one (by path) first. Neither may shadow a module.
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if home not in sys.path:
        sys.path.insert(0, home)
    from pet.cli.main import main

    sys.exit(main())
