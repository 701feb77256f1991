"""``python -m pet``: the command ``pet``."""

import sys

from pet.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
