"""What the Gaussian over position and color needs besides a picture, where it is not computed on a lattice."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LandmarkTables(NamedTuple):
    """The Gaussian over position and color with few terms over colors (`filters/landmarks.py`).

    Attributes:
        colors: `[landmarks, guide channels]`, in standard deviations.
        mixture: `[landmarks, landmarks]`.
        sigma: over y and x, in pixels.
        cells: pixels between the nodes on which is blurred, along y and x.
        blur_reach: how far the blur between those reaches, in its standard deviations.
        reach: of the windows over which rare pixels are summed, in standard deviations.
        small_mass: those have less mass than this, times the root of what landmarks lack at their color.
        most_repaired: of each item, the ones whose mass is the least part of that.
    """

    colors: Tensor
    mixture: Tensor
    sigma: tuple[float, float]
    cells: tuple[int, int]
    blur_reach: float
    reach: float
    small_mass: float
    most_repaired: int


class ColorGridTables(NamedTuple):
    """The Gaussian over position and color on a grid (`filters/color_grid.py`).

    Attributes:
        sigma: over y and x, in pixels.
        cells: pixels between the nodes over positions, along y and x.
        blur_reach: how far the blur between those reaches, in its standard deviations.
        directions: `[axes, guide channels]`, from a color to its place along each axis of colors, in nodes.
        origin: `[axes]`, which is subtracted.
        color_blur: the weights of a node itself and of a neighbor along each axis in the blur over colors.
    """

    sigma: tuple[float, float]
    cells: tuple[int, int]
    blur_reach: float
    directions: list[list[float]]
    origin: list[float]
    color_blur: tuple[float, float]
