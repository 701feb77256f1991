"""Python imports this at the start of a process that has the directory in its PYTHONPATH.

What tests write need not outlast a power cut, and a disk takes some milliseconds for each file that is waited for.
"""

import os

os.fsync = lambda file: None
