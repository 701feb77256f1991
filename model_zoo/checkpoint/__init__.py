"""Hugging Face checkpoints: reading, saving, number types, fingerprints."""
