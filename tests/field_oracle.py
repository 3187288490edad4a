"""The mean field a second time, in NumPy: a filter is a dense matrix. Imports nothing of the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import oracle
from oracle import Array, IntArray


class DenseKernel(NamedTuple):
    """K `[points, points]`, and mu `[labels, labels]`."""

    matrix: Array
    costs: Array


def filter_matrix(features: Array, vertices: IntArray | None = None) -> Array:
    """B G B^T / (1 + 2^-d): splat, the blur along all axes, slice.

    Pixels lie on the faces of simplices, whose other vertices they touch with weight zero; the blur passes through
    these where they count as occupied, so `vertices` may list them.
    """
    simplices = oracle.locate(features)
    if vertices is not None:
        simplices = oracle.on_vertices(simplices, vertices)
    gain = 1 + 2.0 ** -features.shape[1]
    matrix: Array = simplices.weights @ oracle.blur_matrix(simplices.vertices) @ simplices.weights.T / gain
    return matrix


def normalized(matrix: Array, normalization: str) -> Array:
    """symmetric: k_ij / sqrt(m_i m_j), before: k_ij / m_j, after: k_ij / m_i, none: k_ij; m_i = sum_j k_ij."""
    mass = matrix.sum(axis=1)
    rows = {"symmetric": mass**-0.5, "homogeneous": 1 / mass}.get(normalization, np.ones_like(mass))
    columns = {"symmetric": mass**-0.5, "transposed": 1 / mass}.get(normalization, np.ones_like(mass))
    return np.asarray(rows[:, None] * matrix * columns)


def cost_matrix(compatibility: float | Array, labels: int) -> Array:
    """w (1 - I), the diagonal, or the symmetric part."""
    given = np.asarray(compatibility, dtype=np.float64)
    if given.ndim == 0:
        return np.asarray(given * (1 - np.eye(labels)))
    return np.diag(given) if given.ndim == 1 else (given + given.T) / 2


def softmax(logits: Array) -> Array:
    scaled = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(scaled / scaled.sum(axis=1, keepdims=True))


def mean_field(
    energies: Array, kernels: Sequence[DenseKernel], steps: int, damping: float = 0.0, start: Array | None = None
) -> Array:
    """Q = softmax((t log Q - U - sum K Q mu) / (1 + t)), from softmax(-U) on: `[points, labels]`."""
    marginals = softmax(-energies) if start is None else start
    for _ in range(steps):
        logits = -energies
        for kernel in kernels:
            logits = logits - kernel.matrix @ marginals @ kernel.costs
        marginals = softmax((damping * np.log(marginals) + logits) / (1 + damping))
    return marginals


def free_energy(marginals: Array, energies: Array, kernels: Sequence[DenseKernel]) -> float:
    """sum Q (log Q + U) + sum Q (K Q mu) / 2."""
    total = (marginals * (np.log(marginals) + energies)).sum()
    for kernel in kernels:
        total += (marginals * (kernel.matrix @ marginals @ kernel.costs)).sum() / 2
    return float(total)
