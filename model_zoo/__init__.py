"""GPT, LLaMA and GLM for MindSpore, named and laid out as their published checkpoints are."""

import os

from model_zoo.resources import accelerators_present

PART_OF = "mindspore-pet"
"""Tells this package from directories of the same name, which MindSpore's own examples have."""

BLIND = "2.7.0"
"""The MindSpore that does not say where tensors lie on a CPU: programs would read at 0, and replaced weights go
unnoticed."""

# Without it MindSpore's main thread waits for a compiled graph in a busy loop, and takes a core away from the graph's
# kernels. An accelerator needs no core, and should not wait for the host. It is read when MindSpore is imported, which
# nothing here does before this line.
if not accelerators_present():
    os.environ.setdefault("MS_DEV_HOST_BLOCKING_RUN", "1")
