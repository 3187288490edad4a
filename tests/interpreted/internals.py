"""The internals of the Triton backend that these tests change or look into, in one place.

What is changed are thresholds, so that small inputs take the paths of large ones.
"""

from permutohedral.ops.triton import runtime, tuning
from permutohedral.ops.triton.build import insertion, lattice, wide_keys
from permutohedral.ops.triton.build import neighbors as search
from permutohedral.ops.triton.build.fixed_rows import index_points_bounded
from permutohedral.ops.triton.build.packed_table import PackedTable
from permutohedral.ops.triton.filter import (
    blur,
    convolve,
    gaussian,
    incidence,
    item_norm,
    normalize,
    splat,
    weight_gradient,
)

__all__ = [
    "PackedTable",
    "blur",
    "convolve",
    "gaussian",
    "incidence",
    "index_points_bounded",
    "insertion",
    "item_norm",
    "lattice",
    "normalize",
    "runtime",
    "search",
    "splat",
    "tuning",
    "weight_gradient",
    "wide_keys",
]
