"""Drop-in for `bilateral_solver.py`: the solver of Barron and Poole's notebook, as TokenCut and FOUND copy it.

The grid is the notebook's, not a permutohedral lattice, so that results agree. `permutohedral.bilateral_solver` is the
solver on the lattice. PERMUTOHEDRAL_DEVICE chooses the device. docs/guide/bilateral_solver.md lists the differences.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.compat import default_device
from permutohedral.errors import BackendUnavailable, InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BilateralGrid", "BilateralSolver", "bilateral_solver_output", "bistochastize"]

# JPEG's color space
_RGB_TO_YUV = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
_YUV_OFFSET = np.array([0.0, 128.0, 128.0])
_PARAMETERS = {"lam": 256, "A_diag_min": 1e-5, "cg_tol": 1e-5, "cg_maxiter": 25}
_CONFIDENCE = 0.999


class BilateralGrid:
    """Bilateral grid over x, y, luma and chroma; each pixel belongs to one cell.

    Args:
        im: RGB `(height, width, 3)`, 0 to 255.
        sigma_spatial: size of a cell in pixels.
        sigma_luma: size of a cell in brightness.
        sigma_chroma: size of a cell in color.

    Attributes:
        npixels, nvertices, dim: numbers of pixels, of occupied cells, and of axes (5).

    >>> import numpy as np
    >>> from permutohedral.compat.bilateral_solver import BilateralGrid
    >>> BilateralGrid(np.zeros((64, 64, 3), np.uint8), sigma_spatial=32).nvertices
    4
    """

    def __init__(
        self, im: NDArray[Any], sigma_spatial: float = 32, sigma_luma: float = 8, sigma_chroma: float = 8
    ) -> None:
        import torch

        image = np.asarray(im)
        if image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise InputError(f"im must be RGB (height, width, 3), got the shape {image.shape}")
        sigmas = {"sigma_spatial": sigma_spatial, "sigma_luma": sigma_luma, "sigma_chroma": sigma_chroma}
        for name, sigma in sigmas.items():
            if not sigma > 0 or not np.isfinite(sigma):
                raise InputError(f"{name} must be positive, got {sigma}")
        yuv = np.tensordot(image, _RGB_TO_YUV, ([2], [1])) + _YUV_OFFSET
        if not np.isfinite(yuv).all():
            raise InputError("im must be finite, got NaN or infinity")
        y, x = np.indices(image.shape[:2])
        axes = [
            x / sigma_spatial,
            y / sigma_spatial,
            yuv[..., 0] / sigma_luma,
            *np.moveaxis(yuv[..., 1:] / sigma_chroma, -1, 0),
        ]
        coordinates = np.stack(axes).reshape(len(axes), -1)
        # their product numbers the cells
        if math.prod((np.ptp(coordinates, axis=1) + 4).tolist()) >= 2**63:
            raise InputError("im has too many cells; pass larger sigma_spatial, sigma_luma and sigma_chroma")
        cells = torch.from_numpy(coordinates.astype(np.int64)).to(default_device())
        self.dim, self.npixels = cells.shape
        self._cell_of_pixel, self._neighbors = _find_cells(cells)
        self.nvertices = self._neighbors.shape[1]

    def splat(self, x: NDArray[Any]) -> NDArray[Any]:
        """Sum the pixels of each cell, `(npixels, ...)` to `(nvertices, ...)`."""
        return self._call(self._splat, x, self.npixels)

    def slice(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each pixel's cell, `(nvertices, ...)` to `(npixels, ...)`."""
        return self._call(lambda values: values[self._cell_of_pixel], y, self.nvertices)

    def blur(self, x: NDArray[Any]) -> NDArray[Any]:
        """Blur `(nvertices, ...)` with (1, 2, 1) along each axis, and add the results."""
        return self._call(self._blur, x, self.nvertices)

    def filter(self, x: NDArray[Any]) -> NDArray[Any]:
        """Apply the bilateral filter to `(npixels, ...)`."""
        ones: NDArray[Any] = np.ones(np.shape(x))
        filtered: NDArray[Any] = self.slice(self.blur(self.splat(x))) / self.slice(self.blur(self.splat(ones)))
        return filtered

    def _splat(self, pixels: Tensor) -> Tensor:
        return pixels.new_zeros(self.nvertices, *pixels.shape[1:]).index_add_(0, self._cell_of_pixel, pixels)

    def _blur(self, cells: Tensor) -> Tensor:
        # the row after the last is zero, and stands for missing neighbors
        padded = cells.new_zeros(self.nvertices + 1, *cells.shape[1:])
        padded[:-1] = cells
        return 2 * self.dim * cells + padded[self._neighbors].sum(dim=0)

    def _call(self, function: Any, given: NDArray[Any], rows: int) -> NDArray[Any]:
        import torch

        values = np.asarray(given, np.float64)
        if values.ndim < 1 or len(values) != rows:
            raise InputError(f"the array must have {rows} rows, got the shape {values.shape}")
        result: NDArray[Any] = function(torch.from_numpy(values).to(self._cell_of_pixel.device)).cpu().numpy()
        return result


def bistochastize(grid: BilateralGrid, maxiter: int = 10) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the diagonals of the matrices Dn and Dm that make the blur of a grid bistochastic, `(nvertices,)` each.

    >>> import numpy as np
    >>> from permutohedral.compat.bilateral_solver import BilateralGrid, bistochastize
    >>> Dn, Dm = bistochastize(BilateralGrid(np.zeros((64, 64, 3), np.uint8)))
    >>> bool(np.allclose(Dn * BilateralGrid(np.zeros((64, 64, 3), np.uint8)).blur(Dn), Dm))
    True
    """
    scale, mass = _bistochastize(grid, maxiter)
    return scale.cpu().numpy(), mass.cpu().numpy()


class BilateralSolver:
    """Fast bilateral solver (Barron and Poole 2016) on a grid.

    Args:
        grid: of the image.
        params: "lam", the weight of smoothness; "A_diag_min", the least diagonal of the preconditioner; "cg_tol" and
            "cg_maxiter" of the conjugate gradients.

    >>> import numpy as np
    >>> from permutohedral.compat.bilateral_solver import BilateralGrid, BilateralSolver
    >>> grid = BilateralGrid(np.zeros((8, 8, 3), np.uint8))
    >>> params = {"lam": 128, "A_diag_min": 1e-5, "cg_tol": 1e-5, "cg_maxiter": 25}
    >>> BilateralSolver(grid, params).solve(np.ones((64, 1)), np.ones((64, 1))).round(6).max().item()
    1.0
    """

    def __init__(self, grid: BilateralGrid, params: Mapping[str, float]) -> None:
        missing = [name for name in _PARAMETERS if name not in params]
        if missing:
            raise InputError(f"params lacks {', '.join(missing)}")
        self.grid, self.params = grid, params
        self.Dn, self.Dm = bistochastize(grid)

    def solve(self, x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
        """Return the solution at the pixels, for targets `x (npixels, channels)` and confidences `w (npixels, 1)`."""
        import torch

        from permutohedral.ops.conjugate_gradients import conjugate_gradients

        grid, device = self.grid, self.grid._cell_of_pixel.device
        targets, weights = np.asarray(x, np.float64), np.asarray(w, np.float64).reshape(-1, 1)
        if targets.ndim != 2 or len(targets) != grid.npixels or len(weights) != grid.npixels:
            raise InputError(
                f"x must be ({grid.npixels}, channels) and w ({grid.npixels}, 1), got {np.shape(x)} and {np.shape(w)}"
            )
        if not np.isfinite(targets).all() or not np.isfinite(weights).all() or weights.min() < 0:
            raise InputError("x and w must be finite, and w must not be negative")
        scale, mass = (torch.from_numpy(diagonal)[:, None].to(device) for diagonal in (self.Dn, self.Dm))
        confidence = torch.from_numpy(weights).to(device)
        data = grid._splat(confidence)
        right = grid._splat(torch.from_numpy(targets).to(device) * confidence)
        smoothness = float(self.params["lam"])

        def apply(cells: Tensor) -> Tensor:
            return smoothness * (mass * cells - scale * grid._blur(scale * cells)) + data * cells

        diagonal = smoothness * (mass - 2 * grid.dim * scale * scale) + data
        # cells without confidence start at zero, where the notebook divides by zero
        start = torch.where(data > 0, right / data, 0.0)
        preconditioner = diagonal.clamp(min=float(self.params["A_diag_min"]))
        iterations, tolerance = int(self.params["cg_maxiter"]), float(self.params["cg_tol"])
        solved = conjugate_gradients(apply, right, preconditioner, start, iterations, tolerance)
        pixels: NDArray[Any] = solved[grid._cell_of_pixel].cpu().numpy()
        return pixels


def bilateral_solver_output(
    img_pth: Any = None,
    target: NDArray[Any] | None = None,
    sigma_spatial: float = 24,
    sigma_luma: float = 4,
    sigma_chroma: float = 4,
    threshold: float | None = None,
    *,
    img: Any = None,
    get_all_cc: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Refine a mask along the edges of an image.

    Args:
        img_pth: path of the image, or the image itself: an array `(height, width, 3)` or a Pillow image.
        target: mask `(height, width)`, 0 to 1; one of another size is resized to the image.
        sigma_spatial: size of a grid cell in pixels.
        sigma_luma: size of a grid cell in brightness, 0 to 255.
        sigma_chroma: size of a grid cell in color.
        threshold: return all components above it, as in OIParts; default: one component above 0.5.
        img: the image itself, instead of `img_pth`, as in FOUND.
        get_all_cc: return all components but the largest, as in FOUND.

    Returns:
        The soft mask, float64 `(height, width)`, and a binary mask: the soft one above 0.5 with holes filled, of which
        the second largest component counts, background included. Without any object all pixels are True.

    >>> import numpy as np
    >>> from permutohedral.compat.bilateral_solver import bilateral_solver_output
    >>> target = np.zeros((32, 32))
    >>> target[8:20, 8:20] = 1
    >>> soft, binary = bilateral_solver_output(np.zeros((32, 32, 3), np.uint8), target)
    >>> soft.shape, binary.dtype
    ((32, 32), dtype('bool'))
    """
    try:
        from PIL import Image
        from skimage.measure import label
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            f"bilateral_solver_output needs {error.name}: pip install 'permutohedral[images]'"
        ) from None
    image = img_pth if img is None else img
    if image is None or target is None:
        raise InputError("img_pth and target must be passed: an image or its path, and a mask")
    if isinstance(image, (str, os.PathLike)):
        with Image.open(image) as file:
            image = file.convert("RGB")
    reference = np.asarray(image)
    grid = BilateralGrid(reference, sigma_spatial, sigma_luma, sigma_chroma)
    mask = _resize(np.asarray(target), reference.shape[:2])
    confidence = np.full((mask.size, 1), _CONFIDENCE)
    soft = BilateralSolver(grid, _PARAMETERS).solve(mask.reshape(-1, 1), confidence).reshape(mask.shape)
    # background that does not reach the border is a hole
    outside = label(soft <= (0.5 if threshold is None else threshold), connectivity=1)
    border = np.concatenate([outside[0], outside[-1], outside[:, 0], outside[:, -1]])
    inside = ~np.isin(outside, border[border > 0])
    if threshold is not None:
        return soft, inside
    objects = label(inside, connectivity=1)
    order = np.argsort(np.bincount(objects.ravel()))
    if get_all_cc:
        return soft, np.isin(objects, order[:-1]).astype(int)
    return soft, objects == order[-2] if len(order) > 1 else np.ones(mask.shape, bool)


def _resize(mask: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Interpolate a mask between the centers of its pixels, as OpenCV does."""
    if mask.ndim != 2 or not mask.size:
        raise InputError(f"target must be (height, width), got the shape {mask.shape}")
    if mask.shape == shape:
        return mask
    import torch
    from torch.nn.functional import interpolate

    resized = interpolate(torch.from_numpy(mask.astype(np.float64))[None, None], list(shape), mode="bilinear")
    return resized[0, 0].numpy()


def _find_cells(cells: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of each pixel's cell, and the neighbors of the cells.

    The neighbors have one row for each axis and direction, with the number of cells where there is none.
    """
    import torch

    low = cells.amin(dim=1) - 1
    extents = cells.amax(dim=1) - low + 2
    strides = [int(extents[axis + 1 :].prod()) for axis in range(len(cells))]
    keys = sum((stride * (cells[axis] - low[axis]) for axis, stride in enumerate(strides)), torch.zeros_like(cells[0]))
    occupied, cell_of_pixel = torch.unique(keys, return_inverse=True)
    rows = []
    for wanted in (occupied + step for stride in strides for step in (-stride, stride)):
        places = torch.searchsorted(occupied, wanted).clamp(max=len(occupied) - 1)
        rows.append(torch.where(occupied[places] == wanted, places, len(occupied)))
    return cell_of_pixel, torch.stack(rows)


def _bistochastize(grid: BilateralGrid, maxiter: int) -> tuple[Tensor, Tensor]:
    mass = grid._splat(grid._cell_of_pixel.new_ones(grid.npixels).double())
    scale = mass.new_ones(grid.nvertices)
    for _ in range(maxiter):
        scale = (scale * mass / grid._blur(scale)).sqrt()
    return scale, scale * grid._blur(scale)
