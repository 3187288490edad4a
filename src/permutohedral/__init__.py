"""Permutohedral Lattice CNNs: filter and learn on signals sampled anywhere in R^d.

A signal given at points `features [points, d]` with `values [points, channels]` is splatted onto the
permutohedral lattice, convolved there, and sliced back at any points. Where to start:

    smooth an image, keep its edges      `bilateral_filter`
    upsample or mend maps along edges    `upsample`, `bilateral_solver`
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

import importlib
from typing import TYPE_CHECKING, Any

from permutohedral.version import __version__ as __version__

if TYPE_CHECKING:
    from permutohedral.public import *  # noqa: F403 (`__all__` names them)
    from permutohedral.public import __all__ as __all__
else:
    # the names, and torch with them, are loaded when the first is used: the command line lies in this package, too, and
    # answers --version, --help and the Tab key before torch could be loaded

    def __getattr__(name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        public = vars(importlib.import_module("permutohedral.public"))
        # while the public names are being loaded, not all are there; one that a user has replaced stays
        for each in ("__all__", *public.get("__all__", ())):
            if each in public:
                globals().setdefault(each, public[each])
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *importlib.import_module("permutohedral.public").__all__})
