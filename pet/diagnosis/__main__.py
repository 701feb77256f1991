"""Sections, in processes of their own: ``python -m pet.diagnosis DIRECTORY DEVICE SECTION…``.

The rows of each go to a file of its name in the directory.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(directory: str, device: str, *names: str) -> int:
    """Runs sections; of several workers the first one's rows are kept."""
    import mindspore as ms

    from pet.diagnosis.full import SECTIONS
    from pet.diagnosis.report import Section
    from pet.launching.environment import read_job

    small = device == "CPU"
    if small and ms.get_context("device_target") != "CPU":
        ms.set_device("CPU")
    for name in names:
        section = Section(name, Path(directory, f"{name}.json") if read_job().rank == 0 else None)
        with section.checking(name):
            SECTIONS[name].load()(section, small)
    return 0


if __name__ == "__main__":
    from pet.parallel.join import leave

    code = main(*sys.argv[1:])
    sys.stdout.flush()
    if leave(code):
        import os

        os._exit(code)
    sys.exit(code)
