"""The internals of the Triton backend that these tests change or look into, in one place.

What is changed are thresholds, so that small inputs take the paths of large ones.
"""

from permutohedral.ops.triton import kernel, tuning
from permutohedral.ops.triton.build import lattice
from permutohedral.ops.triton.build import neighbors as search
from permutohedral.ops.triton.build.hash_table import PackedTable
from permutohedral.ops.triton.filter import (
    blur,
    convolve,
    gaussian,
    incidence,
    item_norm,
    learned_filter,
    mean_field,
    splat,
    weight_gradient,
)

__all__ = [
    "PackedTable",
    "blur",
    "convolve",
    "gaussian",
    "incidence",
    "item_norm",
    "kernel",
    "lattice",
    "learned_filter",
    "mean_field",
    "search",
    "splat",
    "tuning",
    "weight_gradient",
]
