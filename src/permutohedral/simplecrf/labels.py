"""From probabilities to energies, and from marginals to labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from permutohedral.errors import InputError

_MOST_LABELS = 128


def energies_of(probabilities: NDArray[np.floating]) -> NDArray[np.float32]:
    """-log p, `(labels, points)`, of positive probabilities `(..., labels)`.

    >>> energies_of(np.ones((4, 5, 2))).shape
    (2, 20)
    """
    labels = probabilities.shape[-1]
    if labels > _MOST_LABELS:
        raise InputError(f"labels are int8, so there are at most {_MOST_LABELS}, got {labels}")
    return np.ascontiguousarray(-np.log(probabilities.reshape(-1, labels).T.astype(np.float32)))


def labels_of(marginals: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.int8]:
    """The most probable label of each point, in the shape of the picture or volume.

    >>> labels_of(np.array([[0.1, 0.6], [0.9, 0.4]], np.float32), (1, 2))
    array([[1, 0]], dtype=int8)
    """
    labels: NDArray[np.int8] = np.asarray(marginals).argmax(axis=0).reshape(shape).astype(np.int8)
    return labels
