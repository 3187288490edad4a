"""Bilateral filter of large images in tiles, which need a fraction of the memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from permutohedral.apps.io.settings import TILE
from permutohedral.filters.choice import choose_for_pixels
from permutohedral.filters.color_grid import reach_of_grid
from permutohedral.filters.exact import WINDOW_REACH, sum_pixels, window_of
from permutohedral.filters.gaussian import GaussianMethod
from permutohedral.filters.tiling import Tiling, bilateral_margins, filter_bilateral_tile
from permutohedral.lattice.checks import check_method


def filter_in_tiles(
    values: Tensor,
    guide: Tensor,
    sigma_space: float,
    sigma_color: float,
    progress: Callable[[float], None] | None = None,
    *,
    method: GaussianMethod = "lattice",
    halo: int = 0,
    tile: int = TILE,
) -> Tensor:
    """Apply `ph.bilateral_filter` to `[channels, height, width]` in tiles, with margins as wide as its support.

    The result equals the filter of the whole image up to the order of its sums. `tile` is the extent of a tile in
    pixels with its margins; an image of no more pixels is filtered in one call. `method="auto"` chooses one method for
    the whole image. `progress` is called with the share that is done.

    >>> image = torch.rand(3, 40, 50)
    >>> tiles = filter_in_tiles(image, image, 1.0, 0.2, tile=30)
    >>> bool(torch.allclose(tiles, ph.bilateral_filter(image, sigma_space=1.0, sigma_color=0.2), atol=1e-5))
    True
    """
    height, width = values.shape[1:]
    options: dict[str, Any] = {"sigma_space": sigma_space, "sigma_color": sigma_color, "halo": halo}
    if height * width <= tile * tile:
        # as a tile, without a warning that the image is unchanged, which would name no file
        filtered = filter_bilateral_tile(values, (0, 0), guide, method=method, **options)
        if progress is not None:
            progress(1.0)
        return filtered
    check_method(method, halo)
    window_reach, axes, step = WINDOW_REACH, None, 1
    if method == "auto":
        choice = choose_for_pixels(values, guide, sigma_space, sigma_color)
        window_reach, axes = choice.reach, None if halo else choice.axes
        method = "exact" if choice.method == "exact" else "lattice"
    if axes is not None:
        # tiles begin at cells of the grid of the whole image
        step = axes.step.cell_size(sigma_space, max(height, width))
        margins = [reach_of_grid(sigma_space, axes.step, max(height, width))] * 2
    elif method == "exact":
        # one more pixel for rounded positions
        margins = [math.ceil(sigma_space * window_reach) + 1] * 2
    else:
        margins = bilateral_margins([sigma_space] * 2, method, halo)

    def filter_tile(part: Tensor, edges: Tensor, origin: tuple[int, ...]) -> Tensor:
        if axes is None and method != "exact":
            return filter_bilateral_tile(part, origin, edges, method=method, **options)
        window = window_of(edges, sigma_space, sigma_color if axes is None else None, window_reach)
        assert window is not None, "sigma is a number"
        return sum_pixels(part.flatten(1).mT, "homogeneous", window, axes).mT.reshape(part.shape)

    inner = max(tile - 2 * margins[1], 6 * margins[1]) // step * step
    tiling = Tiling.regular((height, width), (inner, inner), [-(-margin // step) * step for margin in margins])
    result = torch.empty_like(values)
    for number, part in enumerate(tiling, start=1):
        (y, x), (rows, columns), (kept_y, kept_x) = part.read, part.write, part.keep
        filtered = filter_tile(values[:, y, x], guide[:, y, x], part.origin)
        result[:, rows, columns] = filtered[:, kept_y, kept_x]
        if progress is not None:
            progress(number / len(tiling))
    return result
