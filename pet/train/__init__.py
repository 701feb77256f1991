"""The trainer: one loop and one compiled step for every method, family and layout."""
