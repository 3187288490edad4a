"""Maps that follow the edges of a guide: upsampling, solving, and filling holes.

The page docs/upsampling.md says which to take when.
"""

from permutohedral.guided.colors import opponent_colors
from permutohedral.guided.scattered import interpolate
from permutohedral.guided.solver import BilateralSolver, bilateral_solver
from permutohedral.guided.upsampling import Upsampler, upsample
from permutohedral.guided.video import upsample_frames

__all__ = [
    "BilateralSolver",
    "Upsampler",
    "bilateral_solver",
    "interpolate",
    "opponent_colors",
    "upsample",
    "upsample_frames",
]
