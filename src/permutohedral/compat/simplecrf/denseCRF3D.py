"""Dense CRF of a volume, with the interface of SimpleCRF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permutohedral.compat.pydensecrf.arrays import as_bandwidths, as_count, as_float
from permutohedral.compat.pydensecrf.densecrf import DenseCRF
from permutohedral.compat.simplecrf.denseCRF import energies_of, labels_of
from permutohedral.errors import InputError

__all__ = ["densecrf3d"]

_KEYS = (
    *("MaxIterations", "PosRStd", "PosCStd", "PosZStd", "PosW", "BilateralRStd", "BilateralCStd", "BilateralZStd"),
    *("BilateralW", "ModalityNum", "BilateralModsStds"),
)
# lower bound of probabilities, so that energies are finite
_LEAST = 1e-30


def densecrf3d(I: NDArray[Any], P: NDArray[Any], param: Mapping[str, Any]) -> NDArray[np.int8]:  # noqa: E741 (theirs)
    """Return the labels of a volume.

    Args:
        I: uint8 `(depth, height, width, modalities)`.
        P: probabilities `(depth, height, width, labels)`.
        param: MaxIterations; PosW, PosRStd, PosCStd, PosZStd: weight of the spatial kernel and its standard deviations
            in voxels along width, height and depth; BilateralW, BilateralRStd, BilateralCStd, BilateralZStd: the same
            for the bilateral kernel; ModalityNum; BilateralModsStds: standard deviation for each modality.

    Returns:
        int8 `(depth, height, width)`.

    >>> stds = {f"{kind}{axis}Std": 5.0 for kind in ("Pos", "Bilateral") for axis in "RCZ"}
    >>> more = {"MaxIterations": 2.0, "PosW": 2.0, "BilateralW": 3.0, "ModalityNum": 1, "BilateralModsStds": (5.0,)}
    >>> densecrf3d(np.zeros((3, 4, 5, 1), np.uint8), np.full((3, 4, 5, 2), 0.5), {**stds, **more}).shape
    (3, 4, 5)
    """
    image, probabilities = np.asarray(I), np.asarray(P)
    if image.ndim != 4 or probabilities.ndim != 4 or image.shape[:3] != probabilities.shape[:3]:
        raise InputError(
            "I must be (depth, height, width, modalities) and P (depth, height, width, labels), got "
            f"{image.shape} and {probabilities.shape}"
        )
    missing = [key for key in _KEYS if key not in param]
    if missing:
        raise InputError(f"param lacks {', '.join(missing)}")
    modalities = image.shape[3]
    deviations = param["BilateralModsStds"]
    if as_count("ModalityNum", param["ModalityNum"]) != modalities or len(deviations) != modalities:
        raise InputError(f"I has {modalities} modalities; pass the same ModalityNum and length of BilateralModsStds")
    field = DenseCRF(probabilities[..., 0].size, probabilities.shape[3])
    field.setUnaryEnergy(energies_of(np.maximum(probabilities, _LEAST)))
    values = image.reshape(-1, modalities).T.astype(np.float32)
    values /= np.array(as_bandwidths("BilateralModsStds", deviations, modalities))[:, None]
    field.addPairwiseEnergy(_positions(image.shape[:3], param, "Pos"), as_float("PosW", param["PosW"]))
    joined = np.concatenate([_positions(image.shape[:3], param, "Bilateral"), values])
    field.addPairwiseEnergy(joined, as_float("BilateralW", param["BilateralW"]))
    return labels_of(field.inference(as_count("MaxIterations", param["MaxIterations"])), image.shape[:3])


def _positions(shape: tuple[int, ...], param: Mapping[str, Any], kind: str) -> NDArray[np.float32]:
    """Return positions in standard deviations, the last axis first, `(3, voxels)`."""
    grid = np.indices(shape, np.float32).reshape(3, -1)[::-1]
    deviations = as_bandwidths(f"{kind}RStd, {kind}CStd, {kind}ZStd", [param[f"{kind}{axis}Std"] for axis in "RCZ"], 3)
    return np.ascontiguousarray(grid / np.array(deviations)[:, None])
