"""The Gaussian over position and color on a grid over both, instead of a lattice.

Colors are splatted, blurred and sliced along their principal axes, with quadratic B-splines B and a blur b of three
taps:

    exp(-|a - c|^2 / 2) = prod_axes sum_kl B(a / h - k) b(k - l) B(c / h - l) + error,   h: `GridStep.spacing`

A color touches 27 nodes. Positions are splatted to places, the corners of cells of pixels, and interpolated between
them; at each place there is a grid of nodes over colors. All weights are positive and no path of the blur is lost, so
rare colors with little mass are as accurate as others. The lattice has several times the error
(docs/research/accuracy.md). Only the nodes that are needed are stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.lattice.memory import check_rows
from permutohedral.ops.binding import bind
from permutohedral.ops.contract import ColorGridTables

# nodes along an axis that a color touches
_TAPS = 3
# guide channels are the axes of the grid; an unused axis has one node
MAX_GUIDE_CHANNELS = 3
# reach of the blur between places, in its standard deviations: rounded up, two places
_BLUR_REACH = 2.4
# about how many colors the axes are found from
_SAMPLES = 4096
# limits of the compiled core: nodes along an axis, rows of nodes at all places, nodes at all places
_MAX_AXIS_NODES, _MAX_ROWS, _MAX_NODES = 1 << 14, 1 << 23, 1 << 29
# channels that the compiled core sums in one pass
_CHANNELS_PER_PASS = 4


@dataclass(frozen=True)
class GridStep:
    """Distances between nodes.

    Attributes:
        spacing: between nodes over colors, in standard deviations.
        neighbor: weight of a neighbor in the blur over colors. It keeps the error small near the center of the Gaussian
            and at three standard deviations, where most pixels lie that a rare color sees.
        cell: between places, in standard deviations.
    """

    spacing: float
    neighbor: float
    cell: float

    def cell_size(self, sigma: float, extent: int) -> int:
        """Return the pixels between two places along an axis of `extent` pixels.

        >>> COARSE.cell_size(8.0, extent=100)
        9
        """
        return max(int(min(self.cell * sigma, extent)), 1)


# chosen by the worst pixels of photographs; the fine step has the smaller mean error
FINE, COARSE = GridStep(1.12, 0.20, 1.0), GridStep(1.2, 0.13, 1.125)
# Colors that take up at most this many nodes of a coarse grid need the fine step: each sees many colors that are three
# standard deviations away, where the error of the coarse step is largest.
_MAX_FINE_SPREAD = 45.0


@dataclass(frozen=True, eq=False)
class ColorAxes:
    """Principal axes of the colors of images.

    Attributes:
        directions: `[guide channels, guide channels]`, from values of a guide to nodes. Rows are axes, the one with the
            largest variance last.
        origin: `[guide channels]`, in nodes.
        step: distances between the nodes.
    """

    directions: NDArray[np.float64]
    origin: NDArray[np.float64]
    step: GridStep = COARSE


def find_axes(guide: Tensor, sigma: Sequence[float], step: GridStep | None = None) -> ColorAxes | None:
    """Find the principal axes of colors; None if colors are not finite.

    Args:
        guide: `[items, guide channels, height, width]`, with at least one pixel.
        sigma: standard deviations of the channels.
        step: distances between nodes; by default as the spread of the colors needs.

    >>> find_axes(torch.zeros(1, 1, 4, 5), [0.1]).directions.shape
    (1, 1)
    """
    items, channels, height, width = guide.shape
    # odd, so that no color of an image with a period of a power of two is missed
    apart = int(math.sqrt(items * height * width / _SAMPLES)) | 1
    colors = guide.detach()[..., ::apart, ::apart].movedim(1, -1).reshape(-1, channels).cpu().double().numpy() / sigma
    with np.errstate(invalid="ignore", over="ignore"):
        mean = colors.mean(axis=0)
        centered = colors - mean
        covariance = centered.T @ centered / len(colors)
    if not np.isfinite(covariance).all():
        return None
    variances, vectors = np.linalg.eigh(covariance)
    if step is None:
        # most colors lie within 1.5 standard deviations of their mean
        spread = np.prod(1 + 3 / COARSE.spacing * np.sqrt(variances.clip(min=0)))
        step = FINE if spread <= _MAX_FINE_SPREAD else COARSE
    directions = vectors.T / step.spacing
    return ColorAxes(directions / sigma, directions @ mean, step)


def count_places(image: Tensor, sigma: Sequence[float], step: GridStep) -> float:
    """Return about how many places the grid of an image has.

    >>> count_places(torch.zeros(1, 40, 40), (4.0, 4.0), FINE)
    121.0
    """
    cells = _cell_sizes(image, sigma, step)
    return math.prod(size / cell + 1 for size, cell in zip(image.shape[-2:], cells, strict=True))


def is_within_limits(guide: Tensor, sigma: Sequence[float], axes: ColorAxes) -> bool:
    """Return whether the grid is within the limits of the compiled core, whatever the colors of a place are.

    Args:
        guide: `[items, guide channels, height, width]`, with at least one pixel.
        sigma: over y and x, in pixels.
        axes: of the guide.

    >>> gray = torch.zeros(1, 1, 40, 40)
    >>> is_within_limits(gray, (4.0, 4.0), find_axes(gray, [1.0]))
    True
    """
    # the box around all colors; both ends are rounded, along the last axis to pairs of nodes
    extents = np.abs(axes.directions) @ _color_spans(guide) + _TAPS + 1
    extents[-1] += 2
    rows = float(extents[:-1].prod()) * (count_places(guide, sigma, axes.step) + 1)
    # False for NaN
    return bool(extents.max() <= _MAX_AXIS_NODES and rows <= _MAX_ROWS and rows * extents[-1] <= _MAX_NODES)


def _cell_sizes(image: Tensor, sigma: Sequence[float], step: GridStep) -> tuple[int, int]:
    """Return the pixels between places along y and x."""
    height, width = image.shape[-2:]
    return step.cell_size(sigma[0], height), step.cell_size(sigma[1], width)


def _color_spans(guide: Tensor) -> NDArray[np.float64]:
    """Return the difference of the largest and the smallest value of each channel."""
    if guide.device.type == "cpu" and guide.dtype in (torch.float32, torch.float64):
        # NumPy along one axis takes a fraction of the time of torch, and of NumPy along several axes
        pixels = guide.detach().numpy().reshape(*guide.shape[:2], -1)
        spans = pixels.max(axis=2).max(axis=0) - pixels.min(axis=2).min(axis=0)
        return np.asarray(spans, dtype=np.float64)
    channels = guide.detach().movedim(1, 0).flatten(1)
    return (channels.amax(dim=1) - channels.amin(dim=1)).cpu().double().numpy()


def sum_color_grid(values: Tensor, guide: Tensor, sigma: tuple[float, float], axes: ColorAxes) -> Tensor:
    """Sum over the pixels around each pixel, weighted by the Gaussian over position and color.

    Args:
        values: `[items, channels, height, width]`.
        guide: `[items, guide channels, height, width]`.
        sigma: over y and x, in pixels.
        axes: of the guide.

    Returns:
        `[items, channels + 1, height, width]`; the last channel is the mass, the sum of ones.

    Raises:
        BackendUnavailable: the backend has no color grid (see `has_color_grid`).
    """
    items, channels, height, width = values.shape
    if values.numel() == 0:
        return values.new_zeros(items, channels + 1, height, width)
    # the integral of the blur is that of the Gaussian
    step = axes.step
    own = math.sqrt(2 * math.pi) / step.spacing / (1 + 2 * step.neighbor)
    cells = _cell_sizes(values, sigma, step)
    blur = own, step.neighbor * own
    tables = ColorGridTables(sigma, cells, _BLUR_REACH, axes.directions.tolist(), axes.origin.tolist(), blur)
    # the sums, and of one item contiguous values and colors, and coordinates
    planes = items * (channels + 1) + _CHANNELS_PER_PASS + 2 * MAX_GUIDE_CHANNELS + 2
    check_rows(planes * height * width, 1, values)
    return bind(values, guide).sum_color_grid(values, guide, tables)


def has_color_grid(*tensors: Tensor | None) -> bool:
    """Return whether the backend of these tensors has color grids; none has their derivatives."""
    return bind(*tensors).has_color_grid


def reach_of_grid(sigma: float, step: GridStep, extent: int) -> int:
    """Return how many pixels on either side along an axis the sums of a pixel depend on: those of whole cells.

    >>> reach_of_grid(8.0, COARSE, extent=100)
    36
    """
    cell = step.cell_size(sigma, extent)
    return (_blur(sigma, cell)[1] + 2) * cell


def _blur(sigma: float, cell: int) -> tuple[float, int]:
    """Return the variance of the blur between places, and how many places it reaches."""
    # interpolation at the source and at the target each has a variance of a sixth of a step, on average
    variance = (sigma / cell) ** 2 - 1 / 3
    return variance, int(_BLUR_REACH * math.sqrt(variance)) + 1
