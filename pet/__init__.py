"""The public names of `pet`."""
