"""The names of the systems that people come from: one file per system, each a translation into this library's own.

Nothing here trains, reads data or writes files by itself: names and settings become a recipe, and the core runs it.
"""
