"""The public names, which `permutohedral` hands on when the first of them is used."""

from permutohedral import crf, nn
from permutohedral.bounded_lattice import build_bounded_lattice
from permutohedral.errors import (
    AccuracyWarning,
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
    color_features,
    grid_features,
    join_features,
    position_features,
)
from permutohedral.filters.choice import explain_bilateral, explain_gaussian
from permutohedral.filters.estimate import ErrorEstimate, estimate_bilateral_error, estimate_error
from permutohedral.filters.steps import convolve, slice, splat
from permutohedral.functional import (
    bilateral_filter,
    gaussian_filter,
    permutohedral_filter,
)
from permutohedral.geometry import reach
from permutohedral.guided import (
    BilateralSolver,
    Upsampler,
    bilateral_solver,
    interpolate,
    opponent_colors,
    upsample,
    upsample_frames,
)
from permutohedral.lattice import Lattice, LatticeStatistics, build_lattice
from permutohedral.levels import coarsen, coarsen_and_keep, convolve_down, convolve_up, pool, refine
from permutohedral.memory import MemoryForecast, forecast_memory
from permutohedral.neighborhood import Neighborhood, gaussian_weight
from permutohedral.ops.dispatch import available_backends, explain_backend, use_backend
from permutohedral.pyramid import LatticePyramid, LevelTables, build_pyramid
from permutohedral.simplices import Simplices
from permutohedral.stacked_features import (
    circle_features,
    lattice_step,
    log_scale_features,
    rotation_features,
    whole_steps_sigma,
)
from permutohedral.version import __version__

__all__ = [
    "AccuracyWarning",
    "BackendUnavailable",
    "BilateralSolver",
    "DataError",
    "ErrorEstimate",
    "FeatureRangeError",
    "InputError",
    "Lattice",
    "LatticePyramid",
    "LatticeStatistics",
    "LevelTables",
    "MemoryForecast",
    "MemoryLimitError",
    "Neighborhood",
    "NeighborhoodError",
    "PermutohedralError",
    "Simplices",
    "Upsampler",
    "__version__",
    "available_backends",
    "bilateral_features",
    "bilateral_filter",
    "bilateral_solver",
    "build_bounded_lattice",
    "build_lattice",
    "build_pyramid",
    "circle_features",
    "coarsen",
    "coarsen_and_keep",
    "color_features",
    "convolve",
    "convolve_down",
    "convolve_up",
    "crf",
    "estimate_bilateral_error",
    "estimate_error",
    "explain_backend",
    "explain_bilateral",
    "explain_gaussian",
    "forecast_memory",
    "gaussian_filter",
    "gaussian_weight",
    "grid_features",
    "interpolate",
    "join_features",
    "lattice_step",
    "log_scale_features",
    "nn",
    "opponent_colors",
    "permutohedral_filter",
    "pool",
    "position_features",
    "reach",
    "refine",
    "rotation_features",
    "slice",
    "splat",
    "upsample",
    "upsample_frames",
    "use_backend",
    "whole_steps_sigma",
]
