"""Maps along the edges of a guide: upsampling, the bilateral solver, and interpolation."""

from permutohedral.guided.scattered import interpolate
from permutohedral.guided.solver import bilateral_solver
from permutohedral.guided.upsampling import Upsampler, upsample

__all__ = [
    "Upsampler",
    "bilateral_solver",
    "interpolate",
    "upsample",
]
