"""Permutohedral Lattice CNNs: filter and learn on signals sampled anywhere in R^d.

A signal given at points `features [points, d]` with `values [points, channels]` is splatted onto the
permutohedral lattice, convolved there, and sliced back at any points. Where to start:

    smooth an image, keep its edges      `bilateral_filter`
    filter values at any points          `gaussian_filter`; with weights of your own, `permutohedral_filter`
    learn a filter                       `nn.PermutohedralConvolution`, as `torch.nn.Conv2d` is for grids;
                                         `nn.BilateralConvolution2d` has images in and images out
    build once, filter many times        `build_lattice`, then pass `lattice=`; or `splat`, `convolve`, `slice`
    features out of images               `bilateral_features`, `position_features`, `color_features`, `join_features`
    what runs here, and why              `explain_backend`
    how much memory it takes             `forecast_memory`, `Lattice.statistics`

One feature unit is one standard deviation of the Gaussian: divide features by the bandwidth wanted. Every name has an
example: `help(permutohedral.build_lattice)`. Pages: docs/tutorials, docs/theory.md, docs/conventions.md,
docs/errors.md. On the command line: `permutohedral --help`.

>>> import torch, permutohedral as ph
>>> image = torch.rand(3, 64, 64)
>>> ph.bilateral_filter(image, sigma_space=4.0, sigma_range=0.1).shape
torch.Size([3, 64, 64])
>>> layer = ph.nn.PermutohedralConvolution(in_channels=8, out_channels=16, dimension=3)
>>> layer(torch.randn(1000, 8), features=torch.randn(1000, 3)).shape
torch.Size([1000, 16])
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
    bilateral_features,
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
