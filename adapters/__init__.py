"""The adapter methods and their management, part of mindspore-pet; `pet` hands the public names on.

Nothing is imported here: merging on disk reads `adapters.deltas` and `adapters.stored` without MindSpore.
"""
