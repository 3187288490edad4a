"""Permutohedral Lattice CNNs: filter and learn on signals sampled anywhere in R^d.

A signal given at points `features [points, d]` with `values [points, channels]` is splatted onto the
permutohedral lattice, convolved there, and sliced back at any points. Start here:

    smooth an image, keep its edges      `bilateral_filter`
    upsample or fill maps along edges    `upsample`, `bilateral_solver`
    filter values at any points          `gaussian_filter`; with your weights, `permutohedral_filter`
    fill in values between points        `interpolate`
    learn a filter                       `nn.PermutohedralConv`, as `torch.nn.Conv2d` is for grids;
                                         `nn.BilateralConv2d` takes and returns images
    encode positions of a neural field   `nn.PermutohedralEncoding`
    build once, filter many times        `build_lattice`, and pass it as features; or `splat`, `convolve`, `slice`
    features from images                 `features.bilateral`, `features.positions`, `features.colors`, `features.join`
    dense random fields                  `crf.mean_field`, `nn.DenseCRF`
    coarser levels of a lattice          `levels.build_pyramid`
    filter, denoise, segment files       `apps.filter_image`, `apps.denoise_image`, `apps.segment_image`, ...
    networks with trained weights        `apps.Denoiser`, `apps.PointSegmenter`
    see which backend runs, and why      `backends.explain`
    measure the approximation            `accuracy.estimate_error`, `accuracy.explain_bilateral`
    forecast memory                      `lattice.forecast_memory`, `Lattice.statistics`

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

from typing import TYPE_CHECKING

from permutohedral.version import __version__ as __version__

if TYPE_CHECKING:
    from permutohedral import accuracy as accuracy
    from permutohedral import apps as apps
    from permutohedral import backends as backends
    from permutohedral import compat as compat
    from permutohedral import crf as crf
    from permutohedral import dask as dask
    from permutohedral import errors as errors
    from permutohedral import features as features
    from permutohedral import guided as guided
    from permutohedral import lattice as lattice
    from permutohedral import levels as levels
    from permutohedral import nn as nn
    from permutohedral.filters.bilateral import bilateral_filter as bilateral_filter
    from permutohedral.filters.gaussian import gaussian_filter as gaussian_filter
    from permutohedral.filters.learned import permutohedral_filter as permutohedral_filter
    from permutohedral.filters.steps import convolve as convolve
    from permutohedral.filters.steps import slice as slice
    from permutohedral.filters.steps import splat as splat
    from permutohedral.guided import bilateral_solver as bilateral_solver
    from permutohedral.guided import interpolate as interpolate
    from permutohedral.guided import upsample as upsample
    from permutohedral.lattice.lattice import Lattice as Lattice
    from permutohedral.lattice.lattice import build_lattice as build_lattice

# Public functions and classes, and the modules that define them. They are imported on first use, so that the command
# line answers --help without loading torch.
_FUNCTIONS = {
    "Lattice": "lattice.lattice",
    "bilateral_filter": "filters.bilateral",
    "bilateral_solver": "guided",
    "build_lattice": "lattice.lattice",
    "convolve": "filters.steps",
    "gaussian_filter": "filters.gaussian",
    "interpolate": "guided",
    "permutohedral_filter": "filters.learned",
    "slice": "filters.steps",
    "splat": "filters.steps",
    "upsample": "guided",
}
# Each is a file or a folder of this package.
_MODULES = (
    "accuracy",
    "apps",
    "backends",
    "compat",
    "crf",
    "dask",
    "errors",
    "features",
    "guided",
    "lattice",
    "levels",
    "nn",
)
# `import *` must work without Dask
__all__ = ["__version__", *_FUNCTIONS, *(name for name in _MODULES if name != "dask")]  # noqa: PLE0604

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        if name in _MODULES:
            try:
                return importlib.import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                # `hasattr` and `help` expect it where an extra is missing
                raise AttributeError(str(error)) from error
        if name not in _FUNCTIONS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "dask", "__doc__", "__file__", "__name__", "__path__"])
