"""The Gaussian over position and color with few terms over colors: blurred pictures instead of a lattice.

    exp(-|a - b|^2 / 2) = sum_kl w(a, c_k) M_kl w(c_l, b) + error,   w(a, c) = exp(-|a - c|^2 / 2)

The landmarks c_k are colors of the picture, M the inverse of the matrix w(c_k, c_l): the approximation of Nyström. Each
w(c_l, b) is a picture, to be blurred over positions, which is done on a coarse grid. The wider the Gaussian over
colors, the fewer the landmarks that do: five to a hundred where a lattice is far off.

What the terms lack between two colors a and b is at most sqrt(l(a) l(b)), l(a) = 1 - sum_kl w(a, c_k) M_kl w(c_l, a).
Where that is much against the mass of a pixel, because its color is rare and no landmark near, the pixel is summed
again by the definition, over a window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.filters.color_samples import sample_colors
from permutohedral.memory import check_rows
from permutohedral.ops import fused_filters
from permutohedral.ops.color_tables import LandmarkTables
from permutohedral.ops.primitives import accumulation_dtype, window_extents

# colors the landmarks are chosen from, of many pictures at least so many of each; and how far apart those are, in
# standard deviations
_SAMPLES, _SAMPLES_OF_AN_ITEM, _SPACING = 8192, 1024, 0.6
# what w(a, a) should lack at most at these colors, and what it may lack if there are no more landmarks
_TOLERANCE, _MOST_LACKING = 0.1, 0.35
# so many terms take no longer than one, so that they are all used unless even less is left
_BLOCK, _NOTHING = 8, 1e-3
# so that the inverse stays small where landmarks are near each other; native/filter/rare_pixels.hpp has it, too
_ADDED_TO_DIAGONAL = 1e-5
# there are at least so many landmarks to a color
_LEAST_SHARE = 0.12
# pixels between the nodes of the grid, in standard deviations, and no more than lie near each other in color
_CELL, _LARGEST_CELL = 0.75, 16
# the pixels of a cell give to its nodes from the middles of so many parts along each axis
_PARTS = 2
# a table of so many small cubes is faster than sorting; else their coordinates are the digits of one number
_MOST_CUBES, _SHIFTS = 1 << 18, np.array([0, 20, 40])
# colors farther than this from their mean, in standard deviations, would lose digits in squares
_WIDEST = 100.0
# pixels with less than this part of the mass that equal colors would have, times the root of what landmarks lack at
# their color, are summed again, over a window
_SMALL_MASS, _REACH = 0.25, 3.0
# of those, at most so many pairs to a pixel of the picture, where the mass is the least part of that
_PAIRS = 6
# how far the blur on the grid reaches, in its standard deviations, and how many channels it has at once
_BLUR_REACH, _CHANNELS_AT_ONCE = 4.5, 4
# numbers that are computed at once
_AT_ONCE = 1 << 24


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Colors, and how they are put together.

    Attributes:
        colors: `[landmarks, guide channels]`, in standard deviations.
        mixture: `[landmarks, landmarks]`, the inverse of the Gaussian between them.
        unseen: about which share of the pixels has a color far from all of them.
    """

    colors: Tensor
    mixture: Tensor
    unseen: float = 0.0

    def can_repair(self, sigma: Sequence[float], pixels: int) -> bool:
        """Whether the pixels of a picture that are far from all landmarks are no more than are summed over windows."""
        return self.unseen * pixels <= _rare((sigma[0], sigma[1]), pixels)[1]


def cell_size(sigma: float) -> int:
    """Pixels between two nodes of the grid along an axis.

    >>> cell_size(8.0)
    6
    """
    return min(max(int(_CELL * sigma), 1), _LARGEST_CELL)


def choose_landmarks(guide: Tensor, sigma: Sequence[float], most: int) -> Landmarks | None:
    """Landmarks among the colors of pictures, None if more than `most` would be needed.

    Args:
        guide: `[items, guide channels, height, width]`.
        sigma: standard deviations of the channels.
        most: how many landmarks there may be.

    >>> choose_landmarks(torch.zeros(1, 3, 4, 5), [0.1, 0.1, 0.1], most=9).colors.tolist()
    [[0.0, 0.0, 0.0]]
    """
    sampled = sample_colors(guide, max(_SAMPLES, guide.shape[0] * _SAMPLES_OF_AN_ITEM)) / np.array(sigma)
    with np.errstate(invalid="ignore"):
        if not np.isfinite(sampled.sum()):
            # refused later on, with a reason
            return None
    colors = _thin_out(sampled)
    # a block takes as long as a part of it
    most = most // _BLOCK * _BLOCK if most > _BLOCK else most
    if colors.shape[0] * _LEAST_SHARE > most or colors.shape[0] == 0:
        return None
    if np.abs(colors - colors.mean(0)).max() > _WIDEST:
        return None
    chosen = _pivots(colors, most)
    if chosen is None:
        return None
    taken = colors[chosen]
    taken = taken[_neighbors_in_blocks(taken)]
    kernel = np.exp(-0.5 * ((taken[:, None] - taken) ** 2).sum(-1))
    mixture = np.linalg.inv(kernel + _ADDED_TO_DIAGONAL * np.eye(chosen.size))
    dtype = accumulation_dtype(guide.dtype)
    on_device = [torch.from_numpy(array).to(guide.device, dtype) for array in (taken, mixture)]
    return Landmarks(on_device[0], on_device[1], _share_of_lonely(taken, sampled))


def _thin_out(colors: NDArray[np.float64]) -> NDArray[np.float64]:
    """One of each small cube of colors."""
    cubes = np.rint(colors / _SPACING).astype(np.int64)
    cubes -= cubes.min(axis=0, initial=0)
    along = cubes.max(axis=0, initial=0) + 1
    if along.prod(dtype=np.float64) > _MOST_CUBES:
        # numbers are sorted faster than rows; where two cubes share one, a color is lost
        numbers = (cubes << _SHIFTS[: cubes.shape[1]]).sum(1)
        return colors[np.unique(numbers, return_index=True)[1]]
    found = np.full(along.prod(), -1)
    # of several in one cube the last stays
    found[np.ravel_multi_index(tuple(cubes.T), tuple(along))] = np.arange(len(colors))
    return colors[found[found >= 0]]


def _pivots(colors: NDArray[np.float64], most: int) -> NDArray[np.int64] | None:
    """Rows of Cholesky's decomposition of the Gaussian between all, largest pivot first, until little is left."""
    left, halves = np.ones(len(colors)), 0.5 * (colors**2).sum(1)
    rows = np.zeros((min(most, len(left)), len(left)))
    chosen: list[int] = []
    while left[pivot := int(left.argmax())] > (_NOTHING if len(chosen) % _BLOCK else _TOLERANCE):
        count = len(chosen)
        if count == most:
            return None if left[pivot] > _MOST_LACKING else np.array(chosen, dtype=np.int64)
        row = np.exp(colors @ colors[pivot] - (halves + halves[pivot])) - rows[:count, pivot] @ rows[:count]
        row *= left[pivot] ** -0.5
        rows[count] = row
        left -= row * row
        chosen.append(pivot)
    return np.array(chosen, dtype=np.int64)


def _share_of_lonely(landmarks: NDArray[np.float64], sampled: NDArray[np.float64]) -> float:
    """The share of the samples that only the landmark they became stands for.

    As many of the other pixels, in proportion, have colors that no landmark stands for (Good and Turing).
    """
    middle = landmarks.mean(axis=0)
    # single precision will do for a share
    near, far = ((each - middle).astype(np.float32) for each in (landmarks, sampled))
    halves = [0.5 * np.einsum("nc,nc->n", each, each) for each in (near, far)]
    # |a - b|^2 / 2 is less than the limit
    limit = halves[0] + math.log(1 - _MOST_LACKING)
    counts = np.count_nonzero(near @ far.T - halves[1] > limit[:, None], axis=1)
    return float((counts <= 1).sum()) / len(sampled)


def _neighbors_in_blocks(colors: NDArray[np.float64]) -> NDArray[np.int64]:
    """An order in which those of one block are near each other, so that few blocks are near the colors of a cell."""
    if len(colors) <= _BLOCK:
        return np.arange(len(colors))
    order = colors[:, np.ptp(colors, axis=0).argmax()].argsort(kind="stable")
    middle = (len(colors) // _BLOCK + 1) // 2 * _BLOCK
    halves = order[:middle], order[middle:]
    return np.concatenate([half[_neighbors_in_blocks(colors[half])] for half in halves])


def sum_landmarks(
    values: Tensor, guide: Tensor, sigma: tuple[float, float], landmarks: Landmarks, *, repaired: bool = True
) -> Tensor:
    """The sums over all pixels around each, weighted by the Gaussian over position and color.

    Args:
        values: `[items, channels, height, width]`.
        guide: `[items, guide channels, height, width]`, in standard deviations.
        sigma: over y and x, in pixels.
        landmarks: of the guide.
        repaired: whether `rare_pixels` are summed over windows.

    Returns:
        `[items, channels + 1, height, width]`: the sums of ones, the mass, are the last.

    >>> gray = torch.zeros(1, 1, 20, 30)
    >>> sum_landmarks(gray, gray, (2.0, 2.0), choose_landmarks(gray, [1.0], 1)).shape
    torch.Size([1, 2, 20, 30])
    """
    cells = cell_size(sigma[0]), cell_size(sigma[1])
    _check_memory(values, landmarks, cells)
    small, most = _rare(sigma, values.shape[-2] * values.shape[-1]) if repaired else (0.0, 0)
    tables = LandmarkTables(landmarks.colors, landmarks.mixture, sigma, cells, _BLUR_REACH, _REACH, small, most)
    sums = fused_filters.sum_landmarks(values, guide, tables)
    return _compose(values, guide, tables) if sums is None else sums


def reach_of_landmarks(sigma: float) -> int:
    """How many pixels along an axis the sums of a pixel depend on, on either side: those of whole cells.

    >>> reach_of_landmarks(8.0)
    48
    """
    cell = cell_size(sigma)
    nodes = int(_BLUR_REACH * math.sqrt((sigma / cell) ** 2 - 1 / 3)) + 1
    return (nodes + 2) * cell


def share_of_mass(mass: Tensor, guide: Tensor, landmarks: Landmarks, sigma: tuple[float, float]) -> Tensor:
    """The mass of each pixel of a picture as a part of that below which it is summed over a window.

    Args:
        mass: `[height, width]`, the last of the sums.
        guide: `[guide channels, height, width]`, in standard deviations.
        landmarks: of the guide.
        sigma: over y and x, in pixels.

    >>> gray = torch.zeros(1, 4, 5)
    >>> landmarks = choose_landmarks(gray[None], [1.0], 1)
    >>> bool((share_of_mass(torch.ones(4, 5), gray + 3, landmarks, (2.0, 2.0)) < 1).all())
    True
    """
    return _share_of_mass(mass, guide, landmarks.colors, landmarks.mixture, _rare(sigma, 0)[0])


def _share_of_mass(mass: Tensor, guide: Tensor, colors: Tensor, mixture: Tensor, small: float) -> Tensor:
    # they lack one at most
    places = (mass < small).nonzero(as_tuple=True)
    found = torch.full_like(mass, math.inf)
    weights = torch.exp(-0.5 * (guide[:, places[0], places[1]].mT[:, None] - colors).square().sum(-1))
    lacking = 1 - ((weights @ mixture) * weights).sum(1)
    found[places] = mass[places] / (small * lacking.clamp(min=0).sqrt())
    return found


def rare_pixels(share: Tensor, sigma: tuple[float, float]) -> Tensor:
    """Which pixels of a picture are summed over windows.

    Args:
        share: `[height * width]`, the `share_of_mass`.
        sigma: over y and x, in pixels.

    >>> rare_pixels(torch.tensor([20.0, 0.1]), (2.0, 2.0)).tolist()
    [1]
    """
    return _smallest(share, _rare(sigma, share.numel())[1])


def _rare(sigma: tuple[float, float], pixels: int) -> tuple[float, int]:
    """Below which mass pixels are rare whose colors no landmark is near, and how many of so many at most."""
    full = 2 * np.pi * sigma[0] * sigma[1]
    # one at least, for a small picture
    return _SMALL_MASS * full, math.ceil(_PAIRS * pixels / (full / 2 * _REACH**2 + 1))


def _smallest(share: Tensor, most: int) -> Tensor:
    found = (share < 1).nonzero()[:, 0]
    return found[share[found].argsort(stable=True)[:most]]


def _check_memory(values: Tensor, landmarks: Landmarks, cells: tuple[int, int]) -> None:
    """Raise unless there is room for the sums, the pixels in one piece, and two grids of all terms."""
    items, channels, height, width = values.shape
    nodes = (height // cells[0] + 2) * (width // cells[1] + 2)
    grids = 2 * nodes * _CHANNELS_AT_ONCE * (len(landmarks.colors) + _BLOCK)
    check_rows(items * (channels + 1) * height * width + 2 * _CHANNELS_AT_ONCE * height * width + grids, 1, values)


def _compose(values: Tensor, guide: Tensor, tables: LandmarkTables) -> Tensor:
    """The same of torch's operations, which know their derivatives with respect to values and guide."""
    items, _, height, width = values.shape
    values = torch.cat([values, values.new_ones(()).expand(items, 1, height, width)], dim=1)
    (y_from, y, blur_y), (x_from, x, blur_x) = (
        _grid(*along, like=values) for along in zip((height, width), tables.cells, tables.sigma, strict=True)
    )
    parts = tables.colors.split(max(_AT_ONCE // max(values.numel(), 1), 1))
    weights = [torch.exp(-0.5 * (guide[:, None] - part[..., None, None]).square().sum(2)) for part in parts]
    terms = torch.cat([y_from.mT @ (each[:, :, None] * values[:, None]) @ x_from for each in weights], dim=1)
    terms = blur_y @ torch.einsum("kl,ilcyx->ikcyx", tables.mixture, terms) @ blur_x
    sums = torch.zeros_like(values)
    for each, term in zip(weights, terms.split([part.shape[0] for part in parts], dim=1), strict=True):
        sums = sums + (each[:, :, None] * (y @ term @ x.mT)).sum(1)
    if tables.most_repaired == 0 or items == 0:
        return sums
    return torch.stack([_repair(*item, tables) for item in zip(sums, values, guide, strict=True)])


def _grid(size: int, cell: int, sigma: float, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What pixels give to nodes along an axis and take from them, `[size, nodes]`, and the blur, `[nodes, nodes]`."""
    nodes = (size + cell - 1) // cell + 1
    pixels = torch.arange(size, device=like.device)
    left_node = torch.nn.functional.one_hot(pixels // cell, nodes).to(like.dtype)
    part = (cell + _PARTS - 1) // _PARTS
    first = pixels % cell // part * part
    end = torch.minimum((first + part).clamp(max=cell), size - pixels // cell * cell)
    # a quotient of integers would be float32, whatever the values are
    middles = (first + end).to(like.dtype) / 2, (pixels % cell).to(like.dtype) + 0.5
    source, target = (
        (1 - right) * left_node + right * left_node.roll(1, 1) for right in (each[:, None] / cell for each in middles)
    )
    # interpolation at the source and at the target has a variance of a sixth of a step, on average
    steps = sigma / cell
    variance = steps**2 - 1 / 3
    places = torch.arange(nodes, device=like.device, dtype=like.dtype)
    blur = torch.exp(-0.5 / variance * (places[:, None] - places).square()) * (steps * variance**-0.5)
    return source, target, blur


def _repair(sums: Tensor, values: Tensor, guide: Tensor, tables: LandmarkTables) -> Tensor:
    """The sums `[channels, height, width]` of one item, of `rare_pixels` over a window instead."""
    share = _share_of_mass(sums[-1].detach(), guide.detach(), tables.colors, tables.mixture, tables.small_mass)
    rare = _smallest(share.flatten(), tables.most_repaired)
    return sums.flatten(1).index_copy(1, rare, sum_windows(values, guide, tables.sigma, rare)).view(sums.shape)


def sum_windows(values: Tensor, guide: Tensor, sigma: tuple[float, float], pixels: Tensor) -> Tensor:
    """Sums over windows around single pixels, by the definition.

    Args:
        values: `[channels, height, width]`.
        guide: `[guide channels, height, width]`, in standard deviations.
        sigma: over y and x, in pixels.
        pixels: `[pixels]`, counted row by row.

    Returns:
        `[channels, pixels]`.

    >>> gray = torch.ones(1, 5, 5)
    >>> float(sum_windows(gray, gray, (0.1, 0.1), torch.tensor([7])))
    1.0
    """
    height, width = values.shape[1:]
    extents = window_extents(*sigma, _REACH, height, width)
    offsets = torch.tensor(
        [(s * dy, dx) for dy, e in enumerate(extents) for s in {1, -1 if dy else 1} for dx in range(-e, e + 1)],
        device=values.device,
    )
    scale = torch.tensor(sigma, device=values.device, dtype=values.dtype)
    in_space = torch.exp(-0.5 * (offsets / scale).square().sum(1))
    found = [values.new_zeros(values.shape[0], 0)]
    for part in pixels.split(max(_AT_ONCE // (offsets.shape[0] * values.shape[0]), 1)):
        rows, columns = (part // width)[:, None] + offsets[:, 0], (part % width)[:, None] + offsets[:, 1]
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        near = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
        own = guide.flatten(1)[:, part, None]
        in_color = torch.exp(-0.5 * (guide.flatten(1)[:, near] - own).square().sum(0))
        found.append((values.flatten(1)[:, near] * (in_color * in_space * inside)).sum(-1))
    return torch.cat(found, dim=1)
