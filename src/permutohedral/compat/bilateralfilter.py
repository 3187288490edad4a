"""Drop-in for the module `bilateralfilter` of rloss: the unnormalized bilateral Gaussian, written in place.

Buffers are flat float32 arrays in scan order. Features are (x / sigmaxy, y / sigmaxy, r / sigmargb, g / sigmargb,
b / sigmargb), and the lattice is the same. PERMUTOHEDRAL_DEVICE chooses the device. docs/guide/bilateralfilter.md lists
the differences.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.compat import default_device
from permutohedral.compat.pydensecrf.arrays import as_count, as_float
from permutohedral.errors import InputError

__all__ = ["bilateralfilter", "bilateralfilter_batch"]

_COLORS = 3


def bilateralfilter(
    image: NDArray[Any], in_: NDArray[Any], out: NDArray[np.float32], H: int, W: int, sigmargb: float, sigmaxy: float
) -> None:
    """Filter the planes of one image, and write the results to `out`.

    Args:
        image: `(3 * H * W,)`, three planes of colors.
        in_: `(K * H * W,)` for any K, such as the probabilities of K classes.
        out: float32, contiguous and writable, of the size of `in_`.
        H: height.
        W: width.
        sigmargb: standard deviation over colors, in units of the image.
        sigmaxy: standard deviation over positions, in pixels.

    >>> import numpy as np
    >>> from permutohedral.compat.bilateralfilter import bilateralfilter
    >>> out = np.zeros(4 * 5, np.float32)
    >>> bilateralfilter(np.zeros(3 * 4 * 5, np.float32), np.ones(4 * 5, np.float32), out, 4, 5, 15.0, 50.0)
    >>> bool(out.min() > 0)
    True
    """
    height, width = as_count("H", H, least=1), as_count("W", W, least=1)
    planes, rest = divmod(np.size(in_), height * width)
    if rest or not planes:
        raise InputError(f"in_ must have a multiple of H * W = {height * width} numbers, got {np.size(in_)}")
    _filter({"image": image, "in_": in_, "out": out}, (1, planes, height, width), sigmargb, sigmaxy)


def bilateralfilter_batch(
    images: NDArray[Any],
    ins: NDArray[Any],
    outs: NDArray[np.float32],
    N: int,
    K: int,
    H: int,
    W: int,
    sigmargb: float,
    sigmaxy: float,
) -> None:
    """Filter the K planes of each of N images, and write the results to `outs`.

    Args:
        images: `(N * 3 * H * W,)`.
        ins: `(N * K * H * W,)`.
        outs: float32, contiguous and writable, of the size of `ins`.
        N: number of images.
        K: number of planes of each image.
        H: height.
        W: width.
        sigmargb: standard deviation over colors, in units of the images.
        sigmaxy: standard deviation over positions, in pixels.

    >>> import numpy as np
    >>> from permutohedral.compat.bilateralfilter import bilateralfilter_batch
    >>> images, ins = np.zeros(2 * 3 * 20, np.float32), np.ones(2 * 4 * 20, np.float32)
    >>> outs = np.zeros_like(ins)
    >>> bilateralfilter_batch(images, ins, outs, 2, 4, 4, 5, 15.0, 50.0)
    >>> bool(outs.min() > 0)
    True
    """
    counts = {"N": N, "K": K, "H": H, "W": W}
    num_images, planes, height, width = (as_count(name, given, least=1) for name, given in counts.items())
    _filter({"images": images, "ins": ins, "outs": outs}, (num_images, planes, height, width), sigmargb, sigmaxy)


def _filter(buffers: dict[str, Any], shape: tuple[int, int, int, int], sigmargb: float, sigmaxy: float) -> None:
    """Check the buffers of images, planes and results, filter, and write."""
    (images_name, images), (planes_name, planes), (out_name, out) = buffers.items()
    num_images, _, height, width = shape
    colors = _as_numbers(images_name, images, (num_images, _COLORS, height, width))
    values = _as_numbers(planes_name, planes, shape)
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{out_name} must be a NumPy array, got {type(out).__name__}")
    if out.dtype != np.float32 or out.ndim != 1 or not out.flags.c_contiguous or not out.flags.writeable:
        raise InputError(
            f"{out_name} must be a flat, contiguous, writable array of float32, got {out.dtype} of shape {out.shape}"
        )
    if out.size != math.prod(shape):
        raise InputError(f"{out_name} must have {math.prod(shape)} numbers, got {out.size}")
    sigma_space, sigma_color = as_float("sigmaxy", sigmaxy), as_float("sigmargb", sigmargb)
    if sigma_space <= 0 or sigma_color <= 0:
        raise InputError(f"sigmaxy and sigmargb must be positive, got {sigma_space:g} and {sigma_color:g}")
    import torch

    from permutohedral.nn.energy import filter_planes

    device = default_device()
    # not where `out` is one of the inputs, which are read while it is written
    written = device.type == "cpu" and not np.may_share_memory(out, values)
    with torch.no_grad():
        filtered = filter_planes(
            torch.from_numpy(values).to(device),
            torch.from_numpy(colors).to(device),
            sigma_space,
            sigma_color,
            torch.from_numpy(out).view(shape) if written else None,
        )
    if not written:
        out[:] = filtered.flatten().cpu().numpy()


def _as_numbers(name: str, given: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return a flat array as contiguous float32 of a shape; other numbers are converted, as SWIG does."""
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be an array of numbers, got {array.dtype}")
    if array.ndim != 1:
        raise InputError(f"{name} must be flat, got the shape {array.shape}; pass .flatten()")
    if array.size != math.prod(shape):
        raise InputError(
            f"{name} must have {' * '.join(map(str, shape))} = {math.prod(shape)} numbers, got {array.size}"
        )
    numbers = np.ascontiguousarray(array, np.float32).reshape(shape)
    # a sum is faster, and may overflow
    if not np.isfinite(np.add.reduce(numbers, axis=None)) and not np.isfinite(numbers).all():
        raise InputError(f"{name} must be finite in float32, got NaN or infinity")
    return numbers if numbers.flags.writeable else numbers.copy()
