"""The adapter methods."""
