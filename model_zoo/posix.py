"""Modules of Python that Windows has not: None there."""

from __future__ import annotations

try:
    import fcntl
    import resource
except ImportError:
    fcntl = resource = None
