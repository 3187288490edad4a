"""Matrices and vectors of pydensecrf, as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.compat.pydensecrf.arrays import as_array

__all__ = ["MatrixXf", "VectorXf", "matrixXf", "vectorXf"]


class MatrixXf(np.ndarray[Any, np.dtype[np.float32]]):
    """Float32 array such as marginals `(labels, points)`; the constructor returns an empty one.

    >>> marginals = matrixXf(np.array([[0.2, 0.7], [0.8, 0.3]], np.float32))
    >>> np.array(np.argmax(marginals, axis=0))
    array([1, 0])
    """

    def __new__(cls) -> MatrixXf:
        return np.zeros((0, 0), np.float32).view(cls)


class VectorXf(np.ndarray[Any, np.dtype[np.float32]]):
    """Float32 array of one axis; the constructor returns an empty one."""

    def __new__(cls) -> VectorXf:
        return np.zeros(0, np.float32).view(cls)


def matrixXf(arr: NDArray[np.float32]) -> MatrixXf:
    """Copy a float32 array `(rows, columns)`.

    >>> matrixXf(np.ones((2, 3), np.float32)).shape
    (2, 3)
    """
    return as_array("arr", arr, np.float32, axes=2).copy().view(MatrixXf)


def vectorXf(arr: NDArray[np.float32]) -> VectorXf:
    """Copy a float32 array of one axis.

    >>> vectorXf(np.ones(3, np.float32)).shape
    (3,)
    """
    return as_array("arr", arr, np.float32, axes=1).copy().view(VectorXf)
