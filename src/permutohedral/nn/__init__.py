"""Layers, with the conventions of `torch.nn`."""

from permutohedral.nn.bilateral import (
    BilateralConvolution1d,
    BilateralConvolution2d,
    BilateralConvolution3d,
    BilateralFilter,
)
from permutohedral.nn.convolution import PermutohedralConvolution
from permutohedral.nn.crf import DenseCRF
from permutohedral.nn.gaussian import GaussianFilter
from permutohedral.nn.group_norm import LatticeGroupNorm, LatticeItems, Normalized
from permutohedral.nn.guided import BilateralSolver, BilateralUpsample2d
from permutohedral.nn.levels import Coarsen, CoarsenLinear, LatticeConvolution, LatticePool, Refine, RefineLinear
from permutohedral.nn.points import DeformSlice, PointSplat

__all__ = [
    "BilateralConvolution1d",
    "BilateralConvolution2d",
    "BilateralConvolution3d",
    "BilateralFilter",
    "BilateralSolver",
    "BilateralUpsample2d",
    "Coarsen",
    "CoarsenLinear",
    "DeformSlice",
    "DenseCRF",
    "GaussianFilter",
    "LatticeConvolution",
    "LatticeGroupNorm",
    "LatticeItems",
    "LatticePool",
    "Normalized",
    "PermutohedralConvolution",
    "PointSplat",
    "Refine",
    "RefineLinear",
]
