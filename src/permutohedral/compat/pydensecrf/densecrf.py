"""Dense CRFs with the names, argument order and signs of pydensecrf. Torch is imported by the first kernel."""

from __future__ import annotations

import math
import numbers
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from permutohedral.compat import default_device
from permutohedral.compat.pydensecrf import eigen
from permutohedral.compat.pydensecrf.arrays import as_array, as_bandwidths, as_count, as_float
from permutohedral.compat.pydensecrf.eigen import MatrixXf
from permutohedral.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from permutohedral.crf import Kernel
    from permutohedral.crf.kernels import KernelNormalization

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
    """Kinds of kernel parameters, which do not change inference."""

    CONST_KERNEL = 0
    DIAG_KERNEL = 1
    FULL_KERNEL = 2


class NormalizationType(IntEnum):
    """Normalizations of a kernel K by the mass m of points: K, K / m_j, K / m_i, K / sqrt(m_i m_j)."""

    NO_NORMALIZATION = 0
    NORMALIZE_BEFORE = 1
    NORMALIZE_AFTER = 2
    NORMALIZE_SYMMETRIC = 3


CONST_KERNEL, DIAG_KERNEL, FULL_KERNEL = KernelType
NO_NORMALIZATION, NORMALIZE_BEFORE, NORMALIZE_AFTER, NORMALIZE_SYMMETRIC = NormalizationType

_NORMALIZATIONS: dict[NormalizationType, KernelNormalization] = {
    NO_NORMALIZATION: "none",
    NORMALIZE_BEFORE: "transposed",
    NORMALIZE_AFTER: "homogeneous",
    NORMALIZE_SYMMETRIC: "symmetric",
}


# in place of infinity, since differences of infinite energies are not numbers
_MAX_ENERGY = 1e30

_Enum = TypeVar("_Enum", bound=IntEnum)


class Unary:
    """Unary energies; use one of the subclasses.

    Attributes:
        energies: float32 `[labels, points]`, finite.
    """

    energies: NDArray[np.float32]


class ConstUnary(Unary):
    """Unary energies from an array.

    Args:
        u: float32 `(labels, points)`.

    >>> ConstUnary(np.zeros((2, 5), np.float32)).energies.shape
    (2, 5)
    """

    def __init__(self, u: NDArray[np.float32]) -> None:
        self.energies = _finite(as_array("the unary energy", u, np.float32, axes=2).copy())


class LogisticUnary(Unary):
    """Unary energies L f, linear in features of the points.

    Args:
        L: float32 `(labels, features)`.
        f: float32 `(features, points)`.

    >>> LogisticUnary(np.ones((2, 3), np.float32), np.ones((3, 5), np.float32)).energies[0, 0].item()
    3.0
    """

    def __init__(self, L: NDArray[np.float32], f: NDArray[np.float32]) -> None:
        weights, features = (as_array(name, given, np.float32, axes=2) for name, given in (("L", L), ("f", f)))
        if weights.shape[1] != features.shape[0]:
            raise InputError(
                f"L must be (labels, features) and f (features, points), got {weights.shape} and {features.shape}"
            )
        self.energies = _finite(weights @ features)


def _finite(energies: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace infinities in place; raise `InputError` for NaN, which would spread to all points."""
    if np.isnan(energies).any():
        raise InputError("the unary energy has NaN, which would spread to all points; replace it")
    return np.clip(energies, -_MAX_ENERGY, _MAX_ENERGY, out=energies)


class DenseCRF:
    """Dense CRF over arbitrary points.

    Args:
        nvar: number of points.
        nlabels: number of labels.
        device: torch device, such as "cuda"; default: PERMUTOHEDRAL_DEVICE, or "cpu". Arguments and results are NumPy
            arrays.
        _, __: ignored, as in pydensecrf.

    >>> field = DenseCRF(4, 2)
    >>> field.setUnaryEnergy(np.array([[0.0, 0, 0, 2], [1, 1, 1, 1]], np.float32))
    >>> field.addPairwiseEnergy(np.zeros((1, 4), np.float32), compat=3)
    >>> np.argmax(field.inference(5), axis=0).tolist()
    [0, 0, 0, 0]
    """

    def __init__(self, nvar: int, nlabels: int, *_: Any, device: str | torch.device | None = None, **__: Any) -> None:
        self._nvar, self._nlabel = as_count("nvar", nvar, least=1), as_count("nlabels", nlabels, least=1)
        self._device = device
        self._energies = np.zeros((self._nlabel, self._nvar), np.float32)
        self._has_unary = False
        self._kernels: list[Kernel] = []

    def setUnaryEnergy(self, u: NDArray[np.float32], f: NDArray[np.float32] | None = None) -> None:
        """Set energies `(nlabels, nvar)`, or u f with features `f (features, nvar)`."""
        self.setUnary(ConstUnary(u) if f is None else LogisticUnary(u, f))

    def setUnary(self, u: Unary) -> None:
        """Set the unary energies."""
        if not isinstance(u, Unary):
            raise TypeError(f"u must be a ConstUnary or LogisticUnary, got {type(u).__name__}")
        wanted = (self._nlabel, self._nvar)
        if u.energies.shape != wanted:
            raise InputError(f"the unary energy must have the shape {wanted}, got {u.energies.shape}")
        self._energies, self._has_unary = u.energies, True

    def addPairwiseEnergy(
        self,
        features: NDArray[np.float32],
        compat: float | NDArray[np.float32],
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a Gaussian kernel over `features (d, nvar)`, in units of one standard deviation.

        A number for `compat` attracts equal labels. A vector `(nlabels,)` or matrix `(nlabels, nlabels)` of float32 has
        the costs of labels: 3 is the same as the vector -3 and the matrix 3 (1 - I).
        """
        points = as_array("features", features, np.float32, axes=2)
        if points.shape[1] != self._nvar or not points.shape[0]:
            raise InputError(f"features must have the shape (d, {self._nvar}), got {points.shape}")
        self._add(points, compat, kernel, normalization)

    def _add(self, features: NDArray[np.float32], compat: Any, kernel: int, normalization: int) -> None:
        if not np.isfinite(features).all():
            raise InputError("features must be finite; replace NaN and infinities, or pass larger bandwidths")
        _member(KernelType, "kernel", kernel)
        name = _NORMALIZATIONS[_member(NormalizationType, "normalization", normalization)]
        costs = _compatibility(compat, self._nlabel)
        import torch

        from permutohedral.crf import Kernel

        rows = torch.from_numpy(features.T.copy()).to(default_device(self._device))
        ready = Kernel(rows, costs if isinstance(costs, float) else torch.from_numpy(costs), name)
        self._kernels.append(ready.with_lattice())

    def inference(self, niter: int, /) -> MatrixXf:
        """Return the marginals `(nlabels, nvar)` after `niter` iterations; 0 is the softmax of the unary energy."""
        return self._iterate(as_count("niter", niter), None)

    def startInference(self) -> tuple[MatrixXf, MatrixXf, MatrixXf]:
        """Return marginals, zeros without a unary energy, and two matrices for `stepInference`."""
        if not self._has_unary:
            return self._energies.copy().view(MatrixXf), MatrixXf(), MatrixXf()
        return self._iterate(0, None), MatrixXf(), MatrixXf()

    def stepInference(self, Q: MatrixXf, tmp1: MatrixXf, tmp2: MatrixXf) -> None:
        """Run one iteration on `Q` in place; the other matrices are not used."""
        for matrix in (tmp1, tmp2):
            if not isinstance(matrix, MatrixXf):
                raise TypeError(f"tmp1 and tmp2 must be MatrixXf, got {type(matrix).__name__}")
        Q[...] = self._iterate(1, self._marginals(Q))

    def klDivergence(self, Q: MatrixXf) -> float:
        """Return sum Q (log Q + U) + <Q, K Q mu>; the free energy has half of the last term."""
        from permutohedral.crf import free_energy

        marginals, energies = self._marginals(Q), self._unary()
        kernels = [replace(each, compatibility=_without_constant(each, self._nlabel)) for each in self._kernels]
        alone = free_energy(marginals, energies, [])
        together = free_energy(marginals, energies, kernels)
        return _checked_sum(float(alone + 2 * (together - alone)))

    def _iterate(self, steps: int, start: Tensor | None) -> MatrixXf:
        from permutohedral.crf import mean_field

        steps = max(0, steps)
        found = mean_field(self._unary(), self._kernels, num_iterations=steps, damping=0, start=start)
        marginals = found.T.cpu().numpy()
        _checked_sum(float(marginals.sum()))
        return marginals.view(MatrixXf)

    def _unary(self) -> Tensor:
        """Return the energies `[nvar, nlabels]`, a view of planes."""
        import torch

        return torch.from_numpy(self._energies).to(default_device(self._device)).T

    def _marginals(self, Q: MatrixXf) -> Tensor:
        """Return `[nvar, nlabels]` of a matrix of `startInference`."""
        if not isinstance(Q, MatrixXf):
            raise TypeError(f"Q must be a MatrixXf from startInference, got {type(Q).__name__}")
        wanted = (self._nlabel, self._nvar)
        if Q.shape != wanted or Q.dtype != np.float32:
            raise InputError(f"Q must be float32 of the shape {wanted}, got {Q.dtype} of {Q.shape}")
        if not bool((np.isfinite(Q) & (Q >= 0)).all()):
            raise InputError("Q must be finite and not negative")
        import torch

        return torch.from_numpy(np.ascontiguousarray(Q)).to(default_device(self._device)).T


class DenseCRF2D(DenseCRF):
    """Dense CRF over the pixels of an image, row by row.

    Args:
        w: width.
        h: height.
        nlabels: number of labels.
        device: see `DenseCRF`.
        _, __: ignored, as in pydensecrf.

    >>> field = DenseCRF2D(8, 6, 3)
    >>> field.addPairwiseBilateral(sxy=5, srgb=10, rgbim=np.zeros((6, 8, 3), np.uint8), compat=4)
    >>> field.inference(2).shape
    (3, 48)
    """

    def __init__(
        self, w: int, h: int, nlabels: int, /, *_: Any, device: str | torch.device | None = None, **__: Any
    ) -> None:
        self._w, self._h = as_count("w", w, least=1), as_count("h", h, least=1)
        super().__init__(self._w * self._h, nlabels, device=device)

    def addPairwiseGaussian(
        self,
        sxy: float | tuple[float, float],
        compat: float | NDArray[np.float32],
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a kernel over positions; `sxy` is a standard deviation in pixels, or those along x and y."""
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
        """Add a kernel over positions and the colors of `rgbim`, uint8 `(h, w, 3)`."""
        image = as_array("rgbim", rgbim, np.uint8, axes=3)
        if image.shape != (self._h, self._w, 3):
            raise InputError(
                f"rgbim must have the shape {(self._h, self._w, 3)}, got {image.shape}; for other channels pass "
                "utils.create_pairwise_bilateral to addPairwiseEnergy"
            )
        colors = image.reshape(-1, 3).T / np.array(as_bandwidths("srgb", srgb, 3))[:, None]
        self._add(np.concatenate([self._positions(sxy), colors]), compat, kernel, normalization)

    def _positions(self, sxy: Any) -> NDArray[np.float32]:
        """Return x and y in standard deviations, `(2, nvar)`."""
        along_x, along_y = as_bandwidths("sxy", sxy, 2)
        y, x = np.indices((self._h, self._w), np.float32).reshape(2, -1)
        with np.errstate(over="ignore"):
            return np.stack([x / along_x, y / along_y])


def _checked_sum(total: float) -> float:
    if not math.isfinite(total):
        raise InputError("energies and compat overflow in sum; scale both down")
    return total


def _member(kind: type[_Enum], name: str, given: Any) -> _Enum:
    try:
        return kind(given)
    except ValueError:
        names = ", ".join(f"{member.name} ({member.value})" for member in kind)
        raise InputError(f"{name} must be one of {names}, got {given!r}") from None


def _compatibility(compat: object, labels: int) -> float | NDArray[np.float32]:
    """Return the compatibility of `Kernel`: a number is the cost of different labels, arrays are costs."""
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
    return costs.copy()


def _without_constant(kernel: Kernel, labels: int) -> float | Tensor:
    """Return the costs of pydensecrf: a number w is -w for equal labels, not w for different ones."""
    import torch

    if isinstance(kernel.compatibility, torch.Tensor):
        return kernel.compatibility
    return torch.full((labels,), -float(kernel.compatibility))
