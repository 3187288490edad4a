"""Lattices: build them, measure them, forecast their memory. See also `ph.features` and `ph.levels`."""

from permutohedral.lattice.bounded import build_bounded_lattice
from permutohedral.lattice.geometry import reach, tap_positions
from permutohedral.lattice.lattice import Lattice, LatticeStatistics, build_lattice
from permutohedral.lattice.memory import MemoryForecast, forecast_memory
from permutohedral.lattice.neighborhood import Neighborhood, gaussian_weight
from permutohedral.ops.simplices import Simplices

__all__ = [
    "Lattice",
    "LatticeStatistics",
    "MemoryForecast",
    "Neighborhood",
    "Simplices",
    "build_bounded_lattice",
    "build_lattice",
    "forecast_memory",
    "gaussian_weight",
    "reach",
    "tap_positions",
]
