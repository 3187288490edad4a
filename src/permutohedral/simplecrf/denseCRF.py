"""The dense conditional random field of a picture, as SimpleCRF calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.errors import InputError
from permutohedral.pydensecrf.arrays import as_count, as_float
from permutohedral.pydensecrf.densecrf import DenseCRF2D
from permutohedral.simplecrf.labels import energies_of, labels_of

__all__ = ["densecrf"]

# SimpleCRF trusts no probability more than this
_LEAST, _MOST = 0.01, 0.99


def densecrf(I: NDArray[Any], P: NDArray[Any], param: Sequence[float]) -> NDArray[np.int8]:  # noqa: E741 (their name)
    """Labels of a picture.

    Args:
        I: uint8 `(height, width, 3)`.
        P: probabilities `(height, width, labels)`.
        param: (weight of the bilateral kernel, its standard deviation in pixels, that in color, weight of the spatial
            kernel, its standard deviation in pixels, number of steps).

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
