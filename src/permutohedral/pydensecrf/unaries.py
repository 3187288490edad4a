"""What each label costs at each point, as pydensecrf takes it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from permutohedral.errors import InputError
from permutohedral.pydensecrf.arrays import as_array

# stands for infinity: the difference of two infinite energies is none
_LARGEST_ENERGY = 1e30


class Unary:
    """Energies `(labels, points)`, made by one of its subclasses.

    Attributes:
        energies: float32 `[labels, points]`, finite.
    """

    energies: Tensor


class ConstUnary(Unary):
    """Given energies.

    Args:
        u: float32 `(labels, points)`.

    >>> ConstUnary(np.zeros((2, 5), np.float32)).energies.shape
    torch.Size([2, 5])
    """

    def __init__(self, u: NDArray[np.float32]) -> None:
        self.energies = _finite(torch.from_numpy(as_array("the unary energy", u, np.float32, axes=2).copy()))


class LogisticUnary(Unary):
    """Energies that are linear in features of the points, L f.

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
                f"L (labels, features) and f (features, points) do not fit, got {weights.shape} and {features.shape}"
            )
        self.energies = _finite(torch.from_numpy(weights) @ torch.from_numpy(features))


def _finite(energies: Tensor) -> Tensor:
    """Changed in place: infinities are made large; NaN is refused, since one would spread to all points."""
    if bool(energies.isnan().any()):
        raise InputError("the unary energy holds NaN, which would spread to all points; repair it")
    return energies.clamp_(-_LARGEST_ENERGY, _LARGEST_ENERGY)
