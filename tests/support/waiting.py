"""How long a test waits for what must come."""

HANGING = 900.0
"""Seconds after which what has not ended counts as hanging. It is no requirement: with the oldest packages the tests
run at a low priority beside the others, where three processes took 90 seconds for what takes them 8 alone."""
