"""The internals of the Triton backend that these tests change or look into, in one place.

What is changed are thresholds, so that small inputs take the paths of large ones.
"""

from permutohedral.ops.triton import convolution, filtering, lattice, splatting, wide
from permutohedral.ops.triton.bounded import index_points_bounded
from permutohedral.ops.triton.table import PackedTable

__all__ = [
    "PackedTable",
    "convolution",
    "filtering",
    "index_points_bounded",
    "lattice",
    "splatting",
    "wide",
]
