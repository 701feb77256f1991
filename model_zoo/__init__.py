"""GPT, LLaMA and GLM for MindSpore, named and laid out as their published checkpoints are."""

import os

# Without it MindSpore's main thread waits for a compiled graph in a busy loop, and takes a core away from the graph's
# kernels. It is read when MindSpore is imported, which nothing here does before this line.
os.environ.setdefault("MS_DEV_HOST_BLOCKING_RUN", "1")
