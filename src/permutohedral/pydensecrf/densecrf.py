"""Dense conditional random fields with the names, the order of arguments and the signs of pydensecrf."""

from __future__ import annotations

import math
import numbers
from dataclasses import replace
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.crf import Kernel, free_energy, mean_field
from permutohedral.crf.kernels import KernelNormalization
from permutohedral.errors import InputError
from permutohedral.lattice import Lattice
from permutohedral.pydensecrf import eigen
from permutohedral.pydensecrf.arrays import as_array, as_bandwidths, as_count, as_float
from permutohedral.pydensecrf.eigen import MatrixXf
from permutohedral.pydensecrf.unaries import ConstUnary, LogisticUnary, Unary

__all__ = [
    "CONST_KERNEL",
    "DIAG_KERNEL",
    "FULL_KERNEL",
    "NORMALIZE_AFTER",
    "NORMALIZE_BEFORE",
    "NORMALIZE_SYMMETRIC",
    "NO_NORMALIZATION",
    "ConstUnary",
    "DenseCRF",
    "DenseCRF2D",
    "KernelType",
    "LogisticUnary",
    "NormalizationType",
    "Unary",
    "eigen",
]


class KernelType(IntEnum):
    """Names parameters that pydensecrf's C++ could learn; inference is the same with all of them."""

    CONST_KERNEL = 0
    DIAG_KERNEL = 1
    FULL_KERNEL = 2


class NormalizationType(IntEnum):
    """With the mass m of each point: K, K / m_j, K / m_i, K / sqrt(m_i m_j)."""

    NO_NORMALIZATION = 0
    NORMALIZE_BEFORE = 1
    NORMALIZE_AFTER = 2
    NORMALIZE_SYMMETRIC = 3


CONST_KERNEL, DIAG_KERNEL, FULL_KERNEL = KernelType
NO_NORMALIZATION, NORMALIZE_BEFORE, NORMALIZE_AFTER, NORMALIZE_SYMMETRIC = NormalizationType

_NORMALIZATIONS: dict[NormalizationType, KernelNormalization] = {
    NO_NORMALIZATION: "none",
    NORMALIZE_BEFORE: "before",
    NORMALIZE_AFTER: "after",
    NORMALIZE_SYMMETRIC: "symmetric",
}


_Enum = TypeVar("_Enum", bound=IntEnum)


class _Pairwise(NamedTuple):
    kernel: Kernel
    lattice: Lattice


class DenseCRF:
    """A field over any points.

    Args:
        nvar: number of points.
        nlabels: number of labels.
        device: where to compute, such as "cuda"; arrays go in and out all the same.
        _, __: anything else is ignored, as in pydensecrf.

    >>> field = DenseCRF(4, 2)
    >>> field.setUnaryEnergy(np.array([[0.0, 0, 0, 2], [1, 1, 1, 1]], np.float32))
    >>> field.addPairwiseEnergy(np.zeros((1, 4), np.float32), compat=3)
    >>> np.argmax(field.inference(5), axis=0).tolist()
    [0, 0, 0, 0]
    """

    def __init__(self, nvar: int, nlabels: int, *_: Any, device: str | torch.device = "cpu", **__: Any) -> None:
        self._nvar, self._nlabel = as_count("nvar", nvar, least=1), as_count("nlabels", nlabels, least=1)
        self._device = torch.device(device)
        self._energies: Tensor | None = None
        self._pairwise: list[_Pairwise] = []

    def setUnaryEnergy(self, u: NDArray[np.float32], f: NDArray[np.float32] | None = None) -> None:
        """Energies `(nlabels, nvar)`; with `f`, features `(features, nvar)`, the energies are u f."""
        self.setUnary(ConstUnary(u) if f is None else LogisticUnary(u, f))

    def setUnary(self, u: Unary) -> None:
        """Energies that were made before."""
        if not isinstance(u, Unary):
            raise TypeError(f"u must be a ConstUnary or LogisticUnary, got {type(u).__name__}")
        wanted = (self._nlabel, self._nvar)
        if u.energies.shape != wanted:
            raise InputError(f"the unary energy must have the shape {wanted}, got {tuple(u.energies.shape)}")
        self._energies = u.energies.to(self._device)

    def addPairwiseEnergy(
        self,
        features: NDArray[np.float32],
        compat: float | NDArray[np.float32],
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Points whose `features (d, nvar)` are near in units of one standard deviation influence each other.

        compat: a number attracts equal labels; a vector `(nlabels,)` or matrix `(nlabels, nlabels)`, float32, is what
        labels cost each other, so 3 is the same as the vector -3 and the matrix 3 (1 - I).
        """
        points = as_array("features", features, np.float32, axes=2)
        if points.shape[1] != self._nvar or not points.shape[0]:
            raise InputError(f"features must have the shape (d, {self._nvar}), got {points.shape}")
        self._add(points, compat, kernel, normalization)

    def _add(self, features: NDArray[np.float32], compat: Any, kernel: int, normalization: int) -> None:
        if not np.isfinite(features).all():
            raise InputError("features must be finite; repair NaN and infinities, and divide by larger bandwidths")
        _member(KernelType, "kernel", kernel)
        name = _NORMALIZATIONS[_member(NormalizationType, "normalization", normalization)]
        rows = torch.from_numpy(features.T.copy()).to(self._device)
        ready = Kernel(rows, _compatibility(compat, self._nlabel), name)
        self._pairwise.append(_Pairwise(ready, ready.build_lattice()))

    def inference(self, niter: int, /) -> MatrixXf:
        """The marginals `(nlabels, nvar)` after `niter` steps; none, or fewer, are the softmax of the unary energy."""
        return self._iterate(as_count("niter", niter), None)

    def startInference(self) -> tuple[MatrixXf, MatrixXf, MatrixXf]:
        """Marginals for `stepInference`, and two matrices that it takes; zeros without a unary energy."""
        if self._energies is None:
            zeros = np.zeros((self._nlabel, self._nvar), np.float32).view(MatrixXf)
            return zeros, MatrixXf(), MatrixXf()
        return self._iterate(0, None), MatrixXf(), MatrixXf()

    def stepInference(self, Q: MatrixXf, tmp1: MatrixXf, tmp2: MatrixXf) -> None:
        """One step, which changes `Q`; the other matrices are not needed here."""
        for matrix in (tmp1, tmp2):
            if not isinstance(matrix, MatrixXf):
                raise TypeError(f"tmp1 and tmp2 must be MatrixXf, got {type(matrix).__name__}")
        Q[...] = self._iterate(1, self._marginals(Q))

    def klDivergence(self, Q: MatrixXf) -> float:
        """As pydensecrf counts it: sum Q (log Q + U) + <Q, K Q mu>. The free energy has half of the last term."""
        marginals, energies = self._marginals(Q), self._unary()
        kernels = [
            replace(pair.kernel, compatibility=_without_constant(pair.kernel, self._nlabel)) for pair in self._pairwise
        ]
        alone = free_energy(marginals, energies, [])
        together = free_energy(marginals, energies, kernels, [pair.lattice for pair in self._pairwise])
        return _checked_sum(float(alone + 2 * (together - alone)))

    def _iterate(self, steps: int, start: Tensor | None) -> MatrixXf:
        kernels, lattices = [pair.kernel for pair in self._pairwise], [pair.lattice for pair in self._pairwise]
        found = mean_field(self._unary(), kernels, max(0, steps), damping=0, lattices=lattices, start=start)
        marginals = found.T.cpu().numpy()
        _checked_sum(float(marginals.sum()))
        return marginals.view(MatrixXf)

    def _unary(self) -> Tensor:
        """`[nvar, nlabels]`, a view of planes."""
        if self._energies is None:
            return torch.zeros(self._nlabel, self._nvar, device=self._device).T
        return self._energies.T

    def _marginals(self, Q: MatrixXf) -> Tensor:
        """`[nvar, nlabels]` of a matrix of `startInference`."""
        if not isinstance(Q, MatrixXf):
            raise TypeError(f"Q must be a MatrixXf, as startInference returns it, got {type(Q).__name__}")
        wanted = (self._nlabel, self._nvar)
        if Q.shape != wanted or Q.dtype != np.float32:
            raise InputError(f"Q must be float32 of the shape {wanted}, got {Q.dtype} of {Q.shape}")
        if not bool((np.isfinite(Q) & (Q >= 0)).all()):
            raise InputError("Q must be finite and not negative")
        return torch.from_numpy(np.ascontiguousarray(Q)).to(self._device).T


class DenseCRF2D(DenseCRF):
    """A field over the pixels of a picture, in the order of its rows.

    Args:
        w: width of the picture.
        h: height of the picture.
        nlabels: number of labels.
        device: where to compute, such as "cuda".
        _, __: anything else is ignored, as in pydensecrf.

    >>> field = DenseCRF2D(8, 6, 3)
    >>> field.addPairwiseBilateral(sxy=5, srgb=10, rgbim=np.zeros((6, 8, 3), np.uint8), compat=4)
    >>> field.inference(2).shape
    (3, 48)
    """

    def __init__(self, w: int, h: int, nlabels: int, /, *_: Any, device: str | torch.device = "cpu", **__: Any) -> None:
        self._w, self._h = as_count("w", w, least=1), as_count("h", h, least=1)
        super().__init__(self._w * self._h, nlabels, device=device)

    def addPairwiseGaussian(
        self,
        sxy: float | tuple[float, float],
        compat: float | NDArray[np.float32],
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Near pixels influence each other; `sxy` is a standard deviation in pixels, or those along x and y."""
        self._add(self._positions(sxy), compat, kernel, normalization)

    def addPairwiseBilateral(
        self,
        sxy: float | tuple[float, float],
        srgb: float | tuple[float, float, float],
        rgbim: NDArray[np.uint8],
        compat: float | NDArray[np.float32],
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Near pixels of like colors in `rgbim`, uint8 `(h, w, 3)`, influence each other."""
        image = as_array("rgbim", rgbim, np.uint8, axes=3)
        if image.shape != (self._h, self._w, 3):
            raise InputError(
                f"rgbim must have the shape {(self._h, self._w, 3)}, got {image.shape}; for other channels give "
                "utils.create_pairwise_bilateral to addPairwiseEnergy"
            )
        colors = image.reshape(-1, 3).T / np.array(as_bandwidths("srgb", srgb, 3))[:, None]
        self._add(np.concatenate([self._positions(sxy), colors]), compat, kernel, normalization)

    def _positions(self, sxy: Any) -> NDArray[np.float32]:
        """x before y, `(2, nvar)`."""
        along_x, along_y = as_bandwidths("sxy", sxy, 2)
        y, x = np.indices((self._h, self._w), np.float32).reshape(2, -1)
        with np.errstate(over="ignore"):
            return np.stack([x / along_x, y / along_y])


def _checked_sum(total: float) -> float:
    if not math.isfinite(total):
        raise InputError("energies and compat are so large that their sum overflows; scale both down")
    return total


def _member(kind: type[_Enum], name: str, given: Any) -> _Enum:
    try:
        return kind(given)
    except ValueError:
        names = ", ".join(f"{member.name} ({member.value})" for member in kind)
        raise InputError(f"{name} must be one of {names}, got {given!r}") from None


def _compatibility(compat: object, labels: int) -> float | Tensor:
    """The costs of `Kernel`: pydensecrf's number is that of different labels, its arrays are costs already."""
    if isinstance(compat, numbers.Number):
        return as_float("compat", compat)
    axes = np.ndim(compat) if isinstance(compat, np.ndarray) else memoryview(compat).ndim  # type: ignore[arg-type]
    if axes not in (1, 2):
        raise InputError(f"compat must be a number, a vector or a matrix, got an array of {axes} axes")
    costs = as_array("compat", compat, np.float32, axes)
    if costs.shape != (labels,) * axes:
        raise InputError(f"compat must have the shape {(labels,) * axes}, got {costs.shape}")
    if not np.isfinite(costs).all():
        raise InputError("compat must be finite")
    return torch.from_numpy(costs.copy())


def _without_constant(kernel: Kernel, labels: int) -> float | Tensor:
    """The costs as pydensecrf counts them: a number w is -w for equal labels, not w for different ones."""
    if isinstance(kernel.compatibility, Tensor):
        return kernel.compatibility
    return torch.full((labels,), -float(kernel.compatibility))
