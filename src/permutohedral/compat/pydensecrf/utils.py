"""Unary energies from labels and probabilities, and features of images and volumes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.errors import InputError

__all__ = [
    "compute_unary",
    "create_pairwise_bilateral",
    "create_pairwise_gaussian",
    "softmax_to_unary",
    "unary_from_labels",
    "unary_from_softmax",
]


def unary_from_labels(
    labels: NDArray[Any], n_labels: int, gt_prob: float, zero_unsure: bool = True
) -> NDArray[np.float32]:
    """Return energies of labels that are right with probability `gt_prob`.

    Args:
        labels: integers of any shape, 1 to n_labels and 0 for unknown; 0 to n_labels - 1 without `zero_unsure`.
        n_labels: number of labels without the unknown one, at least 2.
        gt_prob: between 0 and 1, both excluded; the other labels share the rest.
        zero_unsure: whether 0 means that all labels are equally probable.

    Returns:
        float32 `(n_labels, pixels)`.

    >>> np.exp(-unary_from_labels(np.array([0, 1, 2]), 2, 0.75)).round(2).tolist()
    [[0.5, 0.75, 0.25], [0.5, 0.25, 0.75]]
    """
    flat = np.asarray(labels).ravel()
    if flat.dtype.kind not in "iub":
        raise InputError(f"labels must be integers, got {flat.dtype}; convert with .astype(int)")
    if n_labels < 2:
        raise InputError(f"n_labels must be at least 2, got {n_labels}; do not count 0 for unknown")
    if not 0 < gt_prob < 1:
        raise InputError(f"gt_prob must lie between 0 and 1, got {gt_prob}")
    flat = flat.astype(np.int64)
    last = n_labels if zero_unsure else n_labels - 1
    if flat.size and not 0 <= flat.min() <= flat.max() <= last:
        raise InputError(f"labels must lie between 0 and {last}, got {flat.min()} to {flat.max()}")
    # one column per value of a label
    columns = np.full((n_labels, n_labels), -np.log((1.0 - gt_prob) / (n_labels - 1)), np.float32)
    np.fill_diagonal(columns, -np.log(gt_prob))
    if zero_unsure:
        columns = np.hstack([np.full((n_labels, 1), -np.log(1.0 / n_labels), np.float32), columns])
    return np.take(columns, flat, axis=1)


def compute_unary(labels: NDArray[Any], M: int, GT_PROB: float = 0.5) -> NDArray[np.float32]:
    """Call `unary_from_labels`, the new name.

    >>> compute_unary(np.array([1, 2]), 2, GT_PROB=0.8).shape
    (2, 2)
    """
    logging.getLogger(__name__).warning("compute_unary is the old name of unary_from_labels")
    return unary_from_labels(labels, M, GT_PROB)


def unary_from_softmax(sm: NDArray[Any], scale: float | None = None, clip: float | None = 1e-5) -> NDArray[np.float32]:
    """Return energies -log p of probabilities.

    Args:
        sm: `(labels, ...)`.
        scale: weight of the probabilities against uniform ones, above 0 and at most 1.
        clip: lower bound of probabilities; None leaves zeros, whose energy is infinite.

    Returns:
        float32 `(labels, pixels)`.

    >>> unary_from_softmax(np.array([[1.0, 0.0]]), clip=1e-2).round(3)
    array([[-0.   ,  4.605]], dtype=float32)
    """
    if scale is not None and not 0 < scale <= 1:
        raise InputError(f"scale must be above 0 and at most 1, got {scale}")
    probabilities = np.asarray(sm)
    labels = len(probabilities)
    if scale is not None:
        probabilities = scale * probabilities + (1 - scale) / labels
    if clip is not None:
        probabilities = np.clip(probabilities, clip, 1.0)
    with np.errstate(divide="ignore"):
        energies = -np.log(probabilities).reshape(labels, -1)
    return np.ascontiguousarray(energies, np.float32)


def softmax_to_unary(sm: NDArray[Any], GT_PROB: float = 1) -> NDArray[np.float32]:
    """Call `unary_from_softmax`, the new name, without clipping.

    >>> softmax_to_unary(np.array([[0.5], [0.5]])).shape
    (2, 1)
    """
    logging.getLogger(__name__).warning("softmax_to_unary is the old name of unary_from_softmax")
    return unary_from_softmax(sm, None if GT_PROB == 1 else GT_PROB, clip=None)


def create_pairwise_gaussian(sdims: Sequence[float], shape: Sequence[int]) -> NDArray[np.float32]:
    """Return positions in standard deviations, in the order of the axes: y before x.

    Args:
        sdims: standard deviation in pixels for each axis.
        shape: of the image or volume.

    Returns:
        float32 `(axes, pixels)`.

    >>> create_pairwise_gaussian((2, 1), (2, 2)).tolist()
    [[0.0, 0.0, 0.5, 0.5], [0.0, 1.0, 0.0, 1.0]]
    """
    if len(sdims) != len(shape):
        raise InputError(f"sdims must have a number for each axis of the shape {tuple(shape)}, got {len(sdims)}")
    return _positions(sdims, shape)


def create_pairwise_bilateral(
    sdims: Sequence[float], schan: float | Sequence[float], img: NDArray[Any], chdim: int = -1
) -> NDArray[np.float32]:
    """Return positions and values in standard deviations: y, x, then the channels.

    Args:
        sdims: standard deviation in pixels for each axis.
        schan: standard deviation in units of the values, or one for each channel.
        img: image or volume.
        chdim: axis of the channels; -1 if there is none.

    Returns:
        float32 `(axes + channels, pixels)`.

    >>> create_pairwise_bilateral((1, 1), 10, np.zeros((4, 5, 3), np.uint8), chdim=2).shape
    (5, 20)
    """
    image = np.asarray(img)
    values = (image[np.newaxis] if chdim == -1 else np.moveaxis(image, chdim, 0)).astype(np.float32)
    shape = values.shape[1:]
    several: list[Any] = [schan] * len(values) if isinstance(schan, Number) else list(schan)  # type: ignore[arg-type]
    if len(several) > len(values) or len(sdims) > len(shape):
        raise InputError(
            f"at most {len(shape)} sdims and {len(values)} schan fit an image of shape {image.shape} with chdim "
            f"{chdim}, got {len(sdims)} and {len(several)}"
        )
    for channel, deviation in enumerate(several):
        values[channel] /= _divisor("schan", deviation)
    return np.concatenate([_positions(sdims, shape), values.reshape(len(values), -1)])


def _positions(sdims: Sequence[float], shape: Sequence[int]) -> NDArray[np.float32]:
    grid = np.indices(tuple(shape), dtype=np.float32)
    for axis, deviation in enumerate(sdims):
        with np.errstate(over="ignore"):
            grid[axis] /= _divisor("sdims", deviation)
    return grid.reshape(len(shape), -1)


def _divisor(name: str, deviation: float) -> float:
    if not deviation or np.isnan(deviation):
        raise InputError(f"{name} must not be 0 or NaN, got {deviation}; pass a small number to separate pixels")
    return deviation
