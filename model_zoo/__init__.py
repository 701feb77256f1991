"""GPT, LLaMA and GLM for MindSpore, named and laid out as their published checkpoints are."""
