"""From files to batches: read, tokenise once, pack, and hand out batches whose order can be resumed exactly."""

from .dataset import Counts, TokenDataset
from .loader import Batch, Loader
from .packing import bucket_edges, causal_layout, collate, first_fit_decreasing
from .settings import DataSettings

__all__ = [
    "Batch",
    "Counts",
    "DataSettings",
    "Loader",
    "TokenDataset",
    "bucket_edges",
    "causal_layout",
    "collate",
    "first_fit_decreasing",
]
