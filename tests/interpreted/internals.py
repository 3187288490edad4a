"""The internals of the Triton backend that these tests change or look into, in one place.

What is changed are thresholds, so that small inputs take the paths of large ones.
"""

from permutohedral.ops.triton import kernel, tuning
from permutohedral.ops.triton.build import insertion, lattice
from permutohedral.ops.triton.build import neighbors as search
from permutohedral.ops.triton.build.hash_table import PackedTable
from permutohedral.ops.triton.filter import (
    blur,
    convolve,
    gaussian,
    incidence,
    item_norm,
    mean_field,
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
    "insertion",
    "item_norm",
    "kernel",
    "lattice",
    "mean_field",
    "normalize",
    "search",
    "splat",
    "tuning",
    "weight_gradient",
]
