"""What cells do while Python ends."""

import subprocess
import sys

KEPT = """
import atexit, model_zoo.graph
from mindspore import nn
from mindspore.nn import cell
kept = nn.ReLU()
atexit.register(vars(cell).update, Cell=None)  # as Python 3.12 does before it frees what functions have cached
"""


def test_cells_that_are_freed_after_mindspores_names_print_nothing():
    result = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
