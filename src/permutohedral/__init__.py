"""Permutohedral Lattice CNNs: filter and learn on signals sampled anywhere in R^d.

A signal given at points `features [points, d]` with `values [points, channels]` is splatted onto the
permutohedral lattice, convolved there, and sliced back at any points. Start here:

    smooth an image, keep its edges      `bilateral_filter`
    upsample or fill maps along edges    `upsample`, `bilateral_solver`
    filter values at any points          `gaussian_filter`; with your weights, `permutohedral_filter`
    learn a filter                       `nn.PermutohedralConv`, as `torch.nn.Conv2d` is for grids;
                                         `nn.BilateralConv2d` takes and returns images
    build once, filter many times        `build_lattice`, then pass `lattice=`; or `splat`, `convolve`, `slice`
    features from images                 `bilateral_features`, `position_features`, `color_features`, `join_features`
    filter, denoise, segment files       `files.filter_image`, `files.denoise_image`, `files.segment_image`, ...
    see which backend runs, and why      `explain_backend`
    forecast memory                      `forecast_memory`, `Lattice.statistics`

One feature unit is one standard deviation of the Gaussian: divide features by the bandwidth. Every name has an
example: see `help(permutohedral.build_lattice)`. The command line is described by `permutohedral --help`.

>>> import torch, permutohedral as ph
>>> image = torch.rand(3, 64, 64)
>>> ph.bilateral_filter(image, sigma_space=4.0, sigma_color=0.1).shape
torch.Size([3, 64, 64])
>>> layer = ph.nn.PermutohedralConv(in_channels=8, out_channels=16, dimension=3)
>>> layer(torch.randn(1000, 8), features=torch.randn(1000, 3)).shape
torch.Size([1000, 16])
"""

import importlib
from typing import TYPE_CHECKING, Any

from permutohedral.version import __version__ as __version__

if TYPE_CHECKING:
    from permutohedral import crf as crf
    from permutohedral import files as files
    from permutohedral import nn as nn
    from permutohedral.errors import AccuracyWarning as AccuracyWarning
    from permutohedral.errors import BackendUnavailable as BackendUnavailable
    from permutohedral.errors import DataError as DataError
    from permutohedral.errors import FeatureRangeError as FeatureRangeError
    from permutohedral.errors import InputError as InputError
    from permutohedral.errors import MemoryLimitError as MemoryLimitError
    from permutohedral.errors import NeighborhoodError as NeighborhoodError
    from permutohedral.errors import PermutohedralError as PermutohedralError
    from permutohedral.filters.bilateral import bilateral_filter as bilateral_filter
    from permutohedral.filters.choice import explain_bilateral as explain_bilateral
    from permutohedral.filters.choice import explain_gaussian as explain_gaussian
    from permutohedral.filters.estimate import ErrorEstimate as ErrorEstimate
    from permutohedral.filters.estimate import estimate_bilateral_error as estimate_bilateral_error
    from permutohedral.filters.estimate import estimate_error as estimate_error
    from permutohedral.filters.gaussian import gaussian_filter as gaussian_filter
    from permutohedral.filters.learned import permutohedral_filter as permutohedral_filter
    from permutohedral.filters.steps import convolve as convolve
    from permutohedral.filters.steps import slice as slice
    from permutohedral.filters.steps import splat as splat
    from permutohedral.guided import BilateralSolver as BilateralSolver
    from permutohedral.guided import Upsampler as Upsampler
    from permutohedral.guided import bilateral_solver as bilateral_solver
    from permutohedral.guided import interpolate as interpolate
    from permutohedral.guided import opponent_colors as opponent_colors
    from permutohedral.guided import upsample as upsample
    from permutohedral.guided import upsample_frames as upsample_frames
    from permutohedral.lattice.bounded import build_bounded_lattice as build_bounded_lattice
    from permutohedral.lattice.features import bilateral_features as bilateral_features
    from permutohedral.lattice.features import color_features as color_features
    from permutohedral.lattice.features import grid_features as grid_features
    from permutohedral.lattice.features import join_features as join_features
    from permutohedral.lattice.features import position_features as position_features
    from permutohedral.lattice.geometry import reach as reach
    from permutohedral.lattice.lattice import Lattice as Lattice
    from permutohedral.lattice.lattice import LatticeStatistics as LatticeStatistics
    from permutohedral.lattice.lattice import build_lattice as build_lattice
    from permutohedral.lattice.levels import coarsen as coarsen
    from permutohedral.lattice.levels import coarsen_and_keep as coarsen_and_keep
    from permutohedral.lattice.levels import convolve_down as convolve_down
    from permutohedral.lattice.levels import convolve_up as convolve_up
    from permutohedral.lattice.levels import pool as pool
    from permutohedral.lattice.levels import refine as refine
    from permutohedral.lattice.memory import MemoryForecast as MemoryForecast
    from permutohedral.lattice.memory import forecast_memory as forecast_memory
    from permutohedral.lattice.pyramid import LatticePyramid as LatticePyramid
    from permutohedral.lattice.pyramid import LevelTables as LevelTables
    from permutohedral.lattice.pyramid import build_pyramid as build_pyramid
    from permutohedral.ops.composite import explain_call as explain_call
    from permutohedral.ops.dispatch import available_backends as available_backends
    from permutohedral.ops.dispatch import explain_backend as explain_backend
    from permutohedral.ops.dispatch import use_backend as use_backend
    from permutohedral.ops.neighborhood import Neighborhood as Neighborhood
    from permutohedral.ops.neighborhood import gaussian_weight as gaussian_weight
    from permutohedral.ops.simplices import Simplices as Simplices

# Public names by module. They are imported on first use: the command line answers --help without loading torch.
_NAMES = {
    "errors": (
        "AccuracyWarning",
        "BackendUnavailable",
        "DataError",
        "FeatureRangeError",
        "InputError",
        "MemoryLimitError",
        "NeighborhoodError",
        "PermutohedralError",
    ),
    "filters.bilateral": ("bilateral_filter",),
    "filters.choice": ("explain_bilateral", "explain_gaussian"),
    "filters.estimate": ("ErrorEstimate", "estimate_bilateral_error", "estimate_error"),
    "filters.gaussian": ("gaussian_filter",),
    "filters.learned": ("permutohedral_filter",),
    "filters.steps": ("convolve", "slice", "splat"),
    "guided": (
        "BilateralSolver",
        "Upsampler",
        "bilateral_solver",
        "interpolate",
        "opponent_colors",
        "upsample",
        "upsample_frames",
    ),
    "lattice.bounded": ("build_bounded_lattice",),
    "lattice.features": ("bilateral_features", "color_features", "grid_features", "join_features", "position_features"),
    "lattice.geometry": ("reach",),
    "lattice.lattice": ("Lattice", "LatticeStatistics", "build_lattice"),
    "lattice.levels": ("coarsen", "coarsen_and_keep", "convolve_down", "convolve_up", "pool", "refine"),
    "lattice.memory": ("MemoryForecast", "forecast_memory"),
    "lattice.pyramid": ("LatticePyramid", "LevelTables", "build_pyramid"),
    "ops.composite": ("explain_call",),
    "ops.dispatch": ("available_backends", "explain_backend", "use_backend"),
    "ops.neighborhood": ("Neighborhood", "gaussian_weight"),
    "ops.simplices": ("Simplices",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
_SUBPACKAGES = ("crf", "errors", "files", "filters", "guided", "lattice", "nn", "ops")
__all__ = sorted(["__version__", "crf", "nn", *_MODULE_OF])  # noqa: PLE0605

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _SUBPACKAGES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "errors", "files"])
