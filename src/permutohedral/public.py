"""The public names, which `permutohedral` hands on when the first of them is used."""

from permutohedral import nn
from permutohedral.bounded_lattice import build_bounded_lattice
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
    "build_bounded_lattice",
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
