"""Permutohedral Lattice CNNs: filter and learn on signals sampled anywhere in R^d.

A signal given at points `features [points, d]` with `values [points, channels]` is splat onto the
permutohedral lattice, convolved there, and sliced back at any points. Start with

    `bilateral_filter`, `gaussian_filter`    filters that need no training
    `nn.PermutohedralConvolution`            the layer, as `torch.nn.Conv2d` is for grids
    `build_lattice`                          to build once and filter many times

>>> import torch, permutohedral as ph
>>> image = torch.rand(3, 64, 64)
>>> ph.bilateral_filter(image, sigma_space=4.0, sigma_range=0.1).shape
torch.Size([3, 64, 64])
"""

from permutohedral import nn
from permutohedral.errors import (
    BackendUnavailable,
    DataError,
    FeatureRangeError,
    InputError,
    MemoryLimitError,
    NeighborhoodError,
    PermutohedralError,
)
from permutohedral.features import (
    circle_features,
    color_features,
    join_features,
    lattice_step,
    log_scale_features,
    position_features,
    rotation_features,
    whole_steps_sigma,
)
from permutohedral.functional import (
    bilateral_features,
    bilateral_filter,
    convolve,
    gaussian_filter,
    permutohedral_filter,
    slice,
    splat,
)
from permutohedral.lattice import Lattice, LatticeStatistics, Simplices, build_lattice
from permutohedral.memory import MemoryForecast, forecast_memory
from permutohedral.neighborhood import Neighborhood, gaussian_weight
from permutohedral.ops.dispatch import available_backends, explain_backend, use_backend
from permutohedral.version import __version__

__all__ = [
    "BackendUnavailable",
    "DataError",
    "FeatureRangeError",
    "InputError",
    "Lattice",
    "LatticeStatistics",
    "MemoryForecast",
    "MemoryLimitError",
    "Neighborhood",
    "NeighborhoodError",
    "PermutohedralError",
    "Simplices",
    "__version__",
    "available_backends",
    "bilateral_features",
    "bilateral_filter",
    "build_lattice",
    "circle_features",
    "color_features",
    "convolve",
    "explain_backend",
    "forecast_memory",
    "gaussian_filter",
    "gaussian_weight",
    "join_features",
    "lattice_step",
    "log_scale_features",
    "nn",
    "permutohedral_filter",
    "position_features",
    "rotation_features",
    "slice",
    "splat",
    "use_backend",
    "whole_steps_sigma",
]
