"""Layers, with the conventions of `torch.nn`."""

from permutohedral.nn.bilateral import (
    BilateralConv1d,
    BilateralConv2d,
    BilateralConv3d,
    BilateralFilter,
)
from permutohedral.nn.capture import capture_step
from permutohedral.nn.convolution import PermutohedralConv
from permutohedral.nn.crf import DenseCRF
from permutohedral.nn.encoding import PermutohedralEncoding
from permutohedral.nn.energy import DenseEnergyLoss
from permutohedral.nn.gaussian import GaussianFilter
from permutohedral.nn.group_norm import LatticeGroupNorm, LatticeItems
from permutohedral.nn.guided import BilateralSolver, BilateralUpsample2d
from permutohedral.nn.levels import (
    LatticeConv,
    LatticeConvDown,
    LatticeConvUp,
    LatticeLinearDown,
    LatticeLinearUp,
    LatticePool,
)
from permutohedral.nn.unet import LatticeUNet

__all__ = [
    "BilateralConv1d",
    "BilateralConv2d",
    "BilateralConv3d",
    "BilateralFilter",
    "BilateralSolver",
    "BilateralUpsample2d",
    "DenseCRF",
    "DenseEnergyLoss",
    "GaussianFilter",
    "LatticeConv",
    "LatticeConvDown",
    "LatticeConvUp",
    "LatticeGroupNorm",
    "LatticeItems",
    "LatticeLinearDown",
    "LatticeLinearUp",
    "LatticePool",
    "LatticeUNet",
    "PermutohedralConv",
    "PermutohedralEncoding",
    "capture_step",
]
