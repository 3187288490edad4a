"""Dense CRF of an image, with the interface of SimpleCRF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.compat.pydensecrf.arrays import as_count, as_float
from permutohedral.compat.pydensecrf.densecrf import DenseCRF2D
from permutohedral.errors import InputError

__all__ = ["densecrf"]

# SimpleCRF clips probabilities
_LEAST, _MOST = 0.01, 0.99
_MAX_LABELS = 128


def densecrf(I: NDArray[Any], P: NDArray[Any], param: Sequence[float]) -> NDArray[np.int8]:  # noqa: E741 (their name)
    """Return the labels of an image.

    Args:
        I: uint8 `(height, width, 3)`.
        P: probabilities `(height, width, labels)`.
        param: (weight of the bilateral kernel, its standard deviations in pixels and in color, weight of the spatial
            kernel, its standard deviation in pixels, number of iterations).

    Returns:
        int8 `(height, width)`.

    >>> densecrf(np.zeros((6, 8, 3), np.uint8), np.full((6, 8, 2), 0.5), (10.0, 80, 13, 3.0, 3, 5.0)).shape
    (6, 8)
    """
    image, probabilities = np.ascontiguousarray(I), np.asarray(P)
    if image.ndim != 3 or probabilities.ndim != 3 or image.shape[:2] != probabilities.shape[:2]:
        raise InputError(
            f"I must be (height, width, 3) and P (height, width, labels), got {image.shape} and {probabilities.shape}"
        )
    if len(param) != 6:
        raise InputError(f"param must be (w1, alpha, beta, w2, gamma, steps), got {len(param)} numbers")
    w1, alpha, beta, w2, gamma = (as_float("param", number) for number in param[:5])
    height, width, labels = probabilities.shape
    field = DenseCRF2D(width, height, labels)
    field.setUnaryEnergy(energies_of(np.clip(probabilities, _LEAST, _MOST)))
    field.addPairwiseBilateral(alpha, beta, image.copy(), w1)
    field.addPairwiseGaussian(gamma, w2)
    return labels_of(field.inference(as_count("the number of steps", param[5])), (height, width))


def energies_of(probabilities: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return -log p, `(labels, points)`, of positive probabilities `(..., labels)`."""
    labels = probabilities.shape[-1]
    if labels > _MAX_LABELS:
        raise InputError(f"P has {labels} labels; pass at most {_MAX_LABELS}, since labels are int8")
    return np.ascontiguousarray(-np.log(probabilities.reshape(-1, labels).T.astype(np.float32)))


def labels_of(marginals: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.int8]:
    """Return the most probable label of each point, in the shape of the image or volume."""
    labels: NDArray[np.int8] = np.asarray(marginals).argmax(axis=0).reshape(shape).astype(np.int8)
    return labels
